"""The common command line of the programs that walk trees in place: PATH..., filters, ``--dry-run``."""

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
    """The command line of a program whose operands are trees."""

    removes = False
    """True if the program deletes the items that filters select."""

    def add_recursive(self, add: Any, done: str) -> None:
        """Add ``-r``, which has no effect, for users who write it by habit.

        ``done`` is the participle for the help text.
        """
        add("-r", "-R", "--recursive", action="store_true", help=f"no effect: trees are {done} by default")

    def add_from(self, add: Any, done: str) -> None:
        """Add the options that name a list of paths.

        ``done`` is the participle for what happens to the listed items.
        """
        add("--from", metavar="FILE", dest="listing", default=None,
            help=f"only what FILE lists is {done} (-: standard input): one path per line, or a listing that pwalk has "
            "saved")  # fmt: skip
        add("-0", "--null", dest="nul", action="store_true",
            help="the paths in --from end with a NUL, as find -print0 writes them")  # fmt: skip

    def add_how(self, parser: ArgumentParser, work: str, *, limits: bool = True) -> Any:
        """Add the options on processes and limits, and return their group.

        ``work`` is the verb for what the processes do.
        """
        how = parser.add_argument_group("operation")
        add_ranks(how, self.name, work)
        if limits:
            add_limits(how, moves=False)
        add_in_flight(how)
        add_max_errors(how)
        add_termination(how)
        return how

    def tree_of(self, values: Namespace, paths: tuple[bytes, ...], done: str) -> TreeArguments:
        """Return the arguments that all these programs have in common. Raise ``Refused`` if they are not valid.

        ``done`` is the participle for what happens to ``paths``, for messages.
        """
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
        """Raise ``Refused`` for operands and options that cannot be combined with a list of paths."""
        if not listing:
            raise Refused("--from: the empty string names no file; write - for standard input")
        if len(paths) > 1 or b"" in paths:
            raise Refused("--from lists the items: name at most one directory, in which all listed paths are")
        words = ("patterns", "newer_than", "older_than", "larger_than", "smaller_than")
        if any(getattr(values, word) not in (None, []) for word in words):
            raise Refused("--from lists the items: leave out filters, or use them when the list is made")

    def _refuse_paths(self, paths: Sequence[bytes], done: str) -> None:
        """Raise ``Refused`` if no path is given, or if one is empty."""
        if not paths:
            raise Refused(f"PATH expected; see {self.name} --help")
        if b"" in paths:
            raise Refused(f"a path is the empty string: name what is to be {done}")
