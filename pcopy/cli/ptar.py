"""The program ``ptar``: creates, lists and unpacks tar archives with many processes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import Option, parse_non_negative, parse_seconds
from pcopy.cli.common_options import (
    COMMON_OPTIONS,
    checked_in_flight_count,
    output_settings,
    refuse_invalid_file_names,
)
from pcopy.cli.filter_options import FILTER_OPTIONS, requested_path_list, requested_selection
from pcopy.cli.mistakes import ADVICE_OF_PTAR
from pcopy.cli.program import ProgramCommandLine
from pcopy.errors import RequestRefused
from pcopy.signature.algorithms import DEFAULT_ALGORITHM

if TYPE_CHECKING:
    from argparse import Namespace

    from pcopy.launch.tool import ToolEntryPoint
    from pcopy.report.streams import StandardStreams
    from pcopy.tasks.base.job import Options
    from pcopy.tools.arguments import ArchiveArguments


PTAR_OPTIONS: tuple[Option, ...] = (
    Option(
        "-c --create",
        "ptar",
        "what to do",
        "make an archive of the trees PATH",
        brief="make an archive of the trees PATH",
        in_files=False,
    ),
    Option(
        "-x --extract --get",
        "ptar",
        "what to do",
        "unpack an archive, or only its MEMBERs and all below them",
        brief="unpack an archive, or only MEMBERs",
        in_files=False,
    ),
    Option(
        "-t --list",
        "ptar",
        "what to do",
        "list an archive; -v: with modes, owners, sizes and times",
        brief="list an archive; -v: with all metadata",
        in_files=False,
        excludes="errors log metrics report",
    ),
    Option(
        "-f --file",
        "ptar",
        "what to do",
        "the archive's file",
        brief="the archive's file",
        value="ARCHIVE",
        in_files=False,
    ),
    Option(
        "-C --directory",
        "ptar",
        "what to do",
        "-c: PATHs are relative to DIR; -x: unpack into DIR (default: the current directory)",
        brief="the directory of PATHs, or to unpack into",
        value="DIR",
        in_files=False,
        modes="create extract",
    ),
    Option(
        "--strip-components",
        "ptar",
        "what to do",
        "-x: leave out the first N components of each name",
        value="N",
        parse=parse_non_negative,
        default=0,
        in_files=False,
        modes="extract",
    ),
    Option(
        "--sparse-limit",
        "ptar",
        "what to do",
        "-x and -t: accept sparse members with up to N stretches of data (default 4194304; 0: "
        "any number); each stretch takes 16 bytes of memory",
        value="N",
        parse=parse_non_negative,
        in_files=False,
        modes="extract list",
    ),
    Option("--numeric-owner", "ptar", "what to do", "use numbers for owners and groups, not names"),
    Option(
        "--sort",
        "ptar",
        "what to do",
        "no effect: members are always in the order of their names",
        value="HOW",
        choices=("name", "none"),
        default="name",
    ),
    Option(
        "-z --gzip",
        "ptar",
        "what to do",
        "-c: compress with gzip, in parts that gzip -d reads as one; -x and -t read any gzip",
        action="store_const",
        const="gzip",
        default="",
        dest="compress_as",
        in_files=False,
        one_of="compression",
        modes="create",
    ),
    Option(
        "--zstd",
        "ptar",
        "what to do",
        "-c: compress with zstd, in frames that many processes make and unpack at once; -x and -t read any zstd",
        brief="-c: compress with zstd, with all processes",
        action="store_const",
        const="zstd",
        dest="compress_as",
        in_files=False,
        one_of="compression",
        modes="create",
    ),
    Option(
        "-a --auto-compress",
        "ptar",
        "what to do",
        "-c: without -z and --zstd, the end of ARCHIVE's name chooses the compression: .tar.gz, .tgz, .tar.zst or "
        ".tzst (default)",
        in_files=False,
        modes="create",
    ),
    Option(
        "--no-auto-compress",
        "ptar",
        "what to do",
        "-c: without -z and --zstd, do not compress, whatever the name of ARCHIVE is",
        modes="create",
    ),
    Option("-p --preserve-permissions --same-permissions", "ptar", "what to do", "no effect: on by default"),
    Option("-S --sparse", "ptar", "what to do", "no effect: on by default"),
    Option("--acls", "ptar", "what to do", "no effect: on by default"),
    Option("--xattrs", "ptar", "what to do", "no effect: on by default"),
    Option("--same-owner", "ptar", "what to do", "no effect: on by default"),
    Option(
        "--format",
        "ptar",
        "what to do",
        "no effect: pax is written",
        value="FORMAT",
        choices=("pax", "posix"),
        default="pax",
    ),
    Option("--one-file-system", "ptar", "what to do", "-c: leave out what is mounted below PATH", modes="create"),
    Option(
        "--signature",
        "ptar",
        "what to do",
        "-c: write the signature of PATH to FILE, for pverify to check the unpacked tree; -t: "
        "read the contents of the archive, and write their signature to FILE",
        value="FILE",
        in_files=False,
        modes="create list",
    ),
    Option(
        "--resume",
        "ptar",
        "what to do",
        "-c: continue the archive that an interrupted run of the same command has begun, if there is one",
        in_files=False,
        modes="create",
    ),
    Option(
        "--checkpoint-interval",
        "ptar",
        "what to do",
        "-c: time between two records of the progress, for --resume (default 60)",
        value="SECONDS",
        parse=parse_seconds,
        default=60.0,
        modes="create",
    ),
    Option("--no-sync", "ptar", "operation", "do not wait until all is on stable storage", modes="create extract"),
)
"""The options that only ``ptar`` has."""


class PtarCommandLine(ProgramCommandLine):
    """The command line of ``ptar``."""

    option_tables = (PTAR_OPTIONS, FILTER_OPTIONS, COMMON_OPTIONS)
    work, done = "work", "archived"
    modes = ("create", "extract", "list")
    option_advice = ADVICE_OF_PTAR
    usage = """\
