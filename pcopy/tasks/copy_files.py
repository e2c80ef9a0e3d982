"""CopyFiles: a batch of small regular files of one directory."""

from __future__ import annotations

from collections.abc import Generator

from pcopy.engine.driver import Slices
from pcopy.fsio.patience import PASSING
from pcopy.fsio.problem import Problem
from pcopy.tasks import counts
from pcopy.tasks.context import FILES_PER_SLICE, Context
from pcopy.tasks.hashing import Gathered
from pcopy.tasks.read_items import skipped
from pcopy.tasks.result import Result
from pcopy.tasks.retry import failed_or_retried
from pcopy.tasks.targets import look
from pcopy.tasks.values import CopyFiles, Place, unpack_names, unpack_numbers
from pcopy.tasks.whole_file import Settled, copy_whole


def copy_files(task: CopyFiles, context: Context, result: Result) -> Slices:
    """New ones go through the kernel, those that need care one by one after it.

    Where files are synced one by one all need care.
    """
    place = task.place
    names = unpack_names(task.names)
    inodes = unpack_numbers(task.inodes)
    sizes = unpack_numbers(task.sizes)
    try:
        source, target = context.open_source(place), context.open_target(place)
    except Problem as problem:
        for name, size in zip(names, sizes, strict=True):
            result.fail(place, name, problem, size)
        return result.outcome()
    careful = _taken(context, place, target, names)
    plain = [index for index in range(len(names)) if index not in careful] if careful else range(len(names))
    verdicts = context.kernel.copy_new_files(
        source,
        target,
        [names[index] for index in plain] if careful else names,
        [inodes[index] for index in plain] if careful else inodes,
        context.source_device(place) or 0,
        inherits=place.inherits,
        target_names=[context.new_name(place, names[index]) for index in plain]
        if context.job.roots[place.root].item
        else None,
    )
    digested = Gathered() if context.signs or context.options.verify else None
    copied = moved = told = 0
    for index, verdict in zip(plain, verdicts, strict=True):
        if isinstance(verdict, tuple):
            status, size, digest = verdict
            copied += 1
            moved += size
            if digested is not None:
                digested.add_file(names[index], status, size, digest, counts.FILES)
            if not copied % FILES_PER_SLICE:
                context.counters[counts.MOVED] += moved - told
                told = moved
                yield
        elif isinstance(verdict, int) or (verdict.on_source and verdict.errno in PASSING):
            careful.add(index)
        else:
            failed_or_retried(result, place, names[index], verdict, task.attempt, sizes[index])
    context.counters[counts.MOVED] += moved - told
    if copied:
        context.succeeded()
    result.count(counts.FILES, copied)
    result.count(counts.BYTES, moved)
    if digested is not None and copied:
        result.digested_files(place, digested)
    result.applied(place, b"", context.kernel.drain())
    for index in sorted(careful):
        yield from _copy_carefully(context, result, place, names[index], inodes[index], sizes[index], task.attempt)
    return result.outcome()


def _taken(context: Context, place: Place, target: int, names: list[bytes]) -> set[int]:
    """Which of the names are taken (or can't be asked for), where it is worth knowing before they are tried, or need
    care anyway."""
    if context.syncs_items(place):
        return set(range(len(names)))
    if place.fresh or context.options.existing == "replace":
        return set()
    return {index for index, name in enumerate(names) if _may_be_there(target, context.new_name(place, name))}


def _may_be_there(target: int, name: bytes) -> bool:
    try:
        return look(target, name) is not None
    except Problem:
        return True  # and will be told when it is this file's turn: it is no problem of the others


def _copy_carefully(
    context: Context, result: Result, place: Place, name: bytes, inode: int, size: int, attempt: int
) -> Generator[None, None, None]:
    try:
        settled = yield from copy_whole(context, result, place, name, place.source_id[0], inode)
    except Problem as problem:
        failed_or_retried(result, place, name, problem, attempt, size)
        return
    count_settled(context, result, place, name, settled)


def count_settled(
    context: Context, result: Result, place: Place, name: bytes, settled: Settled, *, alone: bool = True
) -> None:
    """One regular file more that is copied, or skipped. One that is not ``alone`` is verified with its links."""
    known = settled.known
    if settled.copied:
        context.succeeded()
        result.count(counts.FILES)
        result.count(counts.BYTES, known.version.size)
        result.digested(place, name, known, counts.FILES, verify=alone)
    else:
        skipped(context, result, place, name, known)
