"""The command ``prm``: removes trees with many processes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcopy.cli.argument_types import at_least_0, taking
from pcopy.cli.filter_options import add_filters, select_of
from pcopy.cli.mistakes import OF_PRM
from pcopy.cli.program import (
    Program,
    add_in_flight,
    add_limits,
    add_ranks,
    add_termination,
    add_told,
    in_flight_of,
    refuse_what_names_no_file,
    telling_of,
)
from pcopy.errors import Refused

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.launch.tool import Command
    from pcopy.tools.arguments import RemoveArguments


class Prm(Program):
    letters = "frRqvh"
    unknown = OF_PRM
    usage = "prm [options] PATH..."
    description = """\
Removes files, links and whole directory trees. A symbolic link is removed
itself; other file systems that are mounted below PATH stay.
"""
    examples = """\
examples:
  prm --dry-run /scratch/run7
  prm /scratch/run7
  prm --yes -n 4 /scratch/run7 /scratch/run8
  mpiexec -n 16 prm --yes /scratch/run9

exit status:
  0 all is removed; 1 something is left; 2 refused, and nothing was removed;
  70 internal error; 75 stopped early: the same command goes on
"""

    def command(self) -> Command:
        from pcopy.launch.tool import Command
        from pcopy.tools.remove import REMOVAL, RemovePreparation

        return Command(REMOVAL, lambda words: self.parse(words, RemovePreparation))

    def understand(self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]) -> RemoveArguments:
        from pcopy.tools.arguments import RemoveArguments

        if not paths:
            raise Refused("PATH expected; see prm --help")
        if b"" in paths:
            raise Refused("a path is the empty string: name what is to be removed")
        refuse_what_names_no_file(values, "errors", "log", directories=False)
        return RemoveArguments(
            paths,
            yes=values.yes or values.force,
            missing_is_fine=values.force,
            dry_run=values.dry_run,
            ranks=values.ranks,
            in_flight=in_flight_of(values),
            max_errors=values.max_errors,
            termination=values.termination,
            select=select_of(values, paths, removes=True),
            oplimit=values.oplimit,
            telling=telling_of(values),
        )

    def add_options(self, parser: ArgumentParser) -> None:
        add = parser.add_argument_group("what is removed").add_argument
        add("--yes", action="store_true", help="do not ask (needed where nobody can be asked)")
        add("-f", "--force", action="store_true", help="do not ask, and a PATH that is not there is no error")
        add("--dry-run", action="store_true", help="list what would be removed, and tell how much; change nothing")
        add("-r", "-R", "--recursive", action="store_true", help="no effect: trees are removed by default")
        add_filters(parser, done="removed", older="only what has not changed since, directories included")
        how = parser.add_argument_group("how it works")
        add_ranks(how, self.name, "remove")
        add_limits(how, moves=False)
        add_in_flight(how)
        how.add_argument("--max-errors", metavar="N", type=taking(at_least_0), default=0,
            help="stop after N failed items, with status 75 (default 0: never)")  # fmt: skip
        add_termination(how)
        add_told(parser, items=True)


PRM = Prm()
main = PRM.main
