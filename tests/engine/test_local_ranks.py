"""What only forked ranks can do: die, leave things behind, run into limits of the system."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pcopy.errors
from pcopy.engine.messages import AddressedTasksMessage, CreditReturnMessage, HaltMessage, Message, SubtreeReadyMessage
from pcopy.engine.task import Task
from pcopy.engine.transports.children import ChildProcesses
from pcopy.engine.transports.local import UnixSocketTransport, fork_ranks
from pcopy.errors import PeerLost
from tests.support.processes import children

pytestmark = pytest.mark.alone

LARGE = AddressedTasksMessage(1, (Task((1, 1, 1), 1, bytes(20 << 20), 1),))
PATIENCE = 10.0
"""Seconds after which what a test waits for counts as missing."""


@contextlib.contextmanager
def ranks(size: int, child: Callable[[UnixSocketTransport], None]) -> Iterator[UnixSocketTransport]:
    """Rank 0's transport in the test's process, while ``child`` runs as the other ranks. Nothing may be left behind."""
    before = set(os.listdir("/proc/self/fd")), children()
    transport = fork_ranks(size)
    if transport.rank:
        status = 1
        try:
            child(transport)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    try:
        yield transport
    finally:
        transport.children.kill()
        transport.close()
        transport.children.reap_children(0.0)
    assert (set(os.listdir("/proc/self/fd")), children()) == before


def until_lost(transport: UnixSocketTransport, pause: float = 0.0) -> tuple[list[tuple[int, Message]], PeerLost]:
    """All that arrived before the first loss, and that loss."""
    heard: list[tuple[int, Message]] = []
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        try:
            heard += transport.poll(0.1)
            time.sleep(pause)
        except PeerLost as error:
            return heard, error
    raise TimeoutError("no loss was told")


def python(script: str) -> subprocess.CompletedProcess[str]:
    """Runs ``script`` in a fresh interpreter."""
    environment = dict(os.environ, PYTHONPATH=str(Path(pcopy.__file__).parent.parent))
    command = [sys.executable, "-c", script]
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=3 * PATIENCE)


def test_killed_rank_is_reported_to_all_and_its_signal_to_parent() -> None:
    def child(transport: UnixSocketTransport) -> None:
        if transport.rank == 2:
            for number in range(3):
                transport.send(0, CreditReturnMessage(number, 0))
            os.kill(os.getpid(), signal.SIGKILL)
        transport.send(0, HaltMessage(str(until_lost(transport)[1])))
        transport.poll(PATIENCE)

    with ranks(3, child) as transport:
        heard, error = until_lost(transport)
        while not any(sender == 1 for sender, _ in heard):
            heard += transport.poll(PATIENCE)
    assert [message for sender, message in heard if sender == 2] == [
        CreditReturnMessage(number, 0) for number in range(3)
    ]
    assert str(error) == "rank 2 is gone: killed by SIGKILL"
    # A sibling can't ask how it ended.
    assert [message for sender, message in heard if sender == 1] == [
        HaltMessage("rank 2 is gone: its connection closed")
    ]


def test_exited_rank_is_reported_with_its_status() -> None:
    with ranks(2, lambda _: os._exit(3)) as transport:
        heard, error = until_lost(transport)
    assert (heard, str(error)) == ([], "rank 1 is gone: it exited with status 3")


def test_incomplete_message_is_not_delivered() -> None:
    def child(transport: UnixSocketTransport) -> None:
        transport.send(0, SubtreeReadyMessage())
        transport.send(0, LARGE)
        os.kill(os.getpid(), signal.SIGKILL)

    with ranks(2, child) as transport:
        heard, error = until_lost(transport)
    assert heard == [(1, SubtreeReadyMessage())]
    assert str(error) == "rank 1 is gone: killed by SIGKILL, in the middle of a message"


def test_loss_is_reported_despite_traffic_of_other_ranks() -> None:
    def child(transport: UnixSocketTransport) -> None:
        if transport.rank == 1:
            transport.poll(PATIENCE)
            os._exit(0)
        limit = time.monotonic() + PATIENCE
        for number in itertools.count():
            transport.send(0, SubtreeReadyMessage())
            if number == 100:
                transport.send(1, SubtreeReadyMessage())  # the traffic flows: it may die now
            if time.monotonic() > limit:
                break
            with contextlib.suppress(PeerLost):
                transport.poll(0.0)

    with ranks(3, child) as transport:
        began = time.monotonic()
        heard, error = until_lost(transport, pause=0.02)  # so that each poll finds something
        assert (error.rank, len(heard) > 0) == (1, True)
        assert time.monotonic() - began < PATIENCE / 2


def test_send_does_not_block_and_poll_returns_once_all_is_sent() -> None:
    def child(transport: UnixSocketTransport) -> None:
        time.sleep(0.3)
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            if (0, LARGE) in transport.poll(1.0):
                transport.poll(PATIENCE)

    with ranks(2, child) as transport:
        began = time.monotonic()
        transport.send(1, LARGE)
        assert time.monotonic() - began < 0.2
        assert transport.has_unsent_data
        while transport.has_unsent_data:
            assert transport.poll(PATIENCE) == []
        assert time.monotonic() - began < PATIENCE / 2
        used = time.process_time()
        transport.poll(0.3)
        assert time.process_time() - used < 0.05  # nothing asks for room any more


def test_poll_without_messages_takes_exactly_its_timeout() -> None:
    with ranks(2, lambda transport: time.sleep(PATIENCE)) as transport:
        for timeout in (0.0, 0.001, 0.0105, 0.1):
            took = []
            for _ in range(5):
                began = time.monotonic()
                assert transport.poll(timeout) == []
                took.append(time.monotonic() - began)
            assert min(took) >= timeout
            assert min(took) < timeout + 0.002  # the least of five: other processes want the processor too


def test_each_rank_has_only_its_own_sockets_open() -> None:
    size = 6

    def opened() -> dict[str, str]:
        """Descriptor -> what it is, without the listing's own, which is closed by then."""
        found = {}
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                found[name] = os.readlink(f"/proc/self/fd/{name}")
        return found

    before = opened()

    def count() -> tuple[int, int]:
        """(sockets, others) that this process has and the test had not."""
        kinds = [what.startswith("socket:") for name, what in opened().items() if before.get(name) != what]
        return sum(kinds), len(kinds) - sum(kinds)

    def child(transport: UnixSocketTransport) -> None:
        transport.send(0, CreditReturnMessage(*count()))
        transport.poll(PATIENCE)

    with ranks(size, child) as transport:
        heard: list[tuple[int, Message]] = []
        while len(heard) < size - 1:
            heard += transport.poll(PATIENCE)
        assert count() == (size - 1, 1)
    assert sorted(heard) == [(rank, CreditReturnMessage(size - 1, 1)) for rank in range(1, size)]


