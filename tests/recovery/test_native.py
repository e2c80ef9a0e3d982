"""Jobs whose files are copied by the C backend lose nothing, also if they are ended within a row, or use threads."""

from __future__ import annotations

import os
import re
import subprocess
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.backend.native import NativeBackend
from pcopy.fsio.backend.walk_batches import ListPathsBatch, ListPathsResult
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.tasks.base.phases import Phase
from tests.recovery.calls import Calls
from tests.recovery.campaign import play
from tests.recovery.disk import Disk, Names
from tests.recovery.jobs import End
from tests.recovery.machine import T0, installed
from tests.recovery.native_calls import answer_counts, simulated_extension, wrapped_functions
from tests.recovery.world import Chance, World
from tests.support import native
from tests.support.extent import everything, in_turn

JOBS = range(3000) if everything() else in_turn(range(200), 40, "recovery with the C backend")
JOBS_WITH_THREADS = range(1000) if everything() else in_turn(range(125), 25, "recovery with threads of the C backend")
MIRRORS = range(1000) if everything() else in_turn(range(125), 25, "recovery of deletions with the C backend")
STEP = 1 if everything() else 12
"""System calls from one end to the next."""

HARMLESS = {
    *("calloc", "free", "malloc", "memchr", "memcmp", "memcpy", "memmem", "memmove", "memrchr", "memset", "qsort"),
    *("snprintf", "stpcpy", "strchr", "strchrnul", "strcmp", "strlen", "strncmp", "strncpy", "strnlen", "strrchr"),
    *(
        "strspn",
        "strtoul",
        "dlopen",
        "dlsym",
        "sigfillset",
        "pthread_sigmask",
        "pthread_attr_init",
        "pthread_attr_destroy",
    ),
    *("pthread_attr_setstacksize", "pthread_cond_init", "pthread_cond_destroy", "pthread_mutex_init"),
    *("pthread_mutex_destroy", "pthread_mutex_lock", "pthread_mutex_unlock", "_setjmp", "setjmp", "longjmp"),
    *("__longjmp_chk", "__errno_location", "__stack_chk_fail", "__memcpy_chk", "__snprintf_chk", "__strncpy_chk"),
    *("__cxa_finalize", "__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"),
    *("__isoc23_strtoul", "__tls_get_addr", "abort", "getenv", "pthread_once", "realloc", "strcspn"),
}
"""Functions that reach neither files nor other threads."""


@pytest.fixture(scope="module", autouse=True)
def _machine() -> Iterator[None]:
    native.require()
    with installed("c"):
        yield


def _play_all(seeds: Iterable[int], *, waits: bool) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in seeds:
        played = play(seed, waits=waits)
        assert not played.wrong, f"seed {seed}: {played.wrong}"
        happened.update(played.words)
    return happened


def test_interrupted_jobs_lose_nothing_in_c() -> None:
    answer_counts.clear()
    happened = _play_all(JOBS, waits=False)
    assert sum(number for word, number in happened.items() if word.startswith("killed in")) >= len(JOBS)
    rows = {
        "sim_open",
        "sim_read",
        "sim_write",
        "sim_change_mode",
        "sim_change_times",
        "sim_make_directory",
        "sim_sync",
    }
    assert answer_counts.keys() >= rows
    assert sum(number for name, number in answer_counts.items() if name.startswith("ended in")) >= len(JOBS) // 8


def test_interrupted_jobs_lose_nothing_with_threads_in_c() -> None:
    answer_counts.clear()
    happened = _play_all(JOBS_WITH_THREADS, waits=True)
    assert happened["several batches under way"] >= len(JOBS_WITH_THREADS) // 10
    assert answer_counts["sim_start_thread"] > len(JOBS_WITH_THREADS)
    assert answer_counts["ended in sim_wait_for"]


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("seed", [147, 141])
def test_job_ended_at_each_call_within_rows_completes_after_resume(seed: int) -> None:
    undisturbed = play(seed, ends=())
    answer_counts.clear()
    killed = 0
    for moment in range(0, undisturbed.calls, STEP):
        played = play(seed, ends=(End("call", moment),))
        assert not played.wrong, f"call {moment}: {played.wrong}"
        killed += any(word.startswith("killed") for word in played.words)
    assert killed >= 0.9 * undisturbed.calls // STEP
    assert sum(number for name, number in answer_counts.items() if name.startswith("ended in")) >= killed // 4


