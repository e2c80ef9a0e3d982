/* What the threads do: the work that they have done so far, and the row that has been in progress longest. */
#include "internal.h"

static void sum_up(const pk_worker *worker, pk_load *load)
{
    load->operations += atomic_load_explicit(&worker->operations, memory_order_relaxed);
    load->wall += atomic_load_explicit(&worker->wall, memory_order_relaxed);
    load->processor += atomic_load_explicit(&worker->processor, memory_order_relaxed);
}

void pk_measure(pk_backend *backend, pk_load *load)
{
    memset(load, 0, sizeof *load);
    pthread_mutex_lock(&backend->lock);
    load->busy = backend->busy + (backend->unfinished ? pk_now() - backend->busy_since : 0);
    sum_up(&backend->main, load);
    for (int each = 0; each < backend->threads; each++)
        sum_up(backend->workers[each], load);
    pthread_mutex_unlock(&backend->lock);
}

static void older(pk_worker *worker, pk_doing *doing, pk_batch **batch, uint32_t *row, int *inside)
{
    uint64_t since = atomic_load_explicit(&worker->since, memory_order_acquire);
    pk_batch *under_way = atomic_load_explicit(&worker->batch, memory_order_relaxed);
    if (since == 0 || under_way == NULL || (doing->since != 0 && doing->since <= since))
        return;
    doing->since = since;
    doing->operation = atomic_load_explicit(&worker->operation, memory_order_relaxed);
    *row = atomic_load_explicit(&worker->row, memory_order_relaxed);
    *inside = atomic_load_explicit(&worker->inside, memory_order_relaxed);
    *batch = under_way;
}

int pk_oldest(pk_backend *backend, pk_doing *doing)
{
    pk_batch *batch = NULL;
    uint32_t row = 0;
    int inside = -1;
    memset(doing, 0, sizeof *doing);
    pthread_mutex_lock(&backend->lock);
    older(&backend->main, doing, &batch, &row, &inside);
    for (int each = 0; each < backend->threads; each++)
        older(backend->workers[each], doing, &batch, &row, &inside);
    if (batch != NULL && inside >= 0) {
        doing->directory = inside;
    } else if (batch != NULL) {
        const int of_source = doing->operation <= OP_GETXATTR || doing->operation == OP_READDIR ||
                              (batch->kind != PK_COPY && batch->kind != PK_COPY_TREE);
        doing->directory = batch->kind == PK_SYNC      ? batch->synced[row]
                           : batch->kind == PK_MEMBERS ? batch->runs[row].directory
                           : of_source                 ? batch->directory
                                                       : batch->target;
        strncpy(doing->name, (of_source ? batch->work->name : batch->work->new_name)[row], sizeof doing->name - 1);
    }
    pthread_mutex_unlock(&backend->lock);
    return batch != NULL;
}
