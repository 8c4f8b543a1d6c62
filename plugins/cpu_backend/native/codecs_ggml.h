// Decoders of the GGML block types: block(at, i, sink) writes the values of the block at `at`.
// The order of operations, and so the rounding, is that of gguf-py and the NumPy reference (squish_ggml).
#pragma once
#include "levels.h"
#include "sinks.h"

namespace ISA {

struct Scaled {  // (code - zero) * scale
    F zero, scale;
    INLINE Scaled(float zero, float scale) : zero(splat(zero)), scale(splat(scale)) {}
    INLINE F operator()(B codes) const { return (widen_u8(codes) - zero) * scale; }
};
struct Lowered {  // code * scale - minimum
    F scale, minimum;
    INLINE Lowered(float scale, float minimum) : scale(splat(scale)), minimum(splat(minimum)) {}
    INLINE F operator()(B codes) const { return widen_u8(codes) * scale - minimum; }
};
struct Raised {  // code * scale + bias
    F scale, bias;
    INLINE Raised(float scale, float bias) : scale(splat(scale)), bias(splat(bias)) {}
    INLINE F operator()(B codes) const { return widen_u8(codes) * scale + bias; }
};
struct Leveled {  // level * scale
    F levels, scale;
    INLINE Leveled(const float* levels, float scale) : levels(load(levels)), scale(splat(scale)) {}
    INLINE F operator()(B codes) const { return lookup(levels, codes) * scale; }
};

// Sixteen floats kept in memory: a broadcast load is free, a shuffle is not.
struct Lanes {
    float lane[16];
    INLINE explicit Lanes(F v) {
        store(lane, v);
        asm("" : "+m"(lane));
    }
    INLINE float operator[](int k) const { return lane[k]; }
};

static INLINE float half_at(const uint8_t* at) { return half_to_float(read<uint16_t>(at)); }

// 16 fifth bits to 0x10 or 0 in each byte
static INLINE B fifth_bits(const uint8_t* at) { return left<4>(pair(spread8<1>(at[0]), spread8<1>(at[1]))); }

template <class Map, class Sink> static INLINE void nibbles32(Map map, const uint8_t* at, int64_t i, Sink& sink) {
    const Levels<4, Map, Sink> levels(map, sink);
    const B codes = load_bytes(at);
    sink.put(i, levels(codes), levels(right<4>(codes)));
}

// The low nibbles of 32 bytes, then the high nibbles.
template <class Levels, class Sink>
static INLINE void nibbles64(const Levels& low, const Levels& high, const uint8_t* at, int64_t i, Sink& sink) {
    if constexpr (Levels::halves) {
        Halves32 first, second;
        lookup64(low.values, high.values, at, first, second);
        sink.put(i, first), sink.put(i + 32, second);
    } else {
        const B a = load_bytes(at), b = load_bytes(at + 16);
        sink.put(i, low(a), low(b));
        sink.put(i + 32, high(right<4>(a)), high(right<4>(b)));
    }
}

template <class Map, class Sink>
static INLINE void fives32(Map map, const uint8_t* high, const uint8_t* at, int64_t i, Sink& sink) {
    const Levels<5, Map, Sink> levels(map, sink);
    const B codes = load_bytes(at), nibble = splat_byte(15);
    sink.put(i, levels((codes & nibble) | fifth_bits(high)), levels((right<4>(codes) & nibble) | fifth_bits(high + 2)));
}

template <int Kind> struct Block;

template <> struct Block<Q4_0> {
    static constexpr int elements = 32, bytes = 18;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        nibbles32(Scaled(8, half_at(at)), at + 2, i, sink);
    }
};
template <> struct Block<Q4_1> {
    static constexpr int elements = 32, bytes = 20;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        nibbles32(Raised(half_at(at), half_at(at + 2)), at + 4, i, sink);
    }
};
template <> struct Block<Q5_0> {
    static constexpr int elements = 32, bytes = 22;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        fives32(Scaled(16, half_at(at)), at + 2, at + 6, i, sink);
    }
};
template <> struct Block<Q5_1> {
    static constexpr int elements = 32, bytes = 24;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        fives32(Raised(half_at(at), half_at(at + 2)), at + 4, at + 8, i, sink);
    }
};

template <int Count, class Sink> static INLINE void signed_bytes(float scale, const uint8_t* at, int64_t i, Sink& sink) {
    const F d = splat(scale);
    UNROLL for (int k = 0; k < Count; k += 32)
        sink.put(i + k, widen_i8(load_bytes(at + k)) * d, widen_i8(load_bytes(at + k + 16)) * d);
}
template <> struct Block<Q8_0> {
    static constexpr int elements = 32, bytes = 34;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        signed_bytes<32>(half_at(at), at + 2, i, sink);
    }
};
template <> struct Block<Q8_1> {  // {d, sum, codes}: the sum is for dot products only
    static constexpr int elements = 32, bytes = 36;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        signed_bytes<32>(half_at(at), at + 4, i, sink);
    }
};
template <> struct Block<Q8_K> {
    static constexpr int elements = 256, bytes = 292;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        signed_bytes<256>(read<float>(at), at + 4, i, sink);
    }
};

