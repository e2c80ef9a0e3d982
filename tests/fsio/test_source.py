"""Opening source files that another process has leased, or that a server has just forgotten."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from pcopy.fsio import retries
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import open_source_file_to_read, source_item_status, status_of_open_item


def test_open_waits_for_a_lease_to_be_released(area: Path) -> None:
    """File servers hold leases: a non-blocking open fails with EAGAIN until they are released."""
    (area / "file").write_bytes(b"content")
    directory, holder = os.open(area, os.O_RDONLY), os.open(area / "file", os.O_RDWR)
    fcntl.fcntl(holder, fcntl.F_SETSIG, 0)
    import signal

    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        try:
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            pytest.skip(f"no leases here: {error}")
        with pytest.raises(BlockingIOError):
            os.open(area / "file", os.O_RDONLY | os.O_NONBLOCK)
        timer = threading.Timer(sum(retries.RETRY_PAUSES) / 4, fcntl.fcntl, (holder, fcntl.F_SETLEASE, fcntl.F_UNLCK))
        timer.start()
        os.close(open_source_file_to_read(directory, b"file"))
        timer.join()
    finally:
        os.close(holder)
        os.close(directory)
        signal.signal(signal.SIGIO, before)


def test_missing_source_is_reported_as_changed(area: Path) -> None:
    directory = os.open(area, os.O_RDONLY)
    for call in (open_source_file_to_read, source_item_status):
        with pytest.raises(Problem) as caught:
            call(directory, b"absent")
        assert (caught.value.errno, caught.value.changed, caught.value.on_source) == (errno.ENOENT, True, True)
    os.close(directory)


@pytest.mark.parametrize("on_source", [True, False])
def test_transient_fstat_error_is_retried_on_the_source_only(monkeypatch: pytest.MonkeyPatch, on_source: bool) -> None:
    real, answers = os.fstat, [errno.ESTALE, errno.EIO]

    def fstat(descriptor: int) -> os.stat_result:
        if answers:
            raise OSError(answers.pop(), "")
        return real(descriptor)

    monkeypatch.setattr(retries, "RETRY_PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(os, "fstat", fstat)
    assert status_of_open_item(0, on_source=on_source) == real(0)
    answers[:] = [errno.ESTALE] * 4
    with pytest.raises(Problem) as caught:
        status_of_open_item(0, on_source=on_source)
    assert (caught.value.operation, caught.value.on_source) == ("fstat", on_source)
