// Encoders of GGML blocks, with the bytes of ggml's reference encoders (ggml_quantize_chunk without importance weights).
// The searches of the K types run on sixteen groups at a time, one in each lane: every lane adds in the order in which the
// reference adds, so the sums are the same to the last bit.
#pragma once
#include "simd.h"

namespace ISA {

static INLINE F within(F a, float low, float high) { return least(most(a, splat(low)), splat(high)); }
static INLINE float nearest(float a) { return (a + 12582912.0f) - 12582912.0f; }

// Thirty-two lanes: sums in one half are done while those in the other wait for each other.
struct W {
    F a, b;
    W() = default;
    INLINE W(F a, F b) : a(a), b(b) {}
    INLINE W(F both) : a(both), b(both) {}
};
struct WM { M a, b; };
static INLINE W operator+(W x, W y) { return {x.a + y.a, x.b + y.b}; }
static INLINE W operator-(W x, W y) { return {x.a - y.a, x.b - y.b}; }
static INLINE W operator*(W x, W y) { return {x.a * y.a, x.b * y.b}; }
static INLINE W operator/(W x, W y) { return {x.a / y.a, x.b / y.b}; }
static INLINE WM operator<(W x, W y) { return {x.a < y.a, x.b < y.b}; }
static INLINE WM operator&(WM x, WM y) { return {x.a & y.a, x.b & y.b}; }
static INLINE W choose(WM where, W x, W y) { return {choose(where.a, x.a, y.a), choose(where.b, x.b, y.b)}; }
static INLINE W least(W x, W y) { return {least(x.a, y.a), least(x.b, y.b)}; }
static INLINE W most(W x, W y) { return {most(x.a, y.a), most(x.b, y.b)}; }
static INLINE W absolute(W x) { return {absolute(x.a), absolute(x.b)}; }
static INLINE W root(W x) { return {root(x.a), root(x.b)}; }
static INLINE W nearest(W x) { return {nearest(x.a), nearest(x.b)}; }
static INLINE W within(W x, float low, float high) { return {within(x.a, low, high), within(x.b, low, high)}; }
static INLINE void store(float* at, W x) { store(at, x.a), store(at + 16, x.b); }

// group[i] holds value i of thirty-two groups that lie side by side.
template <int Size> static INLINE void across(const float* x, W group[Size]) {
    for (int i = 0; i < Size; i += 16) {
        F a[16], b[16];
        UNROLL for (int k = 0; k < 16; k++) a[k] = load(x + k * Size + i);
        transpose(a);
        UNROLL for (int k = 0; k < 16; k++) b[k] = load(x + (k + 16) * Size + i);
        transpose(b);
        UNROLL for (int k = 0; k < 16; k++) group[i + k] = {a[k], b[k]};
    }
}

template <int Size> static void back(const W group[Size], uint8_t* codes) {
    for (int i = 0; i < Size; i++) {
        const B bytes[2] = {narrow(group[i].a), narrow(group[i].b)};
        uint8_t lanes[32];
        memcpy(lanes, bytes, 32);
        for (int lane = 0; lane < 32; lane++) codes[lane * Size + i] = lanes[lane];
    }
}

struct Fit {  // of thirty-two groups
    W scale, low;
    W best_inverse, best_low;  // what the best codes are found with
    WM wide;                   // lanes whose values are not all alike
};

// Scale and minimum of 32 values of each lane: the first guess, then Steps + 1 others, each solved for the least weighted
// squares. A better one also moves the minimum that the next guesses start from, as in the reference.
template <int Most, int Steps> static INLINE void fit_with_minimum(const W x[32], float first, Fit& fit) {
    W squares = splat(0);
    for (int i = 0; i < 32; i++) squares = squares + x[i] * x[i];
    const W average = root(squares / splat(32));
    W weight[32];
    for (int i = 0; i < 32; i++) weight[i] = average + absolute(x[i]);

    W low = x[0], high = x[0], sum_w = weight[0], sum_x = sum_w * x[0];
    for (int i = 1; i < 32; i++) {
        low = least(x[i], low), high = most(x[i], high);
        sum_w = sum_w + weight[i], sum_x = sum_x + weight[i] * x[i];
    }
    low = least(low, splat(0));
    fit.wide = low < high;
    W inverse = splat(Most) / (high - low), scale = splat(1) / inverse, best = splat(0);
    W best_inverse = inverse, best_low = low;
    for (int i = 0; i < 32; i++) {
        const W miss = scale * within(nearest(inverse * (x[i] - low)), 0, Most) + low - x[i];
        best = best + weight[i] * (miss * miss);
    }
    for (int step = 0; step <= Steps; step++) {
        inverse = splat(first + 0.1f * float(step) + Most) / (high - low);
        W codes[32], sum_l = splat(0), sum_l2 = splat(0), sum_xl = splat(0);
        for (int i = 0; i < 32; i++) {
            codes[i] = within(nearest(inverse * (x[i] - low)), 0, Most);
            const W weighted = weight[i] * codes[i];
            sum_l = sum_l + weighted, sum_l2 = sum_l2 + weighted * codes[i], sum_xl = sum_xl + weighted * x[i];
        }
        const W determinant = sum_w * sum_l2 - sum_l * sum_l;
        W this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        W this_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        const WM above = splat(0) < this_low;
        this_scale = choose(above, sum_xl / sum_l2, this_scale), this_low = choose(above, splat(0), this_low);
        W error = splat(0);
        for (int i = 0; i < 32; i++) {
            const W miss = this_scale * codes[i] + this_low - x[i];
            error = error + weight[i] * (miss * miss);
        }
        const WM better = (splat(0) < determinant) & (error < best);
        best_inverse = choose(better, inverse, best_inverse), best_low = choose(better, low, best_low);
        best = choose(better, error, best), scale = choose(better, this_scale, scale), low = choose(better, this_low, low);
    }
    fit.scale = choose(fit.wide, scale, splat(0)), fit.low = low;
    fit.best_inverse = best_inverse, fit.best_low = best_low;
}

// The codes of the search, of which most are found again under the scales that a block holds.
template <int Most> static void searched_codes(const W x[32], const Fit& fit, uint8_t* codes) {
    W found[32];
    for (int i = 0; i < 32; i++) found[i] = choose(fit.wide, within(nearest(fit.best_inverse * (x[i] - fit.best_low)), 0, Most), splat(0));
    back<32>(found, codes);
}

static INLINE void store_half(uint8_t* at, float value) {
    const uint16_t half = float_to_half(value);
    memcpy(at, &half, 2);
}

// The header of a Q4_K or Q5_K block, and its codes under the scales that the header holds; where one of those is 0, the codes
// of the search stay.
template <int Most, class Searched>
static INLINE void finish_block(const float* x, const float* scale, const float* minimum, uint8_t* out, uint8_t* codes,
                                Searched searched) {
    float max_scale = 0, max_minimum = 0;
    for (int j = 0; j < 8; j++) {
        if (scale[j] > max_scale) max_scale = scale[j];
        if (minimum[j] > max_minimum) max_minimum = minimum[j];
    }
    const float inverse_scale = max_scale > 0 ? 63.0f / max_scale : 0, inverse_minimum = max_minimum > 0 ? 63.0f / max_minimum : 0;
    store_half(out, max_scale / 63.0f), store_half(out + 2, max_minimum / 63.0f);
    uint8_t scales[8], minima[8], *packed = out + 4;
    for (int j = 0; j < 8; j++) {
        const uint8_t s = uint8_t(int(nearest(inverse_scale * scale[j]))), m = uint8_t(int(nearest(inverse_minimum * minimum[j])));
        scales[j] = s < 63 ? s : 63, minima[j] = m < 63 ? m : 63;
    }
    for (int j = 0; j < 4; j++) {
        packed[j] = uint8_t(scales[j] | scales[j + 4] >> 4 << 6);
        packed[j + 4] = uint8_t(minima[j] | minima[j + 4] >> 4 << 6);
        packed[j + 8] = uint8_t((scales[j + 4] & 15) | (minima[j + 4] & 15) << 4);
    }
    const float d = half_to_float(read<uint16_t>(out)), dmin = half_to_float(read<uint16_t>(out + 2));
    if (d == 0 || memchr(scales, 0, 8)) searched(codes);
    for (int j = 0; j < 8; j++) {
        const float step = d * float(scales[j]), lift = dmin * float(minima[j]);
        for (int i = 32 * j; step != 0 && i < 32 * j + 32; i += 16) {
            const B bytes = narrow(within(nearest((load(x + i) + splat(lift)) / splat(step)), 0, Most));
            memcpy(codes + i, &bytes, 16);
        }
    }
}

// 16 bytes: the low nibbles of `low`, and those of `high` above them.
static INLINE void pack_nibbles(const uint8_t* low, const uint8_t* high, uint8_t* out) {
    const B packed = (load_bytes(low) & splat_byte(15)) | (left<4>(load_bytes(high)) & splat_byte(0xf0));
    memcpy(out, &packed, 16);
}

static INLINE void pack_block(const uint8_t* codes, uint8_t* out, bool five) {
    for (int i = 0; five && i < 32; i += 16) {
        B fifth = splat_byte(0);
        for (int j = 7; j >= 0; j--) fifth = left<1>(fifth) | (right<4>(load_bytes(codes + 32 * j + i)) & splat_byte(1));
        memcpy(out + 16 + i, &fifth, 16);
    }
    out += five ? 48 : 16;
    for (int at = 0; at < 256; at += 64)
        for (int i = 0; i < 32; i += 16, out += 16) pack_nibbles(codes + at + i, codes + at + 32 + i, out);
}

// `Count` blocks of 256 values at a time; of a last panel that is not whole, the rest is what the one before held.
template <int Count, class Function> static INLINE void panels(const float* x, int64_t blocks, Function function) {
    float rest[256 * Count] = {};
    for (; blocks > 0; blocks -= Count, x += 256 * Count) {
        const int count = blocks < Count ? int(blocks) : Count;
        if (count < Count) memcpy(rest, x, size_t(count) * 1024);
        function(count < Count ? rest : x, count);
    }
}

template <int Most, int Steps> static void encode_with_minima(const float* x, uint8_t* out, int64_t blocks, float first) {
    constexpr int size = Most == 31 ? 176 : 144;
    panels<4>(x, blocks, [&](const float* x, int count) {
        W group[32];
        Fit fit;
        across<32>(x, group);
        fit_with_minimum<Most, Steps>(group, first, fit);
        float scale[32], minimum[32];
        store(scale, fit.scale), store(minimum, splat(0) - fit.low);
        for (int k = 0; k < count; k++, out += size) {
            uint8_t codes[256];
            finish_block<Most>(x + 256 * k, scale + 8 * k, minimum + 8 * k, out, codes, [&](uint8_t* to) {
                uint8_t all[1024];
                searched_codes<Most>(group, fit, all);
                memcpy(to, all + 256 * k, 256);
            });
            pack_block(codes, out, Most == 31);
        }
    });
}

constexpr float nothing = 1e-15f;  // groups of smaller magnitudes are zeros

struct FitAround {  // of thirty-two groups
    W scale = splat(0), best = splat(-1), best_inverse;
    WM empty;
};

struct Around {  // 16 values of each lane
    W value[16], weight[16], weighted[16], largest;
};

// One guess of a scale, `tenths` of a step off the plain one. (What is less than half a step below -32 needs no limit there.)
template <bool Below> static INLINE void attempt(const Around& v, int tenths, FitAround& fit) {
    const W inverse = splat(-(32 + 0.1f * float(tenths))) / v.largest;
    W sum_lx = splat(0), sum_l2 = splat(0);
    for (int i = 0; i < 16; i++) {
        W code = least(nearest(inverse * v.value[i]), splat(31));
        if (Below) code = most(code, splat(-32));
        sum_lx = sum_lx + v.weighted[i] * code, sum_l2 = sum_l2 + v.weight[i] * code * code;
    }
    const W solved = sum_lx / sum_l2;
    const WM better = (splat(0) < sum_l2) & (fit.best * sum_l2 < sum_lx * sum_lx);
    fit.best_inverse = choose(better, inverse, fit.best_inverse);
    fit.scale = choose(better, solved, fit.scale), fit.best = choose(better, solved * sum_lx, fit.best);
}

// The plain guess of scales for codes -32..31 around zero, and others up to 0.9 of a step off it.
static INLINE void fit_around_zero(Around& v, FitAround& fit) {
    W peak = splat(0);
    v.largest = splat(0);
    for (int i = 0; i < 16; i++) {
        const W value = v.value[i];
        const WM larger = peak < absolute(value);
        peak = choose(larger, absolute(value), peak), v.largest = choose(larger, value, v.largest);
        v.weight[i] = value * value, v.weighted[i] = v.weight[i] * value;
    }
    fit.best_inverse = splat(-32) / v.largest;
    attempt<false>(v, 0, fit);
    fit.best = most(fit.best, splat(0));  // now only what is better
    for (int tenths = -9; tenths < 5; tenths += tenths == -1 ? 2 : 1) attempt<false>(v, tenths, fit);
    for (int tenths = 5; tenths < 10; tenths++) attempt<true>(v, tenths, fit);
    fit.empty = peak < splat(nothing);
    fit.scale = choose(fit.empty, splat(0), fit.scale);
}

static INLINE void pack_q6_k(const uint8_t* codes, uint8_t* out) {
    for (int half = 0; half < 2; half++, codes += 128)
        for (int i = 0; i < 32; i += 16) {
            const uint8_t* c = codes + i;
            pack_nibbles(c, c + 64, out + 64 * half + i), pack_nibbles(c + 32, c + 96, out + 64 * half + 32 + i);
            const B high = (right<4>(load_bytes(c)) & splat_byte(3)) | (right<2>(load_bytes(c + 32)) & splat_byte(12)) |
                           (load_bytes(c + 64) & splat_byte(48)) | (left<2>(load_bytes(c + 96)) & splat_byte(192));
            memcpy(out + 128 + 32 * half + i, &high, 16);
        }
}

static void encode_q6_k(const float* x, uint8_t* out, int64_t blocks) {
    panels<2>(x, blocks, [&](const float* x, int count) {
        Around v;
        FitAround fit;
        across<16>(x, v.value);
        fit_around_zero(v, fit);
        float all_scales[32];
        store(all_scales, fit.scale);
        for (int k = 0; k < count; k++, out += 210) {
            const float *from = x + 256 * k, *scales = all_scales + 16 * k;
            const uint32_t magnitude = as_bits(peak(absolute(load(scales))));
            uint32_t widest = magnitude;
            for (int j = 15; j >= 0; j--) widest = (as_bits(scales[j]) & 0x7fffffff) == magnitude ? as_bits(scales[j]) : widest;
            if (as_float(magnitude) < nothing) {
                memset(out, 0, 210);
                continue;
            }
            const float inverse = -128.0f / as_float(widest);
            store_half(out + 208, 1 / inverse);
            const float d = half_to_float(read<uint16_t>(out + 208));
            const B stored = narrow(least(nearest(load(scales) * splat(inverse)), splat(127)));
            memcpy(out + 192, &stored, 16);
            uint8_t codes[512];
            if (d == 0 || memchr(out + 192, 0, 16)) {  // the codes of the search stay where a scale is 0
                W found[16];
                for (int i = 0; i < 16; i++) found[i] = choose(fit.empty, splat(0), within(nearest(fit.best_inverse * v.value[i]), -32, 31) + splat(32));
                back<16>(found, codes);
                memmove(codes, codes + 256 * k, 256);
            }
            for (int j = 0; j < 16; j++) {
                const float step = d * float(int8_t(out[192 + j]));
                if (step == 0) continue;
                const B bytes = narrow(within(nearest(load(from + 16 * j) / splat(step)), -32, 31) + splat(32));
                memcpy(codes + 16 * j, &bytes, 16);
            }
            pack_q6_k(codes, out);
        }
    });
}

// Half away from zero, exactly where adding 0.5 would not be.
static INLINE F rounded_away(F a) {
    const F part = whole(a), rest = a - part;
    return part + whole(rest + rest);
}

static void encode_q8_0(const float* x, uint8_t* out, int64_t blocks) {
    for (int64_t block = 0; block < blocks; block++, x += 32, out += 34) {
        const F a = load(x), b = load(x + 16);
        const float step = peak(most(absolute(a), absolute(b))) / 127.0f, inverse = step == 0 ? 0 : 1 / step;
        store_half(out, step);
        const B low = narrow(rounded_away(a * splat(inverse))), high = narrow(rounded_away(b * splat(inverse)));
        memcpy(out + 2, &low, 16), memcpy(out + 18, &high, 16);
    }
}

static INLINE void store_nibbles(uint8_t* at, F low, F high) {
    const B packed = narrow(least(low, splat(15))) | left<4>(narrow(least(high, splat(15))));
    memcpy(at, &packed, 16);
}

static void encode_q4_0(const float* x, uint8_t* out, int64_t blocks) {
    for (int64_t block = 0; block < blocks; block++, x += 32, out += 18) {
        const F a = load(x), b = load(x + 16), none = splat(0);
        const float above = peak(most(a, b)), below = peak(most(none - a, none - b));
        float value = above > below ? above : -below;  // the largest magnitude; of equals the first
        if (above == below && above == 0) value = 0;
        else if (above == below)
            for (int i = 31; i >= 0; i--) value = x[i] == above || -x[i] == above ? x[i] : value;
        const float step = value / -8.0f, inverse = step == 0 ? 0 : 1 / step;
        store_half(out, step);
        store_nibbles(out + 2, a * splat(inverse) + splat(8.5f), b * splat(inverse) + splat(8.5f));
    }
}

static void encode_q4_1(const float* x, uint8_t* out, int64_t blocks) {
    for (int64_t block = 0; block < blocks; block++, x += 32, out += 20) {
        const F a = load(x), b = load(x + 16), none = splat(0);
        float low = -peak(none - least(a, b));
        if (low == 0)  // of zeros with either sign, the first
            for (int i = 31; i >= 0; i--) low = x[i] == 0 ? x[i] : low;
        const float high = peak(most(a, b));
        const float step = high > low ? (high - low) / 15.0f : 0, inverse = step == 0 ? 0 : 1 / step;
        store_half(out, step), store_half(out + 2, low);
        const F base = splat(low), by = splat(inverse), up = splat(0.5f);
        store_nibbles(out + 4, (a - base) * by + up, (b - base) * by + up);
    }
}

static INLINE bool finite(F a) { return all(absolute(a) < splat(__builtin_inff())); }
static INLINE bool finite(const float* x, int64_t count) {
    F rest = splat(0);  // a value less itself is 0, or NaN for what is not finite
    for (int64_t i = 0; i < count; i += 16) rest = rest + (load(x + i) - load(x + i));
    return finite(rest);
}

// By number of the block type in weights.h; false where a value is not finite (its block is then of no use).
static bool encode(int32_t kind, const float* x, uint8_t* out, int64_t blocks) {
    constexpr int64_t panel = 16;  // blocks that stay in the nearest cache between the check and the search
    const bool wide = kind >= Q2_K;
    const int64_t elements = wide ? 256 : 32;
    const int64_t bytes = kind == Q4_0 ? 18 : kind == Q4_1 ? 20 : kind == Q8_0 ? 34 : kind == Q4_K ? 144 : kind == Q5_K ? 176 : 210;
    for (int64_t at = 0; at < blocks; at += panel) {
        const int64_t count = blocks - at < panel ? blocks - at : panel;
        const float* from = x + at * elements;
        uint8_t* to = out + at * bytes;
        if (!finite(from, count * elements)) return false;
        switch (kind) {
            case Q4_0: encode_q4_0(from, to, count); break;
            case Q4_1: encode_q4_1(from, to, count); break;
            case Q8_0: encode_q8_0(from, to, count); break;
            case Q4_K: encode_with_minima<15, 20>(from, to, count, -1.0f); break;
            case Q5_K: encode_with_minima<31, 15>(from, to, count, -0.5f); break;
            default: encode_q6_k(from, to, count);
        }
    }
    return true;
}

}  // namespace ISA
