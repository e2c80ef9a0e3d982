"""NameItems and NameGroup: what is whole and durable gets its final name, and nothing is replaced unasked.

Whether an item counts as copied is settled here; how it gets its name, in ``pcopy.tasks.naming``.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from pcopy.engine.driver import Slices
from pcopy.fsio.identity import Identity
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import Version
from pcopy.tasks import counts
from pcopy.tasks.context import CALL_COST, FILES_PER_SLICE, Context
from pcopy.tasks.copy_anew import anew
from pcopy.tasks.hashing import split_digests, unpack_versions
from pcopy.tasks.link_group import after_representative, next_represents
from pcopy.tasks.link_notes import put
from pcopy.tasks.naming import Naming, discard, give_free_names, is_it
from pcopy.tasks.phases import Phase
from pcopy.tasks.read_items import skipped
from pcopy.tasks.result import Result, Tried
from pcopy.tasks.retry import is_tried_again
from pcopy.tasks.targets import look
from pcopy.tasks.values import (
    FailedName,
    Known,
    LinkGroup,
    NameGroup,
    NameItems,
    Place,
    ScanNames,
    SplitFile,
    Unnamed,
    unpack_names,
    unpack_numbers,
)


def name_items(task: NameItems, context: Context, result: Result) -> Slices:
    """Names that are free are given first; items whose names are taken come one by one after that."""
    place = task.place
    names, sizes = unpack_names(task.names), unpack_numbers(task.sizes)
    items = [*map(Unnamed, unpack_names(task.temporaries), unpack_numbers(task.inodes), task.marks)]
    given: list[int] = []
    careful: list[int] = []
    for index, answer in enumerate(give_free_names(context, place, names, items)):
        if isinstance(answer, Problem):
            _not_named(context, result, task, names[index], items[index], sizes[index], answer)
        else:
            (given if answer else careful).append(index)
        if not index % FILES_PER_SLICE:
            yield
    known = _known(task, context) if careful or context.digests else []
    writers = bytes((task.writer,))
    if context.digests:
        for index in given:
            result.copied(place, names[index], known[index], writers=writers)
    elif given:
        context.succeeded()
        for kind, number in Counter(task.kinds[index] for index in given).items():
            result.count(counts.of_kind(bytes((kind,))), number)
        result.count(counts.BYTES, sum(sizes[index] for index in given))
    for index in careful:
        name, item = names[index], items[index]
        try:
            named = Naming(context, item, known[index]).give(place, name)
        except Problem as problem:
            _not_named(context, result, task, name, item, sizes[index], problem)
        else:
            if named:
                result.copied(place, name, known[index], writers=writers)
            else:
                discard(context, place, item, result)
                skipped(context, result, place, name, known[index])
        yield
    return result.outcome()


def _known(task: NameItems, context: Context) -> list[Known]:
    sizes, versions = unpack_numbers(task.sizes), unpack_versions(task.versions)
    digests = split_digests(task.digests, context.hashing.algorithm.size) if context.digests else [b""] * len(sizes)
    return [
        Known(bytes((kind,)), size, digest, Version(*version))
        for kind, size, digest, version in zip(task.kinds, sizes, digests, versions, strict=True)
    ]


def _not_named(
    context: Context, result: Result, task: NameItems, name: bytes, item: Unnamed, size: int, problem: Problem
) -> None:
    """It is removed; and copied again, if somebody has removed what an earlier run has named."""
    discard(context, task.place, item, result)
    if is_tried_again(problem, task.attempt):
        result.spawn(ScanNames(task.place, name, task.attempt + 1), phase=result.phase, expands=True)
    else:
        result.fail(task.place, name, problem, size, touched=True)


def name_group(task: NameGroup, context: Context, result: Result) -> Slices:
    """The first of the names that can be given; of those before it some are kept, and others have failed.

    In another directory the item is copied again: it is given no names but in its own (``Naming``). In a resumed job
    that finds more names, which may be names of the item, it waits for these first.
    """
    if result.phase < Phase.NAME:
        put(task, context, result)
        return result.outcome()
    split, known = task.split, task.known
    failed: list[FailedName] = []
    names = [(split.place, split.name), *split.links]
    first, others = -1, len(names)
    naming = Naming(context, task.unnamed, known)
    for index, (place, name) in enumerate(names):
        if place[:2] != split.place[:2]:
            first = _linked_before(task, context, names, index)
            others = index
            break
        try:
            if naming.give(place, name):
                first, others = index, index + 1
                break
            skipped(context, result, place, name, known)
        except Problem as problem:
            failed.append((place, name, problem.plain))
        yield
    again: list[tuple[Place, bytes]] = []
    lasting = [*split.failed]
    for each in failed:
        if is_tried_again(Problem.from_plain(each[2]), split.attempt):
            again.append(each[:2])
        else:
            lasting.append(each)
    if first < 0:
        discard(context, split.place, task.unnamed, result)
        if again:
            left = (*again, *names[others:])
            group = LinkGroup(split.mount, split.inode, split.size, left, split.attempt + 1, tuple(lasting))
            result.spawn(group, split.size + len(left) * CALL_COST, phase=result.phase)
        elif others < len(names):
            next_represents(result, split._replace(links=tuple(names[others:])), tuple(lasting))
        else:
            _all_failed(result, split, failed)
        return result.outcome()
    place, name = names[first]
    links = (*(each for each in names[others:] if each != names[first]), *again)
    split = split._replace(place=place, name=name, links=links, failed=tuple(lasting))
    _after_named(task, split, context, result)
    return result.outcome()


def _linked_before(task: NameGroup, context: Context, names: list[tuple[Place, bytes]], since: int) -> int:
    """Which of the names, from ``since`` on, is the item already? Else -1.

    An earlier run has named it and linked this one to it, before that was on record. If somebody has replaced the first
    name since, this one would seem to be the user's.
    """
    if context.job.run == 1:
        return -1
    for index, (place, name) in enumerate(names[since:], since):
        with suppress(Problem):
            new_name = context.new_name(place, name)
            present = look(context.open_target(place), new_name)
            if present is not None and is_it(context, place, new_name, present, task.unnamed, task.known):
                return index
    return -1


def _after_named(task: NameGroup, split: SplitFile, context: Context, result: Result) -> None:
    """``split`` begins with the name that the item has now."""
    known, item = task.known, task.unnamed
    shortcoming = None
    if task.shortcoming is None:
        alone = not split.links
        result.copied(split.place, split.name, known, alone=alone, chunk=task.chunk, writers=task.writers)
    else:
        operation, number, text, *_ = task.shortcoming
        shortcoming = MetadataProblem(operation, number, text=text)
    if shortcoming is not None and not (split.links or split.failed):
        group = LinkGroup(split.mount, split.inode, split.size, ((split.place, split.name),), max(1, split.attempt))
        retry = anew(context, group, item.inode, item.mark)
        result.fail(split.place, split.name, shortcoming, split.size, retry=retry, touched=True)
        return
    made = Identity(split.place.target_id.mount, item.inode, item.mark)
    after_representative(
        context, result, split, made, known, chunk=task.chunk, writers=task.writers, shortcoming=shortcoming
    )


def _all_failed(result: Result, split: SplitFile, failed: list[FailedName]) -> None:
    """A resumed job tries them together, so that they become links of each other."""
    names = tuple((place, name) for place, name, _ in (*split.failed, *failed))
    group = LinkGroup(split.mount, split.inode, split.size, names, max(1, split.attempt))
    retry: LinkGroup | Tried = group
    for place, name, problem in (*split.failed, *failed):
        again = Tried.BY_NAME if len(names) == 1 else retry
        result.fail(place, name, Problem.from_plain(problem), split.size, retry=again, touched=True)
        retry = Tried.WITH_ANOTHER
