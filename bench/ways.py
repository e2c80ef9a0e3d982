"""The *ways*, commands whose times are compared: pcopy and its programs, other programs that copy, and a C program that
only makes the necessary system calls (``bare.c``).

In the words of a command, SRC and DST stand for the source and the copy, and KEEP for a directory next to the copy.
Programs that use MPI are started by mpiexec, or by the command in the environment variable MPIEXEC.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from bench.latency import compiled_c_program
from bench.timing import PCOPY_COMMAND

PROCESSORS = len(os.sched_getaffinity(0))
"""The number of processors that this process may use."""


def program_command(name: str) -> tuple[str, ...]:
    """Return the command that runs a program of the checkout."""
    return (sys.executable, "-c", f"from pcopy.cli.script import {name}; {name}()")


PRM_COMMAND = program_command("prm")
"""The command that runs prm from the checkout."""
OTHER_PROGRAMS = ("prm", "pverify", "pwalk", "pchmod", "ptar")
"""The programs of the checkout besides pcopy that are measured."""

_BARE_SOURCE = Path(__file__).with_name("bare.c")
_DISPLAYED_COMMANDS = ((PCOPY_COMMAND, ("pcopy",)), *((program_command(name), (name,)) for name in OTHER_PROGRAMS))
"""Commands that run programs of the checkout, and how they are displayed."""


class Way(NamedTuple):
    """A command that is measured.

    Fields:

    - ``words``: the command, with placeholders for paths.
    - ``syncs``: True if its result is on storage when it ends; after other commands ``sync -f`` is run and timed, too.
    - ``must_be_faithful``: True if a copy that differs from its source ends the benchmark; otherwise differences are
      reported.
    """

    words: tuple[str, ...]
    syncs: bool = False
    must_be_faithful: bool = True

    def commands(self, source: Path, target: Path) -> list[list[str]]:
        """Return the commands to run one after the other: this one, with the paths of source and copy, and ``sync`` if
        needed.
        """
        places = {"SRC": str(source), "DST": str(target), "KEEP": str(target.parent / "keep")}
        commands = [[_word_with_paths(places, word) for word in self.words]]
        if not self.syncs:
            commands.append(["sync", "-f", str(target.parent)])
        return commands

    def displayed(self) -> str:
        """Return the command as text for tables, with short names of the programs of this checkout."""
        words = self.words
        for long, short in _DISPLAYED_COMMANDS:
            if words[: len(long)] == long:
                words = short + words[len(long) :]
        return shlex.join((Path(words[0]).name, *words[1:])) + ("" if self.syncs else " && sync -f DST")


def _word_with_paths(places: Mapping[str, str], word: str) -> str:
    """Return ``word``, a word of a command, with paths in place of placeholders such as SRC. ``places`` are their
    paths.
    """
    for place, path in places.items():
        word = word.replace(place, path)
    return word


def pcopy_way(options: str) -> Way:
    """Return the way (a command to measure) that runs pcopy with ``options``."""
    return Way((*PCOPY_COMMAND, "-q", "-T", *options.split(), "SRC", "DST"), syncs="--no-sync" not in options.split())


def bare_way(how: str, workers: int) -> Way:
    """Return the way (a command to measure) that runs ``bare.c``, which only makes the system calls of a copy.

    Args:
        how: ``-p`` for processes, ``-t`` for threads.
        workers: their number.
    """
    return Way((str(compiled_c_program(_BARE_SOURCE, "-lpthread")), how, f"{workers}", "SRC", "DST"))


CP = Way(("cp", "-aT", "SRC", "DST"))
RSYNC = Way(("rsync", "-a", "SRC/", "DST"))

_MPIEXEC = tuple(shlex.split(os.environ.get("MPIEXEC", "mpiexec")))
_MPI = (*_MPIEXEC, "-n", f"{PROCESSORS}")


def _dcp_way(ranks: int) -> Way:
    """Return the way (a command to measure) that runs dcp of mpiFileUtils with this number of ranks."""
    return Way((*_MPIEXEC, "-n", f"{ranks}", "dcp", "-q", "-p", "SRC", "DST"), must_be_faithful=False)


PARALLEL_COPY_COMMANDS = {
    "dcp": _dcp_way(PROCESSORS),
    "xcp": Way(("xcp", "-r", "-T", "-o", "--no-progress", "-w", f"{PROCESSORS}", "SRC", "DST"), must_be_faithful=False),
    "mcp": Way(("mcp", "-aT", f"--threads={PROCESSORS}", "SRC", "DST"), must_be_faithful=False),
    "fcp": Way((*_MPI, "fcp", "-p", "SRC", "DST"), must_be_faithful=False),
    "fpsync": Way(("fpsync", "-n", f"{PROCESSORS}", "SRC/", "DST/"), must_be_faithful=False),
    "rclone": Way(
        ("rclone", "copy", "-q", "--metadata", "--links", "--create-empty-src-dirs", f"--transfers={PROCESSORS}",
         f"--checkers={PROCESSORS}", "SRC", "DST"),
        must_be_faithful=False,
    ),
}  # fmt: skip
"""Commands of other programs that copy in parallel, by the name of the program on PATH."""

DRM_COMMAND = Way((*_MPI, "drm", "-q", "DST"), syncs=True)
"""The command that runs drm, which removes trees in parallel."""
_PRESERVE_OPTIONS = ("--preserve-owner", "--preserve-perms", "--preserve-times")
MPIFILEUTILS_COMMANDS = {
    "dcp": PARALLEL_COPY_COMMANDS["dcp"],
    "dcp -n 16": _dcp_way(16),
    "dsync": Way((*_MPI, "dsync", "-q", "SRC", "DST"), must_be_faithful=False),
    "dwalk": Way((*_MPI, "dwalk", "-q", "SRC"), syncs=True),
    "dfind": Way((*_MPI, "dfind", "-q", "SRC", "--size", "+1k", "--print"), syncs=True),
    "dchmod": Way((*_MPI, "dchmod", "-q", "-m", "u+rwX,go-rwx", "DST"), syncs=True),
    "dcmp -l": Way((*_MPI, "dcmp", "-q", "-l", "SRC", "DST"), syncs=True),
    "dcmp": Way((*_MPI, "dcmp", "-q", "-t", "-o", "EXIST=COMMON@CONTENT=DIFFER:KEEP/list", "SRC", "DST"), syncs=True),
    "dtar -c": Way((*_MPI, "dtar", "-q", "-c", "-f", "KEEP/tar", "-C", "SRC/..", "source")),
    "dtar -x": Way(
        (*_MPI, "dtar", "-q", "-x", *_PRESERVE_OPTIONS, "-f", "KEEP/tar", "-C", "DST"), must_be_faithful=False
    ),
}
"""Commands of mpiFileUtils with which programs of this checkout are compared, by label. The first word of a label is
the name of the program on PATH.
"""


_selected_peers: list[frozenset[str]] = []
"""The other programs that ``compare_only`` has selected: empty if it was not called, else one set of names."""


def compare_only(programs: Iterable[str]) -> None:
    """Compare pcopy only with ``programs``: other programs are excluded, even if they are installed."""
    _selected_peers[:] = [frozenset(programs)]


def is_available(program: str) -> bool:
    """Return True if the program is installed and not excluded by ``compare_only``."""
    return all(program in chosen for chosen in _selected_peers) and shutil.which(program) is not None


def available_parallel_copy_commands() -> dict[str, Way]:
    """Return the commands in ``PARALLEL_COPY_COMMANDS`` (other programs that copy) whose programs are installed, by
    label.
    """
    return {name: way for name, way in PARALLEL_COPY_COMMANDS.items() if is_available(name)}


def available_mpifileutils(name: str) -> dict[str, Way]:
    """Return the command with the label ``name`` in ``MPIFILEUTILS_COMMANDS``, by this label; an empty dictionary if
    its program is not installed.
    """
    return {name: MPIFILEUTILS_COMMANDS[name]} if is_available(name.split(maxsplit=1)[0]) else {}


def missing_parallel_copy_programs() -> list[str]:
    """Return the names of the other programs that are not installed."""
    return [
        name
        for name in dict.fromkeys(
            (*PARALLEL_COPY_COMMANDS, "drm", *(name.split()[0] for name in MPIFILEUTILS_COMMANDS))
        )
        if not is_available(name)
    ]
