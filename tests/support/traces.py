"""The system calls that a run makes on files, recorded by strace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.faults import require_strace

READING = ("read", "pread64", "preadv", "preadv2")
WRITING = ("write", "pwrite64", "pwritev", "pwritev2", "copy_file_range", "sendfile")


class Trace:
    """The calls of each process, in separate files so that lines of different processes do not interleave."""

    def __init__(self, place: Path, *calls: str) -> None:
        require_strace()
        place.mkdir()
        self._place = place
        self._calls = calls

    def wrap(self) -> list[str]:
        """Return the prefix of the command line."""
        calls = ",".join("?" + call for call in self._calls)
        return ["strace", "-ff", "-qq", "-y", "-o", str(self._place / "trace"), "-e", f"trace={calls}"]

    def on(self, path: Path) -> list[list[str]]:
        """Return the calls with a descriptor of ``path``, or on that name, of each process that made some."""
        logs = [file.read_text(errors="replace").splitlines() for file in sorted(self._place.iterdir())]
        marks = f"<{path}>", f'<{path.parent}>, "{path.name}"'
        found = [[line for line in log if any(mark in line for mark in marks)] for log in logs]
        return [lines for lines in found if lines]

    def moved(self, path: Path, calls: tuple[str, ...]) -> int:
        """Return the bytes that ``calls`` moved from or to ``path``."""
        pattern = re.compile(rf"^(?:{'|'.join(calls)})\(.* = (\d+)$")
        matches = (pattern.match(line) for lines in self.on(path) for line in lines)
        return sum(int(match[1]) for match in matches if match)


def whole_lines(log: Path) -> Iterator[str]:
    """Yield the lines of a log of ``strace -f``, without the newline.

    A call that strace has split over two lines, because another process made a call meanwhile, is one line again, at
    the place of its end.
    """
    begun: dict[str, str] = {}
    for line in log.read_text(errors="replace").splitlines():
        thread = line.split(maxsplit=1)[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>").rstrip()
        else:
            yield re.sub(r"^\d+ +<\.\.\. \w+ resumed>", lambda match: begun.pop(thread), line)  # noqa: B023
