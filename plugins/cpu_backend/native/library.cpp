// The C ABI that Python loads: which instruction set runs, and how rows are shared between threads.
#include <atomic>
#include <cstring>
#include <memory>
#include <new>

#include "kernels.h"
#include "pool.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

struct Choice {
    const char* name;
    const Kernels* kernels;
    bool (*runs)();
};

#if defined(__x86_64__)
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi2");
}
#endif
bool always() { return true; }

// Best first.
const Choice choices[] = {
#if defined(__x86_64__)
    {"avx512", &avx512::kernels, has_avx512},
    {"avx2", &avx2::kernels, has_avx2},
#endif
    {"portable", &portable::kernels, always},
};
const Choice* chosen = nullptr;

constexpr int64_t PAST_CACHE = 24 << 20;  // an output of more bytes than this is not in any cache when it is read

struct Rows {  // arguments of one call, for the threads
    const Weights* w;
    const int64_t* ids;
    int64_t row0, c0, c1;
    uint8_t* out;
    int64_t pitch;
    int32_t type;
    bool past;
    const float* x;
    int64_t x_pitch, m;
    float* y;
    int64_t y_pitch;
    const void* room;
};

void decode_some(void* context, int64_t begin, int64_t end) {
    const Rows& a = *(const Rows*)context;
    chosen->kernels->decode(*a.w, a.ids ? a.ids + begin : nullptr, a.row0 + begin, end - begin, a.c0, a.c1,
                            a.out + begin * a.pitch, a.pitch, a.type, a.past);
}

void multiply_some(void* context, int64_t begin, int64_t end) {
    const Rows& a = *(const Rows*)context;
    chosen->kernels->multiply(*a.w, a.row0 + begin, end - begin, a.x, a.x_pitch, a.m, a.y + begin, a.y_pitch);
}

void dot_some(void* context, int64_t begin, int64_t end) {
    const Rows& a = *(const Rows*)context;
    chosen->kernels->dot(*a.w, a.row0 + begin, end - begin, a.x, a.y + begin);
}

void multiply_prepared_some(void* context, int64_t begin, int64_t end) {
    const Rows& a = *(const Rows*)context;
    chosen->kernels->multiply_prepared(*a.w, a.type, a.row0 + begin, end - begin, a.room, a.m, a.y + begin, a.y_pitch);
}

// Floats on a cache line; null where none are asked for, or there is no memory.
struct Freed {
    void operator()(float* at) const { operator delete(at, std::align_val_t(64)); }
};
struct Room : std::unique_ptr<float, Freed> {
    explicit Room(int64_t count)
        : unique_ptr(count ? (float*)operator new(size_t(count) * sizeof(float), std::align_val_t(64), std::nothrow) : nullptr) {}
};

// Rows at a time: small enough to level out threads, a multiple of a tile and of the rows of any word, large enough to be
// worth the asking.
int64_t step_for(int64_t rows, int64_t row_cost, int threads) {
    if (threads <= 1) return rows > 0 ? rows : 1;
    int64_t least = (1 << 16) / (row_cost > 0 ? row_cost : 1) / 32 * 32 + 32, even = rows / (threads * 8) / 32 * 32;
    return even > least ? even : least;
}

}  // namespace

// sizeof(Weights), so that a struct that Python and C++ see differently is found before it is used.
API int64_t squish_weights_size() { return sizeof(Weights); }

// Name of the i-th instruction set, best first, that this machine runs; null after the last.
API const char* squish_instructions(int i) {
    for (const Choice& each : choices)
        if (each.runs() && i-- == 0) return each.name;
    return nullptr;
}

// 1 when `name` runs here and is used from now on.
API int squish_choose(const char* name) {
    for (const Choice& each : choices)
        if (!strcmp(each.name, name) && each.runs()) {
            chosen = &each;
            return 1;
        }
    return 0;
}

API void squish_decode(const Weights* w, const int64_t* ids, int64_t row0, int64_t rows, int64_t c0, int64_t c1, void* out,
                       int64_t pitch, int32_t type, int32_t threads) {
    const int64_t cost = (c1 - c0) * (type == F32 ? 4 : 2);
    const bool aligned = (uintptr_t(out) | uintptr_t(pitch)) % 64 == 0;
    Rows a = {};
    a.w = w, a.ids = ids, a.row0 = row0, a.c0 = c0, a.c1 = c1, a.out = (uint8_t*)out, a.pitch = pitch, a.type = type;
    a.past = aligned && w->kind != HQQ && rows * cost > PAST_CACHE;
    share(threads, rows, step_for(rows, cost, threads), decode_some, &a);
}

API void squish_multiply(const Weights* w, int64_t row0, int64_t rows, const float* x, int64_t x_pitch, int64_t m, float* y,
                         int64_t y_pitch, int32_t threads) {
    Rows a = {};
    a.w = w, a.row0 = row0, a.x = x, a.x_pitch = x_pitch, a.m = m, a.y = y, a.y_pitch = y_pitch;
    const Room room(m == 1 ? w->columns + w->columns / 32 + 16 : 0);
    if (room && chosen->kernels->arrange(*w, x, room.get())) {
        a.x = room.get();
        return share(threads, rows, step_for(rows, w->columns, threads), dot_some, &a);
    }
    share(threads, rows, step_for(rows, w->columns * m, threads), multiply_some, &a);
}

