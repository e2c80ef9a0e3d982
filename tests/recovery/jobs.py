"""A whole job, drawn from a seed: it is ended up to six times, resumed on other ranks, and in the end left alone.

At the end the destination must hold what the source says, and the counters what it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from pcopy.engine.limits import Limits
from pcopy.engine.task import Task
from tests.recovery.copying import COPY, LAST, NAME, Copier, address
from tests.recovery.datasets import Dataset, Path, draw, observe
from tests.recovery.files import Files, Names
from tests.recovery.rules import ALL, Rules
from tests.recovery.run import NOWHERE, End, Ended, Run, Speed
from tests.recovery.storage import JobDirectory, ModelJournal, Remaining, Storage

MOST_RESUMES = 5
PAUSE = 10.0
"""Seconds between two runs: more than what the clocks may differ by."""


class Found(Exception):
    """The job has gone wrong."""


class Job:
    """One job. ``play`` raises ``Found``, or whatever else its parts raise, if it goes wrong.

    ``words`` tell what has happened, for those who ask whether enough has; ``events`` counts those of the last run.
    """

    def __init__(self, seed: int, rules: Rules = ALL, ends: Sequence[End] | None = None) -> None:
        """``ends``: when each of the first runs ends, instead of at random."""
        self.ends = ends
        self.events = 0
        self.random = random = Random(seed)
        self.rules = rules
        self.dataset: Dataset = draw(random)
        self.clients = random.choice((1, 1, 2, 3))
        self.files = Files(self._names())
        self.resumes = random.randrange(MOST_RESUMES + 1)
        self.storage = Storage(
            random.choice((0.0005, 0.004, 0.02)),
            random.choice((0.0002, 0.002)),
            random.choice((600, 2000, 1 << 20)),
            random.choice((3000, 1 << 20)),
        )
        self.directory = JobDirectory(rules)
        self.root: Path = ()
        self.words: list[str] = []
        self.problems: list[str] = []
        self._now = 0.0

    def _names(self) -> Names:
        return self.random.choice((Names.ORDERED, Names.ANY) if self.clients == 1 else (Names.SERVER, Names.ANY))

    def play(self) -> None:
        self._begin_afresh()
        ends = 0
        while True:
            if self.ends is not None:
                end = self.ends[ends] if ends < len(self.ends) else NOWHERE
            else:
                end = self._draw_end() if ends <= self.resumes else NOWHERE
            run = self._make_run(end)
            try:
                status = run.play()
            except Ended:
                self.words.append(f"killed in {end.kind}")
                self._lose_power()
                status = -1
            self.problems += run.problems
            self.events = run.events
            self._now = run.now + PAUSE
            if status == 0:
                break
            if status > 0:
                self.words.append("halted")
            ends += 1
            self._resume()
        self.words.append(f"resumed {self.number - 1} times")
        self._check(run)

    # Beginning and going on.

    def _begin_afresh(self) -> None:
        """Nothing of the job was on storage: the user begins again, with an empty destination."""
        self.files = Files(self.files.names)
        self.root = self.dataset.prepare(self.files)
        self.problems.clear()
        self.left: Remaining | None = None
        self.number = 1
        self.size = self._draw_size()
        self.directory.begin(None, self.size)

    def _draw_size(self) -> int:
        return self.random.choice((1, 2, 2, 3, 3, 4, 5, 7))

    def _draw_end(self) -> End:
        random = self.random
        kind = random.choice(("event", "event", "written", "torn", "phase", "phase", "halt"))
        if kind in ("written", "torn"):
            return End(kind, random.randrange(random.choice((3, 12))))
        if kind == "phase":
            return End(kind, random.randrange(random.choice((3, 60))), random.randrange(COPY, LAST + 1))
        return End(kind, random.randrange(random.choice((40, 200, 600))))

    def _lose_power(self) -> None:
        clients = range(self.clients)
        if self.random.random() < 0.6:
            lost = self.random.sample(clients, self.random.randint(1, self.clients))
            self.words.append("power lost")
            self.files.lose_power(set(lost), self.random)

    def _resume(self) -> None:
        self.left = self.directory.load()
        if self.left is None:
            self.words.append("nothing to resume")
            self._begin_afresh()
            return
        self.size = self._draw_size()
        while self.random.random() < 0.2:
            self.words.append("killed while resuming")  # the new base was not current yet
            self._lose_power()
            self.size = self._draw_size()
        if self.clients > 1:
            self.files.settle_names()
        self.words.append(f"resumed in phase {self.left.phase}, epoch {'0' if self.left.epoch == 0 else 'later'}")
        self.number = self.left.run + 1
        if not self.rules.fixed_roots:
            self.root = self.dataset.resolve(self.files)
        if self.rules.keys_kept:
            tasks = list(map(address, self.left.tasks))
        else:
            tasks = [
                task if task.owner < 0 else task._replace(owner=task.owner % self.size) for task in self.left.tasks
            ]
        self.random.shuffle(tasks)
        self.left = self.left._replace(run=self.number, epoch=0, tasks=tuple(tasks))
        self.directory.begin(self.left, self.size)

    def _make_run(self, end: End) -> Run:
        random = self.random
        limits = Limits(
            message_bytes=random.choice((700, 1 << 20)),
            scan_ahead=random.choice((800, 1 << 20)),
            in_core=random.choice((1500, 1 << 20)),
            steal_backoff=0.002,
            steal_backoff_cap=0.05,
            progress_interval=random.choice((0.004, 0.02)),
            fan_out=2,
            cut_interval=random.choice((0.003, 0.01, 0.03, 0.2)),
            last_cut=random.choice((0.0, 0.02, 1.0)),
            durable_before=(NAME,) if self.rules.named_durable else (),
        )
        latency = random.choice((0.0003, 0.001, 0.005))
        speed = Speed(latency, random.choice((0.0005, 0.002)), random.choice(("tree", "tree", "ring")), limits)
        chunk = random.randrange(2, 6)
        run = Run(
            self.number,
            self.size,
            now=self._now,
            speed=speed,
            rules=self.rules,
            random=random,
            make_copier=lambda rank: self._make_copier(rank, chunk),
            make_journal=self._make_journal,
            advance=self._advance,
            end=end,
        )
        if self.left is not None:
            dealt = deal(self.left, self.size)
            run.restore(self.left.phase, self.left.counts, dealt)
        return run

    def _advance(self, now: float) -> None:
        self.files.now = now

    def _make_copier(self, rank: int, chunk: int) -> Copier:
        return Copier(
            rank=rank,
            size=self.size,
            run=self.number,
            client=rank % self.clients,
            chunk=chunk,
            root=self.root,
            dataset=self.dataset,
            files=self.files,
            rules=self.rules,
            random=self.random,
        )

    def _make_journal(self, run: Run, rank: int) -> ModelJournal:
        return ModelJournal(
            self.number if self.rules.new_ids else 1,
            rank,
            self.size,
            client=rank % self.clients,
            job=self.directory,
            files=self.files,
            storage=self.storage,
            rules=self.rules,
            random=self.random,
            run=run,
        )

    # The oracle.

    def _check(self, run: Run) -> None:
        wanted, seen = self.dataset.expected(self.root), observe(self.files, self.root, self.dataset)
        if self.root != ("dst",):
            seen.pop(("dst",), None)
        for path in sorted(wanted.keys() | seen.keys()):
            if wanted.get(path) != seen.get(path):
                raise Found(f"{'/'.join(path)} is {seen.get(path)}, not {wanted.get(path)}; {self.problems}")
        if run.director.totals != self.dataset.totals():
            raise Found(f"counted {run.director.totals}, not {self.dataset.totals()}; {self.problems}")
        left = self.directory.load() if run.director.committed else None
        if left is not None and self.rules == ALL:
            if left.tasks:
                raise Found(f"it has ended, but this would be done again: {left.tasks}")
            if left.counts != run.director.totals:
                raise Found(f"the records count {left.counts}, the ranks {run.director.totals}")


def deal(left: Remaining, size: int) -> list[list[Task]]:
    """What remains, dealt out to the ranks: notes to their own ones, the rest in turn."""
    dealt: list[list[Task]] = [[] for _ in range(size)]
    for number, task in enumerate(left.tasks):
        rank = (number if task.owner < 0 else task.owner) % size
        dealt[rank].append(task if task.owner < 0 else task._replace(owner=rank))
    return dealt
