/* The queue of batches in progress, and the threads that process their rows.
 *
 * Without worker threads, the thread that calls pk_poll processes the rows. Worker threads block all signals and call
 * neither Python nor MPI. Data that several threads change are protected by backend->lock, or atomic.
 */
#include "internal.h"

#include <limits.h>
#include <signal.h>
#include <sys/mman.h>

#define STACK (256u << 10) /* bytes of the stack of a thread */
#define ROWS_AT_ONCE 16  /* rows that pk_poll processes before it checks its time limit; 1 if rows are slow */
#define SLOW 500000      /* nanoseconds per row from which on rows count as slow */

static int equip(pk_worker *worker, pk_backend *backend)
{
    void *buffer = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED)
        return -1;
    worker->backend = backend;
    worker->buffer = buffer;
    worker->inside = -1;
    return 0;
}

pk_backend *pk_open(int wake, pk_digest digest)
{
    pk_backend *backend = calloc(1, sizeof *backend);
    if (backend == NULL)
        return NULL;
    if (equip(&backend->main, backend)) {
        free(backend);
        errno = ENOMEM;
        return NULL;
    }
    pthread_mutex_init(&backend->lock, NULL);
    pthread_cond_init(&backend->more, NULL);
    backend->wake = wake;
    backend->digest = digest;
    return backend;
}

void pk_close(pk_backend *backend)
{
    pthread_mutex_lock(&backend->lock);
    backend->is_closing = 1;
    pthread_cond_broadcast(&backend->more);
    pthread_mutex_unlock(&backend->lock);
    for (int each = 0; each < backend->threads; each++) {
        pthread_join(backend->workers[each]->thread, NULL);
        munmap(backend->workers[each]->buffer, BUFFER);
        free(backend->workers[each]);
    }
    munmap(backend->main.buffer, BUFFER);
    for (pk_attribute *each = backend->attributes; each != NULL;) {
        pk_attribute *following = each->following;
        free(each);
        each = following;
    }
    pthread_cond_destroy(&backend->more);
    pthread_mutex_destroy(&backend->lock);
    free(backend);
}

int pk_submit(pk_backend *backend, pk_batch *batch)
{
    const int number = pk_create_work(batch);
    if (number)
        return number;
    pk_work *work = batch->work;
    pthread_mutex_lock(&backend->lock);
    if (batch->rows == 0) {
        atomic_store(&work->done, 1);
    } else {
        if (backend->last != NULL)
            backend->last->work->following = batch;
        else
            backend->first = batch;
        backend->last = batch;
        if (backend->unfinished++ == 0)
            backend->busy_since = pk_now();
        if (backend->resting)
            pthread_cond_signal(&backend->more); /* a thread that wakes up wakes the next one if there are more rows */
    }
    pthread_mutex_unlock(&backend->lock);
    return 0;
}

/* Remove a batch from the queue, so that no thread begins a row of it. The caller holds the lock. */
static void take_out(pk_backend *backend, pk_batch *batch)
{
    pk_batch *before = NULL;
    for (pk_batch *each = backend->first; each != NULL; before = each, each = each->work->following) {
        if (each != batch)
            continue;
        if (before == NULL)
            backend->first = batch->work->following;
        else
            before->work->following = batch->work->following;
        if (backend->last == batch)
            backend->last = before;
        batch->work->following = NULL;
        return;
    }
}

static void wake(pk_backend *backend)
{
    const uint64_t one = 1;
    if (backend->wake >= 0)
        while (write(backend->wake, &one, sizeof one) < 0 && errno == EINTR)
            ;
}

/* Cancel the rows that no thread has begun. Return 0 if there are none, or if the batch cannot be cancelled (PK_SYNC).
 * The caller holds the lock. */
static int cut_short(pk_backend *backend, pk_batch *batch)
{
    pk_work *work = batch->work;
    if (work->next == batch->rows || batch->kind == PK_SYNC)
        return 0;
    take_out(backend, batch);
    memset(batch->verdicts.codes + work->next, CANCELLED, batch->rows - work->next);
    batch->cancelled = 1;
    work->ended += batch->rows - work->next;
    work->next = batch->rows;
    return 1;
}

/* Mark the batch as done, and return true, if none of its rows is in progress. This is called whenever rows have ended.
 * After it returns true, the polling thread may release the batch at any time, so no other thread may use it. The
 * caller holds the lock. */
static int is_over(pk_backend *backend, pk_batch *batch)
{
    pk_work *work = batch->work;
    if (work->ended < batch->rows)
        return 0;
    if (--backend->unfinished == 0)
        backend->busy += pk_now() - backend->busy_since;
    atomic_store_explicit(&work->done, 1, memory_order_release);
    return 1;
}

void pk_cancel(pk_backend *backend, pk_batch *batch)
{
    atomic_store_explicit(&batch->work->is_cancelled, 1, memory_order_relaxed);
    pthread_mutex_lock(&backend->lock);
    if (cut_short(backend, batch))
        is_over(backend, batch);
    pthread_mutex_unlock(&backend->lock);
}

/* Return how many threads are creating or removing names in the target directory of this batch; 0 if its rows do not do
 * that; -1 if no thread may begin a row of it now. The caller holds the lock.
 *
 * The operating system locks a directory while a name in it is created or removed. Threads that would wait for that
 * lock can process rows of other batches instead.
 */
