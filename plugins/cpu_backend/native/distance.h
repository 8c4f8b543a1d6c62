// The error of decoded rows. Sums are per row, in f64 and a fixed order, so that they do not depend on threads or instructions.
#pragma once
#include "encode_affine.h"

namespace ISA {

typedef int64_t I8x64 __attribute__((vector_size(64)));

// Converts `count` values to floats, zero-padded to a multiple of 16, in `room` unless they can be used in place.
static INLINE const float* floats(int32_t type, const uint8_t* from, int64_t count, float* room) {
    const int64_t whole = count / 16 * 16;
    if (type == F32 && whole == count) return (const float*)from;
    const auto widened = [&](const uint8_t* at) { return type == F32 ? load(at) : type == F16 ? load_half(at) : load_bf16(at); };
    for (int64_t i = 0; i < whole; i += 16) store(room + i, widened(from + i * size_of(type)));
    if (whole < count) {
        uint8_t rest[64] = {};
        memcpy(rest, from + whole * size_of(type), size_t((count - whole) * size_of(type)));
        store(room + whole, widened(rest));
    }
    return room;
}

struct Gaps {
    D8 most = {}, error = {}, power = {}, norm = {};

    INLINE void add(const float* x, const float* y, int64_t count) {
        const I8x64 magnitude = I8x64{} + INT64_MAX;
        for (int64_t i = 0; i < count; i += 8) {
            const D8 a = __builtin_convertvector(read<V8>(x + i), D8), b = __builtin_convertvector(read<V8>(y + i), D8);
            const D8 gap = a - b, size = (D8)((I8x64)gap & magnitude);
            most = size > most ? size : most;
            error += gap * gap, power += a * a, norm += b * b;
        }
    }
    // The largest error, and the sums of squared errors, values and decoded values; not finite if any input is not.
    INLINE void write(double sums[4]) const {
        for (int k = 0; k < 4; k++) sums[k] = 0;
        for (int k = 0; k < 8; k++) {
            sums[0] = most[k] > sums[0] ? most[k] : sums[0];
            sums[1] += error[k], sums[2] += power[k], sums[3] += norm[k];
        }
    }
};

}  // namespace ISA
