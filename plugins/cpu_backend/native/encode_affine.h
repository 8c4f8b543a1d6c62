// The encoder of group-affine codes, with the bytes of squish_codecs.encoding: scales rounded up to their type (biases down)
// from float64, codes x / scale rounded half to even. Sixteen groups have their scales found together, one a lane.
#pragma once
#include "encoders.h"

namespace ISA {

typedef double D8 __attribute__((vector_size(64)));
typedef float V8 __attribute__((vector_size(32)));
typedef int32_t I8x32 __attribute__((vector_size(32)));
typedef float V16 __attribute__((vector_size(64)));
typedef int32_t I16x32 __attribute__((vector_size(64)));
typedef uint16_t U16x16 __attribute__((vector_size(32)));
typedef int16_t I16x16 __attribute__((vector_size(32)));

// The next float towards an infinity wherever rounding to nearest has gone the other way.
static INLINE V8 rounded_up(D8 exact) {  // of numbers that are not negative
    const V8 near = __builtin_convertvector(exact, V8);
    return (V8)((I8x32)near - __builtin_convertvector(__builtin_convertvector(near, D8) < exact, I8x32));
}
static INLINE V8 rounded_down(D8 exact) {
    const V8 near = __builtin_convertvector(exact, V8);
    const I8x32 above = __builtin_convertvector(__builtin_convertvector(near, D8) > exact, I8x32);
    return (V8)((I8x32)near + (above & (-1 - 2 * ((I8x32)near >> 31))));
}

// Sixteen floats to `type` at `out`, rounded up (not negative), down, or to nearest; and in `stored` what stands there then.
enum Way { UP, DOWN, NEAREST };
static INLINE void store_as(int32_t type, Way way, const float values[16], float stored[16], uint8_t* out, int64_t count) {
    if (type == F32) {
        memcpy(stored, values, 64), memcpy(out, values, size_t(count) * 4);
        return;
    }
    const Halves halves = type == F16 ? to_half(load(values)) : to_bf16(load(values));
    U16x16 bits = read<U16x16>(&halves);
    const auto widen16 = [&] { store(stored, type == F16 ? load_half(&bits) : load_bf16(&bits)); };
    widen16();
    const V16 found = read<V16>(stored), wanted = read<V16>(values);
    if (way == UP) bits -= (U16x16)__builtin_convertvector(found < wanted, I16x16);
    if (way == DOWN) {
        const I16x16 above = __builtin_convertvector(found > wanted, I16x16);
        bits += (U16x16)(above & (-1 - 2 * ((I16x16)bits >> 15)));
    }
    widen16();
    memcpy(out, &bits, size_t(count) * 2);
}

struct Grid {  // of sixteen groups
    float low[16], high[16];                     // smallest and largest value
    float scale[16], offset[16];                 // as codes are found with them
    float stored_scale[16], stored_offset[16];   // as they are read again
};

// D8 at a time: f(low, high, k) for the groups k..k+7.
template <class Function> static INLINE void eights(const Grid& grid, Function function) {
    for (int k = 0; k < 16; k += 8)
        function(__builtin_convertvector(read<V8>(grid.low + k), D8), __builtin_convertvector(read<V8>(grid.high + k), D8), k);
}
static INLINE D8 larger(D8 a, D8 b) { return a > b ? a : b; }
static INLINE void settle(const Affine& a, Grid& grid, uint8_t* scale, int64_t count) {
    const F found = load(grid.scale);
    store(grid.scale, choose(splat(0) < found, found, splat(1)));
    store_as(a.scale_type, UP, grid.scale, grid.stored_scale, scale, count);
    memcpy(grid.scale, grid.stored_scale, sizeof grid.scale);
}

static INLINE void symmetric_grid(const Affine& a, Grid& grid, uint8_t* scale, int64_t count) {
    const int reach = a.high - a.zero < a.zero - a.low ? a.high - a.zero : a.zero - a.low;
    eights(grid, [&](D8 low, D8 high, int k) {
        const V8 up = rounded_up(larger(-low, high) / double(reach));
        memcpy(grid.scale + k, &up, 32);
    });
    settle(a, grid, scale, count);
}

static INLINE void zero_point_grid(const Affine& a, Grid& grid, uint8_t* scale, uint8_t* offset, int64_t count) {
    const D8 none = {};
    eights(grid, [&](D8 low, D8 high, int k) {
        const V8 up = rounded_up((larger(high, none) - -larger(-low, none)) / double(a.high - a.low));
        memcpy(grid.scale + k, &up, 32);
    });
    settle(a, grid, scale, count);
    eights(grid, [&](D8 low, D8, int k) {
        const double big = 6755399441055744.0;
        const D8 steps = -larger(-low, none) / __builtin_convertvector(read<V8>(grid.scale + k), D8);
        const V8 zeros = __builtin_convertvector(double(a.low) - ((steps + big) - big), V8);
        memcpy(grid.offset + k, &zeros, 32);
    });
    store(grid.offset, within(load(grid.offset), float(a.low), float(a.high)));
    for (int64_t k = 0; k < count; k++) offset[k] = uint8_t(int(grid.offset[k]));
}

static INLINE void bias_grid(const Affine& a, Grid& grid, uint8_t* scale, uint8_t* offset, int64_t count) {
    eights(grid, [&](D8 low, D8 high, int k) {
        const V8 down = rounded_down(low - double(a.low) * ((high - low) / double(a.high - a.low)));
        memcpy(grid.offset + k, &down, 32);
    });
    store_as(a.offset_type, DOWN, grid.offset, grid.stored_offset, offset, count);
    memcpy(grid.offset, grid.stored_offset, sizeof grid.offset);
    eights(grid, [&](D8 low, D8 high, int k) {
        const D8 bias = __builtin_convertvector(read<V8>(grid.offset + k), D8);
        D8 step = (high - bias) / double(a.high);
        if (a.low) step = larger(step, (bias - low) / double(-a.low));
        const V8 up = rounded_up(step);
        memcpy(grid.scale + k, &up, 32);
    });
    settle(a, grid, scale, count);
}

// MLX: the end of larger magnitude is a whole number of steps from 0. Codes are found before scale and bias are rounded.
static INLINE void edge_grid(const Affine& a, Grid& grid, uint8_t* scale, uint8_t* offset, int64_t count) {
    const F low = load(grid.low), high = load(grid.high), none = splat(0);
    const M below = absolute(high) < absolute(low);
    F step = most((high - low) / splat(float(a.high)), splat(1e-7f));
    const F edge = choose(below, low, high);
    step = choose(below, step, none - step);
    const F steps = edge / step, number = choose(absolute(steps) < splat(4194304), nearest(steps), steps);
    const M some = none < absolute(number);
    store(grid.scale, choose(some, edge / choose(some, number, splat(1)), step));
    store(grid.offset, choose(some, edge, none));
    store_as(a.scale_type, NEAREST, grid.scale, grid.stored_scale, scale, count);
    store_as(a.offset_type, NEAREST, grid.offset, grid.stored_offset, offset, count);
}

// Values of one group to codes. A product with 1 / scale, where it is not close to the middle between two codes, is rounded as
// the quotient is; where it is close, the quotient decides.
template <int Offset> struct Rounding {
    F low, high, zero;
    int low_code, high_code, added;
    bool bytes;  // sums of a code and an offset that saturate as signed bytes are as good as exact ones
    INLINE explicit Rounding(const Affine& a)
        : low(splat(float(a.low))), high(splat(float(a.high))), zero(splat(float(a.zero))), low_code(a.low), high_code(a.high),
          added(Offset == NO_OFFSET ? a.zero : 0), bytes(a.high <= 127 && (a.bits < 8 || Offset != ZERO_POINT)) {}

    INLINE B coded(F code, F offset) const {
        if (Offset == NO_OFFSET) return narrow(code + zero);  // within the codes, since the scale is rounded up
        if (Offset == ZERO_POINT) code = code + offset;
        return narrow(least(most(code, low), high));
    }
    static INLINE M clear(F quotient, F code) { return absolute(quotient - code) < splat(0.4999f); }
    // `count` is a multiple of 16; false for what is not finite.
    INLINE bool run(const float* x, int64_t count, float scale, float inverse, float offset, uint8_t* codes) const {
        const F by = splat(inverse), shift = splat(offset);
        int64_t i = 0;
#ifdef __AVX512BW__
        if (bytes)
            for (; i + 64 <= count; i += 64)
                if (!round64<Offset == BIAS>(x + i, by, shift, 0.4999f, Offset == ZERO_POINT ? int(offset) : added, low_code,
                                             high_code, codes + i))
                    break;
#endif
        for (; i + 32 <= count; i += 32) {
            F v = load(x + i), w = load(x + i + 16);
            if (Offset == BIAS) v = v - shift, w = w - shift;
            const F a = v * by, b = w * by;
            F code = nearest(a), other = nearest(b);
            if (__builtin_expect(!all(clear(a, code) & clear(b, other)), 0)) {
                if (!(sum((v - v) + (w - w)) == 0)) return false;
                code = divided(v, scale), other = divided(w, scale);
            }
            const B bytes = coded(code, shift), more = coded(other, shift);
            memcpy(codes + i, &bytes, 16), memcpy(codes + i + 16, &more, 16);
        }
        for (; i < count; i += 16) {
            F v = load(x + i);
            if (Offset == BIAS) v = v - shift;
            if (!(sum(v - v) == 0)) return false;
            const B bytes = coded(divided(v, scale), shift);
            memcpy(codes + i, &bytes, 16);
        }
        return true;
    }
    static INLINE F divided(F v, float scale) { return nearest(within(v / splat(scale), -4096, 4096)); }
};

template <int Bits> static INLINE void pack(const uint8_t* codes, int64_t count, uint8_t* out) {
    int64_t i = 0;
#ifdef __AVX512BW__
    if constexpr (Bits == 4)
        for (; i + 128 <= count; i += 128, out += 64) join_nibbles(codes + i, out);
#endif
    if constexpr (Bits == 4)
        for (; i + 32 <= count; i += 32, out += 16) {
            const B packed = join_nibbles(load_bytes(codes + i), load_bytes(codes + i + 16));
            memcpy(out, &packed, 16);
        }
    for (; i < count; i += 8, out += Bits) {
        const uint64_t eight = gather8<Bits>(read<uint64_t>(codes + i));
        memcpy(out, &eight, Bits);
    }
}

static void pack_codes(int bits, const uint8_t* codes, int64_t count, uint8_t* out) {
    switch (bits) {
        case 1: return pack<1>(codes, count, out);
        case 2: return pack<2>(codes, count, out);
        case 3: return pack<3>(codes, count, out);
        case 4: return pack<4>(codes, count, out);
        case 5: return pack<5>(codes, count, out);
        case 6: return pack<6>(codes, count, out);
        case 7: return pack<7>(codes, count, out);
        default: memcpy(out, codes, size_t(count));
    }
}

static INLINE void magnitudes(const float* x, int64_t size, int64_t count, Grid& grid) {
    F high[16];
    for (int64_t k = 0; k < count; k++, x += size) {
        high[k] = absolute(load(x));
        for (int64_t i = 16; i < size; i += 16) high[k] = most(high[k], absolute(load(x + i)));
    }
    for (int64_t k = count; k < 16; k++) high[k] = high[0];
    const F most_of = peaks(high);
    store(grid.low, splat(0) - most_of), store(grid.high, most_of);
}

static INLINE void extremes(const float* x, int64_t size, int64_t count, Grid& grid) {
    F low[16], high[16];  // of the values with the other sign: both are largest ones
    for (int64_t k = 0; k < count; k++, x += size) {
        F down = load(x), up = down;
        for (int64_t i = 16; i < size; i += 16) down = least(down, load(x + i)), up = most(up, load(x + i));
        low[k] = splat(0) - down, high[k] = up;
    }
    for (int64_t k = count; k < 16; k++) low[k] = low[0], high[k] = high[0];
    store(grid.low, splat(0) - peaks(low)), store(grid.high, peaks(high));
}

template <int Offset> static bool encode_groups(const Affine& a, const float* x, int64_t groups, uint8_t* data, uint8_t* scale,
                                                uint8_t* offset) {
    constexpr int64_t panel = 4096;
    uint8_t codes[panel];
    float inverse[16];
    Grid grid;
    const Rounding<Offset> rounding(a);
    const int64_t most_groups = a.size * 16 <= panel ? 16 : a.size < panel ? panel / a.size : 1;
    for (int64_t g = 0; g < groups; g += most_groups) {
        const int64_t count = groups - g < most_groups ? groups - g : most_groups, all = count * a.size;
        const float* from = x + g * a.size;
        uint8_t *scales = scale + g * size_of(a.scale_type), *offsets = offset + g * size_of(a.offset_type);
        if constexpr (Offset == NO_OFFSET) magnitudes(from, a.size, count, grid);
        else extremes(from, a.size, count, grid);
        if constexpr (Offset == NO_OFFSET) symmetric_grid(a, grid, scales, count);
        else if constexpr (Offset == ZERO_POINT) zero_point_grid(a, grid, scales, offsets, count);
        else if (a.edges) edge_grid(a, grid, scales, offsets, count);
        else bias_grid(a, grid, scales, offsets, count);
        const float reach = float(a.high > -a.low ? a.high : -a.low);
        if (!(sum(load(grid.stored_scale) * splat(reach) * splat(0)) == 0)) return false;
        if (Offset == BIAS && !(sum(load(grid.stored_offset) * splat(0)) == 0)) return false;
        store(inverse, splat(1) / load(grid.scale));
        for (int64_t at = 0; at < all; at += panel) {
            const int64_t stop = at + panel < all ? at + panel : all;
            for (int64_t k = 0; k < count; k++) {
                const int64_t low = k * a.size > at ? k * a.size : at, high = (k + 1) * a.size < stop ? (k + 1) * a.size : stop;
                if (!rounding.run(from + low, high - low, grid.scale[k], inverse[k], grid.offset[k], codes + (low - at))) return false;
            }
            pack_codes(a.bits, codes, stop - at, data + (g * a.size + at) / 8 * a.bits);
        }
    }
    return true;
}

// False where a value, a scale or a bias is not finite.
static bool encode_affine(const Affine& a, const float* x, int64_t groups, uint8_t* data, uint8_t* scale, uint8_t* offset) {
    if (a.offset == NO_OFFSET) return encode_groups<NO_OFFSET>(a, x, groups, data, scale, offset);
    if (a.offset == ZERO_POINT) return encode_groups<ZERO_POINT>(a, x, groups, data, scale, offset);
    return encode_groups<BIAS>(a, x, groups, data, scale, offset);
}

}  // namespace ISA
