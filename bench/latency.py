"""A slow or odd file system, ``bench/latencyfs``: a directory of another one, with delays and quirks.

Mounting needs root, building gcc, pkg-config and libfuse3-dev. Delays are in microseconds, by kind of operation
(``lookup``, ``create``, ``read`` …) or for a group of them: ``metadata``, ``data``, ``all``. Quirks, such as
``link=EXDEV`` or ``twice``, are listed in ``latencyfs.c``.

To mount one by hand until a signal: ``python -m bench.latency DIRECTORY MOUNTPOINT QUIRK...``
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).with_name("latencyfs")

_CONTROL = "user.latencyfs"
_QUIRKS_CONTROL = "user.latencyfs.quirks"
_AT_ONCE = "sleeping"
_SECONDS_TO_END = 10


class Slow(NamedTuple):
    """A mounted one. What is done below ``backing`` is as fast as ever and counts for nothing; it is seen at once, or
    when the kernel has forgotten what it remembers."""

    path: Path
    backing: Path
    process: subprocess.Popen[str]

    def delay(self, **delays: int) -> None:
        """Changes the delays of some kinds or groups from now on."""
        os.setxattr(self.path, _CONTROL, _spelled(delays).encode())

    def set_quirks(self, *quirks: str) -> None:
        """Replace all quirks from now on."""
        os.setxattr(self.path, _QUIRKS_CONTROL, ",".join(quirks).encode())

    def answer_again(self) -> None:
        """End the quirk ``silent``. While it lasts, the kernel may hold the locks that ``set_quirks`` needs."""
        self.process.send_signal(signal.SIGUSR1)

    def counts(self) -> Counter[str]:
        """How many operations there were since it was mounted, by kind."""
        told = self._told()
        del told[_AT_ONCE]
        return told

    def most_at_once(self) -> int:
        """The most operations that slept at the same time since delays were given."""
        return self._told()[_AT_ONCE]

    def _told(self) -> Counter[str]:
        words = os.getxattr(self.path, _CONTROL).decode().split()
        return Counter({kind: int(number) for kind, number in zip(words[::2], words[1::2], strict=True)})


@functools.cache
def built(source: Path, *flags: str) -> Path:
    """A C program, compiled for this process of one file or of all in a directory.

    Raises ``CalledProcessError`` or ``FileNotFoundError`` if it can't be.
    """
    place = tempfile.mkdtemp(prefix="pcopy-bench-built-")
    atexit.register(shutil.rmtree, place)
    program = Path(place) / source.stem
    parts = sorted(source.glob("*.c")) if source.is_dir() else [source]
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, *parts, *flags], check=True)
    return program


def is_possible() -> bool:
    """Is all here that building and mounting need?"""
    asked = ("pkg-config", "--exists", "fuse3")
    tools = all(shutil.which(tool) for tool in ("gcc", asked[0]))
    return tools and os.geteuid() == 0 and subprocess.run(asked, check=False).returncode == 0


def _built() -> Path:
    asked = ["pkg-config", "--cflags", "--libs", "fuse3"]
    flags = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    return built(SOURCES, *flags.split())


@contextmanager
def slow(
    backing: Path,
    delays: Mapping[str, int] | None = None,
    *,
    quirks: Sequence[str] = (),
    entry_timeout: float = 0,
    attribute_timeout: float = 0,
) -> Iterator[Slow]:
    """``backing`` mounted once more, in a new directory beside it, until the context ends, whatever ends it.

    The kernel remembers names and attributes for so many seconds. With 0 it asks each time: a stat takes two
    operations, a look-up and one for the attributes, and so does each name of a path.
    """
    with ExitStack() as stack:
        base = Path(tempfile.mkdtemp(prefix="pcopy-bench-slow-", dir=backing.parent))
        stack.callback(shutil.rmtree, base)
        base.chmod(0o755)
        point = base / "mounted"
        point.mkdir()
        words = [str(_built()), "--entry-timeout", f"{entry_timeout}", "--attribute-timeout"]
        words += [f"{attribute_timeout}", *(["--delay", _spelled(delays)] if delays else [])]
        words += [*(["--quirks", ",".join(quirks)] if quirks else []), str(backing), str(point)]
        process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        stack.callback(_end, process, point)
        assert process.stdout
        if process.stdout.readline() != "mounted\n":
            raise OSError(f"{words[0]} could not mount {backing}")
        yield Slow(point, backing, process)


def _end(process: subprocess.Popen[str], point: Path) -> None:
    """Lazily if somebody still has it open: gone from the tree now, and it ends with them or after some seconds."""
    process.send_signal(signal.SIGUSR1)
    idle = subprocess.run(["umount", str(point)], check=False, stderr=subprocess.DEVNULL).returncode == 0
    if not idle and os.path.ismount(point):
        subprocess.run(["umount", "--lazy", str(point)], check=True)
        process.terminate()
    try:
        process.communicate(timeout=_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()


def _spelled(delays: Mapping[str, int]) -> str:
    return ",".join(f"{kind}={microseconds}" for kind, microseconds in delays.items())


def _by_hand(backing: str, point: str, *quirks: str) -> None:
    """Replace this process by one that serves ``backing`` at ``point``."""
    program = tempfile.mkdtemp(prefix="pcopy-bench-built-")
    shutil.copy(_built(), program)
    words = [f"{program}/latencyfs", *(["--quirks", ",".join(quirks)] if quirks else []), backing, point]
    os.execv(words[0], words)


if __name__ == "__main__":
    _by_hand(*sys.argv[1:])
