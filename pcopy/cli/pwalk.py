"""The program ``pwalk``: walks directory trees with many processes and lists their items, as find(1) does."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import Option
from pcopy.cli.common_options import COMMON_OPTIONS
from pcopy.cli.filter_options import FILTER_OPTIONS, requested_selection
from pcopy.cli.mistakes import ADVICE_OF_PWALK, similar_choice_hint
from pcopy.cli.program import ParsedCommandLine
from pcopy.cli.tree_program import TreeProgramCommandLine
from pcopy.errors import RequestRefused, path_refused
from pcopy.walk.expression import (
    ADVICE_FOR_UNSUPPORTED_TESTS,
    ARGUMENT_COUNTS,
    argument_count_of_test,
    can_begin_expression,
    parse_find_expression,
)

if TYPE_CHECKING:
    from argparse import Namespace

    from pcopy.launch.tool import ToolEntryPoint
    from pcopy.tools.arguments import WalkArguments


def _listing_field_names() -> tuple[str, ...]:
    """Return the names of all fields of a listing."""
    from pcopy.walk.output_formats import FIELD_COLUMNS

    return tuple(FIELD_COLUMNS)


def _parse_fields(text: str) -> tuple[str, ...]:
    """Return the fields of a listing that ``text`` names, a comma-separated list.

    The result is in the order in which a listing contains the fields. "none" stands for no fields. Raise ``ValueError``
    for an unknown one.
    """
    wanted = [] if text == "none" else text.split(",")
    for name in wanted:
        if name not in _listing_field_names():
            raise ValueError(f"{name}: is none of {', '.join(_listing_field_names())}")
    return tuple(name for name in _listing_field_names() if name in wanted)


def _parse_sort_key(text: str) -> str:
    """Return ``text``, the value of ``--sort``, unchanged after a check.

    Raise ``ValueError`` if it is not the name of a sort key, with or without a dash before it.
    """
    from pcopy.walk.sorting import SORT_KEYS

    if text.removeprefix("-") not in SORT_KEYS:
        raise ValueError(f"is none of {', '.join(SORT_KEYS)}")
    return text


PWALK_OPTIONS: tuple[Option, ...] = (
    Option(
        "-o --output",
        "pwalk",
        "what is written",
        "write the list to FILE, not to standard output; FILE must end in .jsonl (a saved "
        "listing), .csv, .parquet, .txt or .lst (paths alone); may be given several times",
        brief="write the list to a .jsonl, .csv, .parquet or .txt",
        action="append",
        value="FILE",
        default=[],
        in_files=False,
    ),
    Option(
        "--summary",
        "pwalk",
        "what is written",
        "instead of a list, print how much there is: by type, size, age, depth, user and group; "
        "the largest files, directories and trees; what is unusual; on Lustre how files lie on "
        "its servers",
        brief="instead of a list, print how much there is",
        in_files=False,
    ),
    Option(
        "--page",
        "pwalk",
        "what is written",
        "write the summary also to FILE, a page with pictures; FILE must end in .html",
        brief="write the summary to FILE, a page with pictures",
        value="FILE",
        in_files=False,
    ),
    Option(
        "--json-lines",
        "pwalk",
        "what is written",
        "print JSON lines, the format of a FILE that ends in .jsonl",
        in_files=False,
        excludes="json",
    ),
    Option(
        "--print0",
        "pwalk",
        "what is written",
        "end each path with a NUL instead of a newline, like -print0",
        brief="end each path with a NUL",
        in_files=False,
    ),
    Option(
        "--fields",
        "pwalk",
        "what is written",
        "fields of JSON lines, CSV and Parquet besides path and type, separated by commas: none, "
        "or some of mode, uid, gid, size, allocated, links, inode, device, atime_ns, mtime_ns, "
        "ctime_ns (default: all)",
        value="LIST",
        parse=_parse_fields,
        list_words=_listing_field_names,
    ),
    Option(
        "--sort",
        "pwalk",
        "what is written",
        "sort the list by KEY: path, name, type, size, allocated, links, uid, gid, inode, atime, "
        "mtime or ctime; in descending order with a - before KEY, as in --sort=-size",
        brief="sort by path, size or others; =-size: descending",
        value="KEY",
        parse=_parse_sort_key,
    ),
    Option("--force", "pwalk", "what is written", "replace an existing FILE, whatever it contains", in_files=False),
)
"""The options that only ``pwalk`` has."""


class PwalkCommandLine(TreeProgramCommandLine):
    """The command line of ``pwalk``."""

    option_tables = (PWALK_OPTIONS, FILTER_OPTIONS, COMMON_OPTIONS)
    work, done = "walk", "listed"
    option_advice = ADVICE_OF_PWALK
    needs_standard_output = True
    usage = "pwalk [options] [PATH...] [expression]\n       pwalk [options] --from FILE [PATH] [expression]"
    description = """\
Walks trees and lists what is in them, one path per line, as find does. The
expression is written as for find, after the paths: -name -path
-type -size -mtime -mmin -newer -user -group -perm -links -empty -xattr NAME
-maxdepth -prune ... with ! ( ) -o -a. There is no order, unless --sort asks
for one. Options begin with two dashes, or stand before the expression.
"""
    examples = """\
examples:
  pwalk /scratch/run7 -name '*.h5' -size +1G
  pwalk /scratch -mtime +90 -type f -print0 | xargs -0 -r ls -ld
  pwalk --output all.parquet --output all.jsonl /scratch
  mpiexec -n 16 pwalk --sort=-size --output largest.csv /scratch -size +100G

