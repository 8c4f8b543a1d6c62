// Products with codes whose rows lie across words (GPTQ, AWQ): sixteen words side by side are sixteen lanes, and a panel of
// rows goes down all columns, so that memory is read in whole lines.
#pragma once
#include "codecs_grouped.h"

namespace ISA {

typedef uint32_t Word16 __attribute__((vector_size(64)));
typedef int32_t Whole16 __attribute__((vector_size(64)));
typedef float Float16 __attribute__((vector_size(64)));

static INLINE Word16 words_at(const uint8_t* at, int64_t count) {
    if (count >= 16) return read<Word16>(at);
    Word16 some = {};
    if (count > 0) memcpy(&some, at, size_t(count) * 4);
    return some;
}

// Rows of one panel. A word has codes of `unit` rows (Down) or of `unit` columns: sixteen of those give sums of `unit` runs of
// rows, `unit` apart, and four times sixteen of these sums of four runs side by side.
template <int Bits, bool Down> struct ColumnPanel {
    static constexpr int unit = 32 / Bits, vectors = Down ? 1 : 4, runs = Down ? unit : vectors, rows = 16 * runs;
    static constexpr int middle = Bits == 1 ? 0 : 1 << (Bits - 1);  // codes are summed about it, so that little cancels
    const Weights& w;
    int64_t row, count;
    F total[runs], part[runs];

    static INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

    // All codes of the words that one line has for these rows.
    INLINE void add_line(const uint8_t* at, const int* shifts, const float* x) {
        const Word16 flip = Word16{} + uint32_t(w.flip), mask = Word16{} + uint32_t((uint64_t(1) << Bits) - 1);
        const int64_t words = Down ? (count + unit - 1) / unit : count;
        UNROLL for (int v = 0; v < vectors; v++) {
            const Word16 codes = words_at(at + 64 * v, words - 16 * v);
            UNROLL for (int k = 0; k < unit; k++) {
                const Whole16 whole = (Whole16)((codes >> shifts[k] & mask) ^ flip) - middle;
                const Float16 value = __builtin_convertvector(whole, Float16);
                F& sum = part[Down ? k : v];
                sum = fma(read<F>(&value), splat(x[Down ? 0 : k]), sum);
            }
        }
    }
    INLINE F grid(const uint8_t* at, int32_t type, int64_t group, int run) const {
        const int64_t first = Down ? run : 16 * run, left = least(16, Down ? (count - run + unit - 1) / unit : count - first);
        const int64_t cell = row + first + group * w.grid_column;
        if (!Down && left == 16 && type == F16) return load_half(at + 2 * cell);
        float some[16] = {};
        if (left > 0) widen(at, type, w.listed, cell, Down ? unit : 1, left, some);
        return load(some);
    }
    INLINE void end_group(int64_t group, float sum_x) {
        const F centre = splat(float(w.zero) - float(middle)), all = splat(sum_x);
        UNROLL for (int k = 0; k < runs; k++) {
            const F scale = grid(w.scale, w.scale_type, group, k);
            const F offset = w.offset ? grid(w.offset, w.offset_type, group, k) : splat(0);
            const F less = w.bias ? centre : centre + offset;
            total[k] = fma(scale, part[k] - less * all, total[k]);
            if (w.bias) total[k] = fma(offset, all, total[k]);
        }
    }
    INLINE void run(const float* x, float* y) {
        int shifts[unit];
        for (int k = 0; k < unit; k++) shifts[k] = (w.ordered ? w.order[k] : k) * Bits;
        const uint8_t* at = w.data + (Down ? row / unit * w.step : row * w.line);
        const int64_t stride = Down ? w.line : w.step, lines = w.group_columns / (Down ? 1 : unit);
        UNROLL for (int k = 0; k < runs; k++) total[k] = splat(0);
        for (int64_t group = 0; group * w.group_columns < w.columns; group++) {
            UNROLL for (int k = 0; k < runs; k++) part[k] = splat(0);
            float sum_x = 0;
            for (int64_t c = 0; c < w.group_columns; c++) sum_x += x[c];
            for (int64_t line = 0; line < lines; line++, at += stride, x += Down ? 1 : unit) {
                UNROLL for (int v = 0; v < vectors; v++) prefetch(at + 16 * stride + 64 * v);
                add_line(at, shifts, x);
            }
            end_group(group, sum_x);
        }
        UNROLL for (int k = 0; k < runs; k++) {
            float sums[16];
            store(sums, total[k]);
            for (int64_t lane = 0, r = Down ? k : 16 * k; lane < 16 && r < count; lane++, r += Down ? unit : 1) y[r] = sums[lane];
        }
    }
};

template <int Bits, bool Down> void sum_columns(const Weights& w, int64_t row, int64_t count, const float* x, float* y) {
    using Panel = ColumnPanel<Bits, Down>;
    for (int64_t r = 0; r < count; r += Panel::rows) {
        Panel panel = {w, row + r, Panel::least(Panel::rows, count - r), {}, {}};
        panel.run(x, y + r);
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
// Null where codes are in rows, or not in words as these loops need them.
static SumColumns sum_columns_of(const Weights& w) {
    const bool words = w.strided && w.word == 4 && (w.down ? w.step : w.line) == 4 && !w.mask && w.scale;
    if (!words || w.group_rows != 1 || w.grid_row != 1 || w.columns % w.group_columns || w.group_columns % 16) return nullptr;
    if (w.zero > 1 << 16 || w.zero < -(1 << 16)) return nullptr;
    return w.down ? sum_columns_of<true>(w.kind) : sum_columns_of<false>(w.kind);
}

}  // namespace ISA
