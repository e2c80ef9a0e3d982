"""The table of options: one row is all that an option needs, and the rows of all programs are consistent."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pcopy.cli.argument_types import Option, parse_positive
from pcopy.cli.common_options import OPTION_GROUPS
from pcopy.cli.job_options import JOB_COMMANDS, changeable_fields, options_with_command
from pcopy.cli.pcopy import PCOPY, PcopyCommandLine
from pcopy.cli.programs import PROGRAMS, load_program
from pcopy.errors import RequestRefused
from pcopy.tasks.base.job import CopyOptions, Options
from tests.cli.configured import Files, files, refusal
from tests.support.command import REPOSITORY

__all__ = ["files"]

ROOT = Path(__file__).resolve().parents[2]

ROWS = [(program, option) for program in PROGRAMS for option in load_program(program).options]


def tables() -> Iterator[tuple[str, tuple[Option, ...]]]:
    """Yield each table of the programs, with its name."""
    for file in (ROOT / "pcopy/cli").glob("*.py"):
        module = importlib.import_module(f"pcopy.cli.{file.stem}")
        for name in re.findall(r"^(\w+_OPTIONS): tuple\[Option", file.read_text(), re.MULTILINE):
            yield name, getattr(module, name)


class WithOption(PcopyCommandLine):
    """pcopy with one more option, which exists only as a row."""

    option_tables: tuple[tuple[Option, ...], ...] = (
        *PcopyCommandLine.option_tables,
        (
            Option(
                "-j --jitter",
                "pcopy",
                "tuning",
                "wait up to N ms before each file; for {program} only",
                brief="wait before each file",
                value="N",
                parse=parse_positive,
                default=7,
                excludes="verify",
                requires="direct",
                with_commands="resume",
                field="max_errors",
            ),
        ),
    )


@pytest.fixture
def program() -> WithOption:
    return WithOption()


class TestNewRow:
    def test_parser_help_and_bundles_have_it(self, program: WithOption) -> None:
        assert program.parse_options_and_operands(["-j", "3", "a", "b"]).values.jitter == 3
        assert program.parse_options_and_operands(["-aj3", "a", "b"]).values.jitter == 3
        assert program.parse_options_and_operands(["a", "b"]).values.jitter == 7
        assert refusal("--jitter", "0", program=program).startswith("-j/--jitter: 0: not a whole number of 1 or more")
        text = program.help_or_version_text(["--help"])
        assert text is not None
        assert "-j N, --jitter N" in text.partition("\ntuning:")[2]
        assert "wait up to N ms before each file; for pcopy only" in " ".join(text.split())
        assert refusal("--jittr", "3", program=program).startswith("unknown option --jittr; the nearest is --jitter")

    def test_configuration_has_it(self, program: WithOption, files: Files) -> None:
        def seen(text: str, *words: str) -> str:
            files(text)
            shown = program.output_if_no_ranks_needed(["--show-config", *words])
            assert shown is not None
            return "\n".join(line for line in shown.splitlines() if "jitter" in line)

        assert seen("") == "jitter: 7  # default"
        assert re.fullmatch(r"jitter: 9  # .*:1", seen("jitter: 9\ndirect: true\n"))
        assert seen("jitter: 9\ndirect: true\n", "--jitter", "4") == "jitter: 4  # command line"
        for text, words in (("jitter: 9\n", ()), ("jitter: 9\ndirect: true\n", ("--verify",))):
            assert "# jitter: has no effect with the other options" in seen(text, *words)
        files("jitter: x\n")
        assert "jitter: x: not a whole number" in refusal(program=program)

    def test_resume_accepts_and_changes_it(self, program: WithOption) -> None:
        request = program.parse_command_line(["--resume", "job", "--jitter", "3"]).job_request
        assert request.given_options == {"jitter"}
        assert changeable_fields(program.options)["jitter"] == "max_errors"

    def test_manual_and_completions_have_it(self, program: WithOption, monkeypatch: pytest.MonkeyPatch) -> None:
        manuals = module_of("docs/man", "draw_manuals", monkeypatch)
        common = manuals.Texts(manuals.HERE / "common.md", manuals.sections_of(manuals.HERE / "common.md"))
        page = manuals.page_of(program, common)
        assert "#### --jitter\n\n**`-j, --jitter N`**\n\nWait up to N ms" in manuals.reference_page(page)
        assert "\\-\\-jitter" in manuals.manual_page(page).replace("\\%", "").replace("\\fB", "")
        assert "`--jitter`" in manuals.resume_options_text(program)
        completions = module_of("completions", "draw_completions", monkeypatch)
        found = list(completions.options_of(program))
        assert " -j --jitter" in completions.bash_script(program, found)
        assert "{-j+,--jitter=}'[wait up to N ms before each file]:N: '" in completions.zsh_script(program, found)
        assert "complete -c pcopy -s j -l jitter -r -f" in completions.fish_script(program, found)


def module_of(folder: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script that draws files."""
    monkeypatch.syspath_prepend(ROOT / folder)
    module: ModuleType = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return module


