// The part of the Metal shading language that our kernels use, in C++, and a scheduler that runs a threadgroup as fibers.
// It does not know address spaces, resource limits or the rules of half arithmetic: those are checked on a Mac alone.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using half = _Float16;
using uint = uint32_t;
using ushort = uint16_t;
using uchar = uint8_t;
using float16_t = half;
struct uint3 { uint x, y, z; };

#define device
#define constant
#define thread
#define threadgroup static

template <class To, class From> To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
inline uint popcount(uint value) { return __builtin_popcount(value); }

namespace fibers {
struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    uint3 in_grid, in_group;
    bool done;
};
inline ucontext_t scheduler;
inline std::vector<Fiber> all;
inline size_t current;
inline std::vector<float> slots;

// Every thread runs up to here before any goes on.
inline void meet() { swapcontext(&all[current].context, &scheduler); }

inline void run(void (*entry)()) {
    slots.assign(all.size(), 0.0f);
    for (auto& fiber : all) {
        fiber.stack.resize(1 << 16);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, entry, 0);
    }
    for (bool going = true; going;) {
        going = false;
        for (current = 0; current < all.size(); ++current)
            if (!all[current].done) {
                swapcontext(&scheduler, &all[current].context);
                going |= !all[current].done;
            }
    }
}
}  // namespace fibers

enum class mem_flags { mem_none, mem_device, mem_threadgroup };
inline void threadgroup_barrier(mem_flags) { fibers::meet(); }
inline void simdgroup_barrier(mem_flags) { fibers::meet(); }

inline float simd_sum(float value) {
    const size_t me = fibers::current, first = me & ~size_t(31), last = std::min(first + 32, fibers::slots.size());
    fibers::slots[me] = value;
    fibers::meet();
    float sum = 0.0f;
    for (size_t lane = first; lane < last; ++lane) sum += fibers::slots[lane];
    fibers::meet();
    return sum;
}
