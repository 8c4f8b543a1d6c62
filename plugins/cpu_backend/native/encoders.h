// Encoders of GGML blocks, with the bytes of ggml's reference encoders (ggml_quantize_chunk without importance weights).
// The searches of the K types run on sixteen groups at a time, one in each lane: every lane adds in the order in which the
// reference adds, so the sums are the same to the last bit.
#pragma once
#include "simd.h"

namespace ISA {

static INLINE F nearest(F a) {  // ties to even, for magnitudes below 2^22
    const F big = splat(12582912.0f);
    return (a + big) - big;
}
static INLINE F within(F a, float low, float high) { return least(most(a, splat(low)), splat(high)); }
static INLINE float nearest(float a) { return (a + 12582912.0f) - 12582912.0f; }

// group[i] holds value i of sixteen groups that lie side by side.
template <int Size> static INLINE void across(const float* x, F group[Size]) {
    float lanes[Size][16];
    for (int lane = 0; lane < 16; lane++)
        for (int i = 0; i < Size; i++) lanes[i][lane] = x[lane * Size + i];
    for (int i = 0; i < Size; i++) group[i] = load(lanes[i]);
}

template <int Size> static INLINE void back(const F group[Size], uint8_t* codes) {
    for (int i = 0; i < Size; i++) {
        const B bytes = narrow(group[i]);
        uint8_t lanes[16];
        memcpy(lanes, &bytes, 16);
        for (int lane = 0; lane < 16; lane++) codes[lane * Size + i] = lanes[lane];
    }
}

struct Fit {  // of sixteen groups: scales, minima (as they are subtracted), codes
    F scale, minimum;
    F codes[32];
};

// Scale and minimum of 32 values of each lane: the first guess, then Steps + 1 others, each solved for the least weighted
// squares. A better one also moves the minimum that the next guesses start from, as in the reference.
template <int Most, int Steps> static INLINE void fit_with_minimum(const F x[32], float first, Fit& fit) {
    F squares = splat(0);
    for (int i = 0; i < 32; i++) squares = squares + x[i] * x[i];
    const F average = root(squares / splat(32));
    F weight[32];
    for (int i = 0; i < 32; i++) weight[i] = average + absolute(x[i]);

    F low = x[0], high = x[0], sum_w = weight[0], sum_x = sum_w * x[0];
    for (int i = 1; i < 32; i++) {
        low = least(x[i], low), high = most(x[i], high);
        sum_w = sum_w + weight[i], sum_x = sum_x + weight[i] * x[i];
    }
    low = least(low, splat(0));
    const M wide = low < high;  // lanes whose values are not all alike
    F inverse = splat(Most) / (high - low), scale = splat(1) / inverse, best = splat(0);
    F best_inverse = inverse, best_low = low;
    for (int i = 0; i < 32; i++) {
        const F code = within(nearest(inverse * (x[i] - low)), 0, Most), miss = scale * code + low - x[i];
        best = best + weight[i] * (miss * miss);
    }
    for (int step = 0; step <= Steps; step++) {
        inverse = splat(first + 0.1f * float(step) + Most) / (high - low);
        F codes[32], sum_l = splat(0), sum_l2 = splat(0), sum_xl = splat(0);
        for (int i = 0; i < 32; i++) {
            codes[i] = within(nearest(inverse * (x[i] - low)), 0, Most);
            const F weighted = weight[i] * codes[i];
            sum_l = sum_l + weighted, sum_l2 = sum_l2 + weighted * codes[i], sum_xl = sum_xl + weighted * x[i];
        }
        const F determinant = sum_w * sum_l2 - sum_l * sum_l;
        F this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        F this_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        const M above = splat(0) < this_low;
        this_scale = choose(above, sum_xl / sum_l2, this_scale), this_low = choose(above, splat(0), this_low);
        F error = splat(0);
        for (int i = 0; i < 32; i++) {
            const F miss = this_scale * codes[i] + this_low - x[i];
            error = error + weight[i] * (miss * miss);
        }
        const M better = (splat(0) < determinant) & (error < best);
        best_inverse = choose(better, inverse, best_inverse), best_low = choose(better, low, best_low);
        best = choose(better, error, best), scale = choose(better, this_scale, scale), low = choose(better, this_low, low);
    }
    fit.scale = choose(wide, scale, splat(0));
    fit.minimum = splat(0) - low;
    for (int i = 0; i < 32; i++)
        fit.codes[i] = choose(wide, within(nearest(best_inverse * (x[i] - best_low)), 0, Most), splat(0));
}

static INLINE void store_half(uint8_t* at, float value) {
    const uint16_t half = float_to_half(value);
    memcpy(at, &half, 2);
}

// The header of a Q4_K or Q5_K block, and its codes under the scales that the header holds.
template <int Most>
static INLINE void finish_block(const float* x, const float* scale, const float* minimum, uint8_t* out, uint8_t* codes) {
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
    for (int j = 0; j < 8; j++) {
        const float step = d * float(scales[j]), lift = dmin * float(minima[j]);
        if (step == 0) continue;  // the codes of the search stay
        for (int i = 32 * j; i < 32 * j + 32; i += 16) {
            const B bytes = narrow(within(nearest((load(x + i) + splat(lift)) / splat(step)), 0, Most));
            memcpy(codes + i, &bytes, 16);
        }
    }
}

static INLINE void pack_nibbles(const uint8_t* codes, uint8_t* out) {
    for (int at = 0; at < 256; at += 64)
        for (int i = 0; i < 32; i++) *out++ = uint8_t((codes[at + i] & 15) | (codes[at + 32 + i] & 15) << 4);
}

static INLINE void pack_block(const uint8_t* codes, uint8_t* out, bool five) {
    if (five) {
        for (int i = 0; i < 32; i++) {
            out[16 + i] = 0;
            for (int j = 0; j < 8; j++) out[16 + i] |= uint8_t(codes[32 * j + i] >> 4 << j);
        }
    }
    pack_nibbles(codes, out + (five ? 48 : 16));
}

// Two blocks at a time: sixteen groups of 32. A last single block is encoded beside a copy of itself.
template <int Most, int Steps> static void encode_with_minima(const float* x, uint8_t* out, int64_t blocks, float first) {
    constexpr int size = Most == 31 ? 176 : 144;
    for (int64_t block = 0; block < blocks; block += 2) {
        const int count = blocks - block < 2 ? 1 : 2;
        float values[512], scale[16], minimum[16];
        for (int k = 0; k < 2; k++) memcpy(values + 256 * k, x + 256 * (block + (k < count ? k : 0)), 1024);
        uint8_t codes[512];
        F group[32];
        Fit fit;
        across<32>(values, group);
        fit_with_minimum<Most, Steps>(group, first, fit);
        back<32>(fit.codes, codes);
        store(scale, fit.scale), store(minimum, fit.minimum);
        for (int k = 0; k < count; k++) {
            uint8_t* to = out + (block + k) * size;
            finish_block<Most>(values + 256 * k, scale + 8 * k, minimum + 8 * k, to, codes + 256 * k);
            pack_block(codes + 256 * k, to, Most == 31);
        }
    }
}

// Sixteen groups of 16 with a scale each, codes -32..31 around zero.
static void encode_q6_k(const float* x, uint8_t* out, int64_t blocks) {
    constexpr float nothing = 1e-15f;
    for (int64_t block = 0; block < blocks; block++, x += 256, out += 210) {
        F v[16], largest = splat(0), peak = splat(0);
        across<16>(x, v);
        for (int i = 0; i < 16; i++) {
            const M larger = peak < absolute(v[i]);
            peak = choose(larger, absolute(v[i]), peak), largest = choose(larger, v[i], largest);
        }
        F best_inverse = splat(-32) / largest, scale = splat(0), best = splat(0);
        for (int step = 0; step <= 18; step++) {  // the plain guess first, then up to 0.9 of a step off it
            const int tenths = step == 0 ? 0 : step <= 9 ? step - 10 : step - 9;
            const F inverse = splat(-(32 + 0.1f * float(tenths))) / largest;
            F sum_lx = splat(0), sum_l2 = splat(0);
            for (int i = 0; i < 16; i++) {
                const F code = within(nearest(inverse * v[i]), -32, 31), weight = v[i] * v[i];
                sum_lx = sum_lx + weight * v[i] * code, sum_l2 = sum_l2 + weight * code * code;
            }
            const M some = splat(0) < sum_l2;
            const F solved = choose(some, sum_lx / sum_l2, splat(0));
            if (step == 0) {
                scale = solved, best = solved * sum_lx;
                continue;
            }
            const M better = some & (best * sum_l2 < sum_lx * sum_lx);
            best_inverse = choose(better, inverse, best_inverse);
            scale = choose(better, solved, scale), best = choose(better, solved * sum_lx, best);
        }
        const M empty = peak < splat(nothing);
        scale = choose(empty, splat(0), scale);
        uint8_t codes[256];
        for (int i = 0; i < 16; i++)
            v[i] = choose(empty, splat(0), within(nearest(best_inverse * v[i]), -32, 31) + splat(32));
        back<16>(v, codes);
        float scales[16], widest = 0;
        store(scales, scale);
        for (float each : scales)
            if ((each < 0 ? -each : each) > (widest < 0 ? -widest : widest)) widest = each;
        memset(out, 0, 210);
        if ((widest < 0 ? -widest : widest) < nothing) continue;
        const float inverse = -128.0f / widest;
        store_half(out + 208, 1 / inverse);
        const float d = half_to_float(read<uint16_t>(out + 208));
        for (int j = 0; j < 16; j++) {
            const float rounded = nearest(inverse * scales[j]);
            const int8_t stored = int8_t(rounded < 127 ? rounded : 127);
            out[192 + j] = uint8_t(stored);
            const float step = d * float(stored);
            if (step == 0) continue;
            const B bytes = narrow(within(nearest(load(x + 16 * j) / splat(step)), -32, 31) + splat(32));
            memcpy(codes + 16 * j, &bytes, 16);
        }
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 32; i++) {
                const uint8_t* c = codes + 128 * half + i;
                out[64 * half + i] = uint8_t((c[0] & 15) | (c[64] & 15) << 4);
                out[64 * half + 32 + i] = uint8_t((c[32] & 15) | (c[96] & 15) << 4);
                out[128 + 32 * half + i] = uint8_t(c[0] >> 4 | c[32] >> 4 << 2 | c[64] >> 4 << 4 | c[96] >> 4 << 6);
            }
    }
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