class TestRows:
    def test_each_program_has_each_word_once(self) -> None:
        for program in PROGRAMS:
            words = [word for option in load_program(program).options for word in option.spellings]
            assert [word for word in set(words) if words.count(word) > 1] == [], program

    def test_each_row_belongs_to_known_programs_and_groups(self) -> None:
        for name, table in tables():
            for option in table:
                assert set(option.programs.split()) <= set(PROGRAMS), (name, option.words)
                assert {word for programs in option.variants for word in programs.split()} <= set(
                    option.programs.split()
                ), option.words
                for fields in (option._asdict(), *option.variants.values()):
                    assert fields.keys() <= set(Option._fields)
                    assert fields.get("group", "output") in OPTION_GROUPS or option.group not in OPTION_GROUPS

    def test_each_row_is_used_by_each_of_its_programs(self) -> None:
        for name, table in tables():
            for option in table:
                for program in option.programs.split():
                    words = load_program(program).parser()._option_string_actions
                    assert set(option.of_program(program, "", "").spellings) <= set(words), (
                        name,
                        program,
                        option.words,
                    )

    def test_rules_name_existing_options(self) -> None:
        for program, option in ROWS:
            named = [each for form, rest in option.conflicts for each in (form, *rest)] + option.requires.split()
            everywhere = {name for _, row in ROWS for name in row.long_names}
            assert {name.partition("=")[0] for name in named} <= everywhere, (program, option.words)
            assert set(option.with_commands.split()) <= set(JOB_COMMANDS), option.words

    def test_fields_are_those_of_the_job(self) -> None:
        assert {option.field for _, option in ROWS} - {""} <= {*Options._fields, *CopyOptions._fields}
        assert changeable_fields(PCOPY.options) == {
            "max_errors": "max_errors",
            "termination": "termination",
            "no_sync": "sync",
            "bwlimit": "bwlimit",
            "oplimit": "oplimit",
        }

    def test_no_advice_is_for_an_option_that_the_program_has(self) -> None:
        for program, option in ROWS:
            advice = load_program(program).option_advice.by_option
            assert not {word for word in option.spellings if word in advice} - {"-h"}, (program, option.words)

    def test_commands_on_jobs_accept_only_these(self) -> None:
        of_all = {"json", "quiet", "verbose", "config", "insecure_links"}
        assert options_with_command(PCOPY.options, "jobs") == of_all
        assert options_with_command(PCOPY.options, "control") == of_all
        assert options_with_command(PCOPY.options, "discard") == of_all | {"older_than"}
        assert options_with_command(PCOPY.options, "resume") == of_all | {
            *("ranks", "archive", "errors", "log", "max_errors", "progress", "progress_interval", "no_sync"),
            *("termination", "bwlimit", "oplimit", "force", "in_flight", "checkpoint_interval", "checkpoint_store"),
            *("spool", "memory", "metrics", "report", "stop_at_eof"),
        }


