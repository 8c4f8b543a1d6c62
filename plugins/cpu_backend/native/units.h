// Scaled integer codes in units of 32 weights, for matrix-vector products. A unit is two runs of sixteen values in the order of
// extraction from bytes; activations are permuted to it once per call.
//   weight = value * scale + offset, with one scale for the unit (SAME), one per run, continued in the next unit
//   (PAIR), one for each run (EACH), or several within each register (INNER); offsets cover 32 columns
#pragma once
#include "codecs_ggml.h"
#include "codecs_grouped.h"

namespace ISA {

enum class Scales { SAME, PAIR, EACH, INNER };

// Values of sixteen codes minus `zero` (encoded by `base_of`), in the order of `source`.
#if defined(__AVX2__) && !defined(__AVX512F__)
// Placing a code below the bits of 2^23 is cheaper than a conversion, with alternate fours in the other register.
static constexpr int source(int lane) { return lane / 16 * 16 + lane % 8 / 4 * 8 + lane / 8 % 2 * 4 + lane % 4; }
static INLINE F interleaved(__m256i words, __m256i above) {
    return {_mm256_castsi256_ps(_mm256_unpacklo_epi16(words, above)), _mm256_castsi256_ps(_mm256_unpackhi_epi16(words, above))};
}
static INLINE F raised(__m256i words) { return interleaved(words, _mm256_set1_epi16(0x4b00)); }
static INLINE F base_of(float zero) { return splat(0x1p23f + zero); }
static INLINE F less(B codes, F base) { return raised(_mm256_cvtepu8_epi16(codes.v)) - base; }
static INLINE F signed_values(B codes) { return less(codes ^ splat_byte(0x80), base_of(128)); }
static INLINE F looked_up(F table, B codes) {
    const F places = interleaved(_mm256_cvtepu8_epi16(codes.v), _mm256_setzero_si256());
    return {lookup8(table, _mm256_castps_si256(places.a)), lookup8(table, _mm256_castps_si256(places.b))};
}
#else
static constexpr int source(int lane) { return lane; }
static INLINE F base_of(float zero) { return splat(zero); }
static INLINE F less(B codes, F base) { return widen_u8(codes) - base; }
static INLINE F signed_values(B codes) { return widen_i8(codes); }
static INLINE F looked_up(F table, B codes) { return lookup(table, codes); }
#endif

// Low and high nibbles of sixteen bytes, minus `zero`. With a lookup the low nibbles cost one step (it only uses four bits),
// and the high ones become the mantissa of 2^19 + code, which balances shuffle, add and multiply ports.
struct Centred {
#ifdef __AVX512F__
    __m512 table, less;
    __m512i high, raise;
    INLINE Centred(int flip, float zero) {
        table = (widen_u8(counting() ^ splat_byte(uint8_t(flip))) - splat(zero)).v;
        less = _mm512_set1_ps(0x1p19f + zero);
        high = _mm512_set1_epi32(0xf0), raise = _mm512_set1_epi32(0x49000000 | flip << 4);
    }
    INLINE void operator()(const uint8_t* at, F& a, F& b) const {
        const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)at));
        a.v = _mm512_permutexvar_ps(codes, table);
        b.v = _mm512_sub_ps(_mm512_castsi512_ps(_mm512_ternarylogic_epi32(codes, high, raise, 0x6a)), less);  // (a & b) ^ c
    }
#else
    B flip;
    F base;
    INLINE Centred(int flip, float zero) : flip(splat_byte(uint8_t(flip))), base(base_of(zero)) {}
    INLINE void operator()(const uint8_t* at, F& a, F& b) const {
        const B codes = load_bytes(at), nibble = splat_byte(15);
        a = less((codes & nibble) ^ flip, base), b = less((right<4>(codes) & nibble) ^ flip, base);
    }
#endif
};

static INLINE void nibbles(const uint8_t* at, B& low, B& high) {
    const B codes = load_bytes(at), nibble = splat_byte(15);
    low = codes & nibble, high = right<4>(codes) & nibble;
}

