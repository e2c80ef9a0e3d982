"""The command line of pcopy: what it takes and what that means.

Rules: an option does what its help says or is unknown; nothing is guessed from an abbreviation; whatever is wrong is
said in one line. argparse is imported only when there is something to parse, so that ``--version`` is quick.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pcopy import __version__
from pcopy.errors import Refused
from pcopy.tasks.job import EXISTING, Options, Preserve
from pcopy.text import harmless, shown

if TYPE_CHECKING:
    from argparse import ArgumentParser

MINIMUM_BLOCK = 64 << 10
PROGRESS = ("auto", "bar", "plain", "json", "none")
_ALL = "all"
_FLAGS = "aRrTuqvh"  # letters that may stand together, as in -arv
_USAGE = "pcopy [options] SRC... DST"
_DESCRIPTION = """\
Copies files and directory trees faithfully, with several processes at once.

  SRC      copied to DST, or into DST if that is an existing directory
  SRC/     with a trailing slash: the contents of SRC go into DST
"""
_EXAMPLES = """\
examples:
  pcopy results /archive          copy results to /archive/results
  pcopy results/ /archive         copy what is in results into /archive
  pcopy -u results /archive       again, but only what has become newer
  pcopy -n 4 a b c /archive       three sources, four processes
  pcopy --no-preserve ownership --errors failed.jsonl /data/ /mnt/data

exit status:
  0 all done; 1 finished, but some items failed; 2 wrong usage or refused,
  nothing was touched; 70 internal error; 75 stopped early
