"""What the functions return, and the events of a running job: frozen dataclasses with the keys that programs print.

Sizes are in bytes, times in seconds. ``other`` has the keys that this version of the interface does not know.
"""

from __future__ import annotations

import os
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pcopy.api.records import dataclass, field, field_names
from pcopy.api.typing_names import Any, Generic, TypeVar
from pcopy.text import printable_path

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING

if TYPE_CHECKING:
    from typing import BinaryIO, Self

_Value = TypeVar("_Value")
_Other = TypeVar("_Other")
_Path = bytes  # The name of the type is that of a field in classes below.


@dataclass(frozen=True, kw_only=True)
class JsonObject:
    """Values that a program has printed as a JSON object."""

    other: Mapping[str, Any] = field(default_factory=dict)
    """Further keys, which this version of the interface does not know."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any], **more: Any) -> Self:
        """Return the object with these values, and with the fields ``more``."""
        names = field_names(cls)
        known = {name: value for name, value in values.items() if name in names and name not in more}
        return cls(**known, **more, other={name: value for name, value in values.items() if name not in names})

    def __repr__(self) -> str:
        """Return the fields that have a value: neither None nor no further keys."""
        shown = {name: getattr(self, name) for name in field_names(type(self)) if name != "other" or self.other}
        texts = [f"{name}={value!r}" for name, value in shown.items() if value is not None]
        return f"{type(self).__qualname__}({', '.join(texts)})"


@dataclass(frozen=True, kw_only=True)
class Progress(JsonObject):
    """The progress of a running job (``--progress json``).

    - ``time``: seconds since 1970 (UTC); ``elapsed``: seconds since the job began.
    - ``phase``: what the ranks do, such as ``copy`` or ``verify``.
    - ``found``: items found so far; ``copied``, ``skipped``, ``failed``: items with this outcome.
    - ``unscanned``: directories found and not yet read; 0 when all items are found.
    - ``bytes``: sizes of the files that are complete; ``moved``: bytes transferred; ``found_bytes``: sizes of the files
      found.
    - ``to_verify``, ``to_verify_bytes``, ``verified``, ``verified_bytes``: items and bytes that are read back.
    - ``handled_bytes``: bytes that need no more work in this stage.
    - ``percent``: the completed part of the stage; None while the total is unknown.
    - ``bytes_per_second``, ``items_per_second``: over the last 15 s; ``mean_…``: since the stage began.
    - ``eta``: estimated seconds to the end of the stage; None if unknown.
    - ``silent``: ranks that have not answered lately.
    - ``state``: changes by ``RunningJob.control``, for people.
    - ``job``: the name of the job, if it is recorded.
    - ``bwlimit``, ``oplimit``, ``active``, ``paused``: the settings that ``RunningJob.control`` changes; None except in
      its result and in ``UnfinishedJob.progress``.
    """

    time: float
    elapsed: float
    phase: str
    found: int
    copied: int
    skipped: int
    failed: int
    unscanned: int
    bytes: int
    moved: int
    found_bytes: int
    to_verify: int
    to_verify_bytes: int
    verified: int
    verified_bytes: int
    handled_bytes: int
    percent: float | None
    bytes_per_second: float
    mean_bytes_per_second: float
    items_per_second: float
    mean_items_per_second: float
    eta: float | None
    silent: Sequence[int]
    state: str = ""
    job: str | None = None
    bwlimit: int | None = None
    oplimit: int | None = None
    active: int | None = None
    paused: bool | None = None


@dataclass(frozen=True)
class FailedItem:
    """An item that failed.

    - ``path``: the exact bytes of its path.
    - ``operation``: the system call or the step that failed, such as ``open``.
    - ``errno``: the error number; 0 if no system call failed.
    - ``message``: the reason.
    """

    path: bytes
    operation: str
    errno: int
    message: str

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the failure in a line of ``--errors``."""
        return cls(a2b_base64(values["path_b64"]), values["operation"], values["errno"], values["message"])

    def __str__(self) -> str:
        return f"{printable_path(self.path)}: {self.operation}: {self.message}"

    def as_os_error(self) -> OSError:
        """Return the ``OSError`` that a system call would have raised."""
        return OSError(self.errno, self.message, self.path)


@dataclass(frozen=True)
class Notice:
    """A line of ``text`` that the program has printed for people.

    It is unchanged: it names options as on the command line, and may contain names of files.
    """

    text: str