// Low and high nibbles by lookup.
struct Named {
    F table;
    INLINE explicit Named(const float* values) : table(load(values)) {}
    INLINE void operator()(const uint8_t* at, F& a, F& b) const {
        const B codes = load_bytes(at);
        a = looked_up(table, codes), b = looked_up(table, right<4>(codes));
    }
};

static constexpr int in_order(int lane) { return lane; }
static constexpr int even_odd(int lane) { return lane < 16 ? 2 * lane : 2 * lane - 31; }

// float16 numbers, `step` bytes apart
static INLINE void halves(const uint8_t* at, int64_t step, int64_t count, float* to) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        uint16_t some[16];
        UNROLL for (int k = 0; k < 16; k++) some[k] = read<uint16_t>(at + (i + k) * step);
        store(to + i, load_half(some));
    }
    for (; i < count; i++) to[i] = half_at(at + i * step);
}

// Grid cells first, first + step, ... as floats, sixteen at a time if contiguous.
static INLINE void cells(const Weights& w, const uint8_t* grid, int32_t type, int64_t first, int64_t count, float* to) {
    if (type == LISTED) {
        for (int64_t i = 0; i < count; i++) to[i] = w.listed[grid[first + i * w.grid_column]];
        return;
    }
    const int64_t some = count % 16, whole = count - some;
    if (w.grid_column != 1 || (type != F16 && type != BF16) || !some)
        return widen(grid, type, w.listed, first, w.grid_column, count, to);
    if (whole) widen(grid, type, w.listed, first, 1, whole, to);
    uint16_t last[16] = {};
    memcpy(last, grid + 2 * (first + whole), size_t(some) * 2);
    store(to + whole, type == F16 ? load_half(last) : load_bf16(last));
}

// Rows of codes in groups of a multiple of 32.
struct GridUnits {
    static constexpr int units = 1;
    static constexpr Scales scales = Scales::SAME;
    static INLINE int64_t group(const Weights& w) { return w.group_columns / 32; }
    static INLINE float zero_code(const Weights& w) { return float(w.zero); }
    static INLINE bool offsets(const Weights& w) { return w.offset; }
    static INLINE void factors(const Weights& w, int64_t row, const uint8_t*, int64_t first, int64_t count, float* scale,
                               float* offset) {
        const int64_t cell = row / w.group_rows * w.grid_row + first * w.grid_column;
        if (w.scale) cells(w, w.scale, w.scale_type, cell, count, scale);
        else for (int64_t i = 0; i < count; i++) scale[i] = 1;
        if (!w.offset) return;
        cells(w, w.offset, w.offset_type, cell, count, offset);
        if (!w.bias) for (int64_t i = 0; i < count; i += 16) store(offset + i, load(offset + i) * (splat(0) - load(scale + i)));
    }
};
template <int Bits> struct AffineUnits : GridUnits {
    static constexpr int bytes = 4 * Bits;
    static constexpr int order(int lane) { return lane; }
    B flip;
    F base;
    INLINE explicit AffineUnits(const Weights& w) : flip(splat_byte(uint8_t(w.flip))), base(base_of(float(w.zero))) {}
    INLINE void values(const uint8_t* at, int, F& a, F& b) const {
        B low, high;
        load_codes32<Bits>(at, low, high);
        a = less(low ^ flip, base), b = less(high ^ flip, base);
    }
    INLINE void codes(const uint8_t* at, int, B& a, B& b) const {
        load_codes32<Bits>(at, a, b);
        a = a ^ flip, b = b ^ flip;
    }
};
struct AffineNibbles : GridUnits {
    static constexpr int bytes = 16;
    static constexpr int order(int lane) { return even_odd(lane); }
    Centred centred;
    B flip;
    INLINE explicit AffineNibbles(const Weights& w) : centred(w.flip, float(w.zero)), flip(splat_byte(uint8_t(w.flip))) {}
    INLINE void values(const uint8_t* at, int, F& a, F& b) const { centred(at, a, b); }
    INLINE void codes(const uint8_t* at, int, B& a, B& b) const {
        nibbles(at, a, b);
        a = a ^ flip, b = b ^ flip;
    }
};
struct NamedNibbles : GridUnits {
    static constexpr int bytes = 16;
    static constexpr int order(int lane) { return even_odd(lane); }
    Named named;
    INLINE explicit NamedNibbles(const Weights& w) : named(w.table) {}
    INLINE void values(const uint8_t* at, int, F& a, F& b) const { named(at, a, b); }
};

