"""What every transport has to do: test programs that each rank of a transport runs, and what runs them.

A program is a generator over one rank's transport and yields wherever another rank may have its turn: real ranks just
go on, simulated ones take turns in one process. It judges nothing. It returns what it saw, as JSON values, and the
tests compare that with what they know without asking the transport.

``python -m tests.engine.transport_conformance PROGRAM DIRECTORY`` runs one rank under an MPI launcher.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from bench.simulation.network import SimulatedNetwork
from pcopy.engine.messages import (
    AddressedTasksMessage,
    CloseTransportMessage,
    CounterQuery,
    CreditReturnMessage,
    Message,
    StartPhaseMessage,
    SubtreeReadyMessage,
    TaskReply,
)
from pcopy.engine.task import Task
from pcopy.engine.ticket import WakeDescriptor
from pcopy.engine.transport import MessageTransport
from pcopy.errors import InvariantBroken, PeerLost

Program = Callable[[MessageTransport], Generator[None, None, Any]]

LONGEST = 30.0
"""Seconds after which a program counts as hung."""
ORDERED = 150
FLOODED = 4000
LARGE = 20 << 20
IDLE = 0.5
"""Seconds for which the idle program's ranks have nothing to do."""


def payload(seed: int, size: int) -> bytes:
    """Bytes in which no piece can be lost, doubled or moved without changing their digest."""
    return Random(seed).randbytes(size)


def work(seed: int, size: int) -> AddressedTasksMessage:
    return AddressedTasksMessage(1, (Task((1, seed, 0), 1, payload(seed, size), size),))


def digest(message: Message) -> str:
    assert isinstance(message, AddressedTasksMessage)
    return hashlib.sha256(message.tasks[0].payload).hexdigest()


def numbers(heard: list[tuple[int, Message]], size: int) -> list[list[int]]:
    """By sender, the first fields of its messages in the order of their arrival."""
    found: list[list[int]] = [[] for _ in range(size)]
    for sender, message in heard:
        assert isinstance(message, CreditReturnMessage | AddressedTasksMessage)
        found[sender].append(message[0])
    return found


class Seat:
    """A program's hold of its transport: keeps what came early, and parts from the others in order."""

    def __init__(self, transport: MessageTransport) -> None:
        self.transport = transport
        self.others = [rank for rank in range(transport.size) if rank != transport.rank]
        self.parted: set[int] = set()
        self.waiting: list[tuple[int, Message]] = []

    def look(self, timeout: float, wake: WakeDescriptor | None = None) -> None:
        for sender, message in self.transport.poll(timeout, wake=wake):
            if isinstance(message, CloseTransportMessage):
                self.parted.add(sender)
                self.transport.expect_end_of_connection(sender)
            else:
                self.waiting.append((sender, message))

    def receive(self, count: int, timeout: float = 0.05) -> Generator[None, None, list[tuple[int, Message]]]:
        """The next ``count`` messages."""
        while len(self.waiting) < count:
            self.look(timeout)
            yield
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def part(self, without: tuple[int, ...] = ()) -> Generator[None, None, int]:
        """Says goodbye and waits until everybody has; gives the number of messages that nobody asked for."""
        others = [rank for rank in self.others if rank not in without]
        for other in others:
            self.transport.send(other, CloseTransportMessage())
        while self.transport.has_unsent_data or not self.parted.issuperset(others):
            self.look(0.05)
            yield
        return len(self.waiting)


def sizes(transport: MessageTransport) -> Generator[None, None, Any]:
    """Check rank number, size, senders of messages, and refused destinations."""
    seat = Seat(transport)
    refused = []
    for destination in (transport.rank, transport.size, -1):
        try:
            transport.send(destination, StartPhaseMessage(0))
        except InvariantBroken:
            refused.append(destination)
    for other in seat.others:
        transport.send(other, CreditReturnMessage(transport.rank, other))
    heard = yield from seat.receive(len(seat.others))
    surplus = yield from seat.part()
    return [transport.rank, transport.size, sorted((sender, *message) for sender, message in heard), surplus, refused]


def order(transport: MessageTransport) -> Generator[None, None, Any]:
    """Numbered messages between all pairs, long ones among short ones, while others arrive."""
    seat = Seat(transport)
    for number in range(ORDERED):
        for other in seat.others:
            long = number % 30 == 7
            transport.send(
                other,
                AddressedTasksMessage(number, work(number, 300_000).tasks)
                if long
                else CreditReturnMessage(number, other),
            )
        if number % 10 == 0:
            seat.look(0.0)
            yield
    heard = yield from seat.receive(ORDERED * len(seat.others))
    surplus = yield from seat.part()
    return [numbers(heard, transport.size), surplus]


