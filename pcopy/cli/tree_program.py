"""What the command lines of all tools share that go through trees in place: PATH..., filters, ``--dry-run``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pcopy.cli.common_options import (
    add_in_flight,
    add_limits,
    add_max_errors,
    add_ranks,
    add_termination,
    in_flight_of,
    refuse_what_names_no_file,
    telling_of,
)
from pcopy.cli.filter_options import select_of
from pcopy.cli.program import Program
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

    def add_from(self, add: Any, done: str) -> None:
        """The options that name a list of what is ``done``."""
        add("--from", metavar="FILE", dest="listing", default=None,
            help=f"what FILE lists is {done}, and nothing else (-: standard input): a path on each line, or a listing "
            "that pwalk has saved")  # fmt: skip
        add("-0", "--null", dest="nul", action="store_true",
            help="the paths in --from end with a NUL, as find -print0 writes them")  # fmt: skip

    def add_how(self, parser: ArgumentParser, work: str, *, limits: bool = True) -> Any:
        """The options that say how it works; ``work`` is what its processes do. Returns their group."""
        how = parser.add_argument_group("how it works")
        add_ranks(how, self.name, work)
        if limits:
            add_limits(how, moves=False)
        add_in_flight(how)
        add_max_errors(how)
        add_termination(how)
        return how

    def tree_of(self, values: Namespace, paths: tuple[bytes, ...], done: str) -> TreeArguments:
        """What the options of all these tools mean; raises ``Refused``. ``done`` is what is done to ``paths``."""
        from pcopy.tasks.base.job import Options
        from pcopy.tools.arguments import TreeArguments

        listing = getattr(values, "listing", None)
        if listing is None:
            if getattr(values, "nul", False):
                raise Refused(f"-0 says how the paths in --from end: give that, too; see {self.name} --help")
            self._refuse_paths(paths, done)
        else:
            self.check_list(values, listing, paths)
        refuse_what_names_no_file(values, *(name for name in ("errors", "log") if name in values), directories=False)
        return TreeArguments(
            paths,
            ranks=values.ranks,
            in_flight=in_flight_of(values),
            options=Options(
                sync=False,
                max_errors=values.max_errors,
                termination=values.termination,
                dry_run=getattr(values, "dry_run", False),
                select=select_of(values, paths, removes=self.removes),
                oplimit=getattr(values, "oplimit", 0),
            ),
            telling=telling_of(values),
            listing=b"" if listing is None else os.fsencode(listing),
            nul=getattr(values, "nul", False),
        )

    def check_list(self, values: Namespace, listing: str, paths: Sequence[bytes]) -> None:
        """Raises ``Refused`` for what does not go with a list."""
        if not listing:
            raise Refused("--from: the empty string names no file; write - for standard input")
        if len(paths) > 1 or b"" in paths:
            raise Refused("--from lists what is taken: name at most one directory, in which all that is listed lies")
        words = ("patterns", "newer_than", "older_than", "larger_than", "smaller_than")
        if any(getattr(values, word) not in (None, []) for word in words):
            raise Refused("--from lists what is taken: leave out filters, or choose by them when the list is made")

    def _refuse_paths(self, paths: Sequence[bytes], done: str) -> None:
        if not paths:
            raise Refused(f"PATH expected; see {self.name} --help")
        if b"" in paths:
            raise Refused(f"a path is the empty string: name what is to be {done}")
