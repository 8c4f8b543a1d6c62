// Statistics of decoded values: counts by sign and exponent, and extremes; integers, so they do not depend on order.
#pragma once
#include "simd.h"

namespace ISA {

#if defined(__AVX512BW__)
typedef int32_t Integral __attribute__((vector_size(64)));
#elif defined(__AVX2__)
typedef int32_t Integral __attribute__((vector_size(32)));
#else
typedef int32_t Integral __attribute__((vector_size(16)));
#endif

struct Counts {
    static constexpr int lanes = sizeof(Integral) / 4;
    static constexpr int banks = 4;  // neighbors often share an exponent: separate banks avoid dependent increments
    int64_t powers[banks][512] = {};
    int64_t zeros = 0, minus_zeros = 0, nan = 0;
    Integral least = Integral{} + INT32_MAX, greatest = Integral{} + INT32_MIN;  // in the encoding of `ordered`

    // Maps float bits to integers ordered like their values, and back.
    template <class T> static INLINE T ordered(T bits) { return bits ^ ((bits >> 31) & INT32_MAX); }
    static INLINE int64_t total(Integral some) {
        int64_t sum = 0;
        for (int i = 0; i < lanes; i++) sum += some[i];
        return sum;
    }
    // `x` has room for a multiple of 16 values.
    INLINE void add(float* x, int64_t count) {
        Integral none = {}, minus_none = {}, odd = {};
        int64_t rest = 0;
        for (; (count + rest) % lanes; rest++) x[count + rest] = __builtin_nanf("");
        for (int64_t i = 0; i < count; i += lanes) {
            const Integral bits = read<Integral>(x + i), size = bits & INT32_MAX, place = ordered(bits);
            none -= bits == 0, minus_none -= bits == INT32_MIN, odd -= size > 0x7f800000;
            const Integral finite = size < 0x7f800000;
            least = (finite & (place < least)) != 0 ? place : least;
            greatest = (finite & (place > greatest)) != 0 ? place : greatest;
            _Pragma("GCC unroll 16") for (int k = 0; k < lanes; k++) powers[k % banks][read<uint32_t>(x + i + k) >> 23]++;
        }
        zeros += total(none), minus_zeros += total(minus_none), nan += total(odd) - rest;
        powers[0][as_bits(__builtin_nanf("")) >> 23] -= rest;
    }
    INLINE void write(Tally& to) const {
        for (int at = 0; at < 512; at++) {
            to.powers[at] = 0;
            for (int bank = 0; bank < banks; bank++) to.powers[at] += powers[bank][at];
        }
        to.zeros = zeros, to.minus_zeros = minus_zeros, to.nan = nan;
        int32_t low = least[0], high = greatest[0];
        for (int i = 1; i < lanes; i++) low = least[i] < low ? least[i] : low, high = greatest[i] > high ? greatest[i] : high;
        const bool some = low <= high;
        to.least = some ? as_float(uint32_t(ordered(low))) : __builtin_inff();
        to.greatest = some ? as_float(uint32_t(ordered(high))) : -__builtin_inff();
    }
};

}  // namespace ISA
