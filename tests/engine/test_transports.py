"""One suite of programs (``transport_conformance``) for the three transports, MPI under each launcher that is there."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import pcopy
from bench.simulation.network import SimulatedNetwork
from bench.simulation.tickets import SimulatedWake
from pcopy.engine.messages import CreditReturnMessage, SubtreeReadyMessage
from pcopy.errors import InvariantBroken
from tests.engine import transport_conformance as suite

ROOT = Path(pcopy.__file__).parent.parent
MPICH = Path(sys.executable).with_name("mpiexec")
OPEN_MPI = "/usr/bin/mpiexec"

Run = Callable[..., list[Any]]


def launch(transport: str, program: str, size: int, directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs ``program`` under the launcher that ``transport`` names; skips where it is missing."""
    pytest.importorskip("mpi4py")
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    if transport == "mpich":
        if not MPICH.exists():
            pytest.skip(f"no MPICH: {MPICH} doesn't exist")
        command = [str(MPICH)]
    else:
        version = shutil.which(OPEN_MPI) and subprocess.getoutput(f"{OPEN_MPI} --version")
        if not version or "Open" not in version:
            pytest.skip(f"no Open MPI: {OPEN_MPI} doesn't exist or is another one's")
        command = [OPEN_MPI, "--allow-run-as-root", "--oversubscribe"]
        # Long messages in pieces, as through a network: short ones that were sent later are complete before them.
        command += ["--mca", "btl_vader_single_copy_mechanism", "none"]
        environment["MPI4PY_LIBMPI"] = "libmpi.so.40"  # mpi4py takes the MPICH wheel's library otherwise
    command += ["-n", str(size), sys.executable, "-m", suite.__name__, program, str(directory)]
    return subprocess.run(
        command, check=False, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a program on some ranks of the transport that the test is parametrised with; gives their results by rank."""
    transport: str = request.param

    def run_program(program: suite.Program, size: int) -> list[Any]:
        if transport == "simulated":
            return suite.run_simulated(program, size)
        if transport == "local":
            return suite.run_local(program, size, tmp_path)
        done = launch(transport, program.__name__, size, tmp_path)
        assert done.returncode == 0, done.stderr
        return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(size)]

    return run_program


def transports(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("run", names, indirect=True)


all_transports = transports("simulated", "local", "mpich", "open_mpi")
real_transports = transports("local", "mpich", "open_mpi")
tells_of_loss = transports("simulated", "local")


@all_transports
def test_each_rank_reaches_all_others_and_refuses_invalid_destinations(run: Run) -> None:
    size = 4
    for rank, result in enumerate(run(suite.sizes, size)):
        assert result == [
            rank,
            size,
            [[other, other, rank] for other in range(size) if other != rank],
            0,
            [rank, size, -1],
        ]


@transports("simulated", "local")
def test_transport_works_with_one_rank(run: Run) -> None:
    assert run(suite.sizes, 1) == [[0, 1, [], 0, [0, 1, -1]]]


@all_transports
def test_messages_between_two_ranks_keep_their_order(run: Run) -> None:
    numbers = list(range(suite.ORDERED))
    for rank, (heard, surplus) in enumerate(run(suite.order, 3)):
        assert heard == [[] if sender == rank else numbers for sender in range(3)]
        assert surplus == 0


@all_transports
def test_smallest_and_largest_messages_arrive_intact(run: Run) -> None:
    kinds = [
        "SubtreeReadyMessage",
        "TaskReply",
        "AddressedTasksMessage",
        "CounterQuery",
        "AddressedTasksMessage",
        "AddressedTasksMessage",
    ]
    for rank, result in enumerate(run(suite.extremes, 3)):
        sender = (rank - 1) % 3
        large = hashlib.sha256(Random(sender).randbytes(20 * 1024 * 1024)).hexdigest()
        assert result == [[sender], kinds, large, hashlib.sha256(b"").hexdigest(), 0]


@all_transports
def test_flood_in_both_directions_does_not_deadlock(run: Run) -> None:
    numbers = list(range(suite.FLOODED))
    for rank, (heard, surplus) in enumerate(run(suite.flood, 2)):
        assert heard[1 - rank] == numbers
        assert surplus == 0


@pytest.mark.alone
@real_transports
def test_idle_poll_takes_its_timeout_and_little_processor_time(run: Run, request: pytest.FixtureRequest) -> None:
    results = run(suite.idle, 2)
    found, elapsed, _ = results[0]
    assert found == 0
    assert suite.IDLE <= elapsed < suite.IDLE + 0.2
    share = 0.05 if "local" in request.node.name else 0.15  # of one processor; who spins takes all that he gets
    for _, waited, used in results:
        assert waited >= 0.8 * suite.IDLE  # so that there was something to measure
        assert used < share * waited


@real_transports
def test_message_ends_long_poll(run: Run) -> None:
    assert run(suite.prompt, 2)[0] < 2.0


@pytest.mark.alone
@real_transports
def test_completed_ticket_ends_poll(run: Run) -> None:
    found, (later, before, without, cleared) = run(suite.woken, 2)[0]
    assert found == 0
    assert 0.2 <= later < 2.0
    assert before < 0.1
    assert suite.IDLE <= without < 2.0
    assert suite.IDLE <= cleared < 2.0


@all_transports
def test_close_delivers_unsent_messages(run: Run) -> None:
    results = run(suite.handover, 3)
    for rank in (1, 2):
        assert results[rank] == [hashlib.sha256(Random(rank).randbytes(5 * 1024 * 1024)).hexdigest()]


@tells_of_loss
def test_loss_is_reported_after_all_messages_of_lost_rank(run: Run) -> None:
    sent = [hashlib.sha256(Random(0).randbytes(1024 * 1024)).hexdigest()]
    sent += [hashlib.sha256(Random(seed).randbytes(10)).hexdigest() for seed in (1, 2)]
    assert run(suite.lost, 4) == [[sent, 3, 3]] * 3 + [None]


@tells_of_loss
def test_expected_close_of_a_rank_is_no_loss(run: Run) -> None:
    assert run(suite.forgiven, 3) == [0, 0, None]


@transports("mpich", "open_mpi")
def test_values_are_broadcast_and_gathered_before_the_job(run: Run) -> None:
    gathered = [[0, 0, True], [1, 50_000, True], [2, 100_000, True]]
    assert run(suite.collectives, 3) == [[["nonce", 7, None], gathered]] * 3


@pytest.mark.parametrize("transport", ["mpich", "open_mpi"])
def test_abort_ends_all_ranks_with_its_status(transport: str, tmp_path: Path) -> None:
    began = time.monotonic()
    assert launch(transport, "abort", 2, tmp_path).returncode == 70
    assert time.monotonic() - began < suite.LONGEST / 2  # else the others ended by their own limit


class TestSimulated:
    """What only a simulation can promise."""

    @staticmethod
    def trace(seed: int) -> list[tuple[float, int, int, int]]:
        network = SimulatedNetwork(5, Random(seed), lambda random: random.uniform(0.0, 1.0))
        senders = Random(3)
        for number in range(500):
            source, destination = senders.sample(range(5), 2)
            network.send(source, destination, CreditReturnMessage(number, 0), now=number * 0.001)
        delivered = network.deliver(float("inf"))
        return [
            (at, to, by, message.phase) for at, to, by, message in delivered if isinstance(message, CreditReturnMessage)
        ]

    def test_same_seed_gives_same_trace(self) -> None:
        assert self.trace(1) == self.trace(1)
        assert self.trace(1) != self.trace(2)

    def test_latencies_reorder_messages_of_different_pairs_only(self) -> None:
        for seed in range(20):
            trace = self.trace(seed)
            assert [at for at, *_ in trace] == sorted(at for at, *_ in trace)
            assert sorted(number for *_, number in trace) == list(range(500))
            assert [number for *_, number in trace] != list(range(500))
            for pair in itertools.permutations(range(5), 2):
                numbers = [number for _, to, by, number in trace if (by, to) == pair]
                assert numbers == sorted(numbers)

    def test_message_arrives_exactly_after_its_latency(self) -> None:
        latencies = iter([0.5, 0.1])
        network = SimulatedNetwork(3, Random(1), lambda _: next(latencies))
        network.send(0, 1, SubtreeReadyMessage(), now=2.0)
        network.send(0, 2, SubtreeReadyMessage(), now=2.25)
        assert network.next_event_time() == pytest.approx(2.35)
        assert list(network.deliver(2.3)) == []
        assert [(at, to, by) for at, to, by, _ in network.deliver(2.5)] == [(pytest.approx(2.35), 2, 0), (2.5, 1, 0)]
        assert network.next_event_time() == float("inf")
        assert (network.messages_sent, network.messages_delivered) == (2, 2)

    def test_poll_advances_time_to_next_event_or_by_timeout(self) -> None:
        network = SimulatedNetwork(2, Random(1), lambda _: 0.25)
        here, there = network.endpoint(0), network.endpoint(1)
        assert there.poll(0.5) == []
        assert network.now == 0.5
        here.send(1, SubtreeReadyMessage())
        assert there.poll(0.0) == []
        assert there.poll(10.0) == [(0, SubtreeReadyMessage())]
        assert network.now == 0.75

    def test_completed_ticket_ends_poll(self) -> None:
        network = SimulatedNetwork(2, Random(1), lambda _: 1.0)
        here, there = network.endpoint(0), network.endpoint(1)
        wake = SimulatedWake(lambda: network.now)
        wake.submit(0.5)
        assert here.poll(10.0, wake=wake) == []
        assert network.now == 0.5
        assert here.poll(10.0, wake=wake) == []  # it is readable until it is cleared
        assert network.now == 0.5
        wake.clear()
        there.send(0, SubtreeReadyMessage())
        assert here.poll(10.0, wake=wake) == [(1, SubtreeReadyMessage())]
        assert network.now == 1.5

    def test_cancelled_ticket_ends_after_its_started_part(self) -> None:
        network = SimulatedNetwork(1, Random(1), lambda _: 1.0)
        wake = SimulatedWake(lambda: network.now)
        long, short = wake.submit(5.0, rest=0.5), wake.submit(0.25, rest=0.5)
        long.cancel()
        short.cancel()
        assert (long.was_cut_short, short.was_cut_short) == (True, False)
        network.advance(0.25)
        assert (long.is_done, short.is_done) == (False, True)
        long.cancel()
        network.advance(0.25)
        assert long.is_done

    def test_sending_into_the_past_and_negative_latency_are_refused(self) -> None:
        network = SimulatedNetwork(2, Random(1), lambda _: 0.0)
        list(network.deliver(5.0))
        with pytest.raises(InvariantBroken):
            network.send(0, 1, SubtreeReadyMessage(), now=4.0)
        with pytest.raises(InvariantBroken):
            SimulatedNetwork(2, Random(1), lambda _: -0.1).send(0, 1, SubtreeReadyMessage(), now=0.0)

    def test_network_of_16384_ranks_is_simulated_in_seconds(self) -> None:
        # With anything of size^2 = 268 million entries this would take minutes and gigabytes.
        size, began = 16_384, time.process_time()
        network = SimulatedNetwork(size, Random(1), lambda random: random.expovariate(1e5))
        for rank in range(size):
            network.send(rank, (rank + 1) % size, CreditReturnMessage(3, rank), now=0.0)
        for now, rank, _, message in network.deliver(float("inf")):
            assert isinstance(message, CreditReturnMessage)
            if message.phase:
                network.send(rank, (rank + 77) % size, CreditReturnMessage(message.phase - 1, rank), now)
        assert network.messages_delivered == 4 * size
        assert time.process_time() - began < 10.0
