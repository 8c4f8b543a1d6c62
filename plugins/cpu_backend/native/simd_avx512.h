// Sixteen lanes with AVX-512 (F, BW, VL, DQ, VNNI, BF16, VBMI2).
#pragma once
#include <immintrin.h>

namespace ISA {

static constexpr bool has_lookup = true, has_expand = true;

struct F { __m512 v; };
struct B { __m128i v; };
struct M { __mmask16 v; };  // which lanes

static INLINE F load(const void* at) { return {_mm512_loadu_ps(at)}; }
static INLINE void store(float* at, F a) { _mm512_storeu_ps(at, a.v); }
static INLINE void stream(float* at, F a) { _mm512_stream_ps(at, a.v); }
static INLINE F splat(float a) { return {_mm512_set1_ps(a)}; }
static INLINE F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
static INLINE F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
static INLINE F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
static INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static INLINE F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
static INLINE F least(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
static INLINE F most(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
static INLINE F absolute(F a) { return {_mm512_abs_ps(a.v)}; }
static INLINE F root(F a) { return {_mm512_sqrt_ps(a.v)}; }
static INLINE F nearest(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
static INLINE F whole(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)}; }
static INLINE M operator<(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
static INLINE M operator&(M a, M b) { return {__mmask16(a.v & b.v)}; }
static INLINE F choose(M where, F a, F b) { return {_mm512_mask_mov_ps(b.v, where.v, a.v)}; }
static INLINE bool all(M a) { return a.v == 0xffff; }
static INLINE B narrow(F a) { return {_mm512_cvtepi32_epi8(_mm512_cvttps_epi32(a.v))}; }
static INLINE float peak(F a) { return _mm512_reduce_max_ps(a.v); }
// The larger magnitude; NaN is largest.
static INLINE F most_magnitude(F a, F b) {
    return {_mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}
// Lane k of a[i] to lane i of a[k], by swapping halves, quarters, ...
template <int By> static INLINE void exchange(F a[16]) {
    int32_t lower[16], upper[16];
    for (int i = 0; i < 16; i++) lower[i] = i & By ? i - By + 16 : i, upper[i] = i & By ? i + 16 : i + By;
    const __m512i low = _mm512_loadu_si512(lower), high = _mm512_loadu_si512(upper);
    UNROLL for (int k = 0; k < 16; k++) {
        if (k & By) continue;
        const __m512 x = a[k].v, y = a[k + By].v;
        a[k].v = _mm512_permutex2var_ps(x, low, y), a[k + By].v = _mm512_permutex2var_ps(x, high, y);
    }
}
static INLINE void transpose(F a[16]) { exchange<8>(a), exchange<4>(a), exchange<2>(a), exchange<1>(a); }
// Lane k: the maximum of a[k] by `larger`. Swaps halves, quarters, ... of two vectors and keeps the larger lanes.
template <class Larger> static INLINE F peaks(const F a[16], Larger larger) {
    const __m512i quarters = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
    const __m512i single = _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);
    const auto merged = [&](F x, F y, __mmask16 upper, __m512 crossed) {
        return larger(F{_mm512_mask_blend_ps(upper, x.v, y.v)}, F{crossed});
    };
    F eight[8], four[4], two[2];
    UNROLL for (int k = 0; k < 8; k++) eight[k] = merged(a[k], a[k + 8], 0xff00, _mm512_shuffle_f32x4(a[k].v, a[k + 8].v, 0x4e));
    UNROLL for (int k = 0; k < 4; k++)
        four[k] = merged(eight[k], eight[k + 4], 0xf0f0, _mm512_permutex2var_ps(eight[k].v, quarters, eight[k + 4].v));
    UNROLL for (int k = 0; k < 2; k++) two[k] = merged(four[k], four[k + 2], 0xcccc, _mm512_shuffle_ps(four[k].v, four[k + 2].v, 0x4e));
    return merged(two[0], two[1], 0xaaaa, _mm512_permutex2var_ps(two[0].v, single, two[1].v));
}
static INLINE float sum(F a) { return _mm512_reduce_add_ps(a.v); }
static INLINE F doubled(const float* at) {  // eight values, each twice
    const __m512i place = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return {_mm512_permutexvar_ps(place, _mm512_castps256_ps512(_mm256_loadu_ps(at)))};
}

static INLINE B load_bytes(const void* at) { return {_mm_loadu_si128((const __m128i*)at)}; }
static INLINE B pair(uint64_t low, uint64_t high) { return {_mm_set_epi64x((long long)high, (long long)low)}; }
static INLINE B splat_byte(uint8_t a) { return {_mm_set1_epi8((char)a)}; }
static INLINE B counting() { return {_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
static INLINE B operator&(B a, B b) { return {_mm_and_si128(a.v, b.v)}; }
static INLINE B operator|(B a, B b) { return {_mm_or_si128(a.v, b.v)}; }
static INLINE B operator^(B a, B b) { return {_mm_xor_si128(a.v, b.v)}; }
// Shifts may carry bits between bytes: mask the result.
template <int By> static INLINE B right(B a) { return {_mm_srli_epi16(a.v, By)}; }
static INLINE B right(B a, int by) { return {_mm_srl_epi16(a.v, _mm_cvtsi32_si128(by))}; }
template <int By> static INLINE B left(B a) { return {_mm_slli_epi16(a.v, By)}; }

// 32 adjacent 4-bit codes.
static INLINE B join_nibbles(B low, B high) {
    const __m128i nibble = _mm_set1_epi8(15), by = _mm_set1_epi16(0x1001);
    return {_mm_packus_epi16(_mm_maddubs_epi16(_mm_and_si128(low.v, nibble), by), _mm_maddubs_epi16(_mm_and_si128(high.v, nibble), by))};
}

// 128 codes.
static INLINE void join_nibbles(const uint8_t* codes, uint8_t* out) {
    const __m512i nibble = _mm512_set1_epi8(15), by = _mm512_set1_epi16(0x1001);
    UNROLL for (int k = 0; k < 2; k++) {
        const __m512i pairs = _mm512_maddubs_epi16(_mm512_and_si512(_mm512_loadu_si512(codes + 64 * k), nibble), by);
        _mm256_storeu_si256((__m256i*)(out + 32 * k), _mm512_cvtepi16_epi8(pairs));
    }
}

// Quantizes in fixed point: (value, optionally minus `shift`) * by + base, in a binade with `Rest` fraction bits. `base`
// combines the binade offset, a half, and the code offset.
template <int Rest> struct Fixed {
    static constexpr float one = 3 << (22 - Rest);                           // the center of the binade
    static constexpr int middle = Rest == 16 ? 0x4340 : 0x5400, last = Rest == 16 ? 0x437f : 0x57ff;  // words of codes 0 and most
    __m512i rests = _mm512_set1_epi8(-1), words = _mm512_setzero_si512();  // minimum and maximum

    // Whether all codes were in the binade, and none so close to a midpoint that the quotient might round differently.
    INLINE bool clear() const {
        return !(_mm512_testn_epi16_mask(rests, _mm512_set1_epi32(0xffff)) & 0x55555555) &&
               !_mm512_cmpgt_epu16_mask(words, _mm512_set1_epi16(last));
    }
    template <bool Shifted, bool Limited>
    INLINE void round64(const float* x, const F by[4], const F shift[4], const F base[4], int low, int high, uint8_t* codes) {
        __m512i fixed[4];
        UNROLL for (int k = 0; k < 4; k++) {
            const F value = Shifted ? load(x + 16 * k) - shift[k] : load(x + 16 * k);
            fixed[k] = _mm512_castps_si512(fma(value, by[k], base[k]).v);
            rests = _mm512_min_epu16(rests, Rest == 16 ? fixed[k] : _mm512_and_si512(fixed[k], _mm512_set1_epi32((1 << Rest) - 1)));
            if (Rest < 16) fixed[k] = _mm512_slli_epi32(fixed[k], 16 - Rest);
        }
        UNROLL for (int k = 0; k < 2; k++) {
            __m512i made = _mm512_permutex2var_epi16(fixed[2 * k], odd_words(), fixed[2 * k + 1]);
            if (Limited) {
                words = _mm512_max_epu16(words, made);
                made = _mm512_max_epu16(made, _mm512_set1_epi16(short(middle + low)));
                made = _mm512_min_epu16(made, _mm512_set1_epi16(short(middle + high)));
            }
            _mm256_storeu_si256((__m256i*)(codes + 32 * k), _mm512_cvtepi16_epi8(made));
        }
    }
    static INLINE __m512i odd_words() {
        return _mm512_cvtepu8_epi16(_mm256_setr_epi8(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                     45, 47, 49, 51, 53, 55, 57, 59, 61, 63));
    }
};

static INLINE B interleave_low(B a, B b) { return {_mm_unpacklo_epi8(a.v, b.v)}; }
static INLINE B interleave_high(B a, B b) { return {_mm_unpackhi_epi8(a.v, b.v)}; }

static INLINE F widen_u8(B a) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(a.v))}; }
static INLINE F widen_i8(B a) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(a.v))}; }
static INLINE F load_half(const void* at) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)at))}; }
static INLINE F load_bf16(const void* at) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)at)), 16))};
}

