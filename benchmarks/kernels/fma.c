// How many fused multiply-adds a core does: independent chains in registers. Compiled for the machine it runs on.
#if defined(__AVX512F__)
typedef float Lanes __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef float Lanes __attribute__((vector_size(32)));
#else
typedef float Lanes __attribute__((vector_size(16)));
#endif

enum { CHAINS = 12 };  // more than latency times units of any core; with two operands they fit 16 registers

// `rounds` times CHAINS vectors; returns the operations of one round.
long fma_peak(long rounds) {
    Lanes sums[CHAINS], factor = {0}, term = {0};
    factor += 0.5f, term += 1.0f;
    for (int chain = 0; chain < CHAINS; chain++) sums[chain] = factor * (float)chain;  // none is another's copy
    for (long i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (int chain = 0; chain < CHAINS; chain++) sums[chain] = sums[chain] * factor + term;
    float total = 0;
    for (int chain = 0; chain < CHAINS; chain++) total += sums[chain][0];
    volatile float kept = total;
    (void)kept;
    return 2 * CHAINS * (long)(sizeof(Lanes) / sizeof(float));
}
