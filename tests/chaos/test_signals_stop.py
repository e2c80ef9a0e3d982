"""A signal ends a job in time, whatever it is doing, and items that were on storage by then are not copied again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.dataset import SPLIT, make_dataset
from tests.chaos.unfinished import GRACE, STOPPED
from tests.support.command import Argument, show, succeed, summary
from tests.support.faults import ITEM_BY_ITEM, SLOW, slowed
from tests.support.filesystems import scratch
from tests.support.oracle import differences
from tests.support.preload import hanging_syncs
from tests.support.processes import Run, background, wait_until
from tests.support.walk import temporaries, walk

GIB = 1 << 30


@pytest.fixture(scope="module")
def huge() -> Iterator[Path]:
    """A file with two chunks of 1 GiB; at least the first is full."""
    with scratch() as place:
        piece = os.urandom(1 << 20)
        with open(place / "huge", "wb") as file:
            for _ in range(1600):
                file.write(piece)
        yield place / "huge"


@pytest.fixture
def hanging() -> dict[str, str]:
    """An environment in which syncfs hangs from the fourth call of each rank on, when files are recorded."""
    return hanging_syncs(4)


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with scratch() as place:
        make_dataset(place / "source", 3)
        yield place / "source"


def the_job(area: Path) -> Path:
    (name,) = os.listdir(area / "state" / "pcopy")
    return area / "state" / "pcopy" / name


def wait_for_chunks(run: Run, area: Path) -> None:
    """Wait until the large file is being written."""
    assert wait_until(lambda: run.process.poll() is not None or [*area.glob(".pcopy-*.[0-9]*")])
    assert run.process.poll() is None, run.process.communicate()


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("options", [(), ("--hash", "xxh3-128")], ids=["plain", "digested"])
def test_large_chunks_do_not_delay_a_stop(
    huge: Path, area: Path, env: dict[str, str], options: tuple[str, ...]
) -> None:
    calls = slowed("pwrite64", 100)
    with background("--chunk-size", "1G", *options, huge, area / "copy", ranks=2, env=env, wrap=calls) as run:
        wait_for_chunks(run, area)
        time.sleep(0.5)
        run.send_signal(signal.SIGTERM)
        out, err = run.process.communicate(timeout=GRACE)
        assert run.process.returncode == STOPPED, (out, err)
        assert b"stopped by SIGTERM" in err
        assert b"pcopy: to go on: pcopy --resume %s\n" % the_job(area).name.encode() in err
        assert run.survivors() == []
    succeed("--resume", ranks=2, env=env)
    subprocess.run(["cmp", huge, area / "copy"], check=True)
    assert os.listdir(area / "state" / "pcopy") == []
    assert temporaries(os.fsencode(area)) == []


def inodes(copy: Path) -> dict[bytes, int]:
    return {entry.path: entry.status.st_ino for entry in walk(os.fsencode(copy)) if entry.status.st_nlink == 1}


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]], ids=["once", "twice"])
def test_hanging_sync_does_not_delay_a_stop(
    tree: Path, area: Path, env: dict[str, str], hanging: dict[str, str], numbers: list[signal.Signals]
) -> None:
    """Items recorded before the hanging sync are not copied again."""
    arguments: list[Argument] = [
        "--checkpoint-interval",
        "0.1",
        *SPLIT,
        "--signature",
        area / "sig",
        tree,
        area / "copy",
    ]
    env_of_run = env | hanging | {"PCOPY_TEST_HANGING": str(area / "hanging")}
    with background(*arguments, ranks=2, env=env_of_run, wrap=slowed(ITEM_BY_ITEM, SLOW)) as run:
        assert wait_until(lambda: run.process.poll() is not None or (area / "hanging").exists())
        assert run.process.poll() is None, run.process.communicate()
        for number in numbers:
            run.send_signal(number)
            time.sleep(0.2)  # an earlier second signal would be regarded as an echo of the first
        _, err = run.process.communicate(timeout=GRACE)
        once = len(numbers) == 1
        assert run.process.returncode == (STOPPED if once else 128 + signal.SIGINT), err
        assert (b"pcopy: to go on: pcopy --resume %s\n" % the_job(area).name.encode() in err) == once
        assert run.survivors() == []
    before = inodes(area / "copy")
    done = summary(succeed("--resume", "--json", ranks=3, env=env))
    assert done["failed"] == done["skipped"] == 0
    assert differences(tree, area / "copy") == []
    after = inodes(area / "copy")
    assert [path for path, inode in before.items() if after.get(path) == inode], "everything was copied again"
    assert os.listdir(area / "state" / "pcopy") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
@pytest.mark.parametrize("kept", [True, False])
def test_exit_status_shows_whether_a_checkpoint_exists(
    huge: Path, area: Path, env: dict[str, str], number: signal.Signals, kept: bool
) -> None:
    options = [] if kept else ["--checkpoint", "none"]
    calls = slowed("pwrite64", 6)
    with background(*options, "--chunk-size", "1G", huge, area / "copy", ranks=2, env=env, wrap=calls) as run:
        wait_for_chunks(run, area)
        run.send_signal(number)
        _, err = run.process.communicate(timeout=GRACE)
        assert run.process.returncode == (STOPPED if kept else 128 + number), err
        assert (b"to go on" in err) == kept
    assert (area / "state").exists() == kept
    if kept:
        discarded = succeed("--discard", the_job(area).name, env=env)
        assert os.listdir(area / "state" / "pcopy") == [], show(discarded)
    assert temporaries(os.fsencode(area)) == []


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("quick", [True, False])
def test_hanging_final_sync_does_not_delay_a_stop(
    tree: Path, area: Path, env: dict[str, str], hanging: dict[str, str], kept: bool, quick: bool
) -> None:
    """A quick job syncs in its own process, a longer one in a process started for that."""
    reported = area / "hanging"
    env_of_run = env | hanging | {"PCOPY_TEST_HANGS": "1", "PCOPY_TEST_HANGING": str(reported)}
    options = () if kept else ("--checkpoint", "none")
    source, wrap = tree / "small", [] if quick else slowed(ITEM_BY_ITEM, 2000)
    with background(*options, "-T", source, area / "copy", ranks=2, env=env_of_run, wrap=wrap) as run:
        assert wait_until(lambda: run.process.poll() is not None or reported.exists())
        time.sleep(0.2)
        assert run.process.poll() is None, run.process.communicate()
        spent = seconds_on_a_processor(run)
        time.sleep(1)
        assert seconds_on_a_processor(run) - spent < 0.5
        run.send_signal(signal.SIGTERM)
        _, err = run.process.communicate(timeout=GRACE)
        assert run.process.returncode == (STOPPED if kept else 128 + signal.SIGTERM), err
        assert run.survivors() == []
    assert differences(source, area / "copy") == []
    if kept:
        succeed("--resume", ranks=2, env=env)
        assert differences(source, area / "copy") == []


def seconds_on_a_processor(run: Run) -> float:
    """Return the processor time of all processes of a run."""
    ticks = 0
    for pid in run.processes():
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