struct Halves { __m256i v; };
static INLINE Halves to_half(F a) { return {_mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
static INLINE __m256i bf16_of_any(__m512 v) {
    const __m512i bits = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff)), 16));
}
// The instruction flushes subnormals, so vectors with possible subnormals use integer code (most have no NaN).
template <bool Subnormals = true> static INLINE Halves to_bf16(F a) {
    __m256i v = (__m256i)_mm512_cvtneps_pbh(a.v);
    if constexpr (!Subnormals) return {v};
    const __mmask16 tiny = _mm512_fpclass_ps_mask(a.v, 0x20);
    if (__builtin_expect(tiny, 0)) v = _mm256_mask_mov_epi16(v, tiny, bf16_of_any(a.v));
    return {v};
}
// The upper halves, exact for values from bf16.
static INLINE Halves upper(F a) { return {_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a.v), 16))}; }

struct Halves32 { __m512i v; };
static INLINE Halves32 both(Halves a, Halves b) { return {_mm512_inserti64x4(_mm512_castsi256_si512(a.v), b.v, 1)}; }
static INLINE Halves32 to_half(F a, F b) { return both(to_half(a), to_half(b)); }
static INLINE Halves32 upper(F a, F b) { return both(upper(a), upper(b)); }
template <bool Subnormals> static INLINE Halves32 to_bf16(F a, F b) {
    __m512i v = (__m512i)_mm512_cvtne2ps_pbh(b.v, a.v);
    if constexpr (!Subnormals) return {v};
    const __mmask16 low = _mm512_fpclass_ps_mask(a.v, 0x20), high = _mm512_fpclass_ps_mask(b.v, 0x20);
    if (__builtin_expect(!_kortestz_mask16_u8(low, high), 0)) return both(to_bf16<true>(a), to_bf16<true>(b));
    return {v};
}
static INLINE Halves32 expand(uint32_t mask, Halves32 a) { return {_mm512_maskz_expand_epi16(mask, a.v)}; }
static INLINE void store(uint16_t* at, Halves32 a) { _mm512_storeu_si512(at, a.v); }
static INLINE void stream(uint16_t* at, Halves32 a) { _mm512_stream_si512((__m512i*)at, a.v); }

