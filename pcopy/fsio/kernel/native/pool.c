/* The queue of batches in progress, and the threads that process their rows.
 *
 * Without threads, the thread that calls pk_poll processes the rows. Worker threads block all signals and call neither
 * Python nor MPI. Data that several threads change are protected by kernel->lock, or atomic.
 */
#include "internal.h"

#include <limits.h>
#include <signal.h>
#include <sys/mman.h>

#define STACK (256u << 10)
#define ROWS_AT_ONCE 16  /* rows that pk_poll processes between two readings of the clock; 1 if each row takes ... */
#define SLOW 500000      /* ... this many nanoseconds */

static int equip(pk_worker *worker, pk_kernel *kernel)
{
    void *buffer = mmap(NULL, PIECE + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED)
        return -1;
    worker->kernel = kernel;
    worker->buffer = buffer;
    return 0;
}

pk_kernel *pk_open(int wake, pk_digest digest)
{
    pk_kernel *kernel = calloc(1, sizeof *kernel);
    if (kernel == NULL)
        return NULL;
    if (equip(&kernel->main, kernel)) {
        free(kernel);
        errno = ENOMEM;
        return NULL;
    }
    pthread_mutex_init(&kernel->lock, NULL);
    pthread_cond_init(&kernel->more, NULL);
    kernel->wake = wake;
    kernel->digest = digest;
    return kernel;
}

void pk_close(pk_kernel *kernel)
{
    pthread_mutex_lock(&kernel->lock);
    kernel->is_closing = 1;
    pthread_cond_broadcast(&kernel->more);
    pthread_mutex_unlock(&kernel->lock);
    for (int each = 0; each < kernel->threads; each++) {
        pthread_join(kernel->workers[each]->thread, NULL);
        munmap(kernel->workers[each]->buffer, PIECE + 4096);
        free(kernel->workers[each]);
    }
    munmap(kernel->main.buffer, PIECE + 4096);
    for (pk_attribute *each = kernel->attributes; each != NULL;) {
        pk_attribute *following = each->following;
        free(each);
        each = following;
    }
    pthread_cond_destroy(&kernel->more);
    pthread_mutex_destroy(&kernel->lock);
    free(kernel);
}

int pk_submit(pk_kernel *kernel, pk_batch *batch)
{
    const int number = pk_unpack(batch);
    if (number)
        return number;
    pk_work *work = batch->work;
    pthread_mutex_lock(&kernel->lock);
    if (batch->rows == 0) {
        atomic_store(&work->done, 1);
    } else {
        if (kernel->last != NULL)
            kernel->last->work->following = batch;
        else
            kernel->first = batch;
        kernel->last = batch;
        if (kernel->unfinished++ == 0)
            kernel->busy_since = pk_now();
        if (kernel->resting)
            pthread_cond_signal(&kernel->more); /* a thread that wakes up wakes the next one if there are more rows */
    }
    pthread_mutex_unlock(&kernel->lock);
    return 0;
}

/* Remove a batch from the queue, so that no thread begins a row of it. The caller holds the lock. */
static void take_out(pk_kernel *kernel, pk_batch *batch)
{
    pk_batch *before = NULL;
    for (pk_batch *each = kernel->first; each != NULL; before = each, each = each->work->following) {
        if (each != batch)
            continue;
        if (before == NULL)
            kernel->first = batch->work->following;
        else
            before->work->following = batch->work->following;
        if (kernel->last == batch)
            kernel->last = before;
        batch->work->following = NULL;
        return;
    }
}

static void wake(pk_kernel *kernel)
{
    const uint64_t one = 1;
    if (kernel->wake >= 0)
        while (write(kernel->wake, &one, sizeof one) < 0 && errno == EINTR)
            ;
}

/* Cancel the rows that no thread has begun. Return 0 if there are none, or if the batch cannot be cancelled (PK_SYNC).
 * The caller holds the lock. */
static int cut_short(pk_kernel *kernel, pk_batch *batch)
{
    pk_work *work = batch->work;
    if (work->next == batch->rows || batch->kind == PK_SYNC)
        return 0;
    take_out(kernel, batch);
    memset(batch->verdicts.codes + work->next, CANCELLED, batch->rows - work->next);
    batch->cancelled = 1;
    work->ended += batch->rows - work->next;
    work->next = batch->rows;
    return 1;
}

