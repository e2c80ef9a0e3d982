"""The rules that a resume rests on, each of which can be switched off, in pcopy itself, to show that it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

from pcopy.checkpoint import base, framing, journal, resume
from pcopy.checkpoint.join import RemainingTasksFinder
from pcopy.checkpoint.record import pack_task_id
from pcopy.engine.commit import CheckpointSchedule
from pcopy.engine.messages import CounterSums, Message
from pcopy.engine.node import RankStateMachine
from pcopy.engine.task import Task, TaskId
from pcopy.fsio import durable
from pcopy.fsio.directories import PinnedDescriptors
from pcopy.fsio.temporary import TemporaryNameGenerator
from pcopy.jobs import directories, lifecycle
from pcopy.jobs.paths import resolve_sources_and_targets
from pcopy.launch import rank, tool
from pcopy.tasks.base import rank as surroundings
from pcopy.tasks.base.kind import KIND_BY_CODE, TaskKind
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tools import copy
from tests.recovery.datasets import SOURCE, TARGET
from tests.recovery.ranks import Change, patched


class Rules(NamedTuple):
    """True: the rule is kept. What each says is explained in docs/design/recovery.md."""

    new_ids: bool = True
    """1. Ids carry the run, so that none is used again."""

    spawned_as_told: bool = True
    """1. Nothing that was spawned is taken for the same as something else, because it has the same description."""

    markers: bool = True
    """2. Ranks cut together: who hears from a later epoch cuts first."""

    least_epoch: bool = True
    """2. Only epochs count that all ranks have on storage."""

    phase_commit: bool = True
    """3. A phase begins once the last one is on storage."""

    named_last: bool = True
    """4. Where what exists is kept, an item has its name only once it is whole, and a task on record gives it."""

    named_durable: bool = True
    """4. Names are given after a cut, even if it is the first."""

    fixed_roots: bool = True
    """5. The roots are those that the job resolved when it began."""

    run_in_names: bool = True
    """6. Names of temporary files carry the run."""

    stale_removed: bool = True
    """6. Temporary files of earlier runs are removed."""

    sync_first: bool = True
    """A record is written after what it tells of is on storage."""

    notes_held: bool = True
    """What is only in a rank's memory is not done."""

    keys_kept: bool = True
    """What belongs together is addressed by a key that no run changes, not by the rank that an earlier run took."""

    records_synced: bool = True
    """A record counts once it is on storage."""

    names_synced: bool = True
    """So are the names of the job's own files, each before anything relies on it."""

    synced_at_end: bool = True
    """A job that has ended has brought everything to storage."""

    pinned: bool = True
    """A directory that a task has opened is not closed while the task waits."""


ALL = Rules()


@contextmanager
def broken(rules: Rules) -> Iterator[None]:
    """Switches off what is not to be kept."""
    off = [rule for rule, kept in rules._asdict().items() if not kept]
    with patched([change for rule in off for change in _CHANGES.get(rule, _none)()]):
        yield


def _none() -> list[Change]:
    """What ``jobs`` does itself."""
    return []


def _old_ids() -> list[Change]:
    return [
        (rank, "RankStateMachine", lambda *arguments, run, **options: RankStateMachine(*arguments, run=1, **options))
    ]


