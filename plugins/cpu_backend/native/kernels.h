// The functions compiled once per instruction set.
#pragma once
#include "weights.h"

struct Kernels {
    // Values of columns c0..c1 of rows `ids[0..count]` (or row0.. where ids is null) as `type`, rows `pitch` bytes apart.
    // c0 and c1 are on the codec's grain; multiples of 256 columns and the end of a row always are.
    void (*decode)(const Weights& w, const int64_t* ids, int64_t row0, int64_t count, int64_t c0, int64_t c1, uint8_t* out,
                   int64_t pitch, int32_t type, bool past);
    // y[m][r] = x[m] . w[row0 + r], r < count; x and y are `x_pitch` and `y_pitch` floats from vector to vector.
    void (*multiply)(const Weights& w, int64_t row0, int64_t count, const float* x, int64_t x_pitch, int64_t m, float* y,
                     int64_t y_pitch);
    // Prepares one vector for `dot`, with `to` of columns * 33 / 32 + 16 floats on a cache line; and products with it. False if
    // `multiply` must be used.
    bool (*arrange)(const Weights& w, const float* x, float* to);
    void (*dot)(const Weights& w, int64_t row0, int64_t count, const float* arranged, float* y);
    // Converts m vectors to `type` (I8; for panels also F32 and BF16), in `room` of m * (columns * size + 12 * padded) bytes,
    // with `size` 1 or 4, and `padded` columns / 32 rounded up to a multiple of 16; and products with them. False for
    // unsupported kinds.
    bool (*prepare)(const Weights& w, int32_t type, const float* x, void* room, int64_t m);
    void (*multiply_prepared)(const Weights& w, int32_t type, int64_t row0, int64_t count, const void* room, int64_t m, float* y,
                              int64_t y_pitch);
    // Values of `type` as floats, and floats rounded to F16 or BF16. The floats have room for a multiple of 16.
    void (*widen)(int32_t type, const void* from, int64_t count, float* to);
    void (*narrow)(int32_t type, const float* from, int64_t count, void* to);
    // Repacks rows of codes to the panels of panels.h and byte_panels.h; false for other kinds.
    bool (*repack)(const Weights& w, int64_t row0, int64_t count, uint8_t* codes, float* scale, float* offset);
    // Blocks of `kind` (Q4_0 to Q8_0, IQ4_NL IQ4_XS MXFP4 NVFP4, Q2_K to Q6_K) from 32, 64 or 256 values each; false if a value is not finite.
    // K and IQ4 types accept importance weights of `columns` columns, or null; `first` is the number of the first block.
    bool (*encode)(int32_t kind, const float* x, const float* importance, int64_t first, int64_t columns, uint8_t* out,
                   int64_t blocks);
    // Encodes `groups` groups to a bit stream, scales and offsets; false if a value, scale or bias is not finite.
    bool (*encode_affine)(const Affine& a, const float* x, int64_t groups, uint8_t* data, uint8_t* scale, uint8_t* offset);
    // Encodes rows of bf16 as TCA-TBE: three consecutive bitmaps, bytes of the coded elements (returns their number), the others.
    int64_t (*encode_triple)(const uint16_t* bits, int64_t rows, int64_t columns, int32_t base, uint64_t* planes, uint8_t* high,
                             uint16_t* full);
    // The largest magnitude of each group of `size` values, false if a value is not finite; and codes of 4-bit floats from values and
    // the `steps` of groups, in pairs or the first eight of sixteen below the last.
    bool (*largest)(const float* x, int64_t groups, int64_t size, float* out);
    void (*encode_float4)(const float* x, const float* steps, int64_t groups, int64_t size, bool halves, uint8_t* out);
    // Per row: the largest error, and the sums of squared errors, squared values `x` (of `type`, contiguous rows) and squared
    // decoded values (rounded to `own`).
    void (*compare)(const Weights& w, int64_t row0, int64_t count, const uint8_t* x, int32_t type, int32_t own, double* sums);
    // Statistics of the values of these rows.
    void (*tally)(const Weights& w, int64_t row0, int64_t count, Tally& to);
    // Memory bandwidth: write past the caches, and read. `bytes` is a multiple of 1024.
    void (*fill)(uint8_t* at, int64_t bytes);
    float (*read)(const uint8_t* at, int64_t bytes);
};

#define DECLARE(isa) namespace isa { extern const Kernels kernels; }
DECLARE(portable)
DECLARE(avx2)
DECLARE(avx512)
DECLARE(dotprod)
DECLARE(i8mm)
#undef DECLARE
