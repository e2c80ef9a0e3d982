"""Generate what the interface for Python has from the table of options.

- ``pcopy/api/keywords.py``: the keywords of the functions, and the kinds of their values;
- ``pcopy/__init__.pyi``: the types, for editors and mypy;
- ``docs/reference/python.md``: the reference.

``python docs/reference/draw_python.py`` writes the files; with ``--check`` it writes nothing and prints the names of
outdated files.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from keyword import iskeyword
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import pcopy  # noqa: E402
from docs.drawn import write_or_check  # noqa: E402
from pcopy.api import errors, functions, keywords, results, running, shutil_like, walking, wording  # noqa: E402
from pcopy.api.signatures import LAUNCHER_TYPE, PROGRESS_TYPE, TYPES, type_of  # noqa: E402
from pcopy.cli.argument_types import Option  # noqa: E402
from pcopy.cli.job_options import JOB_COMMANDS  # noqa: E402
from pcopy.cli.programs import load_program  # noqa: E402

FUNCTIONS = (
    *("copy", "sync", "resume", "verify", "compare", "sign", "walk", "remove", "change_modes", "archive", "extract"),
    "restripe",
)
"""The functions that run programs, in the order of the reference."""

NAMESAKES = {"copytree": ("copy", shutil_like.NOT_OF_COPYTREE), "rmtree": ("remove", shutil_like.NOT_OF_RMTREE)}
"""The functions with the parameters of ``shutil``: the functions that they call, and the options that they fix."""

LEFT_OUT = {
    **dict.fromkeys(("help", "version", "show_config"), "the function runs a job; run the command for that"),
    **dict.fromkeys(("json", "json_lines", "print0"), "the function reads the output, and returns objects"),
    **dict.fromkeys(
        ("quiet", "verbose"), "the program prints nothing; iterate over the job of start() for its messages"
    ),
    "errors": "the exception ItemsFailed has all failures",
    "progress": "a keyword of each function: a function that is called with the progress",
    "stop_at_eof": "always given: the program stops when the caller ends",
    **dict.fromkeys(("jobs", "discard", "control"), "a function, or a method of RunningJob"),
    **dict.fromkeys(("pcopy resume", "psync resume"), "the function resume() takes the job"),
    "yes": "always given: the function does not ask",
    **dict.fromkeys(("create", "extract", "list", "file"), "chosen by the function and its parameters"),
    **dict.fromkeys(
        ("pwalk summary", "pwalk page", "pwalk output", "pwalk force"),
        "walk() yields entries; run pwalk for its other outputs",
    ),
    **dict.fromkeys(("psync mirror", "psync no_target_directory"), "always so"),
}
"""Options that no function takes, and why; after the name of a program: not those of this program."""

KINDS = {
    "N": "integer",
    "SIZE": "size",
    "RATE": "size",
    "SECONDS": "seconds",
    "WHEN": "time",
    "AGE": "time",
    "P": "texts",
    "CLASS:FILE": "texts",
    "LIST": "list",
    **dict.fromkeys(("FILE", "DIR", "MANIFEST", "SIGNATURE", "ARCHIVE"), "path"),
    **dict.fromkeys(("USER:GROUP", "USER[:GROUP]", "GROUP", "MODE", "TABLE", "KEY", "HOW"), "text"),
}
"""The kind of an option's value (``pcopy/api/arguments.py``), by its placeholder in the help."""


class Keyword(NamedTuple):
    """A keyword of a function: its ``name``, the ``kind`` of its value, and the ``option``."""

    name: str
    kind: str
    option: Option


