// Encoders of 4-bit floats (e2m1) with a scale per group: GGML's MXFP4 and NVFP4, bit-identical to its reference, and the codes of
// microscaling, bit-identical to `squish_codecs`.
#pragma once
#include "levels.h"
#include "simd.h"

namespace ISA {

struct Codes16 { uint64_t first, last; };  // codes, one per byte

// Packs codes into eight bytes: adjacent ones in pairs, or the first eight below the last eight.
static INLINE void pack_float4(Codes16 codes, bool halves, uint8_t* out) {
    const uint64_t packed = halves ? codes.first | codes.last << 4 : gather8<4>(codes.first) | gather8<4>(codes.last) << 32;
    memcpy(out, &packed, 8);
}

static INLINE Codes16 codes16(F codes) {
    const B bytes = narrow(codes);
    return {read<uint64_t>(&bytes), read<uint64_t>((const uint8_t*)&bytes + 8)};
}

static INLINE F largest_magnitude(const float* x, int64_t count) {
    F largest = absolute(load(x));
    for (int64_t i = 16; i < count; i += 16) largest = most(largest, absolute(load(x + i)));
    return largest;
}

// As ggml's: the least distance as it rounds, the first of equal ones, and no negative zero.
static INLINE Codes16 nearest_float4(const float* x, float step) {
    const F value = load(x), magnitude = absolute(value), none = splat(0);
    F code = none, least = magnitude;
    UNROLL for (int i = 1; i < 8; i++) {
        const F distance = absolute(splat(E2M1[i] * step) - magnitude);
        const M nearer = distance < least;
        code = choose(nearer, splat(float(i)), code), least = choose(nearer, distance, least);
    }
    return codes16(choose((none < code) & (value < none), code + splat(8), code));
}

static void encode_mxfp4(const float* x, uint8_t* out, int64_t blocks) {
    for (int64_t block = 0; block < blocks; block++, x += 32, out += 17) {
        const float largest = peak(largest_magnitude(x, 32));
        // The logarithm rounds up below a power of two, as in ggml, and the exponents of subnormals wrap.
        out[0] = largest > 0 ? uint8_t(int(__builtin_floorf(__builtin_log2f(largest))) - 2 + 127) : 0;
        const float step = as_float(out[0] ? uint32_t(out[0]) << 23 : 0x400000);
        const Codes16 low = nearest_float4(x, step), high = nearest_float4(x + 16, step);
        const uint64_t packed[2] = {low.first | high.first << 4, low.last | high.last << 4};
        memcpy(out + 1, packed, 16);
    }
}

// Rounds a positive number half up to e4m3 without sign; from 256 it is 448, as in ggml.
static INLINE uint8_t to_e4m3(float value) {
    value = value < 448.0f ? value : 448.0f;
    if (value < 0x1p-6f) return uint8_t(value * 512.0f + 0.5f < 7.0f ? value * 512.0f + 0.5f : 7.0f);
    const uint32_t code = (((as_bits(value) >> 19) + 1) >> 1) - (120u << 3);
    return uint8_t(code < 0x78 ? code : 0x7e);
}

static void encode_nvfp4(const float* x, uint8_t* out, int64_t blocks) {
    for (int64_t block = 0; block < blocks; block++, out += 36)
        for (int group = 0; group < 4; group++, x += 16) {
            out[group] = to_e4m3(peak(largest_magnitude(x, 16)) / 6.0f);
            const float step = from_e4m3(out[group]);
            pack_float4(nearest_float4(x, step), true, out + 4 + 8 * group);
        }
}

// The codes nearest to x / step, the even one on ties, with the sign of zeros; 0 where the step is 0.
static void encode_float4(const float* x, const float* steps, int64_t groups, int64_t size, bool halves, uint8_t* out) {
    for (int64_t at = 0; at < groups * size; at += 16, out += 8) {
        const float step = steps[at / size];
        if (!(step > 0)) {
            memset(out, 0, 8);
            continue;
        }
        const F value = load(x + at), level = absolute(value / splat(step)), none = splat(0);
        F code = none;
        UNROLL for (int i = 0; i < 7; i++) {
            const F bound = splat((E2M1[i] + E2M1[i + 1]) / 2), next = splat(float(i + 1));
            code = i % 2 ? choose(level < bound, code, next) : choose(bound < level, next, code);
        }
        const M negative = splat(1) / value < none;  // also of -0
        pack_float4(codes16(choose(negative, code + splat(8), code)), halves, out);
    }
}

}  // namespace ISA
