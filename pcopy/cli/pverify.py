"""The program ``pverify``: compares a directory tree with its signature, its manifest or another tree.

Rule: as with cmp and diff, status 0 means the same, 1 different, 2 an error. If an item cannot be read, that is an
error: the item is never reported as a difference, and never ignored.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcopy.cli.argument_types import Option
from pcopy.cli.common_options import (
    COMMON_OPTIONS,
    checked_in_flight_count,
    output_settings,
    refuse_invalid_file_names,
)
from pcopy.cli.compare_options import COMPARE_OPTIONS, requested_comparison
from pcopy.cli.filter_options import FILTER_OPTIONS, requested_selection
from pcopy.cli.mistakes import ADVICE_OF_PVERIFY
from pcopy.cli.program import ProgramCommandLine
from pcopy.errors import EXIT_REFUSED, RequestRefused
from pcopy.text import count_with_noun

if TYPE_CHECKING:
    from argparse import Namespace

    from pcopy.launch.tool import ToolEntryPoint
    from pcopy.tools.arguments import VerifyArguments


PVERIFY_OPTIONS: tuple[Option, ...] = (
    Option(
        "--create",
        "pverify",
        "what is compared",
        "write the signature of PATH to this file",
        brief="write the signature of PATH to this file",
        value="SIGNATURE",
        in_files=False,
        modes="create",
    ),
    Option(
        "--manifest",
        "pverify",
        "what is compared",
        "compare with MANIFEST; with --create: write MANIFEST",
        brief="compare with MANIFEST; with --create: write it",
        value="MANIFEST",
        in_files=False,
        modes="create check",
    ),
    Option(
        "--force",
        "pverify",
        "what is compared",
        "let --create, --output and (with --create) --manifest replace existing files",
        in_files=False,
        modes="create compare",
    ),
    Option("--direct", "pverify", "operation", "read without the page cache (O_DIRECT)"),
    Option("--drop-cache", "pverify", "operation", "drop files from the page cache after they are read"),
)
"""The options that only ``pverify`` has."""


class PverifyCommandLine(ProgramCommandLine):
    """The command line of ``pverify``."""

    option_tables = (PVERIFY_OPTIONS, COMPARE_OPTIONS, FILTER_OPTIONS, COMMON_OPTIONS)
    work, done = "read", "compared"
    modes = ("create", "check", "compare")
    option_advice = ADVICE_OF_PVERIFY
    status_if_output_lost = EXIT_REFUSED
    needs_standard_output = True
    usage = """\
pverify [options] SIGNATURE PATH
       pverify [options] --manifest MANIFEST PATH
       pverify [options] A B
       pverify [options] --compare LIST [--output CLASS:FILE]... A B
       pverify [options] --create SIGNATURE [--manifest MANIFEST] PATH"""
    description = """\
Checks whether files and directory trees have the contents that they should
have.

  SIGNATURE PATH   does PATH still have this signature?
  --manifest ...   which items of PATH differ from the manifest?
  A B              do two directories, or two files, have the same contents?
  --compare ...    do they agree in the properties of a list?
  --create ...     write the signature (and the manifest) of PATH

Entries that differ are listed, a line each: changed, missing (only in the
manifest or A) or extra (only in PATH or B), and the path; with --compare:
only A, only B, or differ in (some properties), a colon, and the path.
"""
    examples = """\
examples:
  pverify data.sig /archive/data
  pverify /scratch/data /archive/data
  pverify --manifest data.manifest /archive/data
  pverify --compare type,size,mtime --output only-a:missing /data /archive/data
  pverify --create data.sig --manifest data.manifest /scratch/data

exit status:
  0 the same (or created); 1 different; 2 wrong usage, or something could not
  be read; 70 internal error
"""

    def load_command(self) -> ToolEntryPoint:
        from pcopy.launch.tool import ToolEntryPoint
        from pcopy.tools.verify import VERIFY_TOOL, prepared_verification_job

        return ToolEntryPoint(VERIFY_TOOL, lambda words: self.parse_command_line(words, prepared_verification_job))

    def arguments_from_options(
        self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]
    ) -> VerifyArguments:
        from pcopy.tasks.base.job import Options
        from pcopy.tools.arguments import VerifyArguments

        refuse_invalid_file_names(values, "create", "manifest", "errors", refuse_directories=bool(values.create))
        if b"" in paths:
            raise RequestRefused("a path is the empty string: name a file or a directory (. for the current one)")
        comparison = requested_comparison(values, words)
        if values.force and not (values.create or values.output):
            raise RequestRefused(
                "--force lets --create or --output replace a file: give one of these, too; see pverify --help"
            )
        wanted = 1 if values.create or values.manifest else 2
        if len(paths) != wanted:
            what = "PATH" if wanted == 1 else "SIGNATURE and PATH, or A and B,"
            raise RequestRefused(
                f"{what} expected, but {count_with_noun(len(paths), 'path', 'paths')} given; see pverify --help"
            )
        return VerifyArguments(
            paths,
            create=os.fsencode(values.create or ""),
            manifest=os.fsencode(values.manifest or ""),
            ranks=values.ranks,
            in_flight=checked_in_flight_count(values),
            options=Options(
                hash=values.hash or "",
                block_size=values.block_size,
                sync=False,
                direct=values.direct,
                drop_cache=values.drop_cache,
                select=requested_selection(values, paths),
                bwlimit=values.bwlimit,
                oplimit=values.oplimit,
            ),
            force=values.force,
            output=output_settings(values),
            comparison=comparison,
        )


PVERIFY = PverifyCommandLine()
main = PVERIFY.main
