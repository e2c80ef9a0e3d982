r"""The file ``job``: all that is known of a job between its runs, and its form.

The first line is ``pcopy job VERSION DIGEST``, where DIGEST is the BLAKE2b (16 bytes, in hexadecimal) of all that
follows: one JSON object, for people to read. Bytes are ``{"bytes": "..."}`` with ``\udcNN`` for what is not UTF-8,
mappings ``{"map": {...}}``, sequences arrays. So nothing but primitives can come out of it.
"""

from __future__ import annotations

import json
import os
from _blake2 import blake2b  # hashlib would load OpenSSL, too, which takes as long as a hundred small files
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pcopy.checkpoint.layout import VERSION
from pcopy.named import NamedTuple
from pcopy.tasks.base.job import KEEPING, Root
from pcopy.tasks.base.kind import FORMAT
from pcopy.text import shown

RUNNING = "running"
STOPPED = "stopped"
FAILED_ITEMS = "failed items"
NOT_ALL_WRITTEN = "not all written"
"""No item has failed; but the signature, say, could not be written, or the destination not be synced."""
OVER = "over"
"""The job has ended well, or was discarded: what is left of its directory means nothing."""
STATES = (RUNNING, STOPPED, FAILED_ITEMS, NOT_ALL_WRITTEN, OVER)


_MAGIC = b"pcopy job "
_NONCE = b' "nonce": '
"""The beginning of the line of that field; each field has a line of its own."""


def name_of(path: bytes) -> str:
    """By which ``--resume`` and ``--discard`` know the job in the directory ``path``: that one's name."""
    return shown(os.path.basename(path))


class Made(NamedTuple):
    """A directory that is copied to: ``fsid`` and ``birth`` (in ns) are 0 where they are unknown; all are until it is
    known to be there."""

    inode: int = 0
    f_type: int = 0
    fsid: int = 0
    birth: int = 0


class JobRoot(NamedTuple):
    """One source and its target: the fields of a ``Root``, and where the two directories lie.

    ``*_place`` are (f_type, fsid) of statfs(2), with the UUID as a number in place of XFS's fsid (0: not told).
    ``made`` is the directory ``name`` in ``target``, where a directory is copied to one.
    """

    source: bytes
    target: bytes
    item: bytes
    name: bytes
    source_shown: bytes
    target_shown: bytes
    source_id: tuple[int, int]
    target_id: tuple[int, int]
    source_place: tuple[int, int]
    target_place: tuple[int, int]
    made: Made = Made()

    @property
    def plain(self) -> Root:
        """As the ranks know it."""
        return Root(**{name: getattr(self, name) for name in Root._fields})


class _NotWritten(ValueError):
    """The contents of a file ``job`` are not what ``encode`` writes; the text says where, for users."""


class OtherVersion(ValueError):
    """Another version of pcopy has written it; with the job's ``roots`` if they are as this one writes them."""

    def __init__(self, what: str, roots: tuple[JobRoot, ...]) -> None:
        super().__init__(what)
        self.roots = roots


class JobFile(NamedTuple):
    """Everything that a job needs to go on.

    ``created`` is in seconds since 1970, ``t0`` the ctime, in ns, of a probe file that was made on the destination when
    the job began, ``runs`` counts its starts. ``asked`` is what the user asked for, as compared by ``differing``;
    ``options`` what that came to. Both hold primitives, tuples and mappings of them only; ``totals`` are the counts as
    last known, for listings.
    """

    name: str
    created: float
    roots: tuple[JobRoot, ...]
    options: Mapping[str, Any]
    asked: Mapping[str, Any]
    t0: int
    umask: int
    user: int
    nonce: str
    runs: int = 1
    state: str = RUNNING
    totals: Mapping[str, int] = {}
    mounts: tuple[tuple[Any, ...], ...] = ()
    """What is mounted below the roots: the path of each mount, and (f_type, id, inode, mark) of its root."""
    tasks: int = FORMAT
    """The version of what its tasks are packed as (``pcopy.tasks.base.kind``)."""
    above: tuple[bytes, ...] = ()
    """Directories around the job's own that were made for it, and go with it: absolute paths, the deepest first."""
    killed: bool = False
    """True if an earlier run was killed, or ended before all that it had written was on stable storage.

    That stays so until the job is over: nobody knows what was copied again.
    """
    stored: int = 0
    """When the last durable cut of the runs before the current one began, by the clock of ``t0``; 0: there was none."""
    doubted: int = 0
    """As in ``Job``."""

    @property
    def may_have_cut_short(self) -> bool:
        """May a file that is cut short have its final name? Not if the job keeps what exists: it names whole files."""
        return (self.killed or self.state == RUNNING) and self.options.get("existing") not in KEEPING

    def differing(self, asked: Mapping[str, Any]) -> list[str]:
        """The keys under which ``asked`` says something else than what this job was asked for."""
        mine, other = _tuples(self.asked), _tuples(asked)
        return [key for key in {**mine, **other} if key not in mine or key not in other or mine[key] != other[key]]


_TYPES: dict[str, Any] = {
    "name": str, "created": (int, float), "roots": tuple, "options": dict, "asked": dict, "t0": int, "umask": int,
    "user": int, "nonce": str, "runs": int, "state": str, "totals": dict, "mounts": tuple, "tasks": int,
    "above": tuple, "killed": bool, "stored": int, "doubted": int,
}  # fmt: skip


