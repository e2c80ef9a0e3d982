"""Runs that must give the same result, on random trees with all programs: repeated, dry, with other ranks or backends,
and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.quirks.world import SPLIT, clone, link_groups, make_older, make_tree
from tests.support import command, native
from tests.support.command import Argument, Completed, pcopy, show, start
from tests.support.compared import seen
from tests.support.extent import everything, seed
from tests.support.filesystems import remove
from tests.support.oracle import changes, differences, snapshot
from tests.support.processes import wait_until
from tests.support.trees import random_tree
from tests.support.users import is_root

COUNTS = ("found", "copied", "skipped", "failed", "files", "directories", "symlinks", "special", "hardlinks", "bytes",
          "deleted", "mended", "changed", "unchanged", "removed", "excluded")  # fmt: skip

Result = tuple[dict[str, Any], object]
Work = Callable[[Path, Path, int, tuple[str, ...]], Result]


@pytest.fixture
def tree(area: Path) -> Path:
    """A random tree, a different one each day, with the items of the table of quirks below ``known``."""
    path = area / "tree"
    random_tree(path, seed(), files=30, directories=6, largest=2 << 20, privileged=is_root())
    make_tree(path / "known")
    return path


def _counts(run: Completed, *statuses: int) -> dict[str, Any]:
    assert run.returncode in (statuses or (0,)), show(run)
    reported = json.loads(run.stdout.decode().splitlines()[-1])
    return {name: reported[name] for name in COUNTS if name in reported}


def _state(tree: Path) -> object:
    items = {path: {**item.values, "content": hash(item.values["content"])} for path, item in seen(tree).items()}
    return items, link_groups(tree)


def _older(tree: Path, place: Path) -> Path:
    clone(tree, place)
    make_older(place / "known")
    return place


def _mirror(tree: Path, area: Path, ranks: int, more: tuple[str, ...]) -> Result:
    copy = area / "copy" if (area / "copy").exists() else _older(tree, area / "copy")
    run = pcopy("--json", *SPLIT, *more, f"{tree}/", copy, ranks=ranks, program="psync")
    return _counts(run), _state(copy)


def _copy(tree: Path, area: Path, ranks: int, more: tuple[str, ...]) -> Result:
    copy = area / "copy"
    run = pcopy("--json", "--existing", "changed", *SPLIT, *more, f"{tree}/", copy, ranks=ranks)
    return _counts(run), _state(copy) if copy.exists() else None


def _modes(tree: Path, area: Path, ranks: int, more: tuple[str, ...]) -> Result:
    copy = area / "copy"
    if not copy.exists():
        clone(tree, copy)
    run = pcopy("--json", *more, "u+rwX,g-w,o=", copy, ranks=ranks, program="pchmod")
    return _counts(run), _state(copy)


def _remove(tree: Path, area: Path, ranks: int, more: tuple[str, ...]) -> Result:
    copy = area / "copy"
    if not copy.exists():
        clone(tree, copy)
    run = pcopy("--json", "--yes", *more, copy, ranks=ranks, program="prm")
    return _counts(run), copy.exists()


def _archive(tree: Path, area: Path, ranks: int, more: tuple[str, ...]) -> Result:
    archive = area / "archive.tar"
    words: tuple[Argument, ...] = ("-c", "--json", *more, "-f", archive, "-C", tree.parent, tree.name)
    run = pcopy(*words, ranks=ranks, program="ptar")
    return _counts(run), hash(archive.read_bytes()) if archive.exists() else None


def _unpack(tree: Path, area: Path, ranks: int, more: tuple[str, ...]) -> Result:
    archive, place = area / "gnu.tar", area / "place"
    place.mkdir(exist_ok=True)
    tar: list[Argument] = [
        "tar",
        "--format=posix",
        "--xattrs",
        "--xattrs-include=*",
        "--acls",
        "-C",
        tree.parent,
        "-cf",
        archive,
    ]
    subprocess.run([*tar, tree.name], check=True, stderr=subprocess.DEVNULL)
    run = pcopy("-x", "--json", *more, "-f", archive, "-C", place, ranks=ranks, program="ptar")
    return _counts(run), _state(place / tree.name) if (place / tree.name).exists() else None


def _list(tree: Path, area: Path, ranks: int, more: tuple[str, ...]) -> Result:
    run = pcopy("--print0", tree, ranks=ranks, program="pwalk")
    assert run.returncode == 0, show(run)
    return {}, sorted(run.stdout.split(b"\0"))


def _sign(tree: Path, area: Path, ranks: int, more: tuple[str, ...]) -> Result:
    signature = area / "signature"
    run = pcopy("--json", "--create", signature, tree, ranks=ranks, program="pverify")
    return _counts(run), json.loads(run.stdout.splitlines()[-1])["signature"]


WORKS: dict[str, Work] = {
    "pcopy": _copy, "psync": _mirror, "pchmod": _modes, "prm": _remove,
    "ptar -c": _archive, "ptar -x": _unpack, "pwalk": _list, "pverify": _sign,
}  # fmt: skip


def _runs() -> list[tuple[str, int]]:
    known = ["c", "python"] if not native.why_not() else ["python"]
    if everything():
        return [(backend, ranks) for backend in known for ranks in (1, 2, 7)]
    return [(known[0], 1), (known[0], 7), (known[-1], 2)]


@pytest.mark.parametrize("work", WORKS)
def test_all_numbers_of_ranks_and_both_backends_agree(
    area: Path, tree: Path, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {}
    for backend, ranks in _runs():
        monkeypatch.setattr(command, "backend", backend)
        place = area / f"{backend}{ranks}"
        place.mkdir()
        results[backend, ranks] = WORKS[work](tree, place, ranks, ())
        remove(place)
    first = next(iter(results.values()))
    assert {key: value for key, value in results.items() if value != first} == {}, first[0]


@pytest.mark.parametrize("work", [work for work in WORKS if work not in ("pwalk", "pverify")])
def test_a_dry_run_counts_what_the_run_does(area: Path, tree: Path, work: str) -> None:
    if work == "psync":
        _older(tree, area / "copy")
    elif work in ("pchmod", "prm"):
        clone(tree, area / "copy")
    before = snapshot(area / "copy") if (area / "copy").exists() else None
    dry, _ = WORKS[work](tree, area, 2, ("--dry-run",))
    if before is not None:  # listings set access times
        assert [line for line in changes(before, snapshot(area / "copy")) if not line.startswith("atime")] == []
    real, _ = WORKS[work](tree, area, 2, ())
    assert {name: (dry[name], real[name]) for name in real if name in dry and dry[name] != real[name]} == {}


@pytest.mark.parametrize("work", ["pcopy", "psync", "pchmod", "ptar -c"])
def test_second_run_changes_nothing_and_counts_no_changes(area: Path, tree: Path, work: str) -> None:
    WORKS[work](tree, area, 2, ())
    made = area / ("archive.tar" if work == "ptar -c" else "copy")
    before = snapshot(made)
    counts, _ = WORKS[work](tree, area, 2, ())
    if work == "ptar -c":
        assert snapshot(made)[b""].content == before[b""].content
        return
    assert [line for line in changes(before, snapshot(made)) if not line.startswith("atime")] == []
    assert counts.get("changed", 0) == counts.get("deleted", 0) == counts.get("bytes", 0) * (work != "pchmod") == 0
    assert counts.get("copied", 0) == (counts["directories"] if work != "pchmod" else 0), counts


def test_resumed_copy_equals_an_uninterrupted_one(area: Path, tree: Path) -> None:
    """The copy goes into a new directory: a resume copies existing items again if they changed shortly before the
    job."""
    undisturbed = area / "undisturbed"
    undisturbed.mkdir()
    wanted, _ = _copy(tree, undisturbed, 2, ())
    copy, first = area / "copy", area / "copy/known/small"
    words = ("--json", "--existing", "changed", *SPLIT, "--checkpoint", area / "job", f"{tree}/", copy)
    with start("--oplimit", "60", *words, ranks=2) as run:
        try:
            assert wait_until(lambda: first.exists() or run.poll() is not None)
            run.send_signal(signal.SIGTERM)
        finally:
            output, errors = run.communicate(timeout=60)
    assert run.returncode == 75, show(Completed([], run.returncode, output, errors))
    assert _counts(pcopy("--json", "--resume", area / "job", ranks=2)) == wanted
    assert differences(tree, copy) == []
    assert not any(name.startswith(".pcopy-") for _, _, names in os.walk(copy) for name in names)
