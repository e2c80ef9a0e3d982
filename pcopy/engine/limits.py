"""Limits of the engine (the code that distributes tasks over the ranks), in one place: tests set them so low that every
boundary is cheap to reach.
"""

from __future__ import annotations

from pcopy.fast_named_tuple import NamedTuple


class EngineLimits(NamedTuple):
    """Limits of the engine, the code that distributes tasks over the ranks. Times are in seconds, sizes in bytes."""

    message_bytes: int = 4 << 20
    """Maximum size of the tasks in one message. A single task that is larger is sent alone."""
    scan_ahead_bytes: int = 64 << 20
    """A rank prefers tasks that find more work (scanning) until its queued tasks exceed this size. Then it prefers
    tasks that find none (copying), so that the queue does not grow further.
    """
    queue_memory_bytes: int = 16 << 20
    """Size of a rank's queued tasks in memory above which it writes more tasks to the spool, a temporary file."""
    first_steal_wait: float = 0.0002
    """When a rank becomes idle and requests tasks from another rank: time for which that rank may delay its first
    reply.
    """
    longest_steal_wait: float = 0.032
    """With each reply that brings no tasks, the wait of the next request doubles, from ``first_steal_wait`` up to this
    time. Only a rank that has been idle for long waits longer.
    """
    progress_interval: float = 0.5
    """Time between two queries of rank 0 for the counters of all ranks."""
    fan_out: int = 8
    """Maximum number of child ranks that a rank has in the tree of ranks, along which messages to all ranks are sent.
    With 8, a tree of 4,681 ranks has four levels below rank 0.
    """
    seconds_to_first_checkpoint_cut: float = 5.0
    """Time from the start of the run to the first cut: the moment up to which all ranks write to the job directory
    which tasks were spawned and done. A job that ends earlier writes no records.
    """
    checkpoint_cut_interval: float = 60.0
    """Maximum time between two cuts, the moments up to which all ranks record their spawned and done tasks. The
    interval doubles with each cut until it reaches this value. A job that was killed repeats, when it is resumed, at
    most the work of one interval.
    """
    last_checkpoint_cut_timeout: float = 3.0
    """A job that is being stopped makes a last cut: each rank writes its last records. Maximum time that the job waits
    for these records to be on stable storage.
    """
    phases_after_checkpoint_cut: tuple[int, ...] = ()
    """Numbers of the phases that begin only after a cut, that is, when the records of all earlier tasks are on stable
    storage. It applies even to a job so short that it has made no cut before.
    """
    task_slots: int = 1
    """Maximum number of tasks that a rank has begun and not ended, including those that wait for a ticket (a batch of
    system calls in progress).
    """
