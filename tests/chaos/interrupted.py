"""A job that is killed or stopped and then resumed with another number of ranks, until it is complete."""

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
from tests.chaos.kinds import Baselines, check_totals, damage_files, kind_of
from tests.chaos.prepared import COUNTED, overwritten_files
from tests.support.command import Argument, Completed, new_token, show, start, summary
from tests.support.filesystems import remove
from tests.support.oracle import differences
from tests.support.processes import Run
from tests.support.signatures import signed
from tests.support.users import is_root
from tests.support.walk import temporaries

PHASES = ("copy", "link", "finish", "seal", "sync", "verify", "repair", "reverify", "sign")
COPIED = ("finish", "seal", "sync")
"""Phases in which all items are copied and none is verified yet."""

MOST_RANKS = 5
EARLIEST = 0.12
"""Seconds after the start in which no phase has begun."""

MOST_INTERRUPTIONS = 5

TROUBLE = ("excused", "changed", "vanished", "warnings")
"""Counters that are 0 in these jobs, except warnings in jobs that repair files."""

TOTALS = (*COUNTED, *TROUBLE)

CHUNKS = (SPLIT, SPLIT, SPLIT, ("--chunk-size", "1G", "--block-size", str(BLOCKS)), ("--block-size", str(BLOCKS)))

AT_THE_START = "start"
OVER = "over"
INCOMPLETE, STOPPED, LOST_RANK = 1, 75, 70

_BEGUN = re.compile(rb"^pcopy: phase (\w+): [\d,]+ of [\d,]+ items done so far$", re.MULTILINE)
_OVER = re.compile(rb'"state": *"over"')
_DRAWN = re.compile(rb'^\{"time".*?"phase": "(\w+)"', re.MULTILINE)


class Interruption(NamedTuple):
    """How a run was ended, its phase at that time, and its exit status as a shell shows it."""

    what: str
    phase: str
    status: int
    resumable: bool


