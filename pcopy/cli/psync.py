"""The program ``psync``: ``pcopy --mirror`` under a name of its own, which users of rsync look for.

Its jobs are jobs of pcopy: each of the two programs can resume a job that the other one has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pcopy.cli.job_options import JOB_COMMAND_USAGES, JOB_COMMANDS
from pcopy.cli.mistakes import ADVICE_OF_PSYNC
from pcopy.cli.pcopy import PcopyCommandLine
from pcopy.errors import RequestRefused

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.cli.program import ParsedCommandLine
    from pcopy.tools.arguments import CopyArguments


class PsyncCommandLine(PcopyCommandLine):
    """The command line of ``psync``."""

    option_advice = ADVICE_OF_PSYNC
    main_usage = "psync [options] SRC/ DST"
    usage = "\n       ".join((main_usage, *(line.replace("pcopy", "psync", 1) for line in JOB_COMMAND_USAGES)))
    description = """\
Makes DST equal to SRC, with several processes at once: copies what is new or
has changed, and then deletes from DST what SRC lacks. It is pcopy --mirror,
with all options of pcopy except those that compress or decompress files, and
except --from and -0.

  SRC/     a directory with a trailing slash: DST is to be equal to it
  SRC      with -T the same; a single file replaces DST
"""
    examples = """\
examples:
  psync --dry-run /data/ /archive/data    what would be copied and deleted?
  psync /data/ /archive/data              do it
  psync --max-delete 1000 /data/ /archive/data
  psync --backup /archive/old /data/ /archive/data
  psync -u /data/ /archive/data           leave files alone that are newer there
  psync --resume                          go on after an interruption

exit status:
  0 all done; 1 finished, but some items failed, and nothing was deleted;
  2 wrong usage or refused, nothing was touched; 70 internal error;
  75 stopped early
"""

    def arguments_from_options(
        self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]
    ) -> CopyArguments:
        """Return the arguments of the copy. ``--mirror`` is implied, unless a command on stored jobs (such as
        ``--resume``) is given.

        As ``--mirror`` does, this ignores a policy for existing files (``--existing``) that a configuration file sets.
        If the command line sets one, that policy is used, and ``--delete`` is implied instead.
        """
        from pcopy.cli.configuration import command_line_options

        if all(getattr(values, mode) in (None, False) for mode in JOB_COMMANDS):
            if any(option.dest == "existing" for option in command_line_options(words, self.parser())):
                values.delete = True
            else:
                values.existing, values.mirror = None, True
        return super().arguments_from_options(values, paths, words)

    def parser(self) -> ArgumentParser:
        """Return a new parser. The options of pcopy that psync lacks have their default values.

        psync takes no list of paths: a list would not show which items SRC lacks, so nothing could be deleted. It
        compresses no files: compressed files have other names than in SRC, so that the next run would delete them.
        """
        parser = super().parser()
        parser.set_defaults(list_file=None, nul_separated=False, compress=None, decompress=False)
        return parser

    def _arguments_of_parsed_command_line(
        self, parsed: ParsedCommandLine, values: Namespace, convert: Callable[[Any], Any] | None
    ) -> Any:
        """Return the arguments of the copy for the command line ``parsed``. Error messages name psync instead of pcopy.

        ``values`` are the option values, including those of configuration files. If ``convert`` is not None, it is
        called with the arguments, and its result is returned instead.
        """
        try:
            return super()._arguments_of_parsed_command_line(parsed, values, convert)
        except RequestRefused as refused:
            message = str(refused).replace("see pcopy --help", "see psync --help")
            raise RequestRefused(message.replace("pcopy reaches", "psync reaches"), refused.status) from None


PSYNC = PsyncCommandLine()
main = PSYNC.main
