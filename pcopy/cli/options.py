"""The command line of pcopy: what it takes and what that means.

Rules: an option does what its help says or is unknown; nothing is guessed from an abbreviation; whatever is wrong is
said in one line. argparse is imported only when there is something to parse, so that ``--version`` is quick.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pcopy import __version__
from pcopy.cli.argument_types import (
    HELP_ALONE,
    absolute,
    add_progress,
    asks_for_help,
    at_least_0,
    before_operands,
    block_size,
    chunk_size,
    make_parser,
    names_of,
    owner,
    ranks,
    seconds,
    taking,
    wishes_in_order,
    with_progress,
)
from pcopy.cli.job_options import USAGES, Asked, Checkpoint, add_job_options, asked_of, checkpoint_of
from pcopy.cli.mistakes import OF_PCOPY, refuse_letters, refuse_unknown
from pcopy.errors import Refused
from pcopy.fsio.preserve import ATTRIBUTES
from pcopy.signature.algorithms import ALGORITHMS, DEFAULT_ALGORITHM
from pcopy.tasks.job import EXISTING, Options, Preserve
from pcopy.text import shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_ALL = "all"
_ARCHIVE = "pdPltgoDHAXS"  # letters that users of cp and rsync add, and that say what is the default here
_FLAGS = f"aRrLxTuqvh{_ARCHIVE}"  # letters that may stand together, as in -arv
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
    ``options.umask`` is left at its default. Where an older job is ``asked`` for, ``sources`` and ``destination`` are
    empty.
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
    program: str = "pcopy"
    checkpoint: Checkpoint = Checkpoint()
    asked: Asked = Asked()


def early_answer(argv: Sequence[bytes | str]) -> str | None:
    """What ``--version`` or ``-h`` prints on standard output, without a final newline; None if neither is asked for."""
    words = before_operands(list(map(os.fsdecode, argv)))
    if "--version" in words:
        return f"pcopy {__version__}"
    return _parser().format_help().rstrip() if asks_for_help(words, _FLAGS) else None


def parse(argv: Sequence[bytes | str]) -> Arguments:
    """The meaning of ``argv`` (without the program's name); ``early_answer`` has been asked before.

    Raises ``Refused`` with one line on what is wrong with it.
    """
    words = with_progress([os.fsdecode(word) for word in argv])
    end = len(before_operands(words))
    refuse_letters(OF_PCOPY, words[:end], _FLAGS)
    parser = _parser()
    # Without positionals of its own argparse hands back operands and unknown options in their order.
    values, others = parser.parse_known_args(words[:end])
    refuse_unknown(OF_PCOPY, others, names_of(parser))
    if values.help:
        raise Refused(HELP_ALONE)
    _refuse_what_names_no_file(values)
    operands = [os.fsencode(word) for word in others + words[end + 1 :]]
    asked = asked_of(values, operands, words[:end], _parser)
    if asked.anything:
        operands = [b""]  # no SRC, and an empty DST
    elif not operands:
        raise Refused(f"SRC and DST are missing: {_USAGE}; see pcopy --help")
    elif len(operands) == 1:
        raise Refused(f"DST is missing after {shown(operands[0])}: {_USAGE}; see pcopy --help")
    return Arguments(
        sources=tuple(operands[:-1]),
        destination=operands[-1],
        no_target_directory=values.no_target_directory,
        ranks=values.ranks,
        options=Options(
            preserve=_preserved(values.preserve or [])._replace(chown=values.chown),
            existing=_existing(values.existing, values.checksum),
            modify_window=values.modify_window,
            chunk_size=values.chunk_size,
            block_size=values.block_size,
            sync=not values.no_sync,
            max_errors=values.max_errors,
            hash=_hash(values),
            signature=absolute(os.fsencode(values.signature)) if values.signature else b"",
            manifest=absolute(os.fsencode(values.manifest)) if values.manifest else b"",
            verify=values.verify or values.repair,
            repair=values.repair,
            direct=values.direct,
            termination=values.termination,
            checksum=values.checksum,
            inplace=values.inplace,
            dereference=values.dereference,
            one_file_system=values.one_file_system,
        ),
        errors=None if values.errors is None else os.fsencode(values.errors),
        json=values.json,
        progress=values.progress,
        progress_interval=values.progress_interval,
        quiet=values.quiet,
        verbose=values.verbose,
        checkpoint=checkpoint_of(values),
        asked=asked,
    )


def _refuse_what_names_no_file(values: Namespace) -> None:
    for name in ("signature", "manifest", "errors"):
        file = getattr(values, name)
        if file == "":
            raise Refused(f"--{name}: the empty string names no file; see pcopy --help")
        if file and os.path.basename(file) in {"", ".", ".."}:
            raise Refused(f"{shown(os.fsencode(file))}: is a directory, as it is written; name a file")


def _hash(values: Namespace) -> str:
    """The algorithm, empty for none; raises ``Refused`` where one is needed and was refused."""
    wanting = [name for name in ("signature", "manifest", "verify", "repair") if getattr(values, name)]
    if values.hash == "none" and wanting:
        raise Refused(f"--{wanting[0]} needs digests, which --hash none leaves out; see pcopy --help")
    if values.no_sync and (values.verify or values.repair):
        raise Refused("--verify reads back from storage, where --no-sync leaves nothing: leave one out")
    if values.direct and not (values.verify or values.repair):
        raise Refused("--direct says how --verify reads back: give that too; see pcopy --help")
    if values.hash in (None, "none"):
        return DEFAULT_ALGORITHM if wanting else ""
    return str(values.hash)


def _existing(asked: str | None, checksum: bool) -> str:
    """The policy; contents are compared where size and time would be otherwise. Raises ``Refused``."""
    if not checksum:
        return asked or Options().existing
    if asked not in (None, "changed"):
        raise Refused(f"--checksum decides by contents, --existing {asked} does not: leave one out; see pcopy --help")
    return "changed"


def _preserved(wishes: Sequence[tuple[str, Sequence[str]]]) -> Preserve:
    """``wishes`` in order: the first ``preserve`` replaces the default, later ones add, ``no_preserve`` subtracts."""
    kept = set(ATTRIBUTES)
    replaced = False
    for wish, words in wishes:
        if wish == "no_preserve":
            kept.difference_update(words)
        else:
            kept = kept.union(words) if replaced else set(words)
            replaced = True
    return Preserve(**{name: name in kept for name in ATTRIBUTES})  # type: ignore[arg-type]


def _attributes(text: str) -> tuple[str, ...]:
    words = text.split(",")
    valid = (*ATTRIBUTES, _ALL)
    for word in words:
        if word not in valid:
            raise ValueError(f"there is no '{shown(os.fsencode(word))}' to preserve, only {', '.join(valid)}")
    return ATTRIBUTES if _ALL in words else tuple(words)


def _parser() -> ArgumentParser:
    from argparse import SUPPRESS  # argparse knows it by identity, not by what it says

    usages = (_USAGE, *USAGES)
    parser, wish = make_parser("pcopy", "\n       ".join(usages), _DESCRIPTION, _EXAMPLES), wishes_in_order()
    defaults = Options()

    everyday = parser.add_argument_group("every day")
    add = everyday.add_argument
    add("-n", "--ranks", metavar="N", type=taking(ranks), default=0,
        help="processes that copy (default: the cores that pcopy may use, at most 8)")  # fmt: skip
    add("-u", "--update", dest="existing", action="store_const", const="newer", default=None,
        help="leave files alone that are as new as the source, or newer; the same as --existing newer")  # fmt: skip
    add("--existing", choices=EXISTING, metavar="WHAT", default=None,
        help="what becomes of files that are there: replace (default), changed (replaced if size or time differ), "
        "newer (replaced if the source is newer), skip, fail")  # fmt: skip
    add("--checksum", action="store_true",
        help="leave files alone that hold the same as the source, whatever their times; replace others")  # fmt: skip
    add("--inplace", action="store_true", help="write over existing files instead of replacing them by new ones")
    add("-L", "--dereference", action="store_true", help="copy what symbolic links lead to, instead of the links")
    add("-x", "--one-file-system", action="store_true",
        help="stay on the file system of SRC: mount points become empty directories")  # fmt: skip
    add("-T", "--no-target-directory", action="store_true", help="DST itself is the target, even if it is a directory")
    add("-a", "-r", "-R", "--archive", "--recursive", dest="archive", action="store_true",
        help=f"accepted, without effect, as are -{' -'.join(_ARCHIVE)}: trees are copied whole, with all attributes, "
        "by default")  # fmt: skip
    add(*[f"-{letter}" for letter in _ARCHIVE], dest="archive", action="store_true", help=SUPPRESS)

    kept = parser.add_argument_group(
        "what copies keep",
        f"LIST: words out of {', '.join(ATTRIBUTES[:-1])},\n{ATTRIBUTES[-1]}, {_ALL}; with commas",
    )
    add = kept.add_argument
    add("--preserve", metavar="LIST", action=wish, const="preserve", type=taking(_attributes),
        help="keep these attributes only (default: all)")  # fmt: skip
    add("--no-preserve", dest="preserve", metavar="LIST", action=wish, const="no_preserve", type=taking(_attributes),
        help="keep all attributes but these")  # fmt: skip
    add("--chown", metavar="USER:GROUP", type=taking(owner), default=defaults.preserve.chown,
        help="owner and group of all copies, names or numbers; either may be left out")  # fmt: skip
    add("--modify-window", metavar="SECONDS", type=taking(at_least_0), default=defaults.modify_window,
        help="times that differ by no more than this are equal (default 0, in whole seconds)")  # fmt: skip

    proof = parser.add_argument_group("proof")
    add = proof.add_argument
    add("--verify", action="store_true", help="read everything back from storage and compare it with what was copied")
    add("--repair", action="store_true", help="copy once more what did not verify (with --verify, which it means)")
    add("--signature", metavar="FILE", help="write one value for the whole dataset; pverify compares with it later")
    add("--manifest", metavar="FILE", help="write a line with a digest for each entry")
    add("--hash", choices=(*ALGORITHMS, "none"), metavar="HOW", default=None,
        help="digest while copying: xxh3-128 (finds accidents; the default where a digest is wanted), blake3 "
        "(withstands forgery), none (the default elsewhere)")  # fmt: skip

    add_job_options(parser)

    told = parser.add_argument_group("what it tells")
    add = told.add_argument
    add("-q", "--quiet", action="store_true", help="nothing at all when all goes well; errors always")
    add("-v", "--verbose", action="count", default=0, help="tell more: when each phase begins")
    add("--errors", metavar="FILE", help="write all failures to FILE, one JSON object a line")
    add("--max-errors", metavar="N", type=taking(at_least_0), default=defaults.max_errors,
        help="give up after N failed items (default 0: never)")  # fmt: skip
    add("--json", action="store_true", help="the summary as JSON")
    add_progress(add)
    add("--progress-interval", metavar="SECONDS", type=taking(seconds), help="time between two lines or redraws")
    add("--version", action="store_true", help="print the version and exit")
    add("-h", "--help", action="store_true", help="print this help and exit")

    tuning = parser.add_argument_group("tuning", "SIZE: 64K, 4MiB, 1.5G (powers of 1024), 10MB (powers of 1000)")
    add = tuning.add_argument
    add("--chunk-size", metavar="SIZE", type=taking(chunk_size), default=defaults.chunk_size,
        help="large files are copied in pieces of this size (default: auto)")  # fmt: skip
    add("--block-size", metavar="SIZE", type=taking(block_size), default=defaults.block_size,
        help="unit of digests: a power of two of 64K or more (default 4M)")  # fmt: skip
    add("--direct", action="store_true", help="read back past the page cache (O_DIRECT) when verifying")
    add("--no-sync", action="store_true", help="do not wait at the end until the copies are on storage")
    add("--termination", choices=("tree", "ring"), default=defaults.termination, metavar="HOW",
        help="how the ranks find out that all is done: tree (default) or ring")  # fmt: skip
    return parser
