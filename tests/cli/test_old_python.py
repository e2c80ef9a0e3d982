"""A Python that is too old for the programs: one line that says which is needed, and status 2."""

from __future__ import annotations

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from tests.support.command import REPOSITORY

PROGRAMS = sorted(entry for entry in os.listdir(f"{REPOSITORY}/bin") if entry.startswith("p"))
READ_BY_OLD_PYTHONS = ["pcopy/__init__.py", "pcopy/old_python.py", *(f"bin/{program}" for program in PROGRAMS)]
"""The files that an old Python compiles before it comes to the check."""
OLD_PYTHONS = ("python2.7", "python3.6", "python3.7", "python3.8", "python3.9", "python3.10")

PRETEND = (
    "import runpy, sys; sys.version_info = {version}; sys.argv = {words}; "
    "runpy.run_path({words}[0], run_name='__main__')"
)


def started(python: Sequence[str], path: str = "/none") -> tuple[int, bytes, bytes]:
    env = {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(python, check=False, env=env, cwd=REPOSITORY, capture_output=True, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_old_python_is_refused_in_one_line(program: str) -> None:
    script = f"bin/{program}"
    code = PRETEND.format(version=(3, 9, 2, "final", 0), words=[script, "--version"])
    refused = started([sys.executable, "-c", code])
    text = (
        f"{program} needs Python 3.11 or newer, this is 3.9.2: install the package python3.11 or load its module, "
        f"then start it with python3.11 {script}\n"
    )
    assert refused == (2, b"", text.encode())


def test_ten_programs_are_tested() -> None:
    assert len(PROGRAMS) == 10


def test_newer_python_on_the_path_is_named(tmp_path: os.PathLike[str]) -> None:
    folder = os.path.join(tmp_path, "new er")
    os.mkdir(folder)
    for name in ("python3.12", "python3.11", "python3.9"):
        with open(f"{folder}/{name}", "w", opener=lambda path, flags: os.open(path, flags, 0o755)):
            pass
    code = PRETEND.format(version=(3, 10, 13, "final", 0), words=["bin/prm"])
    status, _, text = started([sys.executable, "-c", code], f"relative:{folder}")
    advice = f"this is 3.10.13: start it with '{folder}/python3.12' bin/prm\n"
    assert (status, text) == (2, f"prm needs Python 3.11 or newer, {advice}".encode())


def test_sufficient_python_starts() -> None:
    code = PRETEND.format(version=(3, 11, 0, "final", 0), words=["bin/pcopy", "--version"])
    assert started([sys.executable, "-c", code])[0] == 0


@pytest.mark.parametrize("name", OLD_PYTHONS)
def test_real_old_pythons_on_the_path(name: str) -> None:
    """Those that are installed."""
    python = shutil.which(name) or ""
    if python and started([python, "-V"], os.environ["PATH"])[0] == 0:
        for words in (["bin/pverify", "a", "b"], ["-m", "pcopy"]):
            status, out, text = started([python, *words], os.environ["PATH"])
            assert (status, out) == (2, b"")
            version = re.escape(name.removeprefix("python"))
            expected = rf"(pverify|pcopy) needs Python 3\.11 or newer, this is {version}\.\d+: start it with .+\n"
            assert re.fullmatch(expected, text.decode())


@pytest.mark.parametrize("name", READ_BY_OLD_PYTHONS)
def test_old_pythons_compile_the_files_up_to_the_check(name: str) -> None:
    """Python 3.6 by its grammar; Python 2.7 by the syntax that it does not have."""
    with open(f"{REPOSITORY}/{name}", "rb") as file:
        source = file.read()
    tree = ast.parse(source, feature_version=(3, 6))
    assert source.isascii() and not list(syntax_unknown_to_python_2(tree))


def syntax_unknown_to_python_2(tree: ast.AST) -> Iterator[str]:
    unknown = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.YieldFrom, ast.Starred, ast.MatMult)
    for node in ast.walk(tree):
        if isinstance(node, unknown) or type(node).__name__.startswith("Async"):
            yield type(node).__name__
        elif isinstance(node, ast.arg) and node.annotation:
            yield "annotation"
        elif isinstance(node, ast.FunctionDef) and (node.returns or node.args.kwonlyargs or node.args.posonlyargs):
            yield "signature"
        elif isinstance(node, ast.Raise) and node.cause:
            yield "raise from"
        elif isinstance(node, ast.ClassDef) and node.keywords:
            yield "metaclass"


def test_package_metadata_require_the_same_python() -> None:
    import pcopy

    settings = configparser.ConfigParser()
    settings.read(f"{REPOSITORY}/setup.cfg")
    assert settings["options"]["python_requires"] == ">=" + ".".join(map(str, pcopy.OLDEST_PYTHON))