def kind_of(option: Option) -> str:
    """Return the kind of the option's value. Exit with a message if the placeholder is new."""
    choices = option.choices or (option.offered if "auto" not in option.offered else ())
    if not option.value:
        return "flag"
    if choices:
        return " ".join([*(["flag"] if option.nargs else []), "choice", *choices])
    if option.key == "from":
        return "listing"
    if option.value not in KINDS:
        sys.exit(f"{option.key}: add the placeholder {option.value} to KINDS of {__file__}")
    kind = KINDS[option.value]
    if kind == "path" and option.collects_values:
        return "paths"
    return f"{kind} auto" if kind == "integer" and "auto" in option.offered else kind


def keywords_of(function: str) -> list[Keyword]:
    """Return the keywords of a function, in the order of the program's help."""
    definition = getattr(functions, function)
    parameters = inspect.signature(definition.operands).parameters
    found = []
    for option in load_program(definition.program).options:
        name = option.key.replace("-", "_")
        if not has_effect(option, definition.mode) or {name, f"{definition.program} {name}"} & LEFT_OUT.keys():
            continue
        if name not in parameters and f"--{option.key}" not in wording.OPTIONS_OF_PARAMETERS.get(function, {}):
            found.append(Keyword(f"{name}_" if iskeyword(name) else name, kind_of(option), option))
    return found


def has_effect(option: Option, mode: str) -> bool:
    """Return True if the option has a long spelling and an effect in a mode of the program; empty: its only one."""
    if not option.key or not option.is_listed or option.help.startswith("no effect"):
        return False
    if mode in JOB_COMMANDS:
        return mode in option.with_commands.split()
    return not option.modes or mode in option.modes.split()


def keywords_module() -> str:
    """Return the text of ``pcopy/api/keywords.py``."""
    rows: dict[str, dict[str, str]] = {}
    for function in FUNCTIONS:
        for keyword in keywords_of(function):
            rows.setdefault(keyword.name, {})[function] = keyword.kind
    rows.setdefault("older_than", {})["discard"] = "time"
    lines = [
        '"""The keywords of the functions and the kinds of their values (``arguments.py`` explains them).',
        "",
        "Generated by docs/reference/draw_python.py from the table of options: change that.",
        '"""',
        "",
        "# fmt: off",
        "PROGRAMS: dict[str, str] = {",
        *(f'    "{name}": "{getattr(functions, name).program}",' for name in FUNCTIONS),
        "}",
        '"""The program of each function."""',
        "",
        "PARAMETERS: dict[str, tuple[str, ...]] = {",
        *(f'    "{name}": ({quoted(name)},),' for name in FUNCTIONS),
        "}",
        '"""The parameters of each function besides the options."""',
        "",
        "KEYWORDS: dict[str, dict[str, str]] = {",
    ]
    for name, kinds in rows.items():
        by_kind: dict[str, list[str]] = {}
        for function, kind in kinds.items():
            by_kind.setdefault(kind, []).append(function)
        lines.append(f'    "{name}": {{')
        for kind, names in by_kind.items():
            listed = ", ".join(f'"{function}"' for function in names)
            lines += wrapped(f'        **dict.fromkeys(({listed},), "{kind}"),')
        lines.append("    },")
    lines += ["}", '"""For each keyword, the functions that have it, and the kind of its value there."""', ""]
    lines += ["SPELLINGS: dict[str, dict[str, str]] = {"]
    for program, spellings in spellings_of_programs().items():
        pairs = ", ".join(f'"{spelling}": "{name}"' for spelling, name in spellings.items())
        lines += wrapped(f'    "{program}": {{{pairs}}},')
    lines += ["}", '"""For each program, further spellings of the options that are keywords."""', ""]
    lines += ["OFFERED: dict[str, tuple[str, ...]] = {"]
    for name, words in offered_words().items():
        listed = ", ".join(f'"{word}"' for word in words)
        lines += wrapped(f'    "{name}": ({listed},),')
    lines += ["}", '"""Words among the values of keywords that have other values, too."""', ""]
    lines += ["LEFT_OUT: dict[str, str] = {"]
    lines += [f'    "{name}": "{why}",' for name, why in sorted(left_out_of_functions().items())]
    lines += [
        "}",
        '"""Options that functions do not take, or (after the name of a function) that it does not, and why."""',
    ]
    return "\n".join(lines) + "\n"