def extremes(transport: MessageTransport) -> Generator[None, None, Any]:
    """The smallest messages and one of 20 MiB, all ranks at once around a ring."""
    seat = Seat(transport)
    after = (transport.rank + 1) % transport.size
    for message in (
        SubtreeReadyMessage(),
        TaskReply(0, 0, ()),
        work(transport.rank, LARGE),
        CounterQuery(0, ()),
        AddressedTasksMessage(0, ()),
        work(99, 0),
    ):
        transport.send(after, message)
    heard = yield from seat.receive(6)
    surplus = yield from seat.part()
    kinds = [type(message).__name__ for _, message in heard]
    return [sorted({sender for sender, _ in heard}), kinds, digest(heard[2][1]), digest(heard[5][1]), surplus]


def flood(transport: MessageTransport) -> Generator[None, None, Any]:
    """Many small messages between all pairs, sent by everybody before anybody receives."""
    seat = Seat(transport)
    for number in range(FLOODED):
        for other in seat.others:
            transport.send(other, CreditReturnMessage(number, 0))
    heard = yield from seat.receive(FLOODED * len(seat.others))
    surplus = yield from seat.part()
    return [numbers(heard, transport.size), surplus]


def idle(transport: MessageTransport) -> Generator[None, None, Any]:
    """Seconds that rank 0's poll took without traffic; seconds of processor time that each rank took meanwhile."""
    seat = Seat(transport)
    began, used = time.monotonic(), time.process_time()
    if transport.rank == 0:
        found = transport.poll(IDLE)
        elapsed = time.monotonic() - began
        for other in seat.others:
            transport.send(other, SubtreeReadyMessage())
    else:
        found = []
        yield from seat.receive(1, timeout=10 * IDLE)
        elapsed = time.monotonic() - began
    used = time.process_time() - used
    yield from seat.part()
    return [len(found), elapsed, used]


def prompt(transport: MessageTransport) -> Generator[None, None, Any]:
    """Seconds until a message wakes rank 0, whose poll may take far longer than the test."""
    seat = Seat(transport)
    began = time.monotonic()
    if transport.rank == 0:
        yield from seat.receive(len(seat.others), timeout=10 * LONGEST)
    else:
        transport.poll(0.1)
        transport.send(0, SubtreeReadyMessage())
    elapsed = time.monotonic() - began
    yield from seat.part()
    return elapsed


class RealWake:
    """Fills ``pcopy.engine.ticket.WakeDescriptor`` with a pipe."""

    def __init__(self) -> None:
        self._descriptor, self._other_end = os.pipe()
        os.set_blocking(self._descriptor, False)

    def fileno(self) -> int:
        return self._descriptor

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._descriptor, 1 << 12)

    def set(self) -> None:
        os.write(self._other_end, b"x")


def woken(transport: MessageTransport) -> Generator[None, None, Any]:
    """At rank 0: seconds of polls that a wake ends later, has ended before, does not end, and of one without it."""
    seat = Seat(transport)
    wake, found = RealWake(), 0
    elapsed: list[float] = []
    if transport.rank == 0:
        for listens, clears in ((True, False), (True, False), (False, True), (True, True)):
            began = time.monotonic()
            if not elapsed:
                threading.Timer(0.2, wake.set).start()
            found += len(transport.poll(IDLE if elapsed[1:] else LONGEST / 2, wake=wake if listens else None))
            elapsed.append(time.monotonic() - began)
            if clears:
                wake.clear()
        wake.set()
        for other in seat.others:
            transport.send(other, SubtreeReadyMessage())
        while not seat.waiting:  # what arrives is handed out however often it is woken
            seat.look(1.0, wake)
        yield from seat.receive(1)
    else:
        yield from seat.receive(1, timeout=LONGEST)
        transport.send(0, SubtreeReadyMessage())
    yield from seat.part()
    return [found, elapsed]


