"""Limits of the engine in one place, so that tests can shrink them until every boundary is cheap to reach."""

from __future__ import annotations

from pcopy.fast_named_tuple import NamedTuple


class Limits(NamedTuple):
    """Limits of the engine. Times are in seconds, sizes in bytes."""

    message_bytes: int = 16 << 20
    """Maximum size of the tasks in one message. A single task that is larger is sent alone."""
    scan_ahead_bytes: int = 64 << 20
    """Size of the queued tasks of a rank above which it runs copying tasks before scanning tasks."""
    queue_memory_bytes: int = 128 << 20
    """Size of the tasks in memory above which further tasks are written to the spool."""
    first_steal_wait: float = 0.0002
    """Time for which the first work-stealing request of an idle rank may wait for its reply."""
    longest_steal_wait: float = 0.032
    """Time up to which that wait doubles with each empty reply. Only a rank that has been idle for long waits
    longer.
    """
    progress_interval: float = 0.5
    """Time between two queries for the counters of all ranks."""
    fan_out: int = 8
    """Number of children of a rank in the tree of ranks. With 8, a tree of 4,681 ranks has four levels below rank 0."""
    seconds_to_first_cut: float = 5.0
    """Time from the start of the run to the first cut of the recorded facts. A job that ends earlier writes no records.
    """
    cut_interval: float = 60.0
    """Time up to which the interval between two cuts doubles. A killed job repeats at most the work of such an
    interval.
    """
    last_cut_patience: float = 3.0
    """Maximum time that a job waits for its last records to be on stable storage when it is being stopped."""
    phases_after_cut: tuple[int, ...] = ()
    """Phases that begin only after a cut, even if there was none yet in this job."""
    task_slots: int = 1
    """Maximum number of tasks that a rank has begun and not ended, including those that wait for a ticket."""
