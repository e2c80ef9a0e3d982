"""The part of the command line that prm, pchmod, pstripe and pwalk share: directory trees, filters, and limits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcopy.cli.common_options import (
    checked_in_flight_count,
    output_settings,
    refuse_invalid_file_names,
)
from pcopy.cli.filter_options import requested_path_list, requested_selection
from pcopy.cli.program import ProgramCommandLine
from pcopy.errors import RequestRefused

if TYPE_CHECKING:
    from argparse import Namespace

    from pcopy.tools.arguments import TreeProgramArguments


class TreeProgramCommandLine(ProgramCommandLine):
    """The command line of a program whose operands are directory trees on which it works in place."""

    deletes_selected = False
    """True if the program deletes the selected items. Then more patterns that may be mistakes are refused, because a
    mistake costs more.
    """

    def tree_arguments(self, values: Namespace, paths: tuple[bytes, ...], done: str) -> TreeProgramArguments:
        """Return the arguments that all programs on trees have in common.

        Args:
            values: the parsed options.
            paths: the operands PATH.
            done: what happens to them, as a participle such as "removed", for messages.

        Raise ``RequestRefused`` if options and operands are not valid together.
        """
        from pcopy.tasks.base.job import Options
        from pcopy.tools.arguments import TreeProgramArguments

        nul = getattr(values, "nul_separated", False)
        listing = requested_path_list(getattr(values, "list_file", None), self.name, nul=nul)
        if listing is None:
            self._refuse_missing_paths(paths, done)
        else:
            self.refuse_conflicts_with_path_list(values, listing, paths)
        refuse_invalid_file_names(
            values, *(name for name in ("errors", "log") if name in values), refuse_directories=False
        )
        return TreeProgramArguments(
            paths,
            ranks=values.ranks,
            in_flight=checked_in_flight_count(values),
            options=Options(
                sync=False,
                max_errors=values.max_errors,
                termination=values.termination,
                dry_run=getattr(values, "dry_run", None) is not None,
                select=requested_selection(values, paths, deletes_selected=self.deletes_selected),
                oplimit=getattr(values, "oplimit", 0),
            ),
            output=output_settings(values),
            list_file=b"" if listing is None else os.fsencode(listing),
            nul_separated=nul,
        )

    def refuse_conflicts_with_path_list(self, values: Namespace, listing: str, paths: Sequence[bytes]) -> None:
        """Raise ``RequestRefused`` for operands and options that cannot be combined with ``--from``.

        ``listing`` is the value of ``--from``, and ``paths`` are the operands.
        """
        if len(paths) > 1 or b"" in paths:
            raise RequestRefused("--from lists the items: name at most one directory, in which all listed paths are")
        words = ("patterns", "newer_than", "older_than", "larger_than", "smaller_than")
        if any(getattr(values, word) not in (None, []) for word in words):
            raise RequestRefused("--from lists the items: leave out filters, or use them when the list is made")

    def _refuse_missing_paths(self, paths: Sequence[bytes], done: str) -> None:
        """Raise ``RequestRefused`` if there is no operand, or if one is empty.

        ``done`` says what would happen to it, as a participle such as "removed", for the message.
        """
        if not paths:
            raise RequestRefused(f"PATH expected; see {self.name} --help")
        if b"" in paths:
            raise RequestRefused(f"a path is the empty string: name what is to be {done}")
