"""The program ``ptar``: creates, lists and unpacks tar archives with many processes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import at_least_0, seconds, taking
from pcopy.cli.common_options import (
    add_digests,
    add_in_flight,
    add_limits,
    add_max_errors,
    add_ranks,
    add_termination,
    add_told,
    in_flight_of,
    refuse_what_names_no_file,
    telling_of,
)
from pcopy.cli.filter_options import add_filters, select_of
from pcopy.cli.mistakes import OF_PTAR
from pcopy.cli.program import Program
from pcopy.errors import Refused
from pcopy.signature.algorithms import DEFAULT_ALGORITHM

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.launch.tool import Command
    from pcopy.report.streams import Streams
    from pcopy.tasks.base.job import Options
    from pcopy.tools.arguments import ArchiveArguments


class Ptar(Program):
    """The command line of ``ptar``."""

    letters = "cxtvzqhpS0"
    valued = "nfCT"
    unknown = OF_PTAR
    usage = """\
ptar -c -f ARCHIVE [options] PATH...
       ptar -x -f ARCHIVE [options] [MEMBER...]
       ptar -t -f ARCHIVE [options] [MEMBER...]"""
    description = """\
Makes tar archives of directory trees, unpacks and lists them. GNU tar and
bsdtar read what it writes (pax format), and it reads what they write.
"""
    examples = """\
examples:
  ptar -c -f run7.tar run7
  ptar -c -f /archive/run7.tar -C /scratch --signature run7.sig run7
  ptar -x -f run7.tar -C /scratch
  ptar -t -v -f run7.tar
  mpiexec -n 16 ptar -c -f /lustre/run7.tar -C /lustre run7

exit status:
  0 all is done; 1 some items failed, the archive is well-formed all the same;
  2 wrong usage or refused, nothing was touched; 70 internal error; 75 stopped
  early (-c: an older archive is unchanged, and --resume continues)
