// The affine encoder, bit-identical to squish_codecs.affine: scales round up to their type (biases down) from float64, codes
// x / scale round half to even. Scales of sixteen groups are computed together, one per lane.
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

// The next float toward infinity if rounding to nearest went the other way.
static INLINE V8 rounded_up(D8 exact) {  // for non-negative numbers
    const V8 near = __builtin_convertvector(exact, V8);
    return (V8)((I8x32)near - __builtin_convertvector(__builtin_convertvector(near, D8) < exact, I8x32));
}
static INLINE V8 rounded_down(D8 exact) {
    const V8 near = __builtin_convertvector(exact, V8);
    const I8x32 above = __builtin_convertvector(__builtin_convertvector(near, D8) > exact, I8x32);
    return (V8)((I8x32)near + (above & (-1 - 2 * ((I8x32)near >> 31))));
}

// Stores sixteen floats as `type` at `out`, rounded up (non-negative), down or to nearest; `stored` gets the rounded values.
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

constexpr int64_t panel = 2048;  // values per panel: grids first, then codes

struct Grid {  // of sixteen groups
    float low[16], high[16];                     // smallest and largest value
    float scale[16], offset[16];                 // used to compute codes
    float stored_scale[16], stored_offset[16];   // after rounding to the stored type
    float inverse[16];                           // of `scale`
};

struct Range {  // of sixteen groups, in double
    double low[16], high[16];
};

// D8 at a time: f(low, high, k) for the groups k..k+7.
static INLINE D8 eight(const float* at) { return __builtin_convertvector(read<V8>(at), D8); }
static INLINE D8 eight(const double* at) { return read<D8>(at); }
template <class Ends, class Function> static INLINE void eights(const Ends& ends, Function function) {
    for (int k = 0; k < 16; k += 8) function(eight(ends.low + k), eight(ends.high + k), k);
}
static INLINE D8 larger(D8 a, D8 b) { return a > b ? a : b; }
static INLINE void settle(const Affine& a, Grid& grid, uint8_t* scale, int64_t count) {
    const F found = load(grid.scale);
    store(grid.scale, choose(splat(0) < found, found, splat(1)));
    store_as(a.scale_type, UP, grid.scale, grid.stored_scale, scale, count);
    memcpy(grid.scale, grid.stored_scale, sizeof grid.scale);
}

static INLINE int reach_of(const Affine& a) { return a.high - a.zero < a.zero - a.low ? a.high - a.zero : a.zero - a.low; }

static INLINE void symmetric_grid(const Affine& a, const Grid&, Grid& grid, uint8_t* scale, int64_t count) {
    const int reach = reach_of(a);
    store(grid.scale, load(grid.high) / splat(float(reach)));
    eights(grid, [&](D8, D8 high, int k) {  // products of a float and a code are exact
        const V8 near = read<V8>(grid.scale + k);
        const V8 up = V8((I8x32)near - __builtin_convertvector(__builtin_convertvector(near, D8) * double(reach) < high, I8x32));
        memcpy(grid.scale + k, &up, 32);
    });
    settle(a, grid, scale, count);
}
static INLINE void symmetric_grid(const Affine& a, const Range& ends, Grid& grid, uint8_t* scale, int64_t count) {
    eights(ends, [&](D8 low, D8 high, int k) {
        const V8 up = rounded_up(larger(-low, high) / double(reach_of(a)));
        memcpy(grid.scale + k, &up, 32);
    });
    settle(a, grid, scale, count);
}

template <class Ends> static INLINE void zero_point_grid(const Affine& a, const Ends& ends, Grid& grid, uint8_t* scale,
                                                         uint8_t* offset, int64_t count) {
    const D8 none = {};
    eights(ends, [&](D8 low, D8 high, int k) {
        const V8 up = rounded_up((larger(high, none) - -larger(-low, none)) / double(a.high - a.low));
        memcpy(grid.scale + k, &up, 32);
    });
    settle(a, grid, scale, count);
    eights(ends, [&](D8 low, D8, int k) {
        const double big = 6755399441055744.0;
        const D8 steps = -larger(-low, none) / __builtin_convertvector(read<V8>(grid.scale + k), D8);
        const V8 zeros = __builtin_convertvector(double(a.low) - ((steps + big) - big), V8);
        memcpy(grid.offset + k, &zeros, 32);
    });
    store(grid.offset, within(load(grid.offset), float(a.low), float(a.high)));
    for (int64_t k = 0; k < count; k++) offset[k] = uint8_t(int(grid.offset[k]));
}

