/* To be preloaded: CLOCK_MONOTONIC runs a thousand times as fast, from the first call that reads it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define FASTER 1000

static long long began;

static void set(struct timespec *time, long long moment)
{
    time->tv_sec = moment / SECOND;
    time->tv_nsec = moment % SECOND;
}

/* The real time of a moment of the fast clock. */
static struct timespec in_truth(const struct timespec *moment)
{
    struct timespec found;
    set(&found, began + (moment->tv_sec * SECOND + moment->tv_nsec - began) / FASTER);
    return found;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    const int status = (int)syscall(SYS_clock_gettime, clock, time);
    if (status == 0 && clock == CLOCK_MONOTONIC) {
        const long long now = time->tv_sec * SECOND + time->tv_nsec;
        if (began == 0)
            began = now;
        set(time, began + (now - began) * FASTER);
    }
    return status;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *moment, struct timespec *left)
{
    const struct timespec until = clock == CLOCK_MONOTONIC && flags == TIMER_ABSTIME ? in_truth(moment) : *moment;
    return syscall(SYS_clock_nanosleep, clock, flags, &until, left) ? errno : 0;
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *moment)
{
    int (*const wait)(sem_t *, clockid_t, const struct timespec *) =
        (int (*)(sem_t *, clockid_t, const struct timespec *))dlsym(RTLD_NEXT, "sem_clockwait");
    const struct timespec until = clock == CLOCK_MONOTONIC ? in_truth(moment) : *moment;
    return wait(semaphore, clock, &until);
}