// Bytes in the low bits of lanes.
static INLINE F lowest(B a) { return {_mm512_castsi512_ps(_mm512_cvtepu8_epi32(a.v))}; }
static INLINE void store(uint16_t* at, Halves a) { _mm256_storeu_si256((__m256i*)at, a.v); }
static INLINE void stream(uint16_t* at, Halves a) { _mm256_stream_si256((__m256i*)at, a.v); }

// Expands the first values of `a` to the lanes with set bits, 0 elsewhere; by table lookup, since AMD's vexpandps takes seven
// cycles.
static INLINE F expand(uint32_t mask, F a) {
    const uint64_t low = PLACES.of[mask & 255], high = PLACES.of[mask >> 8 & 255];
    const B places = pair(low, high + 0x0101010101010101 * uint64_t(__builtin_popcount(mask & 255)));
    return {_mm512_maskz_permutexvar_ps(__mmask16(mask), _mm512_cvtepu8_epi32(places.v), a.v)};
}

static INLINE F lookup(F table, B index) { return {_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(index.v), table.v)}; }
static INLINE Halves lookup(Halves table, B index) {
    return {_mm256_permutexvar_epi16(_mm256_cvtepu8_epi16(index.v), table.v)};
}
// Decodes 32 4-bit codes: of 16 consecutive bytes, or the low and high nibbles of 32 bytes.
// (The instruction uses five index bits; there are 16 values.)
static INLINE Halves32 lookup32(Halves table, const uint8_t* at) {
    const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)at)), fifth = _mm512_set1_epi16(16);
    const __m512i places = _mm512_ternarylogic_epi32(codes, _mm512_slli_epi32(codes, 12), fifth, 0x54);  // (a | b) & ~c
    return {_mm512_permutexvar_epi16(places, _mm512_castsi256_si512(table.v))};
}
static INLINE void lookup64(Halves low, Halves high, const uint8_t* at, Halves32& first, Halves32& second) {
    const __m512i codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)at));
    first.v = _mm512_permutexvar_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(15)), _mm512_castsi256_si512(low.v));
    second.v = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), _mm512_castsi256_si512(high.v));
}

