"""The simulation as a tool: it is repeatable, its jobs are what they say, and the engine meets its goals in it."""

from __future__ import annotations

import io
from pathlib import Path
from random import Random
from statistics import mean
from xml.etree import ElementTree

import pytest

from bench import simulate
from bench.simulation.cluster import Cluster, Machine, SimulationResult
from bench.simulation.latencies import LATENCIES
from bench.simulation.plot import Panel, draw
from bench.simulation.workloads import SHAPES, Workload, WorkloadParameters
from pcopy.engine.limits import EngineLimits
from pcopy.engine.task import ANY_RANK, TASK_OVERHEAD_BYTES, NewTask
from pcopy.errors import InvariantBroken

LATENCY = 1e-4
HOP = LATENCY + Machine(1, LATENCIES["fixed"](LATENCY)).handling


def table(*options: str) -> list[dict[str, str]]:
    """What the tool prints, line by line, each by the names of the columns."""
    out = io.StringIO()
    assert simulate.main(options, out) == 0
    names, dashes, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in out.getvalue().splitlines())
    assert set("".join(dashes)) <= set("-:")
    return [dict(zip(names, row, strict=True)) for row in rows]


def run(shape: str, size: int, tasks: int, **machine: float) -> SimulationResult:
    job = SHAPES[shape](WorkloadParameters(tasks * size, 0.02), Random(1))
    slow = int(machine.pop("slow", 0))
    return Cluster(job, Machine(size, LATENCIES["uniform"](LATENCY), slow=slow, **machine), 1).run()


def play(job: Workload) -> list[NewTask]:
    """All tasks in some order, run by one."""
    waiting, seen = job.first_tasks_of_phase(), []
    while waiting:
        task = waiting.pop()
        seen.append(task)
        waiting += job.finish_task(task.payload)
    return seen


# The jobs.


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tasks", [1, 2, 7, 100, 3000])
def test_simulated_workload_runs_every_task_once(shape: str, tasks: int) -> None:
    job = SHAPES[shape](WorkloadParameters(tasks, 0.5, payload_size=40), Random(3))
    seen = play(job)
    assert len({task.payload for task in seen}) == len(seen) == job.tasks
    assert job.unfinished == 0
    assert {len(task.payload) for task in seen} == {40}
    with pytest.raises(InvariantBroken):
        job.finish_task(seen[0].payload)


@pytest.mark.parametrize("shape", ["tree", "flat"])
def test_trees_have_requested_mean_duration(shape: str) -> None:
    job = SHAPES[shape](WorkloadParameters(5000, 0.5), Random(3))
    assert 4500 < job.tasks <= 5000
    assert mean(job.seconds) == pytest.approx(0.5)