"""
    _mode = ""
    """The letter of the operation: c, x or t. It is empty, or has several letters, if the command line is not valid."""

    def _run(self, words: Sequence[str], streams: Streams) -> int:
        """Run the program. Listing an archive needs no ranks, unless its signature is computed."""
        # The operation selects the command to run, so it must be known before the options are parsed.
        self._mode = _modes_in(words)
        if self._mode == "t" and self.early_answer(words) is None and "--show-config" not in words:
            if not self._is_proved(words):
                return self._list(words, streams)
            streams.answers = True
        return super()._run(words, streams)

    def _is_proved(self, words: Sequence[str]) -> bool:
        """Return True if the signature of the archive's contents is requested and several ranks can read it."""
        from pcopy.errors import PcopyError

        if not any(word.startswith("--signature") for word in map(os.fsdecode, words)):
            return False
        try:
            arguments = self.parse(words)
        except PcopyError:  # ``_list`` parses again, and reports the error
            return False
        from pcopy.tools.prove_archive import is_proved

        return is_proved(arguments)

    def _list(self, words: Sequence[str], streams: Streams) -> int:
        """List the archive in this process, without ranks. Return the exit status."""
        from pcopy.errors import OK, PcopyError
        from pcopy.launch.launcher import speaks
        from pcopy.report.streams import tell

        if not speaks(os.environ):
            return OK
        streams.answers = True
        try:
            arguments = self.parse(words)
            from pcopy.tools.list_archive import list_archive

            return list_archive(arguments)
        except PcopyError as error:
            tell(self.name, error)
            return error.status

    def command(self) -> Command:
        from pcopy.launch.tool import Command

        if self._mode == "x":
            from pcopy.tools.unpack import UNPACKING, UnpackPreparation

            return Command(UNPACKING, lambda words: self.parse(words, UnpackPreparation))
        if self._mode == "t":
            from pcopy.tools.prove_archive import PROVING, ProvePreparation

            return Command(PROVING, lambda words: self.parse(words, ProvePreparation))
        from pcopy.tools.archive import ARCHIVING, ArchivePreparation

        return Command(ARCHIVING, lambda words: self.parse(words, ArchivePreparation))

    def read_words(self, argv: Sequence[bytes | str]) -> Any:
        """Parse ``argv`` as ``Program`` does, and accept tar's old form without a dash (``tar cf``)."""
        words = list(map(os.fsdecode, argv))
        if words and words[0][:1] in ("c", "x", "t") and not words[0].strip(_OLD_LETTERS):
            words[0] = "-" + words[0]  # the old form, as in "tar cf"
        return super().read_words(words)

    def understand(self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]) -> ArchiveArguments:
        from pcopy.tasks.base.job import Options
        from pcopy.tools.arguments import ArchiveArguments

        modes = [mode for mode in ("create", "extract", "list") if getattr(values, mode)]
        if len(modes) != 1:
            raise Refused("write one of -c (make an archive), -x (unpack it) and -t (list it); see ptar --help")
        mode = modes[0]
        if values.file is None:
            raise Refused("-f ARCHIVE expected: ptar has no default; see ptar --help")
        if values.file in ("", "-"):
            raise Refused(
                "-f: name a file; ptar reads and writes at many offsets at once, which a pipe does not allow: use tar"
            )
        if b"" in paths:
            raise Refused("a path is the empty string: name a file or a directory")
        listing = _list_named(values, mode, paths)
        if mode == "create" and not paths and not listing:
            raise Refused("PATH expected: an empty archive is not made; see ptar --help")
        _refuse_useless(values, mode)
        refuse_what_names_no_file(values, "signature", directories=True)
        refuse_what_names_no_file(values, "errors", "log", directories=False)
        telling = telling_of(values)
        options = Options(
            sync=not values.no_sync,
            max_errors=values.max_errors,
            termination=values.termination,
            select=select_of(values, paths if mode == "create" else ()),
            bwlimit=values.bwlimit,
            oplimit=values.oplimit,
            numeric_owner=values.numeric_owner,
            strip_components=values.strip_components,
            sparse_limit=Options().sparse_limit if values.sparse_limit is None else values.sparse_limit,
            dry_run=values.dry_run,
        )
        return ArchiveArguments(
            os.fsencode(values.file),
            paths,
            directory=os.fsencode(values.directory or ""),
            ranks=values.ranks,
            in_flight=in_flight_of(values),
            options=options if mode == "extract" else _of_contents(values, options),
            telling=telling._replace(verbose=2 if telling.verbose and mode != "list" else telling.verbose),
            listing=listing,
            nul=values.nul,
        )

    def add_options(self, parser: ArgumentParser) -> None:
        group = parser.add_argument_group("what to do")
        add = group.add_argument
        add("-c", "--create", action="store_true", help="make an archive of the trees PATH")
        add(
            "-x",
            "--extract",
            "--get",
            action="store_true",
            help="unpack an archive, or the MEMBERs of it and all below",
        )
        add("-t", "--list", action="store_true", help="list what is in it; -v: with modes, owners, sizes and times")
        add("-f", "--file", metavar="ARCHIVE", default=None, help="the archive's file")
        add("-C", "--directory", metavar="DIR", default=None,
            help="-c: PATHs are below DIR; -x: members go there (default: the current directory)")  # fmt: skip
        add("-T", "--files-from", metavar="FILE", dest="listing", default=None,
            help="-c: archive what FILE lists, and nothing else (-: standard input): a path below DIR on each line, or "
            "a listing that pwalk has saved; a directory with all that is in it; -x, -t: the MEMBERs")  # fmt: skip
        add("-0", "--null", dest="nul", action="store_true",
            help="the paths in -T end with a NUL, as find -print0 writes them")  # fmt: skip
        add("--strip-components", metavar="N", type=taking(at_least_0), default=0,
            help="-x: leave out the first N parts of each name")  # fmt: skip
        add("--sparse-limit", metavar="N", type=taking(at_least_0), default=None,
            help="-x and -t: take a sparse member with up to N stretches of data, 16 bytes of memory each (default "
            "4194304; 0: any number)")  # fmt: skip
        add("--numeric-owner", action="store_true", help="use numbers for owners and groups, not names")
        add("--sort", choices=("name", "none"), metavar="HOW", default="name",
            help="no effect: members stand in the order of their names, whatever the number of processes")  # fmt: skip
        add_one_of = group.add_mutually_exclusive_group().add_argument
        add_one_of("-z", "--gzip", action="store_const", const="gzip", dest="compress_as", default="",
            help="-c: compress with gzip, in parts that gzip -d reads as one; -x and -t read any gzip")  # fmt: skip
        add_one_of("--zstd", action="store_const", const="zstd", dest="compress_as",
            help="-c: compress with zstd, in frames that many processes make and unpack at once; -x and -t read any "
            "zstd")  # fmt: skip
        for words in (("-p", "--preserve-permissions", "--same-permissions"), ("-S", "--sparse")):
            add(*words, action="store_true", help="no effect: that is the default")
        for word in ("--acls", "--xattrs", "--same-owner"):
            add(word, action="store_true", help="no effect: that is the default")
        add("--format", choices=("pax", "posix"), metavar="FORMAT", default="pax", help="no effect: pax is written")
        add("--one-file-system", action="store_true", help="-c: leave out what is mounted below PATH")
        add("--signature", metavar="FILE", default=None,
            help="-c: write the signature of PATH, which pverify compares with what was unpacked; -t: that of what the "
            "archive holds, which is read for it")  # fmt: skip
        add_digests(add)
        add("--dry-run", action="store_true",
            help="-c and -x: list what would be archived or unpacked; change nothing")  # fmt: skip
        add("--resume", action="store_true",
            help="-c: continue the archive that an interrupted run of the same command has begun, "
            "if there is one")  # fmt: skip
        add("--checkpoint-interval", metavar="SECONDS", type=taking(seconds), default=60.0,
            help="-c: time between two records of the progress, for --resume (default 60)")  # fmt: skip
        add_filters(parser, done="archived")
        how = parser.add_argument_group("operation")
        add_ranks(how, self.name, "work")
        add_limits(how)
        add_in_flight(how)
        how.add_argument("--no-sync", action="store_true", help="do not wait until all is on stable storage")
        add_max_errors(how)
        add_termination(how)
        add_told(parser, items=True, each="; and the outcome of each item but directories")


