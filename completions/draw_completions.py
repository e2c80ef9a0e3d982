"""Draws what completes command lines in bash, zsh and fish, from the parsers of the programs.

``python completions/draw_completions.py`` writes the files; with ``--check`` it writes none, and names those that are
old. What an option takes follows from its choices or from the word for its value (FILE, DIR, JOB); ``WORDS`` has the
words of options that check their value themselves.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from docs.drawn import keep  # noqa: E402
from pcopy.cli.config_keys import may_be_flag  # noqa: E402
from pcopy.cli.pbcast import PBCAST  # noqa: E402
from pcopy.cli.pchmod import PCHMOD  # noqa: E402
from pcopy.cli.pcopy import PCOPY  # noqa: E402
from pcopy.cli.pdbench import PDBENCH  # noqa: E402
from pcopy.cli.prm import PRM  # noqa: E402
from pcopy.cli.program import Program  # noqa: E402
from pcopy.cli.pstripe import PSTRIPE  # noqa: E402
from pcopy.cli.psync import PSYNC  # noqa: E402
from pcopy.cli.ptar import PTAR  # noqa: E402
from pcopy.cli.pverify import PVERIFY  # noqa: E402
from pcopy.cli.pwalk import PWALK  # noqa: E402
from pcopy.fsio.preserve import ATTRIBUTES  # noqa: E402
from pcopy.tasks.base.job import EXISTING  # noqa: E402

PROGRAMS: tuple[Program, ...] = (PCOPY, PSYNC, PVERIFY, PRM, PSTRIPE, PTAR, PBCAST, PDBENCH, PWALK, PCHMOD)
WORDS = {
    "--existing": tuple(EXISTING),
    "--preserve": (*ATTRIBUTES, "all"),
    "--no-preserve": (*ATTRIBUTES, "all"),
    "--stripe": ("preserve", "auto", "inherit"),
    "--chunk-size": ("auto",),
    "--in-flight": ("auto",),
}
_FILES = {"FILE", "SIGNATURE", "MANIFEST", "ARCHIVE"}
_JOBS = {"JOB", "JOB|DIR"}
_LIST = "pcopy --jobs 2>/dev/null | grep -oE '^[0-9a-f]{10}'"
"""Prints the names of the unfinished jobs."""

_MADE = "Drawn by completions/draw_completions.py from the parser: change that."


class Option(NamedTuple):
    names: tuple[str, ...]
    takes: str
    """``nothing``, ``words``, ``files``, ``directories``, ``jobs`` or ``value``: something that cannot be completed."""

    words: tuple[str, ...]
    value: str
    about: str
    is_optional: bool


def options_of(program: Program) -> Iterator[Option]:
    parser = program.parser()
    for action in parser._actions:
        if action.help is argparse.SUPPRESS:
            continue
        names = tuple(action.option_strings)
        words = tuple(action.choices or next((WORDS[name] for name in names if name in WORDS), ()))
        value = str(action.metavar or "")
        about = parser._get_formatter()._expand_help(action)
        for end in ("; ", " (", ": "):
            about = about.partition(end)[0]
        yield Option(
            names, takes(action, words, value), words, value, " ".join(about.split()), action.nargs in ("?", "*")
        )


def takes(action: argparse.Action, words: tuple[str, ...], value: str) -> str:
    if action.nargs == 0 or may_be_flag(action):  # the next word is no value of it
        return "nothing"
    if words:
        return "words"
    return "files" if value in _FILES else "directories" if value == "DIR" else "jobs" if value in _JOBS else "value"


def bash(program: Program, options: list[Option]) -> str:
    name = program.name
    cases: dict[str, list[str]] = {}
    for option in options:
        if option.takes == "nothing" or (option.is_optional and option.takes == "value"):
            continue
        found = {
            "words": f'mapfile -t COMPREPLY < <(compgen -W "{" ".join(option.words)}" -- "$cur")',
            "files": 'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur")',
            "directories": 'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur")',
            "jobs": f'mapfile -t COMPREPLY < <(compgen -W "$({_LIST})" -- "$cur")',
            "value": "return",
        }[option.takes]
        if found != "return":
            found += "; [[ $cur == -* ]] || return" if option.is_optional else "; return"
        cases.setdefault(found, []).extend(option.names)
    known = " ".join(name for option in options for name in option.names)
    lines = [f"# {_MADE}", f"_{name}() {{"]
    lines += ["    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}"]
    lines += ["    if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi"]
    lines += ["    COMPREPLY=()", "    case $prev in"]
    lines += [f"        {'|'.join(names)}) {found} ;;" for found, names in cases.items()]
    lines += ["    esac", "    if [[ $cur == -* ]]; then"]
    lines += [f'        mapfile -t COMPREPLY < <(compgen -W "{known}" -- "$cur")', "        return", "    fi"]
    lines += ["    compopt -o filenames 2>/dev/null", '    mapfile -t COMPREPLY < <(compgen -f -- "$cur")', "}"]
    return "\n".join([*lines, f"complete -F _{name} {name}", ""])


def zsh(program: Program, options: list[Option]) -> str:
    name = program.name
    lines = [f"#compdef {name}", f"# {_MADE}", ""]
    if any(option.takes == "jobs" for option in options):
        lines += [f"_{name}_jobs() {{", "    local -a jobs"]
        lines += [f'    jobs=(${{(f)"$({_LIST})"}})', "    compadd -a jobs", "}", ""]
    lines += ["_arguments -s -S \\"]
    for option in options:
        about = option.about.replace("'", "'\\''").replace("[", "(").replace("]", ")")
        found = {
            "words": f"({' '.join(option.words)})",
            "files": "_files",
            "directories": "_files -/",
            "jobs": f"_{name}_jobs",
            "value": " ",
            "nothing": "",
        }[option.takes]
        colon = "::" if option.is_optional else ":"
        value = f"{colon}{option.value.replace(':', ' and ')}:{found}" if found else ""
        ends = ("=", "+") if found and not option.is_optional else ("", "")
        names = [f"{word}{ends[not word.startswith('--')]}" for word in option.names]
        lines += [f"    '*'{braced(names)}'[{about}]{value}' \\"]
    return "\n".join([*lines, "    '*:path:_files'", ""])


def braced(names: list[str]) -> str:
    return "{" + ",".join(names) + "}" if len(names) > 1 else names[0]


def fish(program: Program, options: list[Option]) -> str:
    lines = [f"# {_MADE}"]
    for option in options:
        names = " ".join(f"-l {word[2:]}" if word.startswith("--") else f"-s {word[1:]}" for word in option.names)
        found = {
            "words": f"-r -f -a '{' '.join(option.words)}' ",
            "files": "-r -F ",
            "directories": "-r -f -a '(__fish_complete_directories)' ",
            "jobs": f'-r -f -a "({_LIST})" ',
            "value": "-r -f ",
            "nothing": "",
        }[option.takes]
        about = option.about.replace("'", "\\'")
        lines.append(f"complete -c {program.name} {names} {found}-d '{about}'")
    return "\n".join([*lines, ""])


def drawn() -> dict[Path, str]:
    """All files, and what has to be in them."""
    files: dict[Path, str] = {}
    for program in PROGRAMS:
        options = list(options_of(program))
        files[HERE / "bash" / program.name] = bash(program, options)
        files[HERE / "zsh" / f"_{program.name}"] = zsh(program, options)
        files[HERE / "fish" / f"{program.name}.fish"] = fish(program, options)
    return files


if __name__ == "__main__":
    sys.exit(keep(drawn()))
