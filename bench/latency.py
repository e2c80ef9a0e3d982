"""A FUSE file system (``bench/latencyfs``) that shows a directory of another file system, but is slow or unusual: its
operations have delays, and *quirks* change its behaviour.

Mounting requires root; compiling requires gcc, pkg-config and libfuse3-dev. Delays are in microseconds, by operation
(``lookup``, ``create``, ``read`` …) or for a group of them: ``metadata``, ``data``, ``all``. ``latencyfs.c`` lists the
quirks, such as ``link=EXDEV`` or ``twice``.

``python -m bench.latency DIRECTORY MOUNTPOINT QUIRK...`` mounts one in the foreground until a signal.
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

LATENCYFS_SOURCES = Path(__file__).with_name("latencyfs")
"""The directory of the C sources."""

_DELAYS_XATTR = "user.latencyfs"
"""The extended attribute of the mount point by which delays are set and counts of operations are read."""
_QUIRKS_XATTR = "user.latencyfs.quirks"
"""The extended attribute of the mount point by which quirks are set."""
_MAX_CONCURRENT_KEY = "sleeping"
"""Key, among the counts, of the largest number of operations that were delayed at the same time."""
_EXIT_TIMEOUT = 10
"""Seconds after the unmount within which the file system's process must end; then it is killed."""


class SlowMount(NamedTuple):
    """A mounted slow file system.

    Operations on the ``backing`` directory have no delay and are not counted. Their result is visible at the mount
    point (``path``) immediately, or when Linux has dropped what it caches.
    """

    path: Path
    backing: Path
    process: subprocess.Popen[str]

    def set_delays(self, **delays: int) -> None:
        """Change the delays of some operations or groups. They stay until the next change."""
        os.setxattr(self.path, _DELAYS_XATTR, _delays_text(delays).encode())

    def set_quirks(self, *quirks: str) -> None:
        """Set these quirks, and no others. ``latencyfs.c`` lists them."""
        os.setxattr(self.path, _QUIRKS_XATTR, ",".join(quirks).encode())

    def end_silent_quirk(self) -> None:
        """End the quirk ``silent`` (the file system answers nothing) by a signal.

        While the quirk lasts, Linux may hold the locks that ``set_quirks`` needs.
        """
        self.process.send_signal(signal.SIGUSR1)

    def operation_counts(self) -> Counter[str]:
        """Return the number of operations since the mount, by type."""
        counts = self._reported_counts()
        del counts[_MAX_CONCURRENT_KEY]
        return counts

    def max_concurrent_operations(self) -> int:
        """Return the maximum number of operations that were delayed at the same time since delays were set."""
        return self._reported_counts()[_MAX_CONCURRENT_KEY]

    def _reported_counts(self) -> Counter[str]:
        """Return the counts of operations that the file system reports, by type."""
        words = os.getxattr(self.path, _DELAYS_XATTR).decode().split()
        return Counter({kind: int(number) for kind, number in zip(words[::2], words[1::2], strict=True)})


@functools.cache
def compiled_c_program(source: Path, *flags: str) -> Path:
    """Compile a C program, and return its path. The program is removed when this process ends.

    ``source`` is a C file, or a directory all of whose C files belong to the program. Raise ``CalledProcessError`` or
    ``FileNotFoundError`` if it cannot be compiled.
    """
    place = tempfile.mkdtemp(prefix="pcopy-bench-built-")
    atexit.register(shutil.rmtree, place)
    program = Path(place) / source.stem
    parts = sorted(source.glob("*.c")) if source.is_dir() else [source]
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, *parts, *flags], check=True)
    return program


def can_mount() -> bool:
    """Return True if this process can compile and mount the file system."""
    command = ("pkg-config", "--exists", "fuse3")
    tools = all(shutil.which(tool) for tool in ("gcc", command[0]))
    return tools and os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0


def _compiled_latencyfs() -> Path:
    """Return the path of the compiled file system."""
    command = ["pkg-config", "--cflags", "--libs", "fuse3"]
    flags = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return compiled_c_program(LATENCYFS_SOURCES, *flags.split())


@contextmanager
def mounted_slow(
    backing: Path,
    delays: Mapping[str, int] | None = None,
    *,
    quirks: Sequence[str] = (),
    entry_timeout: float = 0,
    attribute_timeout: float = 0,
) -> Iterator[SlowMount]:
    """Context manager: mount the directory ``backing`` once more, as a slow file system, in a new directory next to it.

    It is unmounted at the end, also after an exception. Linux caches names and attributes for the seconds of the two
    timeouts. With 0 it asks each time: a stat takes two operations, a look-up and one for the attributes, and so does
    each component of a path.
    """
    with ExitStack() as stack:
        base = Path(tempfile.mkdtemp(prefix="pcopy-bench-slow-", dir=backing.parent))
        stack.callback(shutil.rmtree, base)
        base.chmod(0o755)
        point = base / "mounted"
        point.mkdir()
        words = [str(_compiled_latencyfs()), "--entry-timeout", f"{entry_timeout}", "--attribute-timeout"]
        words += [f"{attribute_timeout}", *(["--delay", _delays_text(delays)] if delays else [])]
        words += [*(["--quirks", ",".join(quirks)] if quirks else []), str(backing), str(point)]
        process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        stack.callback(_unmount_and_wait, process, point)
        assert process.stdout
        if process.stdout.readline() != "mounted\n":
            raise OSError(f"{words[0]} could not mount {backing}")
        yield SlowMount(point, backing, process)


def _unmount_and_wait(process: subprocess.Popen[str], point: Path) -> None:
    """Unmount ``point``, lazily if a process still has a file open there.

    Wait for the end of ``process``, which serves the file system, and kill it after some seconds.
    """
    process.send_signal(signal.SIGUSR1)
    idle = subprocess.run(["umount", str(point)], check=False, stderr=subprocess.DEVNULL).returncode == 0
    if not idle and os.path.ismount(point):
        subprocess.run(["umount", "--lazy", str(point)], check=True)
        process.terminate()
    try:
        process.communicate(timeout=_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()


def _delays_text(delays: Mapping[str, int]) -> str:
    """Return the delays as text, in the form that the file system accepts."""
    return ",".join(f"{kind}={microseconds}" for kind, microseconds in delays.items())


def _serve_in_foreground(backing: str, point: str, *quirks: str) -> None:
    """Replace this process by one that serves ``backing`` at ``point``."""
    program = tempfile.mkdtemp(prefix="pcopy-bench-built-")
    shutil.copy(_compiled_latencyfs(), program)
    words = [f"{program}/latencyfs", *(["--quirks", ",".join(quirks)] if quirks else []), backing, point]
    os.execv(words[0], words)


if __name__ == "__main__":
    _serve_in_foreground(*sys.argv[1:])