def test_reap_waits_for_ending_children_and_kills_the_rest() -> None:
    def child(transport: UnixSocketTransport) -> None:
        time.sleep(0.1 if transport.rank == 1 else 6 * PATIENCE)

    with ranks(3, child) as transport:
        transport.close()
        began = time.monotonic()
        transport.children.reap_children(0.5)
        assert 0.5 <= time.monotonic() - began < PATIENCE
    with ranks(3, lambda _: time.sleep(0.1)) as transport:
        transport.close()
        began = time.monotonic()
        transport.children.reap_children(PATIENCE)
        assert 0.1 <= time.monotonic() - began < PATIENCE / 2


def test_kill_does_not_wait() -> None:
    with ranks(3, lambda _: time.sleep(6 * PATIENCE)) as transport:
        began = time.monotonic()
        transport.children.kill()
        assert time.monotonic() - began < PATIENCE / 2
        assert str(until_lost(transport)[1]).endswith("killed by SIGKILL")


def test_fork_is_refused_while_other_threads_run() -> None:
    done = python(
        "import threading; from pcopy import background; from pcopy.engine.transports.local import fork_ranks\n"
        "from pcopy.errors import InvariantBroken\n"
        "background._START_TIMEOUT, over = 0.1, threading.Event(); threading.Thread(target=over.wait).start()\n"
        "try: fork_ranks(2)\n"
        "except InvariantBroken as error: print(error)\n"
        "over.set()\n"
    )
    assert done.stdout == "ranks are forked while other threads run\n", done


def test_fork_waits_for_ending_thread() -> None:
    done = python(
        "import os, time\nfrom pcopy.background import BackgroundThread\n"
        "from pcopy.engine.transports.local import fork_ranks\n"
        "BackgroundThread(lambda: time.sleep(0.2)); fork_ranks(1).close(); print(len(os.listdir('/proc/self/task')))\n"
    )
    assert done.stdout == "1\n", done


