"""The layers of the package: imports point one way, files stay small, and the start stays quick."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pcopy import __version__

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pcopy"
MOST_LINES = 400

MAY_IMPORT = {
    "engine": ("pcopy.engine", "pcopy.errors"),
    "fsio": ("pcopy.fsio", "pcopy.errors"),
    "checkpoint": (
        "pcopy.beside",
        "pcopy.checkpoint",
        "pcopy.engine.backlog",
        "pcopy.engine.messages",
        "pcopy.engine.task",
        "pcopy.errors",
        "pcopy.fsio.birth",
        "pcopy.fsio.file_system",
        "pcopy.text",
    ),
    "signature": ("pcopy.signature", "pcopy.errors", "pcopy.text"),
    "tasks": (
        "pcopy.tasks",
        "pcopy.engine",
        "pcopy.fsio",
        "pcopy.signature",
        "pcopy.beside",
        "pcopy.checkpoint",
        "pcopy.errors",
        "pcopy.text",
    ),
    "cli": ("pcopy",),
    "beside": (),
    "errors": (),
    "text": (),
    "__init__": (),
    "__main__": ("pcopy.cli",),
}
"""What of pcopy each part of it may import. Only ``cli`` composes everything."""

HEAVY = (
    "argparse",
    "asyncio",
    "blake3",
    "ctypes",
    "lmdb",
    "mpi4py",
    "multiprocessing",
    "pickle",
    "rich",
    "tempfile",
    "xxhash",
    "yaml",
)


class Import(NamedTuple):
    """``line`` of ``file`` imports ``module``, at its top or anywhere below."""

    file: Path
    line: int
    module: str

    @property
    def part(self) -> str:
        """The part of the package that the file belongs to."""
        return self.file.relative_to(PACKAGE).with_suffix("").parts[0]

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(file: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file.relative_to(ROOT)}:{node.lineno} imports relatively"
            assert node.module
            # "from pcopy import errors" imports pcopy.errors, "from pcopy.errors import OK" does too
            yield from (Import(file, node.lineno, _module(node.module, alias.name)) for alias in node.names)


def _module(package: str, name: str) -> str:
    inner = f"{package}.{name}"
    path = ROOT.joinpath(*inner.split("."))
    return inner if path.is_dir() or path.with_suffix(".py").is_file() else package


def is_below(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def all_imports() -> list[Import]:
    return [found for file in sources() for found in imports(file)]


def test_imports_point_one_way() -> None:
    wrong = [
        str(found)
        for found in all_imports()
        if is_below(found.module, ("pcopy",))
        and found.module != "pcopy"
        and not is_below(found.module, MAY_IMPORT[found.part])
    ]
    assert not wrong


def test_all_parts_of_the_package_are_known() -> None:
    assert {found.part for found in all_imports()} <= MAY_IMPORT.keys()
    assert len(all_imports()) > 100


def test_mpi4py_is_imported_by_one_module_only() -> None:
    importers = {found.file for found in all_imports() if is_below(found.module, ("mpi4py",))}
    assert importers == {PACKAGE / "engine" / "transports" / "mpi.py"}


def test_what_is_imported_as_an_own_module_exists() -> None:
    for found in all_imports():
        if is_below(found.module, ("pcopy",)):
            path = ROOT.joinpath(*found.module.split("."))
            assert path.is_dir() or path.with_suffix(".py").is_file(), str(found)


def test_no_source_file_is_two_things() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in sources()}
    assert not {name: length for name, length in lengths.items() if length > MOST_LINES}


@pytest.mark.parametrize("command", ["main", "pverify"])
def test_version_imports_nothing_heavy(command: str) -> None:
    program = (
        "import sys\n"
        "before = set(sys.modules)\n"
        f"from pcopy.cli.{command} import main\n"
        "assert main(['--version']) == 0\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT, stdin=subprocess.DEVNULL
    )
    version, loaded = done.stdout.splitlines()
    assert version.split() == ["pcopy" if command == "main" else "pverify", __version__]
    assert not set(loaded.split()) & set(HEAVY)


def test_a_plain_copy_imports_nothing_that_it_does_not_need(area: Path) -> None:
    """hashlib loads OpenSSL; a process that syncs, a resume and a launcher are for other jobs."""
    program = "import sys\nfrom pcopy.cli.main import main\nassert main(sys.argv[1:]) == 0\nprint(*sys.modules)\n"
    (area / "source").mkdir()
    words = ["-q", "-n", "1", str(area / "source"), str(area / "copy")]
    environment = {**os.environ, "XDG_STATE_HOME": str(area / "state")}
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment)
    unwanted = {"_hashlib", "subprocess", "tempfile", "mpi4py", "pcopy.checkpoint.resume", "pcopy.cli.hosts"}
    assert not set(done.stdout.split()) & unwanted
