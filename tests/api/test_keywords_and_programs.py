"""Each keyword is accepted by the program in the mode of the function; other options are refused, or have a reason."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pcopy.api import functions, wording
from pcopy.api.keywords import KEYWORDS, LEFT_OUT
from pcopy.cli.argument_types import Option
from pcopy.cli.programs import load_program
from pcopy.errors import RequestRefused
from tests.support.command import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "docs/reference"))
import draw_python  # type: ignore[import-not-found]

OPERANDS: dict[str, tuple[Any, ...]] = {
    "copy": ("a/", "b"),
    "sync": ("a", "b"),
    "resume": ("20260101-000000-00",),
    "verify": ("a", "signature"),
    "compare": ("a", "b"),
    "sign": ("a", "signature"),
    "walk": ("a",),
    "remove": ("a",),
    "change_modes": ("a", "u+x"),
    "archive": ("a", "b.tar"),
    "extract": ("b.tar",),
    "restripe": ("a",),
}
VALUES: dict[str, Any] = {
    **dict.fromkeys(("text", "texts", "path", "paths", "listing"), "x"),
    "flag": True,
    "integer": 3,
    "size": 1 << 20,
    "seconds": 7,
    "time": "7d",
    "list": "mode",
}
SAMPLES: dict[str, Any] = {
    **dict.fromkeys(("owner", "group"), "root"),
    "chown": "root:root",
    "compare": "mtime",
    "compress": "zstd",
    "fields": "mode",
    "output": "common:x",
    "report": "x.html",
    "sort": "size",
    "stripe": 4,
    "stripe_table": "1,1G=8",
}
"""Values of keywords for which that of the kind is not valid."""
NEEDED: dict[str | tuple[str, str], dict[str, Any]] = {
    "include": {"exclude": "*"},
    "null": {"from_": "x"},
    "max_delete": {"delete": True},
    "delete_all": {"delete": True},
    "stripe_table": {"stripe": "auto"},
    ("compare", "null"): {"compare": "mtime", "output": "common:x"},
    "output": {"compare": "mtime"},
    ("compare", "modify_window"): {"compare": "mtime"},
    ("compare", "force"): {"compare": "mtime", "output": "common:x"},
    ("restripe", "dry_run"): {"stripe": 4},
    "recursive": {"from_": "x"},
}
"""Options without which an option is refused; some only in one function."""
ACCEPTED = {
    "verify": {"compare"},
    "extract": {"hash", "block_size", "gzip", "zstd", "auto_compress", "no_auto_compress", "one_file_system"}
    | {"checkpoint_interval"},
}
"""Options that programs accept in modes in which they have no effect, because users of tar write them, or a file sets
them; and ``--compare``, which chooses another mode.
"""


def sample(name: str, kind: str) -> Any:
    words = kind.split()
    return SAMPLES.get(name, words[words.index("choice") + 1] if "choice" in words else VALUES.get(words[0]))


def words_of(function: str, options: Mapping[str, Any]) -> list[bytes]:
    operands = OPERANDS[function]
    if function == "archive" and "from_" in options:
        return [b"--create", b"--file=b.tar", b"--from=x", *([b"--null"] if "null" in options else [])]
    if function in ("remove", "change_modes", "walk") and "from_" in options:
        operands = (None, *operands[1:])
    if {"reference", "acl_from"} & options.keys():
        operands = operands[:1]
    return list(getattr(functions, function).request(operands, dict(options)).words)


def parse(function: str, words: list[bytes]) -> None:
    load_program(getattr(functions, function).program).parse_command_line(words, use_config_files=False)


@pytest.fixture(autouse=True)
def paths(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(area)
    (area / "a").mkdir()
    (area / "x").write_text("x\n")


@pytest.mark.parametrize("function", draw_python.FUNCTIONS)
def test_program_accepts_each_keyword(function: str) -> None:
    parse(function, words_of(function, {}))
    for name, kinds in KEYWORDS.items():
        if function in kinds:
            options = NEEDED.get((function, name), NEEDED.get(name, {}))
            try:
                parse(function, words_of(function, {**options, name: sample(name, kinds[function])}))
            except RequestRefused as refused:
                pytest.fail(f"{function}({name}): {refused}")


def words_of_option(option: Option) -> list[bytes]:
    """Return the option as on the command line, with a value that its type allows."""
    if not option.value or option.nargs:
        return [f"--{option.key}".encode()]
    value = SAMPLES.get(option.key.replace("-", "_"), sample("", draw_python.kind_of(option)))
    return [f"--{option.key}={value}".encode()]


@pytest.mark.parametrize("function", draw_python.FUNCTIONS)
def test_other_options_are_refused_or_have_a_reason(function: str) -> None:
    definition = getattr(functions, function)
    accepted = set()
    for option in load_program(definition.program).options:
        name = option.key.replace("-", "_")
        keyword = f"{name}_" if name == "from" else name
        if not name or not option.is_listed or option.help.startswith("no effect"):
            continue
        if function in KEYWORDS.get(keyword, {}) or name in LEFT_OUT or f"{function} {name}" in LEFT_OUT:
            continue
        if name in definition.parameters or f"--{option.key}" in wording.OPTIONS_OF_PARAMETERS.get(function, {}):
            continue
        try:
            parse(function, [*words_of_option(option), *words_of(function, {})])
            accepted.add(name)
        except RequestRefused:
            continue
    assert accepted == ACCEPTED.get(function, set())


def test_modes_are_those_of_the_programs() -> None:
    for program in {getattr(functions, function).program for function in draw_python.FUNCTIONS}:
        command_line = load_program(program)
        for option in command_line.options:
            assert set(option.modes.split()) <= set(command_line.modes), (program, option.words)
    for function in draw_python.FUNCTIONS:
        definition = getattr(functions, function)
        command_line = load_program(definition.program)
        assert definition.mode in (command_line.modes or ("", "resume")), function
