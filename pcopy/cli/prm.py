"""The program ``prm``: removes directory trees with many processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcopy.cli.common_options import add_output_options
from pcopy.cli.filter_options import add_filter_options
from pcopy.cli.mistakes import ADVICE_OF_PRM
from pcopy.cli.tree_program import TreeProgramCommandLine

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.launch.tool import ToolEntryPoint
    from pcopy.tools.arguments import RemoveArguments


class PrmCommandLine(TreeProgramCommandLine):
    """The command line of ``prm``."""

    flag_letters = "frRqvh0"
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

    def add_options(self, parser: ArgumentParser) -> None:
        add = parser.add_argument_group("what is removed").add_argument
        add("--yes", action="store_true", help="do not ask (required if there is no terminal)")
        add("-f", "--force", action="store_true", help="do not ask, and ignore a PATH that does not exist")
        self.add_path_list_options(add, "removed")
        add("--dry-run", action="store_true", help="list what would be removed, and how much; change nothing")
        add("-r", "-R", "--recursive", action="store_true",
            help="with --from: remove each listed directory with its contents; without -r, only if the list leaves it "
            "empty; a PATH without --from is always removed with its contents")  # fmt: skip
        add_filter_options(parser, done="removed", older_help="only items, also directories, with an mtime before WHEN")
        self.add_process_and_limit_options(parser, "remove")
        add_output_options(parser, has_item_log=True)


PRM = PrmCommandLine()
main = PRM.main
