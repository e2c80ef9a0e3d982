"""The program ``prm``: removes directory trees with many processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcopy.cli.argument_types import Option
from pcopy.cli.common_options import COMMON_OPTIONS
from pcopy.cli.filter_options import FILTER_OPTIONS
from pcopy.cli.mistakes import ADVICE_OF_PRM
from pcopy.cli.tree_program import TreeProgramCommandLine

if TYPE_CHECKING:
    from argparse import Namespace

    from pcopy.launch.tool import ToolEntryPoint
    from pcopy.tools.arguments import RemoveArguments


PRM_OPTIONS: tuple[Option, ...] = (
    Option(
        "--yes",
        "prm",
        "what is removed",
        "do not ask (required if there is no terminal)",
        brief="do not ask",
        in_files=False,
    ),
    Option(
        "-f --force",
        "prm",
        "what is removed",
        "do not ask, and ignore a PATH that does not exist",
        brief="do not ask; ignore a PATH that does not exist",
        in_files=False,
    ),
    Option(
        "-r -R --recursive",
        "prm",
        "what is removed",
        "with --from: remove each listed directory with its contents; without -r, only if the "
        "list leaves it empty; a PATH without --from is always removed with its contents",
    ),
)
"""The options that only ``prm`` has."""


class PrmCommandLine(TreeProgramCommandLine):
    """The command line of ``prm``."""

    option_tables = (PRM_OPTIONS, FILTER_OPTIONS, COMMON_OPTIONS)
    work, done = "remove", "removed"
    option_advice = ADVICE_OF_PRM
    deletes_selected = True
    usage = "prm [options] PATH...\n       prm [options] --from FILE [PATH]"
    description = """\
Removes files, links and whole directory trees. A symbolic link is removed
itself; file systems that are mounted below PATH are not touched.
"""
    examples = """\
examples:
  prm --dry-run /scratch/run7
  prm /scratch/run7
  prm --yes -n 4 /scratch/run7 /scratch/run8
  find /scratch -mtime +90 -print0 | prm --yes -0 --from -
  mpiexec -n 16 prm --yes /scratch/run9

exit status:
  0 all is removed; 1 some items remain; 2 refused, and nothing was removed;
  70 internal error; 75 stopped early: the same command continues
"""

    def load_command(self) -> ToolEntryPoint:
        from pcopy.launch.tool import ToolEntryPoint
        from pcopy.tools.remove import REMOVE_TOOL, RemoveJob

        return ToolEntryPoint(REMOVE_TOOL, lambda words: self.parse_command_line(words, RemoveJob))

    def arguments_from_options(
        self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]
    ) -> RemoveArguments:
        from pcopy.tools.arguments import RemoveArguments

        force = values.force
        tree = self.tree_arguments(values, paths, "removed")
        whole = values.recursive and bool(tree.list_file)
        return RemoveArguments(tree, yes=values.yes or force, may_be_missing=force, whole_directories=whole)


PRM = PrmCommandLine()
main = PRM.main
