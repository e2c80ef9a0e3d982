"""Generate the manual pages (docs/man/*.1) and the reference of the site (docs/reference/*.md) from one source.

The options, their spellings, order and groups come from the table of options (``pcopy.cli``). docs/man/PROGRAM.md
contains what exceeds the help: sections of prose, and below "Options" a text for a group (``### title``) or an option
(``#### --word``), which replaces the help text. Texts of options that several programs share are in
docs/man/common.md; a program's own text takes precedence. An option without a text gets its help text. pcopy.yaml(5)
consists of docs/operations/configuration.md and the keys that files may have.

``python docs/man/draw_manuals.py`` writes the pages; with ``--check`` it writes nothing and prints the names of
outdated files.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from roff import as_prose, bold, italic, term, to_roff

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from docs.drawn import write_or_check  # noqa: E402
from pcopy import __version__  # noqa: E402
from pcopy.cli.argument_types import Option  # noqa: E402
from pcopy.cli.common_options import SIZE_TEXT  # noqa: E402
from pcopy.cli.program import ProgramCommandLine  # noqa: E402
from pcopy.cli.programs import PROGRAM_SUMMARIES, load_program  # noqa: E402

REFERENCE = ROOT / "docs" / "reference"
PROGRAMS = tuple(map(load_program, PROGRAM_SUMMARIES))
_HEADING = re.compile(r"^(#{1,4}) (.*)$")
_OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z0-9][\w-]*")
_SHOWN_AS_IT_IS = re.compile(r"[\\`*_<>|\[\]]")
_COMMON = "common.md"


class Part(NamedTuple):
    """A section of a source file: the heading's ``level`` (1 to 4), its ``title``, and the ``text`` below it."""

    level: int
    title: str
    text: str


class Entry(NamedTuple):
    """An option: its ``name``, its ``spellings``, its ``value`` as in a synopsis (``N``, ``[HOW]``), and its text."""

    name: str
    spellings: tuple[str, ...]
    value: str
    text: str


class Group(NamedTuple):
    """A group of options, with its title and an introduction."""

    title: str
    text: str
    options: list[Entry]


class Page(NamedTuple):
    """The contents of the page of a program."""

    name: str
    summary: str
    usage: list[str]
    sections: list[Part]
    groups: list[Group]


def sections_of(file: Path) -> list[Part]:
    """Return the sections of a source file."""
    parts: list[Part] = []
    lines: list[str] = []
    fenced = False
    for line in [*file.read_text().splitlines(), "# end"]:
        fenced ^= line.startswith("```")
        heading = None if fenced else _HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        if parts:
            parts[-1] = parts[-1]._replace(text="\n".join(lines).strip("\n"))
        parts.append(Part(len(heading[1]), heading[2], ""))
        lines = []
    return parts[:-1]


class Texts:
    """The texts of a source file for groups and options. Each text must be used."""

    def __init__(self, file: Path, parts: list[Part]) -> None:
        self._file = file
        self._texts = {part.title.lower() if part.level == 3 else part.title: part.text for part in parts}
        self._unused = set(self._texts)

    def find(self, *names: str) -> str | None:
        """Return the text for the first of ``names`` that has one, and mark it as used; None if there is none."""
        for name in names:
            if name in self._texts:
                self._unused.discard(name)
                return self._texts[name]
        return None

    def refuse_unused(self) -> None:
        """Exit with a message if a text has not been used: no option or group has its name."""
        if self._unused:
            sys.exit(f"{self._file.relative_to(ROOT)}: nothing has {', '.join(sorted(self._unused))}")


def page_of(program: ProgramCommandLine, common: Texts) -> Page:
    """Return the contents of the page of ``program``."""
    file = HERE / f"{program.name}.md"
    _, *parts = sections_of(file)
    own = Texts(file, [part for part in parts if part.level > 2])
    groups = []
    for title, options in groupby((option for option in program.options if option.help), lambda option: option.group):
        entries = [entry_of(program, option, own, common) for option in options]
        text = own.find(title.lower())
        if text is None:
            text = common.find(title.lower())
        first, *more = program.group_texts(title) or [""]
        if text is None:
            text = help_sentence(first)
        elif first == SIZE_TEXT:
            more = [SIZE_TEXT]
        text = "\n\n".join([text, *map(help_sentence, more)])
        groups.append(Group(title[0].upper() + title[1:], text, entries))
    own.refuse_unused()
    usage = [line.strip() for line in program.usage.splitlines()]
    return Page(program.name, PROGRAM_SUMMARIES[program.name], usage, [p for p in parts if p.level == 2], groups)