// Blocks of 32 preceded by a scale, and a minimum (Q4_1, Q5_1).
template <int Kind> struct BlockUnits {
    static INLINE int64_t group(const Weights&) { return 1; }
    static INLINE float zero_code(const Weights&) { return biased ? 0 : Kind == Q4_0 ? 8 : Kind == Q5_0 ? 16 : 128; }
    static constexpr int units = 1, bytes = Block<Kind>::bytes;
    static constexpr Scales scales = Scales::SAME;
    static constexpr bool biased = Kind == Q4_1 || Kind == Q5_1;
    static constexpr int order(int lane) { return lane; }
    static INLINE bool offsets(const Weights&) { return biased; }
    static INLINE void factors(const Weights&, int64_t, const uint8_t* at, int64_t, int64_t count, float* scale,
                               float* offset) {
        halves(at, bytes, count, scale);
        if (biased) halves(at + 2, bytes, count, offset);
    }
};
template <int Kind> struct NibbleUnits : BlockUnits<Kind> {  // Q4_0, Q4_1
    static constexpr int first = Kind == Q4_1 ? 4 : 2;
    Centred centred;
    INLINE explicit NibbleUnits(const Weights&) : centred(0, Kind == Q4_1 ? 0 : 8) {}
    INLINE void values(const uint8_t* at, int, F& a, F& b) const { centred(at + first, a, b); }
    INLINE void codes(const uint8_t* at, int, B& a, B& b) const { nibbles(at + first, a, b); }
};
template <int Kind> struct FiveUnits : BlockUnits<Kind> {  // Q5_0, Q5_1
    static constexpr int fifth = Kind == Q5_1 ? 4 : 2;
    const F base = base_of(Kind == Q5_0 ? 16 : 0);
    INLINE explicit FiveUnits(const Weights&) {}
    INLINE void values(const uint8_t* at, int, F& a, F& b) const {
        B low, high;
        codes(at, 0, low, high);
        a = less(low, base), b = less(high, base);
    }
    INLINE void codes(const uint8_t* at, int, B& a, B& b) const {
        nibbles(at + fifth + 4, a, b);
        a = a | fifth_bits(at + fifth), b = b | fifth_bits(at + fifth + 2);
    }
};
template <int Kind> struct NamedUnits : BlockUnits<Kind> {  // IQ4_NL, MXFP4
    static constexpr int bytes = Block<Kind>::bytes;
    static INLINE void factors(const Weights&, int64_t, const uint8_t* at, int64_t, int64_t count, float* scale, float*) {
        if constexpr (Kind == IQ4_NL) return halves(at, bytes, count, scale);
        for (int64_t i = 0; i < count; i++) scale[i] = half_of_e8m0(at[i * bytes]);
    }
    Named named;
    INLINE explicit NamedUnits(const Weights&) : named(Kind == IQ4_NL ? IQ4_LEVELS : E2M1_DOUBLED) {}
    INLINE void values(const uint8_t* at, int, F& a, F& b) const { named(at + bytes - 16, a, b); }
};
struct ByteUnits : BlockUnits<Q8_0> {
    INLINE explicit ByteUnits(const Weights&) {}
    INLINE void values(const uint8_t* at, int, F& a, F& b) const {
        a = signed_values(load_bytes(at + 2)), b = signed_values(load_bytes(at + 18));
    }
    INLINE void codes(const uint8_t* at, int, B& a, B& b) const {
        a = load_bytes(at + 2) ^ splat_byte(0x80), b = load_bytes(at + 18) ^ splat_byte(0x80);
    }
};

