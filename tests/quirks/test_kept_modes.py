"""Existing directories of an ordinary user that deny their owner access: a run that does not preserve modes adds
permissions while it works, and each directory has its former mode afterwards.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pcopy.tasks.base.rank import CLOCK_GRACE
from tests.support.command import Argument, pcopy, show, start
from tests.support.processes import wait_until
from tests.support.users import NOBODY, as_user, require_root

MODES = {"below": 0o500, "below/deep": 0o2550, "top": 0o300, "top/closed": 0o400, "open": 0o755}


def make_tree(top: Path, *, is_copy: bool) -> None:
    top.mkdir()
    for path in MODES:
        (top / path).mkdir(parents=True, exist_ok=True)
        (top / path / "file").write_text("old" if is_copy else "newer")
        if is_copy:
            (top / path / "extra").write_text("old")
    for path in reversed(MODES):
        (top / path).chmod(MODES[path] if is_copy else 0o755)


def modes_in(tree: Path) -> dict[str, int]:
    return {path: stat.S_IMODE(os.stat(tree / path).st_mode) for path in MODES}


@pytest.fixture
def trees(area: Path) -> Iterator[tuple[Path, Path]]:
    require_root("run as an ordinary user, and look at the modes")
    area.chmod(0o777)

    def make() -> None:
        os.umask(0o022)
        make_tree(area / "source", is_copy=False)
        make_tree(area / "copy", is_copy=True)

    as_user(make)
    yield area / "source", area / "copy"


RUNS: dict[str, tuple[str, ...]] = {
    "pcopy": (),
    "pcopy again": ("--existing", "changed"),
    "pcopy inplace": ("--inplace",),
    "psync": (),
    "psync with a filter": ("--exclude", "x"),
    "psync through links": ("-L",),
}


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("name", RUNS)
def test_modes_are_kept(trees: tuple[Path, Path], area: Path, name: str, backend: str) -> None:
    source, copy = trees
    program = name.partition(" ")[0]
    before = modes_in(copy)
    environment = {"PCOPY_BACKEND": backend, "XDG_STATE_HOME": str(area / "state")}
    line: list[Argument] = ["--no-preserve", "mode", *RUNS[name], f"{source}/", copy]
    for _ in range(2):
        run = pcopy(*line, program=program, user=NOBODY, env=environment, ranks=2)
        assert run.returncode == 0, show(run)
        assert modes_in(copy) == before
        for path in MODES:
            assert (copy / path / "file").read_text() == "newer"
            assert (copy / path / "extra").exists() == (program == "pcopy")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("program", ["pcopy", "psync"])
def test_modes_are_restored_by_a_resumed_run(
    trees: tuple[Path, Path], area: Path, program: str, number: signal.Signals
) -> None:
    """The scans of the directories have ended when the run is stopped, and it records them."""
    source, copy = trees
    before, state = modes_in(copy), area / "state"
    time.sleep(CLOCK_GRACE / 1e9 + 0.1)  # younger directories could be those of the job
    (source / "zzz").write_bytes(os.urandom(2 << 20))
    words = ("--no-preserve", "mode", "--bwlimit", "100K", "--checkpoint-interval", "0.1", f"{source}/", copy)
    environment = {"XDG_STATE_HOME": str(state)}
    with start(*words, program=program, user=NOBODY, env=environment, ranks=2) as process:
        assert wait_until(lambda: all((copy / path / "file").read_text() == "newer" for path in MODES))
        process.send_signal(number)
        process.communicate(timeout=60)
    assert modes_in(copy) != before
    run = pcopy("--resume", "--bwlimit", "1G", user=NOBODY, env=environment, ranks=2)
    assert run.returncode == 0, show(run)
    assert modes_in(copy) == before
