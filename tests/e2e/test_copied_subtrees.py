"""One call of the C backend copies a tree; here a call of the system fails below its first directory."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import native
from tests.support.command import succeed
from tests.support.faults import Fault, require_strace
from tests.support.oracle import differences


def make_chain(top: Path, depth: int) -> None:
    """Make a chain of directories with a file and a link in each."""
    for number in range(depth):
        top.mkdir()
        (top / "file").write_text(f"{number}")
        (top / "link").symlink_to(f"{number}")
        os.utime(top / "file", ns=(10**18, 10**18 + number))
        top /= f"{number}"


@pytest.mark.parametrize("below", ["0", "0/1", "0/1/2/3"])
@pytest.mark.parametrize(
    ("call", "side", "error"),
    [("fgetxattr", "copy", "EIO"), ("mkdirat", "copy", "EINTR"), ("statx", "source", "EINTR"),
     ("getdents64", "source", "EINTR")],
)  # fmt: skip
def test_failed_call_below_the_first_directory_is_repeated(
    area: Path, call: str, side: str, error: str, below: str
) -> None:
    """After ``fgetxattr`` has failed, it is not known whether files would inherit an ACL in a directory that was
    created: the slow path continues with it. The other calls fail before anything is created.
    """
    native.require()
    source, copy = area / "source", area / "copy"
    make_chain(source, 6)
    fault = Fault(area / "log", [call], area / side / below, error, "1")
    words = ("-q", "-n", "1", "-T", source, copy)
    succeed(*words, program="pcopy", wrap=fault.wrap(), env={"PCOPY_BACKEND": "c"})
    fault.check()
    assert not differences(source, copy)


def names_opened(log: Path) -> set[str]:
    return set(re.findall(r'openat\(\d+, "(file\d+)"', log.read_text()))


def test_files_of_the_last_copy_are_not_read_again(area: Path) -> None:
    """A job that begins right after another one has finished knows that it has not written the files itself."""
    native.require()
    require_strace()
    source, copy = area / "source", area / "copy"
    source.mkdir()
    for number in range(50):
        (source / f"file{number}").write_text(f"{number}")
    succeed("-q", "-n", "1", "-T", source, copy, program="pcopy")
    wrap = ["strace", "-f", "-qq", "-e", "trace=openat", "-o", str(area / "log")]
    words = ("-q", "-n", "1", "--existing", "changed", "-T", source, copy)
    subprocess.run(["sleep", "0.1"], check=True)  # more than the resolution of time stamps
    succeed(*words, program="pcopy", wrap=wrap, env={"PCOPY_BACKEND": "c"})
    assert not names_opened(area / "log")
    (source / "file7").write_text("8")
    os.utime(source / "file7", ns=(10**18, 10**18))
    succeed(*words, program="pcopy", wrap=wrap, env={"PCOPY_BACKEND": "c"})
    assert names_opened(area / "log") == {"file7"}
    assert not differences(source, copy)
