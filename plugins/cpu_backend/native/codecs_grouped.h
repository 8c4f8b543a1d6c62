// Codes with a scale per group, in every packing: integers with a zero point or bias (affine), or table indices (palettes,
// microscaling, float8).
#pragma once
#include "sinks.h"

namespace ISA {

template <int Offset> struct AffineMap {
    static constexpr bool offsets = Offset != NO_OFFSET;
    B flip;
    F zero, scale, offset;
    INLINE explicit AffineMap(const Weights& w) : flip(splat_byte(uint8_t(w.flip))), zero(splat(float(w.zero))) {}
    INLINE F operator()(B codes) const {
        const F centred = widen_u8(codes ^ flip) - zero;
        if constexpr (Offset == BIAS) return centred * scale + offset;
        else if constexpr (Offset == ZERO_POINT) return (centred - offset) * scale;
        else return centred * scale;
    }
};

// table[code] * scale. Tables of up to 4 bits are repeated to 16 entries.
template <int Bits> struct TableMap {
    static constexpr bool offsets = false;
    const float* table;
    F first, scale;
    INLINE explicit TableMap(const Weights& w) : table(w.table), first(load(w.table)) {}
    INLINE F operator()(B codes) const {
        if constexpr (Bits <= 4) return lookup(first, codes) * scale;
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
    } else if (type == LISTED) {
        for (at += first; done < count; done++, at += step) to[done] = listed[*at];
        return;
    }
    for (; done < count; done++) to[done] = widened(at, type, listed, first + done * step);
}

// Codes of a row that are not consecutive in memory.
template <class Word>
static void gather_words(const Weights& w, int bits, int64_t row, int64_t column, int64_t count, uint8_t* codes) {
    const int width = 8 * int(sizeof(Word)), unit = width / bits;
    const uint64_t mask = (uint64_t(1) << bits) - 1;
    const bool whole = w.ordered || width % bits == 0;  // words of whole codes, with optional unused bits above
    const auto shift_of = [&](int64_t place) { return w.ordered ? w.order[place] * bits : int(place) * bits; };
    if (w.down && whole) {  // one position in the words of many lines
        const uint8_t* at = w.data + column * w.line + row / unit * w.step;
        const int shift = shift_of(row % unit);
        for (int64_t i = 0; i < count; i++) codes[i] = uint8_t(uint64_t(read<Word>(at + i * w.line)) >> shift & mask);
        return;
    }
    if (whole && column % unit == 0) {  // all positions of each word
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
    static constexpr int64_t panel = 4096;  // columns per iteration, so that their scales fit the stack for any group size

    template <class Sink> static INLINE void run(const Weights& w, int64_t row, int64_t c0, int64_t c1, Sink& sink) {
        for (int64_t at = c0; at < c1; at += panel) {
            const int64_t stop = at + panel < c1 ? at + panel : c1;
            if constexpr (Looked) run_panel(w, row, at, stop, at - c0, TableMap<Bits>(w), sink);
            else if (!w.offset) run_panel(w, row, at, stop, at - c0, AffineMap<NO_OFFSET>(w), sink);
            else if (w.bias) run_panel(w, row, at, stop, at - c0, AffineMap<BIAS>(w), sink);
            else run_panel(w, row, at, stop, at - c0, AffineMap<ZERO_POINT>(w), sink);
        }
    }

    template <class Map, class Sink>
    static INLINE void run_panel(const Weights& w, int64_t row, int64_t c0, int64_t c1, int64_t i, Map map, Sink& sink) {
        float scale[panel], offset[panel];
        uint8_t gathered[panel + 16];
        const int64_t group = w.group_columns, first = c0 / group, cells = (c1 - 1) / group - first + 1;
        const int64_t cell = row / w.group_rows * w.grid_row + first * w.grid_column;
        if (w.scale) widen(w.scale, w.scale_type, w.listed, cell, w.grid_column, cells, scale);
        else for (int64_t k = 0; k < cells; k++) scale[k] = 1;
        if constexpr (Map::offsets) widen(w.offset, w.offset_type, w.listed, cell, w.grid_column, cells, offset);
        const uint8_t* codes = w.data + row * w.pitch + c0 * Bits / 8;
        const bool strided = w.strided;
        if (strided) gather_codes(w, Bits, row, c0, c1 - c0, gathered);
        int64_t c = 0, k = 0;  // finished columns and groups
        const int64_t end = c1 - c0, into = c0 - first * group;
        const auto scaled = [&](int64_t cell) {
            map.scale = splat(scale[cell]);
            if constexpr (Map::offsets) map.offset = splat(offset[cell]);
            return Levels<Bits, Map, Sink>(map, sink);
        };
        if (!strided && group % 32 == 0 && into % 32 == 0) {
            for (int64_t left = group - into; c + 32 <= end; left = group, k++) {
                const auto levels = scaled(k);
                for (const int64_t stop = c + left < end ? c + left : end; c + 32 <= stop; c += 32, codes += 4 * Bits)
                    levels.put32(sink, i + c, codes);
            }
        } else if (group % 16 == 0) {  // runs of 16 are within a group
            for (int64_t left = group - into; c + 16 <= end; left = group, k++) {
                const auto levels = scaled(k);
                for (const int64_t stop = c + left < end ? c + left : end; c + 16 <= stop; c += 16, codes += 2 * Bits)
                    sink.put(i + c, levels(strided ? load_bytes(gathered + c) : load_codes16<Bits>(codes)));
            }
        }
        for (int64_t count; c < end; c += count, codes += 2 * Bits) {
            count = end - c < 16 ? end - c : 16;
            float scales[16] = {}, offsets[16] = {};
            for (int64_t lane = 0; lane < count; lane++) {
                const int64_t k = group == 1 ? c + lane : (c0 + c + lane) / group - first;
                scales[lane] = scale[k];
                if constexpr (Map::offsets) offsets[lane] = offset[k];
            }
            map.scale = load(scales);
            if constexpr (Map::offsets) map.offset = load(offsets);
            put_some(sink, i + c, map(strided ? load_bytes(gathered + c) : some_codes(codes, count)), count);
        }
    }

    // The last codes of a row, without reading past them.
    static INLINE B some_codes(const uint8_t* at, int64_t count) {
        uint8_t padded[2 * Bits] = {};
        memcpy(padded, at, size_t(count * Bits + 7) / 8);
        return load_codes16<Bits>(padded);
    }
};

}  // namespace ISA
