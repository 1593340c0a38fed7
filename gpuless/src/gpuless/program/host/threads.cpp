// A thread of the host that waits for another one: pending work runs meanwhile, as a GPU's would, since the other one
// may be waiting for a callback, or nobody may be left who waits for the work. These functions take the C library's
// places.
#include "host.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include <algorithm>

using namespace rung_host;

constexpr long FIRST = 1'000'000, MOST = 50'000'000;  // nanoseconds between two looks for work

static timespec soon(long& apart)
{
    timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_nsec += apart, apart = std::min(2 * apart, MOST), at.tv_sec += at.tv_nsec / 1'000'000'000,
                         at.tv_nsec %= 1'000'000'000;
    return at;
}

extern "C" {

RUNG_HOST int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
{
    for (long apart = FIRST;;) {
        const timespec until = soon(apart);
        const int result = pthread_cond_timedwait(condition, mutex, &until);
        if (result != ETIMEDOUT) return result;
        pthread_mutex_unlock(mutex);
        const bool ran = run_pending();
        pthread_mutex_lock(mutex);
        if (ran) return 0;  // as a wake-up without a reason
    }
}

RUNG_HOST int pthread_join(pthread_t thread, void** result)
{
    for (long apart = FIRST;;) {
        const timespec until = soon(apart);
        if (const int error = pthread_timedjoin_np(thread, result, &until); error != ETIMEDOUT) return error;
        while (run_pending()) {}
    }
}

RUNG_HOST int sem_wait(sem_t* semaphore)
{
    for (long apart = FIRST;;) {
        const timespec until = soon(apart);
        if (!sem_timedwait(semaphore, &until)) return 0;
        if (errno != ETIMEDOUT) return -1;
        while (run_pending()) {}
    }
}

}  // extern "C"
