"""A file of root takes the name of the attacker's file between two calls of a run by root.

The run is repeated: the names are exchanged right after its first call that examines or opens the name, after its
second, and so on, until a run makes no further such call. Root's file is held open meanwhile and examined through that
descriptor. It may be removed or replaced, which the owner of the directory is allowed to do, but its mode, owner, times
and contents must not change.

A program that examines root's file later may treat it as if the file had been there from the start. So root's file is
one that copies never change in place: it has another size, and a second name if contents are written in place.

pchmod, which changes all items, must not change root's file after its first examination of the attacker's file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pcopy.cli.programs import PROGRAMS
from tests.support.command import REPOSITORY, Completed, pcopy, show
from tests.support.faults import require_strace
from tests.support.preload import preloaded
from tests.support.users import NOBODY, require_root

SOURCE = Path(__file__).with_name("exchange.c")
MOST_CALLS = 40
EARLY = 10**9


class Case(NamedTuple):
    """The arguments of a command in the directory of the stage; ``prepare`` changes the source before."""

    words: tuple[str, ...]
    prepare: Callable[[Path], object] = lambda source: None


def differ_in_mode(source: Path) -> None:
    (source / "mine").chmod(0o4777)


def differ_in_owner(source: Path) -> None:
    os.chown(source / "mine", 1, 1)


def differ_in_time(source: Path) -> None:
    os.utime(source / "mine", (EARLY, EARLY + 1000))


def differ_in_attribute(source: Path) -> None:
    os.setxattr(source / "mine", "user.mark", b"value")


def differ_in_contents(source: Path) -> None:
    (source / "mine").write_bytes(b"attacker's contents, which are longer")


def without_it(source: Path) -> None:
    (source / "mine").unlink()


def with_acl(source: Path) -> None:
    giver = source.parent / "giver"
    giver.touch()
    subprocess.run(["setfacl", "-m", "u:1:rwx", giver], check=True)


def in_archive(source: Path) -> None:
    differ_in_contents(source)
    differ_in_mode(source)
    subprocess.run(["tar", "-cf", source.parent / "a.tar", "-C", source, "mine"], check=True)


def in_list(source: Path) -> None:
    (source.parent / "list").write_bytes(b"tree/mine\n")


def move_down(source: Path) -> None:
    shutil.rmtree(source.parent / "around", ignore_errors=True)
    (source.parent / "around").mkdir()
    (source.parent / "tree").rename(source.parent / "around/tree")


CASES = {
    "pchmod mode": Case(("4755", "tree")),
    "pchmod below": Case(("4755", "around"), move_down),
    "pchmod owner": Case(("--owner", "1", "tree")),
    "pchmod symbolic mode": Case(("u+s", "tree")),
    "pchmod --from": Case(("u+s,o+w", "--from", "list"), in_list),
    "pchmod ACL": Case(("--acl-from", "giver", "tree"), with_acl),
    "psync mode": Case(("source/", "tree"), differ_in_mode),
    "psync owner": Case(("source/", "tree"), differ_in_owner),
    "psync time": Case(("source/", "tree"), differ_in_time),
    "psync attribute": Case(("source/", "tree"), differ_in_attribute),
    "pcopy replaces": Case(("--existing", "replace", "source/", "tree"), differ_in_contents),
    "pcopy in place": Case(("--existing", "replace", "--inplace", "source/", "tree"), differ_in_contents),
    "ptar": Case(("-x", "-f", "a.tar", "-C", "tree"), in_archive),
    "prm --from": Case(("-f", "--from", "list"), in_list),
    "prm": Case(("-f", "tree")),
    "pcopy newer": Case(("-u", "source/", "tree"), differ_in_contents),
    "pcopy --backup": Case(("--backup", "old", "source/", "tree"), differ_in_contents),
    "pcopy --repair": Case(("--existing", "changed", "--repair", "source/", "tree"), differ_in_mode),
    "psync deletes": Case(("--delete-all", "source/", "tree"), without_it),
    "pbcast": Case(("source/mine", "tree"), differ_in_contents),
}

ELSEWHERE = {"pstripe": "tests/lustre/test_exchanged_layouts.py"}
"""Programs that are attacked in the same way in other test files, which need other file systems."""

CHANGE_NOTHING = {
    "pverify": "it reads trees; --create writes a file that an option names (tests/e2e/test_named_files.py)",
    "pwalk": "it reads trees; its outputs are files that options name (tests/e2e/test_named_files.py)",
    "pdbench": "it writes in a directory that it has created, which other users may not enter",
}
"""Programs that change no existing items, and why."""


def test_each_program_that_changes_items_is_attacked() -> None:
    attacked_here = {name.split(maxsplit=1)[0] for name in CASES}
    assert attacked_here | ELSEWHERE.keys() | CHANGE_NOTHING.keys() == set(PROGRAMS), "add a case, or a reason"
    assert not CHANGE_NOTHING.keys() & (attacked_here | ELSEWHERE.keys())
    for program, path in ELSEWHERE.items():
        assert f'program="{program}"' in (REPOSITORY / path).read_text()


def build(place: Path, case: Case) -> None:
    """Create the attacker's file, its source, and the program of root."""
    for name in ("source", "tree", "roots"):
        shutil.rmtree(place / name, ignore_errors=True)
    (place / "source").mkdir(parents=True)
    (place / "tree").mkdir()
    (place / "roots").mkdir()
    for name in ("source/mine", "tree/mine"):
        (place / name).write_bytes(b"program")
        (place / name).chmod(0o755)
        os.utime(place / name, (EARLY, EARLY))
    (place / "roots/program").write_bytes(b"program of root")
    (place / "roots/program").chmod(0o755)
    os.utime(place / "roots/program", (EARLY, EARLY))
    if "--inplace" in case.words:
        os.link(place / "roots/program", place / "roots/again")
    for name in ("source/mine", "tree/mine", "tree"):
        os.chown(place / name, NOBODY, NOBODY)
    case.prepare(place / "source")


