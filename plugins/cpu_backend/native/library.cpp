// The C ABI for Python: selects the instruction set and distributes rows over threads.
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#include "kernels.h"
#include "pool.h"

#if defined(_WIN32)
#define API extern "C" __declspec(dllexport)
#else
#define API extern "C" __attribute__((visibility("default")))
#endif

#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(_WIN32)
#include <windows.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

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
#elif defined(__aarch64__)
#if defined(__APPLE__)
bool has(const char* feature) {
    int value = 0;
    size_t size = sizeof value;
    return !sysctlbyname(feature, &value, &size, nullptr, 0) && value;
}
bool has_dotprod() { return has("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has_dotprod() && has("hw.optional.arm.FEAT_I8MM"); }
#elif defined(_WIN32)
bool has_dotprod() { return IsProcessorFeaturePresent(43); }  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE
bool has_i8mm() { return has_dotprod() && IsProcessorFeaturePresent(66); }  // PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE
#else
bool has_dotprod() { return getauxval(AT_HWCAP) >> 20 & 1; }  // HWCAP_ASIMDDP
bool has_i8mm() { return has_dotprod() && (getauxval(AT_HWCAP2) >> 13 & 1); }  // HWCAP2_I8MM
#endif
#endif
bool always() { return true; }

// Best first.
const Choice choices[] = {
#if defined(__x86_64__)
    {"avx512", &avx512::kernels, has_avx512},
    {"avx2", &avx2::kernels, has_avx2},
#elif defined(__aarch64__)
    {"i8mm", &i8mm::kernels, has_i8mm},
    {"dotprod", &dotprod::kernels, has_dotprod},
#endif
    {"portable", &portable::kernels, always},
};
const Choice* chosen = nullptr;

constexpr int64_t PAST_CACHE = 24 << 20;  // larger outputs do not stay in any cache

// Calls `work(begin, end)` for ranges of rows on up to `threads` threads.
template <class Work> void share_rows(int threads, int64_t rows, int64_t step, const Work& work) {
    const auto call = [](void* work, int64_t begin, int64_t end) { (*(const Work*)work)(begin, end); };
    share(threads, rows, step, call, (void*)&work);
}

// Allocates floats on a cache line; null for zero floats or without memory.
struct Freed {
    void operator()(float* at) const { operator delete(at, std::align_val_t(64)); }
};
struct Room : std::unique_ptr<float, Freed> {
    explicit Room(int64_t count)
        : unique_ptr(count ? (float*)operator new(size_t(count) * sizeof(float), std::align_val_t(64), std::nothrow) : nullptr) {}
};

// Rows per step: small enough to balance threads, a multiple of a tile and of the rows of any word, large enough to amortize
// the overhead.
int64_t step_for(int64_t rows, int64_t row_cost, int threads) {
    if (threads <= 1) return rows > 0 ? rows : 1;
    int64_t least = (1 << 16) / (row_cost > 0 ? row_cost : 1) / 32 * 32 + 32, even = rows / (threads * 8) / 32 * 32;
    return even > least ? even : least;
}

}  // namespace

// sizeof(Weights), to detect a struct mismatch between Python and C++.
API int64_t squish_weights_size() { return sizeof(Weights); }

// Name of the i-th supported instruction set, best first; null after the last.
API const char* squish_instructions(int i) {
    for (const Choice& each : choices)
        if (each.runs() && i-- == 0) return each.name;
    return nullptr;
}

// Selects an instruction set; returns 1 if `name` is supported.
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
    const int64_t cost = (c1 - c0) * size_of(type);
    const bool aligned = (uintptr_t(out) | uintptr_t(pitch)) % 64 == 0;
    const bool past = aligned && w->kind != HQQ && rows * cost > PAST_CACHE;
    share_rows(threads, rows, step_for(rows, cost, threads), [&](int64_t begin, int64_t end) {
        chosen->kernels->decode(*w, ids ? ids + begin : nullptr, row0 + begin, end - begin, c0, c1,
                                (uint8_t*)out + begin * pitch, pitch, type, past);
    });
}

