"""With the policies skip, newer and fail, items get their final names late: state after a stop, a discard or a
repair."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.chaos.unfinished import BUSY, STOPPED
from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.faults import Fault, require_strace, slowed
from tests.support.oracle import differences
from tests.support.processes import background, wait_until
from tests.support.users import NOBODY, require_root
from tests.support.walk import temporaries

POLICIES = ("skip", "newer", "fail")


def make_source(source: Path) -> None:
    for number in range(8):
        (source / f"directory-{number}").mkdir(parents=True)
        for index in range(40):
            (source / f"directory-{number}" / f"file-{index}").write_bytes(b"%d" % index)
        (source / f"directory-{number}" / "link").symlink_to("file-1")


@pytest.mark.parametrize("calls", ["utimensat", "renameat2"])
def test_stopped_job_without_checkpoint_leaves_no_temporary_names(area: Path, env: dict[str, str], calls: str) -> None:
    source, copy = area / "source", area / "copy"
    make_source(source)

    def half() -> bool:
        left = len([*copy.glob("*/.pcopy-*")])
        named = len([*copy.glob("*/file-*")])
        return left > 100 if calls == "utimensat" else named > 20

    words: list[Argument] = ["--checkpoint", "none", "-u", "-T", source, copy]
    with background(*words, ranks=2, env=env, wrap=slowed(calls, 3)) as run:
        assert wait_until(lambda: run.process.poll() is not None or half())
        run.send_signal(signal.SIGTERM)
        assert run.end(20) not in (0, 1, STOPPED)
    assert temporaries(os.fsencode(copy)) == []


@pytest.mark.parametrize("kind", ["files", "links"])
def test_stopped_job_without_checkpoint_leaves_no_items_that_lack_metadata(
    area: Path, env: dict[str, str], kind: str
) -> None:
    """The items belong to a task that is not complete."""
    require_root("give files away")
    source, copy = area / "source", area / "copy"
    source.mkdir()
    for index in range(250):
        path = source / str(index)
        if kind == "files":
            path.write_bytes(b"%d" % index)
        else:
            path.symlink_to("nowhere")
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    fault = Fault(area / "log", ["fchown", "chown"], None, "EIO", slow=["utimensat"])
    words: list[Argument] = ["--checkpoint", "none", "--existing", "skip", "-T", source, copy]
    with background(*words, ranks=1, env=env, wrap=fault.wrap()) as run:
        assert wait_until(lambda: run.process.poll() is not None or len([*copy.glob(".pcopy-*")]) > 20)
        run.send_signal(signal.SIGTERM)
        assert run.end(20) not in (0, 1, STOPPED)
    fault.check()
    assert temporaries(os.fsencode(copy)) == []


@pytest.mark.parametrize("calls", ["utimensat", "renameat2"])
def test_discarded_job_leaves_no_temporary_names(area: Path, env: dict[str, str], calls: str) -> None:
    source, copy = area / "source", area / "copy"
    make_source(source)
    words: list[Argument] = [*BUSY, "--existing", "skip", "-T", source, copy]
    with background(*words, ranks=2, env=env, wrap=slowed(calls, 3)) as run:
        wanted = "*/file-*" if calls == "renameat2" else "*/.pcopy-*"
        assert wait_until(lambda: run.process.poll() is not None or len([*copy.glob(wanted)]) > 20)
        assert wait_until(lambda: [*area.glob("state/pcopy/*/run-1/facts-*")])
        run.kill_all()
        run.process.communicate()
        assert run.survivors() == []
    assert temporaries(os.fsencode(copy))
    (name,) = os.listdir(area / "state" / "pcopy")
    succeed("--discard", name, env=env)
    assert temporaries(os.fsencode(copy)) == []


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("policy", POLICIES)
def test_file_changed_by_the_user_is_not_repaired(area: Path, env: dict[str, str], policy: str) -> None:
    """A changed file that still has the time of the source is treated as damaged, and repaired."""
    source, copy = area / "source", area / "copy"
    make_source(source)
    words: list[Argument] = ["--existing", policy, "--repair", "-T", source, copy]
    with background(*words, env=env, wrap=slowed("fadvise64", 40)) as run:
        assert wait_until(lambda: len([*copy.glob("*/file-*")]) == 320)
        for name, is_damage in (("file-38", True), ("file-39", False)):
            for number in range(8):
                path = copy / f"directory-{number}" / name
                status = path.stat()
                path.write_bytes(b"XX")
                if is_damage:
                    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        out, err = run.process.communicate(timeout=60)
    assert run.process.returncode == 1, (out, err)
    assert b"the copy was changed after it was written" in err
    mended = [(copy / f"directory-{number}/file-38").read_bytes() for number in range(8)]
    assert b"38" in mended
    written = {(copy / f"directory-{number}/file-39").read_bytes() for number in range(8)}
    assert written == {b"XX"}


WITHOUT_RENAME_FLAGS = ("inject=renameat2:error=EINVAL",)
WITHOUT_FLAGS_AND_LINKS = (*WITHOUT_RENAME_FLAGS, "inject=linkat:error=EPERM")
WAYS = pytest.mark.parametrize(
    "faults", [WITHOUT_RENAME_FLAGS, WITHOUT_FLAGS_AND_LINKS], ids=["by links", "over placeholders"]
)


def traced(*expressions: str) -> list[str]:
    require_strace()
    line = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=renameat2,linkat,renameat,unlinkat"]
    return [*line, *(word for expression in expressions for word in ("-e", expression))]


def create_users_files(source: Path, copy: Path) -> list[Path]:
    """Create files that are newer than the source and not smaller."""
    mine = [copy / f"directory-{number}" / name for number in range(3) for name in ("file-7", "file-8")]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine")
    for path in source.rglob("*"):
        os.utime(path, (10**9, 10**9), follow_symlinks=False)
    return mine


def unlink_and_keep_times(path: Path) -> None:
    status = path.parent.stat()
    path.unlink()
    os.utime(path.parent, ns=(status.st_atime_ns, status.st_mtime_ns))


@WAYS
@pytest.mark.parametrize("policy", ["skip", "newer"])
def test_items_get_their_names_where_rename_supports_no_flags(
    area: Path, env: dict[str, str], policy: str, faults: tuple[str, ...]
) -> None:
    source, copy = area / "source", area / "copy"
    make_source(source)
    mine = create_users_files(source, copy)
    reported = summary(
        succeed("--json", "--existing", policy, "-T", source, copy, ranks=2, env=env, wrap=traced(*faults))
    )
    assert reported["skipped"] == len(mine)
    assert {path.read_bytes() for path in mine} == {b"mine"}
    for path in [*mine, *(source / path.relative_to(copy) for path in mine)]:
        unlink_and_keep_times(path)
    assert differences(source, copy) == []
    assert temporaries(os.fsencode(copy)) == []


@WAYS
def test_job_killed_while_naming_an_item_without_rename_flags_is_resumed(
    area: Path, env: dict[str, str], faults: tuple[str, ...]
) -> None:
    """After the kill the item has both names, or an empty placeholder of the job has the final name."""
    source, copy = area / "source", area / "copy"
    make_source(source)
    halfway = "unlinkat" if faults == WITHOUT_RENAME_FLAGS else "renameat"
    words: list[Argument] = [*BUSY, "--existing", "skip", "-T", source, copy]
    run = pcopy(*words, ranks=1, env=env, wrap=traced(*faults, f"inject={halfway}:signal=KILL:when=30"))
    assert run.returncode not in (0, 1, 2, 70, STOPPED), show(run)
    found = [path.stat() for path in copy.glob("*/file-*")]
    assert [status for status in found if status.st_nlink == 2 or not status.st_size]
    reported = summary(succeed("--resume", "--json", ranks=2, env=env, wrap=traced(*faults)))
    assert reported["skipped"] == 0
    assert differences(source, copy) == []
    assert temporaries(os.fsencode(copy)) == []