/* Mark the batch as done, and return true, if none of its rows is in progress. This is called whenever rows have ended.
 * After it returns true, the polling thread may release the batch at any time, so no other thread may use it. The
 * caller holds the lock. */
static int is_over(pk_kernel *kernel, pk_batch *batch)
{
    pk_work *work = batch->work;
    if (work->ended < batch->rows)
        return 0;
    if (--kernel->unfinished == 0)
        kernel->busy += pk_now() - kernel->busy_since;
    atomic_store_explicit(&work->done, 1, memory_order_release);
    return 1;
}

void pk_cancel(pk_kernel *kernel, pk_batch *batch)
{
    pthread_mutex_lock(&kernel->lock);
    if (cut_short(kernel, batch))
        is_over(kernel, batch);
    pthread_mutex_unlock(&kernel->lock);
}

/* Return how many threads are creating or removing names in the target directory of this batch; -1 if no thread may
 * begin a row of it now. The caller holds the lock.
 *
 * The operating system locks a directory while a name in it is created or removed. Threads that would wait for that
 * lock can process rows of other batches instead.
 */
static int crowd_of(const pk_kernel *kernel, const pk_batch *batch)
{
    if (pk_changes_nothing(batch))
        return 0;
    int modifying = 0, of_one = 0;
    for (int each = 0; each < kernel->threads; each++) {
        pk_batch *other = atomic_load_explicit(&kernel->workers[each]->batch, memory_order_relaxed);
        if (other == NULL || pk_changes_nothing(other))
            continue;
        modifying++;
        of_one += pk_makes_or_removes(other) && other->target == batch->target;
    }
    if (kernel->modifying && modifying >= kernel->modifying)
        return -1;
    if (!batch->at_once || !pk_makes_or_removes(batch))
        return 0;
    return of_one < batch->at_once ? of_one : -1;
}

/* Return the batch of which a thread should begin a row next, or NULL: the one with the fewest threads in its
 * directory, and of these the first. The caller holds the lock. */
static pk_batch *next_batch(const pk_kernel *kernel)
{
    pk_batch *next = NULL;
    int least = INT_MAX;
    if (kernel->working >= kernel->most)
        return NULL;
    for (pk_batch *each = kernel->first; each != NULL && least > 0; each = each->work->following) {
        const int crowd = crowd_of(kernel, each);
        if (crowd >= 0 && crowd < least) {
            next = each;
            least = crowd;
        }
    }
    return next;
}

/* Assign up to `most` rows of a batch to this worker, from *start on. Return their number. The caller holds the
 * lock. */
static uint32_t claim(pk_kernel *kernel, pk_worker *worker, pk_batch *batch, uint32_t most, uint32_t *start)
{
    pk_work *work = batch->work;
    *start = work->next;
    uint32_t number = batch->rows - work->next < most ? batch->rows - work->next : most;
    work->next += number;
    if (work->next == batch->rows)
        take_out(kernel, batch);
    atomic_store_explicit(&worker->row, *start, memory_order_relaxed);
    atomic_store_explicit(&worker->batch, batch, memory_order_relaxed);
    return number;
}

/* Return true if the file system was full or read-only twice without a success in between. */
static int is_at_end(const pk_batch *batch)
{
    return atomic_load_explicit(&batch->work->full, memory_order_relaxed) > 1;
}

/* Process the claimed rows, but stop when the file system is full. Return how many were processed. */
static uint32_t do_rows(pk_worker *worker, pk_batch *batch, uint32_t start, uint32_t number)
{
    const pk_row do_row = pk_row_of(batch);
    const uint64_t first = pk_now();
    uint64_t began = first;
    uint32_t row = start;
    for (; row < start + number && !is_at_end(batch); row++) {
        atomic_store_explicit(&worker->row, row, memory_order_relaxed);
        atomic_store_explicit(&worker->since, began, memory_order_release);
        batch->verdicts.codes[row] = (uint8_t)do_row(worker, batch, row);
        uint64_t ended = pk_now();
        batch->verdicts.nanoseconds[row] = ended - began;
        began = ended;
    }
    atomic_store_explicit(&worker->since, 0, memory_order_release);
    atomic_store_explicit(&worker->operation, OP_NONE, memory_order_relaxed);
    count(&worker->wall, began - first);
    worker->is_slow = began - first > number * SLOW;
    return row - start;
}

