// Sparse codecs: TCA-TBE (lossless bf16 with three bitmaps) and bitmasks.
#pragma once
#include "codecs_grouped.h"

namespace ISA {

// Elements at..at+15 of `count`, `Size` bytes each, without reading past the last one.
template <int Size> struct Sixteen {
    uint8_t copy[16 * Size];
    const uint8_t* at;
    INLINE Sixteen(const uint8_t* data, int64_t first, int64_t count) : at(data + first * Size) {
        if (first + 16 <= count) return;
        memset(copy, 0, sizeof copy);
        if (first < count) memcpy(copy, at, size_t(count - first) * Size);
        at = copy;
    }
};

typedef uint32_t Lanes32 __attribute__((vector_size(64)));

// Code k of 1..7 is the exponent `zero` + k; sign and mantissa are one byte. Other elements are stored in full.
struct TripleBitmap {
    static INLINE Lanes32 bit_of(uint32_t mask, Lanes32 lane) { return (Lanes32{} + mask) >> lane & 1; }

    template <class Sink> static INLINE void run(const Weights& w, int64_t row, int64_t c0, int64_t c1, Sink& sink) {
        const Lanes32 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const uint8_t *one = w.plane0 + row * w.pitch, *two = w.plane1 + row * w.pitch, *three = w.plane2 + row * w.pitch;
        int64_t coded = w.starts[row];
        for (int64_t c = 0; c < c0; c += 16)
            coded += __builtin_popcount(read<uint16_t>(one + c / 8) | read<uint16_t>(two + c / 8) | read<uint16_t>(three + c / 8));
        int64_t whole = row * w.columns + c0 - coded;
        const int64_t all_whole = w.rows * w.columns - w.stored;
        for (int64_t c = c0; c < c1; c += 16) {
            const int64_t count = c1 - c < 16 ? c1 - c : 16;
            const uint32_t a = read<uint16_t>(one + c / 8), b = read<uint16_t>(two + c / 8), d = read<uint16_t>(three + c / 8);
            const uint32_t some = a | b | d, others = ~some & ((1u << count) - 1);
            const Sixteen<1> high(w.data, coded, w.stored);
            const Sixteen<2> full(w.rest, whole, all_whole);
            const Lanes32 code = bit_of(a, lane) + (bit_of(b, lane) << 1) + (bit_of(d, lane) << 2);
            const F coded_ones = expand(some, lowest(load_bytes(high.at))), whole_ones = expand(others, load_bf16(full.at));
            const Lanes32 byte = read<Lanes32>(&coded_ones);
            const Lanes32 short_value = (byte & 0x80) << 24 | (byte & 0x7f) << 16 | (code + uint32_t(w.zero)) << 23;
            const Lanes32 is_coded = -bit_of(some, lane);
            const Lanes32 value = (short_value & is_coded) | read<Lanes32>(&whole_ones);
            put_some(sink, c - c0, sink.widened(read<F>(&value)), count);
            const int of_these = __builtin_popcount(some);
            coded += of_these, whole += count - of_these;
        }
    }
};

// Values where a bit is set, else zeros; all multiplied by the optional row scale.
struct Sparse {
    template <int Type> static INLINE F load16(const Weights& w, const uint8_t* at) {
        if constexpr (Type == F32) return load(at);
        else if constexpr (Type == F16) return load_half(at);
        else if constexpr (Type == BF16) return load_bf16(at);
        else if constexpr (Type == I8) return widen_i8(load_bytes(at));
        float lanes[16];
        for (int i = 0; i < 16; i++) lanes[i] = w.listed[at[i]];
        return load(lanes);
    }

