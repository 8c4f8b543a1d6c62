// Sixteen lanes as four registers of NEON (AArch64), with the dot products of Armv8.2 and the I8MM of Armv8.6 where compiled for.
#pragma once
#include <arm_neon.h>

namespace ISA {

static constexpr bool has_lookup = false, has_expand = false;

struct F { float32x4_t a, b, c, d; };
struct B { uint8x16_t v; };
struct M { uint32x4_t a, b, c, d; };  // which lanes

template <class To = F, class From, class Op> static INLINE To each(From x, Op op) { return {op(x.a), op(x.b), op(x.c), op(x.d)}; }
template <class To = F, class From, class Op> static INLINE To each(From x, From y, Op op) {
    return {op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)};
}

static INLINE F load(const void* at) {
    const float* from = (const float*)at;
    return {vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)};
}
static INLINE void store(float* at, F x) { vst1q_f32(at, x.a), vst1q_f32(at + 4, x.b), vst1q_f32(at + 8, x.c), vst1q_f32(at + 12, x.d); }
static INLINE void stream(float* at, F x) { store(at, x); }
static INLINE F splat(float x) {
    const float32x4_t all = vdupq_n_f32(x);
    return {all, all, all, all};
}
static INLINE F operator+(F x, F y) { return each(x, y, [](auto a, auto b) ALWAYS { return vaddq_f32(a, b); }); }
static INLINE F operator-(F x, F y) { return each(x, y, [](auto a, auto b) ALWAYS { return vsubq_f32(a, b); }); }
static INLINE F operator*(F x, F y) { return each(x, y, [](auto a, auto b) ALWAYS { return vmulq_f32(a, b); }); }
static INLINE F operator/(F x, F y) { return each(x, y, [](auto a, auto b) ALWAYS { return vdivq_f32(a, b); }); }
static INLINE F fma(F x, F y, F z) {
    return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}
static INLINE M operator<(F x, F y) { return each<M>(x, y, [](auto a, auto b) ALWAYS { return vcltq_f32(a, b); }); }
static INLINE M operator&(M x, M y) { return each<M>(x, y, [](auto a, auto b) ALWAYS { return vandq_u32(a, b); }); }
static INLINE F choose(M where, F x, F y) {
    return {vbslq_f32(where.a, x.a, y.a), vbslq_f32(where.b, x.b, y.b), vbslq_f32(where.c, x.c, y.c), vbslq_f32(where.d, x.d, y.d)};
}
static INLINE F least(F x, F y) { return choose(x < y, x, y); }  // of NaN the second, as elsewhere
static INLINE F most(F x, F y) { return choose(y < x, x, y); }
static INLINE F absolute(F x) { return each(x, [](auto a) ALWAYS { return vabsq_f32(a); }); }
static INLINE F root(F x) { return each(x, [](auto a) ALWAYS { return vsqrtq_f32(a); }); }
static INLINE F nearest(F x) { return each(x, [](auto a) ALWAYS { return vrndnq_f32(a); }); }  // ties to even
static INLINE F whole(F x) { return each(x, [](auto a) ALWAYS { return vrndq_f32(a); }); }
static INLINE bool all(M x) { return vminvq_u32(vandq_u32(vandq_u32(x.a, x.b), vandq_u32(x.c, x.d))) != 0; }
static INLINE B narrow(F x) {
    const int16x8_t low = vcombine_s16(vmovn_s32(vcvtq_s32_f32(x.a)), vmovn_s32(vcvtq_s32_f32(x.b)));
    const int16x8_t high = vcombine_s16(vmovn_s32(vcvtq_s32_f32(x.c)), vmovn_s32(vcvtq_s32_f32(x.d)));
    return {vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(low), vmovn_s16(high)))};
}
static INLINE float peak(F x) {
    const F both = most({x.a, x.b, x.c, x.d}, {x.c, x.d, x.a, x.b});
    float lanes[4], largest;
    vst1q_f32(lanes, vbslq_f32(vcltq_f32(both.b, both.a), both.a, both.b));
    largest = lanes[0];
    for (int i = 1; i < 4; i++) largest = lanes[i] > largest ? lanes[i] : largest;
    return largest;
}
static INLINE float sum(F x) {
    const float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

static INLINE B load_bytes(const void* at) { return {vld1q_u8((const uint8_t*)at)}; }
static INLINE B pair(uint64_t low, uint64_t high) {
    return {vcombine_u8(vcreate_u8(low), vcreate_u8(high))};
}
static INLINE B splat_byte(uint8_t x) { return {vdupq_n_u8(x)}; }
static INLINE B counting() { return pair(0x0706050403020100, 0x0f0e0d0c0b0a0908); }
static INLINE B operator&(B x, B y) { return {vandq_u8(x.v, y.v)}; }
static INLINE B operator|(B x, B y) { return {vorrq_u8(x.v, y.v)}; }
static INLINE B operator^(B x, B y) { return {veorq_u8(x.v, y.v)}; }
template <int By> static INLINE B right(B x) { return {vshrq_n_u8(x.v, By)}; }
static INLINE B right(B x, int by) { return {vshlq_u8(x.v, vdupq_n_s8(int8_t(-by)))}; }
template <int By> static INLINE B left(B x) { return {vshlq_n_u8(x.v, By)}; }

// 32 adjacent 4-bit codes.
static INLINE B join_nibbles(B low, B high) { return {vsliq_n_u8(vuzp1q_u8(low.v, high.v), vuzp2q_u8(low.v, high.v), 4)}; }
static INLINE B interleave_low(B x, B y) { return {vzip1q_u8(x.v, y.v)}; }
static INLINE B interleave_high(B x, B y) { return {vzip2q_u8(x.v, y.v)}; }

static INLINE F widen_u16(uint16x8_t low, uint16x8_t high) {
    return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))};
}
static INLINE F widen_u8(B x) { return widen_u16(vmovl_u8(vget_low_u8(x.v)), vmovl_high_u8(x.v)); }
static INLINE F widen_i8(B x) {
    const int8x16_t bytes = vreinterpretq_s8_u8(x.v);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))};
}
static INLINE F load_bf16(const void* at) {
    const uint16x8_t low = vld1q_u16((const uint16_t*)at), high = vld1q_u16((const uint16_t*)at + 8);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(low), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(low, 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(high), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(high, 16))};
}
static INLINE F load_half(const void* at) {
    const float16x8_t low = vreinterpretq_f16_u16(vld1q_u16((const uint16_t*)at));
    const float16x8_t high = vreinterpretq_f16_u16(vld1q_u16((const uint16_t*)at + 8));
    return {vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)), vcvt_high_f32_f16(high)};
}

