"""One job with interruptions: it is killed or stopped, and resumed on another number of ranks, until it is done."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pcopy.fsio.backend.choose import backend_name
from tests.chaos.dataset import BLOCKS, IN_THE_WAY, SPLIT
from tests.chaos.kinds import Grounds, check_totals, do_damage, kind_of
from tests.chaos.prepared import COUNTED, written_over
from tests.support.command import Argument, Completed, new_token, show, start, summary
from tests.support.filesystems import remove
from tests.support.oracle import differences
from tests.support.processes import Run
from tests.support.signatures import signed
from tests.support.users import is_root
from tests.support.walk import temporaries

PHASES = ("copy", "link", "finish", "seal", "sync", "verify", "repair", "reverify", "sign")
COPIED = ("finish", "seal", "sync")
"""Phases in which everything is there, and nothing is verified yet."""

MOST_RANKS = 5
EARLIEST = 0.12
"""Seconds in which nothing has begun yet."""

MOST_INTERRUPTIONS = 5

TROUBLE = ("excused", "changed", "vanished", "warnings")
"""What none of these jobs meets, but for warnings where something is repaired."""

TOTALS = (*COUNTED, *TROUBLE)

CHUNKS = (SPLIT, SPLIT, SPLIT, ("--chunk-size", "1G", "--block-size", str(BLOCKS)), ("--block-size", str(BLOCKS)))

AT_THE_START = "start"
OVER = "over"
INCOMPLETE, STOPPED, LOST_RANK = 1, 75, 70

_BEGUN = re.compile(rb"^pcopy: (\w+): [\d,]+ of [\d,]+ items done so far$", re.MULTILINE)
_OVER = re.compile(rb'"state": *"over"')
_DRAWN = re.compile(rb'^\{"time".*?"phase": "(\w+)"', re.MULTILINE)


class Interruption(NamedTuple):
    """What was done to a run, in which phase, and its exit status as a shell shows it."""

    what: str
    phase: str
    status: int
    resumable: bool


class InterruptedJob:
    """``play`` does it all, in the fresh directory ``place``; ``story`` tells what happened."""

    def __init__(self, grounds: Grounds, place: Path, seed: int, *, kind: str = "", slow: bool = False) -> None:
        """``slow``: ranks stand still now and then, so that what one does meets what another has not done yet."""
        self.story: list[Interruption] = []
        self._random = random.Random(seed)
        self.kind = kind_of(seed, kind)
        self._ground = grounds.of(self.kind)
        self._longest = grounds.seconds
        self._place = place
        self._slow = random.Random(seed) if slow else None
        self._there = place / "there"
        self._copy = self._there / "tree"
        self._state = place / "state"
        self._signs = self._random.random() < 0.7
        self._repairs = "--repair" in self.kind.options
        self._verifies = self._repairs or (self._signs and self.kind.verifies)
        self._options: list[Argument] = ["--checkpoint-interval", f"{self._random.uniform(0.05, 0.3):.3f}"]
        self._options += [
            "--errors",
            place / "errors",
            "--json",
            "-v",
            "--progress",
            "json",
            "--progress-interval",
            "0.01",
        ]
        self._asked: list[Argument] = [*self._random.choice(CHUNKS), *self.kind.options]
        if self._signs:
            self._asked += ["--signature", place / "sig"]
        if self._verifies and not self._repairs:
            self._asked += ["--verify"]
        if self._random.random() < 0.3:
            self._options += ["--memory", "64K"]
        if self._random.random() < 0.3:
            self._options += ["--termination", "ring"]
        self._obstacles = self._random.random() < 0.25 and self.kind.obstacles
        """Are there directories in the way of some files, so that these fail?"""
        self._to_damage = self.kind.name == "repaired" and is_root()
        self._damaged = False
        self._inodes: dict[bytes, int] = {}
        self._kept = False
        self._reached = 0

    def play(self) -> list[Interruption]:
        """Raises ``AssertionError``, with the story, for everything that is not as it should be."""
        self._place.mkdir()
        try:
            for _ in range(self._random.randrange(1, MOST_INTERRUPTIONS + 1)):
                if self._interrupt():
                    break
                if self._random.random() < 0.5:
                    self._clear_the_way()
            else:
                self._clear_the_way()
                self._to_the_end()
            self._check_copy()
        except AssertionError as error:
            reported = "\n".join(map(str, self.story))
            raise AssertionError(f"{self.kind.name}: {error}\nafter\n{reported}\n{self._errors()}") from error
        return self.story

    def _errors(self) -> str:
        """What failed in the last run, all of it."""
        with suppress(FileNotFoundError):
            return f"errors of the last run:\n{(self._place / 'errors').read_text()}"
        return "no run has told of errors"

    def _arguments(self) -> list[Argument]:
        if self._kept:
            return [*self._options, "--resume"]
        remove(self._there)  # nothing was on record yet: what there is belongs to nobody
        if self._ground.stock is None:
            self._there.mkdir()
        else:
            self._ground.stock.take(self._there)
        self._inodes = {path: self._inode(path) for path in self._written_over()}
        if self._obstacles:
            for path in self._in_the_way():
                (path / "full").mkdir(parents=True)
        return [*self._options, *self._asked, "-T", self._ground.source, self._copy]

    def _written_over(self) -> list[bytes]:
        if "--inplace" not in self.kind.options or self._ground.prepared is None:
            return []
        return written_over(self._ground.source, self._ground.prepared)

    def _inode(self, path: bytes) -> int:
        return os.lstat(os.path.join(os.fsencode(self._copy), path)).st_ino

    def _in_the_way(self) -> list[Path]:
        return [self._copy / path for path in IN_THE_WAY]

    def _clear_the_way(self) -> None:
        if self._obstacles:
            self._obstacles = False
            for path in self._in_the_way():
                if (path / "full").is_dir():
                    remove(path)

    def _in_flight(self) -> list[Argument]:
        """Another run may keep more operations under way, or fewer."""
        if backend_name() != "c":
            return []
        return ["--in-flight", self._random.choice(("auto", "1", "2", "8", "64"))]

    def _ranks(self) -> int:
        return self._random.randrange(1, MOST_RANKS + 1)

    @contextmanager
    def _started(self) -> Iterator[Run]:
        environment = {"XDG_STATE_HOME": str(self._state)}
        token = new_token()
        with open(self._place / "out", "wb") as out, open(self._place / "err", "wb") as err:
            words = [*self._arguments(), *self._in_flight()]
            process = start(*words, ranks=self._ranks(), env=environment, token=token, stdout=out, stderr=err)
        run = Run(process, token)
        over = threading.Event()
        slowing = threading.Thread(target=self._slow_down, args=(run, over))
        slowing.start()
        try:
            yield run
        finally:
            over.set()
            slowing.join()
            run.kill_all()
            process.wait()

    def _slow_down(self, run: Run, over: threading.Event) -> None:
        """One rank after the other stands still for a moment."""
        while self._slow is not None and not over.wait(self._slow.uniform(0, 0.05)):
            for rank in self._slow.sample(ranks := run.ranks(), min(1, len(ranks))):
                with suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGSTOP)
                    over.wait(self._slow.uniform(0, 0.2))
                    os.kill(rank, signal.SIGCONT)

    def _completed(self, run: Run) -> Completed:
        out, err = ((self._place / name).read_bytes() for name in ("out", "err"))
        return Completed((), run.process.returncode, out, err)

    def _phase(self) -> str:
        """The one that was last told of."""
        text = (self._place / "err").read_bytes()
        found = [match for pattern in (_BEGUN, _DRAWN) for match in pattern.finditer(text)]
        return max(found, key=re.Match.start)[1].decode() if found else AT_THE_START

    def _wait(self, run: Run) -> None:
        """Until some time has passed, or a phase has begun and a moment more."""
        phases = [phase for phase in PHASES if self._meets(phase)]
        left = [phase for phase in phases if PHASES.index(phase) >= self._reached]
        longest, wanted = self._longest, tuple[str, ...]()
        if self._random.random() < 0.5 and not self._to_damage:
            until = time.monotonic() + EARLIEST + self._random.uniform(0, 0.8 * longest * len(left) / len(phases))
        else:
            until = time.monotonic() + 3 * longest
            wanted = COPIED if self._to_damage else (self._random.choice(left),)
        while time.monotonic() < until and run.process.poll() is None:
            if wanted and self._phase() in wanted:
                time.sleep(self._random.choice((0.0, self._random.uniform(0, 0.15))))
                return
            time.sleep(0.003)

    def _meets(self, phase: str) -> bool:
        needed = {"verify": self._verifies, "sign": self._signs}
        needed["repair"] = needed["reverify"] = self._damaged or self.kind.name == "mended"
        return needed.get(phase, True)

    def _interrupt(self) -> bool:
        """Starts the job, or resumes it, and ends it at some time; returns whether it was done before."""
        what = done = self._random.choice(("kill one", "kill all", "SIGTERM", "SIGINT"))
        with self._started() as run:
            self._wait(run)
            phase = self._phase() if run.process.poll() is None else OVER
            if what == "kill one":
                ranks = sorted({run.process.pid, *run.ranks()} & set(run.processes()))
                if ranks:
                    with suppress(ProcessLookupError):
                        os.kill(self._random.choice(ranks), signal.SIGKILL)
            elif what == "kill all":
                run.kill_all()
            elif run.process.poll() is None:
                run.process.send_signal(signal.Signals[what])
            status = run.end(30)
            assert run.survivors() == [], show(self._completed(run))
            said = self._completed(run)
        self._kept = self._jobs() != []
        self._reached = PHASES.index(phase) if self._kept and phase in PHASES else 0
        if self._to_damage and self._kept:
            done += self._damage()
        self.story.append(Interruption(done, phase, status, self._kept))
        if not self._kept and b'"exit_status": 0' in said.stdout:  # killed on its way out, if at all
            self._check_end(said)
            return True
        if phase == AT_THE_START and what == "SIGINT" and b"KeyboardInterrupt" in said.stderr:
            return False  # even before the program had begun
        allowed = {
            "kill one": (0, LOST_RANK, 128 + signal.SIGKILL),
            "kill all": (0, 128 + signal.SIGKILL),
            "SIGTERM": (0, STOPPED, 128 + signal.SIGTERM),
            "SIGINT": (0, STOPPED, 128 + signal.SIGINT),
        }
        if self._obstacles and status == INCOMPLETE:
            assert self._kept, show(said)
            assert summary(said)["failed"] == len(IN_THE_WAY), show(said)
            assert summary(said)["found"] == self._ground.totals["found"], show(said)
            return False
        assert status in allowed[what], show(said)
        assert b"Traceback" not in said.stderr, show(said)
        if status in (128 + signal.SIGTERM, 128 + signal.SIGINT):
            assert phase in (AT_THE_START, OVER), show(said)  # before it could be stopped in order
        if status == STOPPED:
            assert self._kept, show(said)
            assert b"pcopy: to go on: pcopy --resume " in said.stderr, show(said)
        return status == 0

    def _damage(self) -> str:
        """The run has ended: was everything copied, and nothing verified? What is on record is not verified again."""
        phase = self._phase()
        if phase not in COPIED:
            self._to_damage = PHASES.index(phase) < PHASES.index(COPIED[0]) if phase in PHASES else True
            return ""
        do_damage(self._copy, self._random)
        self._to_damage, self._damaged = False, True
        return ", damaged"

    def _to_the_end(self) -> None:
        with self._started() as run:
            run.end(60)
            said = self._completed(run)
        assert said.returncode == 0, show(said)
        self._check_end(said)

    def _check_end(self, said: Completed) -> None:
        reported = json.loads(said.stdout)
        killed = any(one.what.startswith("kill") for one in self.story)
        check_totals(reported, self._ground.totals, self._ground.unsure if killed else 0)
        met = [key for key in TROUBLE if reported[key]]
        warned = ["warnings"] if self._damaged or self.kind.name == "mended" else []
        if not warned or met or not killed:  # a run that was killed may have told it, and not have it on record
            assert met == warned, reported
        assert self._jobs() == [], "the job's directory is still there"

    def _jobs(self) -> list[str]:
        with suppress(FileNotFoundError):
            return [name for name in os.listdir(self._state / "pcopy") if self._is_begun(name)]
        return []

    def _is_begun(self, name: str) -> bool:
        """A job that was killed while it was stored for the first time, or removed, is none. Another one goes on, also
        if nothing is on record of it."""
        with suppress(FileNotFoundError):
            return not _OVER.search((self._state / "pcopy" / name / "job").read_bytes())
        return False

    def _check_copy(self) -> None:
        assert temporaries(os.fsencode(self._copy)) == []
        if self._signs:
            assert signed(self._place / "sig") == self._ground.signature, "another signature"
        wrong = differences(self._ground.wanted, self._copy)
        if self._ground.prepared is not None:
            wrong += differences(self._ground.prepared.elsewhere, self._there / "elsewhere")
        wrong += [f"not written over: {path!r}" for path, inode in self._inodes.items() if self._inode(path) != inode]
        assert not wrong, "\n".join(wrong[:20])


def reported(seed: int, job: InterruptedJob) -> str:
    """One line on a job."""
    return json.dumps({"seed": seed, "kind": job.kind.name, "interruptions": [tuple(one) for one in job.story]})