WIDTHS = ("", "40", "80", "200")


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_help_and_page_fit_on_a_terminal(program: str, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-h`` is one page; the width is the same on each terminal, so that copied text looks the same."""
    monkeypatch.setenv("COLUMNS", columns)
    page, text = (load_program(program).help_or_version_text([word]) for word in ("-h", "--help"))
    assert max(map(len, text.splitlines())) <= 80
    assert max(map(len, page.splitlines())) <= 80
    assert len(page.splitlines()) <= 24
    assert page.splitlines()[0] == text.splitlines()[0]
    more = f"{program} --help lists all options; man {program} explains them."
    assert page.splitlines()[-1] == more
    assert (ROOT / f"docs/reference/{program}.md").is_file()


def test_page_shows_how_two_trees_are_compared_and_an_archive_is_unpacked() -> None:
    pages = {program: load_program(program).help_or_version_text(["-h"]) for program in ("pverify", "ptar")}
    assert "\n       pverify [options] A B\n" in pages["pverify"]
    assert "\n  pverify /scratch/data /archive/data\n" in pages["pverify"]
    assert "\n       ptar -x -f ARCHIVE [options] [MEMBER...]\n" in pages["ptar"]
    assert "\n  ptar -x -f run7.tar -C /scratch\n" in pages["ptar"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_page_shows_options_of_the_help(program: str) -> None:
    page, text = (load_program(program).help_or_version_text([word]) for word in ("-h", "--help"))
    shown = re.findall(r"^  (-\S.*?)  ", page, re.MULTILINE)
    assert len(shown) >= 6
    option = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
    offered = set(option.findall(text.partition("\nexamples:")[0]))
    for words in shown:
        assert set(option.findall(words)) <= offered
        assert option.match(words)


LISTS = {"pcopy": ("a/", "b"), "ptar": ("-cf", "a.tar"), "prm": (), "pchmod": ("u+r",), "pwalk": ()}
"""The programs that take a list of paths, and their other arguments."""


@pytest.mark.parametrize("program", LISTS)
def test_all_programs_with_lists_accept_the_same_words(program: str) -> None:
    parse = load_program(program).parse_command_line
    results = {
        repr(parse([option, "list", nul, *LISTS[program]], use_config_files=False)._replace(**fixed(program)))
        for option in ("--from", "--files-from", *(["-T"] if program == "ptar" else []))
        for nul in ("-0", "--null", "--from0")
    }
    assert len(results) == 1
    assert re.search(r"nul_separated=True", results.pop())


def fixed(program: str) -> dict[str, int]:
    """The fields of the arguments that depend on the time."""
    return {"now_ns": 0} if program == "pwalk" else {}


@pytest.mark.parametrize("program", PROGRAMS)
def test_lists_are_refused_where_they_are_not_possible(program: str) -> None:
    """The same refusals in each program."""
    if program not in LISTS:
        with pytest.raises(RequestRefused):
            load_program(program).parse_command_line(["--from", "list", "a", "b"], use_config_files=False)
        return
    for words, message in (
        (["-0"], f"-0 says how the paths in --from end: give --from, too; see {program} --help"),
        (["--from="], "--from: the empty string names no file; write - for standard input"),
    ):
        with pytest.raises(RequestRefused) as refused:
            load_program(program).parse_command_line([*words, *LISTS[program]], use_config_files=False)
        assert str(refused.value) == message


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_that_take_a_size_explain_it_once(program: str) -> None:
    """In the help below the title of a group, before the first option of the group, and in the manual."""
    explanation = "SIZE: 64K, 4MiB, 1.5G (powers of 1024), 10MB (powers of 1000)"
    command_line = load_program(program)
    assert any(option.value in ("SIZE", "RATE") for option in command_line.options)
    help_text = command_line.help_or_version_text(["--help"])
    assert help_text.count(explanation) == 1
    before, _, after = help_text.partition(f"\n  {explanation}\n")
    assert "SIZE" not in before
    assert "SIZE" in after
    assert (REPOSITORY / f"docs/man/{program}.1").read_text().count(explanation) == 1
