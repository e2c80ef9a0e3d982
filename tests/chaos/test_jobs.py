"""What users do with jobs that did not end: they list them, go on with them, discard them, and change things."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.dataset import SPLIT, make_dataset
from tests.chaos.interrupted import TOTALS
from tests.support.command import Argument, Completed, pcopy, show, succeed, summary
from tests.support.faults import ITEM_BY_ITEM, SLOW, Fault, slowed
from tests.support.filesystems import Place, mounted, remove, scratch
from tests.support.oracle import changes, differences, snapshot
from tests.support.processes import Run, background, wait_until
from tests.support.users import NOBODY, is_root
from tests.support.walk import temporaries

REFUSED, INCOMPLETE, STOPPED = 2, 1, 75
GRACE = 5.5
"""Seconds, more than those for which an item of the destination counts as the job's own."""

BUSY = ("--checkpoint-interval", "0.05", *SPLIT)


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with scratch() as place:
        make_dataset(place / "source", 31, files=500, directories=70)
        yield place / "source"


@pytest.fixture
def env(area: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(area / "state")}


Stop = Callable[..., str]


@pytest.fixture
def stop(area: Path, env: dict[str, str]) -> Stop:
    """``stop(arguments…)`` starts a job, ends it when it has epochs on record, and returns its name.

    Each of its items takes ``SLOW`` milliseconds: it is far from its end by then.
    """

    def run_and_stop(
        *arguments: Argument,
        ranks: int = 3,
        number: int = signal.SIGTERM,
        until: Callable[[], object] = lambda: True,
        slow: tuple[str, int] = (ITEM_BY_ITEM, SLOW),
        **options: Any,
    ) -> str:
        state = area / "state" / "pcopy"
        before = set(os.listdir(state)) if state.exists() else set()

        def begun() -> bool:
            found = {path.parts[-3] for path in state.glob("*/run-*/facts-0")}
            return bool(found - before and until())

        with background(*BUSY, *arguments, ranks=ranks, env=env, wrap=slowed(*slow), **options) as run:
            assert wait_until(lambda: run.process.poll() is not None or begun())
            run.send_signal(number) if number != signal.SIGKILL else run.kill_all()
            out, err = run.process.communicate(timeout=20)
            assert run.process.returncode == (STOPPED if number != signal.SIGKILL else -number), (out, err)
        (name,) = set(os.listdir(state)) - before
        return name

    return run_and_stop


def listed(env: dict[str, str], **options: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in succeed("--jobs", "--json", env=env, **options).stdout.splitlines()]


def check_equal(source: Path, copy: Path) -> None:
    assert differences(source, copy) == []
    assert temporaries(os.fsencode(copy)) == []


