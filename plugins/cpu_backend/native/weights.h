// The description of an encoded matrix. Python mirrors this struct field by field (squish_cpu/library.py).
#pragma once
#include <cstdint>

enum Kind : int32_t {
    DENSE_F32, DENSE_F16, DENSE_BF16,
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4,
    AFFINE_1, AFFINE_2, AFFINE_3, AFFINE_4, AFFINE_5, AFFINE_6, AFFINE_7, AFFINE_8,
    TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_6, TABLE_7, TABLE_8,
    F8Q8, HQQ, TRIPLE, BITMASK,
    PANELS,  // 4-bit codes in panels (panels.h)
    KINDS,
    BYTE_PANELS = KINDS, SIX_PANELS,  // products only (byte_panels.h)
};

enum Type : int32_t { F32, F16, BF16, U8, I8, LISTED };  // LISTED: an index into `listed`
constexpr int64_t size_of(int32_t type) { return type == F32 ? 4 : type == F16 || type == BF16 ? 2 : 1; }

enum Offset : int32_t { NO_OFFSET, ZERO_POINT, BIAS };

struct Affine {  // quantization of contiguous groups; mirrored in squish_cpu/library.py
    int64_t size;                     // group size, a multiple of 16
    int32_t bits, low, high, zero;    // codes are low..high; `zero` is the zero point without offsets
    int32_t offset;                   // zero points are bytes
    int32_t edges;                    // MLX's scales and biases
    int32_t scale_type, offset_type;
    int32_t search;                   // try narrower ranges for a smaller squared error; groups of at most 256
};

struct Weights;
struct Product {  // a product with all rows; mirrored in squish_cpu/library.py
    const Weights* weights;
    int32_t prepared;                 // type that activations are prepared as, or -1
    int32_t type;                     // of x and y: F32, F16 or BF16
    int32_t threads;
};

struct Tally {  // statistics of values; mirrored in squish_cpu/library.py
    int64_t powers[512];              // counts by sign and exponent bits of a float
    int64_t zeros, minus_zeros, nan;
    float least, greatest;            // of finite values; infinities if there are none
};

struct Weights {
    int64_t rows, columns;
    const uint8_t* data;
    int64_t pitch;         // row stride of `data` in bytes
    const uint8_t* scale;  // [grid]: the scale of (r, c) is number r / group_rows * grid_row + c / group_columns * grid_column
    const uint8_t* offset; // like `scale`, or null
    const float* table;    // TABLE: the values, 2^bits of them and at least 16
    const float* listed;   // the 256 values of 8-bit float scales
    const uint8_t* mask;   // tiles to keep, least significant bit first, row-major; or null
    int64_t tile;          // side of a tile
    int64_t tiles;         // tiles in a row of tiles
    int64_t group_rows, group_columns, grid_row, grid_column;
    int64_t line, step;    // strided words: line and word strides in bytes
    int32_t kind, scale_type, offset_type;
    int32_t flip;          // AFFINE: value of a code is (code ^ flip) - zero, then minus the offset and times the scale,
    int32_t zero;          //         or times the scale plus the offset if `bias` is set
    int32_t bias;
    int32_t strided;       // AFFINE, TABLE: codes are not row by row in `data`; see `line`, `step`, `word`, `down`, `order`
    int32_t word;          // bytes of a word
    int32_t down;          // words are filled down a column, not along a row
    int32_t ordered;       // codes are in `order` within a word; otherwise a bit stream across words
    uint8_t order[64];     // position of each code in its word
    int64_t size;          // HQQ: codes in a line of the matrix of groups; `line` lines of words hold them all
    int32_t bits, shift;   // HQQ: width of a code, and the shift of the first code in a word
    const uint8_t* plane0; // TRIPLE: three bitmaps of codes in rows of `pitch` bytes, `data` for the coded elements, `rest` for the
    const uint8_t* plane1; //         others. BITMASK: `plane0` marks the elements in `data`, of type `offset_type`;
    const uint8_t* plane2; //         `pitch` bits from row to row
    const uint8_t* rest;   // PANELS, SIX_PANELS: factors of nested scales (products only)
    const int64_t* starts; // TRIPLE, BITMASK: elements of `data` before each row
    int64_t stored;        // and in total
};
