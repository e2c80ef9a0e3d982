"""A server that no longer answers: the waiting rank reports it, and a signal ends the job cleanly."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.latency import SlowMount, can_mount, mounted_slow
from tests.e2e.test_silence import HOST, PROMPT, Listener, impatient
from tests.quirks.world import make_tree
from tests.support.command import Argument, succeed
from tests.support.oracle import differences
from tests.support.processes import background, wait_until

SLOWLY: tuple[Argument, ...] = ("--oplimit", "30", "--checkpoint-interval", "0.1")


@pytest.fixture
def odd(area: Path) -> Iterator[SlowMount]:
    if not can_mount():
        pytest.skip("it takes root and libfuse3-dev")
    (area / "backing").mkdir()
    with mounted_slow(area / "backing") as mounted:
        yield mounted


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("side", ["source", "destination"])
def test_silent_server_is_reported_and_a_signal_ends_the_job(
    area: Path, odd: SlowMount, side: str, backend: str
) -> None:
    env = {"XDG_STATE_HOME": str(area / "state"), "PCOPY_BACKEND": backend}
    source, target = (odd.path / "tree", area / "copy") if side == "source" else (area / "tree", odd.path / "copy")
    make_tree(odd.backing / "tree" if side == "source" else source)
    below = area / "copy" if side == "source" else odd.backing / "copy"
    with background(*SLOWLY, "-T", source, target, ranks=1, wrap=impatient(), env=env) as run:
        try:
            listener = Listener(run)
            assert wait_until(lambda: run.process.poll() is not None or (below / ".dot").exists())
            assert run.process.poll() is None
            silencer = threading.Thread(target=odd.set_quirks, args=("silent",))
            silencer.start()
            said = rf"pcopy: rank 0 on {HOST} has been silent for 0:0\d \(since [\d:]+\), .*{re.escape(str(area))}/.*; "
            assert listener.hear(said + "the job waits\n"), listener.text
            run.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert run.process.poll() is None
        finally:
            odd.end_silent_quirk()
        silencer.join(PROMPT)
        assert run.end(PROMPT) == 75, listener.text
        assert run.survivors() == []
    succeed("--resume", "--oplimit", "100000", ranks=2, env=env)
    assert differences(odd.backing / "tree" if side == "source" else source, below) == []
