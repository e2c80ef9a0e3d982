"""Two file systems that look like Lustre to programs with a certain environment: those of the stand-in, or a real
Lustre.

The variable ``PCOPY_TEST_LUSTRE`` may name a directory on a real Lustre with 8 OSTs, the pools ``POOLS`` and one stripe
of 1 MiB by default; then both file systems are directories in it. Tests that need features of the stand-in are skipped
then: other OSTs, a log of calls, refusals.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lustre import asking, standin
from tests.lustre.standin import Event, Shown
from tests.support.filesystems import mounted, remove

REAL = "PCOPY_TEST_LUSTRE"
POOLS = "fast:0,1,2,3;slow:4,5"

SIZE = 512 << 20
"""Size of each file system in bytes; the images are sparse."""


@dataclass
class Lustre:
    """``first`` and ``second`` are mount points of separate file systems."""

    first: Path
    second: Path
    log: Path
    is_real: bool = False

    def need_standin(self, why: str) -> None:
        if self.is_real:
            pytest.skip(f"needs the stand-in: {why}")

    def environment(
        self, *, osts: int = 8, pools: str = "", mdts: int = 1, refuse: Collection[str] = ()
    ) -> dict[str, str]:
        """See ``standin.environment``."""
        if self.is_real:
            if (osts, mdts, *refuse) != (8, 1) or pools not in ("", POOLS):
                self.need_standin("a real one has the servers that it has, and refuses nothing")
            return {"PCOPY_LIBLUSTREAPI": "liblustreapi.so.1"}
        return standin.environment(
            self.first, self.second, osts=osts, pools=pools, mdts=mdts, log=self.log, refuse=refuse
        )

    def shown(self, path: Path) -> Shown | None:
        """Return the layout of a file, or the default layout of a directory."""
        return standin.shown(path, self.environment())

    def asked(self, code: str, *words: str | Path, osts: int = 8, pools: str = "") -> str:
        """Return the output of a Python program; its calls are in the log."""
        return asking.asked(code, *words, seen=self.environment(osts=osts, pools=pools))

    def bytes_by_ost(self, path: Path) -> dict[int, int]:
        """Return the number of bytes of a file written to each OST."""
        sums: dict[int, int] = {}
        for event in self.events("write"):
            if event.numbers["ino"] == path.stat().st_ino:
                sums[event.numbers["ost"]] = sums.get(event.numbers["ost"], 0) + event.numbers["bytes"]
        return sums

    def events(self, *calls: str) -> list[Event]:
        self.need_standin("a real one does not log what it is asked for")
        return standin.events(self.log, *calls)


@pytest.fixture(scope="session", autouse=True)
def end_servers() -> Iterator[None]:
    """End the servers of ``asking`` after all tests of a session."""
    yield
    asking.clean_up()


@pytest.fixture
def lustre(session_scratch: Path) -> Iterator[Lustre]:
    if real := os.environ.get(REAL):
        place = Path(tempfile.mkdtemp(prefix="pcopy-test-", dir=real))
        place.chmod(0o755)
        first, second = place / "first", place / "second"
        first.mkdir()
        second.mkdir()
        yield Lustre(first, second, place / "log", is_real=True)
        remove(place)
        return
    standin.library()
    place = Path(tempfile.mkdtemp(prefix="lustre-", dir=session_scratch))
    place.chmod(0o755)
    with mounted("ext4-ea", place, SIZE) as first, mounted("ext4-ea", place, SIZE) as second:
        yield Lustre(first, second, place / "log")
    (place / "log").unlink(missing_ok=True)
    place.rmdir()
