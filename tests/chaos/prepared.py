"""A destination that holds something before the job begins, and a model of what has to become of it.

The model follows the description of ``--existing``, not the program: which names stay, which become links to one that
stays, and what is counted. From that follows the tree that a job must end with.
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

LATER = 1000 * 10**9
PRIVATE = 0o640
DIRECTORY_MODES = (0o700, 0o755, 0o770, 0o1777)
OLD_ENOUGH = 5.5
"""Seconds after which a resumed job does not take what is there for its own."""

FILE_STATES = ("absent", "absent", "equal", "equal", "dressed", "touched", "twin", "older", "newer", "longer",
               "shared", "symlink")  # fmt: skip
"""What may be there in the place of a file. Equal names of one inode are links of each other; "dressed" is another
inode with other metadata, "touched" has another time only, "twin" other contents only; "shared" has a name elsewhere,
too."""

NODE_STATES = ("absent", "equal", "symlink")

ALIKE = ("equal", "dressed", "twin")
"""They have the source's size and time."""

LIKENED = (*ALIKE, "touched")
"""Where contents are compared if times alone differ."""

STAYS: dict[str, tuple[str, ...]] = {
    "replace": (),
    "changed": LIKENED,
    "mended": ("equal", "dressed", "touched"),
    "checksum": ("equal", "dressed", "touched"),
    "newer": (*ALIKE, "newer"),
    "skip": FILE_STATES[2:],
}
"""By the rule; "mended" is ``--existing changed`` with ``--repair``, which finds the twins."""

MENDING = ("changed", "mended")
"""The rules by which what stays gets the metadata of its source; what would get a privilege so is replaced."""

Totals = dict[str, int]


class Prepared(NamedTuple):
    """``place`` holds ``tree``, and ``elsewhere`` other names of its inodes; both are never changed. ``states`` are
    by the source's paths, ``extra`` the paths of what the source lacks."""

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
    """``kept`` names stay as they are, ``joined`` ones become links to a kept one; all others are the source's. Those
    ``dressed`` stay with their contents, and get the source's metadata.

    ``unsure`` are links that were there, in groups that get further ones: if making those was not recorded, nobody can
    tell them from what the job has made, and they may count as that.
    """

    kept: set[bytes]
    joined: dict[bytes, bytes]
    unsure: set[bytes]
    totals: Totals
    dressed: set[bytes]


def prepare(source: Path, place: Path, seed: int, leave_out: Collection[str]) -> Prepared:
    """Copies ``source`` to ``place/tree`` and alters it; paths to ``leave_out`` are absent."""
    maker = random.Random(seed)
    prepared = Prepared(place, {}, [])
    prepared.elsewhere.mkdir(parents=True)
    (prepared.elsewhere / "led to").write_bytes(b"not to be written through")
    subprocess.run(["cp", "-a", "--", source, place / "tree"], check=True)
    absent = {os.fsencode(path) for path in leave_out}
    gone: set[bytes] = set()
    for path, status in _listing(source):
        there = os.path.join(prepared.tree, path)
        if os.path.dirname(path) in gone:
            gone.add(path)
        elif stat.S_ISDIR(status.st_mode):
            if path and maker.random() < 0.2 and path != b"many names":
                gone.add(path)
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
                state = "dressed"
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
    if state in ("dressed", "touched"):
        with open(path, "rb") as file:
            content = file.read()
    os.unlink(path)
    if state == "absent":
        return
    earlier = {"touched": LATER, "older": LATER, "shared": LATER, "symlink": LATER, "newer": -LATER}.get(state, 0)
    if state == "symlink":
        os.symlink(elsewhere.name, path)
    else:
        size = status.st_size if state == "twin" else status.st_size + 1 if state == "longer" else None
        if state not in ("dressed", "touched"):
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
    """What becomes of all names under a rule of ``STAYS``."""
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
        is_plain = rule not in MENDING or _is_plain(os.path.join(os.fsencode(source), names[0]), status)
        _settle(names, status, states, rule, outcome, is_plain=is_plain)
    outcome.totals["skipped"] = len(outcome.kept)
    outcome.totals["copied"] = outcome.totals["found"] - len(outcome.kept)
    return outcome


