// Sixteen lanes in the widest registers of the target instruction set (-m flags):
//   F: 16 floats      B: 16 bytes
// Every operation rounds (-ffp-contract=off), like the NumPy reference; only `fma` fuses, for sums.
#pragma once
#include <type_traits>

#include "bits.h"

#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512BF16__) && defined(__AVX512VBMI2__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#elif defined(__aarch64__)
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif

namespace ISA {

#ifndef __AVX512BW__
static INLINE F most_magnitude(F a, F b) { return most(a, b); }
template <class Larger> static INLINE F peaks(const F a[16], Larger) {  // lane k: the largest of the lanes of a[k]
    float made[16];
    for (int k = 0; k < 16; k++) made[k] = peak(a[k]);
    return load(made);
}

static INLINE F doubled(const float* at) {  // eight values, each twice
    float both[16];
    for (int i = 0; i < 16; i++) both[i] = at[i / 2];
    return load(both);
}

static INLINE void transpose(F a[16]) {  // lane k of a[i] to lane i of a[k]
    float from[16][16], to[16][16];
    for (int i = 0; i < 16; i++) store(from[i], a[i]);
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) to[k][i] = from[i][k];
    for (int i = 0; i < 16; i++) a[i] = load(to[i]);
}

struct Halves32 { Halves a, b; };
static INLINE Halves32 to_half(F a, F b) { return {to_half(a), to_half(b)}; }
static INLINE Halves32 upper(F a, F b) { return {upper(a), upper(b)}; }
template <bool Subnormals> static INLINE Halves32 to_bf16(F a, F b) { return {to_bf16<Subnormals>(a), to_bf16<Subnormals>(b)}; }
static INLINE void store(uint16_t* at, Halves32 a) { store(at, a.a), store(at + 16, a.b); }
static INLINE void stream(uint16_t* at, Halves32 a) { stream(at, a.a), stream(at + 16, a.b); }
#endif

// Sixteen codes of a bit stream, lowest first; reads exactly 2 * Bits bytes. (Words are assembled in registers: a three-byte
// copy through memory would stall the following load.)
template <int Bits> static INLINE B load_codes16(const uint8_t* at) {
    if constexpr (Bits == 8) {
        return load_bytes(at);
    } else if constexpr (Bits >= 4) {
        const uint64_t low = read<uint64_t>(at), high = read<uint64_t>(at + 2 * Bits - 8) >> 8 * (8 - Bits);
        return pair(spread8<Bits>(low), spread8<Bits>(high));
    } else {
        uint64_t word;
        if constexpr (Bits == 3) word = read<uint32_t>(at) | uint64_t(read<uint16_t>(at + 4)) << 32;
        else if constexpr (Bits == 2) word = read<uint32_t>(at);
        else word = read<uint16_t>(at);
        return pair(spread8<Bits>(word), spread8<Bits>(word >> 8 * Bits));
    }
}

// Thirty-two codes; bits above a 4-bit code are not cleared. Reads 4 * Bits bytes.
template <int Bits> static INLINE void load_codes32(const uint8_t* at, B& low, B& high) {
    if constexpr (Bits == 4) {
        const B codes = load_bytes(at);
        low = interleave_low(codes, right<4>(codes)), high = interleave_high(codes, right<4>(codes));
    } else {
        low = load_codes16<Bits>(at), high = load_codes16<Bits>(at + 2 * Bits);
    }
}

// Decodes codes. `Map` converts 16 codes to values; if the instruction set has a 16-float lookup, the values of codes up to 4
// bits are computed once and looked up by the low 4 bits, ignoring the bits above.
// For sinks of 16-bit values the table is rounded, so that no value is rounded twice.
template <int Bits, class Map, class Sink> struct Levels {
    static constexpr bool tabled = has_lookup && Bits <= 4;
    static constexpr bool halves = tabled && sizeof(typename Sink::Value) < sizeof(F);
    using Value = std::conditional_t<tabled, typename Sink::Value, F>;
    static constexpr uint8_t mask = (1u << Bits) - 1;
    Map map;
    Value values;
    INLINE Levels(Map map, const Sink& sink) : map(map) {
        if constexpr (tabled) values = sink.rounded(map(counting() & splat_byte(mask)));
    }
    INLINE Value operator()(B codes) const {
        if constexpr (tabled) return lookup(values, codes);
        else return map(Bits == 8 ? codes : codes & splat_byte(mask));
    }
    // 32 codes of a bit stream
    INLINE void put32(Sink& sink, int64_t i, const uint8_t* at) const {
        if constexpr (halves && Bits == 4) return sink.put(i, lookup32(values, at));
        B low, high;
        load_codes32<Bits>(at, low, high);
        sink.put(i, (*this)(low), (*this)(high));
    }
};

}  // namespace ISA
