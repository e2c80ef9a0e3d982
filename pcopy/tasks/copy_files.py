"""CopyFiles: a batch of small regular files of one directory."""

from __future__ import annotations

from array import array
from collections.abc import Generator
from contextlib import suppress

from pcopy.engine.driver import Slices
from pcopy.fsio.half_written import beside
from pcopy.fsio.patience import PASSING
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import Version, source_status
from pcopy.fsio.temporary import remove
from pcopy.signature.items import FILE
from pcopy.tasks import counts
from pcopy.tasks.context import FILES_PER_SLICE, Context
from pcopy.tasks.hashing import Gathered
from pcopy.tasks.read_items import skipped
from pcopy.tasks.result import Result
from pcopy.tasks.retry import failed_or_retried
from pcopy.tasks.targets import inherits_acl, look
from pcopy.tasks.unnamed import Waiting, unnamed_at
from pcopy.tasks.values import CopyFiles, Known, Place, SplitFile, unpack_names, unpack_numbers
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
        inherits = inherits_acl(context, place, target)
    except Problem as problem:
        for name, size in zip(names, sizes, strict=True):
            result.fail(place, name, problem, size)
        return result.outcome()
    waiting = Waiting(context, place, task.attempt)
    with waiting.spawned(result):
        yield from _copy(task, context, result, source, target, names, inodes, sizes, waiting, inherits=inherits)
    return result.outcome()


def _copy(
    task: CopyFiles,
    context: Context,
    result: Result,
    source: int,
    target: int,
    names: list[bytes],
    inodes: array[int],
    sizes: array[int],
    waiting: Waiting,
    *,
    inherits: bool,
) -> Generator[None, None, None]:
    place = task.place
    careful = _taken(context, place, target, names)
    plain = [index for index in range(len(names)) if index not in careful] if careful else range(len(names))
    new_names = _new_names(context, place, [names[index] for index in plain])
    verdicts = context.kernel.copy_new_files(
        source,
        target,
        [names[index] for index in plain] if careful else names,
        [inodes[index] for index in plain] if careful else inodes,
        context.source_device(place) or 0,
        inherits=inherits,
        target_names=new_names,
        made=waiting.made if context.keeps else None,
    )
    digested = Gathered() if context.signs or context.options.verify else None
    copied = moved = told = 0
    unmarks = context.options.inplace and context.job.run > 1
    for number, (index, verdict) in enumerate(zip(plain, verdicts, strict=True)):
        if isinstance(verdict, tuple):
            status, size, digest = verdict
            copied += 1
            moved += size
            if unmarks:
                _unmark(target, new_names[number])
            if context.keeps:
                waiting.add_file(names[index], new_names[number], status, size, digest)
            elif digested is not None:
                digested.add_file(names[index], status, size, digest, counts.FILES)
        elif isinstance(verdict, int) or (verdict.on_source and verdict.errno in PASSING):
            careful.add(index)
        elif context.keeps and isinstance(verdict, MetadataProblem):
            split = SplitFile(place, names[index], place.source_id[0], inodes[index], sizes[index], task.attempt)
            _name_all_the_same(context, result, split, target, new_names[number], verdict, waiting)
        else:
            failed_or_retried(result, place, names[index], verdict, task.attempt, sizes[index])
        if not (number + 1) % FILES_PER_SLICE:
            context.counters[counts.MOVED] += moved - told
            told = moved
            yield
    context.counters[counts.MOVED] += moved - told
    if copied:
        context.succeeded()
    if not context.keeps:
        result.count(counts.FILES, copied)
        result.count(counts.BYTES, moved)
        if digested is not None and copied:
            result.digested_files(place, digested)
    for name, applied in context.kernel.drain():
        result.applied(place, name, applied)
    for index in sorted(careful):
        split = SplitFile(place, names[index], place.source_id[0], inodes[index], sizes[index], task.attempt)
        yield from _copy_carefully(context, result, split, waiting)


def _unmark(target: int, name: bytes) -> None:
    """What an earlier run was writing over has gone: so does a file that marked it. (Else it is met in FINISH.)"""
    with suppress(Problem):
        remove(target, beside(name))


def _taken(context: Context, place: Place, target: int, names: list[bytes]) -> set[int]:
    """Which of the names are taken (or can't be asked for), where it is worth knowing before they are tried, or need
    care anyway."""
    if context.syncs_items(place):
        return set(range(len(names)))
    if place.fresh or context.options.existing == "replace":
        return set()
    return {index for index, name in enumerate(names) if _may_be_there(target, context.new_name(place, name))}


def _new_names(context: Context, place: Place, names: list[bytes]) -> list[bytes]:
    """What the files are made as."""
    if context.keeps:
        return [context.temporary_names.next() for _ in names]
    return [context.new_name(place, name) for name in names] if context.job.roots[place.root].item else names


def _name_all_the_same(
    context: Context,
    result: Result,
    split: SplitFile,
    target: int,
    temporary: bytes,
    problem: MetadataProblem,
    waiting: Waiting,
) -> None:
    """Better a file with wrong metadata, and told so, than none."""
    try:
        item = unnamed_at(target, temporary)
        status = source_status(context.open_source(split.place), split.name, follow=context.options.dereference)
    except Problem as trouble:
        with suppress(Problem):
            remove(target, temporary)
        failed_or_retried(result, split.place, split.name, trouble, split.attempt, split.size)
        return
    known = Known(FILE, status.st_size, b"", Version.of(status))
    waiting.add(result, split, item, known, problem)


def _may_be_there(target: int, name: bytes) -> bool:
    try:
        return look(target, name) is not None
    except Problem:
        return True  # and will be told when it is this file's turn: it is no problem of the others


def _copy_carefully(
    context: Context, result: Result, split: SplitFile, waiting: Waiting
) -> Generator[None, None, None]:
    place, name = split.place, split.name
    try:
        settled = yield from copy_whole(context, result, place, name, split.mount, split.inode)
    except Problem as problem:
        failed_or_retried(result, place, name, problem, split.attempt, split.size)
        return
    if settled.unnamed is None:
        count_settled(context, result, place, name, settled)
    else:
        waiting.add(result, split, settled.unnamed, settled.known, settled.shortcoming)


def count_settled(
    context: Context, result: Result, place: Place, name: bytes, settled: Settled, *, alone: bool = True
) -> None:
    """One regular file more that is copied, or skipped, unless it is to be named yet.

    One that is not ``alone`` is verified with its links.
    """
    if settled.unnamed is not None:
        return
    known = settled.known
    if settled.copied:
        result.copied(place, name, known, alone=alone)
    else:
        skipped(context, result, place, name, known)
