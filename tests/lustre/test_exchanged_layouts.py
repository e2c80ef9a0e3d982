"""A file of root takes the name of the attacker's file while pstripe, run by root, examines that and changes its
layout.

See tests/hostile/test_exchanged_metadata.py, which does this to the other programs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hostile.test_exchanged_metadata import MOST_CALLS, SOURCE, state
from tests.lustre.conftest import Lustre
from tests.lustre.standin import Shown, plain
from tests.lustre.test_copies import MIB, make
from tests.support.command import Completed, pcopy, show
from tests.support.preload import preloaded
from tests.support.users import NOBODY, require_root


def layout(lustre: Lustre, path: Path) -> Shown:
    shown = lustre.shown(path)
    assert shown is not None
    return shown


def attacked(lustre: Lustre, backend: str, call: int) -> tuple[Completed, bool]:
    """Run pstripe and exchange the names after the given call; return the run, and whether they were exchanged."""
    place = lustre.first / f"{call}"
    mine, program, done = place / "tree/mine", place / "roots/program", place / "done"
    make(lustre, mine, plain(1, MIB), 3 * MIB)
    make(lustre, program, plain(1, MIB), 2 * MIB)
    program.chmod(0o755)
    for path in (mine, mine.parent):
        os.chown(path, NOBODY, NOBODY)
    standin = lustre.environment()
    environment = {
        **standin,
        "LD_PRELOAD": f"{preloaded(SOURCE)['LD_PRELOAD']}:{standin['LD_PRELOAD']}",
        "EXCHANGE_WITH": str(program),
        "EXCHANGE_AFTER": str(call),
        "EXCHANGE_DONE": str(done),
        "PCOPY_BACKEND": backend,
    }
    stripes = [layout(lustre, path).count for path in (mine, program)]
    assert stripes == [1, 1]
    with open(program, "rb", buffering=0) as file:
        before, inode = state(file.fileno()), os.fstat(file.fileno()).st_ino
        run = pcopy("-n", "1", "--stripe", "2", mine.parent, program="pstripe", env=environment)
        assert state(file.fileno()) == before, f"exchanged after call {call}: {show(run)}"
    roots, other = (mine, program) if done.exists() else (program, mine)
    assert roots.stat().st_ino == inode
    assert layout(lustre, roots).count == 1, f"exchanged after call {call}: {show(run)}"
    if run.returncode == 0:
        assert layout(lustre, other).count == 2, show(run)
    assert run.returncode in (0, 1), show(run)
    return run, done.exists()


@pytest.mark.parametrize("backend", ["c", "python"])
def test_file_of_root_keeps_its_layout(lustre: Lustre, backend: str) -> None:
    require_root("own files")
    lustre.need_standin("a preloaded library exchanges the names")
    failed = 0
    for call in range(1, MOST_CALLS):
        run, is_exchanged = attacked(lustre, backend, call)
        failed += run.returncode
        if not is_exchanged:
            assert run.returncode == 0, show(run)
            break
    assert 1 < call < MOST_CALLS, "the names were never exchanged, or always"
    assert failed, "the exchange was never noticed"
