"""Properties of whole jobs, whatever the tasks, the ranks, the latencies and the moment of an interruption.

The oracle is the plan (``tests/engine/simulation.py``), which also asserts while a job runs: each task at most once, on
its owner, in its phase; no phase that ends early; exact counters at the end of each; messages within their limit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from random import Random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcopy.engine import backlog
from pcopy.engine.limits import EngineLimits
from pcopy.engine.safra import TERMINATION_DETECTORS
from pcopy.engine.states import RankState
from pcopy.engine.task import ANY_RANK, TASK_OVERHEAD_BYTES
from pcopy.errors import EXIT_INTERNAL
from tests.engine.plans import Interruption, Network, Plan, Planned
from tests.engine.simulation import SMALL, Simulation

FRAME_TASKS = 3


@pytest.fixture(autouse=True, scope="module")
def small_frames() -> Iterator[None]:
    with mock.patch.object(backlog, "MAX_TASKS_PER_FRAME", FRAME_TASKS):
        yield


@st.composite
def plans(draw: st.DrawFn, size: int) -> Plan:
    """Trees of tasks: a parent has a lower number, its children run in its phase or a later one."""
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 7),  # whose child: the one before, the one before that, … or the director's
                st.sampled_from((0, 0, 0, 0, 1, 2)),  # how many phases after its parent
                st.one_of(st.just(ANY_RANK), st.integers(0, size - 1)),
                st.integers(1, 100),
                st.booleans(),
                st.sampled_from((0, 0, 10, 400, 900)),
                st.integers(1, 3),
                st.sampled_from((0.0, 0.001, 0.03)),
                st.sampled_from((1, 1, 1, 3)),
            ),
            max_size=50,
        )
    )
    plan: list[Planned] = []
    for number, (back, later, *rest) in enumerate(rows):
        parent = number - 1 - back if back < 7 and back < number else -1
        phase = later + (plan[parent].phase if parent >= 0 else 0)
        plan.append(Planned(parent, phase, *rest))
    return tuple(plan)


@st.composite
def simulations(draw: st.DrawFn, kind: str = "") -> Simulation:
    size = draw(st.one_of(st.integers(1, 8), st.integers(9, 64)))
    job = partial(
        Simulation,
        draw(plans(size)),
        size,
        draw(st.integers(0, 1 << 32)),
        limits=SMALL._replace(
            queue_memory_bytes=draw(st.sampled_from((0, 500, 5000))),
            scan_ahead_bytes=draw(st.sampled_from((0, 1000, 1 << 20))),
            fan_out=draw(st.sampled_from((1, 2, 8))),
            progress_interval=draw(st.sampled_from((0.002, 0.02, 0.5))),
        ),
        network=draw(st.sampled_from((Network(), Network(0.0, 0.0), Network(0.0, 0.01), Network(spike=10)))),
        slowest=draw(st.sampled_from((1.0, 10.0))),
        termination=draw(st.sampled_from(TERMINATION_DETECTORS)),
    )
    if not kind:
        return job()
    events = max(1, job().run().events)  # up to its interruption a job repeats itself
    event = draw(st.one_of(st.integers(1, events), st.integers(max(1, events - 3 * size), events)))
    return job(interruption=Interruption(kind, event, draw(st.integers(0, size - 1))))


def check_complete(job: Simulation) -> None:
    """The job has done all of its plan and has ended in order on all ranks."""
    assert set(job.done) == set(range(len(job.plan)))
    assert {node.state for node in job.nodes} == {RankState.CLOSED}
    assert {node.status for node in job.nodes} == {len(job.plan)}
    assert [phase for phase, *_ in job.phase_ends] == sorted({0, *(planned.phase for planned in job.plan)})
    assert tuple(map(sum, zip(*(node.counters for node in job.nodes), strict=True))) == job.true_totals()
    assert not any(node.dropped_count for node in job.nodes)
    check_queues(job)


def check_queues(job: Simulation) -> None:
    """What was in memory stayed within the bound: the limit, a task that passes it, a frame, and notes."""
    largest = max((TASK_OVERHEAD_BYTES + 6 + planned.padding for planned in job.plan), default=0)
    for rank in job.ranks:
        assert (
            rank.node.queue.peak_bytes <= job.limits.queue_memory_bytes + (1 + FRAME_TASKS) * largest + rank.notes_bytes
        )


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(simulations())
def test_every_job_completes_all_tasks(job: Simulation) -> None:
    check_complete(job.run())


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(simulations("halt"))
def test_job_halted_at_any_event_ends_in_order(job: Simulation) -> None:
    check_halted(job)


def check_halted(job: Simulation) -> None:
    """However early, it ends in order; what ran had been called for, and no note that was called for is lost."""
    job.run()
    assert {node.state for node in job.nodes} == {RankState.CLOSED}
    halted = {node.halt_reason for node in job.nodes}
    assert len(halted) == 1
    if halted == {None}:
        assert job.interrupted_in is not RankState.WORKING or job.phase_ends[-1][0] == max(
            (planned.phase for planned in job.plan), default=0
        )
        check_complete(job)
        return
    assert {node.status for node in job.nodes} == {len(job.done) + 1000}
    check_queues(job)
    reached = max(node.phase for node in job.nodes)
    for number, planned in enumerate(job.plan):
        if planned.parent >= 0:
            assert number not in job.done or planned.parent in job.done
            called = planned.parent in job.done and job.plan[planned.parent].phase == planned.phase
        else:
            called = planned.phase <= reached
        if called and planned.owner != ANY_RANK and planned.phase <= reached:
            assert number in job.done, "a note was lost"
    assert job.numbered == job.ended + sum(node.dropped_count for node in job.nodes)


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(simulations("abort"))
def test_job_aborted_at_any_event_ends_on_all_ranks(job: Simulation) -> None:
    check_aborted(job)


def check_aborted(job: Simulation) -> None:
    """All ranks know of it, unless they had received the order to close."""
    job.run()
    states = {node.state for node in job.nodes}
    if job.interrupted_in in (None, RankState.CLOSED):
        check_complete(job)
    elif job.interrupted_in is RankState.BARRIER:  # some may have received the order to close earlier
        assert states <= {RankState.CLOSED, RankState.ABORTED}
    else:
        assert states == {RankState.ABORTED}
        assert job.interruption is not None
        assert {node.abort_reason and node.abort_reason[:] for node in job.nodes} == {
            (job.interruption.rank, "Traceback of the test", EXIT_INTERNAL)
        }


NOTES: Plan = (
    Planned(-1, 0),
    *(Planned(0, 0, owner=rank, seconds=0.002) for rank in (6, 5, 0)),
    *(Planned(number, 0, owner=7 - number) for number in (1, 2, 3)),
    Planned(4, 0, slices=5),
    Planned(5, 0, owner=1),
    Planned(7, 1),
    Planned(8, 1, owner=6),
)
"""Notes that call for notes, some for their own rank, and tasks between them."""


@pytest.mark.parametrize("kind", ["halt", "abort"])
@pytest.mark.parametrize("rank", [0, 6])
def test_job_interrupted_at_every_event_ends_correctly(kind: str, rank: int) -> None:
    """One job, interrupted at each of its events, by the root and by a rank two levels below."""
    events = Simulation(NOTES, 7, 5).run().events
    assert events > 100
    for event in range(1, events + 1):
        job = Simulation(NOTES, 7, 5, interruption=Interruption(kind, event, rank))
        (check_halted if kind == "halt" else check_aborted)(job)


def grown(seed: int, count: int, size: int, phases: int) -> Plan:
    """A large tree: every fourth task is addressed, a tenth belongs to later phases, costs are heavy-tailed."""
    random = Random(seed)
    plan: list[Planned] = []
    for number in range(count):
        parent = int(random.triangular(-1, number - 1, number - 1)) if number else -1
        phase = plan[parent].phase if parent >= 0 else 0
        if phase < phases - 1 and random.random() < 0.1:
            phase += 1
        owner = random.randrange(size) if random.random() < 0.25 else ANY_RANK
        cost = int(random.paretovariate(1.0))
        seconds = min(0.0001 * cost, 0.1)
        expands, padding, items = random.random() < 0.3, random.randrange(200), random.choice((1, 1, 1, 5))
        plan.append(Planned(parent, phase, owner, cost, expands, padding, 2, seconds, items))
    return tuple(plan)


@pytest.mark.parametrize("termination", TERMINATION_DETECTORS)
@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_large_job_completes(size: int, termination: str) -> None:
    """It takes 3 to 6 s of virtual time. If ``tests/mutation`` drops a rule, ranks spin up to the limit."""
    plan = grown(size, 1500, size, 3)
    limits = SMALL._replace(message_bytes=5000)
    job = Simulation(plan, size, 11, limits=limits, slowest=10.0, termination=termination)
    check_complete(job.run(seconds=12.0))


@pytest.mark.parametrize("seed", range(1, 6))
def test_one_divisible_task_is_shared_by_all_ranks(seed: int) -> None:
    """What one rank has takes all of them little longer than their share, if it can be divided."""
    plan = (Planned(-1, 0, seconds=0.05, items=255, cost=1 << 20),)
    job = Simulation(plan, 16, seed, limits=EngineLimits(), whole=0.0).run()
    check_complete(job)
    assert job.divided > 20
    assert len(set(job.started.values())) > 12
    assert job.now < 8 * 0.05  # as often as 255 items can be halved


def test_large_job_completes_with_default_limits() -> None:
    check_complete(Simulation(grown(5, 1500, 16, 2), 16, 12, limits=EngineLimits()).run())


def test_equal_tasks_are_shared_evenly() -> None:
    """Equal tasks that one task spawns take all ranks little longer than their share."""
    equal = Planned(0, 0, cost=10, seconds=0.004, slices=3)
    job = Simulation((Planned(-1, 0, seconds=0.0), *(equal for _ in range(3200))), 16, 1, limits=EngineLimits()).run()
    check_complete(job)
    assert max(job.done.values()) < 1.1 * 3200 * 0.012 / 16


def test_termination_is_detected_soon_after_last_task() -> None:
    job = Simulation(grown(9, 600, 64, 1), 64, 2, limits=EngineLimits(), network=Network(0.001, 0.001)).run()
    assert job.phase_ends[0][2] - max(job.done.values()) < 20 * 0.001


def test_counters_are_awaited_when_latency_exceeds_interval() -> None:
    """A round trip that takes longer than the progress interval must not be repeated without end."""
    limits = SMALL._replace(progress_interval=0.01)
    job = Simulation((Planned(-1, 0), Planned(0, 1)), 30, 4, limits=limits, network=Network(0.1, 0.2)).run()
    check_complete(job)
    assert job.now < 30


@pytest.mark.parametrize("in_core", [0, 1500, 20_000])
def test_queue_memory_stays_within_limit(in_core: int) -> None:
    """A directory of 1000 entries on two ranks, of which one is slow to come."""
    plan = (Planned(-1, 0, seconds=0.0), *(Planned(0, 0, padding=number % 90) for number in range(1000)))
    job = Simulation(plan, 2, 3, limits=SMALL._replace(queue_memory_bytes=in_core), network=Network(0.01, 0.1)).run()
    check_complete(job)
    assert max(node.queue.peak_bytes for node in job.nodes) > in_core


def test_job_with_all_tasks_spooled_to_disk_completes() -> None:
    """A job whose every task goes through a spool on disk."""
    limits = SMALL._replace(queue_memory_bytes=0)
    job = Simulation(grown(3, 300, 4, 3), 4, 1, limits=limits, open_spool=tempfile.TemporaryFile).run()
    check_complete(job)
    assert job.spools
