"""Hard links are verified, fail and are repaired as a single file, whichever way it was written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pcopy.engine.driver import TaskOutcome
from pcopy.engine.task import Task
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.source import FileContentVersion
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.distribution import Hosts
from pcopy.tasks.base.job import CopyOptions, Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.values import ContentInfo, Item, ItemCopy, Place
from pcopy.tasks.links.make_links import CreateHardLinks
from pcopy.tasks.runner import TaskRunner
from pcopy.tasks.verify.verify_items import VerifyLinks
from tests.support.damages import flip
from tests.tasks.one_rank import Copied, consistent, copy, once, root_of, surroundings

NAMES = ("sub/one", "sub/two", "three")
SIZES = {"small": 1000, "large": (5 << 20) + 100}


@pytest.fixture(params=SIZES)
def trees(area: Path, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """A source with a file of three names and a file of one name, and an empty target."""
    source, target = area / "source", area / "target"
    target.mkdir()
    (source / "sub").mkdir(parents=True)
    first, *others = (source / name for name in NAMES)
    first.write_bytes(os.urandom(SIZES[request.param]))
    for other in others:
        os.link(first, other)
    (source / "single").write_bytes(b"single")
    return source, target


def verified(trees: tuple[Path, Path], damage: Callable[[Path], None], *, repair: bool, ranks: int) -> Copied:
    source, target = trees
    return copy(
        root_of(source, target), ranks=ranks, before=once(VerifyLinks, lambda: damage(target)), hash="xxh3-128",
        verify=True, repair=repair, chunk_size=1, block_size=1 << 20,
    )  # fmt: skip


def separate(path: Path) -> None:
    """Replace a link by a separate file with the same contents."""
    shutil.copy2(path, path.with_name("other"))
    os.replace(path.with_name("other"), path)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "first byte": lambda top: flip(top / "sub/two", 0),
    "last byte": lambda top: flip(top / "three", (top / "three").stat().st_size - 1),
    "removed": lambda top: (top / "three").unlink(),
    "separate": lambda top: separate(top / "sub/one"),
}


@pytest.mark.parametrize("ranks", [1, 3])
def test_contents_of_hard_links_are_read_once(trees: tuple[Path, Path], ranks: int) -> None:
    totals = consistent(verified(trees, lambda _: None, repair=False, ranks=ranks))
    assert (totals.verified, totals.refuted, totals.to_verify) == (6, 0, 6), "four names and two directories"
    size = (trees[0] / "three").stat().st_size + len("single")
    assert totals.verified_bytes == totals.to_verify_bytes == size


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("damage", DAMAGES)
def test_all_names_of_a_damaged_file_fail(trees: tuple[Path, Path], damage: str, ranks: int) -> None:
    copied = verified(trees, DAMAGES[damage], repair=False, ranks=ranks)
    totals = consistent(copied)
    assert (totals.verified, totals.refuted, totals.to_verify, totals.failed) == (3, 3, 6, 3)
    assert {failure.path for failure in copied.failures} == {bytes(trees[1] / name) for name in NAMES}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("damage", DAMAGES)
def test_all_names_of_a_damaged_file_are_repaired(trees: tuple[Path, Path], damage: str, ranks: int) -> None:
    source, target = trees
    copied = verified(trees, DAMAGES[damage], repair=True, ranks=ranks)
    totals = consistent(copied)
    assert (totals.failed, totals.refuted, copied.failures) == (0, 3, [])
    assert totals.verified + totals.refuted == totals.to_verify
    assert len({(target / name).stat().st_ino for name in NAMES}) == 1
    assert (target / "three").read_bytes() == (source / "three").read_bytes()
    assert (totals.files, totals.hardlinks) == (2, 2)


@pytest.mark.parametrize("writer", [0, 1])
def test_linked_file_is_not_read_by_the_rank_that_wrote_it(area: Path, writer: int) -> None:
    """The rank that creates the links may have stolen this task from the rank that wrote the file."""
    source, target = area / "source", area / "target"
    for directory in (source, target):
        directory.mkdir()
        (directory / "one").write_bytes(b"one")
    made = ItemIdentity(0, (target / "one").stat().st_ino)
    options, program = Options(hash="xxh3-128"), CopyOptions(verify=True)
    with surroundings([root_of(source, target)], options, ranks=2, program=program) as (context, _):
        context.hosts = Hosts(["here", "there"], 0)
        place = Place(
            0,
            b"",
            context.sources[0].identity_of_directory(b""),
            context.targets[0].identity_of_directory(b""),
            False,
            False,
        )
        group = Item(0, 1, 3, ((place, b"one"), (place, b"two")), 0)
        known = ContentInfo(b"f", 3, bytes(16), FileContentVersion(1, 3, 0, 0))
        task = CreateHardLinks(group, ItemCopy(made, known, 0, bytes((writer,))), False)
        outcome = run(TaskRunner(context), Task((1, 0, 1), int(Phase.LINK), encode_task(task), 0))
        (spawned,) = outcome.spawned
        value = decode_task(spawned.payload)
        assert isinstance(value, VerifyLinks)
        assert (spawned.owner, value.contents.writers) == (1 - writer, bytes((writer,)))


def run(runner: TaskRunner, task: Task) -> TaskOutcome:
    slices = runner(task)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            assert isinstance(end.value, TaskOutcome)
            return end.value