API void squish_multiply(const Weights* w, int64_t row0, int64_t rows, const float* x, int64_t x_pitch, int64_t m, float* y,
                         int64_t y_pitch, int32_t threads) {
    const Room room(m == 1 ? w->columns + w->columns / 32 + 16 : 0);
    const bool arranged = room && chosen->kernels->arrange(*w, x, room.get());
    share_rows(threads, rows, step_for(rows, w->columns * m, threads), [&](int64_t begin, int64_t end) {
        if (arranged) chosen->kernels->dot(*w, row0 + begin, end - begin, room.get(), y + begin);
        else chosen->kernels->multiply(*w, row0 + begin, end - begin, x, x_pitch, m, y + begin, y_pitch);
    });
}

// Like squish_multiply, with activations converted to `type` in `room` (see Kernels::prepare), aligned to 4 bytes.
API int squish_multiply_as(const Weights* w, int32_t type, int64_t row0, int64_t rows, const float* x, int64_t m, void* room,
                           float* y, int64_t y_pitch, int32_t threads) {
    if (!chosen->kernels->prepare(*w, type, x, room, m)) return 0;
    share_rows(threads, rows, step_for(rows, w->columns * m, threads), [&](int64_t begin, int64_t end) {
        chosen->kernels->multiply_prepared(*w, type, row0 + begin, end - begin, room, m, y + begin, y_pitch);
    });
    return 1;
}

namespace {

bool multiply_floats(const Product& p, const float* x, int64_t m, float* y) {
    const Weights& w = *p.weights;
    if (p.prepared < 0) {
        squish_multiply(&w, 0, w.rows, x, w.columns, m, y, w.rows, p.threads);
        return true;
    }
    const int64_t padded = (w.columns + 511) / 512 * 16;
    const Room room(m * (w.columns / (p.prepared == I8 ? 4 : 1) + 3 * padded) + 1);
    return room && squish_multiply_as(&w, p.prepared, 0, w.rows, x, m, room.get(), y, w.rows, p.threads);
}

}  // namespace

// y = x . w for m contiguous rows of x; returns 0 without memory. Without rows: whether the kernels support it.
API int squish_product(const Product* p, const void* x, int64_t m, void* y) {
    if (!m) return p->prepared < 0 || chosen->kernels->prepare(*p->weights, p->prepared, nullptr, nullptr, 0);
    if (p->type == F32) return multiply_floats(*p, (const float*)x, m, (float*)y);
    const int64_t columns = m * p->weights->columns, rows = m * p->weights->rows;
    const Room wide(columns + 16), sums(rows + 16);
    if (!wide || !sums) return 0;
    chosen->kernels->widen(p->type, x, columns, wide.get());
    if (!multiply_floats(*p, wide.get(), m, sums.get())) return 0;
    chosen->kernels->narrow(p->type, sums.get(), rows, y);
    return 1;
}

// Repacks all rows to panels; `offset` may be null. Returns 0 for unsupported kinds.
API int squish_repack(const Weights* w, uint8_t* codes, float* scale, float* offset, int32_t threads) {
    if (!chosen->kernels->repack(*w, 0, 0, codes, scale, offset)) return 0;
    share_rows(threads, w->rows, step_for(w->rows, w->columns, threads), [&](int64_t begin, int64_t end) {
        chosen->kernels->repack(*w, begin, end - begin, codes, scale, offset);
    });
    return 1;
}