def _of_contents(values: Namespace, options: Options) -> Options:
    """Return ``options`` with the fields that only -c and -t use."""
    signature = os.fsencode(values.signature or "")
    return options._replace(
        hash=(values.hash or DEFAULT_ALGORITHM) if signature else "",
        block_size=values.block_size or options.block_size,
        signature=os.path.abspath(signature) if signature else b"",
        one_file_system=values.one_file_system,
        compress_as=values.compress_as or "",
        resumes=values.resume,
        archive_interval=values.checkpoint_interval,
    )


_OLD_LETTERS = "cxtvfpSzqh"
"""Letters that may be written without a dash in the first word, as in ``tar cf``."""


def _modes_in(words: Sequence[str]) -> str:
    """Return the letters of the operations (c, x, t) in ``words``, sorted, each once."""
    found = {"--create": "c", "--extract": "x", "--get": "x", "--list": "t"}
    modes = set()
    for number, word in enumerate(map(os.fsdecode, words)):
        if word == "--":
            break
        if word[:1] == "-":
            bundle = re.split(f"[{Ptar.valued}]", word[1:])[0]
            is_bundle = bool(bundle) and not bundle.strip(Ptar.letters)
        else:
            bundle = word
            is_bundle = not number and not word.strip(_OLD_LETTERS)
        if is_bundle:
            modes |= {letter for letter in "cxt" if letter in bundle}
        elif word in found:
            modes.add(found[word])
    return "".join(sorted(modes))


def _refuse_useless(values: Namespace, mode: str) -> None:
    """Raise ``Refused`` for options that have no effect with the operation ``mode``."""
    only = {"create": ("resume",), "extract": ("strip_components",)}
    for other, names in only.items():
        for name in names if other != mode else ():
            if getattr(values, name):
                word = "--" + name.replace("_", "-")
                raise Refused(f"{word} goes with {'-c' if other == 'create' else '-x'}: leave it out; see ptar --help")
    if values.signature and mode == "extract":
        raise Refused(
            "--signature goes with -c and -t: leave it out; pverify checks what was unpacked; see ptar --help"
        )
    if values.sparse_limit is not None and mode == "create":
        raise Refused("--sparse-limit goes with -x and -t: leave it out; see ptar --help")
    if values.dry_run and mode == "list":
        raise Refused("--dry-run goes with -c and -x, for -t changes nothing: leave it out; see ptar --help")
    for name in ("errors", "log") if mode == "list" else ():
        if getattr(values, name) is not None:
            raise Refused(f"--{name} goes with -c and -x; what -t cannot read goes to standard error: leave it out")
    if values.resume and values.no_sync:
        raise Refused("--resume continues from what is on stable storage; leave out --no-sync")


def _list_named(values: Namespace, mode: str, paths: Sequence[bytes]) -> bytes:
    """Return the file of ``-T``; empty if there is none. Raise ``Refused`` if it cannot be used."""
    name = values.listing
    if name is None:
        if values.nul:
            raise Refused("-0 says how the paths in -T end: give that, too; see ptar --help")
        return b""
    if not name:
        raise Refused("-T: the empty string names no file; write - for standard input")
    if paths:
        what, operand = ("archived", "PATH") if mode == "create" else ("asked for", "MEMBER")
        raise Refused(f"-T lists what is {what}: leave out {operand}, or add it to the list; see ptar --help")
    if mode == "create" and values.signature:
        raise Refused("--signature describes one PATH, and no list: ptar -t --signature computes it from the archive")
    return os.fsencode(name)


PTAR = Ptar()
main = PTAR.main
