// The loops over rows, for every codec. Compiled once for each instruction set, with ISA as the namespace.
#include <utility>

#include "kernels.h"

#include "byte_panels.h"
#include "codecs_ggml.h"
#include "codecs_grouped.h"
#include "codecs_others.h"
#include "codecs_sparse.h"
#include "columns.h"
#include "distance.h"
#include "search_affine.h"
#include "encode_triple.h"
#include "encoders.h"
#include "gemv.h"
#include "int8.h"
#include "tally.h"

namespace ISA {
namespace {

// ---- codec of a kind

template <int Kind> constexpr auto codec_of() {
    if constexpr (Kind <= DENSE_BF16) return Plain<Kind>();
    else if constexpr (Kind <= NVFP4) return Blocks<Kind>();
    else if constexpr (Kind <= AFFINE_8) return Grouped<Kind - AFFINE_1 + 1, false>();
    else if constexpr (Kind <= TABLE_8) return Grouped<Kind - TABLE_1 + 1, true>();
    else if constexpr (Kind == F8Q8) return F8Q8Blocks();
    else if constexpr (Kind == HQQ) return HalfQuadratic();
    else if constexpr (Kind == TRIPLE) return TripleBitmap();
    else if constexpr (Kind == BITMASK) return Sparse();
    else return PanelRow();
}
template <int Kind> using Codec = decltype(codec_of<Kind>());

// ---- decoding

using Decode = void (*)(const Weights&, int64_t row, int64_t c0, int64_t c1, float*, bool past);
using Decode16 = void (*)(const Weights&, int64_t row, int64_t c0, int64_t c1, uint16_t*, bool past);
using Multiply = float (*)(const Weights&, int64_t row, const float* x);

template <int Kind> void decode_row(const Weights& w, int64_t row, int64_t c0, int64_t c1, float* out, bool past) {
    Store sink = {out, past};
    Codec<Kind>::run(w, row, c0, c1, sink);
}
// Sums and products of float16 numbers and integers are multiples of 2^-48, so never subnormal.
constexpr bool subnormals(int kind) { return kind != DENSE_F16 && (kind < Q4_0 || kind > Q6_K); }
template <int Kind, bool Half> void decode_row16(const Weights& w, int64_t row, int64_t c0, int64_t c1, uint16_t* out, bool past) {
    Store16<Half, subnormals(Kind)> sink = {out, past};
    Codec<Kind>::run(w, row, c0, c1, sink);
}
template <int Kind> float multiply_row(const Weights& w, int64_t row, const float* x) {
    Dot sink(x);
    Codec<Kind>::run(w, row, 0, w.columns, sink);
    return sink.result();
}

struct Loops {
    Decode decode;
    Decode16 to_half, to_bf16;
    Multiply multiply;
};
struct Table {
    Loops of[KINDS];
};
template <int... Kind> constexpr Table every(std::integer_sequence<int, Kind...>) {
    return {{{decode_row<Kind>, decode_row16<Kind, true>, decode_row16<Kind, false>, multiply_row<Kind>}...}};
}
constexpr Table table = every(std::make_integer_sequence<int, KINDS>());

// Zeros the masked tiles.
void blank(const Weights& w, int64_t row, int64_t c0, int64_t c1, uint8_t* out, int64_t size) {
    const int64_t first = row / w.tile * w.tiles;
    for (int64_t tile = c0 / w.tile; tile * w.tile < c1; tile++) {
        const int64_t bit = first + tile;
        if (w.mask[bit / 8] >> bit % 8 & 1) continue;
        const int64_t low = tile * w.tile > c0 ? tile * w.tile : c0, high = (tile + 1) * w.tile < c1 ? (tile + 1) * w.tile : c1;
        memset(out + (low - c0) * size, 0, size_t((high - low) * size));
    }
}

void decode(const Weights& w, const int64_t* ids, int64_t row0, int64_t count, int64_t c0, int64_t c1, uint8_t* out,
            int64_t pitch, int32_t type, bool past) {
    const Loops& loops = table.of[w.kind];
    for (int64_t i = 0; i < count; i++, out += pitch) {
        const int64_t row = ids ? ids[i] : row0 + i;
        if (type == F32) loops.decode(w, row, c0, c1, (float*)out, past);
        else (type == F16 ? loops.to_half : loops.to_bf16)(w, row, c0, c1, (uint16_t*)out, past);
        if (w.mask) blank(w, row, c0, c1, out, size_of(type));
    }
    if (past) fence();
}

// ---- statistics and encoding error

constexpr int64_t piece = 1024;  // columns decoded at a time, to fit L1; a multiple of every codec's grain

void tally(const Weights& w, int64_t row0, int64_t count, Tally& to) {
    alignas(64) float decoded[piece];
    Counts counts;
    for (int64_t row = row0; row < row0 + count; row++)
        for (int64_t c = 0; c < w.columns; c += piece) {
            const int64_t some = w.columns - c < piece ? w.columns - c : piece;
            decode(w, nullptr, row, 1, c, c + some, (uint8_t*)decoded, 0, F32, false);
            counts.add(decoded, some);
        }
    counts.write(to);
}

void compare(const Weights& w, int64_t row0, int64_t count, const uint8_t* x, int32_t type, int32_t own, double* sums) {
    alignas(64) float values[piece], widened[piece];
    alignas(64) uint8_t decoded[4 * piece];
    for (int64_t row = row0; row < row0 + count; row++, sums += 4) {
        Gaps gaps;
        for (int64_t c = 0; c < w.columns; c += piece) {
            const int64_t some = w.columns - c < piece ? w.columns - c : piece;
            decode(w, nullptr, row, 1, c, c + some, decoded, 0, own, false);
            gaps.add(floats(type, x, some, values), floats(own, decoded, some, widened), some);
            x += some * size_of(type);
        }
        gaps.write(sums);
    }
}

// ---- products with many vectors, by cached tiles of decoded rows

constexpr int64_t TILE_ROWS = 8, TILE_COLUMNS = 1024;

// y[m][r] += tile[r] . x[m] for 4 rows and Count vectors: 4 * Count sums in registers.
template <int Count>
void sum_block(const float* tile, const float* x, int64_t x_pitch, int64_t columns, float* y, int64_t y_pitch) {
    F sums[Count][4];
    UNROLL for (int m = 0; m < Count; m++) UNROLL for (int r = 0; r < 4; r++) sums[m][r] = splat(0);
    for (int64_t c = 0; c < columns; c += 16) {
        F w[4];
        UNROLL for (int r = 0; r < 4; r++) w[r] = load(tile + r * TILE_COLUMNS + c);
        UNROLL for (int m = 0; m < Count; m++) {
            const F v = load(x + m * x_pitch + c);
            UNROLL for (int r = 0; r < 4; r++) sums[m][r] = fma(w[r], v, sums[m][r]);
        }
    }
    UNROLL for (int m = 0; m < Count; m++) UNROLL for (int r = 0; r < 4; r++) y[m * y_pitch + r] += sum(sums[m][r]);
}

// The last columns of a row, if not a multiple of 16.
void sum_rest(const float* tile, const float* x, int64_t x_pitch, int64_t columns, int64_t m, int64_t rows, float* y,
              int64_t y_pitch) {
    for (int64_t v = 0; v < m; v++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++) y[v * y_pitch + r] += tile[r * TILE_COLUMNS + c] * x[v * x_pitch + c];
}

void multiply_tile(const float* tile, int64_t rows, int64_t columns, const float* x, int64_t x_pitch, int64_t m, float* y,
                   int64_t y_pitch) {
    const int64_t whole = columns / 16 * 16;
    float some[4];  // an incomplete last block is computed in full and stored in part
    for (int64_t v = 0; v < m;) {
        const int64_t step = m - v >= 6 && m - v != 8 ? 6 : m - v >= 4 ? 4 : m - v >= 2 ? 2 : 1;
        for (int64_t r = 0; r < rows; r += 4) {
            const float *w = tile + r * TILE_COLUMNS, *from = x + v * x_pitch;
            float* to = y + v * y_pitch + r;
            if (rows - r < 4) {
                for (int64_t one = v; one < v + step; one++) {
                    for (float& each : some) each = 0;
                    sum_block<1>(w, x + one * x_pitch, x_pitch, whole, some, 4);
                    for (int64_t k = 0; k < rows - r; k++) y[one * y_pitch + r + k] += some[k];
                }
            } else if (step == 6) sum_block<6>(w, from, x_pitch, whole, to, y_pitch);
            else if (step == 4) sum_block<4>(w, from, x_pitch, whole, to, y_pitch);
            else if (step == 2) sum_block<2>(w, from, x_pitch, whole, to, y_pitch);
            else sum_block<1>(w, from, x_pitch, whole, to, y_pitch);
        }
        v += step;
    }
    if (whole < columns) sum_rest(tile + whole, x + whole, x_pitch, columns - whole, m, rows, y, y_pitch);
}

void multiply_tiles(const Weights& w, int64_t row0, int64_t count, const float* x, int64_t x_pitch, int64_t m, float* y,
                    int64_t y_pitch) {
    alignas(64) float tile[TILE_ROWS * TILE_COLUMNS] = {};
    for (int64_t v = 0; v < m; v++) memset(y + v * y_pitch, 0, size_t(count) * sizeof *y);
    for (int64_t r = 0; r < count; r += TILE_ROWS) {
        const int64_t rows = count - r < TILE_ROWS ? count - r : TILE_ROWS;
        for (int64_t c = 0; c < w.columns; c += TILE_COLUMNS) {
            const int64_t columns = w.columns - c < TILE_COLUMNS ? w.columns - c : TILE_COLUMNS;
            decode(w, nullptr, row0 + r, rows, c, c + columns, (uint8_t*)tile, TILE_COLUMNS * sizeof(float), F32, false);
            multiply_tile(tile, rows, columns, x + c, x_pitch, m, y + r, y_pitch);
        }
    }
}

void multiply(const Weights& w, int64_t row0, int64_t count, const float* x, int64_t x_pitch, int64_t m, float* y,
              int64_t y_pitch) {
    if (const SumColumns sums = sum_columns_of(w)) {
        for (int64_t v = 0; v < m; v++) sums(w, row0, count, x + v * x_pitch, y + v * y_pitch);
        return;
    }
    if (m > 1 || w.mask) return multiply_tiles(w, row0, count, x, x_pitch, m, y, y_pitch);
    for (int64_t i = 0; i < count; i++) y[i] = table.of[w.kind].multiply(w, row0 + i, x);
}

bool arrange_one(const Weights& w, const float* x, float* to) {
    const Product product = product_of(w);
    if (product.arrange) product.arrange(w, x, to);
    return product.arrange;
}

void dot_one(const Weights& w, int64_t row0, int64_t count, const float* arranged, float* y) {
    const Product product = product_of(w);
    for (int64_t i = 0; i < count; i++) y[i] = product.dot(w, row0 + i, arranged);
}

bool prepare(const Weights& w, int32_t type, const float* x, void* room, int64_t m) {
    const Vectors vectors = vectors_of(w, type);
    if (vectors.prepare) vectors.prepare(w, x, room, m);
    return vectors.prepare;
}

void multiply_prepared(const Weights& w, int32_t type, int64_t row0, int64_t count, const void* room, int64_t m, float* y,
                       int64_t y_pitch) {
    vectors_of(w, type).multiply(w, row0, count, room, m, y, y_pitch);
}

// ---- activations of 16 bits

void widen(int32_t type, const void* from, int64_t count, float* to) { floats(type, (const uint8_t*)from, count, to); }

template <bool Half> void narrow_to(const float* from, int64_t count, uint16_t* to) {
    Store16<Half, true> sink = {to, false};
    for (int64_t i = 0; i < count; i += 16) put_some(sink, i, load(from + i), count - i);
}
void narrow(int32_t type, const float* from, int64_t count, void* to) {
    (type == F16 ? narrow_to<true> : narrow_to<false>)(from, count, (uint16_t*)to);
}

// ---- memory bandwidth, the reference for decoding and products

void fill(uint8_t* at, int64_t bytes) {
    const F one = splat(1);
    for (int64_t i = 0; i < bytes; i += 64) stream((float*)(at + i), one);
    fence();
}

float read_all(const uint8_t* at, int64_t bytes) {
    F sums[8];
    UNROLL for (int k = 0; k < 8; k++) sums[k] = splat(0);
    for (int64_t i = 0; i < bytes; i += 512)
        UNROLL for (int k = 0; k < 8; k++) sums[k] = sums[k] + load(at + i + 64 * k);
    UNROLL for (int k = 1; k < 8; k++) sums[0] = sums[0] + sums[k];
    return sum(sums[0]);
}

}  // namespace

extern const Kernels kernels = {decode, multiply, arrange_one, dot_one, prepare, multiply_prepared, widen, narrow, repack,
                                encode, encode_affine, encode_triple, largest_of_groups, encode_float4, compare, tally, fill, read_all};

}  // namespace ISA
