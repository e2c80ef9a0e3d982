"""The layers of the package: imports follow their order, files are small, and the start is quick."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from pcopy import __version__
from pcopy.cli.programs import PROGRAMS
from pcopy.fsio.backend.choose import backend_name
from pcopy.tasks.base.job import Options, ProgramOptions

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pcopy"
MOST_LINES = 700

ORDER = (
    "api", "cli", "tools", "launch", "report", "jobs", "tasks", "walk", "checkpoint", "archive", "signature", "engine",
    "lustre", "fsio",
)  # fmt: skip
"""The folders of the package, each above those that it may import."""

UNDER_ALL = ("background", "errors", "fast_named_tuple", "libc", "text", "units", "old_python", "__init__")
"""Modules that every folder may import."""

BARE = ("engine", "fsio")
"""Folders that import only common modules from below."""

PROGRAM_WORDS = {
    "psync",
    "prm",
    "removal",
    "pstripe",
    "ptar",
    "copy",
    "copies",
    "pverify",
    "verify",
    "verifies",
    "pbcast",
    "pchmod",
    "pdbench",
    "pwalk",
}
"""Names of programs, and expressions that test for one of them."""

COMPLEXITY = ("C901", "PLR0911", "PLR0912", "PLR0913", "PLR0915")
"""ruff's rules on complexity, returns, branches, arguments and statements."""

MOST_EXCEPTIONS = 16
"""Pairs of a file and one of these rules that pyproject.toml excepts. This number may only decrease."""

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


UNWANTED = {
    "_hashlib", "base64", "heapq", "mpi4py", "pathlib", "pickle", "queue", "rich", "selectors", "socket", "subprocess",
    "tempfile", "threading", "traceback", "weakref", "yaml", "pcopy.checkpoint.resume", "pcopy.launch.hosts",
    "pcopy.signature.manifest", "pcopy.signature.signature_file", "pcopy.signature.sorting", "pcopy.tasks.sign.signing",
}  # fmt: skip
"""Modules that a simple copy must not load: each takes 0.2 ms or more."""

MOST_MODULES_OF_A_WALK = 186
MOST_MODULES, MOST_OTHERS = 201, 75
"""The number of modules of pcopy, and of others, that a simple copy loads (five of them are the C backend). They
determine the time of a start.
"""


class Import(NamedTuple):
    """``line`` of ``file`` imports ``module``, at the top of the file or elsewhere."""

    file: Path
    line: int
    module: str

    @property
    def part(self) -> str:
        """The part of the package that contains the file."""
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


@cache
def all_imports() -> list[Import]:
    return [found for file in sources() for found in imports(file)]


def folder_of(module: str) -> str:
    """Return ``tasks`` for ``pcopy.tasks.base.kind``; a module outside the folders has its own name."""
    return module.removeprefix("pcopy").removeprefix(".").partition(".")[0] or "__init__"


def may_import(folder: str, imported: str) -> bool:
    if imported in UNDER_ALL or imported == folder:
        return True
    if folder not in ORDER or imported not in ORDER or folder in BARE:
        return folder == "__main__"
    return ORDER.index(imported) > ORDER.index(folder)


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def test_imports_follow_the_layers() -> None:
    own = [found for found in all_imports() if is_below(found.module, ("pcopy",))]
    upward = {
        (module_of(found.file), found.module) for found in own if not may_import(found.part, folder_of(found.module))
    }
    assert not upward
    assert len(own) > 100


def test_no_module_uses_the_names_of_packages_that_functions_have() -> None:
    """``pcopy.walk`` and others are functions of the interface, so ``import pcopy.walk.globbing`` and
    ``from pcopy import walk`` bind the function. Modules write ``from pcopy.walk.globbing import ...``.
    """
    import pcopy

    shared = {path.name for path in PACKAGE.iterdir() if path.is_dir()} & {*vars(pcopy)["__all__"]}
    assert shared == {"archive", "jobs", "walk"}
    found = []
    for file in sources():
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                if isinstance(node, ast.Import):
                    names = [name.split(".")[1] for name in names if name.startswith("pcopy.")]
                elif node.module != "pcopy":
                    names = []
                found += [f"{file}:{node.lineno}" for name in names if name in shared]
    assert found == []


def circles(edges: dict[str, set[str]]) -> set[tuple[str, ...]]:
    """Return the groups of modules that reach each other."""
    reached = {module: reachable(module, edges) for module in edges}
    around = {module: {other for other in reached[module] if module in reached.get(other, ())} for module in edges}
    return {tuple(sorted(others)) for others in around.values() if len(others) > 1}


def reachable(module: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [module]
    while waiting:
        new = edges.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def test_circles_are_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(edges) == {("a", "b", "c"), ("d", "e")}


def test_modules_have_no_circular_imports() -> None:
    """Imports below ``TYPE_CHECKING`` and inside functions count, too."""
    modules = {module_of(file) for file in sources()}
    edges: dict[str, set[str]] = {module: set() for module in modules}
    for found in all_imports():
        if found.module in modules:
            edges[module_of(found.file)].add(found.module)
    assert circles(edges) == set()


@pytest.mark.parametrize("folder", ["launch", "report", "jobs", "engine"])
def test_layers_below_the_programs_name_no_program(folder: str) -> None:
    """They use ``pcopy.launch.tool.Tool``. No name there is that of a program or compared with one."""
    named = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sources()
        if file.is_relative_to(PACKAGE / folder)
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, (ast.Name, ast.Attribute, ast.arg, ast.keyword, ast.Constant))
        and words_of(node) & PROGRAM_WORDS
    ]
    assert not named