#ifdef __AVX512VNNI__
static INLINE __m512i twice(const uint8_t* at) { return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)at)); }
static INLINE __m512i halves16(int low, int high) {  // shifts of the words in the lower and upper half
    return _mm512_inserti64x4(_mm512_set1_epi16(short(low)), _mm256_set1_epi16(short(high)), 1);
}
#endif

// Q4_K, Q5_K: 64 columns are two units, from the first and second halves of two groups.
template <bool Five> struct SuperUnits {
    static INLINE int64_t group(const Weights&) { return 1; }
    static INLINE float zero_code(const Weights&) { return 0; }
    static constexpr int units = 8, bytes = Five ? 176 : 144;
    static constexpr Scales scales = Scales::PAIR;
    static constexpr int order(int lane) { return lane / 64 * 64 + lane / 32 % 2 * 16 + lane / 16 % 2 * 32 + lane % 16; }
    static INLINE bool offsets(const Weights&) { return true; }
    static INLINE void factors(const Weights&, int64_t, const uint8_t* at, int64_t, int64_t count, float* scale,
                               float* offset) {
        for (int64_t i = 0; i < count; i += 8, at += bytes) {
            uint8_t packed[16];
            six_bits(at + 4, packed, packed + 8);
            float both[16];
            store(both, widen_u8(load_bytes(packed)));
            const float d = half_at(at), lowest = -half_at(at + 2);
            for (int k = 0; k < 8; k++) scale[i + k] = both[k] * d, offset[i + k] = both[8 + k] * lowest;
        }
    }
    Centred centred;
    const F base = base_of(0);
    INLINE explicit SuperUnits(const Weights&) : centred(0, 0) {}
    INLINE void values(const uint8_t* at, int unit, F& a, F& b) const {
        if constexpr (!Five) return centred(at + 16 + 16 * unit, a, b);
        const B codes = load_bytes(at + 48 + 16 * unit), nibble = splat_byte(15), sixteen = splat_byte(16);
        const B fifth = right(load_bytes(at + 16 + 16 * (unit % 2)), unit / 2 * 2);
        a = less((codes & nibble) | (left<4>(fifth) & sixteen), base);
        b = less((right<4>(codes) & nibble) | (left<3>(fifth) & sixteen), base);
    }
    // 32 columns in order: the low or high nibbles of 32 bytes.
    INLINE void codes(const uint8_t* at, int group, B& a, B& b) const {
        const uint8_t* from = at + (Five ? 48 : 16) + 32 * (group / 2);
        const B nibble = splat_byte(15), sixteen = splat_byte(16);
        a = load_bytes(from), b = load_bytes(from + 16);
        if (group % 2) a = right<4>(a), b = right<4>(b);
        a = a & nibble, b = b & nibble;
        if constexpr (!Five) return;
        const B fifth[2] = {load_bytes(at + 16), load_bytes(at + 32)};
        const auto lifted = [&](B bits) { return (group < 4 ? left<4>(right(bits, group)) : right(bits, group - 4)) & sixteen; };
        a = a | lifted(fifth[0]), b = b | lifted(fifth[1]);
    }
#ifdef __AVX512VNNI__
    INLINE Wide wide(const uint8_t* at, int quarter) const {  // 64 columns: two groups
        const __m512i both = twice(at + (Five ? 48 : 16) + 32 * quarter);
        const __m512i codes = _mm512_and_si512(_mm512_srlv_epi16(both, halves16(0, 4)), _mm512_set1_epi8(15));
        if constexpr (!Five) return {codes};
        const __m512i fifth = _mm512_srlv_epi16(twice(at + 16), halves16(2 * quarter, 2 * quarter + 1));
        const __m512i sixteen = _mm512_set1_epi8(16);
        return {_mm512_ternarylogic_epi32(codes, _mm512_slli_epi16(fifth, 4), sixteen, 0xf8)};  // a | (b & c)
    }
#endif
};

