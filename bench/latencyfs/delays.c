/* Delays and counts of operations, by type. */
#include "latencyfs.h"

#include <stdatomic.h>
#include <time.h>

#define AS_NAME(name, group) #name,
#define AS_GROUP(name, group) group,
enum group { METADATA, DATA, UNWAITED };
static const char *const names[] = {KINDS(AS_NAME)};
static const enum group groups[] = {KINDS(AS_GROUP)};

static _Atomic long delays[KIND_COUNT], counts[KIND_COUNT], sleeping, most_sleeping;

void count(enum kind kind)
{
    atomic_fetch_add(&counts[kind], 1);
    long delay = atomic_load(&delays[kind]);
    if (!delay)
        return;
    long now = atomic_fetch_add(&sleeping, 1) + 1, most = atomic_load(&most_sleeping);
    while (now > most && !atomic_compare_exchange_weak(&most_sleeping, &most, now))
        ;
    struct timespec left = {delay / 1000000, delay % 1000000 * 1000};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR)
        ;
    atomic_fetch_sub(&sleeping, 1);
}

bool is_refused(fuse_req_t req, enum kind kind)
{
    while (*(volatile bool *)&quirks.silent)
        usleep(10000);
    count(kind);
    int error = refusal_errno(kind);
    if (error)
        fuse_reply_err(req, error);
    return error;
}

static bool applies(const char *word, enum kind kind)
{
    if (!strcmp(word, names[kind]))
        return true;
    if (groups[kind] == UNWAITED)
        return false;
    return !strcmp(word, "all") || !strcmp(word, groups[kind] == METADATA ? "metadata" : "data");
}

/* Set delays from "KIND=MICROSECONDS,...". Return false for a mistake; the parts before it are in effect then. */
bool set_delays(char *text)
{
    atomic_store(&most_sleeping, 0);
    char *state = NULL;
    for (char *part = strtok_r(text, ",", &state); part; part = strtok_r(NULL, ",", &state)) {
        char *value = strchr(part, '='), *end;
        if (!value)
            return false;
        *value++ = 0;
        long delay = strtol(value, &end, 10);
        bool known = false;
        for (int kind = 0; kind < KIND_COUNT; kind++)
            if (applies(part, kind)) {
                atomic_store(&delays[kind], delay);
                known = true;
            }
        if (!known || end == value || *end || delay < 0)
            return false;
    }
    return true;
}

size_t format_counts(char *text, size_t size)
{
    size_t used = 0;
    for (int kind = 0; kind < KIND_COUNT; kind++)
        used += snprintf(text + used, size - used, "%s %ld\n", names[kind], atomic_load(&counts[kind]));
    used += snprintf(text + used, size - used, "sleeping %ld\n", atomic_load(&most_sleeping));
    return used;
}
