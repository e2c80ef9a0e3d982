"""Let each system call of a run fail at each of its first uses: one fault must not cause a crash, hang or wrong copy.

    python -m tests.faults.campaign [--uses 30] [--workers 2] [--errors EIO,ENOMEM] [--calls read,openat] [SCENARIO ...]

A run under strace without a fault shows the calls, and how often a thread makes each of them. Then there is one run for
each call, each of its first uses (counted per thread), and each error that fits the call. The result must be right: no
traceback, no status 70, no hang, no end by a signal; status 0 only if rsync and an independent walk find a complete
copy; and if the run prints a command to resume, that command, without a fault, ends with status 0.

The start of the interpreter is left out: a server imports the program once and forks for each run, and the child stops
itself until strace has attached. That also makes runs ten times as fast.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.faults.tracing import MPIEXEC, Ended, load, run
from tests.support.attributes import ACCESS_ACL, DEFAULT_ACL, acl
from tests.support.oracle import differences

USES = 30
LARGE = (4 << 20) + 70_000
CHUNKS = ("--chunk-size", "512K", "--block-size", "64K")
VERIFIED = ("--verify", "--signature", "{place}/signature")
SLOW = ("-e", "trace=utimensat", "-e", "inject=utimensat:delay_enter=30ms")
STOPPED_AT = 6
"""Number of items in the destination at which the first run of a resumed job is stopped; the run is slowed down."""

OLDER = b"older" * 100

NEVER_FAIL = frozenset((
    "arch_prctl", "brk", "clock_nanosleep", "exit", "exit_group", "futex", "getegid", "geteuid", "getgid",
    "getpid", "getppid", "gettid", "getuid", "madvise", "mprotect", "munmap", "restart_syscall", "rseq",
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sched_getaffinity", "sched_yield", "set_robust_list",
    "set_tid_address", "sysinfo", "umask", "uname",
))  # fmt: skip
"""Calls that cannot fail as they are used, or after whose failure the C library aborts or no memory is available."""

OF_MPI = frozenset(("epoll_wait",))
"""Calls made under mpiexec by a thread of the MPI library, which ends the process after a failure; pcopy makes none."""

COMMON = ("EIO", "ENOMEM", "EACCES")
MORE: dict[str, tuple[str, ...]] = {
    "mmap": ("ENOMEM",),
    "clone3": ("EAGAIN", "ENOMEM"),
    "clone": ("EAGAIN", "ENOMEM"),
    "vfork": ("EAGAIN", "ENOMEM"),
    **dict.fromkeys(("openat", "openat2", "dup", "dup2", "dup3", "pipe2", "socket", "socketpair", "epoll_create1"),
                    (*COMMON, "EMFILE")),
    **dict.fromkeys(("write", "pwrite64", "pwritev", "fallocate", "ftruncate", "mkdirat", "mkdir", "mknodat",
                     "symlinkat", "linkat", "renameat", "renameat2", "fsetxattr", "setxattr", "lsetxattr", "fsync",
                     "fdatasync",                     "copy_file_range"), (*COMMON, "ENOSPC")),
}  # fmt: skip


class Scenario(NamedTuple):
    """A sequence of runs; the fault is injected into the last one, and the previous ones are stopped. Arguments may
    contain ``{place}``."""

    runs: tuple[tuple[str, ...], ...]
    same: bool = True
    """For ``pverify``: True if the copy is like the source."""

    overwrites: bool = False
    """True if the target contains files with other contents."""

    @property
    def copies(self) -> bool:
        return "pcopy" in self.runs[-1]


def _scenarios() -> dict[str, Scenario]:
    table: dict[str, Scenario] = {}
    for ranks in (1, 2):
        n = ("-n", str(ranks))
        copy = ("pcopy", *n, *CHUNKS)
        both = ("-T", "{source}", "{place}/target")
        kept = ("--checkpoint", "{place}/job", "--checkpoint-interval", "0.1")
        table |= {
            f"plain-{ranks}": Scenario(((*copy, "--checkpoint", "none", *both),)),
            f"verified-{ranks}": Scenario(((*copy, *VERIFIED, *both),)),
            f"kept-{ranks}": Scenario(((*copy, *kept, *both),)),
            f"resumed-{ranks}": Scenario(((*copy, *kept, *VERIFIED, *both), ("pcopy", *n, "--resume", "{place}/job"))),
            f"unasked-{ranks}": Scenario(((*copy, *kept, "--existing", "skip", *both),)),
            f"resumed-unasked-{ranks}": Scenario(
                ((*copy, *kept, "--existing", "newer", *both), ("pcopy", *n, "--resume", "{place}/job"))
            ),
            f"inplace-{ranks}": Scenario(((*copy, *kept, "--inplace", *both),), overwrites=True),
            f"resumed-inplace-{ranks}": Scenario(
                ((*copy, *kept, "--inplace", *both), ("pcopy", *n, "--resume", "{place}/job")), overwrites=True
            ),
            f"compared-{ranks}": Scenario((("pverify", *n, "{source}", "{source}"),)),
            f"different-{ranks}": Scenario((("pverify", *n, "{source}", "{other}"),), same=False),
        }
    return table


def _mpi_scenarios() -> dict[str, Scenario]:
    """Return scenarios of two ranks under mpiexec; faults are injected into one of them."""
    table: dict[str, Scenario] = {}
    kept = ("--checkpoint", "{place}/job", "--checkpoint-interval", "0.1")
    both = (*CHUNKS, "-T", "{source}", "{place}/target")
    begun = ("pcopy", "-n", "2", *kept, "--inplace", *both)
    for rank in ("0", "1"):
        copy = (MPIEXEC, rank, "pcopy")
        table |= {
            f"mpi-kept-{rank}": Scenario(((*copy, *kept, *VERIFIED, *both),)),
            f"mpi-unasked-{rank}": Scenario(((*copy, *kept, "--existing", "skip", *both),)),
            f"mpi-resumed-inplace-{rank}": Scenario((begun, (*copy, "--resume", "{place}/job")), overwrites=True),
            f"mpi-different-{rank}": Scenario(((MPIEXEC, rank, "pverify", "{source}", "{other}"),), same=False),
        }
    return table


SCENARIOS = _scenarios() | _mpi_scenarios()


class Fault(NamedTuple):
    call: str
    use: int
    error: str

    @property
    def injection(self) -> str:
        return f"{self.call}:error={self.error}:when={self.use}"


def make_source(path: Path) -> None:
    """Create one item of each kind, and a directory tree with several levels."""
    (path / "room/inner/empty").mkdir(parents=True)
    for number in range(4):
        (path / f"room/small{number}").write_bytes(b"%d" % number * (1000 * number))
    (path / "room/inner/dressed").write_bytes(b"dressed" * 500)
    os.setxattr(path / "room/inner/dressed", "user.dress", b"blue")
    (path / "large").write_bytes(bytes(range(256)) * (LARGE // 256))
    with open(path / "holey", "wb") as file:
        file.write(b"begin")
        file.seek(1 << 20)
        file.write(b"end")
        file.truncate(2 << 20)
    os.symlink("somewhere", path / "room/link")
    os.mkfifo(path / "room/fifo", 0o640)
    (path / "one").write_bytes(b"linked" * 300)
    os.link(path / "one", path / "room/two")
    os.link(path / "one", path / "room/three")
    with suppress(OSError):  # no ACLs, or no right to make a device
        os.setxattr(path / "room/small1", ACCESS_ACL, acl(6, 4, 4, {1: 4}))
        os.setxattr(path / "room/inner", DEFAULT_ACL, acl(7, 5, 5, {1: 5}))
        os.mknod(path / "room/null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    for each in ("room/inner/empty", "room/inner", "room", ""):
        os.utime(path / each, (1_000_000_000, 1_100_000_000))


def fill(source: Path, target: Path) -> None:
    """Create files that the run overwrites."""
    for path in (path for path in source.rglob("*") if path.is_file() and not path.is_symlink()):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(OLDER)


class Campaign:
    """One scenario, in its own directory."""

    def __init__(self, name: str, source: Path, other: Path, place: Path) -> None:
        self.name = name
        self._scenario = SCENARIOS[name]
        self._source, self._other, self._place = source, other, place
        self._signature = b""

    def calls(self) -> dict[str, int]:
        """Run without a fault; return each call and the largest number of times that one thread makes it."""
        ended = self._run(("-e", "trace=all"))
        trouble = self._judge(ended)
        assert not trouble, f"{self.name} without a fault: {trouble}\n{ended.output}"
        counted: dict[str, Counter[str]] = defaultdict(Counter)
        for thread, call in re.findall(r"^(\d+) +(\w+)\(", ended.log, re.MULTILINE):
            counted[call][thread] += 1
        never = NEVER_FAIL | OF_MPI if MPIEXEC in self._scenario.runs[-1] else NEVER_FAIL
        return {call: max(by.values()) for call, by in sorted(counted.items()) if call not in never}

    def observe(self, fault: Fault) -> tuple[str, Ended]:
        """Run with ``fault``; return what is wrong, or an empty string."""
        ended = self._run(("-e", f"trace={fault.call}", "-e", f"inject={fault.injection}"))
        return self._judge(ended), ended

    def _run(self, options: Sequence[str]) -> Ended:
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir()
        if self._scenario.overwrites:
            fill(self._source, self._place / "target")
        *before, last = self._scenario.runs
        for words in before:
            stopped = run(self._words(words), self._place, SLOW, self._is_half_done)
            assert stopped.status == 75, stopped
            (self._place / "output").unlink()
        return run(self._words(last), self._place, options)

    def _is_half_done(self) -> bool:
        if self._scenario.overwrites:
            return any(path.is_file() and path.stat().st_size != len(OLDER) for path in self._place.glob("target/**/*"))
        made = sum(len(directories) + len(files) for _, directories, files in os.walk(self._place / "target"))
        return made >= STOPPED_AT

    def _words(self, words: Sequence[str]) -> list[str]:
        return [word.format(place=self._place, source=self._source, other=self._other) for word in words]

    def _judge(self, ended: Ended) -> str:
        if ended.status == -1:
            return "hangs"
        if "Traceback" in ended.output:
            return "traceback"
        allowed = (0, 1, 2, 75) if self._scenario.copies else (0, 2) if self._scenario.same else (1, 2)
        if ended.status not in allowed:
            return f"status {ended.status}"
        if ended.status == 0 and self._scenario.copies:
            return self._missing()
        if ended.status == 0:
            return "" if self._scenario.same else "status 0 of trees that differ"
        return self._resume(ended) if self._scenario.copies else ""

    def _missing(self) -> str:
        unlike = differences(self._source, self._place / "target")
        if unlike:
            return f"status 0, and {unlike[0]}"
        left = [str(path) for path in self._place.rglob(".pcopy-*")]
        if left:
            return f"status 0, and {left[0]} is left"
        wanted = any("--signature" in words for words in self._scenario.runs)
        return "status 0 without its signature" if wanted and not (self._place / "signature").exists() else ""

    def _resume(self, ended: Ended) -> str:
        """Resume without a fault; return what is wrong, or an empty string."""
        found = re.search(r"to go on: (pcopy --resume \S+)", ended.output)
        if not found:
            return ""
        (self._place / "output").rename(self._place / "output before")
        resumed = run(found[1].split(), self._place, ())
        if resumed.status != 0:
            return f"resumed: status {resumed.status}: {resumed.output}"
        trouble = self._missing()
        return f"resumed: {trouble}" if trouble else ""


def faults(calls: dict[str, int], uses: int, errors: Sequence[str] = (), *, rotate: bool = False) -> Iterator[Fault]:
    """Yield each call at each of its first ``uses``, with each error that fits (``rotate``: with one error at a time,
    in turn)."""
    number = 0
    for call, count in calls.items():
        fitting = [error for error in MORE.get(call, COMMON) if not errors or error in errors]
        for use in range(1, min(count, uses) + 1):
            number += 1
            for error in [fitting[number % len(fitting)]] if rotate and fitting else fitting:
                yield Fault(call, use, error)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested scenarios; return the number of wrong runs, at most 100."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--uses", type=int, default=USES)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--errors", default="", help="only these, separated by commas")
    parser.add_argument("--calls", default="", help="only these")
    parser.add_argument("--rotate", action="store_true", help="one error for each use, another for the next")
    parser.add_argument("--place", default="/dev/shm")
    options = parser.parse_args(argv)
    load()
    with tempfile.TemporaryDirectory(prefix="pcopy-campaign-", dir=options.place) as base:
        source, other = Path(base, "source"), Path(base, "other")
        make_source(source)
        make_source(other)
        (other / "room/small2").write_bytes(b"differs")
        work: list[tuple[str, Fault]] = []
        for name in options.scenarios or SCENARIOS:
            calls = Campaign(name, source, other, Path(base, "look")).calls()
            if options.calls:
                calls = {call: count for call, count in calls.items() if call in options.calls.split(",")}
            errors = options.errors.split(",") if options.errors else ()
            chosen = [(name, fault) for fault in faults(calls, options.uses, errors, rotate=options.rotate)]
            print(f"{name}: {len(calls)} calls, {len(chosen)} faults: {' '.join(calls)}", flush=True)
            work += chosen
        workers = [_start(work[number :: options.workers], source, other, Path(base, f"place{number}"))
                   for number in range(options.workers)]  # fmt: skip
        wrong = sum(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers)
    print(f"{len(work)} faults, {wrong} wrong")
    return min(wrong, 100)


def _start(work: Iterable[tuple[str, Fault]], source: Path, other: Path, place: Path) -> int:
    worker = os.fork()
    if worker:
        return worker
    wrong = 0
    ends: Counter[str] = Counter()
    for name, fault in work:
        trouble, ended = Campaign(name, source, other, place).observe(fault)
        ends[f"status {ended.status}" if ended.injected else "no such use"] += 1
        if trouble:
            wrong += 1
            print(f"WRONG {name} {fault.injection}: {trouble}\n" + _indented(ended.output), flush=True)
    print(", ".join(f"{end}: {number}" for end, number in ends.most_common()), flush=True)
    os._exit(min(wrong, 100))


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines()[-25:])


if __name__ == "__main__":
    sys.exit(main())
