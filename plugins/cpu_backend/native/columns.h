// Products with codes packed across rows (GPTQ, AWQ): sixteen adjacent words are sixteen lanes, and a panel of rows runs down
// all columns, so that memory is read in whole cache lines.
#pragma once
#include "codecs_grouped.h"

namespace ISA {

#ifndef __aarch64__
typedef uint32_t Word16 __attribute__((vector_size(64)));
typedef int32_t Whole16 __attribute__((vector_size(64)));
static INLINE F floats_of(Whole16 x) {
    typedef float Float16 __attribute__((vector_size(64)));
    const Float16 value = __builtin_convertvector(x, Float16);
    return read<F>(&value);
}
static INLINE Whole16 whole16(int32_t x) { return Whole16{} + x; }
#endif

static INLINE Word16 words_at(const uint8_t* at, int64_t count) {
    if (count >= 16) return read<Word16>(at);
    Word16 some = {};
    if (count > 0) memcpy(&some, at, size_t(count) * 4);
    return some;
}

// Sixteen codes in the lowest bits of words, minus the midpoint, which limits cancellation.
template <int Bits> struct LowBits {
    static constexpr int middle = Bits == 1 ? 0 : 1 << (Bits - 1);
    static constexpr uint32_t mask = (1u << Bits) - 1;
    uint32_t flip;
    F table;
    INLINE explicit LowBits(const Weights& w) : flip(uint32_t(w.flip)) {
        if (Bits <= 4) table = widen_u8((counting() & splat_byte(mask)) ^ splat_byte(uint8_t(flip))) - splat(middle);
    }
    INLINE F operator()(Word16 words) const {
#ifdef __AVX512F__
        if constexpr (Bits <= 4) return {_mm512_permutexvar_ps((__m512i)words, table.v)};
#endif
        return floats_of((Whole16)((words & mask) ^ flip) - middle);
    }
};

// Rows of one panel. A word has codes of `unit` rows (Down) or of `unit` columns: sixteen of those give sums of `unit` runs of
// rows, `unit` apart, and four times sixteen of these sums of four runs side by side.
template <int Bits, bool Down> struct ColumnPanel {
    static constexpr int unit = 32 / Bits, vectors = Down ? 1 : 4, runs = Down ? unit : vectors, rows = 16 * runs;
    const Weights& w;
    int64_t row, count;
    LowBits<Bits> code;
    int codes[unit];  // code number at each position of a word
    F part[runs];

    static INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

    // All codes in the words of one line for these rows.
    INLINE void add_line(const uint8_t* at, const float* x) {
        const int64_t words = Down ? (count + unit - 1) / unit : count;
        UNROLL for (int v = 0; v < vectors; v++) {
            const Word16 some = words_at(at + 64 * v, words - 16 * v);
            UNROLL for (int k = 0; k < unit; k++) {
                F& sum = part[Down ? k : v];
                sum = fma(code(some >> Bits * k), splat(x[Down ? 0 : codes[k]]), sum);
            }
        }
    }
    INLINE F grid(const uint8_t* at, int32_t type, int64_t group, int run) const {
        const int64_t first = Down ? codes[run] : 16 * run;
        const int64_t left = least(16, Down ? (count - first + unit - 1) / unit : count - first);
        const int64_t cell = row + first + group * w.grid_column;
        if (!Down && left == 16 && type == F16) return load_half(at + 2 * cell);
        float some[16] = {};
        if (left > 0) widen(at, type, w.listed, cell, Down ? unit : 1, left, some);
        return load(some);
    }
    // y += the product of a group's columns; sum_x is the sum of their activations.
    INLINE void add_group(int64_t group, const float* x, float sum_x, float* y) {
        for (int k = 0; k < unit; k++) codes[w.ordered ? w.order[k] : k] = k;
        const int64_t line = Down ? w.line : w.step, lines = w.group_columns / (Down ? 1 : unit);
        const uint8_t* at = w.data + (Down ? row / unit * w.step : row * w.line) + group * lines * line;
        UNROLL for (int k = 0; k < runs; k++) part[k] = splat(0);
        for (int64_t i = 0; i < lines; i++, at += line, x += Down ? 1 : unit) {
            UNROLL for (int v = 0; v < vectors; v++) prefetch(at + 64 * (vectors + v));
            add_line(at, x);
        }
        const F centre = splat(float(w.zero - code.middle)), all = splat(sum_x);
        UNROLL for (int k = 0; k < runs; k++) {
            const F scale = grid(w.scale, w.scale_type, group, k);
            const F offset = w.offset ? grid(w.offset, w.offset_type, group, k) : splat(0);
            F more = scale * (part[k] - (w.bias ? centre : centre + offset) * all);
            if (w.bias) more = fma(offset, all, more);
            float sums[16];
            store(sums, more);
            for (int64_t lane = 0, r = Down ? codes[k] : 16 * k; lane < 16 && r < count; lane++, r += Down ? unit : 1)
                y[r] += sums[lane];
        }
    }
};

// Group by group, to touch few pages at a time.
template <int Bits, bool Down> void sum_columns(const Weights& w, int64_t row, int64_t count, const float* x, float* y) {
    using Panel = ColumnPanel<Bits, Down>;
    memset(y, 0, size_t(count) * sizeof *y);
    for (int64_t group = 0; group * w.group_columns < w.columns; group++, x += w.group_columns) {
        float sum_x = 0;
        for (int64_t c = 0; c < w.group_columns; c++) sum_x += x[c];
        for (int64_t r = 0; r < count; r += Panel::rows) {
            Panel panel = {w, row + r, Panel::least(Panel::rows, count - r), LowBits<Bits>(w), {}, {}};
            panel.add_group(group, x, sum_x, y + r);
        }
    }
}

using SumColumns = void (*)(const Weights&, int64_t row, int64_t count, const float* x, float* y);
template <bool Down> SumColumns sum_columns_of(int32_t kind) {
    switch (kind) {
        case AFFINE_2: return sum_columns<2, Down>;
        case AFFINE_4: return sum_columns<4, Down>;
        case AFFINE_8: return sum_columns<8, Down>;
        default: return nullptr;
    }
}
// Null if codes are packed along rows, or in unsupported words.
static SumColumns sum_columns_of(const Weights& w) {
    const bool words = w.strided && w.word == 4 && (w.down ? w.step : w.line) == 4 && !w.mask && w.scale;
    if (!words || w.group_rows != 1 || w.grid_row != 1 || w.columns % w.group_columns || w.group_columns % 16) return nullptr;
    if (w.zero > 1 << 16 || w.zero < -(1 << 16)) return nullptr;
    return w.down ? sum_columns_of<true>(w.kind) : sum_columns_of<false>(w.kind);
}

}  // namespace ISA
