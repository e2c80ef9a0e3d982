"""Running the programs as users do: as a command, with local ranks or under mpiexec, as root or as another user."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support import native
from tests.support.extent import everything
from tests.support.filesystems import scratch_place
from tests.support.preload import preloaded
from tests.support.users import is_root
from tests.support.warm import TOKEN, Program, Request, Server, is_possible

REPOSITORY = Path(__file__).resolve().parents[2]

BEING_WRITTEN = shutil.ignore_patterns("*.pyc.*")
"""Patterns that copies of the package leave out. Compiled files are included, so that runs start quickly."""

SLOW = Path(__file__).with_name("slow.c")

RUN = {
    "pbcast": ("-c", "from pcopy.cli.script import pbcast; pbcast()"),
    "pchmod": ("-c", "from pcopy.cli.script import pchmod; pchmod()"),
    "pcopy": ("-m", "pcopy"),
    "pdbench": ("-c", "from pcopy.cli.script import pdbench; pdbench()"),
    "prm": ("-c", "from pcopy.cli.script import prm; prm()"),
    "psync": ("-c", "from pcopy.cli.script import psync; psync()"),
    "pstripe": ("-c", "from pcopy.cli.script import pstripe; pstripe()"),
    "ptar": ("-c", "from pcopy.cli.script import ptar; ptar()"),
    "pwalk": ("-c", "from pcopy.cli.script import pwalk; pwalk()"),
    "pverify": ("-c", "from pcopy.cli.script import pverify; pverify()"),
    "late": ("-m", "tests.support.late_backend"),
}
"""Arguments of the interpreter for each command; ``late`` is pcopy with the backend ``LateBackend``."""

backend = ""
"""The backend of runs; empty: the C backend, if it was built."""

_MODULES = ("_cffi_backend", "blake3", "lmdb", "xxhash", "yaml", "_yaml")
"""Packages that runs of other users need in addition: neither a launcher nor a progress bar."""

Argument = str | bytes | os.PathLike[str]
Completed = subprocess.CompletedProcess[bytes]


def pcopy(
    *arguments: Argument,
    ranks: int | None = None,
    launcher: str | None = None,
    user: int | None = None,
    groups: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    cwd: Argument | None = None,
    wrap: Sequence[Argument] = (),
    umask: int = 0o022,
    timeout: float = 120,
    program: str = "pcopy",
    real: bool = False,
) -> Completed:
    """Run ``pcopy arguments`` to its end and return its status, output and errors, the latter two as bytes.

    ``ranks`` becomes ``-n`` or, with ``launcher="mpi"``, the number of ranks of mpiexec. ``wrap`` precedes the command
    (strace). ``real``: the program is started as by users, and not forked (see ``start``).
    """
    process = start(
        *arguments,
        ranks=ranks,
        launcher=launcher,
        user=user,
        groups=groups,
        env=env,
        cwd=cwd,
        wrap=wrap,
        umask=umask,
        program=program,
        real=real,
    )
    with process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return Completed(process.args, process.returncode, output, errors)


def start(
    *arguments: Argument,
    stdout: int | IO[bytes] = subprocess.PIPE,
    stderr: int | IO[bytes] = subprocess.PIPE,
    cwd: Argument | None = None,
    umask: int = -1,
    real: bool = False,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start a run with the arguments of ``command``: forked from a process that has imported the program already, if
    the only difference is the time.

    ``real``: start it as users do, because the test concerns the start; with ``PCOPY_TESTS=all`` all runs are started
    so.
    """
    line, environment = command(*arguments, **options)
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": stderr}
    if real or everything() or not _can_be_forked(environment, options):
        return subprocess.Popen(line, env=environment, cwd=cwd, umask=umask, **streams)
    wrap: Sequence[Argument] = options.get("wrap", ())
    program = options.get("program", "pcopy")
    user = options.get("user") if is_root() else None
    python, _ = _interpreter(user)
    begins = line.index(python, len(wrap)) + 1 + len(RUN[program])
    words = [os.fspath(word) for word in line[begins:]]
    early: dict[str, str] = {name: environment[name] for name in ("PYTHONPATH", "LD_PRELOAD") if name in environment}
    if delays := getattr(wrap, "delays", ""):
        wrap = ()
        early |= preloaded(SLOW)
        environment["PCOPY_TEST_DELAYS"] = delays
    where = os.getcwd() if cwd is None else os.fspath(cwd)
    request = Request(program, words, environment, where, umask, bool(wrap), user, options.get("groups", ()))
    return Program(_server(python, early), request, wrap, **streams)


