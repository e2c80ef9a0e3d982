"""The program ``pcopy``: its options, the job that they describe, and the commands on stored jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import (
    compression,
    taking,
)
from pcopy.cli.common_options import (
    add_told,
    in_flight_of,
    refuse_useless_table,
    refuse_what_names_no_file,
    telling_of,
)
from pcopy.cli.copy_options import ARCHIVE, add_everyday, add_kept, add_lustre, add_proof, add_tuning
from pcopy.cli.filter_options import add_filters, is_standard_input, reads_standard_input, select_of
from pcopy.cli.job_options import BESIDE, NO_CHECKPOINT, USAGES, add_job_options, asked_of, keeping_of
from pcopy.cli.mirror_options import add_mirror_options, deletion_of
from pcopy.cli.mistakes import OF_PCOPY
from pcopy.cli.program import Program
from pcopy.errors import Refused
from pcopy.fsio.preserve import ATTRIBUTES
from pcopy.jobs.paths import absolute
from pcopy.launch import interrupts
from pcopy.signature.algorithms import DEFAULT_ALGORITHM
from pcopy.tasks.base.job import KEEPING, Options, Preserve, unrecognised
from pcopy.text import shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.launch.tool import Command
    from pcopy.tools.arguments import CopyArguments

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
"""Options whose values are files, so that an existing path as the value is no sign of a mistake."""


class Pcopy(Program):
    """The command line of ``pcopy``."""

    letters = f"aRrLxTuqvh{ARCHIVE}"
    unknown = OF_PCOPY
    operands = "pcopy [options] SRC... DST"
    """The most frequent form of the command line."""
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
        """Return the text to print if no ranks are needed, as for the commands on stored jobs; None if ranks are
        needed.
        """
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
        """Return the options that files may set.

        A resumed job keeps its own options, and a command on stored jobs copies nothing: with these, only few options
        may be set.
        """
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
            hint = self._taken(words) or _in_one_word(paths[0])
            raise Refused(f"DST is missing after {shown(paths[0])}: {self.operands}{hint}; see pcopy --help")
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
                inplace=values.inplace == "parallel",
                sequential=_is_sequential(values, existing),
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
        """Return a hint for a message about a missing path; empty if there is none.

        The hint names the option whose value is an existing path, which may have been meant as SRC or DST.
        """
        from pcopy.cli.configuration import given

        for option in given(words, self.parser()):
            value = os.fsencode(option.raw) if isinstance(option.raw, str) else b""
            if os.path.isdir(value) or (os.path.lexists(value) and option.name not in _OF_FILES):
                return f" (--{option.name} has taken {shown(value)} for its value)"
        return ""

    def add_options(self, parser: ArgumentParser) -> None:
        """Add the options of ``pcopy`` to ``parser``, by groups of the help."""
        add_everyday(parser, self.name)
        older = "only files that have not changed since; with --discard: jobs that no run has worked on since"
        self.add_list(add_filters(parser, done="copied", older=older))
        add_mirror_options(parser)
        self.add_recoding(parser)
        add_kept(parser)
        add_proof(parser)
        add_job_options(parser)
        add_told(parser, items=True)
        add_tuning(parser)
        add_lustre(parser)

    def add_list(self, group: Any) -> None:
        """Add the options that name a list of paths to a group of options."""
        add = group.add_argument
        add("--files-from", metavar="FILE", help="copy what FILE lists (-: standard input), a path below SRC on each "
            "line, and the directories that lead there; a directory that is listed is copied whole")  # fmt: skip
        add("-0", "--from0", dest="nul_separated", action="store_true",
            help="paths in --files-from end with a NUL, as find -print0 writes them")  # fmt: skip
        # Because of -0, argparse would take a value such as -1 for an option.
        group._has_negative_number_optionals.clear()

    def add_recoding(self, parser: ArgumentParser) -> None:
        """Add the options that compress and decompress files."""
        add = parser.add_argument_group(
            "compressing", "regular files are written in another form, under another name"
        ).add_argument
        add("--compress", metavar="HOW", type=taking(compression), default=None,
            help="write each regular file NAME as NAME.zst, which zstd -d reads; HOW: zstd, or zstd:LEVEL (1 to 22, "
            "default 3)")  # fmt: skip
        add("--decompress", action="store_true", help="write each regular file NAME.zst as NAME; others are copied")


def _in_one_word(path: bytes) -> str:
    """Return a hint if ``path`` seems to be SRC and DST in one pair of quotes; else an empty text."""
    first, space, _ = path.partition(b" ")
    if space and os.path.lexists(first) and not os.path.lexists(path):
        return " (SRC and DST are in one pair of quotes: quote each of them)"
    return ""


def _hash(values: Namespace) -> str:
    """Return the digest algorithm of the copy, empty for none. Raise ``Refused`` if one is needed and was excluded."""
    dependent = [name for name in ("signature", "manifest", "verify", "repair") if getattr(values, name)]
    if values.hash == "none" and dependent:
        raise Refused(f"--{dependent[0]} needs digests, which --hash none leaves out; see pcopy --help")
    if values.no_sync and (values.verify or values.repair):
        raise Refused("--verify reads copies back from storage, and --no-sync does not write them there: leave one out")
    if values.hash in (None, "none"):
        return DEFAULT_ALGORITHM if dependent else ""
    return str(values.hash)


def _existing(values: Namespace) -> str:
    """Return the policy for existing files. Raise ``Refused`` if ``--checksum`` contradicts it.

    ``--checksum`` means the policy "changed", with a comparison of contents instead of size and time.
    """
    policy = values.existing
    if not values.checksum:
        return str(policy or ("changed" if values.mirror else Options().existing))
    if policy not in (None, "changed"):
        raise Refused(f"--checksum decides by contents, --existing {policy} does not: leave one out; see pcopy --help")
    return "changed"


def _is_sequential(values: Namespace, existing: str) -> bool:
    """Return True with ``--inplace=sequential``. Raise ``Refused`` if it contradicts the policy for existing files."""
    if values.inplace != "sequential":
        return False
    if existing in KEEPING:
        raise Refused(f"--inplace=sequential: {unrecognised(existing)}")
    return True


def _list_named(values: Namespace, words: Sequence[str], make: Callable[[], ArgumentParser]) -> bytes:
    """Return the absolute path of the file of ``--files-from``, ``-`` for standard input, or an empty path for no list.

    ``make`` makes a new parser, with which ``words`` are parsed again. Raise ``Refused`` if the list cannot be used.
    """
    name = values.files_from
    if name is None:
        if values.nul_separated:
            raise Refused("-0 says how the paths in --files-from end: give that, too; see pcopy --help")
        return b""
    if not name:
        raise Refused("--files-from: the empty string names no file; see pcopy --help")
    if is_standard_input(name) and reads_standard_input(words, make()):
        raise Refused("--files-from - and --exclude-from - both read standard input: name a file for one of them")
    return name.encode() if name == "-" else absolute(os.fsencode(name))


def _recoding(values: Namespace, existing: str) -> dict[str, Any]:
    """Return the values of ``--compress`` and ``--decompress`` as fields of ``Options``.

    Raise ``Refused`` for contradictions.
    """
    if values.compress is None and not values.decompress:
        return {}
    from pcopy.cli.recode_options import recoding_of

    return recoding_of(values, existing)


def _preserved(wishes: Sequence[tuple[str, Sequence[str]]]) -> Preserve:
    """Return the attributes to preserve.

    ``wishes`` are the values of ``--preserve`` and ``--no-preserve``, in order: the first ``preserve`` replaces the
    default, later ones add to it, and ``no_preserve`` subtracts.
    """
    kept = set(ATTRIBUTES)
    replaced = False
    for wish, words in wishes:
        if wish == "no_preserve":
            kept.difference_update(words)
        else:
            kept = kept.union(words) if replaced else set(words)
            replaced = True
    return Preserve(**{name: name in kept for name in ATTRIBUTES})  # type: ignore[arg-type]


PCOPY = Pcopy()
main, early_answer, parse = PCOPY.main, PCOPY.early_answer, PCOPY.parse