    template <class Sink> static INLINE void run(const Weights& w, int64_t row, int64_t c0, int64_t c1, Sink& sink) {
        switch (w.offset_type) {
            case F32: return w.scale ? run_type<F32, true>(w, row, c0, c1, sink) : run_type<F32, false>(w, row, c0, c1, sink);
            case F16: return w.scale ? run_type<F16, true>(w, row, c0, c1, sink) : run_type<F16, false>(w, row, c0, c1, sink);
            case BF16: return w.scale ? run_type<BF16, true>(w, row, c0, c1, sink) : run_type<BF16, false>(w, row, c0, c1, sink);
            case I8: return run_type<I8, true>(w, row, c0, c1, sink);
            default: return run_type<LISTED, true>(w, row, c0, c1, sink);
        }
    }

    template <int Type, bool Scaled, class Sink> static INLINE void put(Sink& sink, int64_t i, F v, F scale, int64_t count) {
        if constexpr (Scaled) put_some(sink, i, v * scale, count);
        else if constexpr (Type == BF16) put_some(sink, i, sink.widened(v), count);
        else put_some(sink, i, v, count);
    }

    template <int Type, bool Scaled, class Sink>
    static INLINE void run_type(const Weights& w, int64_t row, int64_t c0, int64_t c1, Sink& sink) {
        const F scale = splat(Scaled ? widened(w.scale, w.scale_type, w.listed, row * w.grid_row) : 1);
        const int64_t begin = row * w.pitch, end = (begin + w.columns + 7) / 8;
        const uint8_t* bits = w.plane0;
        int64_t at = w.starts[row], c = c0;
        for (int64_t skipped = 0; skipped < c0; skipped += 16) at += __builtin_popcount(mask16(bits, begin + skipped, end));
        if constexpr (has_expand && Sink::type != F32 && !Scaled)  // round contiguous values before expanding them
            for (; c + 32 <= c1 && at + 32 <= w.stored && (begin + c) / 8 + 8 <= end; c += 32) {
                const uint32_t mask = uint32_t(read<uint64_t>(bits + (begin + c) / 8) >> (begin + c) % 8);
                sink.put(c - c0, expand(mask, rounded32<Type>(w, at, sink)));
                at += __builtin_popcount(mask);
            }
        for (; c + 64 <= c1 && at + 64 <= w.stored && begin % 8 == 0; c += 64) {
            const uint64_t word = read<uint64_t>(bits + (begin + c) / 8);
            UNROLL for (int k = 0; k < 64; k += 16) {
                const uint32_t mask = word >> k & 0xffff;
                put<Type, Scaled>(sink, c - c0 + k, expand(mask, load16<Type>(w, w.data + at * size_of(Type))), scale, 16);
                at += __builtin_popcount(mask);
            }
        }
        for (; c < c1; c += 16) {
            const int64_t count = c1 - c < 16 ? c1 - c : 16;
            const uint32_t mask = mask16(bits, begin + c, end) & ((1u << count) - 1);
            const Sixteen<size_of(Type)> some(w.data, at, w.stored);
            put<Type, Scaled>(sink, c - c0, expand(mask, load16<Type>(w, some.at)), scale, count);
            at += __builtin_popcount(mask);
        }
    }

    template <int Type, class Sink> static INLINE auto rounded32(const Weights& w, int64_t first, const Sink& sink) {
        const uint8_t* at = w.data + first * size_of(Type);
        if constexpr (Type == Sink::type) return read<Halves32>(at);
        else if constexpr (Type == BF16) return sink.widened(load16<Type>(w, at), load16<Type>(w, at + 32));
        else return sink.rounded(load16<Type>(w, at), load16<Type>(w, at + 16 * size_of(Type)));
    }

    // Sixteen bits from any bit offset, without reading from `end` on.
    static INLINE uint32_t mask16(const uint8_t* bits, int64_t first, int64_t end) {
        const int64_t byte = first / 8;
        uint32_t word = 0;
        if (byte + 4 <= end) word = read<uint32_t>(bits + byte);
        else memcpy(&word, bits + byte, size_t(end - byte));
        return word >> first % 8 & 0xffff;
    }
};

}  // namespace ISA
