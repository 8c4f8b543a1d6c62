// A thread pool for one task at a time; a caller that finds the pool busy runs its task alone.
#pragma once
#include <cstdint>

// Calls work(context, begin, end) over 0..count in steps, on up to `threads` threads including the caller. Threads take the
// next step when they finish one.
void share(int threads, int64_t count, int64_t step, void (*work)(void*, int64_t, int64_t), void* context);