class _ByDescription(RemainingTasksFinder):
    """A task that is described as one that is done is done."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._described: dict[bytes, Task] = {}
        self._over: set[bytes] = set()

    def add_spawned_task(self, task: Task) -> None:
        self._described[pack_task_id(task.id)] = task

    def add_done_task_id(self, packed: bytes) -> None:
        self._over.add(packed)

    def remaining_tasks(self) -> Iterator[Task]:
        done = {(task.phase, task.payload) for packed, task in self._described.items() if packed in self._over}
        left = {
            (task.phase, task.payload): task for packed, task in self._described.items() if packed not in self._over
        }
        yield from (task for key, task in left.items() if key not in done)


def _no_markers() -> list[Change]:
    make = RankStateMachine.__init__

    def made(node: RankStateMachine, *arguments: Any, **options: Any) -> None:
        make(node, *arguments, **options)
        _cut_alone(node, options["limits"].checkpoint_cut_interval, options["random"])

    return [(RankStateMachine, "__init__", made)]


def _cut_alone(node: RankStateMachine, interval: float, random: Random) -> None:
    """Each rank cuts by its own clock, and nobody is told."""
    outbox = node.outbox
    next_cut = [0.0]

    def send_all(messages: Iterable[tuple[int, Message]]) -> None:
        outbox.extend(messages)

    def is_due(rank: int, report: CounterSums | None, now: float) -> bool:
        if now < next_cut[0]:
            return False
        next_cut[0] = now + interval * (0.5 + random.random())
        return True

    _put(node, "_send", lambda destination, message: outbox.append((destination, message)))
    _put(node, "_send_all", send_all)
    _put(node.cut_schedule, "advance_to_due_checkpoint", is_due)


def _put(where: object, name: str, value: Any) -> None:
    """In the place of what the object has by this name; raises ``AttributeError`` if it has nothing."""
    getattr(where, name)
    setattr(where, name, value)


def _named_at_once() -> list[Change]:
    def make(*arguments: Any, **options: Any) -> Rank:
        made = Rank(*arguments, **options)
        _put(made, "names_late", False)
        return made

    return [(rank, "Rank", make)]


def _resolved_anew() -> list[Change]:
    as_stored = lifecycle.recorded_roots_and_options

    def anew(resumed: Any) -> Any:
        return resolve_sources_and_targets((SOURCE,), TARGET, False, follow=False), *as_stored(resumed)[1:]

    return [(lifecycle, "recorded_roots_and_options", anew), (copy, "recorded_roots_and_options", anew)]


def _not_held() -> list[Change]:
    def hold(result: TaskResult) -> None:
        pass

    def complete(result: TaskResult, tasks: Iterable[TaskId]) -> None:
        pass

    return [(TaskResult, "defer_task_completion", hold), (TaskResult, "complete_deferred_tasks", complete)]


def _by_rank() -> list[Change]:
    """Of all kinds that say themselves who owns them in the next run."""
    kinds: tuple[type[TaskKind], ...] = (TaskKind, *KIND_BY_CODE.values())
    return [
        (kind, "with_reassigned_owner", _readdressed(kind.with_reassigned_owner))
        for kind in kinds
        if "with_reassigned_owner" in vars(kind)
    ]


def _readdressed(by_key: Callable[[Any, Task, int], Task | None]) -> Callable[[Any, Task, int], Task | None]:
    def readdress(value: TaskKind, task: Task, ranks: int) -> Task | None:
        made = by_key(value, task, ranks)
        return made if made is None or task.owner < 0 else made._replace(owner=task.owner % ranks)

    return readdress


def _unsynced_records() -> list[Change]:
    def sync(descriptor: int) -> None:
        pass

    return [(module, "sync_file_if_supported", sync) for module in (base, framing)]


def _unsynced_names() -> list[Change]:
    def sync(descriptor: int) -> None:
        pass

    return [(module, "sync_directory", sync) for module in (durable, directories)]


def _unpinned() -> list[Change]:
    def ignore(pins: PinnedDescriptors, descriptor: int) -> None:
        pass

    return [(PinnedDescriptors, name, ignore) for name in ("pin_descriptor", "unpin_descriptor")]


def _without_run(job: str, run: int, rank: int, *, hidden: bool) -> TemporaryNameGenerator:
    return TemporaryNameGenerator(job, 1, rank, hidden=hidden)


_CHANGES: dict[str, Callable[[], list[Change]]] = {
    "new_ids": _old_ids,
    "spawned_as_told": lambda: [(resume, "RemainingTasksFinder", _ByDescription)],
    "markers": _no_markers,
    "least_epoch": lambda: [(resume, "min", max)],
    "phase_commit": lambda: [(CheckpointSchedule, "make_phase_durable", lambda *_, **__: True)],
    "named_last": _named_at_once,
    "named_durable": lambda: [(tool.Tool, "durable_before", ())],
    "fixed_roots": _resolved_anew,
    "run_in_names": lambda: [(surroundings, "TemporaryNameGenerator", _without_run)],
    "stale_removed": lambda: [(Rank, "remove_leftover_files", lambda *_: None)],
    "sync_first": lambda: [(journal.ThreadedTaskJournal, "_sync_data", lambda _: True)],
    "notes_held": _not_held,
    "keys_kept": _by_rank,
    "records_synced": _unsynced_records,
    "names_synced": _unsynced_names,
    "pinned": _unpinned,
}
