// Threads that wait for work. One piece of work at a time is shared; whoever finds the pool busy works alone.
#pragma once
#include <cstdint>

// Calls work(context, begin, end) over 0..count in steps, on up to `threads` threads, the calling one among them. Who is
// done first takes the next step.
void share(int threads, int64_t count, int64_t step, void (*work)(void*, int64_t, int64_t), void* context);
