// Thirty-two lanes for sums in a fixed order: interleaved groups, one per lane.
#pragma once
#include "simd.h"

namespace ISA {

static INLINE F within(F a, float low, float high) { return least(most(a, splat(low)), splat(high)); }
static INLINE float nearest(float a) { return (a + 12582912.0f) - 12582912.0f; }

// Two halves hide the latency of each other's sums.
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

// group[i] holds value i of thirty-two interleaved groups.
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

}  // namespace ISA