// Blocks of `elements` values and `bytes` bytes, with `importance` (see Kernels::encode); returns 0 if a value is not finite.
API int squish_encode(int32_t kind, const float* x, const float* importance, int64_t columns, uint8_t* out, int64_t blocks,
                      int64_t elements, int64_t bytes, int32_t threads) {
    std::atomic<int> good{1};
    share_rows(threads, blocks, threads > 1 ? (1 << 14) / elements : blocks + 1, [&](int64_t begin, int64_t end) {
        if (!chosen->kernels->encode(kind, x + begin * elements, importance, begin, columns, out + begin * bytes, end - begin))
            good = 0;
    });
    return good;
}

// Encodes `groups` groups; returns 0 if a value, scale or bias is not finite.
API int squish_encode_affine(const Affine* how, const float* x, int64_t groups, uint8_t* data, uint8_t* scale, uint8_t* offset,
                             int32_t threads) {
    std::atomic<int> good{1};
    share_rows(threads, groups, threads > 1 ? (1 << 16) / how->size + 16 : groups + 1, [&](int64_t begin, int64_t end) {
        if (!chosen->kernels->encode_affine(*how, x + begin * how->size, end - begin, data + begin * how->size / 8 * how->bits,
                                            scale + begin * size_of(how->scale_type), offset + begin * size_of(how->offset_type)))
            good = 0;
    });
    return good;
}

// See Kernels::encode_triple.
API int64_t squish_encode_triple(const uint16_t* bits, int64_t rows, int64_t columns, int32_t base, uint64_t* planes, uint8_t* high,
                                 uint16_t* full) {
    return chosen->kernels->encode_triple(bits, rows, columns, base, planes, high, full);
}

// See Kernels::largest; returns 0 if a value is not finite.
API int squish_largest(const float* x, int64_t groups, int64_t size, float* out, int32_t threads) {
    std::atomic<int> good{1};
    share_rows(threads, groups, threads > 1 ? (1 << 16) / size : groups + 1, [&](int64_t begin, int64_t end) {
        if (!chosen->kernels->largest(x + begin * size, end - begin, size, out + begin)) good = 0;
    });
    return good;
}

// See Kernels::encode_float4.
API void squish_encode_float4(const float* x, const float* steps, int64_t groups, int64_t size, int32_t halves, uint8_t* out,
                              int32_t threads) {
    share_rows(threads, groups, threads > 1 ? (1 << 16) / size : groups + 1, [&](int64_t begin, int64_t end) {
        chosen->kernels->encode_float4(x + begin * size, steps + begin, end - begin, size, halves, out + begin * size / 2);
    });
}

// Four sums per row; see Kernels::compare.
API void squish_compare(const Weights* w, const void* x, int32_t type, int32_t own, double* sums, int32_t threads) {
    share_rows(threads, w->rows, step_for(w->rows, w->columns, threads), [&](int64_t begin, int64_t end) {
        const uint8_t* from = (const uint8_t*)x + begin * w->columns * size_of(type);
        chosen->kernels->compare(*w, begin, end - begin, from, type, own, sums + 4 * begin);
    });
}

// Statistics of all values.
API void squish_tally(const Weights* w, Tally* to, int32_t threads) {
    std::mutex adding;
    *to = {{}, 0, 0, 0, __builtin_inff(), -__builtin_inff()};
    share_rows(threads, w->rows, step_for(w->rows, w->columns, threads), [&](int64_t begin, int64_t end) {
        Tally some;
        chosen->kernels->tally(*w, begin, end - begin, some);
        std::lock_guard<std::mutex> hold(adding);
        for (int at = 0; at < 512; at++) to->powers[at] += some.powers[at];
        to->zeros += some.zeros, to->minus_zeros += some.minus_zeros, to->nan += some.nan;
        if (some.least < to->least) to->least = some.least;
        if (some.greatest > to->greatest) to->greatest = some.greatest;
    });
}

API void squish_fill(void* at, int64_t bytes) { chosen->kernels->fill((uint8_t*)at, bytes); }
API float squish_read(const void* at, int64_t bytes) { return chosen->kernels->read((const uint8_t*)at, bytes); }