def encode(job: JobFile) -> bytes:
    """The file's contents; raises ``TypeError`` if there is anything but primitives in it."""
    fields = job._asdict().items()
    texts = {name: _roots_text(value) if name == "roots" else _text(value) for name, value in fields}
    lines = (f" {json.dumps(name)}: {text}" for name, text in texts.items())
    body = ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")  # indents of json's own take far longer
    return b"%s%d %s\n%s" % (_MAGIC, VERSION, _digest(body), body)


def decode(contents: bytes) -> JobFile:
    """The job that ``encode`` wrote; raises ``ValueError`` with what is wrong for anything else.

    It is ``OtherVersion`` where that is all that is wrong.
    """
    body = _body(contents)
    try:
        fields = json.loads(body)
        if isinstance(tasks := fields.get("tasks"), int) and tasks != FORMAT:
            raise OtherVersion(f"tasks of version {tasks}; this pcopy reads version {FORMAT}", _roots_in(body))
        job = _job(fields)
    except OtherVersion:
        raise
    except _NotWritten as error:
        raise ValueError(f"not what pcopy writes: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError("not what pcopy writes: its contents have another structure") from None
    if not job.name.isalnum() or job.state not in STATES or not job.roots or job.runs < 1:
        raise ValueError("not what pcopy writes: a name, a state, roots or runs that no job has")
    return job


def nonce_in(contents: bytes) -> str:
    """Return the nonce of a job that ``encode`` wrote, without decoding its roots; raise as ``decode`` does."""
    found = [line for line in _body(contents).splitlines() if line.startswith(_NONCE)]
    if len(found) != 1:
        raise ValueError("not what pcopy writes: its contents have another structure")
    return str(json.loads(found[0].removeprefix(_NONCE).rstrip(b",")))


def _body(contents: bytes) -> bytes:
    """Return the contents after the first line, which names their digest; raise as ``decode`` does."""
    head, _, body = contents.partition(b"\n")
    if not head.startswith(_MAGIC):
        raise ValueError("not a job of pcopy's")
    version, _, digest = head.removeprefix(_MAGIC).partition(b" ")
    is_whole = digest == _digest(body)
    if version != b"%d" % VERSION:
        roots = _roots_in(body) if is_whole else ()
        raise OtherVersion(f"version {shown(version)} of pcopy's jobs; this pcopy reads version {VERSION}", roots)
    if not is_whole:
        raise ValueError("damaged: its digest does not fit")
    return body


def _job(plain: Mapping[str, Any]) -> JobFile:
    """What the object says; raises whatever comes of one that pcopy has not written."""
    fields = {name: _value(value) for name, value in plain.items()}
    for name, kind in _TYPES.items():
        if name not in fields:
            raise _NotWritten(f"the field {name} is missing")
        if not isinstance(fields[name], kind):
            raise _NotWritten(f"the field {name} has a wrong type")
    if not all(isinstance(path, bytes) for path in fields["above"]):
        raise _NotWritten("the field above has a wrong type")
    for path, (_, _, _, _) in fields["mounts"]:
        if not isinstance(path, bytes):
            raise _NotWritten("the field mounts has a wrong type")
    fields["roots"] = _roots(fields["roots"])
    return JobFile(**fields)


def _roots(plain: Any) -> tuple[JobRoot, ...]:
    roots = (JobRoot(*root) for root in plain)
    return tuple(root._replace(made=Made(*root.made)) for root in roots)


def _roots_in(body: bytes) -> tuple[JobRoot, ...]:
    """The roots of a job of another version; none if they are not as this one writes them."""
    try:
        roots = _roots(_value(json.loads(body)["roots"]))
        paths = [(root.target, root.name) for root in roots]
        if all(target.startswith(b"/") and b"/" not in name and b"\0" not in target + name for target, name in paths):
            return roots
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return ()


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).hexdigest().encode()


_json = json.JSONEncoder(allow_nan=False).encode


def _text(value: Any) -> str:
    return _json(_plain(value))


@lru_cache(maxsize=1)  # they rarely change while a job is stored again
def _roots_text(roots: tuple[JobRoot, ...]) -> str:
    """Return the same as ``_text``, and encode equal fields once: most fields of many roots are equal.

    Fields are bytes and tuples of integers. No field is a boolean, which would be equal to the integer 0 or 1.
    """
    known: dict[Any, str] = {}

    def text(value: Any) -> str:
        found = known.get(value)
        if found is None:
            is_path = isinstance(value, bytes)
            found = known[value] = '{"bytes": ' + _json(_readable(value)) + "}" if is_path else _text(value)
        return found

    return "[" + ", ".join(["[" + ", ".join(map(text, root)) + "]" for root in roots]) + "]"


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return {"bytes": _readable(value)}
    if isinstance(value, (tuple, list)):
        return [inner if type(inner) is int else _plain(inner) for inner in value]  # a job may have many roots
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a job's mappings have names as keys")
        return {"map": {key: _plain(inner) for key, inner in value.items()}}
    raise TypeError(f"{type(value).__name__} is no primitive")


def _readable(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(_value(inner) for inner in plain)
    if not isinstance(plain, dict):
        return plain
    ((kind, inner),) = plain.items()
    if kind == "bytes":
        return inner.encode("utf-8", "surrogateescape")
    if kind != "map":
        raise _NotWritten(f"no kind of value: {shown(os.fsencode(kind))}")
    return {key: _value(one) for key, one in inner.items()}


def _tuples(value: Any) -> Any:
    """``value`` as it comes back from the file: named tuples and lists as tuples."""
    return _value(_plain(value))