Event = Progress | FailedItem | Notice
"""What iterating over a running job yields."""


@dataclass(frozen=True)
class Difference:
    """An item that differs.

    - ``path``: the exact bytes of its path, below the compared paths.
    - ``difference``: ``changed``, ``missing`` or ``extra``; with the option ``compare``: ``only A``, ``only B`` or
      ``differ``.
    - ``properties``: with ``differ``: the properties that differ.
    """

    path: bytes
    difference: str
    properties: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the difference in a line of ``pverify --json``."""
        return cls(a2b_base64(values["path_b64"]), values["difference"], tuple(values.get("in", ())))


@dataclass(frozen=True, kw_only=True)
class Result(JsonObject):
    """What the summaries of all programs have.

    - ``files``, ``directories``: numbers of items of these types; ``bytes``: the sizes of the files.
    - ``failed``: items that failed.
    - ``seconds``: wall time of the run; ``ranks``: the number of ranks; ``exit_status``: the status of the program.
    - ``filters``: where filters are set, if a configuration file sets some.
    """

    files: int
    directories: int
    bytes: int
    failed: int
    seconds: float
    ranks: int
    exit_status: int
    filters: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class TreeResult(Result):
    """What the summaries of all programs but ``pstripe`` have.

    - ``symlinks``, ``special``: numbers of symbolic links, and of FIFOs, sockets and devices.
    - ``excluded``: items that filters have left out.
    """

    symlinks: int
    special: int
    excluded: int


@dataclass(frozen=True, kw_only=True)
class CopyResult(TreeResult):
    """The summary of ``copy``, ``sync`` and ``resume``, over all runs of the job.

    - ``found``: items found; it is copied + skipped + failed.
    - ``copied``: items copied; its parts are ``files``, ``directories``, ``symlinks``, ``special`` and ``hardlinks``.
    - ``skipped``: items that exist and are kept; ``deleted``: items that a mirror has removed.
    - ``changed``, ``vanished``: parts of ``failed``: the source changed during the copy, or no longer exists.
    - ``excused``: attributes that could not be set and need not be; ``warnings``: items copied with a warning;
      ``mended``: existing items whose metadata were updated.
    - ``bytes``: the sizes of the copied files; ``bytes_per_second``: of this run.
    - ``verified``, ``verified_bytes``: items, and bytes of files, that were read back and are correct.
    - ``layouts``: on Lustre, the layouts of the new files; ``sequential``: True if each file was written in order.
    - ``signature``: the signature of the source in hexadecimal digits, if the job has written one.
    - ``job``: the name of the job, if it is kept and can be resumed.
    - ``dry_run``: True if nothing was changed. Then ``actions`` has the number of items by action, ``sizes`` the files
      by size, ``free_bytes`` and ``free_inodes`` what is free in the destination, and ``fits`` is False if that is too
      little.
    """

    found: int
    copied: int
    hardlinks: int
    skipped: int
    deleted: int
    changed: int
    vanished: int
    excused: int
    warnings: int
    mended: int
    bytes_per_second: float
    verified: int
    verified_bytes: int
    layouts: Sequence[Mapping[str, Any]]
    sequential: bool
    signature: str | None
    job: str | None
    dry_run: bool = False
    actions: Mapping[str, int] | None = None
    sizes: Sequence[Mapping[str, Any]] | None = None
    free_bytes: int | None = None
    free_inodes: int | None = None
    fits: bool | None = None


@dataclass(frozen=True, kw_only=True)
class CompareResult(TreeResult):
    """The summary of ``verify``, ``compare`` and ``sign``.

    - ``same``: True if nothing differs; None if nothing was compared.
    - ``differences``: the items that differ; it can be iterated several times.
    - ``signature``: of the path, or of the first one, in hexadecimal digits; ``expected``: the one in the file.
    - ``changed``, ``missing``, ``extra``: numbers of differences; None where no items are compared, as with a signature
      or by ``sign``, and with the option ``compare``.
    - ``files`` and the other numbers of items count both trees, except with the option ``compare``.
    - ``bytes_per_second``: bytes read, by ``seconds``.
    - With the option ``compare``: ``compared``: the properties; ``found``: items found; ``common``: items that both
      trees have; ``only_a``, ``only_b``, ``differ``: numbers of differences; ``differ_in``: of each property.
    """

    same: bool | None
    differences: JsonLines[Difference]
    bytes_per_second: float
    signature: str | None = None
    expected: str | None = None
    changed: int | None = None
    missing: int | None = None
    extra: int | None = None
    compared: Sequence[str] | None = None
    found: int | None = None
    common: int | None = None
    only_a: int | None = None
    only_b: int | None = None
    differ: int | None = None
    differ_in: Mapping[str, int] | None = None

    def __bool__(self) -> bool:
        """Raise ``TypeError``: ``if pcopy.compare(a, b)`` would always be true."""
        raise TypeError("a CompareResult is neither true nor false; use .same")


@dataclass(frozen=True, kw_only=True)
class RemoveResult(TreeResult):
    """The summary of ``remove``.

    - ``found``: items found; ``removed``: items removed, or that a dry run would remove.
    - ``not_empty``: listed directories that were kept because they are not empty.
    - ``dry_run``: True if nothing was removed.
    """

    found: int
    removed: int
    not_empty: int
    dry_run: bool


@dataclass(frozen=True, kw_only=True)
class ChangeResult(TreeResult):
    """The summary of ``change_modes``.

    - ``found``: items found; it is changed + unchanged + excluded + failed.
    - ``changed``: items that were changed, or that a dry run would change; ``unchanged``: items that needed no change.
    - ``dry_run``: True if nothing was changed.
    """

    found: int
    changed: int
    unchanged: int
    dry_run: bool


@dataclass(frozen=True, kw_only=True)
class TarResult(TreeResult):
    """What the summaries of ``archive`` and ``extract`` have.

    - ``found``: items, or members of the archive, found.
    - ``hardlinks``: members that are hard links: further names of files that the archive has.
    - ``skipped``, ``changed``, ``vanished``, ``excused``, ``warnings``: as in ``CopyResult``.
    - ``archive``: the absolute path of the archive, for people.
    - ``dry_run``: True if nothing was written.
    """

    found: int
    hardlinks: int
    skipped: int
    changed: int
    vanished: int
    excused: int
    warnings: int
    archive: str
    dry_run: bool


@dataclass(frozen=True, kw_only=True)
class ExtractResult(TarResult):
    """The summary of ``extract``.

    - ``sequential``: True if each file was written in order.
    """

    sequential: bool = False


@dataclass(frozen=True, kw_only=True)
class ArchiveResult(TarResult):
    """The summary of ``archive``.

    - ``signature``: the signature of the archived trees, if the option ``signature`` was given.
    - ``pieces_resumed``: with the option ``resume``: parts of the archive that an earlier run has written.
    """

    signature: str | None = None
    pieces_resumed: int | None = None


@dataclass(frozen=True, kw_only=True)
class StripeResult(Result):
    """The summary of ``restripe``.

    - ``found``: items found; ``skipped``: files that were kept as they are.
    - ``layouts``: objects with ``layout`` (in words), ``files`` and ``bytes``; ``osts``: files on each OST.
    - ``fewer_stripes``, ``more_stripes``: files with fewer or more stripes than suit their size.
    - ``restriped``: files that got another layout; ``dry_run``: True if none was changed.
    """

    found: int
    skipped: int
    layouts: Sequence[Mapping[str, Any]]
    osts: Mapping[str, int]
    fewer_stripes: int
    more_stripes: int
    restriped: int
    dry_run: bool


@dataclass(frozen=True, kw_only=True)
class UnfinishedJob(JsonObject):
    """A job that is not finished, as ``jobs`` returns it.

    - ``job``: its name; ``directory``: the directory that records it.
    - ``begun``: when it began, in seconds since 1970; ``runs``: how often it was started.
    - ``sources``, ``destination``: absolute paths, for people.
    - ``state``: ``running``, ``interrupted`` (killed) or how it ended; None if this version cannot use the job. Then
      ``message`` says why, and the other fields are unknown.
    - ``found``, ``copied``, ``skipped``, ``failed``, ``bytes``: its counts so far.
    - ``locked``: the ranks that work on it: ``rank``, ``host``, ``pid``, ``began``.
    - ``progress``: the last progress of a running job.
    """

    job: str
    directory: _Path
    state: str | None
    message: str = ""
    begun: float = 0.0
    sources: Sequence[str] = ()
    destination: str = ""
    runs: int = 0
    found: int = 0
    copied: int = 0
    skipped: int = 0
    failed: int = 0
    bytes: int = 0
    locked: Sequence[Mapping[str, Any]] = ()
    progress: Progress | None = None

    @classmethod
    def from_line(cls, values: Mapping[str, Any]) -> UnfinishedJob:
        """Return the job in a line of ``pcopy --jobs --json``."""
        known = {key: value for key, value in values.items() if key != "directory_b64"}
        directory, progress = a2b_base64(values["directory_b64"]), values.get("progress")
        return cls.from_json(known, directory=directory, progress=progress and Progress.from_json(progress))


for _public in (
    *(ArchiveResult, ChangeResult, CompareResult, CopyResult, Difference, ExtractResult, FailedItem, Notice, Progress),
    *(RemoveResult, StripeResult, UnfinishedJob),
):
    _public.__module__ = "pcopy"

_MOST_LINES_IN_MEMORY = 10_000
"""The number of lines that ``JsonLines`` keeps in memory; all further ones are in a temporary file."""
_LINES_OF_PORTION, _BYTES_OF_PORTION = 100, 1 << 16
"""How many of the lines in memory, and of the bytes of the file, a ``portion`` has."""


class JsonLines(Generic[_Value]):
    """JSON lines of any number, and the objects that they describe. It can be iterated several times."""

    def __init__(self, parse: Callable[[Mapping[str, Any]], _Value]) -> None:
        self._parse = parse
        self._lines: list[bytes] = []
        self._file: BinaryIO | None = None
        self._count = 0
        self._file_size = 0

    def append(self, line: bytes) -> None:
        """Add a line, which ends with a newline."""
        self._count += 1
        if len(self._lines) < _MOST_LINES_IN_MEMORY:
            self._lines.append(line)
            return
        if self._file is None:
            from tempfile import TemporaryFile

            self._file = TemporaryFile()  # noqa: SIM115
        self._file.write(line)
        self._file_size += len(line)

    def end(self) -> tuple[int, int]:
        """Return the place after the last line, for ``portion``."""
        return len(self._lines), self._file_size

    def portion(self, place: tuple[int, int]) -> tuple[list[_Value], tuple[int, int]]:
        """Return the objects of some lines after ``place``, and the place after them; no object at the end."""
        from json import loads

        lines, place = self._lines_of_portion(place)
        return [self._parse(loads(line)) for line in lines], place

    def _lines_of_portion(self, place: tuple[int, int]) -> tuple[list[bytes], tuple[int, int]]:
        """Return some lines after ``place``, and the place after them; no line at the end."""
        index, offset = place
        lines = self._lines[index : index + _LINES_OF_PORTION]
        if not lines and offset < self._file_size:
            assert self._file
            self._file.flush()
            data = b""
            while b"\n" not in data:  # It is repeated for a line that is longer than a portion.
                data += os.pread(self._file.fileno(), _BYTES_OF_PORTION, offset + len(data))
            lines = data[: data.rindex(b"\n") + 1].splitlines(keepends=True)
            offset += sum(map(len, lines))
        else:
            index += len(lines)
        return lines, (index, offset)

    def parsed(self, parse: Callable[[Mapping[str, Any]], _Other]) -> JsonLines[_Other]:
        """Return the same lines, with other objects. No more lines may be added."""
        others = JsonLines(parse)
        others._lines, others._file = self._lines, self._file
        others._count, others._file_size = self._count, self._file_size
        return others

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<{self._count} lines>"

    def __getstate__(self) -> tuple[Callable[[Mapping[str, Any]], _Value], list[bytes]]:
        return self._parse, list(self._all_lines())

    def __setstate__(self, state: tuple[Callable[[Mapping[str, Any]], _Value], list[bytes]]) -> None:
        parse, lines = state
        JsonLines.__init__(self, parse)
        for line in lines:
            self.append(line)

    def __iter__(self) -> Iterator[_Value]:
        from json import loads

        return (self._parse(loads(line)) for line in self._all_lines())

    def _all_lines(self) -> Iterable[bytes]:
        yield from self._lines
        if self._file is not None:
            place = len(self._lines), 0
            while True:
                lines, place = self._lines_of_portion(place)
                if not lines:
                    return
                yield from lines