def words_of(node: ast.Name | ast.Attribute | ast.arg | ast.keyword | ast.Constant) -> set[object]:
    """Return the identifier in a node, or the value of a constant."""
    return {getattr(node, field, None) for field in ("id", "attr", "arg", "value") if field in node._fields}


OPTIONS_OF_FOLDERS = {
    "archive": {"ArchiveOptions"},
    "broadcast": {"BroadcastOptions"},
    "change": {"ChangeOptions"},
    "compare": {"CompareOptions"},
    "remove": {"RemoveOptions"},
    "stripe": {"StripeOptions"},
    "walk": {"WalkOptions"},
    "listed": {"RemoveOptions"},  # a listed item that is missing may be no failure
    "files": {"ArchiveOptions", "StripeOptions"},  # code that copies files for other programs, too
}
"""The folders of tasks that name options of a program, and which."""
FOLDERS_WITHOUT_COPY_OPTIONS = ("archive", "bench", "broadcast", "change", "compare", "sign", "stripe", "walk")
"""Folders whose tasks belong to programs that have no options of a copy."""


def test_tasks_read_only_the_options_of_their_own_program() -> None:
    programs = {each.__name__ for each in get_args(ProgramOptions)}
    assert programs == set().union(*OPTIONS_OF_FOLDERS.values(), {"CopyOptions"})
    named: dict[str, set[str]] = {}
    for path in sorted((PACKAGE / "tasks").glob("*/*.py")):
        if path.parent.name == "base":
            continue
        found = {node.id if isinstance(node, ast.Name) else node.attr for node in ast.walk(ast.parse(path.read_text()))
                 if isinstance(node, ast.Name | ast.Attribute)}  # fmt: skip
        if found & programs:
            named.setdefault(path.parent.name, set()).update(found & programs)
        assert path.parent.name not in FOLDERS_WITHOUT_COPY_OPTIONS or "copy_options" not in found, path
    assert named == OPTIONS_OF_FOLDERS


def test_fields_of_the_options_have_different_names() -> None:
    """Job files and reports contain both tuples in one object."""
    for each in get_args(ProgramOptions):
        assert set(Options._fields).isdisjoint(each._fields), each


def test_all_parts_of_the_package_are_known() -> None:
    assert {found.part for found in all_imports()} <= {*ORDER, *UNDER_ALL, "__main__"}


LISTS_BY_ITSELF = {
    "fsio/close.py": "the one function",
    "fsio/directories.py": "a directory that was opened just now",
    "walk/preliminary_walk.py": "a directory that was opened just now",
    "walk/matching.py": "a directory that was opened just now",
    "jobs/suggestions.py": "a directory that was opened just now",
    "api/shutil_like.py": "by its path, for the exceptions of shutil",
    "background.py": "/proc",
    "engine/transports/local.py": "/proc",
    "launch/in_flight.py": "/proc and /sys",
    "checkpoint/layout.py": "by its path",
    "checkpoint/lmdb_backlog.py": "by its path",
    "tasks/archive/archive_file.py": "by its path",
}
"""Files that call ``os.listdir`` or ``os.scandir``, and the reason."""


def test_open_directories_are_listed_by_one_function() -> None:
    """A descriptor continues at its last position, and on btrfs shows no newer names: it has to be rewound."""
    found = {
        str(file.relative_to(PACKAGE))
        for file in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.Attribute) and node.attr in ("listdir", "scandir")
    }
    assert found == {*LISTS_BY_ITSELF}


def test_mpi4py_is_imported_by_one_module_only() -> None:
    importers = {found.file for found in all_imports() if is_below(found.module, ("mpi4py",))}
    assert importers == {PACKAGE / "engine" / "transports" / "mpi.py"}


def test_ctypes_is_imported_by_one_module_only() -> None:
    importers = {found.file for found in all_imports() if is_below(found.module, ("ctypes", "_ctypes"))}
    assert importers == {PACKAGE / "libc.py"}


def test_cffi_is_imported_to_build_the_backend_and_for_lustre_only() -> None:
    importers = {found.file for found in all_imports() if is_below(found.module, ("cffi",))}
    assert importers == {PACKAGE / "fsio" / "backend" / "build_native.py", PACKAGE / "lustre" / "llapi.py"}


def test_imported_modules_of_the_package_exist() -> None:
    for found in all_imports():
        if is_below(found.module, ("pcopy",)):
            path = ROOT.joinpath(*found.module.split("."))
            compiled = path.with_suffix(".pyi")  # built from C, where there is a compiler
            assert path.is_dir() or path.with_suffix(".py").is_file() or compiled.is_file(), str(found)


