#include "pool.h"

#ifndef _WIN32
#include <pthread.h>
#endif

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace {

struct Job {
    void (*work)(void*, int64_t, int64_t);
    void* context;
    int64_t count, step;
    std::atomic<int64_t> next{0};

    void run() {
        for (int64_t at; (at = next.fetch_add(step, std::memory_order_relaxed)) < count;)
            work(context, at, at + step < count ? at + step : count);
    }
};

class Pool {
  public:
    std::mutex busy;

    void run(Job& job, int helpers) {
        grow(helpers);
        {
            std::lock_guard<std::mutex> hold(lock_);
            job_ = &job;
            wanted_ = helpers < size_ ? helpers : size_;
        }
        wake_.notify_all();
        job.run();
        std::unique_lock<std::mutex> hold(lock_);
        wanted_ = 0;  // idle threads need not start
        done_.wait(hold, [this] { return running_ == 0; });
        job_ = nullptr;
    }

  private:
    std::mutex lock_;
    std::condition_variable wake_, done_;
    Job* job_ = nullptr;
    int size_ = 0, wanted_ = 0, running_ = 0;

    void grow(int helpers) {
        for (; size_ < helpers; size_++) try {
                std::thread(&Pool::serve, this).detach();
            } catch (const std::system_error&) {
                return;  // thread creation failed: fewer threads share the work
            }
    }

    void serve() {
        std::unique_lock<std::mutex> hold(lock_);
        for (;;) {
            wake_.wait(hold, [this] { return wanted_ > 0; });
            wanted_--, running_++;
            Job* job = job_;
            hold.unlock();
            job->run();
            hold.lock();
            if (--running_ == 0) done_.notify_one();
        }
    }
};

// A forked child has only this thread, and possibly a lock held by a lost thread, so it creates a new pool.
// Pools are never destroyed, since their threads wait in them until the process exits.
Pool* pool = nullptr;
std::once_flag prepared;

void renew() { pool = new (std::nothrow) Pool; }

}  // namespace

void share(int threads, int64_t count, int64_t step, void (*work)(void*, int64_t, int64_t), void* context) {
    std::call_once(prepared, [] {
        renew();
#ifndef _WIN32
        pthread_atfork(nullptr, nullptr, renew);
#endif
    });
    Job job;
    job.work = work, job.context = context, job.count = count, job.step = step;
    if (threads > 1 && count > step && pool && pool->busy.try_lock()) {
        std::lock_guard<std::mutex> hold(pool->busy, std::adopt_lock);
        return pool->run(job, threads - 1);
    }
    job.run();
}
