// Codes with a scale for each group, in every packing: of integers with a zero point or a bias (affine), or of places in a
// table (palettes, microscaling, float8).
#pragma once
#include "sinks.h"

namespace ISA {

struct AffineMap {
    B flip;
    F zero, scale, offset;
    bool bias;
    INLINE F operator()(B codes) const {
        const F centred = widen_u8(codes ^ flip) - zero;
        return bias ? centred * scale + offset : (centred - offset) * scale;
    }
};

// table[code] * scale. Tables of up to 4 bits have 16 entries, those of fewer bits again and again.
template <int Bits> struct TableMap {
    const float* table;
    F scale;
    INLINE F operator()(B codes) const {
        if constexpr (Bits <= 4) return lookup(load(table), codes) * scale;
        uint8_t places[16];
        float values[16];
        memcpy(places, &codes, sizeof places);
        for (int i = 0; i < 16; i++) values[i] = table[places[i]];
        return load(values) * scale;
    }
};

static INLINE float widened(const uint8_t* at, int32_t type, const float* listed, int64_t index) {
    switch (type) {
        case F32: return read<float>(at + 4 * index);
        case F16: return half_to_float(read<uint16_t>(at + 2 * index));
        case BF16: return bf16_to_float(read<uint16_t>(at + 2 * index));
        case U8: return float(at[index]);
        case LISTED: return listed[at[index]];
        default: return float(int8_t(at[index]));
    }
}

// Grid cells first, first + step, ... as floats.
static INLINE void widen(const uint8_t* at, int32_t type, const float* listed, int64_t first, int64_t step, int64_t count,
                         float* to) {
    int64_t done = 0;
    if (step == 1 && type == F16)
        for (at += 2 * first, first = 0; done + 16 <= count; done += 16) store(to + done, load_half(at + 2 * done));
    else if (step == 1 && type == BF16)
        for (at += 2 * first, first = 0; done + 16 <= count; done += 16) store(to + done, load_bf16(at + 2 * done));
    else if (step == 1 && type == F32) {
        memcpy(to, at + 4 * first, size_t(count) * 4);
        return;
    }
    for (; done < count; done++) to[done] = widened(at, type, listed, first + done * step);
}

// Codes of one row that do not lie in it one after the other.
template <class Word>
static void gather_words(const Weights& w, int bits, int64_t row, int64_t column, int64_t count, uint8_t* codes) {
    const int width = 8 * int(sizeof(Word)), unit = width / bits;
    const uint64_t mask = (uint64_t(1) << bits) - 1;
    const bool whole = width % bits == 0;
    const auto shift_of = [&](int64_t place) { return w.ordered ? w.order[place] * bits : int(place) * bits; };
    if (w.down && whole) {  // one place in the words of many lines
        const uint8_t* at = w.data + column * w.line + row / unit * w.step;
        const int shift = shift_of(row % unit);
        for (int64_t i = 0; i < count; i++) codes[i] = uint8_t(uint64_t(read<Word>(at + i * w.line)) >> shift & mask);
        return;
    }
    if (whole && column % unit == 0) {  // all places of one word after the other
        const uint8_t* at = w.data + row * w.line + column / unit * w.step;
        for (int64_t i = 0; i < count; i += unit, at += w.step) {
            const uint64_t word = read<Word>(at);
            for (int64_t place = 0; place < unit && i + place < count; place++)
                codes[i + place] = uint8_t(word >> shift_of(place) & mask);
        }
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        const int64_t line = w.down ? column + i : row, place = w.down ? row : column + i;
        const int64_t word = whole ? place / unit : place * bits / width;
        const int64_t shift = whole ? shift_of(place % unit) : place * bits % width;
        const uint8_t* at = w.data + line * w.line + word * w.step;
        uint64_t value = uint64_t(read<Word>(at)) >> shift;
        if (shift + bits > width) value |= uint64_t(read<Word>(at + w.step)) << (width - shift);
        codes[i] = uint8_t(value & mask);
    }
}

static void gather_codes(const Weights& w, int bits, int64_t row, int64_t column, int64_t count, uint8_t* codes) {
    if (w.word == 1) gather_words<uint8_t>(w, bits, row, column, count, codes);
    else if (w.word == 2) gather_words<uint16_t>(w, bits, row, column, count, codes);
    else if (w.word == 4) gather_words<uint32_t>(w, bits, row, column, count, codes);
    else gather_words<uint64_t>(w, bits, row, column, count, codes);
}

template <int Bits, bool Looked> struct Grouped {
    static constexpr int64_t panel = 4096;  // columns at a time: their scales fit the stack, whatever the group

    template <class Sink> static INLINE void run(const Weights& w, int64_t row, int64_t c0, int64_t c1, Sink& sink) {
        for (int64_t at = c0; at < c1; at += panel) {
            const int64_t stop = at + panel < c1 ? at + panel : c1;
            if (Looked || !w.bias) run_panel<false>(w, row, at, stop, at - c0, sink);
            else run_panel<true>(w, row, at, stop, at - c0, sink);
        }
    }

    template <bool Bias> static INLINE auto map_of(const Weights& w, F scale, F offset) {
        if constexpr (Looked) return TableMap<Bits>{w.table, scale};
        else return AffineMap{splat_byte(uint8_t(w.flip)), splat(float(w.zero)), scale, offset, Bias};
    }

    template <bool Bias, class Sink>
    static INLINE void run_panel(const Weights& w, int64_t row, int64_t c0, int64_t c1, int64_t i, Sink& sink) {
        float scale[panel], offset[panel];
        uint8_t gathered[panel + 16];
        const int64_t group = w.group_columns, first = c0 / group, cells = (c1 - 1) / group - first + 1;
        const int64_t cell = row / w.group_rows * w.grid_row + first * w.grid_column;
        if (w.scale) widen(w.scale, w.scale_type, w.listed, cell, w.grid_column, cells, scale);
        else for (int64_t k = 0; k < cells; k++) scale[k] = 1;
        if (w.offset) widen(w.offset, w.offset_type, w.listed, cell, w.grid_column, cells, offset);
        else memset(offset, 0, size_t(cells) * sizeof *offset);
        const uint8_t* codes = w.data + row * w.pitch + c0 * Bits / 8;
        if (w.strided) gather_codes(w, Bits, row, c0, c1 - c0, gathered);
        int64_t c = c0;
        if (group % 16 == 0) {  // runs of 16 lie within a group
            int64_t end = first * group + group;
            for (int64_t k = 0; c + 16 <= c1; k++, end += group) {
                const int64_t stop = end < c1 ? end : c1;
                const auto map = map_of<Bias>(w, splat(scale[k]), splat(offset[k]));
                const Levels<Bits, decltype(map), Sink> levels(map, sink);
                if (w.strided)
                    for (; c + 16 <= stop; c += 16, i += 16) sink.put(i, levels(load_bytes(gathered + (c - c0))));
                else {
                    for (; c + 32 <= stop; c += 32, i += 32) {
                        B low, high;
                        load_codes32<Bits>(codes + (c - c0) / 8 * Bits, low, high);
                        sink.put(i, levels(low));
                        sink.put(i + 16, levels(high));
                    }
                    for (; c + 16 <= stop; c += 16, i += 16) sink.put(i, levels.stream(codes + (c - c0) / 8 * Bits));
                }
            }
        }
        while (c < c1) {
            const int64_t count = c1 - c < 16 ? c1 - c : 16;
            float scales[16] = {}, offsets[16] = {};
            for (int64_t lane = 0; lane < count; lane++) {
                const int64_t k = group == 1 ? c - c0 + lane : (c + lane) / group - first;
                scales[lane] = scale[k];
                offsets[lane] = offset[k];
            }
            const B some = w.strided ? load_bytes(gathered + (c - c0)) : some_codes(codes + (c - c0) / 8 * Bits, count);
            put_some(sink, i, map_of<Bias>(w, load(scales), load(offsets))(some), count);
            c += count, i += count;
        }
    }

    // The last codes of a row: no byte after theirs is read.
    static INLINE B some_codes(const uint8_t* at, int64_t count) {
        uint8_t padded[2 * Bits] = {};
        memcpy(padded, at, size_t(count * Bits + 7) / 8);
        return load_codes16<Bits>(padded);
    }
};

}  // namespace ISA