template <class Ends> static INLINE void bias_grid(const Affine& a, const Ends& ends, Grid& grid, uint8_t* scale,
                                                   uint8_t* offset, int64_t count) {
    eights(ends, [&](D8 low, D8 high, int k) {
        const V8 down = rounded_down(low - double(a.low) * ((high - low) / double(a.high - a.low)));
        memcpy(grid.offset + k, &down, 32);
    });
    store_as(a.offset_type, DOWN, grid.offset, grid.stored_offset, offset, count);
    memcpy(grid.offset, grid.stored_offset, sizeof grid.offset);
    eights(ends, [&](D8 low, D8 high, int k) {
        const D8 bias = __builtin_convertvector(read<V8>(grid.offset + k), D8);
        D8 step = (high - bias) / double(a.high);
        if (a.low) step = larger(step, (bias - low) / double(-a.low));
        const V8 up = rounded_up(step);
        memcpy(grid.scale + k, &up, 32);
    });
    settle(a, grid, scale, count);
}

// MLX: the extreme of larger magnitude is a multiple of the step. Codes are computed before scale and bias are rounded.
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

// Encodes one group. A product with 1 / scale rounds like the quotient unless it is close to a midpoint between codes; then
// the quotient decides.
template <int Offset> struct Rounding {
    F low, high, zero;
    INLINE explicit Rounding(const Affine& a)
        : low(splat(float(a.low))), high(splat(float(a.high))), zero(splat(float(a.zero))) {}

    INLINE B coded(F code, F offset) const {
        if (Offset == NO_OFFSET) return narrow(code + zero);  // in range, since the scale is rounded up
        if (Offset == ZERO_POINT) code = code + offset;
        return narrow(least(most(code, low), high));
    }
    static INLINE M clear(F quotient, F code) { return absolute(quotient - code) < splat(0.4999f); }
    // `count` is a multiple of 16; false for non-finite values.
    INLINE bool run(const float* x, int64_t count, float scale, float inverse, float offset, uint8_t* codes) const {
        const F by = splat(inverse), shift = splat(offset);
        int64_t i = 0;
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

// The largest magnitude of each group; NaN propagates.
template <int Size> static INLINE F magnitudes_of(const float* x, int64_t size, int64_t count) {
    F high[16];
    UNROLL for (int64_t k = 0; k < (Size ? 16 : count); k++, x += Size ? Size : size) {
        high[k] = absolute(load(x));
        for (int64_t i = 16; i < (Size ? Size : size); i += 16) high[k] = most_magnitude(high[k], absolute(load(x + i)));
    }
    for (int64_t k = count; k < 16; k++) high[k] = high[0];
    return peaks(high, most_magnitude);
}

static INLINE void magnitudes(const float* x, int64_t size, int64_t count, Grid& grid) {
    const F found = count == 16 && size == 32 ? magnitudes_of<32>(x, 32, 16) : magnitudes_of<0>(x, size, count);
    store(grid.low, splat(0) - found), store(grid.high, found);
}

static INLINE void extremes(const float* x, int64_t size, int64_t count, Grid& grid) {
    F low[16], high[16];  // negated for one sign, so both are maxima
    for (int64_t k = 0; k < count; k++, x += size) {
        F down = load(x), up = down;
        for (int64_t i = 16; i < size; i += 16) down = least(down, load(x + i)), up = most(up, load(x + i));
        low[k] = splat(0) - down, high[k] = up;
    }
    for (int64_t k = count; k < 16; k++) low[k] = low[0], high[k] = high[0];
    const auto larger = [](F a, F b) { return most(a, b); };
    store(grid.low, splat(0) - peaks(low, larger)), store(grid.high, peaks(high, larger));
}

#ifdef __AVX512BW__
// `count` groups of `size` values by products; false if a value needs its quotient or is not finite.
template <int Offset, int Rest>
static bool round_quickly(const Affine& a, const float* x, int64_t size, int64_t count, const Grid& grid, uint8_t* codes) {
    const int same = size == 16 ? 0 : size == 32 ? 1 : 2, step = 4 >> same;  // 2^same sixteens of 64 values have one scale
    const F inverse = absolute(load(grid.inverse)), bias = Offset == BIAS ? load(grid.offset) : splat(0);
    const F farthest = most(absolute(load(grid.low) - bias), absolute(load(grid.high) - bias)) * inverse;
    const M exact = (farthest < splat(1 << (22 - Rest))) & (splat(0x1p-120f) < inverse);
    if ((same == 2 && size % 64) || count % step || !all(exact)) return false;
    const float up = Fixed<Rest>::one + 0.5f + float(Offset == NO_OFFSET ? a.zero : 0);
    Fixed<Rest> fixed;
    for (int64_t g = 0; g < count; g += step) {
        F by[4], shift[4], base[4];
        UNROLL for (int k = 0; k < 4; k++) {
            const int64_t group = g + (k >> same);
            by[k] = splat(grid.inverse[group]), shift[k] = splat(grid.offset[group]);
            base[k] = splat(Offset == ZERO_POINT ? up + grid.offset[group] : up);
        }
        for (int64_t i = 0; i < step * size; i += 64, x += 64, codes += 64) {
            UNROLL for (int k = 0; k < 4; k++) prefetch(x + panel + 16 * k);
            fixed.template round64<Offset == BIAS, Offset != NO_OFFSET>(x, by, shift, base, a.low, a.high, codes);
        }
    }
    return fixed.clear();
}
#endif

template <int Offset>
static bool round_groups(const Affine& a, const float* x, int64_t size, int64_t count, const Grid& grid, uint8_t* codes) {
#ifdef __AVX512BW__
    const auto quickly = a.bits <= 6 ? round_quickly<Offset, 16> : round_quickly<Offset, 12>;
    if (quickly(a, x, size, count, grid, codes)) return true;
#endif
    const Rounding<Offset> rounding(a);
    for (int64_t k = 0; k < count; k++, x += size, codes += size)
        if (!rounding.run(x, size, grid.scale[k], grid.inverse[k], grid.offset[k], codes)) return false;
    return true;
}

// Scales and offsets of up to sixteen groups from their ranges; false if not finite.
template <int Offset, class Ends>
static INLINE bool fit(const Affine& a, const Ends& ends, int64_t count, Grid& grid, uint8_t* scale, uint8_t* offset) {
    if constexpr (Offset == NO_OFFSET) symmetric_grid(a, ends, grid, scale, count);
    else if constexpr (Offset == ZERO_POINT) zero_point_grid(a, ends, grid, scale, offset, count);
    else if (a.edges) edge_grid(a, grid, scale, offset, count);
    else bias_grid(a, ends, grid, scale, offset, count);
    const F reach = splat(float(a.high > -a.low ? a.high : -a.low));
    return finite(load(grid.stored_scale) * reach) && (Offset != BIAS || finite(load(grid.stored_offset)));
}
template <int Offset>
static INLINE bool find_grid(const Affine& a, const float* x, int64_t count, Grid& grid, uint8_t* scale, uint8_t* offset) {
    if constexpr (Offset == NO_OFFSET) magnitudes(x, a.size, count, grid);
    else extremes(x, a.size, count, grid);
    const bool good = fit<Offset>(a, grid, count, grid, scale, offset);
    store(grid.inverse, splat(1) / load(grid.scale));
    return good;
}

// One panel of groups at a time: first all grids, to overlap latencies, then the codes. Groups larger than a panel are encoded
// in pieces.
template <int Offset> static bool encode_groups(const Affine& a, const float* x, int64_t groups, uint8_t* data, uint8_t* scale,
                                                uint8_t* offset) {
    uint8_t codes[panel];
    Grid grids[panel / 256];
    const int64_t fit = panel / a.size, at_once = fit > 16 ? fit / 16 * 16 : fit > 0 ? fit : 1;
    for (int64_t g = 0; g < groups; g += at_once) {
        const int64_t here = groups - g < at_once ? groups - g : at_once;
        for (int64_t k = 0; k < here; k += 16) {
            const int64_t count = here - k < 16 ? here - k : 16;
            if (!find_grid<Offset>(a, x + k * a.size, count, grids[k / 16], scale + (g + k) * size_of(a.scale_type),
                                   offset + (g + k) * size_of(a.offset_type)))
                return false;
        }
        for (int64_t k = 0; k < here; k += 16) {
            const int64_t count = here - k < 16 ? here - k : 16;
            for (int64_t left = count * a.size; left > 0; left -= panel) {
                const int64_t some = left < panel ? left : panel;
                if (!round_groups<Offset>(a, x, some < a.size ? some : a.size, count, grids[k / 16], codes)) return false;
                pack_codes(a.bits, codes, some, data);
                x += some, data += some / 8 * a.bits;
            }
        }
    }
    return true;
}

}  // namespace ISA
