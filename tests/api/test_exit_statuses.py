"""The result follows the exit status of the program, also if that of the child process is lost or is a launcher's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pcopy
from tests.support.files import write


@pytest.fixture
def trees(area: Path) -> Path:
    """``a`` and ``b``, which differ; ``same``, equal to ``a``; and the signature of ``a``."""
    for name, content in {"a": b"one", "b": b"two", "same": b"one"}.items():
        write(area / name / "file", content)
    pcopy.sign(area / "a", area / "a.sig")
    return area


@contextmanager
def reaping(how: str) -> Iterator[None]:
    """Context manager: this process loses the status of each child, as servers do."""

    def reap(*_: object) -> None:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN if how == "ignored" else reap)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


Call = Callable[[Path], Any]

FAILING: dict[str, tuple[Call, type[pcopy.Error]]] = {
    "remove": (lambda area: pcopy.remove(area / "none"), pcopy.ItemsFailed),
    "verify": (lambda area: pcopy.verify(area / "b", area / "a.sig"), pcopy.Different),
    "copy": (lambda area: pcopy.copy(area / "none", area / "new"), pcopy.Refused),
    "walk": (lambda area: list(pcopy.walk(area / "none")), pcopy.Error),
    "discard": (lambda area: pcopy.discard("none"), pcopy.Error),
}
SUCCEEDING: dict[str, tuple[Call, Callable[[Any], object], object]] = {
    "compare": (lambda area: pcopy.compare(area / "a", area / "b"), lambda result: result.same, False),
    "verify": (lambda area: pcopy.verify(area / "same", area / "a.sig"), lambda result: result.same, True),
    "copy": (lambda area: pcopy.copy(area / "a", area / "new"), lambda result: result.failed, 0),
}


@pytest.mark.parametrize("how", ["ignored", "reaped"])
@pytest.mark.parametrize("name", FAILING)
def test_failure_is_no_success_if_the_status_is_lost(name: str, how: str, trees: Path) -> None:
    call, kind = FAILING[name]
    for _ in range(3):  # a handler is not always first
        with reaping(how), pytest.raises(kind):
            call(trees)


@pytest.mark.parametrize("name", SUCCEEDING)
def test_summary_has_the_status_if_that_of_the_process_is_lost(name: str, trees: Path) -> None:
    call, value, expected = SUCCEEDING[name]
    with reaping("ignored"):
        assert value(call(trees)) == expected


def test_stopped_job_is_stopped_if_the_status_is_lost(trees: Path) -> None:
    with reaping("ignored"):
        job = pcopy.start(pcopy.copy, trees / "a", trees / "new", bwlimit=1, progress_interval=0.1)
        next(iter(job))
        job.stop()
        with pytest.raises(pcopy.Stopped):
            job.wait()


def launcher(area: Path, text: str) -> list[str]:
    path = area / "launcher"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return [str(path)]


@pytest.mark.parametrize("name", ["remove", "verify"])
def test_failure_is_no_success_if_the_launcher_loses_the_status(name: str, trees: Path) -> None:
    lossy = launcher(trees, '"$@"\nexit 0')
    if name == "remove":
        with pytest.raises(pcopy.ItemsFailed):
            pcopy.remove(trees / "none", launcher=lossy)
    else:
        with pytest.raises(pcopy.Different):
            pcopy.verify(trees / "b", trees / "a.sig", launcher=lossy)


def test_failing_launcher_of_a_successful_program_is_named(trees: Path) -> None:
    failing = launcher(trees, '"$@"\nexit 1')
    for call in (
        lambda: pcopy.verify(trees / "same", trees / "a.sig", launcher=failing),
        lambda: pcopy.copy(trees / "a", trees / "new", launcher=failing),
    ):
        with pytest.raises(pcopy.InternalError, match=r"launcher ended with status 1 after .* had ended with status 0"):
            call()


def test_functions_can_be_pickled(trees: Path) -> None:
    """As those that workflows send to their workers."""
    with ProcessPoolExecutor(1) as pool:
        assert pool.submit(pcopy.copy, trees / "a", trees / "new").result(60).copied == 2


def test_end_of_a_forked_process_does_not_end_the_walk_of_its_parent(trees: Path) -> None:
    for number in range(3000):
        (trees / f"a/{number}").touch()
    walk = pcopy.walk(trees / "a")
    next(walk)
    if (child := os.fork()) == 0:
        walk.__del__()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert sum(1 for _ in walk) == 3001


def test_forked_process_cannot_wait_for_a_job_of_its_parent(trees: Path) -> None:
    with pcopy.start(pcopy.copy, trees / "a", trees / "new", bwlimit=1) as job:
        if (child := os.fork()) == 0:
            try:
                job.wait(20)
            except RuntimeError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        job.stop()


@pytest.mark.parametrize("timeout", [float("inf"), 1e20])
def test_wait_accepts_any_time(timeout: float, trees: Path) -> None:
    assert pcopy.start(pcopy.copy, trees / "a", trees / "new").wait(timeout).copied == 2


def test_wrong_time_does_not_stop_the_job(trees: Path) -> None:
    job = pcopy.start(pcopy.copy, trees / "a", trees / "new")
    with pytest.raises(TypeError):
        job.wait("x")  # type: ignore[arg-type]
    assert job.wait().copied == 2


@pytest.mark.parametrize(
    "values", [{"pause": "no"}, {"bwlimit": b"1M"}, {"bwlimit": True}, {"active": 1.5}, {"oplimit": "1"}], ids=str
)
def test_wrong_value_of_control_is_refused(values: dict[str, Any], trees: Path) -> None:
    with (
        pcopy.start(pcopy.copy, trees / "a", trees / "new") as job,
        pytest.raises(pcopy.InvalidOption, match="control"),
    ):
        job.control(**values)


def test_file_named_as_the_end_of_options_is_a_path(trees: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trees)
    for name in ("--", "x"):
        (trees / name).touch()
    pcopy.remove(["x", "--"])
    assert not (trees / "--").exists() and not (trees / "x").exists()