def test_jobs_are_listed_and_chosen(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    """One is gone on with by itself, several are not guessed from; a killed one is told from a stopped one."""
    assert succeed("--jobs", env=env).stdout == b"no unfinished jobs in %s\n" % os.fsencode(area / "state" / "pcopy")
    first = stop(tree, area / "one")
    second = stop(tree, area / "two", number=signal.SIGKILL)
    found = {job["job"]: job for job in listed(env)}
    assert {name: job["state"] for name, job in found.items()} == {first: "stopped", second: "interrupted"}
    assert found[first]["destination"] == str(area / "one")
    assert found[first]["locked"] == []
    table = succeed("--jobs", env=env).stdout.decode()
    assert first in table and second in table
    refused = pcopy("--resume", env=env)
    assert refused.returncode == REFUSED, show(refused)
    assert b"2 unfinished jobs can be meant; name one: pcopy --resume JOB" in refused.stderr
    assert first.encode() in refused.stderr and second.encode() in refused.stderr
    succeed("--resume", second, env=env, cwd="/")
    check_equal(tree, area / "two")
    succeed("--resume", env=env, cwd="/")
    check_equal(tree, area / "one")
    assert listed(env) == []
    assert pcopy("--resume", env=env).returncode == REFUSED
    assert pcopy("--resume", first, env=env).returncode == REFUSED


def test_the_same_command_line_starts_and_goes_on(tree: Path, area: Path, env: dict[str, str]) -> None:
    job = area / "job"
    arguments: list[Argument] = ["--checkpoint", job, *BUSY, "--signature", area / "sig", tree, area / "copy"]
    with background(*arguments, ranks=3, env=env, wrap=slowed(ITEM_BY_ITEM, SLOW)) as run:
        assert wait_until(lambda: run.process.poll() is not None or [*job.glob("run-1/facts-0")])
        run.send_signal(signal.SIGUSR1)
        _, err = run.process.communicate(timeout=20)
        assert run.process.returncode == STOPPED, err
        assert b"pcopy: to go on: pcopy --resume %s\n" % os.fsencode(job) in err
    other = pcopy(*arguments[:-1], area / "other", ranks=2, env=env)
    assert other.returncode == REFUSED, show(other)
    assert b"(DST differ" in other.stderr, show(other)
    other = pcopy("--existing", "skip", "--no-preserve", "mode", *arguments, ranks=2, env=env)
    assert other.returncode == REFUSED, show(other)
    assert b"--existing" in other.stderr and b"--preserve" in other.stderr, show(other)
    assert not (area / "other").exists()
    other = pcopy(*arguments[:-2], f"{tree}/", area / "copy", ranks=2, env=env)
    assert other.returncode == REFUSED and b"(SRC differ)" in other.stderr, show(other)
    check_outputs_of_a_resume(tree, area, arguments, env)
    succeed(*arguments[:-2], f"./../{tree.parent.name}/{tree.name}", area / "copy", ranks=2, env=env, cwd=tree.parent)
    check_equal(tree, area / "copy")
    assert not job.exists()
    assert (area / "sig").exists()


def check_outputs_of_a_resume(tree: Path, area: Path, arguments: list[Argument], env: dict[str, str]) -> None:
    """They are looked at before anything is copied, as in a first run."""
    before = snapshot(area / "copy")
    (area / "sig").mkdir()
    for words in (arguments, ["--resume", area / "job"]):
        run = pcopy(*words, ranks=2, env=env)
        assert run.returncode == REFUSED, show(run)
        assert run.stderr == b"pcopy: %s: is a directory; name a file\n" % os.fsencode(area / "sig")
    (area / "sig").rmdir()
    run = pcopy("--resume", area / "job", "--errors", tree / "errors", ranks=2, env=env)
    assert run.returncode == REFUSED and b"lies in" in run.stderr, show(run)
    assert changes(before, snapshot(area / "copy")) == []


def test_a_job_of_which_only_the_signature_is_missing(tree: Path, area: Path, env: dict[str, str]) -> None:
    """Its place was taken while the job ran."""
    words = (*BUSY, "--signature", area / "sig", tree, area / "copy")
    with background(*words, ranks=3, env=env, wrap=slowed(ITEM_BY_ITEM, SLOW)) as run:
        assert wait_until(lambda: run.process.poll() is not None or [*area.glob("state/pcopy/*/run-1/facts-0")])
        (area / "sig").mkdir()
        _, err = run.process.communicate(timeout=60)
        assert run.process.returncode == INCOMPLETE, err
    assert err.count(os.fsencode(area / "sig")) == 1, err
    assert [(job["state"], job["failed"]) for job in listed(env)] == [("not all written", 0)]
    (area / "sig").rmdir()
    succeed("--resume", env=env)
    check_equal(tree, area / "copy")
    assert (area / "sig").is_file()


def test_nobody_else_goes_on_with_a_job_that_runs(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    """Neither with its first run, nor with a resumed one; once it is dead, at once."""
    name = stop(tree, area / "copy")
    with background("--resume", name, ranks=2, env=env, wrap=slowed(ITEM_BY_ITEM, 50)) as run:
        assert wait_until(lambda: len(listed(env)[0]["locked"]) == 2)
        for arguments in (["--resume", name], ["--resume"], ["--discard", name]):
            refused = pcopy(*arguments, env=env)
            assert refused.returncode == REFUSED, show(refused)
            assert b" on this job; wait" in refused.stderr or b"are being worked on" in refused.stderr, show(refused)
        run.kill_all()
        run.end(10)
    assert listed(env)[0]["locked"] == []
    succeed("--resume", name, env=env)
    check_equal(tree, area / "copy")


def test_a_discarded_job_leaves_no_temporary_files(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    copy = area / "copy"
    name = stop(tree, copy, number=signal.SIGKILL, until=lambda: any(map(under_way, copy.glob("**/.pcopy-*"))))
    run = succeed("--discard", name, env=env)
    assert run.stdout == b"discarded\n"
    assert listed(env) == []
    assert not (area / "state" / "pcopy" / name).exists()
    assert temporaries(os.fsencode(copy)) == []
    again = pcopy("--discard", name, env=env)
    assert again.returncode == REFUSED, show(again)


def under_way(path: Path) -> bool:
    """A split file that has been on record: epochs pass faster than such a file is filled."""
    return "-clock" not in path.name


def large_under_way(copy: Path) -> list[Path]:
    """Split files that are being filled."""
    try:
        return [path for path in copy.iterdir() if path.name.startswith(".pcopy-") and under_way(path)]
    except OSError:
        return []


@pytest.fixture
def large(area: Path) -> Path:
    """A directory with a file that takes a while."""
    (area / "large").mkdir()
    piece = os.urandom(1 << 20)
    with open(area / "large" / "file", "wb") as file:
        for number in range(300):
            file.write(number.to_bytes(4, "big") + piece[4:])
    (area / "large" / "small").write_bytes(b"small")
    return area / "large"


def stop_in_the_midst(stop: Stop, large: Path, copy: Path, env: dict[str, str]) -> str:
    """Killed when chunks are on record: some epochs after the file was opened."""
    seen: list[int] = []

    def later() -> bool:
        sizes = [path.stat().st_size for path in copy.parent.glob("state/pcopy/*/run-1/facts-*")]
        if large_under_way(copy):
            seen.append(sum(sizes))
        return len(set(seen)) > 6

    return stop(large, copy, ranks=2, number=signal.SIGKILL, until=later, slow=("copy_file_range", 10))


def test_a_source_that_changed_meanwhile_is_copied_anew(
    large: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    name = stop_in_the_midst(stop, large, area / "copy", env)
    with open(large / "file", "r+b") as file:
        file.write(b"changed")
    run = succeed("--resume", name, "--json", ranks=3, env=env)
    check_equal(large, area / "copy")
    assert summary(run)["found"] == 3
    assert summary(run)["bytes"] == (300 << 20) + 5
    told = b"pcopy: %s: has changed since the job was interrupted; its copy begins anew\n"
    assert told % os.fsencode(large / "file") in run.stderr, show(run)


@pytest.mark.parametrize("harm", ["truncated", "removed", "replaced"])
def test_a_temporary_file_that_was_harmed_meanwhile(
    large: Path, area: Path, env: dict[str, str], stop: Stop, harm: str
) -> None:
    name = stop_in_the_midst(stop, large, area / "copy", env)
    (temporary,) = large_under_way(area / "copy")
    if harm == "truncated":
        os.truncate(temporary, 1000)
    else:
        size = temporary.stat().st_size
        temporary.unlink()
        if harm == "replaced":
            with open(temporary, "wb") as file:
                file.truncate(size)
    run = succeed("--resume", name, "--json", ranks=3, env=env)
    check_equal(large, area / "copy")
    assert summary(run)["files"] == 2


def test_a_directory_that_vanished_meanwhile_is_reported(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    """Its items were copied and are gone, or could not be copied any more: the job says so, or makes it good."""
    copy = area / "copy"
    name = stop(tree, copy)
    victims = [path for path in copy.iterdir() if path.is_dir() and not path.is_symlink()]
    for victim in victims:
        remove(victim)
    run = pcopy("--resume", name, "--json", ranks=2, env=env)
    if run.returncode == 0:
        check_equal(tree, copy)
    else:
        assert run.returncode == INCOMPLETE, show(run)
        assert b"No such file or directory" in run.stderr or b"Stale" in run.stderr, show(run)
        assert summary(run)["failed"] > 0


REFUSED_OPTIONS: list[list[Argument]] = [
    ["--existing", "skip"],
    ["--no-preserve", "mode"],
    ["--chunk-size", "2M"],
    ["--hash", "blake3"],
    ["--verify"],
    ["--checkpoint", "/elsewhere"],
    ["/some/source", "/some/destination"],
]


def test_options_that_change_the_result_are_refused(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    name = stop(tree, area / "copy")
    for options in REFUSED_OPTIONS:
        run = pcopy("--resume", name, *options, env=env)
        assert run.returncode == REFUSED, show(run)
        assert os.fsencode(options[0]) in run.stderr, show(run)
    options = ["--progress", "plain", "--max-errors", "7", "--checkpoint-interval", "1", "--memory", "1M", "-v"]
    succeed("--resume", name, *options, ranks=5, env=env)
    check_equal(tree, area / "copy")


def test_failed_items_are_tried_again(area: Path, env: dict[str, str]) -> None:
    """What is unreadable for an ordinary user is made readable between the runs."""
    source, copy = area / "source", area / "copy"
    make_dataset(source, 41, files=60, directories=10, crossing=10)
    os.chmod(source, 0o755)
    closed = source / "closed"
    closed.mkdir()
    (closed / "inside").write_bytes(b"inside")
    (source / "secret").write_bytes(b"secret")
    (source / "linked").write_bytes(b"linked")
    os.link(source / "linked", source / "also linked")
    give_away(source)
    for name, mode in (("closed", 0), ("secret", 0), ("linked", 0)):
        os.chmod(source / name, mode)
    copy.mkdir()
    os.chown(copy, NOBODY, NOBODY) if is_root() else None
    (area / "state").mkdir()
    os.chown(area / "state", NOBODY, NOBODY) if is_root() else None
    options: dict[str, Any] = {"env": env, "user": NOBODY, "ranks": 2}
    run = pcopy("--json", *SPLIT, "-T", source, copy, **options)
    assert run.returncode == INCOMPLETE, show(run)
    assert summary(run)["failed"] == 4, show(run)
    assert [job["state"] for job in listed(env, user=NOBODY)] == ["failed items"]
    again = pcopy("--resume", "--json", **options)
    assert again.returncode == INCOMPLETE, show(again)
    assert {key: summary(again)[key] for key in TOTALS} == {key: summary(run)[key] for key in TOTALS}
    for name, mode in (("closed", 0o755), ("secret", 0o644), ("linked", 0o600)):
        os.chmod(source / name, mode)
    done = pcopy("--resume", "--json", **options)
    assert done.returncode == 0, show(done)
    check_equal(source, copy)
    remove(area / "other")
    wanted = pcopy("--json", "--checkpoint", "none", *SPLIT, source, area / "other", env=env, ranks=2)
    assert {key: summary(done)[key] for key in TOTALS} == {key: summary(wanted)[key] for key in TOTALS}


def test_a_finished_directory_is_not_taken_for_a_new_one(area: Path, env: dict[str, str]) -> None:
    """Nothing was on record but the beginning when directories were finished, one of which now looks like a new one."""
    source, copy = area / "source", area / "copy"
    for tree in (source, copy):
        (tree / "directory" / "inner").mkdir(parents=True)
        (tree / "directory" / "file").write_bytes(os.fsencode(tree.name))
        (tree / "directory" / "inner" / "file").write_bytes(os.fsencode(tree.name))
    (source / "directory").chmod(0o700)
    (source / "failing").touch()
    os.utime(source / "failing", (2**31, 2**31))
    (copy / "failing" / "full").mkdir(parents=True)
    time.sleep(GRACE)
    options: list[Argument] = ["--json", "--existing", "newer", "-T"]
    run = pcopy(*options, source, copy, ranks=2, env=env)
    assert (run.returncode, summary(run)["failed"]) == (INCOMPLETE, 1), show(run)
    for facts in area.glob("state/pcopy/*/run-1/facts-*"):
        facts.unlink()
    remove(copy / "failing")
    done = summary(succeed("--resume", "--json", ranks=2, env=env))
    assert (done["skipped"], done["failed"]) == (2, 0)
    assert (copy / "directory" / "file").read_bytes() == b"copy"


def give_away(tree: Path) -> None:
    """To the ordinary user, and without what only root could copy."""
    if not is_root():
        return
    for directory, names, files in os.walk(tree):
        for name in ("", *names, *files):
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
                os.unlink(path)
                continue
            for attribute in os.listxattr(path, follow_symlinks=False):
                if attribute.startswith(("trusted.", "security.")):
                    os.removexattr(path, attribute, follow_symlinks=False)
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
            if not stat.S_ISLNK(mode):
                os.chmod(path, stat.S_IMODE(mode) & 0o777 | 0o700)


def test_another_directory_in_the_place_of_dst_is_refused(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    (area / "copy").mkdir()
    name = stop("-T", tree, area / "copy")
    (area / "copy").rename(area / "moved")
    (area / "copy").mkdir()
    run = pcopy("--resume", name, env=env)
    assert run.returncode == REFUSED, show(run)
    assert os.fsencode(area / "copy") in run.stderr
    assert os.listdir(area / "copy") == []
    (area / "copy").rmdir()
    (area / "moved").rename(area / "copy")
    succeed("--resume", name, env=env)
    check_equal(tree, area / "copy")


@pytest.mark.parametrize("first", ["mpi", None], ids=["begun under mpiexec", "begun locally"])
def test_launchers_may_change(tree: Path, area: Path, env: dict[str, str], stop: Stop, first: str | None) -> None:
    then = None if first else "mpi"
    until = (lambda: [*area.glob("state/pcopy/*/run-1/facts-2")]) if first else (lambda: True)
    if first:
        name = stop(tree, area / "copy", ranks=3, number=signal.SIGKILL, launcher=first, until=until)
    else:
        name = stop(tree, area / "copy", ranks=2)
    run = succeed("--resume", name, "--json", ranks=3 if then else 2, launcher=then, env=env)
    check_equal(tree, area / "copy")
    assert summary(run)["failed"] == 0


@pytest.mark.parametrize("store", ["lmdb", "auto", "pickle"])
def test_waiting_work_in_files(tree: Path, area: Path, env: dict[str, str], stop: Stop, store: str) -> None:
    (area / "spool").mkdir()
    options: list[Argument] = ["--memory", "4K", "--spool", area / "spool", "--checkpoint-store", store]
    name = stop(*options, tree, area / "copy", number=signal.SIGKILL)
    succeed("--resume", name, *options, ranks=2, env=env)
    check_equal(tree, area / "copy")
    assert os.listdir(area / "spool") == []


def test_a_job_in_a_directory_that_was_named_is_there_from_the_start(
    tree: Path, area: Path, env: dict[str, str]
) -> None:
    """Killed before anything is on record it begins anew, twice, and with the target that the first run meant."""
    job, copy = area / "job", area / "copy"
    arguments: list[Argument] = ["--checkpoint", job, *SPLIT, tree, copy]
    for words in (arguments, arguments, ["--resume", job]):
        with background(*words, ranks=3, env=env, wrap=slowed(ITEM_BY_ITEM, SLOW)) as run:
            assert wait_until(lambda: run.process.poll() is not None or announced(run))
            assert wait_until(lambda: run.process.poll() is not None or copy.exists())
            second = pcopy(*arguments, ranks=2, env=env)
            assert second.returncode == REFUSED, show(second)
            assert b"on this job; wait for its end" in second.stderr, show(second)
            run.kill_all()
            run.end(10)
        assert (job / "job").exists() and not (job / "current").exists()
    succeed(*arguments, ranks=2, env=env)
    check_equal(tree, copy)
    assert not job.exists()


def announced(run: Run) -> bytes:
    """The first line of output, which comes once the job is in its directory."""
    assert run.process.stdout is not None
    return bytes(run.process.stdout.readline())


UNUSABLE = {
    "full": b"which is no job's; name a new or an empty directory",
    "full/file": b"Not a directory; name a job's directory, or one to be made",
    "full/file/job": b"not a directory, so that",
    "source": b"copied from or to; name another directory",
    "source/job": b"copied from or to; name another directory",
    "copy": b"copied from or to; name another directory",
    "copy/job": b"copied from or to; name another directory",
    "link/job": b"copied from or to; name another directory",
    "/proc/job": b"No such file or directory; name another place",
}


@pytest.mark.parametrize(("launcher", "place"), [("mpi", "full"), *((None, place) for place in UNUSABLE)])
def test_a_directory_that_cannot_be_used_is_refused_at_once(
    area: Path, env: dict[str, str], place: str, launcher: str | None
) -> None:
    for name in ("source", "full"):
        (area / name).mkdir()
        (area / name / "file").touch()
    (area / "link").symlink_to("source")
    run = pcopy("--checkpoint", area / place, area / "source", area / "copy", ranks=2, env=env, launcher=launcher)
    assert run.returncode == REFUSED, show(run)
    (line,) = run.stderr.splitlines()
    assert os.fsencode(area / place) in line and UNUSABLE[place] in line
    assert sorted(os.listdir(area)) == ["full", "link", "source"]
    assert os.listdir(area / "source") == os.listdir(area / "full") == ["file"]


def test_nobody_waits_for_a_job_that_cannot_be_stored(tree: Path, area: Path, env: dict[str, str]) -> None:
    """What is in the way came after the start."""
    state = area / "state" / "pcopy"
    state.mkdir(parents=True, mode=0o700)
    began = time.monotonic()
    with background(
        "--checkpoint-interval", "0.5", tree, area / "copy", ranks=3, env=env, wrap=slowed(ITEM_BY_ITEM, SLOW)
    ) as run:
        assert wait_until(lambda: run.process.poll() is not None or (area / "copy").exists())
        state.rmdir()
        state.touch()
        _, err = run.process.communicate(timeout=60)
    assert run.process.returncode == 0, err
    assert time.monotonic() - began < 20
    (line,) = err.splitlines()
    told = b"pcopy: no more checkpoints, the job goes on without and cannot be resumed: "
    assert line.startswith(told + os.fsencode(state) + b": "), err
    check_equal(tree, area / "copy")


def put_nothing(copy: Path, saved: Path) -> None:
    """The directory is gone."""


def put_empty(copy: Path, saved: Path) -> None:
    copy.mkdir()


def put_file(copy: Path, saved: Path) -> None:
    copy.touch()


def put_link(copy: Path, saved: Path) -> None:
    copy.symlink_to(saved)


def put_copy(copy: Path, saved: Path) -> None:
    subprocess.run(["cp", "-a", saved, copy], check=True)


@pytest.mark.parametrize("put", [put_nothing, put_empty, put_file, put_link, put_copy])
def test_something_else_in_the_place_of_what_the_job_made_is_refused(
    area: Path, env: dict[str, str], put: Callable[[Path, Path], None]
) -> None:
    (area / "source" / "blocked").mkdir(parents=True)
    (area / "source" / "file").write_bytes(b"file")
    os.symlink("nowhere", area / "source" / "late")
    copy, saved = area / "copy", area / "saved"
    run = pcopy("--max-errors", "1", area / "source", copy, ranks=2, env=env, wrap=fail_symlinks(area))
    assert run.returncode == STOPPED, show(run)
    copy.rename(saved)
    put(copy, saved)
    before = sorted(area.rglob("*"))
    refused = pcopy("--resume", ranks=2, env=env)
    assert refused.returncode == REFUSED, show(refused)
    (line,) = refused.stderr.splitlines()
    assert line.startswith(b"pcopy: %s: not the directory that job " % os.fsencode(copy)), line
    assert b"(pcopy --discard) and start anew" in line
    assert [path for path in sorted(area.rglob("*")) if "state" not in path.parts] == [
        path for path in before if "state" not in path.parts
    ]
    if os.path.lexists(copy):
        remove(copy)
    saved.rename(copy)
    succeed("--resume", ranks=2, env=env)
    check_equal(area / "source", copy)


def fail_symlinks(area: Path) -> list[str]:
    return Fault(area / "log", ["symlinkat"], None, "EIO").wrap()


def test_a_removed_directory_is_not_taken_for_a_new_one_with_its_inode(
    area: Path, env: dict[str, str], on: Place
) -> None:
    """Such a file system gives the number of what was removed to what is made next."""
    copy = on("ext4") / "copy"
    (area / "source").mkdir()
    os.symlink("nowhere", area / "source" / "late")
    run = pcopy("--max-errors", "1", area / "source", copy, ranks=1, env=env, wrap=fail_symlinks(area))
    assert run.returncode == STOPPED, show(run)
    inode = copy.stat().st_ino
    copy.rmdir()
    copy.mkdir()
    if copy.stat().st_ino != inode:
        pytest.skip("the inode was not used again")
    refused = pcopy("--resume", ranks=1, env=env)
    assert refused.returncode == REFUSED, show(refused)
    assert b"it is another one" in refused.stderr, show(refused)


def test_a_job_that_stops_again_and_again_counts_nothing_below_zero(area: Path, env: dict[str, str]) -> None:
    source, copy = area / "source", area / "copy"
    for name in "abc":
        (source / name).mkdir(parents=True)
        (source / name / "file").write_bytes(b"file")
        (copy / name / "file" / "full").mkdir(parents=True)
    run = pcopy("--json", "--max-errors", "2", "-T", source, copy, ranks=2, env=env)
    for limit in (1, 1, 2, 1, 9):
        check_counts(run)
        run = pcopy("--resume", "--json", "--max-errors", str(limit), ranks=2, env=env)
    assert run.returncode == INCOMPLETE, show(run)
    assert (summary(run)["failed"], summary(run)["directories"]) == (3, 4)


def test_a_directory_that_fails_before_it_counts_is_not_counted_below_zero(area: Path, env: dict[str, str]) -> None:
    """It was to be finished when the job was stopped; its source is gone when its failed item is tried again."""
    source, copy = area / "source", area / "copy"
    (source / "directory").mkdir(parents=True)
    (source / "directory" / "file").write_bytes(b"file")
    (copy / "directory" / "file" / "full").mkdir(parents=True)
    check_counts(pcopy("--json", "--max-errors", "1", "-T", source, copy, ranks=1, env=env))
    (source / "directory").rename(area / "elsewhere")
    check_counts(pcopy("--resume", "--json", "--max-errors", "1", ranks=1, env=env))
    done = pcopy("--resume", "--json", "--max-errors", "9", ranks=2, env=env)
    assert done.returncode == INCOMPLETE, show(done)
    assert (summary(done)["failed"], summary(done)["directories"]) == (2, 1)


def check_counts(run: Completed) -> None:
    counts = {key: value for key, value in json.loads(run.stdout).items() if type(value) is int}
    assert run.returncode == STOPPED, show(run)
    assert min(counts.values()) >= 0, counts
    assert counts["copied"] + counts["skipped"] + counts["failed"] <= counts["found"], counts


def test_a_resumed_job_tells_of_all_that_was_verified(area: Path, env: dict[str, str]) -> None:
    """Items and bytes of all its runs; what an earlier one verified is not read again."""
    source, copy = area / "source", area / "copy"
    source.mkdir()
    for number in range(5):
        (source / str(number)).write_bytes(bytes(10_000))
    (source / "large").write_bytes(os.urandom(3 << 20))
    (source / "late").write_bytes(bytes(1000))
    os.link(source / "large", source / "linked")
    (copy / "late" / "full").mkdir(parents=True)
    run = pcopy("--verify", *SPLIT, "-T", source, copy, ranks=2, env=env)
    assert run.returncode == INCOMPLETE, show(run)
    assert b"  verified: 8 items, 3.05 MiB read back\n" in run.stdout, show(run)
    remove(copy / "late")
    done = succeed("--resume", ranks=2, env=env)
    assert b"  verified: 9 items, 3.05 MiB read back\n" in done.stdout, show(done)
    assert b"9 found = 9 copied" in done.stdout, show(done)


def test_a_job_is_not_discarded_while_its_destination_is_not_mounted(
    tree: Path, area: Path, env: dict[str, str], stop: Stop
) -> None:
    (area / "mounted").mkdir()
    with mounted("tmpfs", area / "mounted") as point:
        name = stop(tree, point / "copy")
    run = pcopy("--discard", name, env=env)
    assert run.returncode == REFUSED, show(run)
    (line,) = run.stderr.splitlines()
    assert os.fsencode(point) in line and b"mount it" in line, line
    assert b"remove %s" % os.fsencode(area / "state" / "pcopy" / name) in line
    assert [job["job"] for job in listed(env)] == [name]


def test_what_has_become_of_an_unfinished_copy_is_told(tree: Path, area: Path, env: dict[str, str], stop: Stop) -> None:
    """Whatever words name its destination now."""
    name = stop(tree, area / "copy")
    told = b"pcopy: job %s has not finished with this destination: " % name.encode()
    for words in (["-T", tree, area / "copy"], [f"{tree}/", area / "copy"], [tree, area / "copy"]):
        run = succeed("--existing", "skip", *words, ranks=2, env=env)
        assert told in run.stderr, show(run)
    assert told not in succeed(tree, area / "other", ranks=2, env=env).stderr


def test_a_copy_without_a_checkpoint_is_started_again_with_the_same_meaning(
    tree: Path, area: Path, env: dict[str, str]
) -> None:
    state = area / "state" / "pcopy"
    state.mkdir(parents=True, mode=0o700)
    again = b" as pcopy --no-target-directory -n 2 %s %s, since " % (os.fsencode(tree), os.fsencode(area / "copy"))
    cases: list[tuple[Path, list[Argument], bytes]] = [
        (area / "copy", [tree], again),
        (area / "other", ["-T", tree], b"\n"),
    ]
    for copy, words, advice in cases:
        with background(*words, copy, ranks=2, env=env, wrap=slowed(ITEM_BY_ITEM, SLOW)) as run:
            assert wait_until(copy.exists)
            state.rmdir()
            state.touch()
            run.send_signal(signal.SIGTERM)
            _, err = run.process.communicate(timeout=20)
        state.unlink()
        state.mkdir(mode=0o700)
        assert run.process.returncode == STOPPED, err
        assert b"no checkpoint was stored: start it again" + advice in err
