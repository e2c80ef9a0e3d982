"""Messages never name functions, modules, files or lines of the program, except for internal errors (status 70)."""

from __future__ import annotations

import ast
import errno
import os
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pcopy
from pcopy import errors
from pcopy.cli.programs import PROGRAMS, load_program
from tests.support.command import REPOSITORY, command

OF_THE_CODE = re.compile(r"\bline \d+|\w\.py\b|\bpcopy\.\w+|Traceback|<module>|\b_\w+\b|\w+\(\)|\bin \w+ of \w+")
"""Names of functions, modules, files and lines, as Python prints them."""

WORDS_BY_PROGRAM = {
    "pcopy": ["TOP/tree", "TOP/copy"],
    "psync": ["TOP/tree/", "TOP/copy"],
    "pverify": ["TOP/tree", "TOP/tree"],
    "prm": ["--dry-run", "TOP/tree"],
    "pwalk": ["TOP/tree"],
    "pchmod": ["--dry-run", "u+r", "TOP/tree"],
    "pstripe": ["--dry-run", "-c", "1", "TOP/tree"],
    "ptar": ["-cf", "TOP/archive.tar", "-C", "TOP", "tree"],
    "pbcast": ["TOP/tree/file", "TOP"],
    "pdbench": ["--dry-run", "TOP/tree"],
}

FILE_OF_A_CHECKOUT = re.compile(
    r"\b(?:docs|examples|bench|packaging|completions)/|\w\.md\b|\b(?:README|CONTRIBUTING)\b"
)
"""Names of files that only a checkout has: installed are the programs, their manuals and their completions."""


def test_no_text_of_the_program_names_a_file_that_is_not_installed() -> None:
    """Neither messages nor help may refer to one; the manual of a program is referred to by man."""
    found = []
    for path in sorted((REPOSITORY / "pcopy").rglob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in docstrings:
                text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                found += [f"{path}:{node.lineno}: {text}"] if FILE_OF_A_CHECKOUT.search(text) else []
    for path in (REPOSITORY / "pcopy").rglob("*.[ch]"):
        literals = re.findall(r'"(?:[^"\\\n]|\\.)*"', re.sub(r"(?m)^#include.*", "", path.read_text()))
        found += [f"{path}: {text}" for text in literals if FILE_OF_A_CHECKOUT.search(text)]
    assert not found


@pytest.mark.parametrize("name", ["pcopy", *vars(pcopy)["__all__"]])
def test_help_of_python_names_no_file_that_is_not_installed(name: str) -> None:
    """The module, and each name of the interface for Python with its methods, as ``help`` shows them."""
    text = pydoc.plain(pydoc.render_doc(pcopy if name == "pcopy" else getattr(pcopy, name)))
    shown = [line for line in text.splitlines() if not line.strip().startswith(str(REPOSITORY))]  # under FILE
    assert not [line for line in shown if FILE_OF_A_CHECKOUT.search(line)]


@pytest.mark.parametrize("page", sorted(path.name for path in (REPOSITORY / "docs/man").glob("*.[15]")))
def test_manual_names_no_file_that_is_not_installed(page: str) -> None:
    lines = (REPOSITORY / "docs/man" / page).read_text().splitlines()
    assert not [line for line in lines if FILE_OF_A_CHECKOUT.search(line) and not line.startswith('.\\"')]


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_help_refers_to_the_manual(program: str, option: str) -> None:
    text = load_program(program).help_or_version_text([option])
    assert text is not None and not FILE_OF_A_CHECKOUT.search(text)
    assert (f"man {program} explains them" in text) == (option == "-h")
    assert f"man {program}" in text


LIMITED_RUN = (
    "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0})); "
    "del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


@pytest.mark.parametrize("open_files", [4, 5, 9])
@pytest.mark.parametrize("program", WORDS_BY_PROGRAM)
def test_message_about_a_refused_resource_names_no_code(area: Path, program: str, open_files: int) -> None:
    """With so few descriptors, a module, a socket or a directory cannot be opened."""
    (area / "tree").mkdir()
    (area / "tree/file").write_text("x")
    words = [word.replace("TOP", str(area)) for word in WORDS_BY_PROGRAM[program]]
    _, env = command()

    line = [sys.executable, "-c", LIMITED_RUN.format(open_files), f"{REPOSITORY}/bin/{program}", "-n", "2", *words]
    run = subprocess.run(line, check=False, env=env, capture_output=True, timeout=60)
    text = run.stderr.decode().replace(str(area), "")
    assert run.returncode not in (0, 70), run
    assert text.startswith(f"{program}: ") and not OF_THE_CODE.search(text), text


def raised_by(action: Callable[[], object]) -> OSError | MemoryError | ImportError:
    with pytest.raises(errors.RESOURCE_EXCEPTIONS) as caught:
        action()
    error: OSError | MemoryError | ImportError = caught.value  # type: ignore[assignment]
    return error


def no_memory() -> None:
    raise MemoryError


def no_thread() -> None:
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def no_room() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), b"/a\nb")


def unreadable_source() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), f"{REPOSITORY}/pcopy/text.py")


def missing_name() -> None:
    from pcopy.text import no_such_name  # type: ignore[attr-defined]  # noqa: F401


def missing_module() -> None:
    import pcopy.tools.no_such_module  # type: ignore[import-not-found]  # noqa: F401


DAMAGED = (
    f"{REPOSITORY}/pcopy: files of pcopy are missing or cannot be read; check the directory, or install pcopy again"
)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (no_memory, "Cannot allocate memory (ENOMEM); free some memory, or use fewer ranks (-n)"),
        (
            no_thread,
            "Resource temporarily unavailable (EAGAIN); raise the limit of processes (ulimit -u), or use fewer ranks "
            "(-n)",
        ),
        (no_room, r"/a\nb: No space left on device (ENOSPC)"),
        (unreadable_source, f"{DAMAGED}: Input/output error (EIO)"),
        (missing_name, DAMAGED),
        (missing_module, DAMAGED),
        (lambda: __import__("no_such_package"), "No module named 'no_such_package'"),
    ],
)
def test_text_of_a_refused_resource(action: Callable[[], object], text: str) -> None:
    assert errors.resource_error_text(raised_by(action)) == text


TRACEBACKS_ALLOWED = {
    "errors.py": "the text of an internal error",
    "report/unexpected.py": "an internal error",
    "launch/mpi_run.py": "an internal error",
}
READS_FRAMES = {"co_name", "co_filename", "tb_lineno", "tb_frame", "f_lineno", "f_code", "format_exc", "print_exc"}


def test_only_internal_errors_read_frames() -> None:
    """The modules that look at functions and lines of the program are those for internal errors."""
    used = set()
    for path in Path(REPOSITORY, "pcopy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = {getattr(node, "attr", "")}
            if isinstance(node, ast.ImportFrom):
                names.update(alias.name for alias in node.names)
            if names & READS_FRAMES:
                used.add(str(path.relative_to(f"{REPOSITORY}/pcopy")))
    assert used == TRACEBACKS_ALLOWED.keys()