// Adds the products of 32 unsigned and 32 signed bytes, times a scale, to eight lanes.
struct Sum8 { __m256 v; };
template <bool Eight> static INLINE Sum8 add_products(B low, B high, const int8_t* x, float scale, Sum8 to) {
    const __m256i codes = _mm256_inserti128_si256(_mm256_castsi128_si256(low.v), high.v, 1);
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes, _mm256_loadu_si256((const __m256i*)x));
    return {_mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(scale), to.v)};
}
template <bool Eight> static INLINE Sum8 add_products(B low, B high, const int8_t* x, float scale_low, float scale_high, Sum8 to) {
    const __m256i codes = _mm256_inserti128_si256(_mm256_castsi128_si256(low.v), high.v, 1);
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes, _mm256_loadu_si256((const __m256i*)x));
    const __m256 scales = _mm256_insertf128_ps(_mm256_set1_ps(scale_low), _mm_set1_ps(scale_high), 1);
    return {_mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scales, to.v)};
}
static INLINE Sum8 fma(Sum8 a, float b, Sum8 c) { return {_mm256_fmadd_ps(a.v, _mm256_set1_ps(b), c.v)}; }
static INLINE float sum(Sum8 a, Sum8 b) { return sum(F{_mm512_zextps256_ps512(_mm256_add_ps(a.v, b.v))}); }

// Products of 64 bytes; scales cover sixteen or 32 each.
struct Wide { __m512i v; };
template <int Each> static INLINE F spread(const float* scales) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i place = _mm512_srli_epi32(lane, Each == 16 ? 2 : 3);
    const __m128 some = Each == 16 ? _mm_loadu_ps(scales) : _mm_castpd_ps(_mm_load_sd((const double*)scales));
    return {_mm512_permutexvar_ps(place, _mm512_castps128_ps512(some))};
}
static INLINE F add_products(Wide codes, const int8_t* x, F scales, F to) {
    const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes.v, _mm512_loadu_si512(x));
    return fma(F{_mm512_cvtepi32_ps(sums)}, scales, to);
}
static INLINE float sum(F a, F b) { return sum(a + b); }

static INLINE void fence() { _mm_sfence(); }
static INLINE void prefetch(const void* at) { _mm_prefetch((const char*)at, _MM_HINT_T0); }

}  // namespace ISA
