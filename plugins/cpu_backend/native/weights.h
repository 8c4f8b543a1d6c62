// What a caller says about one encoded matrix. Python mirrors this struct field by field (squish_cpu/library.py).
#pragma once
#include <cstdint>

enum Kind : int32_t {
    DENSE_F32, DENSE_F16, DENSE_BF16,
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K,
    AFFINE_1, AFFINE_2, AFFINE_3, AFFINE_4, AFFINE_5, AFFINE_6, AFFINE_7, AFFINE_8,
    TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_6, TABLE_7, TABLE_8,
    F8Q8, HQQ, TRIPLE, BITMASK,
    PANELS,  // codes of 4 bits as panels.h has them
    KINDS,
    IQ4_NL = KINDS, IQ4_XS,  // encoded only
};

enum Type : int32_t { F32, F16, BF16, U8, I8, LISTED };  // LISTED: a byte that is a place in `listed`
constexpr int64_t size_of(int32_t type) { return type == F32 ? 4 : type == F16 || type == BF16 ? 2 : 1; }

enum Offset : int32_t { NO_OFFSET, ZERO_POINT, BIAS };

struct Affine {  // how values become codes in groups that lie one after the other; mirrored in squish_cpu/library.py
    int64_t size;                     // values of a group, a multiple of 16
    int32_t bits, low, high, zero;    // codes are low..high; `zero` stands for 0 where there is no offset
    int32_t offset;                   // zero points are stored in a byte
    int32_t edges;                    // a bias as MLX finds it
    int32_t scale_type, offset_type;
    int32_t search;                   // for narrower ranges with a smaller squared error; groups of 256 at most
};

struct Tally {  // what values are like; mirrored in squish_cpu/library.py
    int64_t powers[512];              // how many have this sign and exponent, as they stand in a float
    int64_t zeros, minus_zeros, nan;
    float least, greatest;            // of finite values; infinities where there is none
};

struct Weights {
    int64_t rows, columns;
    const uint8_t* data;
    int64_t pitch;         // bytes from one row of `data` to the next
    const uint8_t* scale;  // [grid]: the scale of (r, c) is number r / group_rows * grid_row + c / group_columns * grid_column
    const uint8_t* offset; // as `scale`, or null
    const float* table;    // TABLE: the values, 2^bits of them and at least 16
    const float* listed;   // the 256 values of scales that are stored in a byte
    const uint8_t* mask;   // tiles to keep, least significant bit first, row-major; or null
    int64_t tile;          // side of a tile
    int64_t tiles;         // tiles in a row of tiles
    int64_t group_rows, group_columns, grid_row, grid_column;
    int64_t line, step;    // strided words: bytes from line to line and from word to word
    int32_t kind, scale_type, offset_type;
    int32_t flip;          // AFFINE: value of a code is (code ^ flip) - zero, then less the offset and times the scale,
    int32_t zero;          //         or times the scale and plus the offset where `bias` is set
    int32_t bias;
    int32_t strided;       // AFFINE, TABLE: codes do not lie in `data` row by row: `line`, `step`, `word`, `down`, `order` say how
    int32_t word;          // bytes of a word
    int32_t down;          // words are filled down a column, not along a row
    int32_t ordered;       // codes lie in a word in `order`; otherwise they are a bit stream from word to word
    uint8_t order[64];     // place in its word, in codes, of each code
    int64_t size;          // HQQ: codes in a line of the matrix of groups; `line` lines of words hold them all
    int32_t bits, shift;   // HQQ: width of a code, and how far the first one of a word lies above its lowest bit
    const uint8_t* plane0; // TRIPLE: three bitmaps of codes in rows of `pitch` bytes, `data` for the coded elements, `rest` for the
    const uint8_t* plane1; //         others. BITMASK: `plane0` tells the elements that `data`, of type `offset_type`, holds;
    const uint8_t* plane2; //         `pitch` bits from row to row
    const uint8_t* rest;   // PANELS of nested scales, which only products take: their factors
    const int64_t* starts; // TRIPLE, BITMASK: elements of `data` before each row
    int64_t stored;        // and all of them
};
