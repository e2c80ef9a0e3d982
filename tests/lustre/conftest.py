"""Two file systems that are Lustre to programs that are run with their environment."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lustre import standin
from tests.lustre.standin import Event, Shown
from tests.support.filesystems import mounted

SIZE = 512 << 20
"""Bytes of each; their images are sparse."""


@dataclass
class Lustre:
    """``first`` and ``second`` are mount points of file systems of their own."""

    first: Path
    second: Path
    log: Path

    def environment(
        self, *, osts: int = 8, pools: str = "", mdts: int = 1, refuse: Collection[str] = ()
    ) -> dict[str, str]:
        """See ``standin.environment``."""
        return standin.environment(
            self.first, self.second, osts=osts, pools=pools, mdts=mdts, log=self.log, refuse=refuse
        )

    def shown(self, path: Path) -> Shown | None:
        """The layout of a file, or the default of a directory."""
        return standin.shown(path, self.environment())

    def asked(self, code: str, *words: str | Path, osts: int = 8, pools: str = "") -> str:
        """What a Python program prints, and what it does is in the log."""
        return standin.asked(code, *words, seen=self.environment(osts=osts, pools=pools))

    def events(self, *calls: str) -> list[Event]:
        return standin.events(self.log, *calls)


@pytest.fixture
def lustre(session_scratch: Path) -> Iterator[Lustre]:
    standin.library()
    place = Path(tempfile.mkdtemp(prefix="lustre-", dir=session_scratch))
    place.chmod(0o755)
    with mounted("ext4-ea", place, SIZE) as first, mounted("ext4-ea", place, SIZE) as second:
        yield Lustre(first, second, place / "log")
    (place / "log").unlink(missing_ok=True)
    place.rmdir()
