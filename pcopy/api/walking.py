"""The entries of ``walk``, as the program ``pwalk`` prints them (docs/formats/listing.md)."""

from __future__ import annotations

import os
from binascii import a2b_base64
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from json import loads

from pcopy.api.errors import InternalError
from pcopy.api.running import Request, RunningJob

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Self

_OF_OTHER_ENTRIES = {
    "name": "os.path.basename(entry.path)",
    "is_dir": "entry.type == 'directory'",
    "is_file": "entry.type == 'file'",
    "is_symlink": "entry.type == 'symlink'",
    "stat": "the fields, such as entry.size",
    "mtime": "entry.mtime_ns",
}
"""What to use instead of attributes of ``os.DirEntry`` and ``pathlib.Path``."""
_PORTION = 1 << 16
"""The number of bytes that are read at once; a pipe holds as many."""


class Entry:
    """An item that a walk has found.

    - ``path``: the exact bytes of its path, which begins with the path that was given to ``walk``.
    - ``type``: ``file``, ``directory``, ``symlink``, ``fifo``, ``character``, ``block`` or ``socket``.
    - ``size``, ``allocated``: bytes, and bytes on storage; ``links``: the number of names.
    - ``mode``: permission bits; ``uid``, ``gid``: owner and group; ``inode``, ``device``: its identity.
    - ``atime_ns``, ``mtime_ns``, ``ctime_ns``: nanoseconds since 1970.

    With the option ``fields``, only the fields that it names exist, and ``path`` and ``type``. An entry is a path for
    ``os`` and for the functions of pcopy, as bytes (``os.PathLike``).
    """

    __slots__ = ("_values", "path")

    if TYPE_CHECKING:
        path: bytes
        type: str
        size: int
        allocated: int
        links: int
        mode: int
        uid: int
        gid: int
        inode: int
        device: int
        atime_ns: int
        mtime_ns: int
        ctime_ns: int
    else:

        def __getattr__(self, name: str) -> Any:
            if name in Entry.__slots__:  # while the object is copied or unpickled
                raise AttributeError(name)
            try:
                return self._values[name]
            except KeyError:
                from pcopy.api.keywords import OFFERED

                if name in OFFERED["fields"]:
                    raise AttributeError(f"{name!r} is not among the fields of this walk") from None
                advice = f"; use {_OF_OTHER_ENTRIES[name]}" if name in _OF_OTHER_ENTRIES else ""
                raise AttributeError(f"'Entry' object has no attribute {name!r}{advice}") from None

    def __init__(self, line: bytes) -> None:
        """Read a line of a listing. Raise ``ValueError``, ``KeyError``, ``AttributeError`` or ``TypeError`` if it is
        not one.
        """
        values: dict[str, Any] = loads(line)
        path: str = values.pop("path")
        exact = values.pop("path_b64", None)
        self.path = path.encode() if exact is None else a2b_base64(exact)
        if "mode" in values:
            values["mode"] = int(values["mode"], 8)
        self._values = values

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def __fspath__(self) -> bytes:
        return self.path

    def __repr__(self) -> str:
        texts = {name: f"{value:#o}" if name == "mode" else repr(value) for name, value in self._values.items()}
        values = "".join(f", {name}={text}" for name, text in texts.items())
        return f"Entry(path={self.path!r}{values})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and (self.path, self._values) == (other.path, other._values)

    def __hash__(self) -> int:
        return hash(self.path)

    def __getstate__(self) -> tuple[dict[str, Any], bytes]:
        return self._values, self.path

    def __setstate__(self, state: tuple[dict[str, Any], bytes]) -> None:
        self._values, self.path = state