class InterruptedJob:
    """Run one job in the new directory ``place``; ``history`` lists its interruptions."""

    def __init__(self, baselines: Baselines, place: Path, seed: int, *, kind: str = "", slow: bool = False) -> None:
        """Choose the job by ``seed``. With ``slow``, ranks are stopped for short times, so that their order varies."""
        self.history: list[Interruption] = []
        self._random = random.Random(seed)
        self.kind = kind_of(seed, kind)
        self._baseline = baselines.of(self.kind)
        self._longest = baselines.seconds
        self._place = place
        self._slow = random.Random(seed) if slow else None
        self._destination = place / "there"
        self._copy = self._destination / "tree"
        self._state = place / "state"
        self._has_signature = self._random.random() < 0.7
        self._repairs = "--repair" in self.kind.options
        self._verifies = self._repairs or (self._has_signature and self.kind.verifies)
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
        self._job_options: list[Argument] = [*self._random.choice(CHUNKS), *self.kind.options]
        if self._has_signature:
            self._job_options += ["--signature", place / "sig"]
        if self._verifies and not self._repairs:
            self._job_options += ["--verify"]
        if self._random.random() < 0.3:
            self._options += ["--memory", "64K"]
        if self._random.random() < 0.3:
            self._options += ["--termination", "ring"]
        self._obstacles = self._random.random() < 0.25 and self.kind.obstacles
        """True if directories exist under the names of some files, so that these files fail."""
        self._to_damage = self.kind.name == "repaired" and is_root()
        self._damaged = False
        self._inodes: dict[bytes, int] = {}
        self._is_resumable = False
        self._reached = 0

    def run(self) -> list[Interruption]:
        """Run the job to its end, with interruptions. Raise ``AssertionError``, with the history, for any wrong
        result."""
        self._place.mkdir()
        try:
            for _ in range(self._random.randrange(1, MOST_INTERRUPTIONS + 1)):
                if self._interrupt():
                    break
                if self._random.random() < 0.5:
                    self._remove_obstacles()
            else:
                self._remove_obstacles()
                self._finish()
            self._check_copy()
        except AssertionError as error:
            reported = "\n".join(map(str, self.history))
            raise AssertionError(f"{self.kind.name}: {error}\nafter\n{reported}\n{self._errors()}") from error
        return self.history

    def _errors(self) -> str:
        """Return all errors of the last run."""
        with suppress(FileNotFoundError):
            return f"errors of the last run:\n{(self._place / 'errors').read_text()}"
        return "no run has reported errors"

    def _arguments(self) -> list[Argument]:
        if self._is_resumable:
            return [*self._options, "--resume"]
        remove(self._destination)  # nothing was recorded: remove the incomplete copy
        if self._baseline.stock is None:
            self._destination.mkdir()
        else:
            self._baseline.stock.take(self._destination)
        self._inodes = {path: self._inode(path) for path in self._overwritten_paths()}
        if self._obstacles:
            for path in self._obstacle_paths():
                (path / "full").mkdir(parents=True)
        return [*self._options, *self._job_options, "-T", self._baseline.source, self._copy]

    def _overwritten_paths(self) -> list[bytes]:
        if "--inplace" not in self.kind.options or self._baseline.prepared is None:
            return []
        return overwritten_files(self._baseline.source, self._baseline.prepared)

    def _inode(self, path: bytes) -> int:
        return os.lstat(os.path.join(os.fsencode(self._copy), path)).st_ino

    def _obstacle_paths(self) -> list[Path]:
        return [self._copy / path for path in IN_THE_WAY]

    def _remove_obstacles(self) -> None:
        if self._obstacles:
            self._obstacles = False
            for path in self._obstacle_paths():
                if (path / "full").is_dir():
                    remove(path)

    def _in_flight(self) -> list[Argument]:
        """Return an option for another number of concurrent operations."""
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
        """Stop random ranks for short times until ``over`` is set."""
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
        """Return the phase that the run reported last."""
        text = (self._place / "err").read_bytes()
        found = [match for pattern in (_BEGUN, _DRAWN) for match in pattern.finditer(text)]
        return max(found, key=re.Match.start)[1].decode() if found else AT_THE_START

    def _wait(self, run: Run) -> None:
        """Wait for a random time, or until a random phase has begun."""
        phases = [phase for phase in PHASES if self._has_phase(phase)]
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

    def _has_phase(self, phase: str) -> bool:
        needed = {"verify": self._verifies, "sign": self._has_signature}
        needed["repair"] = needed["reverify"] = self._damaged or self.kind.name == "mended"
        return needed.get(phase, True)

    def _interrupt(self) -> bool:
        """Start or resume the job and end it at a random time. Return True if the job was complete before that."""
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
            completed = self._completed(run)
        self._is_resumable = self._jobs() != []
        self._reached = PHASES.index(phase) if self._is_resumable and phase in PHASES else 0
        if self._to_damage and self._is_resumable:
            done += self._damage()
        self.history.append(Interruption(done, phase, status, self._is_resumable))
        if not self._is_resumable and b'"exit_status": 0' in completed.stdout:  # the job was complete before the kill
            self._check_end(completed)
            return True
        if phase == AT_THE_START and what == "SIGINT" and b"KeyboardInterrupt" in completed.stderr:
            return False  # the interpreter was still starting
        allowed = {
            "kill one": (0, LOST_RANK, 128 + signal.SIGKILL),
            "kill all": (0, 128 + signal.SIGKILL),
            "SIGTERM": (0, STOPPED, 128 + signal.SIGTERM),
            "SIGINT": (0, STOPPED, 128 + signal.SIGINT),
        }
        if self._obstacles and status == INCOMPLETE:
            assert self._is_resumable, show(completed)
            assert summary(completed)["failed"] == len(IN_THE_WAY), show(completed)
            assert summary(completed)["found"] == self._baseline.totals["found"], show(completed)
            return False
        assert status in allowed[what], show(completed)
        assert b"Traceback" not in completed.stderr, show(completed)
        if status in (128 + signal.SIGTERM, 128 + signal.SIGINT):
            assert phase in (AT_THE_START, OVER), show(
                completed
            )  # the signal came before the handlers were installed, or after their removal
        if status == STOPPED:
            assert self._is_resumable, show(completed)
            assert b"pcopy: to go on: pcopy --resume " in completed.stderr, show(completed)
        return status == 0

    def _damage(self) -> str:
        """Damage the copy if all items are copied and none is verified. Return a remark for the history."""
        phase = self._phase()
        if phase not in COPIED:
            self._to_damage = PHASES.index(phase) < PHASES.index(COPIED[0]) if phase in PHASES else True
            return ""
        damage_files(self._copy, self._random)
        self._to_damage, self._damaged = False, True
        return ", damaged"

    def _finish(self) -> None:
        with self._started() as run:
            run.end(60)
            completed = self._completed(run)
        assert completed.returncode == 0, show(completed)
        self._check_end(completed)

    def _check_end(self, completed: Completed) -> None:
        reported = json.loads(completed.stdout)
        killed = any(one.what.startswith("kill") for one in self.history)
        check_totals(reported, self._baseline.totals, self._baseline.unsure if killed else 0)
        met = [key for key in TROUBLE if reported[key]]
        warned = ["warnings"] if self._damaged or self.kind.name == "mended" else []
        if not warned or met or not killed:  # a killed run may have printed the warning without recording it
            assert met == warned, reported
        assert self._jobs() == [], "the job's directory is still there"

    def _jobs(self) -> list[str]:
        with suppress(FileNotFoundError):
            return [name for name in os.listdir(self._state / "pcopy") if self._is_begun(name)]
        return []

    def _is_begun(self, name: str) -> bool:
        """Return True if the job has started and is not over; a job killed while it was first stored or removed has
        not."""
        with suppress(FileNotFoundError):
            return not _OVER.search((self._state / "pcopy" / name / "job").read_bytes())
        return False

    def _check_copy(self) -> None:
        assert temporaries(os.fsencode(self._copy)) == []
        if self._has_signature:
            assert signed(self._place / "sig") == self._baseline.signature, "the signature differs"
        wrong = differences(self._baseline.wanted, self._copy)
        if self._baseline.prepared is not None:
            wrong += differences(self._baseline.prepared.elsewhere, self._destination / "elsewhere")
        wrong += [f"not written over: {path!r}" for path, inode in self._inodes.items() if self._inode(path) != inode]
        assert not wrong, "\n".join(wrong[:20])


def reported(seed: int, job: InterruptedJob) -> str:
    """Return one line of JSON that describes a job."""
    return json.dumps({"seed": seed, "kind": job.kind.name, "interruptions": [tuple(one) for one in job.history]})