def test_interrupted_deletions_change_no_directory_in_c() -> None:
    """A part of the destination is a copy already: in its directories, nothing but deletions changes anything."""
    happened: Counter[str] = Counter()
    for seed in MIRRORS:
        played = play(seed, is_mirror=True)
        assert not played.wrong, f"seed {seed}: {played.wrong}"
        happened.update(played.words)
    assert happened[f"resumed in phase {int(Phase.DELETE)}, with records"] >= len(MIRRORS) // 10


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("seed", [4])
def test_deletion_ended_at_each_call_changes_no_directory(seed: int) -> None:
    """The second run has records, and waits for them before it deletes."""
    killed = 0
    for moment in range(0, 400, STEP):
        ends = End("phase", 2, Phase.STORE), End("phase", moment, Phase.DELETE)
        played = play(seed, ends=ends, is_mirror=True)
        assert not played.wrong, f"call {moment}: {played.wrong}"
        killed += played.words.count("killed in phase") == len(ends)
    assert killed >= 200 // STEP


@pytest.mark.parametrize("length", [255, 256, 1024])
def test_type_of_a_long_name_is_found_out_or_left_to_the_caller(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """FUSE has names of up to 1,024 bytes; here no type is listed."""
    real = Calls.entries
    monkeypatch.setattr(Calls, "entries", lambda *words: [(number, 0, name) for number, _, name in real(*words)])
    disk = Disk(Names.ANY)
    world = World(Chance("names"), T0, grain=5, cost=1e-5)
    world.calls = Calls(disk, world, lambda: 0.001)
    found: list[ListPathsResult] = []

    def walk() -> None:
        world.begin()
        for path in (b"/top", b"/top/inner"):
            world.calls.mkdir(path)
        for name in (b"x" * length, b"file"):
            world.calls.close(world.calls.open(b"/top/inner/" + name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        backend = NativeBackend(BackendSettings(PreservedMetadataKinds(), 0o022))
        batch = ListPathsBatch(
            world.calls.open(b"/", os.O_RDONLY),
            b"top",
            array("Q", [world.calls.stat(b"/top").st_ino]),
            world.calls.stat(b"/top").st_dev,
            10,
            5,
            world.now + 1,
            None,
            b"/",
        )
        ticket = backend.submit_batch(batch)
        while not ticket.is_done:
            backend.poll()
        found.append(ticket.result)
        backend.close()

    world.spawn("rank", 0, walk)
    assert not world.play()
    (result,) = found
    paths = result.packed_paths.split(b"\0")[:-1]
    left = [group.directory + b"/" + name for group in result.remaining for name in group.names]
    if length > 255:
        assert (paths, left) == ([b"/top/inner"], [b"top/inner"])
    else:
        assert sorted(paths) == [b"/top/inner", b"/top/inner/file", b"/top/inner/" + b"x" * length]
        assert not left


def test_same_seed_gives_same_job_in_c() -> None:
    assert play(7) == play(7)
    assert play(7, waits=True) == play(7, waits=True)


CRASH_GUARDS = {"SYNC_BEFORE_NAME": (3, 18, 31)}
"""Guards of C (``guards.h``), and jobs that lose contents in a loss of power when the guard is disabled.

A change of the code may change what happens in a job; one of the list has to fail.
"""


@pytest.mark.parametrize("guard", CRASH_GUARDS)
def test_crash_does_harm_without_the_guard(guard: str) -> None:
    seeds = CRASH_GUARDS[guard]
    with installed("c", guard):
        wrong = [seed for seed in seeds if "is (" in play(seed).wrong]
    assert wrong
    assert not any(play(seed).wrong for seed in wrong)


def test_each_call_of_the_backend_is_simulated() -> None:
    """Compare with the functions that the extension imports: one that is not wrapped would reach the real system."""
    listed = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", simulated_extension().__file__ or ""],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    imported = {re.sub("@.*", "", line.split()[-1]) for line in listed.splitlines()}
    unknown = {name for name in imported if not name.startswith(("Py", "_Py"))} - HARMLESS
    assert not unknown
    assert wrapped_functions() >= {"openat", "unlinkat", "renameat", "syscall", "fsync", "pthread_create"}
