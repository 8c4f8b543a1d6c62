// Sixteen lanes as two registers of AVX2, with FMA and F16C.
#pragma once
#include <immintrin.h>

namespace ISA {

static constexpr bool has_lookup = false, has_expand = false;

struct F { __m256 a, b; };
struct B { __m128i v; };
struct M { __m256 a, b; };  // which lanes

static INLINE F load(const void* at) { return {_mm256_loadu_ps((const float*)at), _mm256_loadu_ps((const float*)at + 8)}; }
static INLINE void store(float* at, F x) { _mm256_storeu_ps(at, x.a), _mm256_storeu_ps(at + 8, x.b); }
static INLINE void stream(float* at, F x) { _mm256_stream_ps(at, x.a), _mm256_stream_ps(at + 8, x.b); }
static INLINE F splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static INLINE F operator+(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static INLINE F operator-(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static INLINE F operator*(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static INLINE F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
static INLINE F operator/(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
static INLINE F least(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
static INLINE F most(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static INLINE F absolute(F x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
static INLINE F root(F x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
static INLINE F nearest(F x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
static INLINE F whole(F x) {
    constexpr int mode = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
static INLINE M operator<(F x, F y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)}; }
static INLINE M operator&(M x, M y) { return {_mm256_and_ps(x.a, y.a), _mm256_and_ps(x.b, y.b)}; }
static INLINE F choose(M where, F x, F y) { return {_mm256_blendv_ps(y.a, x.a, where.a), _mm256_blendv_ps(y.b, x.b, where.b)}; }
static INLINE bool all(M x) { return (_mm256_movemask_ps(x.a) & _mm256_movemask_ps(x.b)) == 0xff; }
static INLINE B narrow(F x) {
    const __m256i byte = _mm256_set1_epi32(255), a = _mm256_cvttps_epi32(x.a), b = _mm256_cvttps_epi32(x.b);
    const __m256i pairs = _mm256_packus_epi32(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
    const __m256i ordered = _mm256_permute4x64_epi64(pairs, 0xd8);
    return {_mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1))};
}
static INLINE float peak(F x) {
    const __m256 eight = _mm256_max_ps(x.a, x.b);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
static INLINE float sum(F x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

static INLINE B load_bytes(const void* at) { return {_mm_loadu_si128((const __m128i*)at)}; }
static INLINE B pair(uint64_t low, uint64_t high) { return {_mm_set_epi64x((long long)high, (long long)low)}; }
static INLINE B splat_byte(uint8_t x) { return {_mm_set1_epi8((char)x)}; }
static INLINE B counting() { return {_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
static INLINE B operator&(B x, B y) { return {_mm_and_si128(x.v, y.v)}; }
static INLINE B operator|(B x, B y) { return {_mm_or_si128(x.v, y.v)}; }
static INLINE B operator^(B x, B y) { return {_mm_xor_si128(x.v, y.v)}; }
template <int By> static INLINE B right(B x) { return {_mm_srli_epi16(x.v, By)}; }
static INLINE B right(B x, int by) { return {_mm_srl_epi16(x.v, _mm_cvtsi32_si128(by))}; }
template <int By> static INLINE B left(B x) { return {_mm_slli_epi16(x.v, By)}; }

// 32 adjacent 4-bit codes.
static INLINE B join_nibbles(B low, B high) {
    const __m128i nibble = _mm_set1_epi8(15), by = _mm_set1_epi16(0x1001);
    return {_mm_packus_epi16(_mm_maddubs_epi16(_mm_and_si128(low.v, nibble), by), _mm_maddubs_epi16(_mm_and_si128(high.v, nibble), by))};
}

static INLINE B interleave_low(B x, B y) { return {_mm_unpacklo_epi8(x.v, y.v)}; }
static INLINE B interleave_high(B x, B y) { return {_mm_unpackhi_epi8(x.v, y.v)}; }

// Expands the first values of `a` to the lanes with set bits; other lanes are 0.
static INLINE F expand(uint32_t mask, F a) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const auto eight = [&](uint32_t bits, __m256 values) {
        const __m256i places = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)PLACES.of[bits]));
        const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(bits)), lane), lane);
        return _mm256_and_ps(_mm256_permutevar8x32_ps(values, places), _mm256_castsi256_ps(set));
    };
    float from[16];
    store(from, a);
    const uint32_t low = mask & 255, high = mask >> 8 & 255;
    return {eight(low, a.a), eight(high, _mm256_loadu_ps(from + __builtin_popcount(low)))};
}

static INLINE F widen_u8(B x) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x.v)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x.v, 8)))};
}
static INLINE F widen_i8(B x) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x.v)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x.v, 8)))};
}
static INLINE F load_half(const void* at) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)at)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)at + 1))};
}
static INLINE __m256 widen_bf16(const __m128i* at) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 16));
}
static INLINE F load_bf16(const void* at) { return {widen_bf16((const __m128i*)at), widen_bf16((const __m128i*)at + 1)}; }

