"""Limits that the ranks of a host share, and limits of each rank, as numbers."""

from __future__ import annotations

import pytest

from pcopy.engine.driver import LONGEST_SLEEP
from pcopy.jobs.lifecycle import CheckpointSettings
from pcopy.launch.rank import JOURNAL_TIMEOUT, engine_limits

MIB = 1 << 20


@pytest.mark.parametrize(("size", "on_host", "each"), [(1, 1.0, 48), (4, 4.0, 12), (8, 4.0, 12), (9, 3.0, 16)])
@pytest.mark.parametrize("store", ["auto", "pickle", "lmdb"])
def test_memory_is_divided_among_the_ranks_of_a_host(size: int, on_host: float, each: int, store: str) -> None:
    assert (
        engine_limits(size, on_host, CheckpointSettings(memory=48 * MIB, store=store)).queue_memory_bytes == each * MIB
    )


@pytest.mark.parametrize(("size", "on_host", "each"), [(1, 1.0, 16), (8, 8.0, 16), (64, 16.0, 8)])
def test_explicit_lmdb_store_leaves_each_rank_one_mebibyte(size: int, on_host: float, each: int) -> None:
    assert engine_limits(size, on_host, CheckpointSettings(store="lmdb")).queue_memory_bytes == MIB
    for store in ("auto", "pickle"):
        assert engine_limits(size, on_host, CheckpointSettings(store=store)).queue_memory_bytes == each * MIB


@pytest.mark.parametrize(("size", "each"), [(1, 32), (2, 32), (4, 32), (8, 16), (128, 1)])
def test_scan_ahead_limit_of_each_rank(size: int, each: int) -> None:
    """Queued tasks are also part of facts that are not recorded yet; together they take less than 100 MB."""
    assert engine_limits(size, float(size), CheckpointSettings()).scan_ahead_bytes == each * MIB


def test_stopping_job_ends_within_five_seconds() -> None:
    """The signal may reach a sleeping rank, and the root requests its answers once per interval."""
    limits = engine_limits(8, 8.0, CheckpointSettings(directory=b"/job"))
    assert limits.last_checkpoint_cut_timeout + JOURNAL_TIMEOUT + LONGEST_SLEEP + limits.progress_interval < 5
    assert limits.last_checkpoint_cut_timeout >= 1, "a quick storage has its time"
