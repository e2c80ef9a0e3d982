"""The program ``pstripe``: reports and changes the layouts of files on Lustre."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcopy.cli.argument_types import Option, parse_stripe, parse_stripe_table
from pcopy.cli.common_options import COMMON_OPTIONS, refuse_unused_stripe_table
from pcopy.cli.filter_options import FILTER_OPTIONS
from pcopy.cli.mistakes import ADVICE_OF_PSTRIPE
from pcopy.cli.tree_program import TreeProgramCommandLine
from pcopy.errors import RequestRefused

if TYPE_CHECKING:
    from argparse import Namespace

    from pcopy.launch.tool import ToolEntryPoint
    from pcopy.tools.arguments import StripeArguments


PSTRIPE_OPTIONS: tuple[Option, ...] = (
    Option(
        "--stripe",
        "pstripe",
        "what is changed",
        "give files this layout: auto (by size), inherit (the directory's), or COUNT[:SIZE]: "
        "COUNT stripes (-1: on all OSTs) of SIZE bytes each",
        brief="auto, inherit or COUNT[:SIZE]",
        value="HOW",
        parse=parse_stripe,
        offered=("preserve", "auto", "inherit"),
        in_files=False,
    ),
    Option(
        "--stripe-table",
        "pstripe",
        "what is changed",
        "for --stripe auto: stripes by size of file, as in 1,1G=8,10G=24,100G=72",
        value="TABLE",
        parse=parse_stripe_table,
        requires="stripe=auto",
    ),
)
"""The options that only ``pstripe`` has."""


class PstripeCommandLine(TreeProgramCommandLine):
    """The command line of ``pstripe``."""

    option_tables = (PSTRIPE_OPTIONS, FILTER_OPTIONS, COMMON_OPTIONS)
    work, done = "work", "examined"
    option_advice = ADVICE_OF_PSTRIPE
    usage = "pstripe [options] PATH..."
    description = """\
Reports how files on Lustre are striped: which layouts there are, which OSTs
they use, and how many files have fewer or more stripes than suit their size.
With --stripe, gives files another layout; they keep their inode, their names
and all metadata. Files that are open for writing or change meanwhile are kept
as they are.
"""
    examples = """\
examples:
  pstripe /lustre/run7
  pstripe --stripe auto --dry-run /lustre/run7
  pstripe --stripe 8:4M /lustre/run7/large.h5
  mpiexec -n 16 pstripe --stripe auto /lustre/run7

exit status:
  0 all is done; 1 some files failed; 2 wrong usage or refused, nothing was
  touched; 70 internal error; 75 stopped early: the same command continues
"""

    def load_command(self) -> ToolEntryPoint:
        from pcopy.launch.tool import ToolEntryPoint
        from pcopy.tools.stripe import STRIPE_TOOL, StripeJob

        return ToolEntryPoint(STRIPE_TOOL, lambda words: self.parse_command_line(words, StripeJob))

    def arguments_from_options(
        self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]
    ) -> StripeArguments:
        from pcopy.tools.arguments import StripeArguments

        tree = self.tree_arguments(values, paths, "examined")
        if values.stripe == "preserve":
            raise RequestRefused(
                "--stripe preserve: pstripe would keep the layout of all files; write auto, inherit or COUNT[:SIZE]"
            )
        if values.dry_run and not values.stripe:
            raise RequestRefused(
                "--dry-run can only be given with --stripe; without --stripe, nothing is changed; see pstripe --help"
            )
        refuse_unused_stripe_table(values)
        return StripeArguments(tree, stripe=values.stripe or "", stripe_table=values.stripe_table or "")


PSTRIPE = PstripeCommandLine()
main = PSTRIPE.main