template <> struct Block<Q2_K> {  // scales and minima[16], codes[64], d, dmin
    static constexpr int elements = 256, bytes = 84;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        const B packed = load_bytes(at), nibble = splat_byte(15);
        const Lanes scale(widen_u8(packed & nibble) * splat(half_at(at + 80)));
        const Lanes minimum(widen_u8(right<4>(packed) & nibble) * splat(half_at(at + 82)));
        UNROLL for (int half = 0; half < 2; half++) {
            const uint8_t* codes = at + 16 + 32 * half;
            const B low = load_bytes(codes), high = load_bytes(codes + 16);
            int group = 8 * half;
            const auto two = [&](B a, B b) {
                const Levels<2, Lowered, Sink> first(Lowered(scale[group], minimum[group]), sink);
                const Levels<2, Lowered, Sink> second(Lowered(scale[group + 1], minimum[group + 1]), sink);
                sink.put(i + 16 * group, first(a), second(b));
                group += 2;
            };
            two(low, high), two(right<2>(low), right<2>(high));
            two(right<4>(low), right<4>(high)), two(right<6>(low), right<6>(high));
        }
    }
};

template <> struct Block<Q3_K> {  // third bits[32], codes[64], six-bit scales[12], d
    static constexpr int elements = 256, bytes = 110;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        const uint32_t a = read<uint32_t>(at + 96), b = read<uint32_t>(at + 100), c = read<uint32_t>(at + 104);
        const uint32_t nibble = 0x0f0f0f0f, top = 0x30303030;
        const uint32_t packed[4] = {(a & nibble) | (c << 4 & top), (b & nibble) | (c << 2 & top),
                                    (a >> 4 & nibble) | (c & top), (b >> 4 & nibble) | (c >> 2 & top)};
        const Lanes scale((widen_u8(load_bytes(packed)) - splat(32)) * splat(half_at(at + 108)));
        const B third[2] = {load_bytes(at), load_bytes(at + 16)}, two = splat_byte(3), four = splat_byte(4);
        UNROLL for (int half = 0; half < 2; half++) {
            const uint8_t* codes = at + 32 + 32 * half;
            const B low = load_bytes(codes), high = load_bytes(codes + 16);
            // Move the third bits of group pair k from bit k to bit 2.
            const B above[2] = {half ? right<4>(third[0]) : third[0], half ? right<4>(third[1]) : third[1]};
            int group = 8 * half;
            const auto pairs = [&](B x, B y, B third_x, B third_y) {
                const Levels<3, Scaled, Sink> first(Scaled(4, scale[group]), sink), second(Scaled(4, scale[group + 1]), sink);
                sink.put(i + 16 * group, first((x & two) | (third_x & four)), second((y & two) | (third_y & four)));
                group += 2;
            };
            pairs(low, high, left<2>(above[0]), left<2>(above[1]));
            pairs(right<2>(low), right<2>(high), left<1>(above[0]), left<1>(above[1]));
            pairs(right<4>(low), right<4>(high), above[0], above[1]);
            pairs(right<6>(low), right<6>(high), right<1>(above[0]), right<1>(above[1]));
        }
    }
};

struct Factors {  // factors of the 8 groups of Q4_K and Q5_K: scales in the first half, minima in the second
    Lanes scale, minimum;
    INLINE explicit Factors(const uint8_t* at) : Factors(at, six_bits(at + 4)) {}
    INLINE Factors(const uint8_t* at, SixBits packed) : Factors(at, widen_u8(pair(packed.scale, packed.minimum))) {}
    INLINE Factors(const uint8_t* at, F both) : scale(both * splat(half_at(at))), minimum(both * splat(half_at(at + 2))) {}
    INLINE Lowered operator[](int group) const { return Lowered(scale[group], minimum[8 + group]); }
};

template <> struct Block<Q4_K> {  // d, dmin, six-bit scales and minima[12], codes[128]
    static constexpr int elements = 256, bytes = 144;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        prefetch(at + 1440), prefetch(at + 1504);
        const Factors factors(at);
        UNROLL for (int j = 0; j < 4; j++) {
            const Levels<4, Lowered, Sink> first(factors[2 * j], sink), second(factors[2 * j + 1], sink);
            nibbles64(first, second, at + 16 + 32 * j, i + 64 * j, sink);
        }
    }
};

