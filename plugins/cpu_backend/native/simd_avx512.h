// Sixteen lanes with AVX-512 (F, BW, VL, DQ, VNNI, BF16).
#pragma once
#include <immintrin.h>

namespace ISA {

static constexpr bool has_lookup = true;

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
static INLINE F whole(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)}; }
static INLINE M operator<(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
static INLINE M operator&(M a, M b) { return {__mmask16(a.v & b.v)}; }
static INLINE F choose(M where, F a, F b) { return {_mm512_mask_mov_ps(b.v, where.v, a.v)}; }
static INLINE bool all(M a) { return a.v == 0xffff; }
static INLINE B narrow(F a) { return {_mm512_cvtepi32_epi8(_mm512_cvttps_epi32(a.v))}; }
static INLINE float peak(F a) { return _mm512_reduce_max_ps(a.v); }
// Lane k: the largest of the lanes of a[k].
static INLINE F peaks(const F a[16]) {
    __m512 two[8], four[4], eight[2];
    UNROLL for (int k = 0; k < 8; k++) {
        const __m512 x = a[k + (k & 4)].v, y = a[k + (k & 4) + 4].v;
        two[k] = _mm512_max_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
    }
    UNROLL for (int k = 0; k < 4; k++)
        four[k] = _mm512_max_ps(_mm512_shuffle_f32x4(two[k], two[k + 4], 0x88), _mm512_shuffle_f32x4(two[k], two[k + 4], 0xdd));
    UNROLL for (int k = 0; k < 2; k++)
        eight[k] = _mm512_max_ps(_mm512_unpacklo_ps(four[k], four[k + 2]), _mm512_unpackhi_ps(four[k], four[k + 2]));
    return {_mm512_max_ps(_mm512_unpacklo_ps(eight[0], eight[1]), _mm512_unpackhi_ps(eight[0], eight[1]))};
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
// Shifts of each byte may bring in bits of its neighbour: mask what matters.
template <int By> static INLINE B right(B a) { return {_mm_srli_epi16(a.v, By)}; }
static INLINE B right(B a, int by) { return {_mm_srl_epi16(a.v, _mm_cvtsi32_si128(by))}; }
template <int By> static INLINE B left(B a) { return {_mm_slli_epi16(a.v, By)}; }

// 32 codes of 4 bits, side by side.
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

// 64 values, less `shift` where it is asked for, times `by`, rounded, plus `offset`, within low..high: codes of a byte. False,
// and no codes, where a product is not within `clear` of a whole number.
template <bool Shifted>
static INLINE bool round64(const float* x, F by, F shift, float clear, int offset, int low, int high, uint8_t* codes) {
    const __m512 near = _mm512_set1_ps(clear);
    __m512i whole[4];
    __mmask16 all = 0xffff;
    UNROLL for (int k = 0; k < 4; k++) {
        const __m512 v = _mm512_loadu_ps(x + 16 * k), product = _mm512_mul_ps(Shifted ? _mm512_sub_ps(v, shift.v) : v, by.v);
        whole[k] = _mm512_cvtps_epi32(product);
        const __m512 gap = _mm512_abs_ps(_mm512_sub_ps(product, _mm512_cvtepi32_ps(whole[k])));
        all = _mm512_mask_cmp_ps_mask(all, gap, near, _CMP_LT_OQ);
    }
    if (__builtin_expect(all != 0xffff, 0)) return false;
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i pairs = _mm512_packs_epi32(whole[0], whole[1]), others = _mm512_packs_epi32(whole[2], whole[3]);
    __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(pairs, others));
    bytes = _mm512_adds_epi8(bytes, _mm512_set1_epi8(char(offset)));
    bytes = _mm512_min_epi8(_mm512_max_epi8(bytes, _mm512_set1_epi8(char(low))), _mm512_set1_epi8(char(high)));
    _mm512_storeu_si512(codes, bytes);
    return true;
}

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
// The instruction makes subnormals zero, so vectors with one of those take the way in integers (there is no NaN in most of them).
static INLINE Halves to_bf16(F a) {
    const __mmask16 tiny = _mm512_fpclass_ps_mask(a.v, 0x20);
    __m256i v = (__m256i)_mm512_cvtneps_pbh(a.v);
    if (__builtin_expect(tiny, 0)) v = _mm256_mask_mov_epi16(v, tiny, bf16_of_any(a.v));
    return {v};
}
// The upper halves, which is all there is to values that were bf16.
static INLINE Halves upper(F a) { return {_mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a.v), 16))}; }
// Bytes as the lowest bits of lanes.
static INLINE F lowest(B a) { return {_mm512_castsi512_ps(_mm512_cvtepu8_epi32(a.v))}; }
static INLINE void store(uint16_t* at, Halves a) { _mm256_storeu_si256((__m256i*)at, a.v); }
static INLINE void stream(uint16_t* at, Halves a) { _mm256_stream_si256((__m256i*)at, a.v); }

// The first values of `a` to the lanes whose bits are set, 0 to the others: by places looked up, since AMD's vexpandps takes seven
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
static INLINE F lookup_nibbles(F table, const uint8_t* at) {
    const __m512i places = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i words = _mm512_castsi128_si512(_mm_loadl_epi64((const __m128i*)at));
    return {_mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_permutexvar_epi32(places, words), shifts), table.v)};
}

// Products of 32 bytes without sign and 32 with, times a scale, onto sums in eight lanes.
struct Sum8 { __m256 v; };
static INLINE Sum8 add_products(B low, B high, const int8_t* x, float scale, Sum8 to) {
    const __m256i codes = _mm256_inserti128_si256(_mm256_castsi128_si256(low.v), high.v, 1);
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes, _mm256_loadu_si256((const __m256i*)x));
    return {_mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(scale), to.v)};
}
static INLINE Sum8 add_products(B low, B high, const int8_t* x, float scale_low, float scale_high, Sum8 to) {
    const __m256i codes = _mm256_inserti128_si256(_mm256_castsi128_si256(low.v), high.v, 1);
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes, _mm256_loadu_si256((const __m256i*)x));
    const __m256 scales = _mm256_insertf128_ps(_mm256_set1_ps(scale_low), _mm_set1_ps(scale_high), 1);
    return {_mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scales, to.v)};
}
static INLINE Sum8 fma(Sum8 a, float b, Sum8 c) { return {_mm256_fmadd_ps(a.v, _mm256_set1_ps(b), c.v)}; }
static INLINE float sum(Sum8 a, Sum8 b) { return sum(F{_mm512_zextps256_ps512(_mm256_add_ps(a.v, b.v))}); }

// Products of 64 bytes; the scales are of sixteen or of 32 of them each.
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
