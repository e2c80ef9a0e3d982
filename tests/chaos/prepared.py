"""A destination that contains items before the job begins, and a model of the expected result.

The model follows the documentation of ``--existing``, not the program: which names are kept, which become hard links to
a kept name, and what is counted. From the model follows the tree that a job must produce.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.attributes import ACCESS_ACL, DEFAULT_ACL
from tests.support.walk import walk

TIME_DIFFERENCE = 1000 * 10**9
PRIVATE = 0o640
DIRECTORY_MODES = (0o700, 0o755, 0o770, 0o1777)
OLD_ENOUGH = 5.5
"""Seconds after which a resumed job no longer treats an existing item as its own."""

FILE_STATES = ("absent", "absent", "equal", "equal", "metadata", "touched", "twin", "older", "newer", "longer",
               "shared", "symlink")  # fmt: skip
"""States of an existing target of a file.

"equal": equal names of one inode are hard links of each other; "metadata": another inode with other metadata;
"touched": only the time differs; "twin": only the contents differ; "shared": the file has another name elsewhere.
"""

NODE_STATES = ("absent", "equal", "symlink")

SAME_SIZE_AND_TIME = ("equal", "metadata", "twin")
"""States with the size and the time of the source."""

KEPT_BY_COMPARISON = (*SAME_SIZE_AND_TIME, "touched")
"""States that are kept if contents are compared when only times differ."""

KEPT_STATES: dict[str, tuple[str, ...]] = {
    "replace": (),
    "changed": KEPT_BY_COMPARISON,
    "mended": ("equal", "metadata", "touched"),
    "checksum": ("equal", "metadata", "touched"),
    "newer": (*SAME_SIZE_AND_TIME, "newer"),
    "skip": FILE_STATES[2:],
}
"""The states that are kept, by rule. "mended" is ``--existing changed`` with ``--repair``, which finds files in state
"twin"."""

METADATA_UPDATING_RULES = ("changed", "mended")
"""Rules by which kept items get the metadata of the source. An item that would get a privilege by that is replaced."""

Totals = dict[str, int]


class Prepared(NamedTuple):
    """``place`` contains ``tree``, and ``elsewhere`` with other names of its inodes; neither is changed. ``states`` is
    by the paths of the source; ``extra`` lists paths that the source lacks."""

    place: Path
    states: dict[bytes, str]
    extra: list[bytes]

    @property
    def tree(self) -> bytes:
        return os.fsencode(self.place / "tree")

    @property
    def elsewhere(self) -> Path:
        return self.place / "elsewhere"


class Outcome(NamedTuple):
    """The expected result.

    ``kept``: names that are not changed. ``joined``: names that become hard links to a kept one. ``updated``: kept
    names that get the metadata of the source. All other names are like the source.

    ``unsure``: links that existed, in groups that get more links. If the job did not record the creation of those,
    existing links cannot be distinguished from created ones, and may be counted as created.
    """

    kept: set[bytes]
    joined: dict[bytes, bytes]
    unsure: set[bytes]
    totals: Totals
    updated: set[bytes]


def prepare(source: Path, place: Path, seed: int, leave_out: Collection[str]) -> Prepared:
    """Copy ``source`` to ``place/tree`` and alter the copy; the paths in ``leave_out`` are removed from it."""
    maker = random.Random(seed)
    prepared = Prepared(place, {}, [])
    prepared.elsewhere.mkdir(parents=True)
    (prepared.elsewhere / "led to").write_bytes(b"not to be written through")
    subprocess.run(["cp", "-a", "--", source, place / "tree"], check=True)
    absent = {os.fsencode(path) for path in leave_out}
    removed: set[bytes] = set()
    for path, status in _listing(source):
        there = os.path.join(prepared.tree, path)
        if os.path.dirname(path) in removed:
            removed.add(path)
        elif stat.S_ISDIR(status.st_mode):
            if path and maker.random() < 0.2 and path != b"many names":
                removed.add(path)
                shutil.rmtree(there)
                continue
            if maker.random() < 0.5:
                for name in (ACCESS_ACL, DEFAULT_ACL):
                    with suppress(OSError):
                        os.removexattr(there, name)
            os.chmod(there, maker.choice(DIRECTORY_MODES))
            if maker.random() < 0.3:
                prepared.extra.append(os.path.join(path, b"not in the source"))
                with open(os.path.join(prepared.tree, prepared.extra[-1]), "xb") as file:
                    file.write(b"extra")
        else:
            state = maker.choice(FILE_STATES if stat.S_ISREG(status.st_mode) else NODE_STATES)
            if state == "twin" and not status.st_size:
                state = "metadata"
            if path in absent:
                state = "absent"
            _alter(there, state, status, maker, prepared.elsewhere)
            if state != "absent":
                prepared.states[path] = state
    return prepared


def _alter(path: bytes, state: str, status: os.stat_result, maker: random.Random, elsewhere: Path) -> None:
    if state == "equal":
        return
    content = b""
    if state in ("metadata", "touched"):
        with open(path, "rb") as file:
            content = file.read()
    os.unlink(path)
    if state == "absent":
        return
    earlier = {
        "touched": TIME_DIFFERENCE,
        "older": TIME_DIFFERENCE,
        "shared": TIME_DIFFERENCE,
        "symlink": TIME_DIFFERENCE,
        "newer": -TIME_DIFFERENCE,
    }.get(state, 0)
    if state == "symlink":
        os.symlink(elsewhere.name, path)
    else:
        size = status.st_size if state == "twin" else status.st_size + 1 if state == "longer" else None
        if state not in ("metadata", "touched"):
            content = maker.randbytes(maker.randrange(1 << 12) if size is None else size)
        with open(path, "xb") as file:
            file.write(content)
        os.chmod(path, PRIVATE)
    if state == "shared":
        os.link(path, os.fsencode(elsewhere / f"{maker.getrandbits(60)}"))
    when = status.st_mtime_ns - earlier
    os.utime(path, ns=(when, when), follow_symlinks=False)


def _listing(tree: Path) -> list[tuple[bytes, os.stat_result]]:
    return [(entry.path, entry.status) for entry in walk(os.fsencode(tree))]


def model(source: Path, states: dict[bytes, str], rule: str) -> Outcome:
    """Return the expected result for all names under a rule of ``KEPT_STATES``."""
    outcome = Outcome(set(), {}, set(), dict.fromkeys(COUNTED, 0), set())
    groups: dict[tuple[int, int], list[bytes]] = {}
    for path, status in _listing(source):
        outcome.totals["found"] += 1
        if stat.S_ISDIR(status.st_mode):
            outcome.totals["directories"] += 1
        else:
            groups.setdefault((status.st_dev, status.st_ino), []).append(path)
    for names in groups.values():
        status = os.lstat(os.path.join(os.fsencode(source), names[0]))
        names.sort(key=os.path.split)
        is_unprivileged = rule not in METADATA_UPDATING_RULES or _is_unprivileged(
            os.path.join(os.fsencode(source), names[0]), status
        )
        _decide_group(names, status, states, rule, outcome, is_unprivileged=is_unprivileged)
    outcome.totals["skipped"] = len(outcome.kept)
    outcome.totals["copied"] = outcome.totals["found"] - len(outcome.kept)
    return outcome


COUNTED = ("found", "copied", "skipped", "failed", "files", "directories", "symlinks", "special", "hardlinks", "bytes")


def _is_unprivileged(path: bytes, status: os.stat_result) -> bool:
    """Return True if the metadata gives no privilege."""
    names = () if stat.S_ISLNK(status.st_mode) else os.listxattr(path)
    return not status.st_mode & (stat.S_ISUID | stat.S_ISGID) and "security.capability" not in names


def _decide_group(
    names: list[bytes],
    status: os.stat_result,
    states: dict[bytes, str],
    rule: str,
    outcome: Outcome,
    *,
    is_unprivileged: bool,
) -> None:
    """Decide the names of one inode, in order: one is copied or kept, and the rest are linked to it, or kept."""
    for at, first in enumerate(names):
        state = states.get(first, "absent")
        is_kept = state in KEPT_STATES[rule] and (state == "equal" or is_unprivileged)
        if is_kept:
            outcome.kept.add(first)
            if rule in METADATA_UPDATING_RULES and state != "equal":
                outcome.updated.add(first)
            if (state not in KEPT_BY_COMPARISON and rule != "checksum") or rule in ("skip", "newer"):
                continue  # the next name is decided in the same way
        elif stat.S_ISREG(status.st_mode):
            outcome.totals["files"] += 1
            outcome.totals["bytes"] += status.st_size
        else:
            outcome.totals["symlinks" if stat.S_ISLNK(status.st_mode) else "special"] += 1
        others = names[at + 1 :]
        there = {name for name in others if is_kept and states.get(name) == state == "equal"}
        kept_names = there | {
            name for name in others if rule in ("skip", "newer") and states.get(name) in KEPT_STATES[rule]
        }
        outcome.kept.update(kept_names)
        outcome.totals["hardlinks"] += len(others) - len(kept_names)
        if is_kept:
            outcome.joined.update({name: first for name in others if name not in kept_names})
            outcome.unsure.update(there if len(kept_names) < len(others) else ())
        return


def make_wanted(pure: Path, prepared: Prepared, outcome: Outcome, place: Path) -> Path:
    """Create the expected tree in ``place``. ``pure`` is a copy of the source; its files, and kept ones, get hard
    links."""
    wanted = place / pure.name
    tree, new = prepared.tree, os.fsencode(wanted)
    directories = []
    for path, status in _listing(pure):
        if stat.S_ISDIR(status.st_mode):
            directories.append(os.path.join(os.fsencode(pure.name), path).rstrip(b"/"))
            os.makedirs(os.path.join(new, path))
        elif outcome.joined.get(path, path) in outcome.updated:
            _link_with_source_metadata(pure, wanted, tree, path, outcome)
        elif path in outcome.kept or path in outcome.joined:
            _link(os.path.join(tree, outcome.joined.get(path, path)), os.path.join(new, path))
        else:
            _link(os.path.join(os.fsencode(pure), path), os.path.join(new, path))
    for path in prepared.extra:
        _link(os.path.join(tree, path), os.path.join(new, path))
    line: list[str | Path] = ["rsync", "-aAX", "--no-recursive", "--modify-window=-1", "--files-from=-", "-0"]
    subprocess.run([*line, pure.parent, place], input=b"\0".join(directories), check=True)
    return wanted


def _link_with_source_metadata(pure: Path, wanted: Path, tree: bytes, path: bytes, outcome: Outcome) -> None:
    """Create the item with its existing contents and the metadata of the source."""
    new, first = os.fsencode(wanted), outcome.joined.get(path, path)
    if first != path and os.path.lexists(os.path.join(new, first)):
        _link(os.path.join(new, first), os.path.join(new, path))
        return
    there = os.path.join(tree, first)
    if not stat.S_ISREG(os.lstat(there).st_mode):
        _link(os.path.join(os.fsencode(pure), path), os.path.join(new, path))
        return
    target, source = os.path.join(new, path), os.path.join(os.fsencode(pure), first)
    shutil.copyfile(there, target)
    subprocess.run(["cp", "--attributes-only", "--preserve=all", "--", source, target], check=True)


def _link(old: bytes, new: bytes) -> None:
    os.link(old, new, follow_symlinks=False)


def overwritten_files(source: Path, prepared: Prepared) -> list[bytes]:
    """Return the files that ``--inplace`` overwrites: those with a single name on both sides."""
    reported = []
    for path, status in _listing(source):
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and path in prepared.states:
            there = os.lstat(os.path.join(prepared.tree, path))
            if stat.S_ISREG(there.st_mode) and prepared.states[path] != "shared":
                reported.append(path)
    return reported


class Stock:
    """Copies of the prepared tree, which age while other copies are in use."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._copies: list[tuple[Path, float]] = []
        self._made = 0
        self._make()

    def _make(self) -> None:
        self._made += 1
        path = self._prepared.place.with_name(f"{self._prepared.place.name}-{self._made}")
        subprocess.run(["cp", "-a", "--", self._prepared.place, path], check=True)
        self._copies.append((path, time.monotonic()))

    def take(self, path: Path) -> None:
        """Move a copy that is old enough to ``path``."""
        while len(self._copies) < 2:
            self._make()
        copy, made = self._copies.pop(0)
        time.sleep(max(0.0, made + OLD_ENOUGH - time.monotonic()))
        copy.rename(path)
