// Where the sixteen values of a decoder go: into memory, or straight into a sum with activations.
// `put(i, v)` takes values i..i+15 of the range being decoded, `put(i, v, n)` only the first n of them.
#pragma once
#include "simd.h"

namespace ISA {

template <class Sink> static INLINE void put_some(Sink& sink, int64_t i, F v, int64_t count) {
    if (count >= 16) sink.put(i, v);
    else sink.put(i, v, int(count));
}

struct Store {
    float* out;
    INLINE void put(int64_t i, F v) { store(out + i, v); }
    INLINE void put(int64_t i, F v, int count) {
        float lanes[16];
        store(lanes, v);
        memcpy(out + i, lanes, size_t(count) * sizeof *out);
    }
};

// Four sums that take turns, because each fma waits for the one before it.
struct Dot {
    const float* x;
    F a = splat(0), b = a, c = a, d = a;
    INLINE explicit Dot(const float* x) : x(x) {}
    INLINE void put(int64_t i, F v) {
        const F next = fma(v, load(x + i), a);
        a = b, b = c, c = d, d = next;
    }
    // Lanes after the last may hold anything, NaN too, so they are made zero and not multiplied by it.
    INLINE void put(int64_t i, F v, int count) {
        float lanes[16], some[16] = {};
        store(lanes, v);
        for (int lane = count; lane < 16; lane++) lanes[lane] = 0;
        memcpy(some, x + i, size_t(count) * sizeof *x);
        a = fma(load(lanes), load(some), a);
    }
    INLINE float result() const { return sum((a + b) + (c + d)); }
};

}  // namespace ISA
