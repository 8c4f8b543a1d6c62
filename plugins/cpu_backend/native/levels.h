// Levels that 4-bit codes name, and the 8-bit scales of 4-bit floats, for encoders and decoders.
#pragma once
#include "bits.h"

namespace ISA {

constexpr float IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr float E2M1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
// Doubled, as ggml decodes them with half the scale: the largest exponent stays finite. No negative zero.
constexpr float E2M1_DOUBLED[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 2^(code - 128), half an e8m0 number; of codes 0 and 1 it is subnormal.
static INLINE float half_of_e8m0(uint8_t code) { return as_float(code < 2 ? 0x200000u << code : uint32_t(code - 1) << 23); }

static INLINE float from_e4m3(uint8_t code) {  // without the sign
    return code < 8 ? float(code) * 0x1p-9f : as_float((uint32_t(code) << 20) + (120u << 23));
}
// As ggml's: the sign is ignored, and the positive NaN is 0.
static INLINE float half_of_e4m3(uint8_t code) { return code == 0x7f ? 0 : from_e4m3(code & 0x7f) * 0.5f; }

}  // namespace ISA
