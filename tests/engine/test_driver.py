"""The driver on real ranks: forked processes tied by sockets, real tasks, real time."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from pcopy.engine.driver import RankDriver, TaskGenerator, TaskOutcome
from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import (
    CloseTransportMessage,
    CounterSums,
    EndJobMessage,
    HaltMessage,
    Message,
    StartPhaseMessage,
    TaskReply,
    TaskRequest,
)
from pcopy.engine.node import RankStateMachine
from pcopy.engine.queue import TaskQueue
from pcopy.engine.task import NewTask, Task
from pcopy.engine.ticket import WakeDescriptor
from pcopy.engine.transport import MessageTransport
from pcopy.engine.transports.local import fork_ranks
from pcopy.errors import EXIT_INTERNAL, EXIT_OK, EXIT_STOPPED, JobAborted

pytestmark = pytest.mark.alone

HANG = 30.0
"""Seconds after which a job counts as hanging."""

LONG = b"sleep 10000"
"""A task of 10 s in slices of a millisecond: a test that waits for it has failed."""


class Listening:
    """A transport that notes how many seconds later than it had to be each answer to a request came."""

    def __init__(self, transport: MessageTransport) -> None:
        self._transport = transport
        self._asked = 0.0
        self.answers: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def send(self, destination: int, message: Message) -> None:
        if isinstance(message, TaskRequest):
            self._asked = time.monotonic() + message.patience
        self._transport.send(destination, message)

    def poll(self, timeout: float, calm: float = 0.0, wake: WakeDescriptor | None = None) -> list[tuple[int, Message]]:
        arrived = self._transport.poll(timeout, calm, wake)
        if any(isinstance(message, TaskReply) for _, message in arrived):
            self.answers.append(time.monotonic() - self._asked)
        return arrived


class Directions:
    """One phase, with these tasks."""

    def __init__(self, first: Iterable[NewTask]) -> None:
        self._first = list(first)

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        return None

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        return self._first

    def status(self, totals: tuple[int, ...], halted: HaltMessage | None) -> int:
        return EXIT_STOPPED if halted else EXIT_OK


_reasons: list[HaltMessage] = []
"""Reasons to stop the job that tasks of this process have met."""


def run_task(task: Task) -> TaskGenerator:
    """``payload`` says what to do: a word, and a number."""
    word, number = (*task.payload.split(), b"0")[:2]
    if word == b"refuse":
        raise ValueError("no such task")
    return _slices(word, int(number))


def _slices(word: bytes, number: int) -> TaskGenerator:
    if word == b"sleep":
        for _ in range(number):
            time.sleep(0.001)
            yield None
    elif word == b"fail":
        yield None
        raise ValueError("the reason of it all")
    elif word == b"kill":
        yield None
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == b"full":
        _reasons.append(HaltMessage("no room"))
    elif word == b"split" and number:
        time.sleep(0.0003)
        half = NewTask(0, b"split %d" % (number - 1), 1 << number)
        return TaskOutcome((half, half), (1,))
    return TaskOutcome((), (1,))


class Ended(NamedTuple):
    """How a job ended: what each rank noted (none for one that was killed), what it printed, how long it took."""

    ranks: dict[int, dict[str, Any]]
    output: str
    seconds: float


Launch = Callable[..., Ended]


ONE_HOST = EngineLimits(longest_steal_wait=2 * EngineLimits().longest_steal_wait)
"""As the command sets them where all ranks are on one host."""


def _one_rank(size: int, first: list[NewTask], directory: Path, stopping: int) -> None:
    transport = fork_ranks(size)
    rank = transport.rank
    (directory / f"pid{rank}").write_text(str(os.getpid()))
    listening = Listening(transport)
    reports: list[CounterSums] = []
    node = RankStateMachine(
        rank,
        size,
        run=1,
        counters=1,
        director=Directions(first),
        random=Random(rank),
        queue=TaskQueue(ONE_HOST),
        limits=ONE_HOST,
    )
    begun = time.monotonic()
    settled: list[tuple[float, float]] = []

    def stop_reason() -> HaltMessage | None:
        now = time.monotonic()
        if not settled and now > begun + 0.3:
            settled.append((now, time.process_time()))
        if _reasons:
            return _reasons[0]
        return HaltMessage("requested") if rank == stopping and now > begun + 0.2 else None

    driver = RankDriver(
        node,
        listening,
        run_task,
        host=f"host{rank}",
        on_report=lambda _, report: reports.append(report),
        stop_reason=stop_reason,
    )
    status, failure = EXIT_INTERNAL, None
    try:
        status = driver.run()
    except JobAborted as error:
        failure = str(error)
        print(failure, end="", flush=True)
    since, used = settled[0] if settled else (begun, 0.0)
    note = {
        "status": status,
        "failure": failure,
        "load": (time.process_time() - used) / (time.monotonic() - since),
        "seconds": time.monotonic() - begun,
        "answers": listening.answers,
        "done": node.counters[0],
        "totals": [report.totals[0] for report in reports],
    }
    (directory / f"rank{rank}").write_text(json.dumps(note))
    transport.close()
    transport.children.reap_children(5.0)


def _supervised(size: int, first: list[NewTask], directory: Path, stopping: int) -> None:
    """In the child of the test: never returns to what the test's process was about to do."""
    try:
        os.setpgid(0, 0)
        output = os.open(directory / "output", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)
        _one_rank(size, first, directory, stopping)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    def launch(size: int, *first: NewTask, stopping: int = -1) -> Ended:
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            _supervised(size, list(first), tmp_path, stopping)
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > begun + HANG:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                pytest.fail("the job hangs:\n" + (tmp_path / "output").read_text())
            time.sleep(0.005)
        seconds = time.monotonic() - begun
        _await_deaths(tmp_path)
        notes = {int(path.name[4:]): json.loads(path.read_text()) for path in tmp_path.glob("rank*")}
        return Ended(notes, (tmp_path / "output").read_text(), seconds)

    return launch