static int crowd_of(const pk_backend *backend, const pk_batch *batch)
{
    if (pk_changes_nothing(batch))
        return 0;
    int modifying = 0, of_one = 0;
    for (int each = 0; each < backend->threads; each++) {
        pk_batch *other = atomic_load_explicit(&backend->workers[each]->batch, memory_order_relaxed);
        if (other == NULL || pk_changes_nothing(other))
            continue;
        modifying++;
        of_one += pk_makes_or_removes(other) && other->target == batch->target;
    }
    if (backend->modifying && modifying >= backend->modifying)
        return -1;
    if (!batch->at_once || !pk_makes_or_removes(batch))
        return 0;
    return of_one < batch->at_once ? of_one : -1;
}

/* Return the batch of which a thread should begin a row next, or NULL: the one with the fewest threads in its
 * directory, and of these the first. The caller holds the lock. */
static pk_batch *next_batch(const pk_backend *backend)
{
    pk_batch *next = NULL;
    int least = INT_MAX;
    if (backend->working >= backend->most)
        return NULL;
    for (pk_batch *each = backend->first; each != NULL && least > 0; each = each->work->following) {
        const int crowd = crowd_of(backend, each);
        if (crowd >= 0 && crowd < least) {
            next = each;
            least = crowd;
        }
    }
    return next;
}

/* Assign up to `most` rows of a batch to this worker, from *start on. Return their number. The caller holds the
 * lock. */
static uint32_t claim(pk_backend *backend, pk_worker *worker, pk_batch *batch, uint32_t most, uint32_t *start)
{
    pk_work *work = batch->work;
    *start = work->next;
    uint32_t number = batch->rows - work->next < most ? batch->rows - work->next : most;
    work->next += number;
    if (work->next == batch->rows)
        take_out(backend, batch);
    atomic_store_explicit(&worker->row, *start, memory_order_relaxed);
    atomic_store_explicit(&worker->batch, batch, memory_order_relaxed);
    return number;
}

/* Return true if the file system was full or read-only for two rows without a successful row in between: further
 * rows would fail, too. */
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

/* Record that the first `did` of `number` claimed rows were processed, and cancel the others. Return true if the
 * batch is done. The caller holds the lock. */
static int end_rows(pk_backend *backend, pk_worker *worker, pk_batch *batch, uint32_t start, uint32_t number, uint32_t did)
{
    atomic_store_explicit(&worker->batch, NULL, memory_order_relaxed);
    batch->work->ended += number;
    if (did < number) {
        memset(batch->verdicts.codes + start + did, CANCELLED, number - did);
        batch->cancelled = 1;
    }
    if (is_at_end(batch))
        cut_short(backend, batch);
    return is_over(backend, batch);
}

void pk_poll(pk_backend *backend, uint64_t nanoseconds)
{
    const uint64_t end = pk_now() + nanoseconds, processor = processor_time();
    pthread_mutex_lock(&backend->lock);
    int is_done = 0;
    while (!backend->most && !is_done && backend->first != NULL) {
        pk_batch *batch = backend->first;
        const uint32_t most = backend->main.is_slow || batch->directories != NULL ? 1 : ROWS_AT_ONCE;
        uint32_t start, number = claim(backend, &backend->main, batch, most, &start);
        pthread_mutex_unlock(&backend->lock);
        uint32_t did = do_rows(&backend->main, batch, start, number);
        pthread_mutex_lock(&backend->lock);
        is_done = end_rows(backend, &backend->main, batch, start, number, did);
        if (pk_now() >= end)
            break;
    }
    pthread_mutex_unlock(&backend->lock);
    count(&backend->main.processor, processor_time() - processor);
}

static void *work(void *argument)
{
    pk_worker *worker = argument;
    pk_backend *backend = worker->backend;
    pthread_mutex_lock(&backend->lock);
    while (!backend->is_closing) {
        pk_batch *batch = next_batch(backend);
        if (batch == NULL) {
            backend->resting++;
            pthread_cond_wait(&backend->more, &backend->lock);
            backend->resting--;
            continue;
        }
        uint32_t start, number = claim(backend, worker, batch, 1, &start);
        backend->working++;
        if (backend->resting && next_batch(backend) != NULL)
            pthread_cond_signal(&backend->more);
        pthread_mutex_unlock(&backend->lock);
        const uint64_t processor = processor_time();
        uint32_t did = do_rows(worker, batch, start, number);
        count(&worker->processor, processor_time() - processor);
        pthread_mutex_lock(&backend->lock);
        backend->working--;
        if (end_rows(backend, worker, batch, start, number, did))
            wake(backend);
    }
    pthread_mutex_unlock(&backend->lock);
    return NULL;
}

/* Start one more thread. Return 0, or -1 if that fails. The caller holds the lock. */
static int start(pk_backend *backend, const pthread_attr_t *attributes)
{
    pk_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL || equip(worker, backend)) {
        free(worker);
        return -1;
    }
    if (pthread_create(&worker->thread, attributes, work, worker)) {
        munmap(worker->buffer, BUFFER);
        free(worker);
        return -1;
    }
    backend->workers[backend->threads++] = worker;
    return 0;
}

int pk_set_threads(pk_backend *backend, int threads, int modifying)
{
    const int room = (int)(sizeof backend->workers / sizeof *backend->workers);
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes))
        return backend->most;
    pthread_attr_setstacksize(&attributes, STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&backend->lock);
    while (backend->threads < threads && backend->threads < room && !start(backend, &attributes))
        ;
    backend->most = threads < backend->threads ? threads : backend->threads;
    backend->modifying = modifying;
    pthread_cond_broadcast(&backend->more);
    pthread_mutex_unlock(&backend->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return backend->most;
}