struct SixUnits {  // Q6_K: a unit has the low and high nibbles of 16 bytes, 64 columns apart
    static INLINE int64_t group(const Weights&) { return 1; }
    static INLINE float zero_code(const Weights&) { return 32; }
    static constexpr int units = 8, bytes = 210;
    static constexpr Scales scales = Scales::EACH;
    static constexpr int order(int lane) { return lane / 128 * 128 + lane / 32 % 4 * 16 + lane / 16 % 2 * 64 + lane % 16; }
    static INLINE bool offsets(const Weights&) { return false; }
    static INLINE void factors8(const uint8_t* at, int64_t count, float* scale) {
        for (int64_t i = 0; i < count; i += 8, at += bytes)
            store(scale + 2 * i, widen_i8(load_bytes(at + 192)) * splat(half_at(at + 208)));
    }
    static INLINE void factors(const Weights&, int64_t, const uint8_t* at, int64_t, int64_t count, float* scale, float*) {
        factors8(at, count, scale);
        for (int64_t i = 0; i < 2 * count; i += 16) {
            float each[16];
            memcpy(each, scale + i, sizeof each);
            for (int k = 0; k < 16; k++) scale[i + k] = each[k / 8 * 8 + k / 2 % 4 + k % 2 * 4];
        }
    }
    INLINE explicit SixUnits(const Weights&) {}
    INLINE void values(const uint8_t* at, int unit, F& a, F& b) const {
        const int half = unit / 4, part = unit % 4;
        const B low = load_bytes(at + 64 * half + 16 * part), nibble = splat_byte(15), top = splat_byte(0x30);
        const B high = load_bytes(at + 128 + 32 * half + 16 * (part % 2));
        a = widen_u8((low & nibble) | (part < 2 ? left<4>(high) & top : left<2>(high) & top)) - splat(32);
        b = widen_u8((right<4>(low) & nibble) | (part < 2 ? high & top : right<2>(high) & top)) - splat(32);
    }
    // 32 columns in order: two groups.
    INLINE void codes(const uint8_t* at, int unit, B& a, B& b) const {
        const int part = unit % 4;
        const uint8_t *low = at + 64 * (unit / 4) + 32 * (part % 2), *high = at + 128 + 32 * (unit / 4);
        const B nibble = splat_byte(15), top = splat_byte(0x30);
        const auto above = [&](B bits) {
            return (part == 0 ? left<4>(bits) : part == 1 ? left<2>(bits) : part == 2 ? bits : right<2>(bits)) & top;
        };
        a = load_bytes(low), b = load_bytes(low + 16);
        if (part > 1) a = right<4>(a), b = right<4>(b);
        a = (a & nibble) | above(load_bytes(high)), b = (b & nibble) | above(load_bytes(high + 16));
    }
#ifdef __AVX512VNNI__
    INLINE Wide wide(const uint8_t* at, int quarter) const {  // 64 columns: four groups
        const __m512i low = _mm512_loadu_si512(at + 64 * (quarter / 2)), bits = twice(at + 128 + 32 * (quarter / 2));
        const __m512i above = quarter % 2 ? _mm512_srlv_epi16(bits, halves16(0, 2)) : _mm512_sllv_epi16(bits, halves16(4, 2));
        const __m512i codes = _mm512_and_si512(quarter % 2 ? _mm512_srli_epi16(low, 4) : low, _mm512_set1_epi8(15));
        return {_mm512_ternarylogic_epi32(codes, above, _mm512_set1_epi8(0x30), 0xf8)};  // a | (b & c)
    }
#endif
};

// Whether products can process rows 32 columns at a time: codes are along rows, every 32 share a scale, and groups fill the
// row. Loops over whole groups would miss the scale of a short last group.
static bool in_units(const Weights& w) {
    const bool grid = w.kind >= AFFINE_1 && w.kind <= TABLE_8;
    if (w.mask || w.strided || w.columns % 32) return false;
    return !grid || (w.group_columns % 32 == 0 && w.columns % w.group_columns == 0);
}

}  // namespace ISA
