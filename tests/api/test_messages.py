"""Messages in words of the interface: each option of the programs becomes its keyword."""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcopy.api.functions import Function
from pcopy.api.keywords import KEYWORDS
from pcopy.api.wording import message_in_python
from pcopy.cli.programs import load_program
from tests.support.command import REPOSITORY

FUNCTIONS = sorted({function for kinds in KEYWORDS.values() for function in kinds} - {"discard"})


def program_of(function: str) -> str:
    import pcopy

    definition = getattr(pcopy, function)
    assert isinstance(definition, Function)
    return definition.program


@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_option_becomes_its_keyword(function: str) -> None:
    for keyword, kinds in KEYWORDS.items():
        if function not in kinds or (keyword == "resume" and function == "archive"):
            continue
        word = "--" + keyword.rstrip("_").replace("_", "-")
        assert message_in_python(f"leave out {word}: why", function) == f"leave out {keyword}: why"
        assert message_in_python(f"{word}=7 is wrong", function) == f"{keyword}=7 is wrong"
        flag = "=True" if kinds[function].startswith("flag") else ""
        assert message_in_python(f"give {word}", function) == f"give {keyword}{flag}"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_spellings_are_those_of_the_programs(function: str) -> None:
    """Each letter that is an option of the function becomes the keyword that the table of the program has for it."""
    for option in load_program(program_of(function)).options:
        keyword = next((name for name in KEYWORDS if "--" + name.rstrip("_").replace("_", "-") in option.spellings), "")
        if function not in KEYWORDS.get(keyword, {}):
            continue
        for spelling in option.spellings:
            assert message_in_python(f"leave out {spelling}: why", function) == f"leave out {keyword}: why"


MESSAGES = {
    ("copy", "see pcopy --help"): "see help(pcopy.copy)",
    ("archive", "leave it out; see ptar --help"): "leave it out; see help(pcopy.archive)",
    ("copy", "--max-delete=N"): "max_delete=N",
    ("copy", "write -x (without -L)"): "write one_file_system=True (without dereference)",
    ("copy", "-n/--ranks: 0: no"): "ranks: 0: no",
    ("copy", "use fewer (-n) or raise ulimit -Hn"): "use fewer (ranks) or raise ulimit -Hn",
    ("copy", "create that first (mkdir -p)"): "create it first with os.makedirs()",
    (
        "copy",
        "was that meant? Else create that first (mkdir -p)",
    ): "was that meant? Else create it first with os.makedirs()",
    ("copy", "a shell does not expand ~ in quotes; /root/x exists"): (
        "~ is not expanded; use os.path.expanduser(); /root/x exists"
    ),
    ("archive", "ptar writes tar files"): "archive() writes tar files",
    (
        "extract",
        "ptar reads 'ptar' and a/prm, ptar/x with psync",
    ): "extract() reads 'ptar' and a/prm, ptar/x with sync()",
    ("sign", "name the file to be written: pverify --create SIGNATURE 'a b'"): (
        "name the file to be written: pcopy.sign('a b', signature)"
    ),
    ("walk", "the program pwalk; man pwalk; pwalk -t"): "the program pwalk; man pwalk; pwalk -t",
    ("extract", "-T/--from/--files-from: no"): "from_: no",
    ("remove", "/dev/fd/7: line 3: no"): "from_: line 3: no",
    ("remove", "--from /dev/fd/7: line 3: no"): "from_: line 3: no",
    ("copy", "resume it (pcopy --resume 'a b'), or write --existing changed"): (
        "resume it (pcopy.resume('a b')), or write existing='changed'"
    ),
    (
        "copy",
        "has a job already; --resume or --discard it",
    ): "has a job already; pcopy.resume or pcopy.discard it",
    ("resume", "name one: pcopy --resume JOB"): "name one: pcopy.resume(JOB)",
    ("resume", "name its directory: --resume DIR"): "name its directory: pcopy.resume",
    ("resume", "discard the job (pcopy --discard) and start"): "discard the job (pcopy.discard()) and start",
    ("resume", "pcopy --jobs lists them"): "pcopy.jobs() lists them",
    ("copy", "several SRC need DST"): "several sources need destination",
    ("verify", "name PATH"): "name path",
    ("sign", "run pverify --create on DST"): "run pcopy.sign() on destination",
    ("copy", "too little space; make room, or copy anyway with --force"): (
        "too little space; make room, or copy anyway with force"
    ),
}


@pytest.mark.parametrize(("function", "message"), MESSAGES)
def test_message(function: str, message: str) -> None:
    assert message_in_python(message, function) == MESSAGES[function, message]


@given(st.text(st.sampled_from("-aSRCDT /=x"), min_size=1, max_size=20).filter(lambda name: re.search(r"\S", name)))
def test_paths_of_the_caller_stay(name: str) -> None:
    assert message_in_python(f"{name}: no", "copy", [name.encode()]) == f"{name}: no"


OF_OTHER_FUNCTIONS = {"bench", "pdbench", "broadcast", "pbcast", "show_config", "dcp_options"}
"""Modules of programs that no function of the interface runs."""
FOR_COMMAND_LINES = re.compile(r"(?<![\w-])(--[a-z]|-[A-Za-z0](?![\w-]))|\b(?:SRC|DST|PATH|MODE|MEMBER)\b|/dev/fd/")
OF_OTHER_MODES = re.compile(r"^-t:|(?:or|and|;) -t\b")
"""What is in messages about the modes of ptar, and about ``pcopy -t``, which the functions choose."""
OF_OTHER_PROGRAMS = re.compile(r"\bulimit -Hn|srun --mpi=\w+")


def refusals() -> set[str]:
    """Return the texts with which the programs refuse requests; an ``x`` stands for each value in them."""
    found = set()
    for path in sorted((REPOSITORY / "pcopy").rglob("*.py")):
        if path.stem in OF_OTHER_FUNCTIONS or path.parent.name == "api":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(ast.Name("RequestRefused"), [text, *_]):
                    found.add(text_with_x(text))
                case ast.Call(ast.Name("path_refused"), [_, reason], keywords):
                    options = [f"{text_with_x(each.value)} " for each in keywords if each.arg == "option"]
                    found.add(f"{''.join(options)}x: {text_with_x(reason)}")
    return found


def text_with_x(node: ast.expr) -> str:
    """Return a literal, or an ``x`` for an expression."""
    match node:
        case ast.JoinedStr(parts):
            return "".join(map(text_with_x, parts))
        case ast.Constant(str() as literal):
            return literal
    return "x"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_refusal_names_an_option_as_on_the_command_line(function: str) -> None:
    texts = {text for text in refusals() if not OF_OTHER_MODES.search(text)}
    assert len(texts) > 250
    translated = {text: OF_OTHER_PROGRAMS.sub("", message_in_python(text, function)) for text in texts}
    assert {text: shown for text, shown in translated.items() if FOR_COMMAND_LINES.search(shown)} == {}