template <> struct Block<Q5_K> {  // d, dmin, six-bit scales and minima[12], fifth bits[32], codes[128]
    static constexpr int elements = 256, bytes = 176;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        const Factors factors(at);
        const B nibble = splat_byte(15), sixteen = splat_byte(16);
        B low_fifth = load_bytes(at + 16), high_fifth = load_bytes(at + 32);
        UNROLL for (int j = 0; j < 4; j++) {  // the fifth bits for j are bits 0 and 1
            const Levels<5, Lowered, Sink> first(factors[2 * j], sink), second(factors[2 * j + 1], sink);
            const B low = load_bytes(at + 48 + 32 * j), high = load_bytes(at + 64 + 32 * j);
            sink.put(i + 64 * j, first((low & nibble) | (left<4>(low_fifth) & sixteen)),
                     first((high & nibble) | (left<4>(high_fifth) & sixteen)));
            sink.put(i + 64 * j + 32, second((right<4>(low) & nibble) | (left<3>(low_fifth) & sixteen)),
                     second((right<4>(high) & nibble) | (left<3>(high_fifth) & sixteen)));
            low_fifth = right<2>(low_fifth) & splat_byte(0x3f), high_fifth = right<2>(high_fifth) & splat_byte(0x3f);
        }
    }
};

template <> struct Block<Q6_K> {  // low four bits[128], high two[64], scales[16], d
    static constexpr int elements = 256, bytes = 210;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        const Lanes scale(widen_i8(load_bytes(at + 192)) * splat(half_at(at + 208)));
        const B nibble = splat_byte(15), top = splat_byte(0x30);
        UNROLL for (int half = 0; half < 2; half++) {
            const uint8_t* low = at + 64 * half;
            const B a = load_bytes(low), b = load_bytes(low + 16), c = load_bytes(low + 32), d = load_bytes(low + 48);
            const B x = load_bytes(at + 128 + 32 * half), y = load_bytes(at + 144 + 32 * half);
            const auto two = [&](int group, B first, B above_first, B second, B above_second) {
                const Scaled of_first(32, scale[8 * half + 2 * group]), of_second(32, scale[8 * half + 2 * group + 1]);
                sink.put(i + 128 * half + 32 * group, of_first((first & nibble) | (above_first & top)),
                         of_second((second & nibble) | (above_second & top)));
            };
            two(0, a, left<4>(x), b, left<4>(y));
            two(1, c, left<2>(x), d, left<2>(y));
            two(2, right<4>(a), x, right<4>(b), y);
            two(3, right<4>(c), right<2>(x), right<4>(d), right<2>(y));
        }
    }
};

template <> struct Block<IQ4_NL> {
    static constexpr int elements = 32, bytes = 18;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        nibbles32(Leveled(IQ4_LEVELS, half_at(at)), at + 2, i, sink);
    }
};
template <> struct Block<IQ4_XS> {  // d, the high two bits of eight scales, their low nibbles, codes[128]
    static constexpr int elements = 256, bytes = 136;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        const float d = half_at(at);
        const uint32_t high = read<uint16_t>(at + 2), low = read<uint32_t>(at + 4);
        for (int j = 0; j < 8; j++) {
            const int scale = int((low >> 4 * j & 15) | (high >> 2 * j & 3) << 4) - 32;
            nibbles32(Leveled(IQ4_LEVELS, d * float(scale)), at + 8 + 16 * j, i + 32 * j, sink);
        }
    }
};
template <> struct Block<MXFP4> {
    static constexpr int elements = 32, bytes = 17;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        nibbles32(Leveled(E2M1_DOUBLED, half_of_e8m0(*at)), at + 1, i, sink);
    }
};
template <> struct Block<NVFP4> {  // scales[4], codes[32]: the low, then the high nibbles of eight bytes for each scale
    static constexpr int elements = 64, bytes = 36;
    template <class Sink> static INLINE void decode(const uint8_t* at, int64_t i, Sink& sink) {
        for (int j = 0; j < 4; j++) {
            const Levels<4, Leveled, Sink> levels(Leveled(E2M1_DOUBLED, half_of_e4m3(at[j])), sink);
            const uint64_t codes = read<uint64_t>(at + 4 + 8 * j);
            sink.put(i + 16 * j, levels(pair(codes, codes >> 4)));
        }
    }
};

// A row of blocks; columns c0 and c1 are multiples of a block.
template <int Kind> struct Blocks {
    template <class Sink> static INLINE void run(const Weights& w, int64_t row, int64_t c0, int64_t c1, Sink& sink) {
        using Type = Block<Kind>;
        const uint8_t* at = w.data + row * w.pitch + c0 / Type::elements * Type::bytes;
        for (int64_t i = 0; i < c1 - c0; i += Type::elements, at += Type::bytes) Type::decode(at, i, sink);
    }
};

}  // namespace ISA
