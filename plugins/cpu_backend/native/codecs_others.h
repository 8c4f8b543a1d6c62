// Dense arrays, F8Q8 and HQQ.
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
    template <class Sink> static INLINE auto value(const Sink& sink, F v) {
        if constexpr (Kind == DENSE_BF16) return sink.widened(v);
        else return v;
    }
    template <class Sink> static INLINE void run(const Weights& w, int64_t row, int64_t c0, int64_t c1, Sink& sink) {
        const uint8_t* at = w.data + row * w.pitch + c0 * size;
        int64_t i = 0;
        for (; i + 16 <= c1 - c0; i += 16) sink.put(i, value(sink, load16(at + i * size)));
        if (i == c1 - c0) return;
        uint8_t last[16 * size] = {};
        memcpy(last, at + i * size, size_t((c1 - c0 - i) * size));
        sink.put(i, value(sink, load16(last)), int(c1 - c0 - i));
    }
};

// Blocks of a scale byte and 32 signed bytes.
struct F8Q8Blocks {
    template <class Sink> static INLINE void run(const Weights& w, int64_t row, int64_t c0, int64_t c1, Sink& sink) {
        const uint8_t* at = w.data + row * w.pitch + c0 / 32 * 33;
        for (int64_t i = 0; i < c1 - c0; i += 32, at += 33) {
            const F scale = splat(w.listed[*at]);
            sink.put(i, widen_i8(load_bytes(at + 1)) * scale, widen_i8(load_bytes(at + 17)) * scale);
        }
    }
};

// (code - zero) * scale. The flattened tensor is a matrix with lines of `size`; a word holds codes of distant lines.
struct HalfQuadratic {
    template <class Sink> static INLINE void run(const Weights& w, int64_t row, int64_t c0, int64_t c1, Sink& sink) {
        const int64_t begin = row * w.columns + c0, end = row * w.columns + c1;
        for (int64_t at = begin; at < end;) {
            const int64_t line = at / w.size, column = at % w.size;
            const int64_t left = end - at < w.size - column ? end - at : w.size - column;
            const int shift = w.shift - int(line / w.line) * w.bits;
            run_line(w, line % w.line * w.size + column, shift, line * w.grid_row + column * w.grid_column, left, at - begin, sink);
            at += left;
        }
    }

    // Codes of adjacent words, all at the same position.
    template <class Sink>
    static INLINE void run_line(const Weights& w, int64_t word, int shift, int64_t cell, int64_t count, int64_t i, Sink& sink) {
        const uint8_t *zero = w.offset + 4 * cell, *scale = w.scale + 4 * cell;
        const F one_zero = splat(read<float>(zero)), one_scale = splat(read<float>(scale));
        int64_t done = 0;
        for (; w.word == 1 && done + 16 <= count; done += 16) {
            const F codes = widen_u8(right(load_bytes(w.data + word + done), shift) & splat_byte(uint8_t((1u << w.bits) - 1)));
            const F zeros = w.grid_column ? load(zero + 4 * done) : one_zero;
            sink.put(i + done, (codes - zeros) * (w.grid_column ? load(scale + 4 * done) : one_scale));
        }
        for (; done < count; done += 16) {
            const int64_t some = count - done < 16 ? count - done : 16;
            float codes[16] = {}, zeros[16] = {}, scales[16] = {};
            for (int64_t lane = 0; lane < some; lane++) {
                const int64_t at = word + done + lane, grid = 4 * (done + lane) * w.grid_column;
                const uint32_t bits = w.word == 1 ? w.data[at] : read<uint32_t>(w.data + 4 * at);
                codes[lane] = float(bits >> shift & ((1u << w.bits) - 1));
                zeros[lane] = read<float>(zero + grid), scales[lane] = read<float>(scale + grid);
            }
            put_some(sink, i + done, (load(codes) - load(zeros)) * load(scales), some);
        }
    }
};

}  // namespace ISA
