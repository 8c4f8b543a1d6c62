// Unaligned loads, and conversions common to all instruction sets. Everything is in the namespace of its instruction set: a
// shared inline function could be linked from the wrong one.
#pragma once
#include <cstdint>
#include <cstring>
#ifdef __BMI2__
#include <immintrin.h>
#endif

#ifndef INLINE
#define INLINE inline __attribute__((always_inline))
#endif
#define ALWAYS __attribute__((always_inline))  // of a lambda
// Unrolls loops over registers. Portable vectors are not registers, and unrolling them doubles compile time.
#if defined(__AVX2__) || defined(__aarch64__)
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL
#endif

namespace ISA {

template <class T> static INLINE T read(const void* at) {
    T value;
    memcpy(&value, at, sizeof value);
    return value;
}

static INLINE float as_float(uint32_t bits) { return read<float>(&bits); }
static INLINE uint32_t as_bits(float value) { return read<uint32_t>(&value); }
static INLINE float bf16_to_float(uint16_t bits) { return as_float(uint32_t(bits) << 16); }

static INLINE float half_to_float(uint16_t half) {
#ifdef __F16C__
    return _cvtsh_ss(half);
#elif defined(__aarch64__)
    return float(read<__fp16>(&half));
#else
    uint32_t sign = uint32_t(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000 : 0));
    if (rest >= 0x400) return as_float(sign | ((rest << 13) + (112u << 23)));
    return as_float(sign | as_bits(float(rest) * 0x1p-24f));  // subnormal: exact in float
#endif
}

// Ties to even; overflow to infinity; NaN stays NaN.
static INLINE uint16_t float_to_half(float value) {
    uint32_t bits = as_bits(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return uint16_t(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (rest < 0x38800000)  // adding 0.5 rounds to a multiple of 2^-24 in the lowest bits
        return uint16_t(sign | (as_bits(as_float(rest) + 0.5f) - 0x3f000000));
    return uint16_t(sign | ((rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13));
}

static INLINE uint16_t float_to_bf16(float value) {
    uint32_t bits = as_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t((bits >> 16 & 0x8000) | 0x7fc0);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Eight codes of `Bits` bits, lowest first, to one byte each.
template <int Bits> static INLINE uint64_t spread8(uint64_t codes) {
    constexpr uint64_t every = 0x0101010101010101u * ((1u << Bits) - 1);
#ifdef __BMI2__
    return _pdep_u64(codes, every);
#else
    constexpr int up = 8 - Bits;  // shifts the upper half of the codes, then of each half, and so on
    constexpr uint64_t four = (uint64_t(1) << 4 * Bits) - 1, two = ((uint64_t(1) << 2 * Bits) - 1) * 0x100000001u;
    codes = (codes & four) | (codes & four << 4 * Bits) << 4 * up;
    codes = (codes & two) | (codes & two << 2 * Bits) << 2 * up;
    constexpr uint64_t one = ((uint64_t(1) << Bits) - 1) * 0x0001000100010001u;
    return ((codes & one) | (codes & one << Bits) << up) & every;
#endif
}

// Inverse: packs the low `Bits` bits of eight bytes.
template <int Bits> static INLINE uint64_t gather8(uint64_t bytes) {
    constexpr uint64_t every = 0x0101010101010101u * ((1u << Bits) - 1);
#ifdef __BMI2__
    return _pext_u64(bytes, every);
#else
    constexpr int up = 8 - Bits;
    constexpr uint64_t one = ((uint64_t(1) << Bits) - 1) * 0x0001000100010001u;
    constexpr uint64_t two = ((uint64_t(1) << 2 * Bits) - 1) * 0x100000001u, four = (uint64_t(1) << 4 * Bits) - 1;
    bytes &= every;
    bytes = (bytes & one) | (bytes >> up & one << Bits);
    bytes = (bytes & two) | (bytes >> 2 * up & two << 2 * Bits);
    return (bytes & four) | (bytes >> 4 * up & four << 4 * Bits);
#endif
}

// The six-bit scales and minima of Q4_K and Q5_K: 12 bytes to 8 + 8. (By words: a wide load of narrow stores would stall.)
struct SixBits {
    uint64_t scale, minimum;
};
static INLINE SixBits six_bits(const uint8_t* packed) {
    const uint32_t a = read<uint32_t>(packed), b = read<uint32_t>(packed + 4), c = read<uint32_t>(packed + 8);
    const uint32_t low = 0x3f3f3f3f, nibble = 0x0f0f0f0f, top = 0x30303030;
    return {(a & low) | uint64_t((c & nibble) | (a >> 2 & top)) << 32,
            (b & low) | uint64_t((c >> 4 & nibble) | (b >> 2 & top)) << 32};
}
static INLINE void six_bits(const uint8_t* packed, uint8_t scale[8], uint8_t minimum[8]) {
    const SixBits made = six_bits(packed);
    memcpy(scale, &made.scale, 8);
    memcpy(minimum, &made.minimum, 8);
}

// Byte k of entry `mask`: the number of bits set below bit k.
struct Places {
    uint64_t of[256];
    constexpr Places() : of() {
        for (int mask = 0; mask < 256; mask++)
            for (int k = 0, below = 0; k < 8; below += mask >> k++ & 1) of[mask] |= uint64_t(below) << 8 * k;
    }
};
static constexpr Places PLACES;

}  // namespace ISA
