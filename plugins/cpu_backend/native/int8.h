// Products with activations in 8 bits: for every 32 of them a scale, max|x| / 127, and codes rounded to nearest. A weight is
// then code * scale + offset with a code in a byte, and a group's sum is one of integers, which is exact.
#pragma once
#include "codecs_ggml.h"
#include "codecs_grouped.h"
#include "encoders.h"

namespace ISA {

struct DotInt8 {
    const int8_t* x;
    const float *scales, *sums;  // of the activations: scale, and scale times the sum of the codes, of each 32
    Sum8 even = Sum8{}, odd = Sum8{};
    float lifted = 0;
    INLINE void put(int64_t group, B low, B high, float scale, float offset) {
        const Sum8 next = add_products(low, high, x + 32 * group, scale * scales[group], even);
        even = odd, odd = next;
        lifted += offset * sums[group];
    }
    INLINE float result() const { return sum(even, odd) + lifted; }
};

// The codes of each 32 weights of a row.
template <int Kind> struct Integers32;

template <int Kind> struct NibbleBlocks {  // Q4_0, Q4_1, Q5_0, Q5_1
    static INLINE void run(const Weights& w, int64_t row, DotInt8& sink) {
        constexpr bool five = Kind == Q5_0 || Kind == Q5_1, biased = Kind == Q4_1 || Kind == Q5_1;
        const uint8_t* at = w.data + row * w.pitch;
        const B nibble = splat_byte(15);
        for (int64_t g = 0; g < w.columns / 32; g++, at += Block<Kind>::bytes) {
            const uint8_t* fifth = at + (biased ? 4 : 2);
            const B codes = load_bytes(fifth + (five ? 4 : 0));
            B low = codes & nibble, high = right<4>(codes) & nibble;
            if constexpr (five) low = low | fifth_bits(fifth), high = high | fifth_bits(fifth + 2);
            const float scale = half_at(at), offset = biased ? half_at(at + 2) : scale * (five ? -16 : -8);
            sink.put(g, low, high, scale, offset);
        }
    }
};
template <> struct Integers32<Q4_0> : NibbleBlocks<Q4_0> {};
template <> struct Integers32<Q4_1> : NibbleBlocks<Q4_1> {};
template <> struct Integers32<Q5_0> : NibbleBlocks<Q5_0> {};
template <> struct Integers32<Q5_1> : NibbleBlocks<Q5_1> {};

template <> struct Integers32<Q8_0> {
    static INLINE void run(const Weights& w, int64_t row, DotInt8& sink) {
        const uint8_t* at = w.data + row * w.pitch;
        const B flip = splat_byte(0x80);
        for (int64_t g = 0; g < w.columns / 32; g++, at += 34) {
            const float scale = half_at(at);
            sink.put(g, load_bytes(at + 2) ^ flip, load_bytes(at + 18) ^ flip, scale, scale * -128);
        }
    }
};

template <bool Five> struct SuperBlocks {
    static INLINE void run(const Weights& w, int64_t row, DotInt8& sink) {
        const uint8_t* at = w.data + row * w.pitch;
        const B nibble = splat_byte(15), sixteen = splat_byte(16);
        for (int64_t g = 0; g < w.columns / 32; g += 8, at += Five ? 176 : 144) {
            const Factors factors(at);
            UNROLL for (int j = 0; j < 4; j++) {
                const uint8_t* codes = at + (Five ? 48 : 16) + 32 * j;
                const B a = load_bytes(codes), b = load_bytes(codes + 16);
                B low[2] = {a & nibble, b & nibble}, high[2] = {right<4>(a) & nibble, right<4>(b) & nibble};
                if constexpr (Five)
                    UNROLL for (int k = 0; k < 2; k++) {
                        const B bits = right(load_bytes(at + 16 + 16 * k), 2 * j);
                        low[k] = low[k] | (left<4>(bits) & sixteen), high[k] = high[k] | (left<3>(bits) & sixteen);
                    }
                sink.put(g + 2 * j, low[0], low[1], factors.scale[2 * j], -factors.minimum[2 * j]);
                sink.put(g + 2 * j + 1, high[0], high[1], factors.scale[2 * j + 1], -factors.minimum[2 * j + 1]);
            }
        }
    }
};
template <> struct Integers32<Q4_K> : SuperBlocks<false> {};
template <> struct Integers32<Q5_K> : SuperBlocks<true> {};

// Rows of codes in groups of a multiple of 32: (code ^ flip - zero - offset) * scale, or with a bias.
template <int Bits> struct GroupedIntegers {
    static INLINE void run(const Weights& w, int64_t row, DotInt8& sink) {
        const uint8_t* at = w.data + row * w.pitch;
        const B flip = splat_byte(uint8_t(w.flip)), mask = splat_byte((1u << Bits) - 1);
        const int64_t cell = row / w.group_rows * w.grid_row, each = w.group_columns / 32;
        int64_t left = 0, index = cell - w.grid_column;
        float scale = 0, offset = 0;
        for (int64_t g = 0; g < w.columns / 32; g++, left--, at += 4 * Bits) {
            if (left == 0) {
                left = each, index += w.grid_column;
                scale = widened(w.scale, w.scale_type, w.listed, index);
                const float stored = w.offset ? widened(w.offset, w.offset_type, w.listed, index) : 0;
                offset = w.bias ? stored - float(w.zero) * scale : -(stored + float(w.zero)) * scale;
            }
            B low, high;
            load_codes32<Bits>(at, low, high);
            sink.put(g, (low & mask) ^ flip, (high & mask) ^ flip, scale, offset);
        }
    }
};
template <> struct Integers32<AFFINE_2> : GroupedIntegers<2> {};
template <> struct Integers32<AFFINE_3> : GroupedIntegers<3> {};
template <> struct Integers32<AFFINE_4> : GroupedIntegers<4> {};
template <> struct Integers32<AFFINE_5> : GroupedIntegers<5> {};
template <> struct Integers32<AFFINE_6> : GroupedIntegers<6> {};
template <> struct Integers32<AFFINE_8> : GroupedIntegers<8> {};

static void quantize_activations(const float* x, int64_t groups, int8_t* codes, float* scales, float* sums) {
    for (int64_t g = 0; g < groups; g++, x += 32, codes += 32) {
        const F a = load(x), b = load(x + 16);
        const float scale = peak(most(absolute(a), absolute(b))) / 127.0f, inverse = scale == 0 ? 0 : 1 / scale;
        const F low = nearest(a * splat(inverse)), high = nearest(b * splat(inverse));
        const B bytes[2] = {narrow(low), narrow(high)};
        memcpy(codes, bytes, 32);
        scales[g] = scale, sums[g] = scale * sum(low + high);
    }
}

}  // namespace ISA