def entry_of(program: ProgramCommandLine, option: Option, own: Texts, common: Texts) -> Entry:
    """Return an option with its text, or the help text if the sources ``own`` and ``common`` have none.

    Exit with a message if the text does not mention all choices of the option.
    """
    spellings = tuple(option.spellings)
    text = own.find(*spellings)
    if text is None:
        text = common.find(*spellings)
    if text is None:
        text = help_sentence(option.help)
    else:
        text = text.replace("{program}", program.name).replace("{may_change}", resume_options_text(program))
        missing = [choice for choice in option.choices if f"`{choice}`" not in text]
        if missing:
            sys.exit(f"{program.name}: the text of {spellings[-1]} does not mention {', '.join(missing)}")
    long = [name for name in spellings if name.startswith("--")]
    return Entry((long or list(spellings))[0], spellings, value_of(option), text)


def resume_options_text(program: ProgramCommandLine) -> str:
    """Return the list of options that may be given with --resume."""
    found = [option.key for option in program.options if "resume" in option.with_commands.split() and option.is_listed]
    return textwrap.fill(", ".join(f"`--{name}`" for name in found), 118, break_on_hyphens=False)


def value_of(option: Option) -> str:
    """Return the value of an option as in a synopsis."""
    if option.is_value_after_equals:
        return f"[={option.value}]"
    return {"?": f"[{option.value}]", "*": f"[{option.value}...]"}.get(option.nargs, option.value)


def help_sentence(help_text: str) -> str:
    """Return a help text as a sentence in Markdown."""
    text = " ".join(help_text.split())
    if not text:
        return ""
    text = _SHOWN_AS_IT_IS.sub(r"\\\g<0>", text)
    text = _OPTION.sub(r"`\g<0>`", text)
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")


def reference_page(page: Page) -> str:
    """Return the page of the site."""
    lines = [
        f"<!-- Generated by docs/man/draw_manuals.py from the parser and docs/man/{page.name}.md: change these. -->"
    ]
    lines += ["", f"# {page.name}", "", f"{page.name} - {page.summary}.", ""]
    lines += ["## Synopsis", "", "```text", *page.usage, "```", ""]
    for section in page.sections:
        lines += [f"## {section.title}", "", section.text, ""]
        if section.title == "Options":
            for group in page.groups:
                lines += [f"### {group.title}", "", *([group.text, ""] if group.text else [])]
                lines += [line for option in group.options for line in reference_entry(option)]
    return "\n".join(lines).rstrip("\n") + "\n"


def reference_entry(option: Entry) -> Iterator[str]:
    """Yield the lines for an option on the page of the site."""
    yield from (f"#### {option.name}", "")
    spelled = f"{', '.join(option.spellings)} {option.value}".rstrip().replace(" [=", "[=")
    if spelled != option.name:
        yield from (f"**`{spelled}`**", "")
    yield from (option.text, "")


def manual_page(page: Page) -> str:
    """Return the page of man(1)."""
    lines = [f'.TH {page.name.upper()} 1 "" "pcopy {__version__}" "User Commands"']
    lines += [f'.\\" Generated by docs/man/draw_manuals.py from the parser and docs/man/{page.name}.md: change these.']
    lines += [".SH NAME", f"{page.name} \\- {as_prose(page.summary)}"]
    lines += [".SH SYNOPSIS", ".nf", *map(synopsis_line, page.usage), ".fi"]
    for section in page.sections:
        lines += [f".SH {macro_argument(section.title.upper())}", *to_roff(section.text)]
        if section.title == "Options":
            for group in page.groups:
                lines += [f".SS {macro_argument(group.title)}", *to_roff(group.text)]
                lines += [line for option in group.options for line in option_lines(option)]
    return "\n".join(lines) + "\n"


def macro_argument(title: str) -> str:
    """Return a title as the argument of a macro, in quotes if it contains spaces."""
    return f'"{title}"' if " " in title else title


