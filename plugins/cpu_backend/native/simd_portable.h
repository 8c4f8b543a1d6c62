// Sixteen lanes as GCC and Clang vectors, which the compiler lowers to the target (SSE2, NEON).
#pragma once

namespace ISA {

static constexpr bool has_lookup = false, has_expand = false;

typedef float Floats __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Shorts __attribute__((vector_size(32)));
typedef int32_t Integers __attribute__((vector_size(64)));
typedef int8_t Signed __attribute__((vector_size(16)));
typedef uint8_t Bytes __attribute__((vector_size(16)));

struct F { Floats v; };
struct B { Bytes v; };
struct M { Integers v; };  // which lanes

static INLINE F load(const void* at) { return read<F>(at); }
static INLINE void store(float* at, F a) { memcpy(at, &a, sizeof a); }
static INLINE void stream(float* at, F a) { store(at, a); }
static INLINE F splat(float a) { return {a - Floats{}}; }  // keeps the sign of a zero
static INLINE F operator+(F a, F b) { return {a.v + b.v}; }
static INLINE F operator-(F a, F b) { return {a.v - b.v}; }
static INLINE F operator*(F a, F b) { return {a.v * b.v}; }
static INLINE F fma(F a, F b, F c) { return {a.v * b.v + c.v}; }
static INLINE F operator/(F a, F b) { return {a.v / b.v}; }
static INLINE M operator<(F a, F b) { return {a.v < b.v}; }
static INLINE M operator&(M a, M b) { return {a.v & b.v}; }
static INLINE F choose(M where, F a, F b) { return {(Floats)((where.v & (Integers)a.v) | (~where.v & (Integers)b.v))}; }
static INLINE F least(F a, F b) { return choose(a < b, a, b); }
static INLINE F most(F a, F b) { return choose(b < a, a, b); }
static INLINE F absolute(F a) { return {(Floats)((Words)a.v & 0x7fffffff)}; }
static INLINE F root(F a) {
    for (int i = 0; i < 16; i++) a.v[i] = __builtin_sqrtf(a.v[i]);
    return a;
}
static INLINE F nearest(F a) { return {(a.v + 12582912.0f) - 12582912.0f}; }  // ties to even, for magnitudes below 2^22
static INLINE F whole(F a) { return {__builtin_convertvector(__builtin_convertvector(a.v, Integers), Floats)}; }
static INLINE bool all(M a) {
    int32_t every = -1;
    for (int i = 0; i < 16; i++) every &= a.v[i];
    return every;
}
static INLINE B narrow(F a) { return {(Bytes)__builtin_convertvector(__builtin_convertvector(a.v, Integers), Signed)}; }
static INLINE float peak(F a) {
    float most = a.v[0];
    for (int i = 1; i < 16; i++) most = a.v[i] > most ? a.v[i] : most;
    return most;
}
static INLINE float sum(F a) {
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) a.v[i] += a.v[i + width];
    return a.v[0];
}

