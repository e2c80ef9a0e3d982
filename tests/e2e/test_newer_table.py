"""``--existing`` for each type of item over each other type, by age, with ``--delete`` and as a dry run.

``expected`` states the rule independently of the code. If rsync -u follows the same rule, it is run for comparison.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import Argument, pcopy, show, summary
from tests.support.oracle import Record, changes, snapshot
from tests.support.users import require_root

TIME = 1_700_000_000 * 10**9
AGES = {"older": -(10**10), "equal": 0, "newer": 10**10}
"""Age of the source item relative to the existing item, in nanoseconds."""
POLICIES = ("replace", "changed", "newer", "skip", "fail")
KEPT, REPLACED, FAILS, ENTERED = "kept", "replaced", "fails", "entered"


def _socket(path: Path, text: str) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o644)


def _full(path: Path, text: str) -> None:
    path.mkdir()
    (path / "inner").write_text(text)


MAKE: dict[str, Callable[[Path, str], object]] = {
    "file": lambda path, text: path.write_text(text),
    "directory": lambda path, text: path.mkdir(),
    "full": _full,
    "link": lambda path, text: path.symlink_to(text),
    "fifo": lambda path, text: os.mkfifo(path),
    "socket": _socket,
    "character": lambda path, text: os.mknod(path, stat.S_IFCHR | 0o644, os.makedev(1, len(text))),
    "block": lambda path, text: os.mknod(path, stat.S_IFBLK | 0o644, os.makedev(7, len(text))),
}
UNIFORM = ("fifo", "socket")
"""Types whose items differ only in their metadata."""
SOURCES = tuple(kind for kind in MAKE if kind != "full")


def type_of(kind: str) -> str:
    return "directory" if kind == "full" else kind


def expected(policy: str, age: str, source: str, target: str, *, deletes: bool) -> str:
    """Return the expected outcome. Two items of one type have different contents of different lengths."""
    if source == "directory" and type_of(target) == "directory":
        return ENTERED
    if policy in ("skip", "fail"):
        return KEPT if policy == "skip" else FAILS
    if target == "full":  # it is replaced only if deletion empties it and no newer item in it must be kept
        return REPLACED if deletes and policy != "newer" else FAILS
    if source != target or policy == "replace":
        return REPLACED
    if policy == "newer" and age != "equal":
        return KEPT if age == "older" else REPLACED
    return KEPT if source in UNIFORM and age == "equal" else REPLACED


def make(path: Path, kind: str, text: str, time: int, names: int = 1) -> None:
    MAKE[kind](path, text)
    os.utime(path, ns=(time, time), follow_symlinks=False)
    for number in range(2, names + 1):
        os.link(path, f"{path} {number}", follow_symlinks=False)


def is_copy(path: Path, kind: str, time: int) -> bool:
    """Return True if the item equals the one that ``make`` created in the source."""
    status = path.lstat()
    if kind == "directory":
        return stat.S_ISDIR(status.st_mode)
    same_text = {
        "file": lambda: path.read_text() == "source",
        "link": lambda: os.readlink(path) == "source",
        "character": lambda: status.st_rdev == os.makedev(1, 6),
        "block": lambda: status.st_rdev == os.makedev(7, 6),
    }
    types = {"file": stat.S_IFREG, "link": stat.S_IFLNK, "fifo": stat.S_IFIFO, "socket": stat.S_IFSOCK}
    types |= {"character": stat.S_IFCHR, "block": stat.S_IFBLK}
    is_same = stat.S_IFMT(status.st_mode) == types[kind] and status.st_mtime_ns == time
    return is_same and same_text.get(kind, lambda: True)()


def build(area: Path, age: str, targets: tuple[str, ...], names: int) -> list[tuple[str, str, str]]:
    """Create trees with all pairs. Each source item has ``names`` hard links, and the target has an item for each."""
    for tree in ("source", "copy"):
        (area / tree).mkdir()
    rows = []
    for source in SOURCES:
        for target in targets:
            called = f"{source} over {target}"
            links = 1 if source == "directory" else names
            make(area / "source" / called, source, "source", TIME + AGES[age], links)
            for number in range(1, links + 1):
                name = called if number == 1 else f"{called} {number}"
                make(area / "copy" / name, target, "was there", TIME)
                rows.append((name, source, target))
    (area / "copy/extra").write_text("extra")
    return rows


@pytest.mark.parametrize("deletes", [False, True], ids=["", "delete"])
@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("full", [False, True], ids=["", "full"])
def test_existing_policy_for_each_pair_of_types(area: Path, policy: str, age: str, deletes: bool, full: bool) -> None:
    require_root("make devices")
    targets = ("full",) if full else tuple(kind for kind in MAKE if kind != "full")
    rows = build(area, age, targets, 1)
    wanted = {name: expected(policy, age, source, target, deletes=deletes) for name, source, target in rows}
    before, fails = snapshot(area / "copy"), FAILS in wanted.values()
    words: list[Argument] = ["--json", "--checkpoint", "none", "--existing", policy, *(["--delete"] if deletes else [])]
    words += [f"{area}/source/", area / "copy"]

    foreseen = pcopy("--dry-run", "--log", area / "foreseen", *words, ranks=2)
    assert changes(before, snapshot(area / "copy")) == []
    errors = area / "errors"
    done = pcopy("--errors", errors, "--log", area / "log", *words, ranks=2)
    assert done.returncode == (1 if fails else 0), show(done)
    assert foreseen.returncode == done.returncode, show(foreseen)

    failed = {os.path.basename(json.loads(line)["path"]) for line in errors.read_text().splitlines()}
    assert failed == {name for name, fate in wanted.items() if fate == FAILS}
    for name, source, _ in rows:
        if wanted[name] in (KEPT, FAILS):
            assert changes(before_of(before, name), snapshot(area / "copy" / name)) == [], (name, wanted[name])
        else:
            assert is_copy(area / "copy" / name, source, TIME + AGES[age]), (name, wanted[name])
    assert (area / "copy/extra").exists() == (fails or not deletes), "nothing is deleted after a failure"
    assert actions(area / "foreseen") == actions(area / "log")
    keys = ("files", "directories", "symlinks", "special", "skipped", "failed")
    reported, said = summary(done), summary(foreseen)
    assert [said[key] for key in keys] == [reported[key] for key in keys]
    assert reported["found"] == reported["copied"] + reported["skipped"] + reported["failed"]


def actions(log: Path) -> dict[str, str]:
    """Return the action, done or predicted, for each item."""
    lines = map(json.loads, log.read_text().splitlines())
    return {os.path.basename(line["path"]): line["action"] for line in lines}


def before_of(before: dict[bytes, Record], name: str) -> dict[bytes, Record]:
    """Return the part of a snapshot below the item ``name``, with paths relative to it."""
    top = os.fsencode(name)
    return {path[len(top) + 1 :]: entry for path, entry in before.items() if path == top or path.startswith(top + b"/")}


@pytest.mark.parametrize("policy", ["changed", "newer"])
@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("ranks", [1, 3])
def test_hard_links_of_the_source_are_not_deleted(area: Path, policy: str, age: str, ranks: int) -> None:
    """The target has empty and non-empty directories in place of the hard links; the run uses ``--delete``."""
    require_root("make devices")
    rows = build(area, age, ("directory", "full"), 3)
    words: list[Argument] = ["--json", "--existing", policy, "--delete", f"{area}/source/", area / "copy"]
    done = pcopy(*words, ranks=ranks)
    wanted = {name: expected(policy, age, source, target, deletes=True) for name, source, target in rows}
    assert done.returncode == (1 if FAILS in wanted.values() else 0), show(done)
    for name, source, _ in rows:
        if wanted[name] == FAILS:
            assert (area / "copy" / name / "inner").read_text() == "was there", name
        else:
            assert is_copy(area / "copy" / name, source, TIME + AGES[age]), name


@pytest.mark.parametrize("age", AGES)
def test_same_files_are_replaced_as_by_rsync_update(area: Path, age: str) -> None:
    """Regular files of equal and different sizes, for which rsync -u follows the same rule."""
    if shutil.which("rsync") is None:
        pytest.skip("there is no rsync here")
    for number, (there, cut) in enumerate((text, cut) for text in ("copied", "longer text") for cut in (0, 1)):
        for tree in ("source", "copy", "theirs"):
            (area / tree).mkdir(exist_ok=True)
            make(area / tree / str(number), "file", "source" if tree == "source" else there, TIME - cut * 10**12)
        os.utime(area / "source" / str(number), ns=(TIME, TIME - cut * 10**12 + AGES[age]))
    subprocess.run(["rsync", "-a", "-u", f"{area}/source/", area / "theirs"], check=True)
    done = pcopy("-u", f"{area}/source/", area / "copy")
    assert done.returncode == 0, show(done)
    for path in (area / "theirs").iterdir():
        mine = area / "copy" / path.name
        assert mine.read_bytes() == path.read_bytes(), path.name
        assert mine.stat().st_mtime_ns == path.stat().st_mtime_ns, path.name


@pytest.mark.parametrize("kind", ["file", "link", "fifo"])
def test_error_about_a_non_empty_directory_repeats_nothing(area: Path, kind: str) -> None:
    for tree in ("source", "copy"):
        (area / tree).mkdir()
    make(area / "source/name", kind, "source", TIME)
    make(area / "copy/name", "full", "was there", TIME)
    done = pcopy("-q", f"{area}/source/", area / "copy", ranks=1)
    why = "a directory that is not empty is not replaced by an item of another type; move or remove it"
    line = f"pcopy: {area}/copy/name: rmdir: Directory not empty: {why} (ENOTEMPTY)\n"
    assert done.returncode == 1 and done.stderr.decode().startswith(line), show(done)