def handover(transport: MessageTransport) -> Generator[None, None, Any]:
    """Rank 0 closes right after sending long messages, and never reads what was sent to it; the others do so later."""
    seat = Seat(transport)
    for other in seat.others:
        transport.expect_end_of_connection(other)
    if transport.rank == 0:
        for other in seat.others:
            transport.send(other, work(other, LARGE // 4))
        transport.close()
        return None
    transport.send(0, work(0, LARGE // 20))
    while not (heard := [message for sender, message in seat.waiting if sender == 0]):
        seat.look(0.05)
        yield
    for other in seat.others[1:]:
        transport.send(other, work(0, LARGE // 4))
    transport.close()
    return [digest(message) for message in heard]


def lost(transport: MessageTransport) -> Generator[None, None, Any]:
    """The last rank closes without a word after three messages, the first of them long."""
    seat = Seat(transport)
    victim = transport.size - 1
    if transport.rank == victim:
        for other in seat.others:
            for number in range(3):
                transport.send(other, work(number, LARGE // 20 if number == 0 else 10))
        transport.close()
        return None
    error = None
    while error is None:
        try:
            seat.look(0.05)
        except PeerLost as caught:
            error = caught
        yield
    try:
        transport.send(victim, SubtreeReadyMessage())
        refused = None
    except PeerLost as caught:
        refused = caught.rank
    yield from seat.part(without=(victim,))
    return [[digest(message) for _, message in seat.waiting], error.rank, refused]


def forgiven(transport: MessageTransport) -> Generator[None, None, Any]:
    """The last rank closes after one message, as everybody expects; sending to it is no error then."""
    seat = Seat(transport)
    victim = transport.size - 1
    if transport.rank == victim:
        for other in seat.others:
            transport.send(other, SubtreeReadyMessage())
        transport.close()
        return None
    transport.expect_end_of_connection(victim)
    yield from seat.receive(1)
    for _ in range(10):
        seat.look(0.01)
        transport.send(victim, SubtreeReadyMessage())
        yield
    yield from seat.part(without=(victim,))
    return len(seat.waiting)


def collectives(transport: Any) -> Generator[None, None, Any]:
    """MPI's helpers for the time before the job: values of different lengths."""
    mine = "x" * (50_000 * transport.rank)
    reported = transport.broadcast(["nonce", 7, None] if transport.rank == 0 else "not this")
    gathered = transport.gather((transport.rank, mine))
    yield from Seat(transport).part()
    return [reported, [[rank, len(text), set(text) <= {"x"}] for rank, text in gathered]]


def abort(transport: Any) -> Generator[None, None, Any]:
    """The last rank aborts; the others would wait for ever."""
    if transport.rank == transport.size - 1:
        transport.abort_all_ranks(70)
    while True:
        transport.poll(1.0)
        yield


def drive(program: Program, transport: MessageTransport) -> Any:
    """Runs ``program`` on one rank and closes its transport; raises ``TimeoutError`` if it never ends."""
    steps = program(transport)
    limit = time.monotonic() + LONGEST
    while time.monotonic() < limit:
        try:
            next(steps)
        except StopIteration as end:
            transport.close()
            return end.value
    raise TimeoutError(f"rank {transport.rank} of {program.__name__} never ends")


def run_simulated(program: Program, size: int, seed: int = 1) -> list[Any]:
    """The ranks' results; the ranks take turns in an order that the seed decides."""
    random = Random(seed)
    network = SimulatedNetwork(size, random, lambda source: source.expovariate(1000.0), wire=True)
    running = {rank: (network.endpoint(rank), program) for rank in range(size)}
    steps = {rank: started(end) for rank, (end, started) in running.items()}
    results: list[Any] = [None] * size
    limit = time.monotonic() + LONGEST
    while steps:
        rank = random.choice(sorted(steps))
        try:
            next(steps[rank])
        except StopIteration as end:
            running[rank][0].close()
            results[rank] = json.loads(json.dumps(end.value))
            del steps[rank]
        if time.monotonic() > limit:
            raise TimeoutError(f"ranks {sorted(steps)} of {program.__name__} never end")
    return results


def run_local(program: Program, size: int, directory: Path) -> list[Any]:
    """The ranks' results; the caller's process is rank 0, and the others are gone when this returns."""
    from pcopy.engine.transports.local import fork_ranks

    transport = fork_ranks(size)
    if transport.rank != 0:
        leave(program, transport, directory)
    try:
        results = [drive(program, transport)]
        transport.children.reap_children(LONGEST)
    finally:
        transport.children.kill()
        transport.close()
    for rank in range(1, size):
        results.append(json.loads((directory / f"{rank}.json").read_text()))
    return [json.loads(json.dumps(result)) for result in results]


def leave(program: Program, transport: MessageTransport, directory: Path) -> None:
    """Runs a child's part, and ends its process without returning into its parent's frames."""
    try:
        result = drive(program, transport)
        (directory / f"{transport.rank}.json").write_text(json.dumps(result))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main(name: str, directory: str) -> None:
    from pcopy.engine.transports.mpi import initialise_mpi

    transport = initialise_mpi()
    try:
        result = drive(globals()[name], transport)
    except BaseException:
        traceback.print_exc()
        transport.abort_all_ranks(70)
        raise
    transport.finalise_mpi()
    (Path(directory) / f"{transport.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
