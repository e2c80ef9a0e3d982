"""Run each program once on a file system with a quirk, and describe what is wrong with the result.

The quirk concerns the source, the destination, or the tree that is changed in place. The result is read from the
directory below the quirk, or, if the quirk changes what programs see, compared with what it shows.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.quirks.world import (
    SPLIT,
    Names,
    Shown,
    clone,
    compare,
    link_groups,
    make_older,
    same,
    shown,
    unchanged,
)
from tests.support.command import Argument, Completed, pcopy, show
from tests.support.compared import Lines
from tests.support.walk import temporaries, walk

TIMEOUT = 40


class World(NamedTuple):
    """The directories and quirks of a cell."""

    original: Path
    """The tree, on an ordinary file system."""
    backing: Path
    """The directory below the quirks; the tree is in ``tree``."""
    mounted: Path
    area: Path
    place: Path
    """The directory in which trees are created: ``backing``, or ``mounted`` if the quirk changes names."""
    ranks: int
    names: Names = same
    change: Shown = unchanged
    start: Callable[[], None] = lambda: None
    """Enables the quirks."""


class Outcome(NamedTuple):
    """The outcome of a run."""

    run: Completed
    summary: dict[str, Any]
    errors: list[dict[str, Any]]
    differences: Lines
    """Differences from the result without errors."""

    def failed_paths(self) -> set[bytes]:
        return {base64.b64decode(line["path_b64"]) for line in self.errors}

    def errnos(self) -> set[int]:
        return {line["errno"] for line in self.errors}


def _run(world: World, program: str, *arguments: Any, ranks: int | None = 0) -> tuple[Completed, list[dict[str, Any]]]:
    world.start()
    errors = world.area / "errors"
    errors.unlink(missing_ok=True)
    number = world.ranks if ranks == 0 else ranks
    option = () if program == "pverify" else ("--errors", errors)
    run = pcopy(*option, *arguments, ranks=number, program=program, timeout=TIMEOUT)
    lines = errors.read_text().splitlines() if errors.exists() else []
    return run, [json.loads(line) for line in lines]


def _summary(run: Completed) -> dict[str, Any]:
    lines = run.stdout.decode(errors="replace").splitlines()
    try:
        return dict(json.loads(lines[-1]))
    except (IndexError, ValueError):
        return {}


def _copied(world: World, program: str, source: Path, target: Path, backing: Path, *more: str) -> Outcome:
    run, errors = _run(world, program, "--json", *SPLIT, *more, f"{source}/", target)
    found = shown(backing) if backing.exists() else {}
    change = unchanged if source == world.original else world.change
    differences = compare(shown(world.original, world.names, change), found)
    if backing.exists() and world.names is same:
        lost = link_groups(world.original) - link_groups(backing)
        differences |= {path: ("links", ()) for group in lost for path in group if path not in differences}
    return Outcome(run, _summary(run), errors, differences)


def pcopy_from(world: World) -> Outcome:
    """pcopy: the quirk is on SRC."""
    copy = world.area / "copy"
    return _copied(world, "pcopy", world.mounted / "tree", copy, copy)


def pcopy_to(world: World) -> Outcome:
    """pcopy: the quirk is on DST, which does not exist."""
    return _copied(world, "pcopy", world.original, world.mounted / "copy", world.backing / "copy")


def psync_from(world: World) -> Outcome:
    """psync: the quirk is on SRC."""
    copy = world.area / "mirror"
    clone(world.original, copy)
    make_older(copy)
    return _copied(world, "psync", world.mounted / "tree", copy, copy)


def psync_to(world: World) -> Outcome:
    """psync: the quirk is on DST, which is an older copy."""
    clone(world.original, world.place / "mirror")
    make_older(world.place / "mirror")
    return _copied(world, "psync", world.original, world.mounted / "mirror", world.backing / "mirror")


def pverify_a(world: World) -> Outcome:
    """pverify: the quirk is on one of two trees that are equal."""
    run, errors = _run(world, "pverify", "--json", world.original, world.mounted / "tree")
    lines: Lines = dict.fromkeys(run.stdout.splitlines()[:-1], ("told", ()))
    return Outcome(run, _summary(run), errors, lines)


def prm_in_place(world: World) -> Outcome:
    """prm: the quirk is on the tree."""
    clone(world.original, world.place / "removed")
    run, errors = _run(world, "prm", "--json", "--yes", world.mounted / "removed")
    left: Lines = {}
    if (world.backing / "removed").exists():
        left |= {entry.path: ("extra", ()) for entry in walk(os.fsencode(world.backing / "removed"))}
    return Outcome(run, _summary(run), errors, left)


CHANGE = "u+rwX,g-w,o="


def pchmod_in_place(world: World) -> Outcome:
    """pchmod: the quirk is on the tree; the expected result is that of GNU chmod."""
    for place in (world.place, world.area):
        clone(world.original, place / "modes")
    run, errors = _run(world, "pchmod", "--json", CHANGE, world.mounted / "modes")
    subprocess.run(["chmod", "-R", CHANGE, world.area / "modes"], check=True)
    return Outcome(
        run, _summary(run), errors, compare(shown(world.area / "modes", world.names), shown(world.backing / "modes"))
    )


def ptar_create(world: World) -> Outcome:
    """ptar -c: the quirk is on the archived tree; GNU tar unpacks it."""
    archive, unpacked = world.area / "from.tar", world.area / "unpacked"
    run, errors = _run(world, "ptar", "-c", "--json", "-f", archive, "-C", world.mounted, "tree")
    return Outcome(run, _summary(run), errors, _unpacked(world, archive, unpacked))


def ptar_archive(world: World) -> Outcome:
    """ptar -c: the quirk is on the directory of the archive; GNU tar unpacks it."""
    place = world.mounted / "archives"
    (world.backing / "archives").mkdir(exist_ok=True)
    clone(world.original, world.area / "tree")
    run, errors = _run(world, "ptar", "-c", "--json", "-f", place / "to.tar", "-C", world.area, "tree")
    (archive,) = [*(world.backing / "archives").glob("*.tar"), None][:1]
    plain = world._replace(names=same, change=unchanged)
    return Outcome(run, _summary(run), errors, _unpacked(plain, archive, world.area / "unpacked too"))


def _unpacked(world: World, archive: Path | None, place: Path) -> Lines:
    """Return how what GNU tar unpacks differs from the tree."""
    wanted = shown(world.original, world.names, world.change)
    if archive is None or not archive.exists():
        return compare(wanted, {})
    place.mkdir()
    tar: list[Argument] = ["tar", "--xattrs", "--xattrs-include=*", "--acls", "-C", place, "-xpf", archive]
    done = subprocess.run(tar, check=False, capture_output=True)
    if done.returncode:
        return {b"": ("tar: " + done.stderr.decode(errors="replace"), ())}
    found = shown(place / "tree") if (place / "tree").exists() else {}
    return compare(wanted, found)


def ptar_extract(world: World) -> Outcome:
    """ptar -x: the quirk is on the place where an archive of GNU tar is unpacked."""
    archive = world.area / "gnu.tar"
    top = world.original.parent
    tar: list[Argument] = [
        "tar",
        "--format=posix",
        "--xattrs",
        "--xattrs-include=user.*",
        "--acls",
        "-S",
        "-C",
        top,
        "-cf",
        archive,
    ]
    subprocess.run([*tar, world.original.name], check=True, stderr=subprocess.DEVNULL)
    (world.backing / "place").mkdir()
    run, errors = _run(world, "ptar", "-x", "--json", "-f", archive, "-C", world.mounted / "place")
    backing = world.backing / "place" / world.names(world.original.name.encode()).decode()
    found = shown(backing) if backing.exists() else {}
    wanted = shown(world.original, world.names)
    return Outcome(run, _summary(run), errors, compare(wanted, found))


def pwalk_in_place(world: World) -> Outcome:
    """pwalk: the quirk is on the tree; the expected output is that of GNU find."""
    run, errors = _run(world, "pwalk", "--print0", world.mounted / "tree")
    top = os.fsencode(world.mounted / "tree")
    found = sorted(os.path.relpath(path, top) for path in run.stdout.split(b"\0")[:-1])
    asked: list[Argument] = ["find", world.original, "-printf", r"./%P\0"]
    listed = subprocess.run(asked, check=True, capture_output=True).stdout.split(b"\0")[:-1]
    wanted = sorted(b"/".join(map(world.names, os.path.normpath(path).split(b"/"))) for path in listed)
    lines: Lines = {path: ("missing", ()) for path in wanted if path not in found}
    lines |= {path: ("extra", ()) for path in found if path not in wanted or found.count(path) > 1}
    return Outcome(run, {}, errors, lines)


def pstripe_in_place(world: World) -> Outcome:
    """pstripe: it must refuse all items that are not on Lustre."""
    run, errors = _run(world, "pstripe", "--json", world.mounted / "tree")
    return Outcome(run, _summary(run), errors, {})


def pbcast_to(world: World) -> Outcome:
    """pbcast: the quirk is on DIR."""
    (world.backing / "cast").mkdir()
    files = [world.original / name for name in ("small", "large")]
    run, errors = _run(world, "pbcast", "--json", *files, world.mounted / "cast", ranks=None)
    lines: Lines = {}
    for file in files:
        copy = world.backing / "cast" / file.name
        if not copy.exists():
            lines[file.name.encode()] = "missing", ()
        elif subprocess.run(["cmp", "-s", file, copy], check=False).returncode:
            lines[file.name.encode()] = "differs", ("content",)
    return Outcome(run, _summary(run), errors, lines)


BENCH = ("--repeat", "1", "--time", "0.01", "--files", "10", "--size", "64K", "--blocks", "64K")


def pdbench_in_place(world: World) -> Outcome:
    """pdbench: the quirk is on DIR; no files may be left."""
    (world.backing / "bench").mkdir()
    run, errors = _run(world, "pdbench", "--json", *BENCH, world.mounted / "bench")
    left: Lines = {os.fsencode(name): ("extra", ()) for name in os.listdir(world.backing / "bench")}
    return Outcome(run, _summary(run), errors, left)


Cell = Callable[[World], Outcome]
CELLS: dict[str, Cell] = {
    "pcopy from": pcopy_from,
    "pcopy to": pcopy_to,
    "psync from": psync_from,
    "psync to": psync_to,
    "pverify": pverify_a,
    "prm": prm_in_place,
    "pchmod": pchmod_in_place,
    "ptar -c": ptar_create,
    "ptar -c to": ptar_archive,
    "ptar -x": ptar_extract,
    "pwalk": pwalk_in_place,
    "pstripe": pstripe_in_place,
    "pbcast": pbcast_to,
    "pdbench": pdbench_in_place,
}


def complaints(world: World, outcome: Outcome) -> Iterator[str]:
    """Yield problems that no quirk may cause."""
    run = outcome.run
    if b"Traceback" in run.stderr or run.returncode not in (0, 1, 2, 75):
        yield "internal error"
    totals = outcome.summary
    if (
        "copied" in totals
        and totals["found"] != totals["copied"] + totals["skipped"] + totals["failed"]
        and run.returncode != 75
    ):
        yield f"numbers do not agree: {totals}"
    if totals and totals.get("exit_status") != run.returncode:
        yield f"another status in the summary: {totals.get('exit_status')}"
    if "failed" in totals and totals["failed"] and run.returncode == 0:
        yield "failed items, and status 0"
    if run.returncode == 1 and not outcome.errors and "same" not in totals:
        yield "status 1, and nothing in --errors"
    if run.returncode == 2 and not run.stderr.strip():
        yield "refused without a message"
    for place in (world.backing, world.area):
        yield from (f"left over: {path!r}" for path in temporaries(os.fsencode(place)))


_OF_ONE_ITEM = ("chmod", "chown", "utimensat", "setxattr", "getxattr", "listxattr", "removexattr", "fsync", "rmdir")


def _below(world: World, path: bytes) -> bytes:
    """Return ``path`` relative to the tree that it lies in."""
    for root in (world.original, world.mounted, world.backing, world.area):
        if path.startswith(os.fsencode(root) + b"/") or path == os.fsencode(root):
            path = path[len(os.fsencode(root)) + 1 :]
            if root != world.original:
                path = path.partition(b"/")[2]
            break
    return path.removeprefix(b"tree/") if path != b"tree" else b""


def reported(world: World, outcome: Outcome) -> Lines:
    """Return the differences without those that are reported, or lie below a reported item.

    After a failure nothing may be deleted, so extra items are right, and the time of their directory differs.
    """
    failed: dict[bytes, bool] = {}
    for line in outcome.errors:
        path = _below(world, base64.b64decode(line["path_b64"]))
        failed[path] = failed.get(path, False) or not line["operation"].startswith(_OF_ONE_ITEM)
    groups = link_groups(world.original)
    names = {name: path for path in failed for group in groups for name in group if path in group}
    is_mirror = outcome.run.returncode == 1 and "deleted" in outcome.summary

    def is_reported(path: bytes, word: str) -> bool:
        if path in failed or path in names or (is_mirror and word == "extra"):
            return True
        if word == "extra" and any(each.startswith(path + b"/") or not path for each in failed):
            return True  # a directory that is not empty
        parts = path.split(b"/") if path else []
        return any(failed.get(b"/".join(parts[:count])) for count in range(len(parts)))

    left = {path: line for path, line in outcome.differences.items() if not is_reported(path, line[0])}
    if failed:  # the time of a directory is set when nothing more is created in it
        left = {path: line for path, line in left.items() if line[1] != ("mtime",) or not any(
            os.path.dirname(each) == path for each in outcome.differences)}  # fmt: skip
    return left


__all__ = ["CELLS", "Outcome", "World", "complaints", "reported", "show"]