/* Record that `did` of `number` claimed rows were processed. Return true if the batch is done. The caller holds the
 * lock. */
static int settle(pk_kernel *kernel, pk_worker *worker, pk_batch *batch, uint32_t start, uint32_t number, uint32_t did)
{
    atomic_store_explicit(&worker->batch, NULL, memory_order_relaxed);
    batch->work->ended += number;
    if (did < number) {
        memset(batch->verdicts.codes + start + did, CANCELLED, number - did);
        batch->cancelled = 1;
    }
    if (is_at_end(batch))
        cut_short(kernel, batch);
    return is_over(kernel, batch);
}

void pk_poll(pk_kernel *kernel, uint64_t nanoseconds)
{
    const uint64_t end = pk_now() + nanoseconds, processor = processor_time();
    pthread_mutex_lock(&kernel->lock);
    int is_done = 0;
    while (!kernel->most && !is_done && kernel->first != NULL) {
        pk_batch *batch = kernel->first;
        const uint32_t most = kernel->main.is_slow || batch->directories != NULL ? 1 : ROWS_AT_ONCE;
        uint32_t start, number = claim(kernel, &kernel->main, batch, most, &start);
        pthread_mutex_unlock(&kernel->lock);
        uint32_t did = do_rows(&kernel->main, batch, start, number);
        pthread_mutex_lock(&kernel->lock);
        is_done = settle(kernel, &kernel->main, batch, start, number, did);
        if (pk_now() >= end)
            break;
    }
    pthread_mutex_unlock(&kernel->lock);
    count(&kernel->main.processor, processor_time() - processor);
}

static void *work(void *argument)
{
    pk_worker *worker = argument;
    pk_kernel *kernel = worker->kernel;
    pthread_mutex_lock(&kernel->lock);
    while (!kernel->is_closing) {
        pk_batch *batch = next_batch(kernel);
        if (batch == NULL) {
            kernel->resting++;
            pthread_cond_wait(&kernel->more, &kernel->lock);
            kernel->resting--;
            continue;
        }
        uint32_t start, number = claim(kernel, worker, batch, 1, &start);
        kernel->working++;
        if (kernel->resting && next_batch(kernel) != NULL)
            pthread_cond_signal(&kernel->more);
        pthread_mutex_unlock(&kernel->lock);
        const uint64_t processor = processor_time();
        uint32_t did = do_rows(worker, batch, start, number);
        count(&worker->processor, processor_time() - processor);
        pthread_mutex_lock(&kernel->lock);
        kernel->working--;
        if (settle(kernel, worker, batch, start, number, did))
            wake(kernel);
    }
    pthread_mutex_unlock(&kernel->lock);
    return NULL;
}

/* Start one more thread. Return 0, or -1 if that fails. The caller holds the lock. */
static int start(pk_kernel *kernel, const pthread_attr_t *attributes)
{
    pk_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL || equip(worker, kernel)) {
        free(worker);
        return -1;
    }
    if (pthread_create(&worker->thread, attributes, work, worker)) {
        munmap(worker->buffer, PIECE + 4096);
        free(worker);
        return -1;
    }
    kernel->workers[kernel->threads++] = worker;
    return 0;
}

int pk_set_threads(pk_kernel *kernel, int threads, int modifying)
{
    const int room = (int)(sizeof kernel->workers / sizeof *kernel->workers);
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes))
        return kernel->most;
    pthread_attr_setstacksize(&attributes, STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&kernel->lock);
    while (kernel->threads < threads && kernel->threads < room && !start(kernel, &attributes))
        ;
    kernel->most = threads < kernel->threads ? threads : kernel->threads;
    kernel->modifying = modifying;
    pthread_cond_broadcast(&kernel->more);
    pthread_mutex_unlock(&kernel->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return kernel->most;
}
