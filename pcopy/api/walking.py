"""The entries of ``walk``, as the program ``pwalk`` prints them (docs/formats/listing.md)."""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Iterator
from contextlib import suppress
from json import loads
from typing import TYPE_CHECKING, Any, Self

from pcopy.api.errors import InternalError
from pcopy.api.running import Request, RunningJob

if TYPE_CHECKING:
    from types import TracebackType


class Entry:
    """An item that a walk has found.

    - ``path``: the exact bytes of its path, which begins with the path that was given to ``walk``.
    - ``type``: ``file``, ``directory``, ``symlink``, ``fifo``, ``character``, ``block`` or ``socket``.
    - ``size``, ``allocated``: bytes, and bytes on storage; ``links``: the number of names.
    - ``mode``: permission bits; ``uid``, ``gid``: owner and group; ``inode``, ``device``: its identity.
    - ``atime_ns``, ``mtime_ns``, ``ctime_ns``: nanoseconds since 1970.

    With the option ``fields``, only the fields that it names exist, and ``path`` and ``type``.
    """

    __slots__ = ("_values", "path")

    def __init__(self, line: bytes) -> None:
        """Read a line of a listing. Raise ``ValueError`` or ``KeyError`` if it is not one."""
        values: dict[str, Any] = loads(line)
        path: str = values.pop("path")
        exact = values.pop("path_b64", None)
        self.path = path.encode() if exact is None else a2b_base64(exact)
        if "mode" in values:
            values["mode"] = int(values["mode"], 8)
        self._values = values

    def __getattr__(self, name: str) -> Any:
        if name in Entry.__slots__:  # while the object is copied or unpickled
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"{name!r} is not among the fields of this walk") from None

    def __repr__(self) -> str:
        values = "".join(f", {name}={value!r}" for name, value in self._values.items())
        return f"Entry(path={self.path!r}{values})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and (self.path, self._values) == (other.path, other._values)

    def __hash__(self) -> int:
        return hash(self.path)

    def __getstate__(self) -> tuple[dict[str, Any], bytes]:
        return self._values, self.path

    def __setstate__(self, state: tuple[dict[str, Any], bytes]) -> None:
        self._values, self.path = state


class Walk(Iterator[Entry]):
    """The entries of a walk that runs, in the order in which the ranks find them.

    The ranks wait if the caller is slow, so that memory is bounded. ``close``, the end of a ``with`` block, and the end
    of the last reference end the ranks. After the last entry, iterating raises ``ItemsFailed`` if some items could not
    be read, and other errors as other functions do.
    """

    def __init__(self, request: Request[None]) -> None:
        self._job: RunningJob[None] = RunningJob(request, reads_output=False)
        self._has_begun = False

    def __next__(self) -> Entry:
        if self._job.output.closed:
            raise StopIteration
        try:
            line = self._next_line()
        except BaseException as error:
            is_closed = isinstance(error, ValueError) and self._job.output.closed  # by another thread, meanwhile
            self.close()
            if is_closed:
                raise StopIteration from None
            raise
        if line.endswith(b"\n"):
            return self._entry(line)
        self._job.output.close()
        self._job.wait()
        if line or not self._has_begun:
            raise InternalError("the output of pwalk is not complete")
        raise StopIteration

    def _next_line(self) -> bytes:
        """Return the next line after the first one, which identifies the format; at the end, no complete line."""
        line = self._job.output.readline()
        if line and not self._has_begun:
            self._has_begun = True
            line = self._job.output.readline()
        return line

    def _entry(self, line: bytes) -> Entry:
        """Return the entry in ``line``. If it has none, end the walk and raise ``InternalError``."""
        try:
            return Entry(line)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            self.close()
            raise InternalError(f"pwalk has printed a line that is not an entry: {line!r}") from error

    def close(self) -> None:
        """End the walk; has no effect if it has ended."""
        self._job.stop()
        self._job.output.close()
        with suppress(Exception):  # It was stopped, on purpose.
            self._job.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        # Without waiting: the reference may end in a thread on whose end ``wait`` would depend.
        if hasattr(self, "_job") and not self._job.output.closed:
            self._job.stop()
            self._job.output.close()
