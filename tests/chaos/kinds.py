"""The kinds of jobs that a campaign runs: their options, the initial contents of the destination, and the expected
result."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.dataset import BLOCKS, IN_THE_WAY, SPLIT, make_dataset
from tests.chaos.prepared import COUNTED, Prepared, Stock, make_wanted, model, prepare
from tests.support.command import Argument, pcopy, show, summary
from tests.support.damages import flip
from tests.support.filesystems import remove
from tests.support.oracle import differences
from tests.support.signatures import expected, signed

SOURCE_SEED = 6
PREPARED_SEED = 1


class Kind(NamedTuple):
    """A kind of job. ``rule`` is a key of ``prepared.KEPT_STATES``; if it is empty, the destination does not exist
    before.

    ``obstacles``: True if directories may exist under the names of some files. ``verifies``: True if the job verifies
    when it also creates a signature.
    """

    name: str
    options: tuple[str, ...] = ()
    rule: str = ""
    obstacles: bool = True
    verifies: bool = True


KINDS = (
    Kind("plain"),
    Kind(
        "changed", ("--existing", "changed"), "changed", verifies=False
    ),  # verification would report the files in state "twin"
    Kind("in place", ("--inplace",), "replace"),
    Kind("newer", ("-u",), "newer"),
    Kind("repaired", ("--repair",)),
    Kind("kept", ("--existing", "skip"), "skip", obstacles=False),
    Kind("plain"),
    Kind("mended", ("--existing", "changed", "--repair"), "mended"),
    Kind("contents", ("--checksum",), "checksum"),
    Kind("followed", ("-L",), obstacles=False),
    Kind("replaced", rule="replace"),
    Kind("plain"),
)
"""Chosen in turn by the seed of a job."""


def kind_of(seed: int, name: str = "") -> Kind:
    """Return the kind called ``name``, or the one for ``seed``."""
    return next((kind for kind in KINDS if kind.name == name), KINDS[seed % len(KINDS)])


class Baseline(NamedTuple):
    """The source and the expected result that all jobs of a kind have in common."""

    source: Path
    wanted: Path
    totals: dict[str, int]
    unsure: int
    signature: str
    prepared: Prepared | None
    stock: Stock | None


class Baselines:
    """The baselines of all kinds, below ``place``; each is created on first use."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._made: dict[str, Baseline] = {}
        self._stocked: tuple[Prepared, Stock] | None = None
        self._source = place / "source"
        make_dataset(self._source, SOURCE_SEED)
        self._plain = Baseline(
            self._source, self._source, model(self._source, {}, "replace").totals, 0,
            expected(self._source, BLOCKS), None, None,
        )  # fmt: skip
        self.seconds = self._measure()
        """Seconds that a simple job without interruptions takes."""

    def of(self, kind: Kind) -> Baseline:
        if kind.name not in self._made:
            self._made[kind.name] = self._make(kind)
        return self._made[kind.name]

    def _measure(self) -> float:
        place = self._place / "measured"
        place.mkdir()
        arguments: list[Argument] = [
            "--json",
            *SPLIT,
            "--verify",
            "--signature",
            place / "sig",
            self._source,
            place / "copy",
        ]
        began = time.monotonic()
        run = pcopy(*arguments, ranks=2, env={"XDG_STATE_HOME": str(place)})
        seconds = time.monotonic() - began
        assert run.returncode == 0, show(run)
        check_totals(summary(run), self._plain.totals)
        assert signed(place / "sig") == self._plain.signature
        remove(place)
        return seconds

    def _make(self, kind: Kind) -> Baseline:
        if "-L" in kind.options:
            return self._followed()
        if not kind.rule:
            return self._plain
        prepared, stock = self._stocked = self._stocked or self._prepare()
        outcome = model(self._source, prepared.states, kind.rule)
        wanted = make_wanted(self._place / "pure", prepared, outcome, self._place / f"wanted for {kind.name}")
        return self._plain._replace(
            wanted=wanted, totals=outcome.totals, unsure=len(outcome.unsure), prepared=prepared, stock=stock
        )

    def _prepare(self) -> tuple[Prepared, Stock]:
        pure = self._place / "pure"
        subprocess.run(["cp", "-a", "--", self._source, pure], check=True)
        assert differences(self._source, pure) == []
        prepared = prepare(self._source, self._place / "prepared", PREPARED_SEED, IN_THE_WAY)
        return prepared, Stock(prepared)

    def _followed(self) -> Baseline:
        source, wanted = self._place / "with links", self._place / "followed"
        make_links(source, self._source)
        subprocess.run(["rsync", "-aHAXL", "--modify-window=-1", f"{source}/", wanted], check=True)
        return Baseline(source, wanted, model(wanted, {}, "replace").totals, 0, expected(wanted, BLOCKS), None, None)


def make_links(path: Path, outside: Path) -> None:
    """Create a tree of small files and symbolic links: to items in the tree, and to large, sparse and linked files in
    ``outside``, some of which are reached in two ways."""
    for number in range(300):
        directory = path / f"directory-{number % 10}" / f"inner-{number % 3}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"file-{number}").write_bytes(b"%d" % number * number)
        (directory / f"link-{number}").symlink_to(f"file-{number}")
        os.utime(directory / f"file-{number}", (number, number))
    for number in range(3):
        (path / f"directory-{number}" / "across").symlink_to(f"../directory-{number + 5}")
        (path / f"twice-{number}").symlink_to(f"directory-{number}/across/inner-1")
        (path / f"place-{number}").symlink_to(outside / f"many names/place-{number}")
        (path / f"large-{number}").symlink_to(outside / f"large-{number}")
    (path / "many").symlink_to(outside / "many names")
    (path / "sparse").symlink_to(outside / "sparse")
    (path / "chain").symlink_to("large-0")


def check_totals(reported: dict[str, Any], totals: dict[str, int], unsure: int = 0) -> None:
    """Compare counts. Up to ``unsure`` existing links may have been counted as created."""
    more = min(max(totals["skipped"] - reported["skipped"], 0), unsure)
    moved = {"skipped": totals["skipped"] - more}
    moved |= {key: totals[key] + more for key in ("copied", "hardlinks")}
    assert {key: reported[key] for key in COUNTED} == totals | moved, f"{reported}, and not {totals | moved}"


Damage = Callable[[Path], object]


def _turn_into_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES: tuple[Damage, ...] = (
    lambda path: flip(path, 0),
    lambda path: flip(path, -1),
    lambda path: os.truncate(path, 0),
    Path.unlink,
    _turn_into_link,
)


def damage_files(copy: Path, chance: random.Random) -> None:
    """Damage some of the files of a copy."""
    files = [path for path in sorted(copy.rglob("*")) if path.is_file() and not path.is_symlink()]
    filled = [path for path in files if path.stat().st_size and not path.name.startswith(".pcopy-")]
    linked = [path for path in filled if path.stat().st_nlink > 1]
    for path in [*chance.sample(filled, 8), chance.choice(linked), copy / "large-0"]:
        if path.is_file() and path.stat().st_size:
            chance.choice(DAMAGES)(path)
