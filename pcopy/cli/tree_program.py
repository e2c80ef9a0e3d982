"""What the command lines of all tools share that go through trees in place: PATH..., filters, ``--dry-run``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import at_least_0, taking
from pcopy.cli.filter_options import select_of
from pcopy.cli.program import (
    Program,
    add_in_flight,
    add_limits,
    add_ranks,
    add_termination,
    in_flight_of,
    refuse_what_names_no_file,
    telling_of,
)
from pcopy.errors import Refused

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.tools.arguments import TreeArguments


class TreeProgram(Program):
    """Of a tool whose operands are trees."""

    removes = False
    """Does what filters choose go?"""

    def add_recursive(self, add: Any, done: str) -> None:
        """For the habit: ``done`` is what is done to trees."""
        add("-r", "-R", "--recursive", action="store_true", help=f"no effect: trees are {done} by default")

    def add_how(self, parser: ArgumentParser, work: str, *, limits: bool = True) -> Any:
        """The options that say how it works; ``work`` is what its processes do. Returns their group."""
        how = parser.add_argument_group("how it works")
        add_ranks(how, self.name, work)
        if limits:
            add_limits(how, moves=False)
        add_in_flight(how)
        how.add_argument("--max-errors", metavar="N", type=taking(at_least_0), default=0,
            help="stop after N failed items, with status 75 (default 0: never)")  # fmt: skip
        add_termination(how)
        return how

    def tree_of(self, values: Namespace, paths: tuple[bytes, ...], done: str) -> TreeArguments:
        """What the options of all these tools mean; raises ``Refused``. ``done`` is what is done to ``paths``."""
        from pcopy.tools.arguments import TreeArguments

        self._refuse_paths(paths, done)
        refuse_what_names_no_file(values, *(name for name in ("errors", "log") if name in values), directories=False)
        return TreeArguments(
            paths,
            dry_run=getattr(values, "dry_run", False),
            ranks=values.ranks,
            in_flight=in_flight_of(values),
            max_errors=values.max_errors,
            termination=values.termination,
            select=select_of(values, paths, removes=self.removes),
            telling=telling_of(values),
            oplimit=getattr(values, "oplimit", 0),
        )

    def _refuse_paths(self, paths: Sequence[bytes], done: str) -> None:
        if not paths:
            raise Refused(f"PATH expected; see {self.name} --help")
        if b"" in paths:
            raise Refused(f"a path is the empty string: name what is to be {done}")
