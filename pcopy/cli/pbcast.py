"""The program ``pbcast``: copies the same files to a directory on each host of an MPI job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcopy.cli.argument_types import Option
from pcopy.cli.common_options import (
    COMMON_OPTIONS,
    output_settings,
    refuse_invalid_file_names,
)
from pcopy.cli.mistakes import ADVICE_OF_PBCAST
from pcopy.cli.program import ProgramCommandLine
from pcopy.errors import RequestRefused

if TYPE_CHECKING:
    from argparse import Namespace

    from pcopy.launch.tool import ToolEntryPoint
    from pcopy.tools.arguments import BroadcastArguments


PBCAST_OPTIONS: tuple[Option, ...] = (
    Option("--no-sync", "pbcast", "operation", "do not wait until the files are on stable storage of each host"),
    Option(
        "--fsync",
        "pbcast",
        "operation",
        "write each file to stable storage before it gets its name",
        brief="write each file to storage before it gets its name",
    ),
)
"""The options that only ``pbcast`` has."""


class PbcastCommandLine(ProgramCommandLine):
    """The command line of ``pbcast``."""

    option_tables = (PBCAST_OPTIONS, COMMON_OPTIONS)
    work, done = "send", "sent"
    option_advice = ADVICE_OF_PBCAST
    usage = "pbcast [options] FILE... DIR"
    description = """\
Copies each FILE to the directory DIR of every host of an MPI job, which may
be a local one such as /tmp. Rank 0 reads it once, and the hosts pass it on to
each other. A file gets its name on a host when it is complete there.
"""
    examples = """\
examples:
  mpiexec -n 64 pbcast app.tar /tmp
  srun --ntasks-per-node=1 pbcast model.bin weights.bin /local/scratch
  mpiexec -n 64 pbcast --json app.tar /tmp

exit status:
  0 every host has all files; 1 a file has failed on some host; 2 wrong usage
  or refused, nothing was touched; 70 internal error; 75 stopped early
"""

    def load_command(self) -> ToolEntryPoint:
        from pcopy.launch.tool import ToolEntryPoint
        from pcopy.tools.broadcast import BROADCAST_TOOL, BroadcastJob

        return ToolEntryPoint(BROADCAST_TOOL, lambda words: self.parse_command_line(words, BroadcastJob))

    def arguments_from_options(
        self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]
    ) -> BroadcastArguments:
        from pcopy.tools.arguments import BroadcastArguments

        if len(paths) < 2:
            raise RequestRefused(
                "FILE... and DIR expected: what is sent, and the directory of each host; see pbcast --help"
            )
        if b"" in paths:
            raise RequestRefused("a path is the empty string: name a file")
        if values.no_sync and values.fsync:
            raise RequestRefused("--fsync writes each file to stable storage, --no-sync does not: leave one out")
        refuse_invalid_file_names(values, "errors", refuse_directories=False)
        *files, directory = paths
        return BroadcastArguments(
            tuple(files),
            directory,
            bwlimit=values.bwlimit,
            sync=not values.no_sync,
            fsync=values.fsync,
            dry_run=values.dry_run,
            termination=values.termination,
            output=output_settings(values),
        )


PBCAST = PbcastCommandLine()
main = PBCAST.main
