"""The commands that are compared: pcopy, prm, what others copy with, and the bare system calls in C.

In the words of a command, SRC and DST stand for the source and the copy, and KEEP for a directory beside the copy.
Programs that use MPI are started by mpiexec, or by what the environment variable MPIEXEC says.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from bench.latency import built
from bench.timing import PCOPY

PROCESSORS = len(os.sched_getaffinity(0))


def tool(name: str) -> tuple[str, ...]:
    """What starts one of the programs of the checkout."""
    return (sys.executable, "-c", f"from pcopy.cli.script import {name}; {name}()")


PRM = tool("prm")
TOOLS = ("prm", "pverify", "pwalk", "pchmod", "ptar")

_BARE = Path(__file__).with_name("bare.c")
_CALLED = ((PCOPY, ("pcopy",)), *((tool(name), (name,)) for name in TOOLS))


class Way(NamedTuple):
    """``syncs``: it ends when the copy is on storage; after others ``sync -f`` is run, and timed, too.

    ``faithful``: a copy that is not like its source ends the benchmark; of others that is told.
    """

    words: tuple[str, ...]
    syncs: bool = False
    faithful: bool = True

    def commands(self, source: Path, target: Path) -> list[list[str]]:
        """To run one after the other."""
        places = {"SRC": str(source), "DST": str(target), "KEEP": str(target.parent / "keep")}
        commands = [[_put(places, word) for word in self.words]]
        if not self.syncs:
            commands.append(["sync", "-f", str(target.parent)])
        return commands

    def shown(self) -> str:
        """As people write it."""
        words = self.words
        for long, short in _CALLED:
            if words[: len(long)] == long:
                words = short + words[len(long) :]
        return shlex.join((Path(words[0]).name, *words[1:])) + ("" if self.syncs else " && sync -f DST")


def _put(places: Mapping[str, str], word: str) -> str:
    for place, path in places.items():
        word = word.replace(place, path)
    return word


def pcopy(options: str) -> Way:
    return Way((*PCOPY, "-q", "-T", *options.split(), "SRC", "DST"), syncs="--no-sync" not in options.split())


def bare(how: str, workers: int) -> Way:
    """``how``: -p for processes, -t for threads."""
    return Way((str(built(_BARE, "-lpthread")), how, f"{workers}", "SRC", "DST"))


CP = Way(("cp", "-aT", "SRC", "DST"))
RSYNC = Way(("rsync", "-a", "SRC/", "DST"))

_MPI = (*shlex.split(os.environ.get("MPIEXEC", "mpiexec")), "-n", f"{PROCESSORS}")

PEERS = {
    "dcp": Way((*_MPI, "dcp", "-q", "-p", "SRC", "DST"), faithful=False),
    "xcp": Way(("xcp", "-r", "-T", "-o", "--no-progress", "-w", f"{PROCESSORS}", "SRC", "DST"), faithful=False),
    "mcp": Way(("mcp", "-aT", f"--threads={PROCESSORS}", "SRC", "DST"), faithful=False),
    "fcp": Way((*_MPI, "fcp", "-p", "SRC", "DST"), faithful=False),
    "fpsync": Way(("fpsync", "-n", f"{PROCESSORS}", "SRC/", "DST/"), faithful=False),
    "rclone": Way(
        ("rclone", "copy", "-q", "--metadata", "--links", "--create-empty-src-dirs", f"--transfers={PROCESSORS}",
         f"--checkers={PROCESSORS}", "SRC", "DST"),
        faithful=False,
    ),
}  # fmt: skip
"""Other programs that copy in parallel, by the program that has to be on PATH."""

DRM = Way((*_MPI, "drm", "-q", "DST"), syncs=True)
_AS_IT_WAS = ("--preserve-owner", "--preserve-perms", "--preserve-times")
SUITE = {
    "dwalk": Way((*_MPI, "dwalk", "-q", "SRC"), syncs=True),
    "dfind": Way((*_MPI, "dfind", "-q", "SRC", "--size", "+1k", "--print"), syncs=True),
    "dchmod": Way((*_MPI, "dchmod", "-q", "-m", "u+rwX,go-rwx", "DST"), syncs=True),
    "dcmp -l": Way((*_MPI, "dcmp", "-q", "-l", "SRC", "DST"), syncs=True),
    "dcmp": Way((*_MPI, "dcmp", "-q", "-t", "-o", "EXIST=COMMON@CONTENT=DIFFER:KEEP/list", "SRC", "DST"), syncs=True),
    "dtar -c": Way((*_MPI, "dtar", "-q", "-c", "-f", "KEEP/tar", "-C", "SRC/..", "source")),
    "dtar -x": Way((*_MPI, "dtar", "-q", "-x", *_AS_IT_WAS, "-f", "KEEP/tar", "-C", "DST"), faithful=False),
}
"""What others have for it; the first word of each name is the program that has to be on PATH."""


_compared: list[frozenset[str]] = []
"""The only other programs that may be compared, if a choice was made."""


def compare_only(programs: Iterable[str]) -> None:
    """Ignore all peers but ``programs``, whatever is installed."""
    _compared[:] = [frozenset(programs)]


def has(program: str) -> bool:
    """True if the peer ``program`` is installed and not ignored."""
    return all(program in chosen for chosen in _compared) and shutil.which(program) is not None


def present() -> dict[str, Way]:
    """Those of ``PEERS`` that are installed."""
    return {name: way for name, way in PEERS.items() if has(name)}


def of_suite(name: str) -> dict[str, Way]:
    """A peer of a tool, if it is installed."""
    return {name: SUITE[name]} if has(name.split(maxsplit=1)[0]) else {}


def absent() -> list[str]:
    return [name for name in (*PEERS, "drm", *(name for name in SUITE if " " not in name)) if not has(name)]