def _await_deaths(directory: Path) -> None:
    """No process is left, or at least none for long: one that dies with its parent dies a little later."""
    end = time.monotonic() + 3.0
    for path in directory.glob("pid*"):
        process = path.read_text()  # empty, if that rank was killed before it could write
        while process and _lives(process):
            assert time.monotonic() < end, f"{path.name} still lives"
            time.sleep(0.01)


def _lives(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _busy(*ranks: int) -> list[NewTask]:
    return [NewTask(0, LONG, 1, owner=rank) for rank in ranks]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_job_runs_all_tasks_on_real_ranks(launch: Launch, size: int) -> None:
    ended = launch(size, NewTask(0, b"split 9", 1 << 9))
    assert ended.output == ""
    assert [ended.ranks[rank]["status"] for rank in range(size)] == [EXIT_OK] * size
    assert sum(note["done"] for note in ended.ranks.values()) == 2**10 - 1
    assert ended.ranks[0]["totals"][-1] == 2**10 - 1
    assert size == 1 or sum(note["done"] > 0 for note in ended.ranks.values()) > 1


def test_job_without_tasks_ends_with_status_0(launch: Launch) -> None:
    ended = launch(3)
    assert [ended.ranks[rank]["status"] for rank in range(3)] == [EXIT_OK] * 3


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 4), (1, 4), (11, 12)])
@pytest.mark.parametrize("word", [b"fail", b"refuse"])
def test_exception_on_one_rank_ends_all_ranks(launch: Launch, rank: int, size: int, word: bytes) -> None:
    ended = launch(size, NewTask(0, word, 1, owner=rank), *_busy(*(other for other in range(size) if other != rank)))
    assert ended.seconds < 3.0
    assert set(ended.ranks) == set(range(size))
    assert all(note["failure"] is not None for note in ended.ranks.values())
    assert ended.output.count("Traceback") == 1
    assert f"rank {rank} on host{rank} failed" in ended.output
    assert "ValueError: the reason of it all" in ended.output or "ValueError: no such task" in ended.output


@pytest.mark.parametrize("rank", [1, 11])
def test_killed_rank_ends_other_ranks(launch: Launch, rank: int) -> None:
    ended = launch(12, NewTask(0, b"kill", 1, owner=rank), *_busy(0, 2, 5, 10))
    assert ended.seconds < 4.0
    assert set(ended.ranks) == set(range(12)) - {rank}
    assert all(note["failure"] is not None for note in ended.ranks.values())
    assert ended.output.count(f"rank {rank} is gone: killed by SIGKILL") == 1
    assert "Traceback" not in ended.output
    assert ended.output.count("\n") == 1