// As squish_multiply, with activations as `type` in `room`, which is as Kernels::prepare wants it, on a multiple of 4.
API int squish_multiply_as(const Weights* w, int32_t type, int64_t row0, int64_t rows, const float* x, int64_t m, void* room,
                           float* y, int64_t y_pitch, int32_t threads) {
    if (!chosen->kernels->prepare(*w, type, x, room, m)) return 0;
    Rows a = {};
    a.w = w, a.type = type, a.row0 = row0, a.room = room, a.m = m, a.y = y, a.y_pitch = y_pitch;
    share(threads, rows, step_for(rows, w->columns * m, threads), multiply_prepared_some, &a);
    return 1;
}

namespace {

struct Panels {
    const Weights* w;
    uint8_t* codes;
    float *scale, *offset;
};

void repack_some(void* context, int64_t begin, int64_t end) {
    const Panels& a = *(const Panels*)context;
    chosen->kernels->repack(*a.w, begin, end - begin, a.codes, a.scale, a.offset);
}

}  // namespace

// All rows into panels of sixteen; `offset` may be null. 0 for kinds that there are no panels of.
API int squish_repack(const Weights* w, uint8_t* codes, float* scale, float* offset, int32_t threads) {
    Panels a = {w, codes, scale, offset};
    if (!chosen->kernels->repack(*w, 0, 0, codes, scale, offset)) return 0;
    share(threads, w->rows, step_for(w->rows, w->columns, threads), repack_some, &a);
    return 1;
}

namespace {

struct Blocks {
    int32_t kind;
    const float* x;
    uint8_t* out;
    int64_t elements, bytes;
    std::atomic<int> bad{0};
};

void encode_some(void* context, int64_t begin, int64_t end) {
    Blocks& a = *(Blocks*)context;
    if (!chosen->kernels->encode(a.kind, a.x + begin * a.elements, a.out + begin * a.bytes, end - begin)) a.bad = 1;
}

}  // namespace

// Blocks of `elements` values and `bytes` bytes; 0 when a value is not finite.
API int squish_encode(int32_t kind, const float* x, uint8_t* out, int64_t blocks, int64_t elements, int64_t bytes,
                      int32_t threads) {
    Blocks a;
    a.kind = kind, a.x = x, a.out = out, a.elements = elements, a.bytes = bytes;
    share(threads, blocks, threads > 1 ? (1 << 14) / elements : blocks + 1, encode_some, &a);
    return !a.bad;
}

namespace {

struct Groups {
    const Affine* how;
    const float* x;
    uint8_t *data, *scale, *offset;
    int64_t scale_size, offset_size;
    std::atomic<int> bad{0};
};

void encode_affine_some(void* context, int64_t begin, int64_t end) {
    Groups& a = *(Groups*)context;
    if (!chosen->kernels->encode_affine(*a.how, a.x + begin * a.how->size, end - begin,
                                        a.data + begin * a.how->size / 8 * a.how->bits, a.scale + begin * a.scale_size,
                                        a.offset + begin * a.offset_size))
        a.bad = 1;
}

}  // namespace

// Parts of `groups` groups of values; 0 when a value, a scale or a bias is not finite.
API int squish_encode_affine(const Affine* how, const float* x, int64_t groups, uint8_t* data, uint8_t* scale, uint8_t* offset,
                             int32_t threads) {
    Groups a;
    a.how = how, a.x = x, a.data = data, a.scale = scale, a.offset = offset;
    a.scale_size = size_of(how->scale_type), a.offset_size = size_of(how->offset_type);
    share(threads, groups, threads > 1 ? (1 << 16) / how->size + 16 : groups + 1, encode_affine_some, &a);
    return !a.bad;
}

namespace {

struct Compared {
    const Weights* w;
    const uint8_t* x;
    int32_t type, own;
    double* sums;
};

void compare_some(void* context, int64_t begin, int64_t end) {
    const Compared& a = *(const Compared*)context;
    chosen->kernels->compare(*a.w, begin, end - begin, a.x + begin * a.w->columns * size_of(a.type), a.type, a.own,
                             a.sums + 4 * begin);
}

}  // namespace

// Four sums for each row, as Kernels::compare gives them.
API void squish_compare(const Weights* w, const void* x, int32_t type, int32_t own, double* sums, int32_t threads) {
    Compared a = {w, (const uint8_t*)x, type, own, sums};
    share(threads, w->rows, step_for(w->rows, w->columns, threads), compare_some, &a);
}

API void squish_fill(void* at, int64_t bytes) { chosen->kernels->fill((uint8_t*)at, bytes); }
API float squish_read(const void* at, int64_t bytes) { return chosen->kernels->read((const uint8_t*)at, bytes); }