ptar -c -f ARCHIVE [options] PATH...
       ptar -x -f ARCHIVE [options] [MEMBER...]
       ptar -t -f ARCHIVE [options] [MEMBER...]"""
    description = """\
Makes tar archives of directory trees, unpacks and lists them. GNU tar and
bsdtar read what it writes (pax format), and it reads what they write.
Next to ARCHIVE, -c writes ARCHIVE.idx if readers need it: with this index many
processes can read at once. The program is also installed as pcopy-tar.
"""
    examples = """\
examples:
  ptar -c -f run7.tar run7
  ptar -x -f run7.tar -C /scratch
  ptar -c -f /archive/run7.tar -C /scratch --signature run7.sig run7
  ptar -t -v -f run7.tar
  mpiexec -n 16 ptar -c -f /lustre/run7.tar -C /lustre run7

exit status:
  0 all is done; 1 some items failed, the archive is well-formed all the same;
  2 wrong usage or refused, nothing was touched; 70 internal error; 75 stopped
  early (-c: an older archive is unchanged, and --resume continues)
"""
    _operation_letter = ""
    """The letter of the operation that the command line requests: c, x or t.

    If the command line is not valid, it may be empty or have several letters; ``arguments_from_options`` refuses that.
    """

    def _run_command_line(self, words: Sequence[str], streams: StandardStreams) -> int:
        """Run the program, and return the exit status.

        An archive is listed without ranks, unless its signature is requested.
        """
        # The operation selects the command to run, so it must be known before the options are parsed.
        self._operation_letter = _requested_operation_letters(words, self.flag_letters, self.value_letters)
        if self._operation_letter == "t" and self.help_or_version_text(words) is None and "--show-config" not in words:
            if not self._is_parallel_signature_requested(words):
                return self._list_archive(words, streams)
            streams.is_output_essential = True
        return super()._run_command_line(words, streams)

    def _is_parallel_signature_requested(self, words: Sequence[str]) -> bool:
        """Return True if the command line ``words`` requests the signature of the archive's contents, and several ranks
        can compute it.
        """
        from pcopy.errors import PcopyError

        if not any(word.startswith("--signature") for word in map(os.fsdecode, words)):
            return False
        try:
            arguments = self.parse_command_line(words)
        except PcopyError:  # ``_list_archive`` parses the command line again, and reports the error.
            return False
        from pcopy.tools.sign_archive import is_signed_in_parallel

        return is_signed_in_parallel(arguments)

    def _list_archive(self, words: Sequence[str], streams: StandardStreams) -> int:
        """List the archive in this process, without ranks, on standard output. Return the exit status."""
        from pcopy.errors import EXIT_OK, PcopyError
        from pcopy.launch.launcher import is_reporting_rank
        from pcopy.report.streams import report_refusal

        if not is_reporting_rank(os.environ):
            return EXIT_OK
        streams.is_output_essential = True
        try:
            arguments = self.parse_command_line(words)
            from pcopy.tools.list_archive import list_archive

            return list_archive(arguments)
        except PcopyError as error:
            report_refusal(self.name, error, words)
            return error.status

    def load_command(self) -> ToolEntryPoint:
        from pcopy.launch.tool import ToolEntryPoint

        if self._operation_letter == "x":
            from pcopy.tools.extract import UNPACK_TOOL, ExtractJob

            return ToolEntryPoint(UNPACK_TOOL, lambda words: self.parse_command_line(words, ExtractJob))
        if self._operation_letter == "t":
            from pcopy.tools.sign_archive import SIGN_ARCHIVE_TOOL, SignArchiveJob

            return ToolEntryPoint(SIGN_ARCHIVE_TOOL, lambda words: self.parse_command_line(words, SignArchiveJob))
        from pcopy.tools.archive import ARCHIVE_TOOL, ArchiveJob

        return ToolEntryPoint(ARCHIVE_TOOL, lambda words: self.parse_command_line(words, ArchiveJob))

    def parse_options_and_operands(self, argv: Sequence[bytes | str]) -> Any:
        """Parse ``argv`` into options and operands; the first word may have tar's old form without a dash (``tar cf``).

        Raise ``RequestRefused`` for an unknown option or an invalid value.
        """
        words = list(map(os.fsdecode, argv))
        if words and words[0][:1] in ("c", "x", "t") and not words[0].strip(_LETTERS_WITHOUT_DASH):
            words[0] = "-" + words[0]
        return super().parse_options_and_operands(words)

    def arguments_from_options(
        self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]
    ) -> ArchiveArguments:
        from pcopy.tasks.base.job import ArchiveOptions, Options
        from pcopy.tools.arguments import ArchiveArguments

        modes = [mode for mode in ("create", "extract", "list") if getattr(values, mode)]
        if len(modes) != 1:
            raise RequestRefused("write one of -c (make an archive), -x (unpack it) and -t (list it); see ptar --help")
        mode = modes[0]
        if values.file is None:
            raise RequestRefused("-f ARCHIVE expected: ptar has no default; see ptar --help")
        if values.file in ("", "-"):
            raise RequestRefused(
                "-f: name a file; ptar reads and writes at many offsets at once, which a pipe does not allow: use tar"
            )
        self._refuse_repeated_options(words)
        if b"" in paths:
            raise RequestRefused("a path is the empty string: name a file or a directory")
        listing = _member_list_path(values, mode, paths)
        if mode == "create" and not paths and not listing:
            raise RequestRefused("PATH expected: an empty archive is not made; see ptar --help")
        _refuse_unused_options(values, mode)
        refuse_invalid_file_names(values, "signature", refuse_directories=True)
        refuse_invalid_file_names(values, "errors", "log", refuse_directories=False)
        output_options = output_settings(values)
        options = Options(
            sync=not values.no_sync,
            max_errors=values.max_errors,
            termination=values.termination,
            select=requested_selection(values, paths if mode == "create" else ()),
            bwlimit=values.bwlimit,
            oplimit=values.oplimit,
            dry_run=values.dry_run is not None,
        )
        archive_options = ArchiveOptions(
            numeric_owner=values.numeric_owner,
            strip_components=values.strip_components,
            sparse_limit=ArchiveOptions().sparse_limit if values.sparse_limit is None else values.sparse_limit,
        )
        if mode != "extract":
            options = _options_for_create_and_list(values, options)
            archive_options = archive_options._replace(
                compress_as=values.compress_as or "",
                resumes=values.resume,
                archive_interval=values.checkpoint_interval,
            )
        return ArchiveArguments(
            os.fsencode(values.file),
            paths,
            directory=os.fsencode(values.directory or ""),
            ranks=values.ranks,
            in_flight=checked_in_flight_count(values),
            options=options,
            archive_options=archive_options,
            output=output_options,
            list_file=listing,
            nul_separated=values.nul_separated,
            is_compressed_by_name=mode == "create"
            and not values.compress_as
            and (values.auto_compress or not values.no_auto_compress),
        )

    def _refuse_repeated_options(self, words: Sequence[str]) -> None:
        """Raise ``RequestRefused`` if ``words``, the options of the command line, contain ``-C`` or ``-f`` twice.

        With tar, each -C applies to the paths after it, and is relative to the one before it. Here only the last value
        would be used.
        """
        for name, (pattern, advice) in _GIVEN_ONCE.items():
            if sum(re.match(pattern, word) is not None for word in words) < 2:
                continue  # to find the options takes some milliseconds
            from pcopy.cli.configuration import command_line_options

            if [option.name for option in command_line_options(words, self.parser())].count(name) > 1:
                raise RequestRefused(f"{advice}; see ptar --help")


def _options_for_create_and_list(values: Namespace, options: Options) -> Options:
    """Return ``options`` with the values of the options that only the operations -c (create) and -t (list) use."""
    signature = os.fsencode(values.signature or "")
    return options._replace(
        hash=(values.hash or DEFAULT_ALGORITHM) if signature else "",
        block_size=values.block_size or options.block_size,
        signature=os.path.abspath(signature) if signature else b"",
        one_file_system=values.one_file_system,
    )


_GIVEN_ONCE = {
    "directory": ("-[A-Za-z0]*C|--di", "-C can only be given once: all PATHs or MEMBERs use the same DIR"),
    "file": ("-[A-Za-z0]*f|--fi", "-f can only be given once: write a command for each archive"),
}
"""Options that can only be given once: a pattern for the words that may contain each, and what the message says."""
_LETTERS_WITHOUT_DASH = "cxtvfpSzaqh"
"""Letters that may be written without a dash in the first word, as in ``tar cf``."""


def _requested_operation_letters(words: Sequence[str], flags: str, valued: str) -> str:
    """Return the letters of the operations (c, x, t) that ``words`` request, sorted; more than one is an error.

    ``flags`` and ``valued`` are the single-letter options without and with a value.
    """
    found = {"--create": "c", "--extract": "x", "--get": "x", "--list": "t"}
    modes = set()
    for number, word in enumerate(map(os.fsdecode, words)):
        if word == "--":
            break
        if word[:1] == "-":
            bundle = re.split(f"[{valued}]", word[1:])[0]
            is_bundle = bool(bundle) and not bundle.strip(flags)
        else:
            bundle = word
            is_bundle = not number and not word.strip(_LETTERS_WITHOUT_DASH)
        if is_bundle:
            modes |= {letter for letter in "cxt" if letter in bundle}
        elif word in found:
            modes.add(found[word])
    return "".join(sorted(modes))


def _refuse_unused_options(values: Namespace, mode: str) -> None:
    """Raise ``RequestRefused`` for options that have no effect with the operation ``mode``."""
    only = {"create": ("resume",), "extract": ("strip_components",)}
    for other, names in only.items():
        for name in names if other != mode else ():
            if getattr(values, name):
                word, letter = "--" + name.replace("_", "-"), "-c" if other == "create" else "-x"
                raise RequestRefused(f"{word} can only be given with {letter}: leave it out; see ptar --help")
    if values.signature and mode == "extract":
        raise RequestRefused(
            "--signature can only be given with -c or -t: leave it out; pverify checks what was unpacked; see ptar "
            "--help"
        )
    if values.sparse_limit is not None and mode == "create":
        raise RequestRefused("--sparse-limit can only be given with -x or -t: leave it out; see ptar --help")
    if values.dry_run and mode == "list":
        raise RequestRefused(
            "--dry-run can only be given with -c or -x; -t changes nothing anyway: leave it out; see ptar --help"
        )
    for name in ("errors", "log") if mode == "list" else ():
        if getattr(values, name) is not None:
            raise RequestRefused(
                f"--{name} can only be given with -c or -x: leave it out; -t reports errors on standard error"
            )
    if values.resume and values.no_sync:
        raise RequestRefused("--resume continues from what is on stable storage; leave out --no-sync")


def _member_list_path(values: Namespace, mode: str, paths: Sequence[bytes]) -> bytes:
    """Return the path of the list of paths that ``--from`` names; empty if the option is not given.

    ``mode`` is the letter of the operation, ``paths`` are the operands. Raise ``RequestRefused`` for operands or
    options that cannot be combined with a list.
    """
    name = requested_path_list(values.list_file, "ptar", nul=values.nul_separated)
    if name is None:
        return b""
    if paths:
        what, operand = ("archived", "PATH") if mode == "create" else ("asked for", "MEMBER")
        raise RequestRefused(
            f"--from lists what is {what}: leave out {operand}, or add it to the list; see ptar --help"
        )
    if mode == "create" and values.signature:
        raise RequestRefused(
            "--signature describes one PATH, not a list (--from): write it later, with ptar -t --signature"
        )
    return os.fsencode(name)


PTAR = PtarCommandLine()
main = PTAR.main
