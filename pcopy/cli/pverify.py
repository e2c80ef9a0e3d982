"""The program ``pverify``: compares a tree with its signature, its manifest or another tree.

Rule: as with cmp and diff, status 0 means the same, 1 different, 2 trouble. An item that could not be read is trouble;
it is never reported as a difference, and never ignored.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcopy.cli.common_options import (
    add_digests,
    add_in_flight,
    add_limits,
    add_ranks,
    add_told,
    in_flight_of,
    refuse_what_names_no_file,
    telling_of,
)
from pcopy.cli.compare_options import add_compare_options, comparison_of
from pcopy.cli.filter_options import add_filters, select_of
from pcopy.cli.mistakes import OF_PVERIFY
from pcopy.cli.program import Program
from pcopy.errors import REFUSED, Refused
from pcopy.text import counted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.launch.tool import Command
    from pcopy.tools.arguments import VerifyArguments


class Pverify(Program):
    """The command line of ``pverify``."""

    letters = "rRqvh0"
    unknown = OF_PVERIFY
    status_of_loss = REFUSED
    answers = True
    usage = """\
pverify [options] SIGNATURE PATH
       pverify [options] --manifest MANIFEST PATH
       pverify [options] A B
       pverify [options] --compare LIST [--output CLASS:FILE]... A B
       pverify [options] --create SIGNATURE [--manifest MANIFEST] PATH"""
    description = """\
Checks whether files and directory trees have the contents that they should.

  SIGNATURE PATH   does PATH still have this signature?
  --manifest ...   which items of PATH differ from the manifest?
  A B              do two directories, or two files, hold the same?
  --compare ...    do they agree in the properties of a list?
  --create ...     write the signature (and the manifest) of PATH

Entries that differ are listed, a line each: changed, missing (only in the
manifest or A) or extra (only in PATH or B), and the path; with --compare:
only A, only B, or differ in (some properties), a colon, and the path.
"""
    examples = """\
examples:
  pverify data.sig /archive/data
  pverify --manifest data.manifest /archive/data
  pverify /scratch/data /archive/data
  pverify --compare type,size,mtime --output only-a:missing /data /archive/data
  pverify --create data.sig --manifest data.manifest /scratch/data

exit status:
  0 the same (or created); 1 different; 2 wrong usage, or something could not
  be read; 70 internal error
"""

    def command(self) -> Command:
        from pcopy.launch.tool import Command
        from pcopy.tools.verify import VERIFY, prepared

        return Command(VERIFY, lambda words: self.parse(words, prepared))

    def understand(self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]) -> VerifyArguments:
        from pcopy.tasks.base.job import Options
        from pcopy.tools.arguments import VerifyArguments

        refuse_what_names_no_file(values, "create", "manifest", directories=bool(values.create))
        if b"" in paths:
            raise Refused("a path is the empty string: name a file or a directory (. for the current one)")
        comparison = comparison_of(values, words)
        if values.force and not (values.create or values.output):
            raise Refused(
                "--force lets --create or --output replace a file: give one of these, too; see pverify --help"
            )
        wanted = 1 if values.create or values.manifest else 2
        if len(paths) != wanted:
            what = "PATH" if wanted == 1 else "SIGNATURE and PATH, or A and B,"
            raise Refused(f"{what} expected, and {counted(len(paths), 'path', 'paths')} given; see pverify --help")
        return VerifyArguments(
            paths,
            create=os.fsencode(values.create or ""),
            manifest=os.fsencode(values.manifest or ""),
            ranks=values.ranks,
            in_flight=in_flight_of(values),
            options=Options(
                hash=values.hash or "",
                block_size=values.block_size,
                sync=False,
                direct=values.direct,
                drop_cache=values.drop_cache,
                select=select_of(values, paths),
                bwlimit=values.bwlimit,
                oplimit=values.oplimit,
            ),
            force=values.force,
            telling=telling_of(values),
            comparison=comparison,
        )

    def add_options(self, parser: ArgumentParser) -> None:
        add = parser.add_argument_group("what is compared").add_argument
        add("--create", metavar="SIGNATURE", help="write the signature of PATH to this file")
        add("--manifest", metavar="MANIFEST", help="compare with this manifest; with --create: write it")
        add(
            "--force",
            action="store_true",
            help="let --create replace a signature or manifest that is there, and --output a file",
        )
        add("-r", "-R", "--recursive", action="store_true", help="no effect: trees are read whole by default")
        add_digests(add)
        add_compare_options(parser)
        add_filters(parser, done="compared")
        how = parser.add_argument_group("operation")
        add_ranks(how, self.name, "read")
        add_limits(how)
        add_in_flight(how)
        how.add_argument("--direct", action="store_true", help="read past the page cache (O_DIRECT)")
        how.add_argument("--drop-cache", action="store_true", help="leave nothing of what was read in the page cache")
        quiet = "no progress; errors and differences are shown all the same"
        add_told(parser, quiet=quiet, json="differences and the summary as JSON, an object a line", errors=False)


PVERIFY = Pverify()
main = PVERIFY.main