def quoted(function: str) -> str:
    """Return the parameters of a function as literals."""
    return ", ".join(f'"{name}"' for name in getattr(functions, function).parameters)


def left_out_of_functions() -> dict[str, str]:
    """Return ``LEFT_OUT`` with the names of functions instead of programs."""
    found = {}
    for name, why in LEFT_OUT.items():
        program, _, option = name.rpartition(" ")
        names = [each for each in FUNCTIONS if getattr(functions, each).program == program]
        found |= {f"{each} {option}": why for each in names} if program else {option: why}
    return found


def spellings_of_programs() -> dict[str, dict[str, str]]:
    """Return the spellings of options besides the names of their keywords, by program."""
    found: dict[str, dict[str, str]] = {}
    for function in FUNCTIONS:
        for keyword in keywords_of(function):
            for spelling in keyword.option.spellings:
                if spelling != f"--{keyword.option.key}":
                    found.setdefault(getattr(functions, function).program, {})[spelling] = keyword.name
    return found


def offered_words() -> dict[str, list[str]]:
    """Return the words that options offer among other values, by the name of the keyword."""
    found: dict[str, list[str]] = {}
    for function in FUNCTIONS:
        for name, _, option in keywords_of(function):
            words = [*option.offered, *(option.list_words() if option.list_words else ())]
            if words and not option.choices:
                found[name] = words
    return found


def wrapped(line: str) -> Iterable[str]:
    """Return a line of code as lines of at most 120 columns, broken at commas."""
    while len(line) > 120:
        cut = line.rindex(", ", 0, 119) + 1
        yield line[:cut]
        line = " " * 12 + line[cut + 1 :]
    yield line


def stub() -> str:
    """Return the text of ``pcopy/__init__.pyi``."""
    lines = [
        '"""The types of the interface for Python. Generated by docs/reference/draw_python.py: change that."""',
        "",
        "# ruff: noqa: A002, E501",
        "import os",
        "from collections.abc import Callable, Sequence",
        "from datetime import date, timedelta",
        "from typing import Any, Literal, TypeVar",
        "",
    ]
    lines.append("from pcopy.api.arguments import Paths, StrOrBytesPath")
    for module, names in pcopy._INTERFACE.items():
        exported = sorted(set(names.split()) - {*FUNCTIONS, *NAMESAKES})
        lines += [f"from pcopy.api.{module} import {name} as {name}" for name in exported]
    lines.append("")
    lines += ['_Path = TypeVar("_Path", bound=str | os.PathLike[str])', ""]
    lines += ["__version__: str", "OLDEST_PYTHON: tuple[int, int]", ""]
    for function in FUNCTIONS:
        lines += [*stub_of(function), ""]
    for function in NAMESAKES:
        lines += [*stub_of_namesake(function), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def stub_of(function: str) -> list[str]:
    """Return the lines of the stub for a function."""
    definition = getattr(functions, function)
    result = definition.result or "Walk"
    lines = [f"def {function}("]
    is_keyword_only = False
    for parameter in inspect.signature(definition.operands).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword_only:
            lines.append("    *,")
            is_keyword_only = True
        default = "" if parameter.default is inspect.Parameter.empty else " = ..."
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    lines += [] if is_keyword_only else ["    *,"]
    return [*lines, *rest_of_stub(function, result, definition.operands.__doc__)]


def stub_of_namesake(function: str) -> list[str]:
    """Return the lines of the stub for a function with the parameters of ``shutil``."""
    definition = getattr(shutil_like, function)
    lines = [f"def {function}("]
    is_keyword_only = False
    for parameter in inspect.signature(definition).parameters.values():
        if parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD) and not is_keyword_only:
            lines.append("    *,")
            is_keyword_only = True
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            default = "" if parameter.default is inspect.Parameter.empty else " = ..."
            lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    called, left_out = NAMESAKES[function]
    return [
        *lines,
        *rest_of_stub(called, inspect.signature(definition).return_annotation, definition.__doc__, left_out),
    ]