exit status:
  0 all is listed; 1 some items could not be read; 2 wrong usage or refused;
  70 internal error; 75 stopped early
"""

    def load_command(self) -> ToolEntryPoint:
        from pcopy.launch.tool import ToolEntryPoint
        from pcopy.tools.walk import WALK_TOOL, WalkJob

        return ToolEntryPoint(WALK_TOOL, lambda words: self.parse_command_line(words, WalkJob))

    def parse_options_and_operands(self, argv: Sequence[bytes | str]) -> ParsedCommandLine:
        """Parse ``argv`` into options, paths and the words of an expression as in find(1).

        All words from the first one that can begin an expression belong to the expression, except options with two
        dashes and their values. Raise ``RequestRefused`` for an unknown option or an invalid value.
        """
        words = list(map(os.fsdecode, argv))
        end = words.index("--") if "--" in words else len(words)
        start = next((at for at, word in enumerate(words[:end]) if can_begin_expression(word)), None)
        for option, value in pairwise(words[:end]):
            if option == "--sort" and value.startswith("-"):
                raise RequestRefused(f"--sort {value}: write --sort={value}, with an equals sign")
        self._refuse_unknown_find_tests(words[: end if start is None else start])
        if start is None:
            return super().parse_options_and_operands(words)
        before, rest, expression = words[:start], words[start:], []
        valued = {word for option in self.options if option.value and not option.nargs for word in option.spellings}
        # Separate the options with two dashes, which may be anywhere, from the words of the expression.
        while rest:
            word = rest.pop(0)
            count = argument_count_of_test(word)
            if word.startswith("--"):
                before.append(word)
                if word in valued and rest:
                    before.append(rest.pop(0))
            else:
                expression += [word, *rest[:count]]
                del rest[:count]
        return super().parse_options_and_operands(before)._replace(expression=tuple(expression))

    def _arguments_of_parsed_command_line(
        self, parsed: ParsedCommandLine, values: Namespace, convert: Callable[[Any], Any] | None
    ) -> Any:
        """Return the arguments of the walk for the command line ``parsed``, including the expression of tests (such as
        ``-name``).

        ``values`` are the option values, including those of configuration files. If ``convert`` is not None, it is
        called with the arguments, and its result is returned instead.
        """
        values.expression = parsed.expression
        return super()._arguments_of_parsed_command_line(parsed, values, convert)

    def _refuse_unknown_find_tests(self, words: Sequence[str]) -> None:
        """Raise ``RequestRefused`` if one of ``words`` looks like a test of find(1), such as ``-foo``, but pwalk has no
        such test.
        """
        for word in words:
            if (
                re.fullmatch(r"-[a-z]{3,}", word)
                and word[1:].strip(self.flag_letters)
                and word not in ADVICE_FOR_UNSUPPORTED_TESTS
            ):
                hint = similar_choice_hint(word[1:], [test[1:] for test in ARGUMENT_COUNTS], "-")
                raise RequestRefused(f"unknown test {word}{hint}; see {self.name} --help")

    def refuse_conflicts_with_path_list(self, values: Namespace, listing: str, paths: Sequence[bytes]) -> None:
        """Raise ``RequestRefused`` for operands, options and tests of find that cannot be combined with ``--from``.

        ``listing`` is the value of ``--from``, and ``paths`` are the operands.
        """
        if requested_selection(values, ()).has_filters:
            raise RequestRefused(
                "filters cannot be used with --from, which lists single items: use a test such as -path instead"
            )
        super().refuse_conflicts_with_path_list(values, listing, paths)
        walks = {"-maxdepth", "-mindepth", "-xdev", "-mount", "-prune"}.intersection(values.expression)
        if walks:
            test = min(walks)
            raise RequestRefused(f"{test}: no effect with --from, which enters no directory; leave {test} out")

    def arguments_from_options(
        self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]
    ) -> WalkArguments:
        from pcopy.tools.arguments import WalkArguments

        now = time.time_ns()
        try:
            expression = parse_find_expression(values.expression, now)
        except ValueError as error:
            raise RequestRefused(f"{error}; see {self.name} --help") from None
        tree = self.tree_arguments(values, paths if values.list_file is not None else paths or (b".",), "walked")
        outputs = tuple(map(os.fsencode, values.output))
        values.summary = values.summary or values.page is not None
        if values.page is not None and not values.page.endswith(".html"):
            raise path_refused(os.fsencode(values.page), "the name must end in .html", option="--page")
        if values.json and not (outputs or values.summary):
            raise RequestRefused(
                "--json prints a summary, not a list: add --summary or --output, or write --json-lines for a list"
            )
        if values.json_lines and (values.json or values.summary):
            both = "--json" if values.json else "--summary"
            raise RequestRefused(f"{both} and --json-lines: both would be printed; leave one out")
        if expression.ls and (outputs or values.summary or values.json_lines or values.print0):
            raise RequestRefused(
                "-ls prints lines for people: leave out -ls, or all of --output, --summary, --json-lines and --print0"
            )
        if b"" in outputs:
            raise RequestRefused("--output: the empty string names no file")
        return WalkArguments(
            tree,
            expression,
            outputs,
            sort=values.sort or "",
            fields=_listing_field_names() if values.fields is None else values.fields,
            nul_separated=values.print0 or expression.nul,
            json_lines=values.json_lines,
            ls=expression.ls,
            summary=values.summary,
            page=os.fsencode(values.page or ""),
            force=values.force,
            now_ns=now,
        )


PWALK = PwalkCommandLine()
main = PWALK.main
