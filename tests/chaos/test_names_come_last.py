"""Under skip, newer and fail items wait for their names: what a job leaves that is stopped, discarded or repaired."""

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
def test_a_job_that_is_not_kept_leaves_nothing_under_temporary_names(
    area: Path, env: dict[str, str], calls: str
) -> None:
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
def test_nor_what_lacks_metadata(area: Path, env: dict[str, str], kind: str) -> None:
    """Of a task that has not come to its end."""
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
def test_a_discarded_job_leaves_nothing_under_temporary_names(area: Path, env: dict[str, str], calls: str) -> None:
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
def test_what_the_user_has_written_to_is_not_repaired(area: Path, env: dict[str, str], policy: str) -> None:
    """What has the source's time still has been damaged, and is."""
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
    assert b"it was changed since it was copied" in err
    mended = [(copy / f"directory-{number}/file-38").read_bytes() for number in range(8)]
    assert b"38" in mended
    written = {(copy / f"directory-{number}/file-39").read_bytes() for number in range(8)}
    assert written == {b"XX"}


FLAGS_ARE_NOT_KNOWN = ("inject=renameat2:error=EINVAL",)
NOR_ARE_LINKS = (*FLAGS_ARE_NOT_KNOWN, "inject=linkat:error=EPERM")
WAYS = pytest.mark.parametrize("faults", [FLAGS_ARE_NOT_KNOWN, NOR_ARE_LINKS], ids=["by links", "over placeholders"])


def traced(*expressions: str) -> list[str]:
    require_strace()
    line = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=renameat2,linkat,renameat,unlinkat"]
    return [*line, *(word for expression in expressions for word in ("-e", expression))]


def put_the_users_own(source: Path, copy: Path) -> list[Path]:
    """Newer than the source, and of no less size."""
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
def test_names_are_given_where_renames_know_no_flags(
    area: Path, env: dict[str, str], policy: str, faults: tuple[str, ...]
) -> None:
    source, copy = area / "source", area / "copy"
    make_source(source)
    mine = put_the_users_own(source, copy)
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
def test_killed_while_a_name_is_given_without_flags(area: Path, env: dict[str, str], faults: tuple[str, ...]) -> None:
    """The item has both names then, or an empty file of the job's own has the final one."""
    source, copy = area / "source", area / "copy"
    make_source(source)
    halfway = "unlinkat" if faults == FLAGS_ARE_NOT_KNOWN else "renameat"
    words: list[Argument] = [*BUSY, "--existing", "skip", "-T", source, copy]
    run = pcopy(*words, ranks=1, env=env, wrap=traced(*faults, f"inject={halfway}:signal=KILL:when=30"))
    assert run.returncode not in (0, 1, 2, 70, STOPPED), show(run)
    found = [path.stat() for path in copy.glob("*/file-*")]
    assert [status for status in found if status.st_nlink == 2 or not status.st_size]
    reported = summary(succeed("--resume", "--json", ranks=2, env=env, wrap=traced(*faults)))
    assert reported["skipped"] == 0
    assert differences(source, copy) == []
    assert temporaries(os.fsencode(copy)) == []