struct Halves { uint16x8_t a, b; };
static INLINE Halves to_half(F x) {
    return {vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)),
            vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d))};
}
static INLINE uint32x4_t rounded_bf16(float32x4_t x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x), high = vshrq_n_u32(bits, 16);
    const uint32x4_t up = vaddq_u32(vaddq_u32(bits, vandq_u32(high, vdupq_n_u32(1))), vdupq_n_u32(0x7fff));
    const uint32x4_t nan = vorrq_u32(vandq_u32(high, vdupq_n_u32(0x8000)), vdupq_n_u32(0x7fc0));
    return vbslq_u32(vceqq_f32(x, x), vshrq_n_u32(up, 16), nan);
}
template <bool Subnormals = true> static INLINE Halves to_bf16(F x) {
    return {vmovn_high_u32(vmovn_u32(rounded_bf16(x.a)), rounded_bf16(x.b)), vmovn_high_u32(vmovn_u32(rounded_bf16(x.c)), rounded_bf16(x.d))};
}
// The upper halves, exact for values from bf16.
static INLINE uint16x8_t upper8(float32x4_t a, float32x4_t b) {
    return vshrn_high_n_u32(vshrn_n_u32(vreinterpretq_u32_f32(a), 16), vreinterpretq_u32_f32(b), 16);
}
static INLINE Halves upper(F x) { return {upper8(x.a, x.b), upper8(x.c, x.d)}; }
// Bytes in the low bits of lanes.
static INLINE F lowest(B x) {
    const uint16x8_t low = vmovl_u8(vget_low_u8(x.v)), high = vmovl_high_u8(x.v);
    return {vreinterpretq_f32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_f32_u32(vmovl_high_u16(low)),
            vreinterpretq_f32_u32(vmovl_u16(vget_low_u16(high))), vreinterpretq_f32_u32(vmovl_high_u16(high))};
}
static INLINE void store(uint16_t* at, Halves x) { vst1q_u16(at, x.a), vst1q_u16(at + 8, x.b); }
static INLINE void stream(uint16_t* at, Halves x) { store(at, x); }