class Walk(Iterator[Entry], AsyncIterator[Entry]):
    """The entries of a walk that runs, in the order in which the ranks find them; for ``for`` and ``async for``.

    The ranks wait if the caller is slow, so that memory is bounded. ``close``, the end of a ``with`` or ``async with``
    block, a cancelled task, and the end of the last reference end the ranks. After the last entry, iterating raises
    ``ItemsFailed`` if some items could not be read, and other errors as other functions do.
    """

    def __init__(self, request: Request[None]) -> None:
        self._job: RunningJob[None] = RunningJob(request, reads_output=False)
        self._has_begun = False
        self._lines: deque[bytes] = deque()
        self._rest = b""  # the beginning of a line
        self._count = 0
        self._wake_reader: Callable[[], object] | None = None  # wakes a task that waits for output

    def __next__(self) -> Entry:
        try:
            while not self._lines or self._job.output.closed:
                if self._job.output.closed:
                    raise StopIteration
                if not self._read():
                    self._job.output.close()
                    self._job.wait()
                    self._check_end()
                    raise StopIteration
            return self._next_entry()
        except StopIteration:
            raise
        except BaseException as error:
            is_closed = isinstance(error, ValueError) and self._job.output.closed  # by another thread, meanwhile
            self.close()
            if is_closed:
                raise StopIteration from None
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry:
        if self._wake_reader is not None and not self._job.output.closed:
            raise RuntimeError("another task waits for this walk")
        try:
            while not self._lines or self._job.output.closed:
                if not self._job.output.closed:
                    await self._wait_for_output()
                if self._job.output.closed:
                    raise StopAsyncIteration
                if not self._read():
                    self._job.output.close()
                    await self._job
                    self._check_end()
                    raise StopAsyncIteration
            return self._next_entry()
        except BaseException:
            self._abandon()
            raise

    async def _wait_for_output(self) -> None:
        """Wait until the output can be read or is closed, or the program has ended."""
        import asyncio

        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        wake = self._wake_reader = partial(loop.call_soon_threadsafe, woken.set)
        # The output may be closed meanwhile, and its number be that of another file of the loop.
        descriptor = os.dup(self._job.output.fileno())
        try:
            loop.add_reader(descriptor, woken.set)
            with self._job._listening(lambda event: None if event else wake()):
                await woken.wait()
        finally:
            self._wake_reader = None
            try:
                loop.remove_reader(descriptor)
            finally:
                os.close(descriptor)

    def _read(self) -> bool:
        """Read lines, without the first one, which identifies the format. Return False at the end of the output."""
        data = self._job.output.read1(_PORTION)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if lines and not self._has_begun:
            self._has_begun = True
            del lines[0]
        self._lines.extend(lines)
        return bool(data)

    def _next_entry(self) -> Entry:
        """Return the entry in the next line. Raise ``InternalError`` if it has none."""
        line = self._lines.popleft()
        self._count += 1
        try:
            return Entry(line)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise InternalError(f"pwalk has printed a line that is not an entry: {line!r}") from error

    def _check_end(self) -> None:
        """Raise ``InternalError`` if the output has ended within a line, or before the first one was complete."""
        if self._rest or not self._has_begun:
            raise InternalError("the output of pwalk is not complete")

    def close(self) -> None:
        """End the walk, and wait for the end of its ranks; has no effect if it has ended."""
        self._abandon()
        with suppress(Exception):  # It was stopped, on purpose.
            self._job.wait()

    async def aclose(self) -> None:
        """End the walk as ``close`` does, without blocking the event loop."""
        self._abandon()
        with suppress(Exception):
            await self._job

    def _abandon(self) -> None:
        """End the walk without waiting."""
        self._job.stop()
        self._lines.clear()
        if self._wake_reader is not None:
            with suppress(RuntimeError):  # The event loop of the task is closed.
                self._wake_reader()
        self._job.output.close()

    def __repr__(self) -> str:
        return f"<Walk: {'ended' if self._job.output.closed else 'running'}, {self._count} entries so far>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # Without waiting: the reference may end in a thread on whose end ``wait`` would depend.
        # A forked process must not end the walk of its parent.
        if hasattr(self, "_wake_reader") and not self._job.output.closed and self._job.is_of_this_process:
            self._abandon()


for _public in (Entry, Walk):
    _public.__module__ = "pcopy"
