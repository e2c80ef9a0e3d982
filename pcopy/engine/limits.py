"""The engine's numbers in one place, so that tests can shrink them until every boundary is cheap to reach."""

from __future__ import annotations

from pcopy.named import NamedTuple


class Limits(NamedTuple):
    """Times are in seconds, sizes in bytes."""

    message_bytes: int = 16 << 20
    """Upper bound of the payloads in one message (one task may pass it alone)."""
    scan_ahead: int = 64 << 20
    """Bytes of tasks that may wait in a rank's queue before it prefers copying to scanning."""
    in_core: int = 128 << 20
    """Bytes of tasks that may wait in memory before further ones go to the spool."""
    steal_backoff: float = 0.0002
    """A thief's first pause after a refusal."""
    steal_backoff_cap: float = 0.032
    """To which that pause doubles; it is longer only for a rank that has been idle for long."""
    progress_interval: float = 0.5
    """Between two queries for the counters of all ranks."""
    fan_out: int = 8
    """Children of a rank in the tree of counters: 4,681 ranks are four levels below the root."""
    first_cut: float = 5.0
    """After which facts are cut first: a shorter job pays for no record."""
    cut_interval: float = 60.0
    """To which the time between two cuts doubles: so much is done again at most after a kill."""
    last_cut: float = 3.0
    """For which a job that was told to stop waits at most until its last facts are on storage."""
    durable_before: tuple[int, ...] = ()
    """Phases before which there is a cut even if there has not been one yet."""
    slots: int = 1
    """How many tasks a rank may have under way, those that wait for a ticket included."""
