"""The command ``pcopy``: its command line, what that means, and what is asked of jobs that there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import (
    at_least_0,
    block_size,
    chunk_size,
    compression,
    parse_owner,
    ranks,
    stripe,
    stripe_table,
    taking,
)
from pcopy.cli.common_options import (
    add_in_flight,
    add_limits,
    add_ranks,
    add_termination,
    add_told,
    in_flight_of,
    refuse_useless_table,
    refuse_what_names_no_file,
    telling_of,
)
from pcopy.cli.filter_options import add_filters, reads_standard_input, select_of
from pcopy.cli.job_options import BESIDE, NO_CHECKPOINT, USAGES, add_job_options, asked_of, keeping_of
from pcopy.cli.mirror_options import add_mirror_options, deletion_of
from pcopy.cli.mistakes import OF_PCOPY, named_nearest
from pcopy.cli.program import Program
from pcopy.errors import Refused
from pcopy.fsio.data import REFLINKS
from pcopy.fsio.preserve import ATTRIBUTES
from pcopy.jobs.paths import absolute
from pcopy.launch import interrupts
from pcopy.signature.algorithms import ALGORITHMS, DEFAULT_ALGORITHM
from pcopy.tasks.base.job import EXISTING, Options, Preserve
from pcopy.text import shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.launch.tool import Command
    from pcopy.tools.arguments import CopyArguments

_ALL = "all"
_ARCHIVE = "pdPltgoDHAXS"  # letters that users of cp and rsync add, and that say what is the default here
_DEFAULTS = Options()
_OF_FILES = (
    "errors",
    "signature",
    "manifest",
    "metrics",
    "report",
    "log",
    "config",
    "exclude-from",
    "files-from",
    "checkpoint",
)


class Pcopy(Program):
    letters = f"aRrLxTuqvh{_ARCHIVE}"
    unknown = OF_PCOPY
    operands = "pcopy [options] SRC... DST"
    """The usage that is meant most often."""
    usage = "\n       ".join((operands, *USAGES))
    description = """\
Copies files and directory trees faithfully, with several processes at once.

  SRC      copied to DST, or into DST if that is an existing directory
  SRC/     with a trailing slash: the contents of SRC go into DST