static INLINE B load_bytes(const void* at) { return read<B>(at); }
static INLINE B pair(uint64_t low, uint64_t high) {
    const uint64_t both[2] = {low, high};
    return read<B>(both);
}
static INLINE B splat_byte(uint8_t a) { return {Bytes{} + a}; }
static INLINE B counting() { return {Bytes{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}; }
static INLINE B operator&(B a, B b) { return {a.v & b.v}; }
static INLINE B operator|(B a, B b) { return {a.v | b.v}; }
static INLINE B operator^(B a, B b) { return {a.v ^ b.v}; }
template <int By> static INLINE B right(B a) { return {a.v >> By}; }
static INLINE B right(B a, int by) { return {a.v >> uint8_t(by)}; }
template <int By> static INLINE B left(B a) { return {a.v << By}; }

// 32 adjacent 4-bit codes.
static INLINE B join_nibbles(B low, B high) {
    return pair(gather8<4>(read<uint64_t>(&low)) | gather8<4>(read<uint64_t>((uint8_t*)&low + 8)) << 32,
                gather8<4>(read<uint64_t>(&high)) | gather8<4>(read<uint64_t>((uint8_t*)&high + 8)) << 32);
}

static INLINE B interleave_low(B a, B b) {
    return {__builtin_shufflevector(a.v, b.v, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)};
}
static INLINE B interleave_high(B a, B b) {
    return {__builtin_shufflevector(a.v, b.v, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)};
}

static INLINE F widen_u8(B a) { return {__builtin_convertvector(a.v, Floats)}; }
static INLINE F widen_i8(B a) { return {__builtin_convertvector((Signed)a.v, Floats)}; }
static INLINE F load_bf16(const void* at) {
    return {(Floats)(__builtin_convertvector(read<Shorts>(at), Words) << 16)};
}
static INLINE F load_half(const void* at) {
    F made;
    for (int i = 0; i < 16; i++) made.v[i] = half_to_float(read<uint16_t>((const uint8_t*)at + 2 * i));
    return made;
}

struct Halves { Shorts v; };
static INLINE Halves to_half(F a) {
    Halves made;
    for (int i = 0; i < 16; i++) made.v[i] = float_to_half(a.v[i]);
    return made;
}
template <bool Subnormals = true> static INLINE Halves to_bf16(F a) {
    const Words bits = (Words)a.v, high = bits >> 16, nan = (Words)(a.v != a.v);
    const Words up = (bits + 0x7fff + (high & 1)) >> 16;
    return {__builtin_convertvector((nan & ((high & 0x8000) | 0x7fc0)) | (~nan & up), Shorts)};
}
// The upper halves, exact for values from bf16.
static INLINE Halves upper(F a) { return {__builtin_convertvector((Words)a.v >> 16, Shorts)}; }
// Bytes in the low bits of lanes.
static INLINE F lowest(B a) { return {(Floats)__builtin_convertvector(a.v, Words)}; }
static INLINE void store(uint16_t* at, Halves a) { memcpy(at, &a, sizeof a); }
static INLINE void stream(uint16_t* at, Halves a) { store(at, a); }

static INLINE F lookup(F table, B index) {
    F made;
    for (int i = 0; i < 16; i++) made.v[i] = table.v[index.v[i] & 15];
    return made;
}

// Adds the products of 32 unsigned and 32 signed bytes, times a scale, to all lanes.
typedef F Sum8;
static INLINE Integers products16(B codes, const int8_t* x) {
    return __builtin_convertvector(codes.v, Integers) * __builtin_convertvector(read<Signed>(x), Integers);
}
template <bool Eight> static INLINE Sum8 add_products(B low, B high, const int8_t* x, float scale, Sum8 to) {
    return {__builtin_convertvector(products16(low, x) + products16(high, x + 16), Floats) * scale + to.v};
}
template <bool Eight> static INLINE Sum8 add_products(B low, B high, const int8_t* x, float scale_low, float scale_high, Sum8 to) {
    to.v += __builtin_convertvector(products16(low, x), Floats) * scale_low;
    return {to.v + __builtin_convertvector(products16(high, x + 16), Floats) * scale_high};
}
static INLINE Sum8 fma(Sum8 a, float b, Sum8 c) { return {a.v * b + c.v}; }
static INLINE float sum(Sum8 a, Sum8 b) { return sum(a + b); }

static INLINE void fence() {}
static INLINE void prefetch(const void* at) { __builtin_prefetch(at); }

// Expands the first values of `a` to the lanes with set bits; other lanes are 0.
static INLINE F expand(uint32_t mask, F a) {
    float from[16], to[16];
    store(from, a);
    for (int i = 0, next = 0; i < 16; i++) {
        const bool set = mask >> i & 1;
        to[i] = set ? from[next] : 0;
        next += set;
    }
    return load(to);
}

}  // namespace ISA