def test_killed_rank_0_ends_other_ranks(launch: Launch) -> None:
    ended = launch(4, NewTask(0, b"kill", 1), *_busy(1, 3))
    assert ended.seconds < 4.0
    assert not any(note["failure"] is None for note in ended.ranks.values())


@pytest.mark.parametrize(("stopping", "milliseconds"), [(0, 50), (2, 300), (9, 50)])
def test_stop_drops_work_and_completes_addressed_tasks(launch: Launch, stopping: int, milliseconds: int) -> None:
    """Tasks are dropped, even those that run; addressed ones run to their end."""
    tasks = [NewTask(0, LONG, 1000) for _ in range(40)]
    notes = [NewTask(0, b"sleep %d" % milliseconds, 1, owner=rank) for rank in range(10)]
    ended = launch(10, *tasks, *notes, stopping=stopping)
    assert [ended.ranks[rank]["status"] for rank in range(10)] == [EXIT_STOPPED] * 10
    assert [ended.ranks[rank]["done"] for rank in range(10)] == [1] * 10
    assert ended.output == ""
    assert ended.seconds < 3.0


class Scripted:
    """A transport whose every poll hands out the next of these messages, all of rank 0."""

    rank, size, has_unsent_data = 3, 5, False

    def __init__(self, *messages: Message) -> None:
        self._messages = list(messages)
        self.forgiven: set[int] = set()
        self.forgiven_at_the_end: set[int] = set()

    def send(self, destination: int, message: Message) -> None:
        if isinstance(message, TaskRequest):
            self._messages.insert(0, TaskReply(message.phase, message.sequence, ()))

    def poll(self, timeout: float, calm: float = 0.0, wake: WakeDescriptor | None = None) -> list[tuple[int, Message]]:
        if len(self._messages) == 1:
            self.forgiven_at_the_end = set(self.forgiven)
        return [(0, self._messages.pop(0))]

    def expect_end_of_connection(self, rank: int) -> None:
        self.forgiven.add(rank)

    def close(self) -> None:
        assert not self._messages


@pytest.mark.parametrize(("size", "rank"), [(1, 0), (2, 0), (2, 1), (3, 2), (7, 6)])
def test_stop_requested_by_last_task_decides_status_of_job(launch: Launch, size: int, rank: int) -> None:
    """The wish to stop reaches the root before the end of the task, with which the last phase ends."""
    ended = launch(size, NewTask(0, b"full", 1, owner=rank))
    assert {note["status"] for note in ended.ranks.values()} == {EXIT_STOPPED}, ended
    assert sum(note["done"] for note in ended.ranks.values()) == 1


def test_only_loss_of_parent_is_an_error_in_barrier() -> None:
    """In the barrier any rank but the one above, whose word is awaited, may be gone already."""
    transport = Scripted(StartPhaseMessage(0), EndJobMessage(7), CloseTransportMessage())
    node = RankStateMachine(
        3, 5, run=1, counters=1, director=Directions([]), random=Random(1), queue=TaskQueue(EngineLimits())
    )
    assert RankDriver(node, transport, run_task, host="here", clock=lambda: 0.0).run() == 7
    assert transport.forgiven_at_the_end == {1, 2, 4}


def test_idle_ranks_sleep(launch: Launch) -> None:
    ended = launch(8, NewTask(0, b"sleep 2000", 1))
    idle = [ended.ranks[rank] for rank in range(8) if not ended.ranks[rank]["done"]]
    assert len(idle) == 7
    assert ended.ranks[0]["seconds"] > 2.0
    assert sum(note["load"] for note in idle) < 0.1


def test_long_task_does_not_delay_replies_to_task_requests(launch: Launch) -> None:
    ended = launch(2, NewTask(0, b"sleep 1000", 1, owner=0))
    answers = ended.ranks[1]["answers"]
    assert len(answers) > 20
    assert statistics.quantiles(answers, n=10)[-1] < 0.02