def synopsis_line(usage: str) -> str:
    """Return a line of a usage with literal words in bold and placeholders in italics."""

    def styled(word: re.Match[str]) -> str:
        return italic(word[0]) if word[0].isupper() or word[0] == "options" else bold(word[0])

    return re.sub(r"--?[\w-]+|[a-z]+|[A-Z]+", styled, usage)


def option_lines(option: Entry) -> list[str]:
    """Return the lines for an option on the manual page."""
    tag = ", ".join(map(bold, option.spellings))
    value = re.sub(r"[^][.|=]+", lambda name: italic(name[0]), option.value)
    return term(f"{tag} {value}".rstrip().replace(" [=", "[="), to_roff(option.text, ".IP"))


class Key(NamedTuple):
    """A key of a configuration file, with its ``value``, the ``programs`` that have it, and its meaning (``about``)."""

    name: str
    value: str
    programs: list[str]
    about: str


def config_keys() -> list[Key]:
    """Return all keys, in the order of the programs' options."""
    found: dict[str, Key] = {}
    for program in PROGRAMS:
        for option in program.options:
            name = option.key
            if not (name and option.in_files and option.is_listed and option.help):
                continue
            if option.takes_no_value and option.const is not None:
                continue  # such as --update: its key is that of the option with a value, existing
            value = "" if option.is_value_after_equals else value_of(option).strip("[]")
            value = value or ("a number" if option.action == "count" else "")
            about = help_sentence(option.help)
            found.setdefault(name, Key(name, value or "true, false", [], about)).programs.append(program.name)
    return list(found.values())


def config_reference() -> str:
    """Return the page of the site on all keys."""
    lines = ["<!-- Generated by docs/man/draw_manuals.py from the parsers: change these. -->", "", "# pcopy.yaml", ""]
    lines += [
        "All keys that configuration files may have. [Configuration](../operations/configuration.md) explains where the"
    ]
    lines += ["files are, and how they are written.", "", "| key | value | of | meaning |", "|---|---|---|---|"]
    for key in config_keys():
        programs = "all" if len(key.programs) == len(PROGRAMS) else ", ".join(key.programs)
        value = key.value.replace("|", "\\|")
        lines.append(f"| `{key.name}` | {value} | {programs} | {key.about} |")
    return "\n".join(lines) + "\n"


def config_manual() -> str:
    """Return the manual page of configuration files."""
    head, *sections = sections_of(ROOT / "docs" / "operations" / "configuration.md")
    lines = [f'.TH PCOPY.YAML 5 "" "pcopy {__version__}" "File Formats"']
    lines += ['.\\" Generated by docs/man/draw_manuals.py from the parsers and docs/operations/configuration.md.']
    lines += [".SH NAME", "pcopy.yaml \\- options of pcopy, pverify, prm, pstripe and ptar in a file"]
    lines += [".SH DESCRIPTION", *to_roff(head.text)]
    for section in sections:
        lines += [f".SH {macro_argument(section.title.upper())}", *to_roff(section.text)]
    lines += [".SH ALL KEYS"]
    for key in config_keys():
        of = "" if len(key.programs) == len(PROGRAMS) else f" For {', '.join(key.programs)}."
        lines += term(f"{bold(key.name)}: {italic(key.value)}", to_roff(f"{key.about}{of}"))
    lines += [".SH SEE ALSO", f"{', '.join(f'{bold(program.name)}(1)' for program in PROGRAMS)}"]
    return "\n".join(lines) + "\n"


def generated_files() -> dict[Path, str]:
    """Return the texts of all pages by their paths."""
    common = Texts(HERE / _COMMON, [part for part in sections_of(HERE / _COMMON) if part.level > 2])
    pages = [page_of(program, common) for program in PROGRAMS]
    common.refuse_unused()
    manuals = {HERE / f"{page.name}.1": manual_page(page) for page in pages}
    manuals |= {
        HERE / f"{name}.1": f".so man1/{program.name}.1\n" for program in PROGRAMS for name in program.other_names
    }
    references = {REFERENCE / f"{page.name}.md": reference_page(page) for page in pages}
    of_keys = {HERE / "pcopy.yaml.5": config_manual(), REFERENCE / "pcopy.yaml.md": config_reference()}
    return manuals | references | of_keys


if __name__ == "__main__":
    sys.exit(write_or_check(generated_files()))