"""
    examples = """\
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

    def answer(self, words: Sequence[str]) -> str | None:
        """Also what is asked of the jobs that there are."""
        if (text := super().answer(words)) is not None:
            return text
        if not any(word == "--jobs" or word.startswith(("--discard", "--control")) for word in words):
            return None
        from pcopy.cli.job_commands import answer
        from pcopy.launch.launcher import speaks

        interrupts.raise_again()
        return answer(self.parse(words, configured=speaks(os.environ)))

    def command(self) -> Command:
        from pcopy.launch.tool import Command
        from pcopy.tools.copy import Copy, CopyPreparation

        def prepare(words: Sequence[str], arguments: CopyArguments) -> CopyPreparation:
            if not arguments.options.dry_run:
                return CopyPreparation(words, arguments)
            from pcopy.tools.dry_run import DryRunPreparation

            return DryRunPreparation(words, arguments)

        return Command(Copy(self.name), lambda words: self.parse(words, partial(prepare, words)))

    def configurable(self, given: Collection[str]) -> Collection[str] | None:
        """A job goes on as it began, and what is asked of stored jobs copies nothing."""
        return next((may - {"older_than"} for mode, may in BESIDE.items() if mode in given), None)

    def understand(self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]) -> CopyArguments:
        from pcopy.tools.arguments import CopyArguments

        if "-t" in words:
            raise Refused(f"-t: write DST last: {self.operands}; rsync's -t is the default: leave it out")
        refuse_useless_table(values)
        refuse_what_names_no_file(values, "signature", "manifest", "errors", "log")
        asked = asked_of(values, paths, words, self.parser)
        if asked.anything:
            paths = (b"",)  # no SRC, and an empty DST
        elif not paths:
            raise Refused(f"SRC and DST are missing: {self.operands}{self._taken(words)}; see pcopy --help")
        elif len(paths) == 1:
            taken = self._taken(words) or _in_one_word(paths[0])
            raise Refused(f"DST is missing after {shown(paths[0])}: {self.operands}{taken}; see pcopy --help")
        telling, existing = telling_of(values), _existing(values)
        return CopyArguments(
            sources=paths[:-1],
            destination=paths[-1],
            no_target_directory=values.no_target_directory,
            ranks=values.ranks,
            in_flight=in_flight_of(values),
            options=Options(
                preserve=_preserved(values.preserve or [])._replace(chown=values.chown),
                existing=existing,
                modify_window=values.modify_window,
                chunk_size=values.chunk_size,
                block_size=values.block_size,
                sync=not values.no_sync,
                max_errors=values.max_errors,
                bwlimit=values.bwlimit,
                oplimit=values.oplimit,
                hash=_hash(values),
                signature=absolute(os.fsencode(values.signature)) if values.signature else b"",
                manifest=absolute(os.fsencode(values.manifest)) if values.manifest else b"",
                verify=values.verify or values.repair,
                repair=values.repair,
                direct=values.direct,
                drop_cache=values.drop_cache,
                reflink=values.reflink,
                fsync=values.fsync,
                stripe=values.stripe or "",
                stripe_table=values.stripe_table or "",
                stripe_affinity=values.stripe_affinity,
                group_lock=values.group_lock,
                termination=values.termination,
                checksum=values.checksum,
                inplace=values.inplace,
                dereference=values.dereference,
                one_file_system=values.one_file_system,
                files_from=_list_named(values, words, self.parser),
                select=select_of(values, paths, removes=values.delete or values.mirror),
                nul_separated=values.nul_separated,
                itemize=telling.itemizes,
                dry_run=values.dry_run,
                **deletion_of(values, paths, self.name),
                **_recoding(values, existing),
            ),
            telling=telling,
            is_kept=values.checkpoint != NO_CHECKPOINT,
            keeping=keeping_of(values),
            asked=asked,
            force=values.force,
            program=self.name,
        )

    def _taken(self, words: Sequence[str]) -> str:
        """Which option has taken what is a path, perhaps, for its value."""
        from pcopy.cli.configuration import given

        for option in given(words, self.parser()):
            value = os.fsencode(option.raw) if isinstance(option.raw, str) else b""
            if os.path.isdir(value) or (os.path.lexists(value) and option.name not in _OF_FILES):
                return f" (--{option.name} has taken {shown(value)} for its value)"
        return ""

    def add_options(self, parser: ArgumentParser) -> None:
        _add_everyday(parser, self.name)
        older = "only files that have not changed since; with --discard: jobs on which nobody has worked for so long"
        self.add_list(add_filters(parser, done="copied", older=older))
        add_mirror_options(parser)
        self.add_recoding(parser)
        _add_kept(parser)
        _add_proof(parser)
        add_job_options(parser)
        add_told(parser, items=True)
        _add_tuning(parser)
        _add_lustre(parser)

    def add_list(self, group: Any) -> None:
        """Adds to a group of the parser what names a list of paths."""
        add = group.add_argument
        add("--files-from", metavar="FILE", help="copy what FILE lists (-: standard input), a path below SRC on each "
            "line, and the directories that lead there; a directory that is listed is copied whole")  # fmt: skip
        add("-0", "--from0", dest="nul_separated", action="store_true",
            help="paths in --files-from end with a NUL, as find -print0 writes them")  # fmt: skip
        group._has_negative_number_optionals.clear()  # for argparse, -1 would be no value any more

    def add_recoding(self, parser: ArgumentParser) -> None:
        add = parser.add_argument_group("compressing", "regular files are made anew, under another name").add_argument
        add("--compress", metavar="HOW", type=taking(compression), default=None,
            help="write each regular file NAME as NAME.zst, which zstd -d reads; HOW: zstd, or zstd:LEVEL (1 to 22, "
            "default 3)")  # fmt: skip
        add("--decompress", action="store_true", help="write each regular file NAME.zst as NAME; others are copied")


def _in_one_word(path: bytes) -> str:
    first, space, _ = path.partition(b" ")
    if space and os.path.lexists(first) and not os.path.lexists(path):
        return " (SRC and DST are in one pair of quotes: quote each of them)"
    return ""