def names_path_twice(call: ast.Call) -> bool:
    """True if a refusal has the same path as argument and at the beginning of its text, or after an option there:
    ``path_refused`` does so.
    """
    paths = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "path"]
    if not (paths and call.args and isinstance(call.func, ast.Name) and isinstance(call.args[0], ast.JoinedStr)):
        return False
    text = ast.unparse(call.args[0])[2:]
    shown = re.escape(f"{{printable_path({paths[0]})}}: ")
    return re.match(rf"(\S+ )?{shown}", text) is not None


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('RequestRefused(f"{printable_path(a.b)}: is a file", path=a.b)', True),
        ('RequestRefused(f"--page {printable_path(fsencode(a))}: is a file", path=fsencode(a))', True),
        ('RequestRefused(f"{option} {printable_path(a)}: {why}", path=a, code=2)', True),
        ('RequestRefused(f"--page: {printable_path(a)}: {why}", path=a)', True),
        ('RequestRefused(f"{printable_path(b)}: {why}", path=a)', False),
        ('RequestRefused(f"the file {printable_path(a)}: {why}", path=a)', False),
        ('RequestRefused(f"{printable_path(a)} and {printable_path(b)}: the same file", path=a)', False),
        ('path_refused(a, "is a file")', False),
    ],
)
def test_paths_that_are_named_twice_are_found(code: str, expected: bool) -> None:
    (call,) = (node for node in ast.parse(code).body if isinstance(node, ast.Expr))
    assert isinstance(call.value, ast.Call)
    assert names_path_twice(call.value) is expected


def test_refusals_name_the_path_once() -> None:
    """If a call named it in the text and as argument, a change of one of the two could be forgotten for the other."""
    found = [
        f"{module_of(file)}: line {node.lineno}"
        for file in sources()
        if file != PACKAGE / "errors.py"
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.Call) and names_path_twice(node)
    ]
    assert found == []


def test_source_files_are_not_too_long() -> None:
    files = [*sources(), *PACKAGE.rglob("*.[ch]")]
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files}
    assert {name for name, length in lengths.items() if length > MOST_LINES} <= set()


@pytest.mark.parametrize("command", PROGRAMS)
def test_version_option_imports_no_heavy_modules(command: str) -> None:
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
    assert version == f"{command} {__version__} (backend {backend_name()})"
    assert not set(loaded.split()) & set(HEAVY)


@pytest.mark.parametrize("ranks", [1, 2])
def test_simple_copy_imports_no_unneeded_modules(area: Path, ranks: int) -> None:
    """hashlib loads OpenSSL. The sync process, resume, signatures and launchers belong to other jobs."""
    program = (
        "import sys\nbefore = set(sys.modules)\nfrom pcopy.cli.pcopy import main\n"
        "assert main(sys.argv[1:]) == 0\nprint(*sorted(set(sys.modules) - before))\n"
    )
    (area / "source").write_bytes(b"contents")
    words = ["-q", "-n", str(ranks), str(area / "source"), str(area / "copy")]
    environment = {**os.environ, "XDG_STATE_HOME": str(area / "state")}
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment)
    loaded = done.stdout.split()
    assert not set(loaded) & UNWANTED
    own = [name for name in loaded if is_below(name, ("pcopy",))]
    assert len(own) <= MOST_MODULES
    assert len(loaded) - len(own) <= MOST_OTHERS


def test_simple_walk_imports_no_modules_of_copying(area: Path) -> None:
    program = (
        "import sys\nbefore = set(sys.modules)\nfrom pcopy.cli.pwalk import main\n"
        "assert main(sys.argv[1:]) == 0\nprint(*sorted(set(sys.modules) - before), file=sys.stderr)\n"
    )
    environment = {**os.environ, "XDG_STATE_HOME": str(area / "state")}
    command = [sys.executable, "-c", program, "-n", "1", str(area)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.stdout == f"{area}\n"
    loaded = done.stderr.split()
    assert "ctypes" not in loaded
    unwanted = ("pcopy.tasks.copying", "pcopy.tasks.files.copy_files", "pcopy.tasks.links", "pcopy.tasks.verify")
    assert [name for name in loaded if is_below(name, unwanted)] == []
    assert len([name for name in loaded if is_below(name, ("pcopy",))]) <= MOST_MODULES_OF_A_WALK


def test_functions_are_simple_except_for_a_shrinking_list() -> None:
    """The exceptions in pyproject.toml are exactly those that are needed."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    excepted = {(file, rule) for file, rules in settings["per-file-ignores"].items() for rule in rules}
    command = [sys.executable, "-m", "ruff", "check", "--select", ",".join(COMPLEXITY), "--output-format", "json"]
    everywhere = ["--config", "lint.per-file-ignores={}", "--exit-zero", "--no-cache"]
    done = subprocess.run([*command, *everywhere], check=True, capture_output=True, text=True, cwd=ROOT)
    found = json.loads(done.stdout)
    needed = {(str(Path(one["filename"]).relative_to(ROOT)), one["code"]) for one in found}
    assert excepted == needed
    assert len(excepted) <= MOST_EXCEPTIONS
