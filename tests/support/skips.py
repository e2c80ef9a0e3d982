"""The reasons for which a test may be skipped, by kind. A test that is skipped for any other reason fails.

This detects tests that no longer run. In CI root runs the tests, and bin/install-debian-packages and pip have installed
all requirements: there only the kernel, its file systems or the selection of tests are accepted reasons.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import Any

import pytest

from tests.support.users import is_root

NOT_PACKAGED = ("b3sum",)
"""Programs that ``bin/install-debian-packages tests`` does not install."""

KINDS = {
    "root": (
        r"only root can .+",
        r"it takes root and libfuse3-dev",
        r"needs a directory of somebody else's",
        r"an ordinary user owns all files here",
        r"gives files to others",
        r"only root may give files away",
        r"makes names unreadable for somebody else",
        r"devices are for root",
        r"no \S+ here that user \d+ can run with the package",
        r".* is no tmpfs, and only root can mount one",
    ),
    "program": (
        rf"there is no (?!{'|'.join(NOT_PACKAGED)})[\w.-]+( program)?( here)?",
        r"there is no C compiler here",
        r"there is no gcc, or no libfuse3-dev",
        r"there is no C backend( here|: .*)",
        r"there is no bindfs here, or no FUSE",
        r"no hosts of namespaces without .+",
        r"needs fincore",
        r"no MPICH(: .+)?",
        r"no library of Open MPI",
        r"no Open MPI: .+",
        r"no Slurm: .+",
        r"no packages for a root of \S+: bin/install-debian-packages tests downloads them",
        r"could not import '(blake3|mpi4py|zstandard|pyarrow|pyte|pcopy\.fsio\.backend\.\w+)': .+",
    ),
    "no program of CI": (
        rf"there is no ({'|'.join(NOT_PACKAGED)})( here)?",
        r"there is no ordinary user here",
        r"no Debian",
        r"apt knows no \S+ here",
    ),
    "kernel or file system": (
        r"[\w-]+ can't be mounted here: .*",
        r"this machine has no loop device for tests: .+",
        r"no (tmpfs with a quota|bind mounts|hosts of namespaces|FUSE|leases|extended attributes|ACLs) here(: .*)?",
        r"no FUSE here.*",
        r"bindfs( can't mount here)?: .*",
        r"bindfs can't mount here",
        r"chattr: .*",
        r"no automounter can be had here",
        r"this kernel('s ext4 can't fold case| makes no ext4 fail on demand| can't mount an overlay)",
        r"this file system has no extended attributes or no ACLs",
        r"the file system has no attributes( or ACLs)?",
        r"the file system holds no such times",
        r"no such time fits here",
        r"no file system here tells when a directory was made",
        r"the inode was not used again",
        r"identities can't be told here",
        r"reading changes no access time here",
        r"attributes of /proc can't be kept here",
        r"[\w.]+ can't be set here: .+",
        r"Slurm doesn't start: .*",
        r"srun --mpi=pmix doesn't work here: .*",
        r"this C library keeps what is freed by itself",
    ),
    "choice": (
        r"the page is about other versions than .+",
        r"the notes are about other versions of cp and rsync",
        r"needs the stand-in: .+",
        r"no run is forked",
        r"only the C backend leaves them unchanged",
        r"only the C backend leaves them out",
        r"the test is about the C backend",
        r"pverify does not load it",
        r"its index says where the archive ends",
        r"which device --existing newer keeps is tested with the types of items",
    ),
}
"""Regular expressions that match complete reasons."""

NEVER_IN_CI = ("root", "program")


def is_ci() -> bool:
    """Return True in CI (which sets the variable), where root runs the tests and everything is available."""
    return os.environ.get("CI") == "true" and is_root()


def kind_of(reason: str) -> str | None:
    """Return the kind of ``reason``, or None if it is in no list."""
    for kind, patterns in KINDS.items():
        if any(re.fullmatch(pattern, reason, re.DOTALL) for pattern in patterns):
            return kind
    return None


def complaint(reason: str) -> str:
    """Return why a test may not be skipped for ``reason``, or an empty string if it may."""
    kind = kind_of(reason)
    if kind is None:
        return f"skipped for a reason that is not in the lists of tests/support/skips.py: {reason}"
    if kind in NEVER_IN_CI and is_ci():
        return f"skipped in CI, which has what is needed (tests/support/skips.py, {kind}): {reason}"
    return ""


def _judge(report: Any, error: BaseException | None) -> None:
    if report.skipped and isinstance(error, pytest.skip.Exception) and (why := complaint(error.msg or "")):
        report.outcome = "failed"
        report.longrepr = why


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _judge(report, call.excinfo.value if call.excinfo else None)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge a module that skips itself completely."""
    report = yield
    call: pytest.CallInfo[Any] | None = getattr(report, "call", None)
    _judge(report, call.excinfo.value if call and call.excinfo else None)
    return report
