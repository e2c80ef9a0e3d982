"""The list of programs (pcopy/cli/programs.py): each place that must name every program names exactly those."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path

import pytest

from pcopy.cli import script
from pcopy.cli.programs import PROGRAMS, load_program
from tests.support.command import RUN
from tests.support.documented import PROGRAMS as DOCUMENTED

ROOT = Path(__file__).resolve().parents[1]


def setup_section(section: str, key: str) -> list[str]:
    """Return the lines of a value in setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser[section][key].split("\n")[1:]


COMMANDS = {
    name: program.name for program in map(load_program, PROGRAMS) for name in (program.name, *program.other_names)
}
"""The names under which programs are installed: each with the name of its program."""

INSTALLED = {
    "share/man/man1": "docs/man/{}.1",
    "share/bash-completion/completions": "completions/bash/{}",
    "share/zsh/site-functions": "completions/zsh/_{}",
    "share/fish/vendor_completions.d": "completions/fish/{}.fish",
}
"""Directories of installed files, and the name of the file of a program."""


@pytest.mark.parametrize("directory", INSTALLED)
def test_files_of_all_programs_are_installed(directory: str) -> None:
    names = PROGRAMS if "zsh" in directory else COMMANDS  # zsh finds the other names in the file of the program.
    files = [INSTALLED[directory].format(name) for name in sorted(names)]
    assert setup_section("options.data_files", directory) == files
    pattern = re.escape(INSTALLED[directory]).replace(r"\{\}", r"[a-z-]+")
    folder = (ROOT / files[0]).parent
    assert {
        f"{file.relative_to(ROOT)}" for file in folder.iterdir() if re.fullmatch(pattern, str(file.relative_to(ROOT)))
    } == {*files}
    for file in files:
        assert (ROOT / file).is_file()


def test_all_programs_are_installed_as_commands() -> None:
    commands = setup_section("options.entry_points", "console_scripts")
    assert commands == [f"{name} = pcopy.cli.script:{COMMANDS[name]}" for name in sorted(COMMANDS)]
    for program in PROGRAMS:
        assert callable(getattr(script, program))


def test_install_page_links_all_commands() -> None:
    lists = re.findall(r"^ln -s \S+/bin/\{(.*)\} ", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert [each.split(",") for each in lists] == [sorted(COMMANDS)] * 2


def test_all_programs_have_a_script_in_bin_that_ruff_checks() -> None:
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["extend-include"]
    assert checked == [f"bin/{program}" for program in sorted(PROGRAMS)]
    scripts = {file.name for file in (ROOT / "bin").iterdir() if "pcopy.cli.script" in file.read_text()}
    assert scripts == set(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_has_a_module_a_manual_and_a_page(program: str) -> None:
    assert load_program(program).name == program
    for file in (f"docs/man/{program}.md", f"docs/reference/{program}.md", f"bin/{program}"):
        assert (ROOT / file).is_file()


def test_tests_know_all_programs() -> None:
    assert set(DOCUMENTED) == set(PROGRAMS)
    assert RUN.keys() - {"late"} == set(PROGRAMS)