COUNTED = ("found", "copied", "skipped", "failed", "files", "directories", "symlinks", "special", "hardlinks", "bytes")


def _is_plain(path: bytes, status: os.stat_result) -> bool:
    """Gives its metadata no privilege?"""
    names = () if stat.S_ISLNK(status.st_mode) else os.listxattr(path)
    return not status.st_mode & (stat.S_ISUID | stat.S_ISGID) and "security.capability" not in names


def _settle(
    names: list[bytes],
    status: os.stat_result,
    states: dict[bytes, str],
    rule: str,
    outcome: Outcome,
    *,
    is_plain: bool,
) -> None:
    """The names of one inode, in their order: one is copied or stays, and the others are linked to it, or stay."""
    for at, first in enumerate(names):
        state = states.get(first, "absent")
        stays = state in STAYS[rule] and (state == "equal" or is_plain)
        if stays:
            outcome.kept.add(first)
            if rule in MENDING and state != "equal":
                outcome.dressed.add(first)
            if (state not in LIKENED and rule != "checksum") or rule in ("skip", "newer"):
                continue  # the next one takes its place
        elif stat.S_ISREG(status.st_mode):
            outcome.totals["files"] += 1
            outcome.totals["bytes"] += status.st_size
        else:
            outcome.totals["symlinks" if stat.S_ISLNK(status.st_mode) else "special"] += 1
        others = names[at + 1 :]
        there = {name for name in others if stays and states.get(name) == state == "equal"}
        stay = there | {name for name in others if rule in ("skip", "newer") and states.get(name) in STAYS[rule]}
        outcome.kept.update(stay)
        outcome.totals["hardlinks"] += len(others) - len(stay)
        if stays:
            outcome.joined.update({name: first for name in others if name not in stay})
            outcome.unsure.update(there if len(stay) < len(others) else ())
        return


def make_wanted(pure: Path, prepared: Prepared, outcome: Outcome, place: Path) -> Path:
    """The tree that must be there in the end, in ``place``. ``pure`` is a copy of the source; its files, and those that
    stay, get further names."""
    wanted = place / pure.name
    tree, new = prepared.tree, os.fsencode(wanted)
    directories = []
    for path, status in _listing(pure):
        if stat.S_ISDIR(status.st_mode):
            directories.append(os.path.join(os.fsencode(pure.name), path).rstrip(b"/"))
            os.makedirs(os.path.join(new, path))
        elif outcome.joined.get(path, path) in outcome.dressed:
            _dress(pure, wanted, tree, path, outcome)
        elif path in outcome.kept or path in outcome.joined:
            _link(os.path.join(tree, outcome.joined.get(path, path)), os.path.join(new, path))
        else:
            _link(os.path.join(os.fsencode(pure), path), os.path.join(new, path))
    for path in prepared.extra:
        _link(os.path.join(tree, path), os.path.join(new, path))
    line: list[str | Path] = ["rsync", "-aAX", "--no-recursive", "--modify-window=-1", "--files-from=-", "-0"]
    subprocess.run([*line, pure.parent, place], input=b"\0".join(directories), check=True)
    return wanted


def _dress(pure: Path, wanted: Path, tree: bytes, path: bytes, outcome: Outcome) -> None:
    """The contents that were there, with the metadata of the source."""
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


def written_over(source: Path, prepared: Prepared) -> list[bytes]:
    """The files that ``--inplace`` writes over: with a single name, on both sides."""
    reported = []
    for path, status in _listing(source):
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and path in prepared.states:
            there = os.lstat(os.path.join(prepared.tree, path))
            if stat.S_ISREG(there.st_mode) and prepared.states[path] != "shared":
                reported.append(path)
    return reported


class Stock:
    """Copies of what was prepared, which grow old while others are used."""

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
        """Moves an old copy to ``path``."""
        while len(self._copies) < 2:
            self._make()
        copy, made = self._copies.pop(0)
        time.sleep(max(0.0, made + OLD_ENOUGH - time.monotonic()))
        copy.rename(path)