def _can_be_forked(environment: Mapping[str, str], options: Mapping[str, Any]) -> bool:
    if options.get("launcher") or not is_possible():
        return False
    wrap = options.get("wrap", ())
    if getattr(wrap, "delays", ""):
        if not (shutil.which("cc") or shutil.which("gcc")):
            return False
    elif wrap and not (
        is_root() and _is_strace(wrap)
    ):  # ordinary users can trace only processes that they have started
        return False
    _, search = _interpreter(options.get("user") if is_root() else None)
    asked = environment["PYTHONPATH"]
    if asked != search and not all(Path(place).is_relative_to(REPOSITORY) for place in asked.split(os.pathsep)):
        return False  # one of many edited copies
    return _early(environment) == _early(_environment(asked))


def _is_strace(wrap: Sequence[Argument]) -> bool:
    """Return True for strace with options only, without a command that strace would start."""
    words = iter(wrap)
    if next(words) != "strace":
        return False
    for word in words:
        if word in ("-e", "-o", "-P"):
            next(words)
        elif word not in ("-f", "-q", "-qq", "--seccomp-bpf"):
            return False
    return True


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment on which the start of an interpreter depends, without libraries. There is one server for
    each.
    """
    names = ("PYTHON", "LC_", "LD_", "LANG")
    return {name: value for name, value in environment.items() if name.startswith(names) and name != "LD_PRELOAD"}


def _server(python: str, early: Mapping[str, str]) -> Server:
    key = frozenset({"": python, **early}.items())
    with _turn:
        if key not in _servers:
            _servers[key] = Server(python, {**_environment(early["PYTHONPATH"]), **early})
        return _servers[key]


_servers: dict[frozenset[tuple[str, str]], Server] = {}
_turn = threading.Lock()


def pverify(*arguments: Argument, **options: Any) -> Completed:
    """Run pverify like ``pcopy``."""
    return pcopy(*arguments, **options, program="pverify")


def command(
    *arguments: Argument,
    ranks: int | None = None,
    launcher: str | None = None,
    user: int | None = None,
    groups: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    wrap: Sequence[Argument] = (),
    program: str = "pcopy",
    token: str = "",
) -> tuple[list[Argument], dict[str, str]]:
    """Return the command line and the environment of a run, for tests that watch it (``subprocess.Popen``)."""
    if user is not None and not is_root():
        user = None  # this process belongs to an ordinary user already
    python, search = _interpreter(user)
    line: list[Argument] = [*wrap]
    if user is not None:
        line += ["setpriv", f"--reuid={user}", f"--regid={user}"]
        line += [f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"]
    if launcher == "mpi":
        line += [mpiexec(), "-n", str(ranks or 1)]
    line += [python, *RUN[program]]
    if launcher is None and ranks is not None:
        line += ["-n", str(ranks)]
    token = token or new_token()
    # Runs leave unfinished jobs: each run gets its own state directory, which does not have to exist.
    own = {TOKEN: token, "XDG_STATE_HOME": f"{_public('home')}/state-{token}"}
    return [*line, *arguments], {**_environment(search), **own, **(env or {})}


def runs_in_c() -> bool:
    """Return True if runs use the C backend."""
    return backend == "c" or not (backend or native.why_not())


def new_token() -> str:
    """Return a new value of ``TOKEN``, the environment variable that marks all processes of one run."""
    return uuid.uuid4().hex


def mpiexec() -> str:
    """The mpiexec installed next to the interpreter, or else that of the system."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if not found:
        pytest.skip("there is no mpiexec here")
    return found


def _environment(search: str) -> dict[str, str]:
    """Our environment without the variables of launchers, schedulers or user configuration that affect a run."""
    foreign = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "XDG_", "PCOPY_", "MPI4PY_", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    # Without PYTHONSAFEPATH ``python -m`` searches modules in the working directory, and leaves traces there.
    python = {"PYTHONPATH": search, "PYTHONSAFEPATH": "1"}
    if backend:
        python["PCOPY_BACKEND"] = backend
    return {**kept, **python, "HOME": _public("home"), "LC_ALL": "C.UTF-8"}


