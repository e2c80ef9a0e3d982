"""A forked run behaves like a started one."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.support import command
from tests.support.command import Completed, pcopy, pverify, show, succeed
from tests.support.extent import everything
from tests.support.faults import ITEM_BY_ITEM, require_strace, slowed
from tests.support.processes import background, wait_until
from tests.support.users import NOBODY, is_root, require_root
from tests.support.warm import Program


@pytest.fixture
def source(area: Path) -> Path:
    for name in ("one", "two", "three"):
        (area / "source" / name).parent.mkdir(exist_ok=True)
        (area / "source" / name).write_bytes(name.encode())
    return area / "source"


def said(run: Completed) -> tuple[int | bytes, ...]:
    """Return the output without times."""
    return run.returncode, *(re.sub(rb" in [\d.]+ s: .*", b"", text) for text in (run.stdout, run.stderr))


def test_forked_run_has_the_same_output_and_effects(source: Path, area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for forked in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(command, "everything", lambda forked=forked: not forked)
            copied = succeed("source", "copy", ranks=2, cwd=area, umask=0o077)
            (area / "copy" / "two").unlink()
            verified = pverify("source", "copy", ranks=1, cwd=area)
            refused = pcopy("--no-such-option")
            mode = (area / "copy").stat().st_mode
            (area / "copy").rename(area / f"copy {forked}")
        runs.append((said(copied), said(verified), said(refused), mode))
    assert runs[0] == runs[1]


@pytest.mark.skipif(everything(), reason="no run is forked")
def test_forked_run_has_the_credentials_of_another_user(
    source: Path, area: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no capabilities and only the given groups, and can still read the modules that it imports late."""
    require_root("be somebody else")
    (area / "place").mkdir()
    os.chown(area / "place", NOBODY, NOBODY)
    runs = []
    for forked in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(command, "everything", lambda forked=forked: not forked)
            target = area / "place" / f"copy {forked}"
            with background(
                source, target, user=NOBODY, groups=[10, 20], ranks=1, wrap=slowed(ITEM_BY_ITEM, 200)
            ) as run:
                assert isinstance(run.process, Program) is forked
                assert wait_until(target.exists)
                (rank,) = run.ranks()
                status = Path(f"/proc/{rank}/status").read_text()
                kept = re.findall(r"^(?:Uid|Gid|Groups|Cap...):.*", status, re.MULTILINE)
                owner = os.stat(f"/proc/{rank}/fd").st_uid
                assert run.end(20) == 0
            runs.append((kept, owner, target.stat().st_uid))
    assert runs[0] == runs[1]
    assert runs[0][1:] == (NOBODY, NOBODY)


@pytest.mark.skipif(everything(), reason="no run is forked")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("ranks", [1, 2])
def test_forked_run_is_found_and_receives_signals(source: Path, area: Path, number: signal.Signals, ranks: int) -> None:
    with background("--checkpoint", "none", source, area / "copy", ranks=ranks, wrap=slowed(ITEM_BY_ITEM, 500)) as run:
        assert isinstance(run.process, Program)
        assert wait_until(lambda: len(run.processes()) == ranks)
        assert run.process.pid in run.processes()
        assert wait_until((area / "copy").exists)  # by then it handles signals
        assert os.stat(f"/proc/{run.process.pid}/cwd").st_ino == os.stat(".").st_ino
        run.send_signal(number)
        assert run.end(20) == 128 + number
        assert run.survivors() == []


@pytest.mark.skipif(everything(), reason="no run is forked")
def test_strace_records_all_calls_but_not_the_start(source: Path, area: Path) -> None:
    require_strace()
    log = area / "log"
    wrap = ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=openat,mkdirat,exit_group"]
    run = succeed("-T", source, area / "copy", ranks=1, wrap=wrap)
    text = log.read_text()
    assert "SIGUSR2" not in text, show(run)
    assert len(re.findall(r'openat\(\d+, "(one|two|three)", O_RDONLY', text)) == 3, text
    assert text.count("exit_group(0)") == 1, text
    if is_root():
        assert "pcopy/tasks" not in text, text


@pytest.mark.skipif(everything(), reason="no run is forked")
@pytest.mark.parametrize("calls", ["mkdirat", "mkdirat,utimensat"])
def test_delays_are_applied_without_strace(source: Path, area: Path, calls: str) -> None:
    began = time.monotonic()
    succeed("-T", source, area / "quick", ranks=1)
    quick = time.monotonic() - began
    slow = slowed(calls, 300)
    assert slow.delays
    began = time.monotonic()
    succeed("-T", source, area / "copy", ranks=1, wrap=slow)
    number = 1 + 4 * calls.count("utimensat")  # a directory, and three files in it
    assert 0.3 * number < time.monotonic() - began < 0.3 * number + 20 * quick + 1