def rest_of_stub(function: str, result: str, docs: str, left_out: Iterable[str] = ()) -> list[str]:
    """Return the lines of a stub after its parameters: the options of ``function`` but ``left_out``, and the docs."""
    options = [keyword for keyword in keywords_of(function) if keyword.name not in left_out]
    lines = [f"    {keyword.name}: {type_of(keyword.kind)} | None = ...," for keyword in options]
    lines += [f"    {name}: {kind} | None = ...," for name, kind, _ in own_keywords(function)]
    lines += [f") -> {result}:", f'    """{inspect.cleandoc(docs)}', "", "    Options:", ""]
    lines += [f"    - ``{keyword.name}``: {help_of(keyword.option, function)}" for keyword in options]
    lines += [f"    - ``{name}``: {text}" for name, _, text in own_keywords(function)]
    lines += ['    """']
    return re.sub(r"\n(?=[^\s)])", "\n    ", "\n".join(lines)).split("\n")


def own_keywords(function: str) -> list[tuple[str, str, str]]:
    """Return names, types and descriptions of the keywords that are no options of the program."""
    launcher = ("launcher", LAUNCHER_TYPE, 'a command that starts the ranks, such as ``["srun", "-n", "8"]``')
    progress = (
        "progress", PROGRESS_TYPE, "a function that is called with each ``Progress``, in the thread of the caller"
    )  # fmt: skip
    return [launcher] if function == "walk" else [launcher, progress]


def help_of(option: Option, function: str) -> str:
    """Return the help of an option in the words of Python, without the parts about other modes.

    Such a part begins with the letters of the modes and a colon, as in ``-x and -t: ...; -c: ...``. Standard input is
    left out: the program has none.
    """
    definition = getattr(functions, function)
    modes = [each for each in load_program(definition.program).options if each.key == definition.mode]
    own = modes[0].spellings if modes else []
    parts, is_own = [], True
    for part in " ".join(option.help.split()).split("; "):
        beginning = re.match(r"(-[a-z](?:(?:,| and) -[a-z])*): ", part) if own else None
        if beginning:
            is_own = bool({*own}.intersection(re.findall("-[a-z]", beginning[1])))
        if is_own and part != "-: from standard input":
            parts.append(part[beginning.end() if beginning else 0 :].replace(" (-: standard input)", ""))
    return wording.help_in_python("; ".join(parts), function)


def reference() -> str:
    """Return the text of ``docs/reference/python.md``."""
    lines = [
        "<!-- Generated by docs/reference/draw_python.py from the table of options and pcopy/api: change these. -->",
        "",
        "# Python interface",
        "",
        "The names of `import pcopy`. [From Python](../howto/python.md) explains how to use them. The options of a",
        "function are those of its program, whose page describes them. Hyphens become underscores; `from` is `from_`.",
        "",
        "| function | program | result |",
        "|---|---|---|",
    ]
    for function in FUNCTIONS:
        definition = getattr(functions, function)
        result = definition.result or "Walk"
        anchor = f"[`{function}`](#{function})"
        lines.append(
            f"| {anchor} | [{definition.program}]({definition.program}.md) | [`{result}`](#{result.lower()}) |"
        )
    lines += ["", "## Functions", ""]
    for function in FUNCTIONS:
        lines += reference_of(function)
    for name, function in (("start", functions.start), ("jobs", functions.jobs), ("discard", functions.discard),
                           ("copytree", shutil_like.copytree), ("rmtree", shutil_like.rmtree)):  # fmt: skip
        lines += [f"### {name}", "", "```text", signature_text(name, function), "```", "", docs_of(function), ""]
    lines += ["## Values", "", "None always means that the option is not given.", ""]
    lines += ["| type | values |", "|---|---|"]
    lines += [f"| `{cell(kind)}` | `{cell(text)}` |" for kind, text in TYPES.items()]
    lines += ["", "## Options that functions do not take", "", "| option | reason |", "|---|---|"]
    for name, why in sorted(LEFT_OUT.items()):
        program, _, option = name.rpartition(" ")
        lines.append(f"| `{f'{program} --{option}'.strip().replace('_', '-')}` | {why} |")
    lines += ["", "## Running programs", ""]
    for cls in (running.RunningJob, walking.Walk, walking.Entry):
        lines += class_lines(cls)
    lines += ["## Results and events", ""]
    for name in ("Result", "TreeResult", "TarResult", *pcopy._INTERFACE["results"].split()):
        if name != "Event":
            lines += class_lines(getattr(results, name))
    lines += ["## Exceptions", ""]
    for name in ("Error", *(name for name in pcopy._INTERFACE["errors"].split() if name != "Error")):
        lines += class_lines(getattr(errors, name))
    return "\n".join(lines).rstrip("\n") + "\n"


