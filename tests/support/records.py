"""Reads complete records of checkpoints, which the programs read in parts."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pcopy.checkpoint.record import EpochTaskRecord, SharePacker, unpack_task_record
from pcopy.engine.task import TaskId


def read_record(payload: bytes) -> EpochTaskRecord:
    """Return the packed record; raise ``ValueError`` if it is not a record."""
    head, done, unpacked, spawned = unpack_task_record(payload)
    shares = tuple(map(SharePacker().pack_share, unpacked))
    return EpochTaskRecord(*head[:6], done, tuple(tuple(task) for task in spawned), shares, head.checkpoint_cut_time)


def unpack_ids(packed: bytes) -> Iterator[TaskId]:
    """Task ids (run, rank, number) of 16 bytes each, big-endian."""
    return struct.iter_unpack(">IIQ", packed)