def _hash(values: Namespace) -> str:
    """The algorithm, empty for none; raises ``Refused`` where one is needed and was refused."""
    wanting = [name for name in ("signature", "manifest", "verify", "repair") if getattr(values, name)]
    if values.hash == "none" and wanting:
        raise Refused(f"--{wanting[0]} needs digests, which --hash none leaves out; see pcopy --help")
    if values.no_sync and (values.verify or values.repair):
        raise Refused("--verify reads back from storage, where --no-sync leaves nothing: leave one out")
    if values.hash in (None, "none"):
        return DEFAULT_ALGORITHM if wanting else ""
    return str(values.hash)


def _existing(values: Namespace) -> str:
    """The policy; contents are compared where size and time would be otherwise. Raises ``Refused``."""
    asked = values.existing
    if not values.checksum:
        return str(asked or ("changed" if values.mirror else Options().existing))
    if asked not in (None, "changed"):
        raise Refused(f"--checksum decides by contents, --existing {asked} does not: leave one out; see pcopy --help")
    return "changed"


def _list_named(values: Namespace, words: Sequence[str], make: Callable[[], ArgumentParser]) -> bytes:
    """The file, from the root; ``make`` makes the parser of the words. Raises ``Refused``."""
    name = values.files_from
    if name is None:
        if values.nul_separated:
            raise Refused("-0 says how the paths in --files-from end: give that, too; see pcopy --help")
        return b""
    if not name:
        raise Refused("--files-from: the empty string names no file; see pcopy --help")
    if name == "-" and reads_standard_input(words, make()):
        raise Refused("--files-from - and --exclude-from - both read standard input: name a file for one of them")
    return name.encode() if name == "-" else absolute(os.fsencode(name))


def _recoding(values: Namespace, existing: str) -> dict[str, Any]:
    """What ``--compress`` and ``--decompress`` mean; raises ``Refused``."""
    if values.compress is None and not values.decompress:
        return {}
    from pcopy.cli.recode_options import recoding_of

    return recoding_of(values, existing)


def _policy(text: str) -> str:
    if text not in EXISTING:
        hint = named_nearest(text, EXISTING) or " (rsync's --existing is not in this version)"
        raise ValueError(f"not one of {', '.join(EXISTING)}{hint}")
    return text


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


def _wish(what: str, text: str) -> tuple[str, Sequence[str]]:
    words = text.split(",")
    valid = (*ATTRIBUTES, _ALL)
    for word in words:
        if word not in valid:
            unknown = f"there is no '{shown(os.fsencode(word))}' to preserve"
            raise ValueError(f"{unknown}, only {', '.join(valid)}{named_nearest(word, valid)}")
    return what, ATTRIBUTES if _ALL in words else words


def _add_everyday(parser: ArgumentParser, program: str) -> None:
    from argparse import SUPPRESS  # argparse knows it by identity, not by what it says

    everyday = parser.add_argument_group("every day")
    add = everyday.add_argument
    add_ranks(everyday, program, "copy", ranks)
    add("-u", "--update", dest="existing", action="store_const", const="newer", default=None,
        help="leave files alone that are as new as the source, or newer; the same as --existing newer")  # fmt: skip
    add("--existing", metavar="WHAT", type=taking(_policy), default=None,
        help="when to replace files that are there: replace (always), changed (if size or time differ; where only "
        "metadata do, these are set), newer (if the source is newer), skip (never), fail (never; they count as "
        f"failed); default: {'changed' if program == 'psync' else 'replace'}")  # fmt: skip
    add("--checksum", action="store_true",
        help="leave files alone whose contents are equal, whatever their times; replace others")  # fmt: skip
    add("--inplace", action="store_true", help="write over existing files instead of replacing them by new ones")
    add("-L", "--dereference", action="store_true", help="follow symbolic links: copy what they lead to")
    add("-x", "--one-file-system", action="store_true",
        help="stay on the file system of SRC: mount points become empty directories")  # fmt: skip
    add("--dry-run", action="store_true",
        help="change nothing; list what would be done with each item, then totals, sizes, what is free")  # fmt: skip
    add("--force", action="store_true", help="go on where DST seems to have too little free space or inodes")
    add("-T", "--no-target-directory", action="store_true", help="DST itself is the target, even if it is a directory")
    add("-a", "-r", "-R", "--archive", "--recursive", dest="archive", action="store_true",
        help=f"accepted, without effect, as are -{' -'.join(_ARCHIVE.replace('t', ''))}, and t "
        "in a bundle: trees are copied whole, with all attributes, by default")  # fmt: skip
    add(*[f"-{letter}" for letter in _ARCHIVE], dest="archive", action="store_true", help=SUPPRESS)


