// Plain arrays, F8Q8 and HQQ.
#pragma once
#include "sinks.h"

namespace ISA {

template <int Kind> struct Plain {
    static constexpr int64_t size = Kind == DENSE_F32 ? 4 : 2;
    static INLINE F load16(const uint8_t* at) {
        if constexpr (Kind == DENSE_F32) return load(at);
        else if constexpr (Kind == DENSE_F16) return load_half(at);
        else return load_bf16(at);
    }
    template <class Sink> static INLINE void run(const Weights& w, int64_t row, int64_t c0, int64_t c1, Sink& sink) {
        const uint8_t* at = w.data + row * w.pitch + c0 * size;
        int64_t i = 0;
        for (; i + 16 <= c1 - c0; i += 16) sink.put(i, load16(at + i * size));
        if (i == c1 - c0) return;
        uint8_t last[16 * size] = {};
        memcpy(last, at + i * size, size_t((c1 - c0 - i) * size));
        sink.put(i, load16(last), int(c1 - c0 - i));
    }
};

// Blocks of a byte that names the scale, and 32 signed bytes.
struct F8Q8Blocks {
    template <class Sink> static INLINE void run(const Weights& w, int64_t row, int64_t c0, int64_t c1, Sink& sink) {
        const uint8_t* at = w.data + row * w.pitch + c0 / 32 * 33;
        for (int64_t i = 0; i < c1 - c0; i += 32, at += 33) {
            const F scale = splat(w.listed[*at]);
            sink.put(i, widen_i8(load_bytes(at + 1)) * scale);
            sink.put(i + 16, widen_i8(load_bytes(at + 17)) * scale);
        }
    }
};

// (code - zero) * scale. The tensor's values, in order, are a matrix of lines of `size`; a word holds codes of lines far apart.
struct HalfQuadratic {
    template <class Sink> static INLINE void run(const Weights& w, int64_t row, int64_t c0, int64_t c1, Sink& sink) {
        const int64_t begin = row * w.columns + c0, end = row * w.columns + c1;
        for (int64_t at = begin; at < end;) {
            const int64_t line = at / w.size, column = at % w.size;
            const int64_t left = end - at < w.size - column ? end - at : w.size - column;
            const int64_t count = left < 16 ? left : 16, words = line % w.line * w.size + column;
            const int shift = w.shift - int(line / w.line) * w.bits;
            float codes[16] = {}, zeros[16] = {}, scales[16] = {};
            const int64_t cell = line * w.grid_row + column * w.grid_column;
            for (int64_t lane = 0; lane < count; lane++) {
                const uint32_t word = w.word == 1 ? w.data[words + lane] : read<uint32_t>(w.data + 4 * (words + lane));
                codes[lane] = float(word >> shift & ((1u << w.bits) - 1));
                zeros[lane] = read<float>(w.offset + 4 * (cell + lane * w.grid_column));
                scales[lane] = read<float>(w.scale + 4 * (cell + lane * w.grid_column));
            }
            put_some(sink, at - begin, (load(codes) - load(zeros)) * load(scales), count);
            at += count;
        }
    }
};

}  // namespace ISA
