"""DigestLevel and its notes: directories are digested from the deepest level up, each by its owner.

A level is done in parts, each as a task of its own, so that the rank takes notes between two parts, and none pile up.
"""

from __future__ import annotations

from itertools import islice

from pcopy.signature.items import DIRECTORY
from pcopy.signature.manifest import order_key
from pcopy.tasks.base.kind import Again, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.sign.signing import Row, SignState, Tally, owner_of

DIRECTORIES_AT_ONCE = 1024
"""Directories that one task digests."""
DIFFERENCES_AT_ONCE = 4096
"""In one message; a single part of a directory may bring some more."""


class DigestLevel(Again, code=54, doing="digesting directories"):
    """The next part of the directories of one level is due."""

    depth: int

    def run(self, rank: Rank, result: Result) -> Steps:
        sign = rank.own(SignState)
        if sign.level is None:
            sign.level = sign.signing.level(self.depth)
        rising: dict[int, list[tuple[int, bytes, bytes]]] = {}
        differences: list[tuple[str, bytes]] = []
        more = False
        for number, done in enumerate(islice(sign.level, DIRECTORIES_AT_ONCE), 1):
            differences += done.differences
            for side, path, digest, tally in done.directories:
                if self.depth:
                    owner = owner_of(path.rpartition(b"/")[0], rank.size)
                    row = Row(DIRECTORY, 0, 0, digest, tally).packed()
                    rising.setdefault(owner, []).append((side, path, row))
                else:
                    result.spawn(SignatureNote(side, digest, tally), owner=0)
            more = number == DIRECTORIES_AT_ONCE or len(differences) >= DIFFERENCES_AT_ONCE
            yield None
            if more:
                break
        for owner, rows in rising.items():
            result.spawn(DirectoriesNote(tuple(rows)), owner=owner)
        if differences:
            result.spawn(DifferencesNote(tuple(differences)), owner=0)
        if more:
            result.spawn(self, owner=rank.number)
        else:
            sign.level = None


class DirectoriesNote(Again, code=55, doing="noting digested directories"):
    """Digested directories: (side, path, packed entry) each, for the owner of the directory around them."""

    rows: tuple[tuple[int, bytes, bytes], ...]

    def run(self, rank: Rank, result: Result) -> None:
        for row in self.rows:
            rank.own(SignState).signing.add_directory(*row)


class SignatureNote(Again, code=56, doing="noting the signature"):
    """Tells rank 0 the digest of a whole dataset, and its counts (``pcopy.tasks.sign.signing.Tally``)."""

    side: int
    digest: bytes
    tally: tuple[int, ...]

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(SignState).signatures[self.side] = (self.digest, Tally(*self.tally))


class DifferencesNote(Again, code=57, doing="noting differences"):
    """Tells rank 0 what differs between the two sides: (what, path) each."""

    rows: tuple[tuple[str, bytes], ...]

    def run(self, rank: Rank, result: Result) -> None:
        for what, path in self.rows:
            rank.own(SignState).differences.add(order_key(path), what.encode())
