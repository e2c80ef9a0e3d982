"""Starting the program as users do: as a command, with ranks of its own or under mpiexec, as root or not."""

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
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.users import is_root

REPOSITORY = Path(__file__).resolve().parents[2]
TOKEN = "PCOPY_TEST_TOKEN"
"""Marks the environment of every process of a run, so that survivors can be found."""

RUN = {
    "pcopy": ("-m", "pcopy"),
    "pverify": ("-c", "from pcopy.cli.script import pverify; pverify()"),
}
"""What the interpreter is to run for each of the two commands."""

_MODULES = ("_cffi_backend", "blake3", "lmdb", "xxhash", "yaml", "_yaml")
"""What other users' runs import that Python lacks: neither a launcher nor a bar."""

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
) -> Completed:
    """Runs ``pcopy arguments`` to its end and hands back status, output and errors, the latter two as bytes.

    ``ranks`` becomes ``-n`` or, with ``launcher="mpi"``, the ranks of mpiexec. ``wrap`` is put in front (strace).
    """
    line, environment = command(
        *arguments, ranks=ranks, launcher=launcher, user=user, groups=groups, env=env, wrap=wrap, program=program
    )
    return subprocess.run(
        line,
        check=False,
        env=environment,
        cwd=cwd,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout,
        umask=umask,
    )


def pverify(*arguments: Argument, **options: Any) -> Completed:
    """As ``pcopy``, with the other command."""
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
) -> tuple[list[Argument], dict[str, str]]:
    """The command line and the environment of a run, for tests that need to watch it (``subprocess.Popen``)."""
    if user is not None and not is_root():
        user = None  # whoever runs this is an ordinary user already
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
    token = uuid.uuid4().hex
    # Runs leave unfinished jobs: each has a place of its own for them, which need not be there.
    own = {TOKEN: token, "XDG_STATE_HOME": f"{_home()}/state-{token}"}
    return [*line, *arguments], {**_environment(search), **own, **(env or {})}


def mpiexec() -> str:
    """The launcher of the MPI that is installed beside the interpreter, else the machine's."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if not found:
        pytest.skip("there is no mpiexec here")
    return found


def _environment(search: str) -> dict[str, str]:
    """Ours without what a launcher, a scheduler or the user's own configuration would make of the run."""
    foreign = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "XDG_", "PCOPY_", "MPI4PY_", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    # Without PYTHONSAFEPATH ``python -m`` looks for modules in the working directory, and leaves its trace there.
    return {**kept, "PYTHONPATH": search, "PYTHONSAFEPATH": "1", "HOME": _home(), "LC_ALL": "C.UTF-8"}


@functools.cache
def _home() -> str:
    """An empty home that every user can write to."""
    path = tempfile.mkdtemp(prefix="pcopy-test-home-")
    os.chmod(path, 0o1777)
    _at_end(path)
    return path


@functools.cache
def _interpreter(user: int | None) -> tuple[str, str]:
    """A Python and a PYTHONPATH with which ``user`` can run the program.

    Interpreters below /root and checkouts in private homes are out of reach of other users: then the machine's own
    Python of the same version serves, and a copy of the package, and of all that it imports, in a public place.
    """
    if user is None:
        return sys.executable, str(REPOSITORY)
    installed = os.pathsep.join([str(REPOSITORY), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    searches: tuple[Callable[[], str], ...] = (lambda: installed, _public_copy)
    for search in searches:
        for python in (sys.executable, shutil.which(version, path="/usr/bin:/usr/local/bin")):
            if python and _works(user, python, search()):
                return python, search()
    pytest.skip(f"no {version} here that user {user} can run with the package")


def _works(user: int, python: str, search: str) -> bool:
    """Is there everything, also what is imported by some runs only?"""
    modules = ["pcopy.cli.script", *filter(importlib.util.find_spec, _MODULES)]
    line = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", python]
    line += ["-c", f"import {', '.join(modules)}"]
    return subprocess.run(line, check=False, env=_environment(search), capture_output=True, cwd="/").returncode == 0


@functools.cache
def _public_copy() -> str:
    path = tempfile.mkdtemp(prefix="pcopy-test-package-")
    os.chmod(path, 0o755)
    unneeded = shutil.ignore_patterns("__pycache__", "tests", "*.dist-info")
    shutil.copytree(REPOSITORY / "pcopy", Path(path, "pcopy"), ignore=unneeded)
    for module in _MODULES:
        found = importlib.util.find_spec(module)
        for place in (found.submodule_search_locations or ()) if found else ():
            shutil.copytree(place, Path(path, module), ignore=unneeded, dirs_exist_ok=True)
        if found and found.origin and not found.submodule_search_locations:
            shutil.copy(found.origin, path)
    # Other users can't write there what Python compiles, and would compile it for each run.
    subprocess.run([sys.executable, "-m", "compileall", "-q", path], check=True)
    subprocess.run(["chmod", "-R", "a+rX", path], check=True)
    _at_end(path)
    return path


_to_remove: list[str] = []


def _at_end(path: str) -> None:
    _to_remove.append(path)


def clean_up() -> None:
    """Called once, at the end of the session."""
    while _to_remove:
        shutil.rmtree(_to_remove.pop(), ignore_errors=True)
    _home.cache_clear()


def summary(run: Completed) -> dict[str, Any]:
    """The one JSON object of ``--json``, which is all that a run writes to its standard output."""
    try:
        told = json.loads(run.stdout)
    except ValueError as error:
        raise AssertionError(f"no JSON summary ({error}): {show(run)}") from error
    assert isinstance(told, dict), show(run)
    assert told["found"] == told["copied"] + told["skipped"] + told["failed"], told
    kinds = ("files", "directories", "symlinks", "special", "hardlinks")
    assert told["copied"] == sum(told[kind] for kind in kinds), told
    assert told["exit_status"] == run.returncode, told
    return told


def show(run: Completed) -> str:
    """What a run said, for the message of a failed assertion."""
    text = b"status %d\nstdout: %s\nstderr: %s" % (run.returncode, run.stdout[-3000:], run.stderr[-6000:])
    return text.decode(errors="backslashreplace")


def succeed(*arguments: Argument, **options: Any) -> Completed:
    """``pcopy`` that must end with status 0."""
    run = pcopy(*arguments, **options)
    assert run.returncode == 0, show(run)
    return run