def _add_kept(parser: ArgumentParser) -> None:
    words = f"LIST: words out of {', '.join(ATTRIBUTES[:-1])},\n{ATTRIBUTES[-1]}, {_ALL}; with commas"
    add = parser.add_argument_group("what copies keep", words).add_argument
    add("--preserve", metavar="LIST", action="append", type=taking(partial(_wish, "preserve")),
        help="keep these attributes only (default: all)")  # fmt: skip
    add("--no-preserve", dest="preserve", metavar="LIST", action="append", type=taking(partial(_wish, "no_preserve")),
        help="keep all attributes but these")  # fmt: skip
    add("--chown", metavar="USER:GROUP", type=taking(parse_owner), default=_DEFAULTS.preserve.chown,
        help="owner and group of all copies, names or numbers; either may be left out")  # fmt: skip
    add("--modify-window", metavar="SECONDS", type=taking(at_least_0), default=_DEFAULTS.modify_window,
        help="times that differ by no more than this are equal (default 0, in whole seconds)")  # fmt: skip


def _add_proof(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("proof").add_argument
    add("--verify", action="store_true",
        help="read back from storage what was copied, and compare it; also what --existing changed and "
        "--checksum have kept, but not what -u and --existing skip have kept")  # fmt: skip
    add("--repair", action="store_true", help="as --verify, and copy again the items that differ")
    add("--signature", metavar="FILE", help="write one value for the whole dataset; pverify compares with it later")
    add("--manifest", metavar="FILE", help="write a line with a digest for each item")
    add("--hash", choices=(*ALGORITHMS, "none"), metavar="HOW", default=None,
        help="digest while copying: xxh3-128 (finds accidents; the default where a digest is wanted), blake3 "
        "(withstands forgery), none (the default elsewhere)")  # fmt: skip


def _add_tuning(parser: ArgumentParser) -> None:
    tuning = parser.add_argument_group("tuning", "SIZE: 64K, 4MiB, 1.5G (powers of 1024), 10MB (powers of 1000)")
    add = tuning.add_argument
    add("--chunk-size", metavar="SIZE", type=taking(chunk_size), default=_DEFAULTS.chunk_size,
        help="large files are copied in chunks of this size (default: auto)")  # fmt: skip
    add("--block-size", metavar="SIZE", type=taking(block_size), default=_DEFAULTS.block_size,
        help="unit of digests: a power of two of 64K or more (default 4M)")  # fmt: skip
    add("--reflink", choices=REFLINKS, metavar="WHEN", default=_DEFAULTS.reflink,
        help="share contents with the source where both are on one file system that can: auto (default), never, "
        "always (what can't be shared fails)")  # fmt: skip
    add("--direct", action="store_true",
        help="copy files above 4 MiB past the page cache (O_DIRECT), and read back so when verifying")  # fmt: skip
    add("--drop-cache", action="store_true",
        help="leave nothing of files above 4 MiB in the page cache, on neither side")  # fmt: skip
    add("--fsync", action="store_true", help="bring each file to storage before it gets its name")
    add("--no-sync", action="store_true", help="do not wait at the end until the copies are on storage")
    add("--max-errors", metavar="N", type=taking(at_least_0), default=_DEFAULTS.max_errors,
        help="stop after N failed items (default 0: never)")  # fmt: skip
    add_limits(tuning)
    add_in_flight(tuning)
    add_termination(tuning)


def _add_lustre(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("Lustre", "where DST is on another file system, these have no effect").add_argument
    add("--stripe", metavar="HOW", type=taking(stripe), default=None,
        help="layout of new files: preserve (the source's; default), auto (by size), inherit (the directory's), or "
        "COUNT[:SIZE], stripes and bytes of each (-1: on all OSTs)")  # fmt: skip
    add("--stripe-table", metavar="TABLE", type=taking(stripe_table), default=None,
        help="for --stripe auto: stripes by size of file, as in 1,1G=8,10G=24,100G=72")  # fmt: skip
    add("--stripe-affinity", action="store_true", help="split files so that each part lies on one OST")
    add("--group-lock", action="store_true", help="let all who write to a split file share one lock (also --direct)")


PCOPY = Pcopy()
main, early_answer, parse = PCOPY.main, PCOPY.early_answer, PCOPY.parse
