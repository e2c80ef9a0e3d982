"""Without ``mode`` the umask applies: that of the first run of the job, whatever the umask of the resuming shell."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from tests.chaos.dataset import SPLIT, make_dataset
from tests.chaos.unfinished import STOPPED, listed
from tests.support.command import show, succeed, summary
from tests.support.faults import slowed
from tests.support.processes import background, wait_until
from tests.support.walk import walk

ACCESS_ACL = "system.posix_acl_access"


def kinds(tree: Path) -> dict[bytes, tuple[int, int]]:
    """Return type and mode of all items below ``tree`` except symbolic links, by path."""
    statuses = [(entry.path, entry.status.st_mode) for entry in walk(os.fsencode(tree))]
    return {path: (stat.S_IFMT(mode), stat.S_IMODE(mode)) for path, mode in statuses if not stat.S_ISLNK(mode)}


@pytest.mark.parametrize(("first", "later"), [(0o027, 0), (0, 0o077)])
def test_resumed_job_uses_the_umask_of_its_first_run(area: Path, env: dict[str, str], first: int, later: int) -> None:
    source, copy = area / "source", area / "copy"
    make_dataset(source, 59, files=150, directories=40, crossing=10)
    for path, (kind, _) in kinds(source).items():  # in all directories, so that some remain for the second run
        if kind == stat.S_IFDIR:
            os.mkfifo(os.path.join(os.fsencode(source), path, b"fifo"))
    for path, (kind, _) in kinds(source).items():
        item = os.path.join(os.fsencode(source), path)
        if ACCESS_ACL in os.listxattr(item):  # a copy without the ACL gets fewer permissions, whatever the umask
            os.removexattr(item, ACCESS_ACL)
        os.chmod(item, 0o777 if stat.S_ISDIR(kind) else 0o6666)
    shell = ["sh", "-c", f'umask {first:o}; exec "$@"', "sh"]
    arguments = ("--checkpoint-interval", "0.1", *SPLIT, "--no-preserve", "mode,ownership,acl", "-T", source, copy)
    wrap = [*shell, *slowed("mkdirat", 30)]
    with background(*arguments, ranks=2, env=env, wrap=wrap) as run:
        on_record = (area / "state" / "pcopy").glob
        assert wait_until(lambda: run.process.poll() is not None or list(on_record("*/run-*/facts-0")))
        run.send_signal(signal.SIGTERM)
        said = run.process.communicate(timeout=60)
        assert run.process.returncode == STOPPED, said
    assert len(listed(env)) == 1
    before = kinds(copy)
    done = succeed("--resume", "--json", ranks=2, env=env, umask=later)
    assert summary(done)["failed"] == 0, show(done)
    after = kinds(copy)
    wanted = {path: (kind, mode & 0o777 & ~first) for path, (kind, mode) in kinds(source).items()}
    assert after == wanted
    made = {after[path][0] for path in after.keys() - before.keys()}
    assert made >= {stat.S_IFREG, stat.S_IFDIR, stat.S_IFIFO}, "the second run has made too little"