def test_children_die_with_their_parent() -> None:
    # They hold the pipe's writing end and look at nothing, so that only their death closes it.
    script = (
        "import os, signal, time; from pcopy.engine.transports.local import fork_ranks\n"
        "from pcopy.engine.messages import SubtreeReadyMessage\n"
        "transport = fork_ranks(3)\n"
        "if transport.rank: transport.send(0, SubtreeReadyMessage()); time.sleep(60)\n"
        "heard = 0\n"
        "while heard < 2: heard += len(transport.poll(10))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    began = time.monotonic()
    assert python(script).returncode == -signal.SIGKILL  # returns when both pipes are closed
    assert time.monotonic() - began < PATIENCE


def test_64_ranks_raise_soft_limit_of_open_files() -> None:
    done = python(
        "import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))\n"
        "from pcopy.engine.messages import SubtreeReadyMessage; from pcopy.engine.transports.local import fork_ranks\n"
        "transport, heard = fork_ranks(64), set()\n"
        "[transport.expect_end_of_connection(rank) for rank in range(64) if rank != transport.rank]\n"
        "transport.send((transport.rank + 1) % 64, SubtreeReadyMessage())\n"
        "while not heard: heard.update(sender for sender, _ in transport.poll(10))\n"
        "if transport.rank:\n"
        "    transport.send(0, SubtreeReadyMessage())\n"
        "    transport.close(); os._exit(0 if heard >= {transport.rank - 1} else 1)\n"
        "while len(heard) < 63: heard.update(sender for sender, _ in transport.poll(10))\n"
        "transport.close(); transport.children.reap_children(10); print(sorted(heard) == list(range(1, 64)))\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_too_low_limit_of_open_files_is_refused_in_one_line() -> None:
    done = python(
        "import os, resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))\n"
        "from pcopy.errors import RequestRefused; from pcopy.engine.transports.local import fork_ranks\n"
        "try: fork_ranks(64)\n"
        "except RequestRefused as error: print(error)\n"
        "try: os.waitpid(-1, os.WNOHANG)\n"
        "except ChildProcessError: print('no child')\n"
    )
    expected = r"64 ranks need \d+ open files, the limit is 512: use fewer \(-n\) or raise ulimit -Hn\nno child\n"
    assert re.fullmatch(expected, done.stdout), done
    done = python(
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
        "from pcopy.errors import RequestRefused; from pcopy.engine.transports.local import fork_ranks\n"
        "try: fork_ranks(1)\n"
        "except RequestRefused as error: print(error)\n"
    )
    assert re.fullmatch(r"1 rank needs \d+ open files, the limit is 20: raise ulimit -Hn\n", done.stdout), done


def test_failing_fork_is_refused_and_leaves_no_process_or_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir("/proc/self/fd")), children()
    fork, parent = os.fork, os.getpid()
    calls: list[None] = []

    def failing() -> int:
        calls.append(None)
        if len(calls) == 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", failing)
    with pytest.raises(
        pcopy.errors.RequestRefused, match=r"5 ranks can't be started here \(Resource temporarily unavailable\)"
    ):
        fork_ranks(5).poll(PATIENCE)
    if os.getpid() != parent:
        os._exit(0)
    assert (set(os.listdir("/proc/self/fd")), children()) == before


def test_forking_ranks_imports_no_heavy_module() -> None:
    done = python(
        "import os, sys; from pcopy.engine.transports.local import fork_ranks\n"
        "transport = fork_ranks(2)\n"
        "if transport.rank: os._exit(0)\n"
        "print(sorted({'ctypes', 'mpi4py', 'multiprocessing', 'asyncio', 'subprocess'} & set(sys.modules)))\n"
        "transport.close(); transport.children.reap_children(10)\n"
    )
    assert done.stdout == "[]\n", done


def test_failing_waitpid_does_not_end_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: int, options: int) -> tuple[int, int]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    children = ChildProcesses()
    children.add(1, child := os.spawnlp(os.P_NOWAIT, "true", "true"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "waitpid", refuse)
        children.reap_children(0.1)
        assert children.exit_description(1) is None
    os.waitpid(child, 0)
