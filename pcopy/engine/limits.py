"""The engine's numbers in one place, so that tests can shrink them until every boundary is cheap to reach."""

from __future__ import annotations

from typing import NamedTuple

from pcopy.engine.messages import MESSAGE_BYTES


class Limits(NamedTuple):
    """Times are in seconds, sizes in bytes.

    ``scan_ahead`` is what may wait in a rank's queue before it prefers copying to scanning; ``in_core`` what may wait
    in memory before further tasks go to the spool. Facts are cut after ``first_cut``, and then at intervals that
    double up to ``cut_interval``; a job that was told to stop waits for ``last_cut`` at most until its last facts are
    on storage. Before the phases ``durable_before`` there is a cut even if there has not been one yet.
    """

    message_bytes: int = MESSAGE_BYTES
    scan_ahead: int = 64 << 20
    in_core: int = 128 << 20
    steal_backoff: float = 0.0002
    steal_backoff_cap: float = 0.032
    progress_interval: float = 0.5
    fan_out: int = 8
    first_cut: float = 5.0
    cut_interval: float = 60.0
    last_cut: float = 3.0
    durable_before: tuple[int, ...] = ()