@functools.cache
def _public(name: str) -> str:
    """Return a new directory that every user can write to: in memory, because jobs are short-lived."""
    path = tempfile.mkdtemp(prefix=f"pcopy-test-{name}-", dir=scratch_place())
    os.chmod(path, 0o1777)
    _at_end(path)
    return path


@functools.cache
def _interpreter(user: int | None) -> tuple[str, str]:
    """Return a Python and a PYTHONPATH with which ``user`` can run the program.

    Other users cannot reach interpreters below /root and checkouts in private homes. They use the system's Python of
    the same version, if there is one, and a copy of the package and its imports in a public directory.
    """
    if user is None:
        return sys.executable, str(REPOSITORY)
    installed = os.pathsep.join([str(REPOSITORY), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    searches: tuple[Callable[[], str], ...] = (lambda: installed, _public_copy)
    for search in searches:
        # Setpriv also starts an interpreter that the user cannot reach; it then finds no modules.
        for python in (shutil.which(version, path="/usr/bin:/usr/local/bin"), sys.executable):
            if python and _works(user, python, search()):
                return python, search()
    pytest.skip(f"no {version} here that user {user} can run with the package")


def other_modules(user: int | None) -> list[str]:
    """Return the directories in which a run of ``user`` finds modules other than pcopy."""
    return _interpreter(user)[1].split(os.pathsep) if user is not None and is_root() else []


def _works(user: int, python: str, search: str) -> bool:
    """Return True if all modules can be imported, including those that only some runs need."""
    modules = ["pcopy.cli.script", *filter(importlib.util.find_spec, _MODULES)]
    line = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", python]
    line += ["-c", f"import {', '.join(modules)}"]
    return subprocess.run(line, check=False, env=_environment(search), capture_output=True, cwd="/").returncode == 0


@functools.cache
def _public_copy() -> str:
    path = tempfile.mkdtemp(prefix="pcopy-test-package-")
    os.chmod(path, 0o755)
    unneeded = shutil.ignore_patterns("*.pyc.*", "tests", "*.dist-info")  # compiled files are included
    shutil.copytree(REPOSITORY / "pcopy", Path(path, "pcopy"), ignore=unneeded)
    for module in _MODULES:
        found = importlib.util.find_spec(module)
        for place in (found.submodule_search_locations or ()) if found else ():
            shutil.copytree(place, Path(path, module), ignore=unneeded, dirs_exist_ok=True)
        if found and found.origin and not found.submodule_search_locations:
            shutil.copy(found.origin, path)
    # Other users cannot store compiled files there, and would compile them in each run.
    subprocess.run([sys.executable, "-m", "compileall", "-q", path], check=True)
    subprocess.run(["chmod", "-R", "a+rX", path], check=True)
    _at_end(path)
    return path


_to_remove: list[str] = []


def _at_end(path: str) -> None:
    _to_remove.append(path)


def clean_up() -> None:
    """Remove everything; called once at the end of the session."""
    while _servers:
        _servers.popitem()[1].close()
    while _to_remove:
        shutil.rmtree(_to_remove.pop(), ignore_errors=True)
    _public.cache_clear()


def summary(run: Completed) -> dict[str, Any]:
    """Return the JSON object of ``--json``, which is the whole standard output of a run."""
    try:
        reported = json.loads(run.stdout)
    except ValueError as error:
        raise AssertionError(f"no JSON summary ({error}): {show(run)}") from error
    assert isinstance(reported, dict), show(run)
    assert reported["found"] == reported["copied"] + reported["skipped"] + reported["failed"], reported
    kinds = ("files", "directories", "symlinks", "special", "hardlinks")
    assert reported["copied"] == sum(reported[kind] for kind in kinds), reported
    assert reported["exit_status"] == run.returncode, reported
    return reported


def show(run: Completed) -> str:
    """Return the output of a run, for the message of a failed assertion."""
    text = b"status %d\nstdout: %s\nstderr: %s" % (run.returncode, run.stdout[-3000:], run.stderr[-6000:])
    return text.decode(errors="backslashreplace")


def succeed(*arguments: Argument, **options: Any) -> Completed:
    """Run ``pcopy`` and require status 0."""
    run = pcopy(*arguments, **options)
    assert run.returncode == 0, show(run)
    return run