def reference_of(function: str) -> list[str]:
    """Return the lines of the reference for a function."""
    definition = getattr(functions, function)
    parameters = signature_text("", definition.operands)[1:-1]
    program = definition.program
    lines = [f"### {function}", "", f"**`{function}({parameters}, **options)`**", "", docs_of(definition.operands), ""]
    lines += ["| option | value |", "|---|---|"]
    for keyword in keywords_of(function):
        link = f"{program}.md#--{keyword.option.key}"
        lines.append(f"| [`{keyword.name}`]({link}) | `{cell(type_of(keyword.kind))}` |")
    for name, kind, text in own_keywords(function):
        lines.append(f"| `{name}` | `{cell(kind)}`: {text.replace('``', '`')} |")
    return [*lines, ""]


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("|", "\\|")


def signature_text(name: str, function: object) -> str:
    """Return the parameters of a function without their types."""
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    shown = inspect.Signature([parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters])
    return re.sub(r"<function (\w+) at 0x\w+>", r"\1", f"{name}{shown}")


def docs_of(thing: object) -> str:
    """Return a docstring as Markdown."""
    return inspect.cleandoc(thing.__doc__ or "").replace("``", "`")


def class_lines(cls: type[object]) -> list[str]:
    """Return the lines of the reference for a class, with its public methods."""
    bases = [base.__name__ for base in cls.__bases__ if base.__module__.startswith("pcopy")]
    bases = [name for name in bases if name not in ("Generic", "JsonObject")]  # The reference does not describe them.
    lines = [f"### {cls.__name__}", ""]
    if bases:
        article = "An" if bases[0][0] in "AEIOU" else "A"
        lines += [f"{article} {' and '.join(f'`{base}`' for base in bases)}.", ""]
    lines += [docs_of(cls), ""]
    for name, member in vars(cls).items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        if name in ("from_json", "from_line"):
            continue
        if isinstance(member, property):
            lines += [f"- `{name}`: {docs_of(member.fget)}"]
        else:
            shown = signature_text(name, member).replace("(self, ", "(").replace("(self)", "()")
            lines += [f"- `{shown}`: {' '.join(docs_of(member).split())}"]
    return [*lines, ""]


def generated_files() -> Mapping[Path, str]:
    """Return the texts of all files by their paths."""
    new_keywords = keywords_module()
    exec(new_keywords, vars(keywords))  # The texts of the stub are made from its tables.
    return {
        ROOT / "pcopy" / "api" / "keywords.py": new_keywords,
        ROOT / "pcopy" / "__init__.pyi": stub(),
        ROOT / "docs" / "reference" / "python.md": reference(),
    }


if __name__ == "__main__":
    sys.exit(write_or_check(generated_files()))
