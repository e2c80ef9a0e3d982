r"""The file ``job``: the description of a job between its runs, and the format of that file.

The first line is ``pcopy job VERSION DIGEST``. DIGEST is the BLAKE2b digest (16 bytes, in hexadecimal) of the rest of
the file: one JSON object, which people can read. Bytes are ``{"bytes": "..."}``, with ``\udcNN`` for bytes that are not
UTF-8. Mappings are ``{"map": {...}}``, and sequences are arrays. So reading the file can yield nothing but primitive
values.
"""

from __future__ import annotations

import json
import os
from _blake2 import blake2b  # hashlib would load OpenSSL, which takes as long as copying a hundred small files
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pcopy.checkpoint.layout import JOB_FORMAT_VERSION
from pcopy.fast_named_tuple import NamedTuple
from pcopy.tasks.base.job import KEEPING_CHOICES, Root
from pcopy.tasks.base.kind import TASK_FORMAT
from pcopy.text import printable_path

RUNNING = "running"
STOPPED = "stopped"
FAILED_ITEMS = "failed items"
NOT_ALL_WRITTEN = "not all written"
"""State of a job of which no item failed, but a result (such as the signature) could not be written, or the
destination not synced.
"""
OVER = "over"
"""State of a job that ended with status 0 or was discarded: remaining files in its directory have no meaning."""
STATES = (RUNNING, STOPPED, FAILED_ITEMS, NOT_ALL_WRITTEN, OVER)


_MAGIC = b"pcopy job "
_NONCE = b' "nonce": '
"""Beginning of the line of the field ``nonce``; each field has a line of its own."""


def job_name(path: bytes) -> str:
    """Return the name by which ``--resume`` and ``--discard`` know the job in the directory ``path``: the name of
    the directory.
    """
    return printable_path(os.path.basename(path))


class TargetIdentity(NamedTuple):
    """Identity of the directory that a source directory is copied to.

    ``fsid`` and ``birth`` (nanoseconds since 1970) are 0 where they are unknown. All fields are 0 until the directory
    exists.
    """

    inode: int = 0
    f_type: int = 0
    fsid: int = 0
    birth: int = 0


class JobRoot(NamedTuple):
    """A source and its target as the job file holds them: the fields of a ``Root``, and the file systems of the two
    directories.

    ``source_place`` and ``target_place`` are (f_type, fsid) of statfs(2). On XFS the UUID, as a number, replaces the
    fsid. 0 stands for unknown. ``made`` is the directory ``name`` in ``target`` if a directory is copied to it.
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
    made: TargetIdentity = TargetIdentity()

    @property
    def as_root(self) -> Root:
        """The root as the ranks know it."""
        return Root(**{name: getattr(self, name) for name in Root._fields})


class _WrongStructure(ValueError):
    """The contents of a job file are not what ``encode`` writes; the text tells users where."""


class OtherVersion(ValueError):
    """Another version of pcopy has written the job file.

    ``roots``: the roots of the job if they have the format of this version, else empty.
    """

    def __init__(self, what: str, roots: tuple[JobRoot, ...]) -> None:
        super().__init__(what)
        self.roots = roots


class JobFile(NamedTuple):
    """All values that a resume of a job needs.

    Fields:
    - ``name``: the name of the job, and of its directory in the state directory.
    - ``created``: when the job was created, in seconds since 1970.
    - ``roots``: its sources and targets.
    - ``options``: the options of the job, as primitive values, tuples and mappings.
    - ``asked``: the values of the command line, as primitive values, tuples and mappings; compared by
      ``differing_keys``.
    - ``t0``: ctime of a probe file on the destination when the job began, in nanoseconds since 1970.
    - ``umask``, ``user``: of the user who started the job.
    - ``nonce``: random text that identifies the job.
    - ``runs``: number of runs that were started.
    - ``state``: one of ``STATES``.
    - ``totals``: the latest known counters, for listings.
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
    """Mounts below the roots: the path of each, and (f_type, id, inode, mark) of its root directory."""
    tasks: int = TASK_FORMAT
    """Version of the format of packed tasks (``pcopy.tasks.base.kind``)."""
    above: tuple[bytes, ...] = ()
    """Directories that were created to contain the job directory, and are removed with it: absolute paths, the
    deepest first.
    """
    killed: bool = False
    """True if an earlier run was killed, or ended before all that it had written was on stable storage.

    It remains True until the job is over, since nothing records which files were copied again.
    """
    stored: int = 0
    """When the last durable cut of the earlier runs began, in nanoseconds by the clock of ``t0``; 0 if there was
    none.
    """
    doubted: int = 0
    """The field ``doubted`` of ``Job``."""

    @property
    def may_have_incomplete_files(self) -> bool:
        """True if a file with its final name may be incomplete.

        False if the job keeps existing files: then it gives files their names only when they are complete.
        """
        return (self.killed or self.state == RUNNING) and self.options.get("existing") not in KEEPING_CHOICES

    def differing_keys(self, asked: Mapping[str, Any]) -> list[str]:
        """Return the keys under which ``asked`` differs from the recorded command line."""
        mine, other = _as_read_back(self.asked), _as_read_back(asked)
        return [key for key in {**mine, **other} if key not in mine or key not in other or mine[key] != other[key]]


