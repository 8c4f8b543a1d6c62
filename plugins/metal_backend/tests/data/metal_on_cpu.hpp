// The part of the Metal shading language that our kernels use, in C++, and a scheduler that runs a threadgroup as fibers.
// It does not know address spaces, resource limits or the rules of half arithmetic: those are checked on a Mac alone.
#include <ucontext.h>

#include <stdint.h>
#include <string.h>

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
    memcpy(&to, &from, sizeof to);
    return to;
}
inline uint popcount(uint value) { return __builtin_popcount(value); }

namespace fibers {
const size_t most = 1024, stack = 1 << 16;
struct Fiber {
    ucontext_t context;
    uint3 in_grid, in_group;
    bool done;
};
static ucontext_t scheduler;
static Fiber all[most];
static char stacks[most][stack];
static float slots[most];
static size_t count, current;

// Every thread runs up to here before any goes on.
inline void meet() { swapcontext(&all[current].context, &scheduler); }

inline void run(void (*entry)()) {
    for (size_t at = 0; at < count; ++at) {
        getcontext(&all[at].context);
        all[at].context.uc_stack.ss_sp = stacks[at];
        all[at].context.uc_stack.ss_size = stack;
        all[at].context.uc_link = &scheduler;
        makecontext(&all[at].context, entry, 0);
    }
    for (bool going = true; going;) {
        going = false;
        for (current = 0; current < count; ++current)
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
    const size_t me = fibers::current, first = me & ~size_t(31);
    const size_t last = first + 32 < fibers::count ? first + 32 : fibers::count;
    fibers::slots[me] = value;
    fibers::meet();
    float sum = 0.0f;
    for (size_t lane = first; lane < last; ++lane) sum += fibers::slots[lane];
    fibers::meet();
    return sum;
}