def state(file: int) -> tuple[object, ...]:
    status = os.fstat(file)
    attributes = tuple((name, os.getxattr(file, name)) for name in sorted(os.listxattr(file)))
    return (
        *(status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns),
        *(os.pread(file, 100, 0), attributes),
    )


def attacked(place: Path, name: str, backend: str, call: int) -> tuple[Completed, bool]:
    """Run one case and exchange the names after the given call; return the run, and whether they were exchanged."""
    build(place, CASES[name])
    done = place / "done"
    done.unlink(missing_ok=True)
    environment = preloaded(SOURCE) | {
        "EXCHANGE_WITH": str(place / "roots/program"),
        "EXCHANGE_AFTER": str(call),
        "EXCHANGE_DONE": str(done),
        "PCOPY_BACKEND": backend,
    }
    file = os.open(place / "roots/program", os.O_RDONLY)
    try:
        before = state(file)
        program, ranks = name.split(maxsplit=1)[0], () if name == "pbcast" else ("-n", "1")
        run = pcopy(*ranks, *CASES[name].words, program=program, cwd=place, env=environment)
        assert state(file) == before, f"exchanged after call {call}: {show(run)}"
    finally:
        os.close(file)
    assert run.returncode in (0, 1), show(run)
    return run, done.exists()


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("name", CASES)
def test_file_of_root_is_not_changed(name: str, backend: str, tmp_path: Path) -> None:
    require_root("own files")
    for call in range(1, MOST_CALLS):
        run, is_exchanged = attacked(tmp_path, name, backend, call)
        if not is_exchanged:
            assert run.returncode == 0, show(run)
            break
    assert 1 < call < MOST_CALLS, "the names were never exchanged, or always"


@pytest.mark.parametrize("name", ["pchmod mode", "pchmod below"])
def test_exchanged_file_fails_with_the_reason(name: str, tmp_path: Path) -> None:
    """The C backend examines a name before it opens it: an item that takes the name in between fails."""
    require_root("own files")
    failed = []
    for call in range(1, MOST_CALLS):
        run, is_exchanged = attacked(tmp_path, name, "c", call)
        if run.returncode:
            failed.append(run)
        if not is_exchanged:
            break
    assert failed, "no exchange was noticed"
    assert all(b"another item took its name after it was examined" in run.stderr for run in failed), failed


def test_stale_descriptor_is_not_reported_as_an_exchange(tmp_path: Path) -> None:
    """A network file system may return ESTALE for the change itself."""
    require_root("own files")
    require_strace()
    (tmp_path / "file").touch()
    wrap = ["strace", "-f", "-qq", "-o", str(tmp_path / "trace"), "-e", "inject=fchownat,chown:error=ESTALE"]
    words = ("-n", "1", "--owner", "1", "file")
    run = pcopy(*words, program="pchmod", cwd=tmp_path, env={"PCOPY_BACKEND": "c"}, wrap=wrap)
    assert b"(INJECTED)" in (tmp_path / "trace").read_bytes(), "a fault that never happened proves nothing"
    assert run.returncode == 1 and b"chown: Stale file handle" in run.stderr, run
    assert b"another item" not in run.stderr, run