struct Halves { __m128i a, b; };
static INLINE Halves to_half(F x) {
    return {_mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static INLINE __m128i narrow_bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i up = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff)), 16);
    const __m256i nan = _mm256_or_si256(_mm256_and_si256(high, _mm256_set1_epi32(0x8000)), _mm256_set1_epi32(0x7fc0));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i wide = _mm256_blendv_epi8(up, nan, is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
}
template <bool Subnormals = true> static INLINE Halves to_bf16(F x) { return {narrow_bf16(x.a), narrow_bf16(x.b)}; }
// The upper halves, exact for values from bf16.
static INLINE __m128i upper8(__m256 x) {
    const __m256i wide = _mm256_srli_epi32(_mm256_castps_si256(x), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
}
static INLINE Halves upper(F x) { return {upper8(x.a), upper8(x.b)}; }
// Bytes in the low bits of lanes.
static INLINE F lowest(B x) {
    return {_mm256_castsi256_ps(_mm256_cvtepu8_epi32(x.v)), _mm256_castsi256_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x.v, 8)))};
}
static INLINE void store(uint16_t* at, Halves x) {
    _mm_storeu_si128((__m128i*)at, x.a), _mm_storeu_si128((__m128i*)at + 1, x.b);
}
static INLINE void stream(uint16_t* at, Halves x) {
    _mm_stream_si128((__m128i*)at, x.a), _mm_stream_si128((__m128i*)at + 1, x.b);
}

// Slower than affine arithmetic, so only used without it (microscaling).
static INLINE __m256 lookup8(F table, __m256i index) {
    const __m256 low = _mm256_permutevar8x32_ps(table.a, index), high = _mm256_permutevar8x32_ps(table.b, index);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}
static INLINE F lookup(F table, B index) {
    return {lookup8(table, _mm256_cvtepu8_epi32(index.v)), lookup8(table, _mm256_cvtepu8_epi32(_mm_srli_si128(index.v, 8)))};
}

// Adds the products of 32 unsigned and 32 signed bytes, times a scale, to eight lanes.
struct Sum8 { __m256 v; };
static INLINE __m256i products16(B codes, const int8_t* x) {
    return _mm256_madd_epi16(_mm256_cvtepu8_epi16(codes.v), _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)x)));
}
template <bool Eight> static INLINE Sum8 add_products(B low, B high, const int8_t* x, float scale, Sum8 to) {
    const __m256i sums = _mm256_add_epi32(products16(low, x), products16(high, x + 16));
    return {_mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(scale), to.v)};
}
template <bool Eight> static INLINE Sum8 add_products(B low, B high, const int8_t* x, float scale_low, float scale_high, Sum8 to) {
    to.v = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products16(low, x)), _mm256_set1_ps(scale_low), to.v);
    return {_mm256_fmadd_ps(_mm256_cvtepi32_ps(products16(high, x + 16)), _mm256_set1_ps(scale_high), to.v)};
}
static INLINE Sum8 fma(Sum8 a, float b, Sum8 c) { return {_mm256_fmadd_ps(a.v, _mm256_set1_ps(b), c.v)}; }
static INLINE float sum(Sum8 a, Sum8 b) { return sum(F{a.v, b.v}); }

static INLINE void fence() { _mm_sfence(); }
static INLINE void prefetch(const void* at) { _mm_prefetch((const char*)at, _MM_HINT_T0); }

}  // namespace ISA