_TYPES: dict[str, Any] = {
    "name": str, "created": (int, float), "roots": tuple, "options": dict, "asked": dict, "t0": int, "umask": int,
    "user": int, "nonce": str, "runs": int, "state": str, "totals": dict, "mounts": tuple, "tasks": int,
    "above": tuple, "killed": bool, "stored": int, "doubted": int,
}  # fmt: skip


def encode(job: JobFile) -> bytes:
    """Return the contents of the job file; raise ``TypeError`` if a value is not primitive."""
    fields = job._asdict().items()
    texts = {name: _roots_text(value) if name == "roots" else _json_text(value) for name, value in fields}
    lines = (f" {json.dumps(name)}: {text}" for name, text in texts.items())
    body = ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")  # json.dumps(indent=…) takes far longer
    return b"%s%d %s\n%s" % (_MAGIC, JOB_FORMAT_VERSION, _digest(body), body)


def decode(contents: bytes) -> JobFile:
    """Return the job that ``encode`` wrote.

    Raise ``OtherVersion`` if another version wrote it, and any other ``ValueError``, with the reason, if the contents
    are damaged or are no job.
    """
    body = _checked_body(contents)
    try:
        fields = json.loads(body)
        if isinstance(tasks := fields.get("tasks"), int) and tasks != TASK_FORMAT:
            raise OtherVersion(
                f"tasks of version {tasks}; this pcopy reads version {TASK_FORMAT}", _roots_of_other_version(body)
            )
        job = _job_from_object(fields)
    except OtherVersion:
        raise
    except _WrongStructure as error:
        raise ValueError(f"not what pcopy writes: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError("not what pcopy writes: its contents have another structure") from None
    if not job.name.isalnum() or job.state not in STATES or not job.roots or job.runs < 1:
        raise ValueError("not what pcopy writes: a name, a state, roots or runs that no job has")
    return job


def decode_nonce(contents: bytes) -> str:
    """Return the nonce of the job that ``encode`` wrote, without parsing its roots; raise as ``decode`` does."""
    found = [line for line in _checked_body(contents).splitlines() if line.startswith(_NONCE)]
    if len(found) != 1:
        raise ValueError("not what pcopy writes: its contents have another structure")
    return str(json.loads(found[0].removeprefix(_NONCE).rstrip(b",")))


def _checked_body(contents: bytes) -> bytes:
    """Return the JSON text after the first line; raise as ``decode`` does if that line does not fit."""
    head, _, body = contents.partition(b"\n")
    if not head.startswith(_MAGIC):
        raise ValueError("not a job of pcopy's")
    version, _, digest = head.removeprefix(_MAGIC).partition(b" ")
    is_whole = digest == _digest(body)
    if version != b"%d" % JOB_FORMAT_VERSION:
        roots = _roots_of_other_version(body) if is_whole else ()
        raise OtherVersion(
            f"version {printable_path(version)} of pcopy's jobs; this pcopy reads version {JOB_FORMAT_VERSION}", roots
        )
    if not is_whole:
        raise ValueError("damaged: its digest does not fit")
    return body


def _job_from_object(primitives: Mapping[str, Any]) -> JobFile:
    """Return the job of a JSON object; raise some exception if pcopy has not written it."""
    fields = {name: _from_json_value(value) for name, value in primitives.items()}
    for name, kind in _TYPES.items():
        if name not in fields:
            raise _WrongStructure(f"the field {name} is missing")
        if not isinstance(fields[name], kind):
            raise _WrongStructure(f"the field {name} has a wrong type")
    if not all(isinstance(path, bytes) for path in fields["above"]):
        raise _WrongStructure("the field above has a wrong type")
    for path, (_, _, _, _) in fields["mounts"]:
        if not isinstance(path, bytes):
            raise _WrongStructure("the field mounts has a wrong type")
    fields["roots"] = _roots_from_array(fields["roots"])
    return JobFile(**fields)


def _roots_from_array(primitives: Any) -> tuple[JobRoot, ...]:
    """Return the roots of a parsed array."""
    roots = (JobRoot(*root) for root in primitives)
    return tuple(root._replace(made=TargetIdentity(*root.made)) for root in roots)


def _roots_of_other_version(body: bytes) -> tuple[JobRoot, ...]:
    """Return the roots of a job of another version; empty if they do not have the format of this version."""
    try:
        roots = _roots_from_array(_from_json_value(json.loads(body)["roots"]))
        paths = [(root.target, root.name) for root in roots]
        if all(target.startswith(b"/") and b"/" not in name and b"\0" not in target + name for target, name in paths):
            return roots
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return ()


def _digest(body: bytes) -> bytes:
    """Return the digest of the JSON text, in hexadecimal."""
    return blake2b(body, digest_size=16).hexdigest().encode()


_json = json.JSONEncoder(allow_nan=False).encode


def _json_text(value: Any) -> str:
    """Return a value as JSON text."""
    return _json(_to_json_value(value))


@lru_cache(maxsize=1)  # The roots rarely change between two writes.
def _roots_text(roots: tuple[JobRoot, ...]) -> str:
    """Return the roots as JSON text.

    Faster than ``_text``: for a job with many roots most fields are equal, and the text of each value is computed once.
    """
    texts: dict[Any, str] = {}

    def text(value: Any) -> str:
        found = texts.get(value)
        if found is None:
            is_path = isinstance(value, bytes)
            found = texts[value] = '{"bytes": ' + _json(_bytes_as_text(value)) + "}" if is_path else _json_text(value)
        return found

    return "[" + ", ".join(["[" + ", ".join(map(text, root)) + "]" for root in roots]) + "]"


def _to_json_value(value: Any) -> Any:
    """Return a value as json.dumps takes it; raise ``TypeError`` if it is not primitive."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return {"bytes": _bytes_as_text(value)}
    if isinstance(value, (tuple, list)):
        return [
            inner if type(inner) is int else _to_json_value(inner) for inner in value
        ]  # The test for int is a fast path for jobs with many roots.
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("the keys of a job's mappings must be strings")
        return {"map": {key: _to_json_value(inner) for key, inner in value.items()}}
    raise TypeError(f"{type(value).__name__} is not a primitive type")


def _bytes_as_text(value: bytes) -> str:
    """Return bytes as text; bytes that are not UTF-8 become surrogates."""
    return value.decode("utf-8", "surrogateescape")


def _from_json_value(primitives: Any) -> Any:
    """Return the value of a parsed JSON value; the inverse of ``_plain``."""
    if isinstance(primitives, list):
        return tuple(_from_json_value(inner) for inner in primitives)
    if not isinstance(primitives, dict):
        return primitives
    ((kind, inner),) = primitives.items()
    if kind == "bytes":
        return inner.encode("utf-8", "surrogateescape")
    if kind != "map":
        raise _WrongStructure(f"no kind of value: {printable_path(os.fsencode(kind))}")
    return {key: _from_json_value(one) for key, one in inner.items()}


def _as_read_back(value: Any) -> Any:
    """Return ``value`` as it would be read back from the file: named tuples and lists become tuples."""
    return _from_json_value(_to_json_value(value))