// The four bytes of each float that a byte of `index` names.
static INLINE F lookup(F table, B index) {
    const uint8x16x4_t bytes = {{vreinterpretq_u8_f32(table.a), vreinterpretq_u8_f32(table.b), vreinterpretq_u8_f32(table.c),
                                 vreinterpretq_u8_f32(table.d)}};
    const uint8x16_t first = vshlq_n_u8(vandq_u8(index.v, vdupq_n_u8(15)), 2), within = pair(0x0302010003020100, 0x0302010003020100).v;
    const uint8x16_t lanes = pair(0x0101010100000000, 0x0303030302020202).v, four = vdupq_n_u8(4);
    const auto values = [&](uint8x16_t which) ALWAYS {
        return vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vaddq_u8(vqtbl1q_u8(first, which), within)));
    };
    const uint8x16_t second = vaddq_u8(lanes, four), third = vaddq_u8(second, four);
    return {values(lanes), values(second), values(third), values(vaddq_u8(third, four))};
}

// sums + the products of 16 codes and 16 signed bytes, four in each lane. Codes are below 128, unless Eight.
template <bool Eight> static INLINE int32x4_t products16(int32x4_t sums, B codes, const int8_t* x) {
    const int8x16_t with = vld1q_s8(x);
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return vusdotq_s32(sums, codes.v, with);
#elif defined(__ARM_FEATURE_DOTPROD)
    if constexpr (!Eight) return vdotq_s32(sums, vreinterpretq_s8_u8(codes.v), with);
    const int8x16_t half = vdupq_n_s8(64);  // code - 128, and twice 64
    sums = vdotq_s32(vdotq_s32(sums, half, with), half, with);
    return vdotq_s32(sums, vreinterpretq_s8_u8(veorq_u8(codes.v, vdupq_n_u8(0x80))), with);
#else
    const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(codes.v))), high = vreinterpretq_s16_u16(vmovl_high_u8(codes.v));
    const int16x8_t x_low = vmovl_s8(vget_low_s8(with)), x_high = vmovl_high_s8(with);
    sums = vmlal_high_s16(vmlal_s16(sums, vget_low_s16(low), vget_low_s16(x_low)), low, x_low);
    return vmlal_high_s16(vmlal_s16(sums, vget_low_s16(high), vget_low_s16(x_high)), high, x_high);
#endif
}
// Adds the products of 32 unsigned and 32 signed bytes, times a scale, to four lanes.
struct Sum8 { float32x4_t v; };
template <bool Eight> static INLINE Sum8 add_products(B low, B high, const int8_t* x, float scale, Sum8 to) {
    const int32x4_t sums = products16<Eight>(products16<Eight>(vdupq_n_s32(0), low, x), high, x + 16);
    return {vfmaq_n_f32(to.v, vcvtq_f32_s32(sums), scale)};
}
template <bool Eight>
static INLINE Sum8 add_products(B low, B high, const int8_t* x, float scale_low, float scale_high, Sum8 to) {
    to.v = vfmaq_n_f32(to.v, vcvtq_f32_s32(products16<Eight>(vdupq_n_s32(0), low, x)), scale_low);
    return {vfmaq_n_f32(to.v, vcvtq_f32_s32(products16<Eight>(vdupq_n_s32(0), high, x + 16)), scale_high)};
}
static INLINE Sum8 fma(Sum8 a, float b, Sum8 c) { return {vfmaq_n_f32(c.v, a.v, b)}; }
static INLINE float sum(Sum8 a, Sum8 b) {
    const float32x4_t four = vaddq_f32(a.v, b.v);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

// Sixteen words, as integers of either sign.
struct Word16 {
    uint32x4_t a, b, c, d;
};
static INLINE Word16 all_words(uint32_t x) {
    const uint32x4_t every = vdupq_n_u32(x);
    return {every, every, every, every};
}
static INLINE Word16 operator&(Word16 x, Word16 y) { return each<Word16>(x, y, [](auto a, auto b) ALWAYS { return vandq_u32(a, b); }); }
static INLINE Word16 operator|(Word16 x, Word16 y) { return each<Word16>(x, y, [](auto a, auto b) ALWAYS { return vorrq_u32(a, b); }); }
static INLINE Word16 operator^(Word16 x, Word16 y) { return each<Word16>(x, y, [](auto a, auto b) ALWAYS { return veorq_u32(a, b); }); }
static INLINE Word16 operator-(Word16 x, Word16 y) { return each<Word16>(x, y, [](auto a, auto b) ALWAYS { return vsubq_u32(a, b); }); }
static INLINE Word16 operator&(Word16 x, uint32_t y) { return x & all_words(y); }
static INLINE Word16 operator^(Word16 x, uint32_t y) { return x ^ all_words(y); }
static INLINE Word16 operator-(Word16 x, int32_t y) { return x - all_words(uint32_t(y)); }
static INLINE Word16 operator>>(Word16 x, int by) {
    const int32x4_t down = vdupq_n_s32(-by);
    return each<Word16>(x, [&](auto a) ALWAYS { return vshlq_u32(a, down); });
}
static INLINE Word16 operator<<(Word16 x, int by) {
    const int32x4_t up = vdupq_n_s32(by);
    return each<Word16>(x, [&](auto a) ALWAYS { return vshlq_u32(a, up); });
}
using Whole16 = Word16;
static INLINE F floats_of(Whole16 x) { return each(x, [](auto a) ALWAYS { return vcvtq_f32_s32(vreinterpretq_s32_u32(a)); }); }
static INLINE Whole16 whole16(int32_t x) { return all_words(uint32_t(x)); }

// sums + the products of each lane's four codes, as signed bytes, with four activations
static INLINE uint32x4_t dot_lanes(uint32x4_t sums, uint32x4_t codes, int8x16_t with) {
    const int8x16_t bytes = vreinterpretq_s8_u32(codes);
#if defined(__ARM_FEATURE_DOTPROD)
    return vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(sums), bytes, with));