def test_durations_and_directory_sizes_of_tree_are_heavy_tailed() -> None:
    job = SHAPES["tree"](WorkloadParameters(50_000, 1.0), Random(3))
    assert max(job.seconds) > 15
    assert sorted(job.seconds)[job.tasks // 2] < 0.6
    children = [
        len(job.finish_task(task.payload)) for task in play(SHAPES["tree"](WorkloadParameters(50_000, 1.0), Random(3)))
    ]
    assert max(children) > 300
    assert sorted(children)[job.tasks // 2] == 0


def test_flat_directory_is_listed_by_one_task() -> None:
    job = SHAPES["flat"](WorkloadParameters(900, 1.0), Random(3))
    spawned = job.finish_task(job.first_tasks_of_phase()[0].payload)
    assert len(spawned) == 100
    assert all(task.may_find_work for task in spawned)
    batches = [len(job.finish_task(task.payload)) for task in spawned]
    assert batches[:-1] == [8] * 99
    assert 1 <= batches[-1] <= 8


def test_last_note_of_file_chunks_spawns_final_task() -> None:
    job = SHAPES["file"](WorkloadParameters(11, 1.0), Random(3))
    chunks = job.finish_task(job.first_tasks_of_phase()[0].payload)
    assert [task.owner for task in chunks] == [ANY_RANK] * 10
    notes = [note for chunk in chunks for note in job.finish_task(chunk.payload)]
    assert [task.owner for task in notes] == [0] * 10
    spawned = [job.finish_task(note.payload) for note in reversed(notes)]
    assert [len(tasks) for tasks in spawned] == [0] * 9 + [1]
    assert job.finish_task(spawned[-1][0].payload) == []
    assert job.unfinished == 0


@pytest.mark.parametrize("name", LATENCIES)
def test_latencies_have_requested_mean(name: str) -> None:
    random = Random(1)
    latency = LATENCIES[name](2.0)
    drawn = [latency(random) for _ in range(100_000)]
    assert mean(drawn) == pytest.approx(2.0, rel=0.1)
    assert min(drawn) > 0.5


# The runs.


def test_same_seed_gives_same_table() -> None:
    options = ("--ranks", "1,2,24", "--shape", "tree,flat,file", "--tasks", "40", "--spread", "pareto", "--slow", "0.1")
    first = table(*options)
    assert first == table(*options)
    assert first != table(*options, "--seed", "2")
    assert [row["ranks"] for row in first] == ["1", "2", "24"] * 3


def test_one_rank_is_busy_all_the_time() -> None:
    measured = run("tree", 1, 300)
    assert measured.stopped == measured.last_end == pytest.approx(measured.work)
    assert (measured.messages, measured.steals, measured.refused) == (0, 0, 0)


def test_efficiency_accounts_for_slow_ranks() -> None:
    measured = run("file", 10, 300, slow=5)
    assert measured.speed == pytest.approx(5.5)
    assert measured.efficiency == pytest.approx(measured.work / (5.5 * measured.stopped))
    assert measured.efficiency > 0.9


def test_long_task_gives_away_other_tasks_between_its_slices() -> None:
    """Nine chunks of 10 s are at rank 0, which runs one of them: the others are with the rest long before its end."""
    job = SHAPES["file"](WorkloadParameters(11, 10.0), Random(1))
    measured = Cluster(job, Machine(10, LATENCIES["fixed"](LATENCY)), 1).run()
    assert measured.last_end < 10.0 + 12.5 + 10.0 + 1.0


def test_message_and_time_counters_are_consistent() -> None:
    measured = run("tree", 16, 50)
    assert measured.messages > 2 * (measured.steals + measured.refused)
    assert measured.most_messages * 16 >= measured.messages
    assert measured.last_end <= measured.detected <= measured.counted <= measured.stopped


# The goals, at a reduced size.


def test_efficiency_of_tree_is_above_95_percent() -> None:
    measured = run("tree", 64, 1000)
    assert measured.efficiency > 0.95


def test_slow_ranks_cost_at_most_their_last_task() -> None:
    measured = run("tree", 64, 500, slow=3)
    job = SHAPES["tree"](WorkloadParameters(64 * 500, 0.02), Random(1))
    assert measured.stopped < measured.work / measured.speed / 0.95 + 10 * max(job.seconds)


@pytest.mark.parametrize("size", [16, 64, 128])
def test_termination_is_detected_within_20_latencies(size: int) -> None:
    measured = run("file", size, 30)
    assert measured.detected - measured.last_end < 20 * HOP


def test_detection_time_of_ring_grows_with_ranks() -> None:
    few, many = table("--ranks", "8,64", "--termination", "ring", "--tasks", "20")
    assert 5 < float(few["detected"]) < float(many["detected"])
    assert float(many["detected"]) > 64


@pytest.mark.parametrize("shape", ["tree", "flat"])
def test_simulated_queue_stays_within_memory_limit(shape: str) -> None:
    budget = 20_000
    job = SHAPES[shape](WorkloadParameters(4000, 0.02, payload_size=100), Random(1))
    limits = EngineLimits(queue_memory_bytes=budget, scan_ahead_bytes=budget // 2)
    measured = Cluster(job, Machine(4, LATENCIES["uniform"](LATENCY)), 1, limits).run()
    frame = 128 * (TASK_OVERHEAD_BYTES + 100)  # what comes back from the spool at once
    assert measured.most_bytes <= budget + max(frame, TASK_OVERHEAD_BYTES + 100)
    assert measured.most_tasks * (TASK_OVERHEAD_BYTES + 100) > (budget if shape == "flat" else 0)


# What it draws and refuses.


def test_plot_is_svg_with_all_points(tmp_path: Path) -> None:
    file = tmp_path / "plot.svg"
    table("--ranks", "1,4,16", "--shape", "tree,file", "--tasks", "10", "--svg", str(file))
    root = ElementTree.fromstring(file.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == 2 * 2 * 3
    assert file.stat().st_size < 20_000


def test_plot_clips_points_to_axes_and_escapes_names() -> None:
    text = draw([Panel("a < b", {"x & y": [(1, 0.1), (1, 1e9)]}, (1, 10, 100), True)])
    heights = [float(circle.get("cy", "nan")) for circle in ElementTree.fromstring(text).iter() if circle.get("cy")]
    assert heights == [220.0, 30.0]


@pytest.mark.parametrize(
    "option", [("--ranks", "0"), ("--ranks", "20000"), ("--shape", "round"), ("--termination", "x")]
)
def test_invalid_simulation_option_is_refused(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        simulate.main(option)
    assert "from" in capsys.readouterr().err
