"""The command ``pverify``: does a tree hold what its signature, its manifest or another tree says?

Rule: as cmp and diff, 0 is the same, 1 different, 2 trouble; what could not be read is trouble, never a difference and
never nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pcopy import __version__
from pcopy.cli.argument_types import (
    HELP_ALONE,
    add_progress,
    asks_for_help,
    at_least_1,
    before_operands,
    block_size,
    make_parser,
    names_of,
    seconds,
    taking,
    with_progress,
)
from pcopy.cli.mistakes import OF_PVERIFY, refuse_letters, refuse_unknown
from pcopy.errors import REFUSED, Refused
from pcopy.signature.algorithms import ALGORITHMS, DEFAULT_ALGORITHM
from pcopy.text import counted, shown

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from pcopy.cli.command import Preparation

_FLAGS = "qvh"
_USAGE = """\
pverify [options] SIGNATURE PATH
       pverify [options] --manifest MANIFEST PATH
       pverify [options] A B
       pverify [options] --create SIGNATURE [--manifest MANIFEST] PATH"""
_DESCRIPTION = """\
Tells whether files and directory trees hold what they are meant to.

  SIGNATURE PATH   does PATH still have this signature?
  --manifest ...   which entries of PATH differ from the manifest?
  A B              do two directories, or two files, hold the same?
  --create ...     write the signature (and the manifest) of PATH

Entries that differ are listed, a line each: changed, missing (only in the
manifest or A) or extra (only in PATH or B), and the path.
"""
_EXAMPLES = """\
examples:
  pverify data.sig /archive/data
  pverify --manifest data.manifest /archive/data
  pverify /scratch/data /archive/data
  pverify --create data.sig --manifest data.manifest /scratch/data

exit status:
  0 the same (or created); 1 different; 2 wrong usage, or something could not
  be read; 70 internal error
"""


class Request(NamedTuple):
    """A command line, understood. ``block_size`` and ``hash`` are 0 and empty where they were not given."""

    paths: tuple[bytes, ...]
    create: bytes = b""
    manifest: bytes = b""
    ranks: int = 0
    hash: str = ""
    block_size: int = 0
    direct: bool = False
    drop_cache: bool = False
    force: bool = False
    progress: str = "auto"
    progress_interval: float | None = None
    json: bool = False
    quiet: bool = False
    verbose: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with ``argv`` (default: the process's own, without its name); returns the exit status."""
    from pcopy.cli.main import run_command

    return run_command("pverify", sys.argv[1:] if argv is None else argv, early_answer, _prepare, REFUSED, answers=True)


def _prepare(words: Sequence[str]) -> Preparation:
    from pcopy.cli.interrupts import raise_again
    from pcopy.cli.verify import VerifyPreparation

    raise_again()
    return VerifyPreparation(words)


def early_answer(argv: Sequence[str]) -> str | None:
    """What ``--version`` or ``-h`` prints; None if neither is asked for."""
    words = before_operands(argv)
    if "--version" in words:
        return f"pverify {__version__}"
    return _parser().format_help().rstrip() if asks_for_help(words, _FLAGS) else None


def parse(argv: Sequence[str]) -> Request:
    """The meaning of ``argv``; raises ``Refused`` with one line on what is wrong with it."""
    words = with_progress(argv)
    end = len(before_operands(words))
    refuse_letters(OF_PVERIFY, words[:end], _FLAGS)
    parser = _parser()
    values, others = parser.parse_known_args(words[:end])
    refuse_unknown(OF_PVERIFY, others, names_of(parser))
    if values.help:
        raise Refused(HELP_ALONE)
    paths = tuple(os.fsencode(word) for word in others + words[end + 1 :])
    for name in ("create", "manifest"):
        file = getattr(values, name)
        if file == "":
            raise Refused(f"--{name}: the empty string names no file; see pverify --help")
        if file and values.create and os.path.basename(file) in {"", ".", ".."}:
            raise Refused(f"{shown(os.fsencode(file))}: is a directory, as it is written; name a file")
    if b"" in paths:
        raise Refused("a path is the empty string: name a file or a directory (. for the current one)")
    if values.force and not values.create:
        raise Refused("--force says that --create may replace a signature: give that too; see pverify --help")
    wanted = 1 if values.create or values.manifest else 2
    if len(paths) != wanted:
        what = "PATH" if wanted == 1 else "SIGNATURE and PATH, or A and B,"
        raise Refused(f"{what} expected, and {counted(len(paths), 'path', 'paths')} given; see pverify --help")
    return Request(
        paths,
        os.fsencode(values.create or ""),
        os.fsencode(values.manifest or ""),
        values.ranks,
        values.hash or "",
        values.block_size,
        values.direct,
        values.drop_cache,
        values.force,
        values.progress,
        values.progress_interval,
        values.json,
        values.quiet,
        values.verbose,
    )


def _parser() -> ArgumentParser:
    parser = make_parser("pverify", _USAGE, _DESCRIPTION, _EXAMPLES)
    add = parser.add_argument_group("what is compared").add_argument
    add("--create", metavar="SIGNATURE", help="write the signature of PATH to this file")
    add("--manifest", metavar="MANIFEST", help="compare with this manifest; with --create: write it")
    add("--force", action="store_true", help="let --create replace a signature that is there")
    add("--hash", choices=ALGORITHMS, metavar="HOW", default=None,
        help=f"digest: {DEFAULT_ALGORITHM} (default; finds accidents) or blake3 (withstands forgery)")  # fmt: skip
    add("--block-size", metavar="SIZE", type=taking(block_size), default=0,
        help="unit of digests: a power of two of 64K or more (default 4M)")  # fmt: skip
    add = parser.add_argument_group("how it is read").add_argument
    add("-n", "--ranks", metavar="N", type=taking(at_least_1), default=0,
        help="processes that read (default: the cores that pverify may use, at most 8)")  # fmt: skip
    add("--direct", action="store_true", help="read past the page cache (O_DIRECT)")
    add("--drop-cache", action="store_true", help="leave nothing of what was read in the page cache")
    add = parser.add_argument_group("what it tells").add_argument
    add("-q", "--quiet", action="store_true", help="no progress; errors and differences are shown all the same")
    add("-v", "--verbose", action="count", default=0, help="tell more: when each phase begins")
    add("--json", action="store_true", help="differences and the summary as JSON, an object a line")
    add_progress(add)
    add("--progress-interval", metavar="SECONDS", type=taking(seconds), help="time between two lines or redraws")
    add("--version", action="store_true", help="print the version and exit")
    add("-h", "--help", action="store_true", help="print this help and exit")
    return parser
