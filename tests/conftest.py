"""Fixtures of all tests: fresh directories on each kind of file system, for each test."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.support import command, native, preload
from tests.support.extent import SEED, everything, in_turn, seed
from tests.support.filesystems import FileSystems, Place, mounted, remove, scratch
from tests.support.skips import pytest_make_collect_report, pytest_runtest_makereport
from tests.support.turns import Turns

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]

END_TO_END_SECONDS = 120
"""Seconds after which a test counts as hanging. Most tests take a second or two."""

PROGRAMS = "/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of all tests, which contains only programs from packages of the system. Programs of the same names in home
directories, /usr/local or /opt do not affect tests.
"""

LONGEST = (
    "test_injected.py",
    "test_table.py",
    "test_metamorphic.py",
    "test_commands_in_docs.py",
    "test_running_jobs.py",
    "test_recovery.py",
    "test_kills.py",
    "test_named_files.py",
    "test_unchanged_links.py",
    "test_endings.py",
    "test_campaign.py",
    "test_given_again.py",
    "test_node.py",
    "test_harness.py",
    "test_mounts_meanwhile.py",
    "test_data_path.py",
    "test_rules.py",
    "test_functions.py",
    "test_bounds.py",
    "test_power_cut.py",
    "test_fidelity.py",
    "test_verify_hosts.py",
    "test_stopped_at_the_start.py",
    "test_large_files.py",
    "test_backend_conformance.py",
    "test_ptar_ways_of_reading.py",
    "test_newer_table.py",
    "test_power_loss.py",
    "test_prm.py",
    "test_pstripe.py",
    "test_waiting_work.py",
    "test_repair.py",
    "test_signature.py",
    "test_pverify.py",
    "test_ptar_resume.py",
    "test_jobs.py",
    "test_removed_meanwhile.py",
    "test_equal_times.py",
    "test_mirror.py",
    "test_docs.py",
)
"""Test files that take more than 12 s of processor time or wait long, the longest first."""

PLACE = pytest.StashKey[str]()
"""The directory in which the workers of pytest-xdist coordinate their turns, in the process that starts them."""
TURNS = pytest.StashKey[Turns]()
"""The turns of this process, if it is a worker."""
FILE_SYSTEMS = pytest.StashKey[FileSystems]()
"""The file systems that this process has mounted for several tests."""


def pytest_configure(config: pytest.Config) -> None:
    seed()
    os.environ["PATH"] = PROGRAMS
    _keep_bytecode()
    _disable_hypothesis_deadlines()
    # Runs inherit the signals that nohup and "&" ignore, and would not stop at SIGHUP.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "timeout(seconds): the test is ended and fails after so long")
    config.addinivalue_line("markers", "c_backend: the test is about the C backend, or needs one of its options")
    config.addinivalue_line("markers", "in_turn(most): so many variants of the test are run, with PCOPY_TESTS=all each")
    config.addinivalue_line("markers", "alone: the test measures time, and runs while no other worker has a test")
    if reported := getattr(config, "workerinput", None):
        config.stash[TURNS] = Turns(Path(reported["turns"]))
    else:
        native.build()


def _keep_bytecode() -> None:
    """Otherwise each worker and each run would compile all modules that it imports, which takes a minute per
    session.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def _disable_hypothesis_deadlines() -> None:
    from hypothesis import HealthCheck, settings  # pytest compiles it with rewritten asserts, which are stored, too

    settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy machine")


def pytest_report_header() -> list[str]:
    backend = f"no C backend, its tests are skipped: {native.why_not()}" if native.why_not() else "with the C backend"
    if everything():
        return ["PCOPY_TESTS=all: everything is run", backend]
    return [f"{SEED}={seed()} decides what is run beside what always is; PCOPY_TESTS=all runs everything", backend]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the common directory to a worker before it is started."""
    config = node.config
    if PLACE not in config.stash:
        made = tempfile.TemporaryDirectory(prefix="pcopy-test-turns-")
        config.add_cleanup(made.cleanup)
        config.stash[PLACE] = made.name
    node.workerinput["turns"] = config.stash[PLACE]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for the turn of the test before its time limit begins."""
    if TURNS not in item.config.stash:
        return (yield)
    with item.config.stash[TURNS].turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Exempt the collected tests from garbage collection.

    One worker compiles the tests for the others.
    """
    turns = session.config.stash.get(TURNS, None)
    gc.disable()
    try:
        if turns is None:
            return (yield)
        with turns.first():
            return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    variants: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("in_turn"):
            variants.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = {item for test, of_test in variants.items() for item in _not_in_turn(test, of_test)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    files = Counter(item.path for item in items)
    alone = Counter(item.path for item in items if item.get_closest_marker("alone"))
    lonely = {path for path, tests in alone.items() if 2 * tests >= files[path]}
    items.sort(key=lambda item: (item.path in lonely, *_place_of(item)))  # at the end they delay few others
    for item in items:
        if "e2e" in item.path.parts and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(END_TO_END_SECONDS))


def _place_of(item: pytest.Item) -> tuple[int, int]:
    """Sort the longest files first, so that no worker runs one alone at the end. Alternate tests that sleep with tests
    that compute, so that all processors are busy.
    """
    name = item.path.name
    place = LONGEST.index(name) if name in LONGEST else len(LONGEST)
    return place, crc32(item.nodeid.partition("::")[0].encode())


def _not_in_turn(test: str, variants: list[pytest.Item]) -> set[pytest.Item]:
    marker = variants[0].get_closest_marker("in_turn")
    assert marker is not None
    (most,) = marker.args
    return set(variants) - set(in_turn(variants, most, test))


@pytest.fixture(scope="session")
def session_scratch() -> Iterator[Path]:
    with scratch() as path:
        yield path


@pytest.fixture(scope="session", autouse=True)
def session_cleanup() -> Iterator[None]:
    """Remove compiled programs, homes and servers of runs at the end of the session."""
    yield
    command.clean_up()
    preload.clean_up()


@pytest.fixture(scope="session")
def file_systems(request: pytest.FixtureRequest, session_scratch: Path) -> Iterator[FileSystems]:
    made = request.config.stash[FILE_SYSTEMS] = FileSystems(session_scratch)
    yield made
    made.close()


@pytest.fixture
def area(session_scratch: Path) -> Iterator[Path]:
    """A fresh directory in memory, which every user may read and only its owner may write to."""
    path = Path(tempfile.mkdtemp(prefix="area-", dir=session_scratch))
    path.chmod(0o755)
    yield path
    remove(path)


@pytest.fixture
def on(file_systems: FileSystems) -> Iterator[Place]:
    """``on("xfs")`` returns a fresh directory on a file system of that kind, or skips the test if there is none."""
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(file_systems.directory(kind))


@pytest.fixture(autouse=True)
def release_loop_devices(request: pytest.FixtureRequest) -> Iterator[None]:
    """Release cached loop devices also after tests that use no file system: a worker may hold one from an earlier
    test.
    """
    yield
    if made := request.config.stash.get(FILE_SYSTEMS, None):
        made.release()


@pytest.fixture
def on_strict_atime(session_scratch: Path) -> Iterator[Path]:
    """A directory on a file system that records every access: the usual ``relatime`` would hide most of them."""
    with mounted("ext4", session_scratch, size=256 << 20, options="strictatime") as point:
        yield point


@pytest.fixture(params=["ext4", "xfs", "tmpfs"])
def filesystem(request: pytest.FixtureRequest, on: Place) -> Path:
    """A fresh directory on each kind of file system in turn."""
    return on(request.param)