"""


class Arguments(NamedTuple):
    """A command line, understood.

    ``ranks`` is 0 where ``-n`` was not given; ``progress_interval`` is in seconds, None where not given;
    ``options.umask`` is left at its default.
    """

    sources: tuple[bytes, ...]
    destination: bytes
    no_target_directory: bool = False
    ranks: int = 0
    options: Options = Options()
    errors: bytes | None = None
    json: bool = False
    progress: str = "auto"
    progress_interval: float | None = None
    quiet: bool = False
    verbose: int = 0


def early_answer(argv: Sequence[bytes | str]) -> str | None:
    """What ``--version`` or ``-h`` prints on standard output, without a final newline; None if neither is asked for."""
    for argument in map(os.fsdecode, argv):
        if argument == "--":
            break
        if argument == "--version":
            return f"pcopy {__version__}"
        if argument == "--help" or (argument.startswith("-") and "h" in argument and not argument[1:].strip(_FLAGS)):
            return _parser().format_help().rstrip()
    return None


def parse(argv: Sequence[bytes | str]) -> Arguments:
    """The meaning of ``argv`` (without the program's name); ``early_answer`` has been asked before.

    Raises ``Refused`` with one line on what is wrong with it.
    """
    words = [os.fsdecode(word) for word in argv]
    end = words.index("--") if "--" in words else len(words)
    # Without positionals of its own argparse hands back operands and unknown options in their order.
    values, others = _parser().parse_known_args(words[:end])
    for word in others:
        if word.startswith("-") and word != "-":
            name = shown(os.fsencode(word.partition("=")[0]))
            raise Refused(f"unknown option {name}; see pcopy --help (for a file of that name write ./{name})")
    operands = [os.fsencode(word) for word in others + words[end + 1 :]]
    if not operands:
        raise Refused(f"SRC and DST are missing: {_USAGE}; see pcopy --help")
    if len(operands) == 1:
        raise Refused(f"DST is missing after {shown(operands[0])}: {_USAGE}; see pcopy --help")
    return Arguments(
        sources=tuple(operands[:-1]),
        destination=operands[-1],
        no_target_directory=values.no_target_directory,
        ranks=values.ranks,
        options=Options(
            preserve=_preserved(values.preserve or []),
            existing=values.existing,
            modify_window=values.modify_window,
            chunk_size=values.chunk_size,
            block_size=values.block_size,
            sync=not values.no_sync,
            max_errors=values.max_errors,
            termination=values.termination,
        ),
        errors=None if values.errors is None else os.fsencode(values.errors),
        json=values.json,
        progress=values.progress,
        progress_interval=values.progress_interval,
        quiet=values.quiet,
        verbose=values.verbose,
    )


def _preserved(wishes: Sequence[tuple[str, Sequence[str]]]) -> Preserve:
    """``wishes`` in order: the first ``preserve`` replaces the default, later ones add, ``no_preserve`` subtracts."""
    kept = set(Preserve._fields)
    replaced = False
    for wish, words in wishes:
        if wish == "no_preserve":
            kept.difference_update(words)
        else:
            kept = kept.union(words) if replaced else set(words)
            replaced = True
    return Preserve(**{name: name in kept for name in Preserve._fields})


def _attributes(text: str) -> tuple[str, ...]:
    words = text.split(",")
    valid = (*Preserve._fields, _ALL)
    for word in words:
        if word not in valid:
            raise ValueError(f"there is no '{shown(os.fsencode(word))}' to preserve, only {', '.join(valid)}")
    return Preserve._fields if _ALL in words else tuple(words)


def _integer(text: str, minimum: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < minimum:
        raise ValueError(f"not a whole number of {minimum} or more")
    return int(text)


def _at_least_0(text: str) -> int:
    return _integer(text, 0)


def _at_least_1(text: str) -> int:
    return _integer(text, 1)


def _seconds(text: str) -> float:
    if not text.isascii() or not text.replace(".", "", 1).isdigit() or float(text) <= 0:
        raise ValueError("not a number of seconds above 0")
    return float(text)


def _chunk_size(text: str) -> int:
    from pcopy.cli.units import parse_size

    if text == "auto":
        return 0
    size = parse_size(text)
    if size < 1:
        raise ValueError("a chunk holds at least one byte")
    return size


def _block_size(text: str) -> int:
    from pcopy.cli.units import parse_size

    size = parse_size(text)
    if size < MINIMUM_BLOCK or size & (size - 1):
        raise ValueError("not a power of two of 64 KiB or more")
    return size


def _parser() -> ArgumentParser:
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            message = message.removeprefix("argument ").replace("ignored explicit argument", "takes no value; unknown:")
            raise Refused(f"{harmless(message)}; see pcopy --help")

    class Wish(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None) -> None:
            wishes = getattr(namespace, "preserve", None) or []
            namespace.preserve = [*wishes, (self.const, values)]

    def taking(convert: Any) -> Any:
        """``convert``, with the reason that it gives (argparse drops that of a ValueError)."""

        def converted(text: str) -> Any:
            try:
                return convert(text)
            except ValueError as error:
                raise argparse.ArgumentTypeError(f"{shown(os.fsencode(text))}: {error}") from None

        return converted

    parser = Parser(
        prog="pcopy",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        allow_abbrev=False,
        add_help=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=27, width=78),
    )
    defaults = Options()

    everyday = parser.add_argument_group("every day")
    add = everyday.add_argument
    add("-n", "--ranks", metavar="N", type=taking(_at_least_1), default=0,
        help="processes that copy (default: the cores that pcopy may use, at most 8)")  # fmt: skip
    add("-u", "--update", dest="existing", action="store_const", const="newer", default=defaults.existing,
        help="leave files alone that are as new as the source, or newer; the same as --existing newer")  # fmt: skip
    add("--existing", choices=EXISTING, metavar="WHAT", default=defaults.existing,
        help="what becomes of files that are there: replace (default), changed (replaced if size or time differ), "
        "newer (replaced if the source is newer), skip, fail")  # fmt: skip
    add("-T", "--no-target-directory", action="store_true", help="DST itself is the target, even if it is a directory")
    add("-a", "-r", "-R", "--archive", "--recursive", dest="archive", action="store_true",
        help="accepted, without effect: trees are copied whole, with all attributes, by default")  # fmt: skip

    kept = parser.add_argument_group(
        "what copies keep",
        f"LIST: words out of {', '.join(Preserve._fields[:-1])},\n{Preserve._fields[-1]}, {_ALL}; with commas",
    )
    add = kept.add_argument
    add("--preserve", metavar="LIST", action=Wish, const="preserve", type=taking(_attributes),
        help="keep these attributes only (default: all)")  # fmt: skip
    add("--no-preserve", dest="preserve", metavar="LIST", action=Wish, const="no_preserve", type=taking(_attributes),
        help="keep all attributes but these")  # fmt: skip
    add("--modify-window", metavar="SECONDS", type=taking(_at_least_0), default=defaults.modify_window,
        help="times that differ by no more than this are equal (default 0, in whole seconds)")  # fmt: skip

    told = parser.add_argument_group("what it tells")
    add = told.add_argument
    add("-q", "--quiet", action="store_true", help="no progress; errors are shown all the same")
    add("-v", "--verbose", action="count", default=0, help="tell more: when each phase begins")
    add("--errors", metavar="FILE", help="write all failures to FILE, one JSON object a line")
    add("--max-errors", metavar="N", type=taking(_at_least_0), default=defaults.max_errors,
        help="give up after N failed items (default 0: never)")  # fmt: skip
    add("--json", action="store_true", help="the summary as JSON")
    add("--progress", choices=PROGRESS, metavar="HOW", default="auto",
        help="auto (default: a bar on a terminal, lines elsewhere), bar, plain, json, none")  # fmt: skip
    add("--progress-interval", metavar="SECONDS", type=taking(_seconds), help="time between two lines or redraws")
    add("--version", action="store_true", help="print the version and exit")
    add("-h", "--help", action="store_true", help="print this help and exit")

    tuning = parser.add_argument_group("tuning", "SIZE: 64K, 4MiB, 1.5G (powers of 1024), 10MB (powers of 1000)")
    add = tuning.add_argument
    add("--chunk-size", metavar="SIZE", type=taking(_chunk_size), default=defaults.chunk_size,
        help="large files are copied in pieces of this size (default: auto)")  # fmt: skip
    add("--block-size", metavar="SIZE", type=taking(_block_size), default=defaults.block_size,
        help="unit of digests: a power of two of 64K or more (default 4M)")  # fmt: skip
    add("--no-sync", action="store_true", help="do not wait at the end until the copies are on storage")
    add("--termination", choices=("tree", "ring"), default=defaults.termination, metavar="HOW",
        help="how the ranks find out that all is done: tree (default) or ring")  # fmt: skip
    return parser