#else
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(bytes), vget_low_s8(with))), high = vpaddlq_s16(vmull_high_s8(bytes, with));
    return vaddq_u32(sums, vreinterpretq_u32_s32(vpaddq_s32(low, high)));
#endif
}
static INLINE Whole16 dot4(Whole16 sums, Word16 codes, const int8_t* x) {
    const int8x16_t with = vreinterpretq_s8_s32(vdupq_n_s32(read<int32_t>(x)));
    return each<Whole16>(sums, codes, [&](auto to, auto some) ALWAYS { return dot_lanes(to, some, with); });
}

#if defined(__ARM_FEATURE_DOTPROD)
template <int Vector> static INLINE Whole16 dot_vector(Whole16 sums, Word16 codes, int8x16_t x) {
    return each<Whole16>(sums, codes, [&](auto to, auto some) ALWAYS {
        return vreinterpretq_u32_s32(vdotq_laneq_s32(vreinterpretq_s32_u32(to), vreinterpretq_s8_u32(some), x, Vector));
    });
}
// The same for four vectors with adjacent activations.
static INLINE void dot_four(Whole16 (&sums)[4], Word16 codes, const int8_t* x) {
    const int8x16_t with = vld1q_s8(x);
    sums[0] = dot_vector<0>(sums[0], codes, with), sums[1] = dot_vector<1>(sums[1], codes, with);
    sums[2] = dot_vector<2>(sums[2], codes, with), sums[3] = dot_vector<3>(sums[3], codes, with);
}
#endif

static INLINE void fence() {}
static INLINE void prefetch(const void* at) { __builtin_prefetch(at); }

// For each four bits the bytes of up to four floats that move to lanes with set bits; 255, for zero, elsewhere.
struct Moves {
    uint8_t of[16][16];
    constexpr Moves() : of() {
        for (int mask = 0; mask < 16; mask++)
            for (int lane = 0, next = 0; lane < 4; next += mask >> lane++ & 1)
                for (int byte = 0; byte < 4; byte++) of[mask][4 * lane + byte] = mask >> lane & 1 ? uint8_t(4 * next + byte) : 255;
    }
};
static constexpr Moves MOVES;

// Expands the first values of `a` to the lanes with set bits; other lanes are 0.
static INLINE F expand(uint32_t mask, F a) {
    float from[20] = {};
    store(from, a);
    int next = 0;
    const auto four = [&](uint32_t bits) ALWAYS {
        const uint8x16_t moved = vqtbl1q_u8(vreinterpretq_u8_f32(vld1q_f32(from + next)), vld1q_u8(MOVES.of[bits & 15]));
        next += __builtin_popcount(bits & 15);
        return vreinterpretq_f32_u8(moved);
    };
    const float32x4_t p = four(mask), q = four(mask >> 4), r = four(mask >> 8), s = four(mask >> 12);
    return {p, q, r, s};
}

}  // namespace ISA
