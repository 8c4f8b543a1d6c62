// Destinations of decoded values: memory, or a sum with activations.
// `put(i, v)` receives values (floats, or the sink's own Value) i..i+15 of the decoded range, `put(i, v, n)` only the first n.
#pragma once
#include "simd.h"
#include "weights.h"

namespace ISA {

template <class Sink, class Value> static INLINE void put_some(Sink& sink, int64_t i, Value v, int64_t count) {
    if (count >= 16) sink.put(i, v);
    else sink.put(i, v, int(count));
}

template <class Value, class T> static INLINE void put_first(T* to, Value v, int count) {
    T lanes[16];
    store(lanes, v);
    memcpy(to, lanes, size_t(count) * sizeof *to);
}

struct Store {
    static constexpr int32_t type = F32;
    using Value = F;
    float* out;
    bool past;  // the caches
    INLINE F rounded(F v) const { return v; }
    INLINE F widened(F v) const { return v; }  // for values from bf16
    INLINE void put(int64_t i, F v) { past ? stream(out + i, v) : store(out + i, v); }
    INLINE void put(int64_t i, F a, F b) { put(i, a), put(i + 16, b); }
    INLINE void put(int64_t i, F v, int count) { put_first(out + i, v, count); }
};

// Half: f16, not bf16. Subnormals: values may be subnormal.
template <bool Half, bool Subnormals> struct Store16 {
    static constexpr int32_t type = Half ? F16 : BF16;
    using Value = Halves;
    uint16_t* out;
    bool past;
    template <class... Fs> static INLINE auto rounded(Fs... v) {
        if constexpr (Half) return to_half(v...);
        else return to_bf16<Subnormals>(v...);
    }
    template <class... Fs> static INLINE auto widened(Fs... v) {
        if constexpr (Half) return to_half(v...);
        else return upper(v...);
    }
    template <class Some> INLINE void put(int64_t i, Some v) { past ? stream(out + i, v) : store(out + i, v); }
    INLINE void put(int64_t i, F v) { put(i, rounded(v)); }
    INLINE void put(int64_t i, F a, F b) { put(i, rounded(a, b)); }
    INLINE void put(int64_t i, Halves a, Halves b) { put(i, a), put(i + 16, b); }
    INLINE void put(int64_t i, Halves v, int count) { put_first(out + i, v, count); }
    INLINE void put(int64_t i, F v, int count) { put(i, rounded(v), count); }
};

// Four independent sums to hide the latency of fma.
struct Dot {
    static constexpr int32_t type = F32;
    using Value = F;
    const float* x;
    F a = splat(0), b = a, c = a, d = a;
    INLINE explicit Dot(const float* x) : x(x) {}
    INLINE F rounded(F v) const { return v; }
    INLINE F widened(F v) const { return v; }
    INLINE void put(int64_t i, F v) {
        const F next = fma(v, load(x + i), a);
        a = b, b = c, c = d, d = next;
    }
    INLINE void put(int64_t i, F first, F second) { put(i, first), put(i + 16, second); }
    // Unused lanes may hold NaN, so they are zeroed instead of multiplied by zero.
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
