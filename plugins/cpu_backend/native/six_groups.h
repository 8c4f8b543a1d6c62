// Q6_K for matrix-vector products: one register of bytes per step.
#pragma once
#include "units.h"

namespace ISA {

#ifdef __AVX2__
// Sixteen bytes hold a group; four values of each group are extracted together, with their scales.
struct SixGroups {
    static constexpr int units = 8, bytes = 210;
    static constexpr Scales scales = Scales::INNER;
    static INLINE int64_t group(const Weights&) { return 1; }
    static INLINE bool offsets(const Weights&) { return false; }
    static INLINE void factors(const Weights&, int64_t, const uint8_t* at, int64_t, int64_t count, float* scale, float*) {
        SixUnits::factors8(at, count, scale);
    }
    const SixUnits six;
    INLINE explicit SixGroups(const Weights& w) : six(w) {}
#ifdef __AVX512VNNI__
    static constexpr int order(int lane) {
        return lane / 64 * 64 + lane % 16 / 4 * 16 + lane / 32 % 2 * 8 + lane / 16 % 2 * 4 + lane % 4;
    }
    static INLINE F inner(const float* scale, int unit) { return spread<16>(scale + unit / 2 * 4); }
    INLINE void values(const uint8_t* at, int unit, F& a, F& b) const {  // the first or the last eight of four groups
        const __m512i codes = six.wide(at, unit / 2).v, none = _mm512_setzero_si512(), raise = _mm512_set1_epi16(0x4b00);
        const __m512i words = unit % 2 ? _mm512_unpackhi_epi8(codes, none) : _mm512_unpacklo_epi8(codes, none);
        const F base = splat(0x1p23f + 32);
        a = F{_mm512_castsi512_ps(_mm512_unpacklo_epi16(words, raise))} - base;
        b = F{_mm512_castsi512_ps(_mm512_unpackhi_epi16(words, raise))} - base;
    }
#else
    static constexpr int order(int lane) { return lane / 32 * 32 + lane / 8 % 2 * 16 + lane / 16 % 2 * 8 + lane % 8; }
    static INLINE F inner(const float* scale, int unit) {
        const __m256 two = _mm256_insertf128_ps(_mm256_set1_ps(scale[2 * unit]), _mm_set1_ps(scale[2 * unit + 1]), 1);
        return {two, two};
    }
    INLINE void values(const uint8_t* at, int unit, F& a, F& b) const {
        const int part = unit % 4;
        const __m256i nibble = _mm256_set1_epi8(15), top = _mm256_set1_epi8(0x30), none = _mm256_setzero_si256();
        const __m256i bits = _mm256_loadu_si256((const __m256i*)(at + 128 + 32 * (unit / 4)));
        const __m256i above = part < 2 ? _mm256_slli_epi16(bits, 4 - 2 * part) : _mm256_srli_epi16(bits, 2 * part - 4);
        __m256i low = _mm256_loadu_si256((const __m256i*)(at + 64 * (unit / 4) + 32 * (part % 2)));
        if (part > 1) low = _mm256_srli_epi16(low, 4);
        const __m256i codes = _mm256_or_si256(_mm256_and_si256(low, nibble), _mm256_and_si256(above, top));
        a = raised(_mm256_unpacklo_epi8(codes, none)) - base_of(32);
        b = raised(_mm256_unpackhi_epi8(codes, none)) - base_of(32);
    }
#endif
};
using SixProducts = SixGroups;
#else
using SixProducts = SixUnits;
#endif

}  // namespace ISA
