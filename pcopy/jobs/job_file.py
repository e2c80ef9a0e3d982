r"""The file ``job`` in a job directory: the description of a job between its runs, and the format of that file.

The first line is ``pcopy job VERSION DIGEST``. DIGEST is the BLAKE2b digest (16 bytes, in hexadecimal) of the rest of
the file: one JSON object, which people can read. In it, bytes are ``{"bytes": "..."}``, with ``\udcNN`` for bytes that
are not UTF-8, mappings are ``{"map": {...}}``, and sequences are arrays. Unlike a pickle, the file can contain nothing
but these values, numbers, texts and null, so it is safe to read.
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
from pcopy.tasks.base.job import EXISTING_CHOICES_THAT_KEEP, Root
from pcopy.tasks.base.kind import TASK_FORMAT
from pcopy.text import printable_path

JOB_RUNNING = "running"
JOB_STOPPED = "stopped"
JOB_FAILED_ITEMS = "failed items"
JOB_NOT_ALL_WRITTEN = "not all written"
"""State of a job in which no item failed, but a result file (such as the signature) could not be written, or the
destination could not be synced.
"""
JOB_OVER = "over"
"""State of a job that ended with status 0 or was discarded, until its directory is removed.

Whatever remains in the directory is not a job any longer, and may be removed.
"""
JOB_STATES = (JOB_RUNNING, JOB_STOPPED, JOB_FAILED_ITEMS, JOB_NOT_ALL_WRITTEN, JOB_OVER)
"""All values of ``JobFile.state``. A job that was killed remains in the state ``JOB_RUNNING``."""


_JOB_FILE_BEGINNING = b"pcopy job "
_NONCE_LINE_BEGINNING = b' "nonce": '
"""Beginning of the line that contains the field ``nonce``: ``encode_job`` writes each field on a line of its own."""


def job_name(path: bytes) -> str:
    """Return the name by which ``--resume`` and ``--discard`` know the job in the directory ``path``: the name of
    the directory.
    """
    return printable_path(os.path.basename(path))


class TargetIdentity(NamedTuple):
    """Identity of the directory to which a source directory is copied, for the check when the job is resumed.

    ``f_type`` and ``fsid`` are from statfs(2), ``birth`` is in nanoseconds since 1970. ``fsid`` and ``birth`` are 0 if
    they are unknown. All fields are 0 until the directory exists.
    """

    inode: int = 0
    f_type: int = 0
    fsid: int = 0
    birth: int = 0


class JobRoot(NamedTuple):
    """A source and its target as the job file contains them: the fields of a ``Root``, and the file systems of the two
    directories.

    Fields:
    - ``source``, ``target``: absolute paths of the source directory and of the directory that receives the copy.
    - ``item``: the name in ``source`` of the single item to copy; empty: ``source`` itself is copied.
    - ``name``: the name of the copy in ``target``; empty: the copy is ``target`` itself.
    - ``source_shown``, ``target_shown``: the paths as the user wrote them.
    - ``source_id``, ``target_id``: device and inode number of the two directories.
    - ``source_place``, ``target_place``: (f_type, fsid) of their file systems, from statfs(2). On XFS the UUID, as a
      number, replaces the fsid. 0 stands for unknown.
    - ``made``: the identity of the directory ``name`` in ``target``, if a directory is copied to it.
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
        """The source and the target without the file systems, as a ``Root``: the ranks need only these."""
        return Root(**{name: getattr(self, name) for name in Root._fields})


class _JobFileStructureError(ValueError):
    """Error: the JSON object in a job file has another structure than ``encode_job`` gives it; the text names the
    field, for users.
    """


class JobFileVersionError(ValueError):
    """Error: another version of pcopy has written the job file.

    ``roots``: the sources and targets of the job if they have the format of this version, else empty.
    """

    def __init__(self, what: str, roots: tuple[JobRoot, ...]) -> None:
        super().__init__(what)
        self.roots = roots


class JobFile(NamedTuple):
    """All values that a resume of a job needs.

    Fields:
    - ``name``: the name of the job, and of its directory in the state directory.
    - ``created``: when the job was created, in seconds since 1970.
    - ``roots``: the sources and targets of the job.
    - ``options``: the options of the job, as primitive values, tuples and mappings.
    - ``asked``: the arguments of the command line by option name, as primitive values, tuples and mappings. If the user
      gives options when the job is resumed, ``differing_option_names`` compares them with these.
    - ``t0``: the time at which the job began by the clock of the destination, in nanoseconds since 1970.
    - ``umask``, ``user``: umask and user ID of the process that started the job.
    - ``nonce``: random text that identifies the job.
    - ``runs``: number of runs that were started.
    - ``state``: one of ``JOB_STATES``.
    - ``totals``: the latest known counters by name, for ``--jobs``.
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
    state: str = JOB_RUNNING
    totals: Mapping[str, int] = {}
    mounts: tuple[tuple[Any, ...], ...] = ()
    """Mounts below the sources and targets: the path of each, and (f_type, file system id, inode, identity mark) of its
    root directory.

    The identity mark (file handle or birth time) distinguishes an inode from a later one with the same number.
    """
    tasks: int = TASK_FORMAT
    """Version of the format of the recorded tasks (``pcopy.tasks.base.kind``): only that version can resume the job."""
    above: tuple[bytes, ...] = ()
    """Absolute paths of the directories above the job directory that were created for it; the deepest is first.

    They are removed with the job directory if they are empty then.
    """
    killed: bool = False
    """True if an earlier run was killed, or ended before everything that it had written was on stable storage.

    It remains True until the job ends, because nothing records which of the affected files were copied again.
    """
    stored: int = 0
    """All that earlier runs wrote before this time is on stable storage. Nanoseconds since 1970, by the clock of the
    destination.

    It is the time at which a run began to write the last record of its progress that reached stable storage; 0 if there
    was none.
    """
    doubted: int = 0
    """Items that changed after this time may be the work of another, unfinished job, and may not be on stable storage.

    Nanoseconds since 1970, by the clock of the destination. 0 if there is no such job.
    """

    @property
    def may_have_incomplete_files(self) -> bool:
        """True if a file may be incomplete although it has its final name, because a run was killed.

        False with an ``--existing`` policy that keeps existing files (newer, skip, fail): such a job gives a file its
        final name only when the file is complete.
        """
        return (self.killed or self.state == JOB_RUNNING) and self.options.get(
            "existing"
        ) not in EXISTING_CHOICES_THAT_KEEP

    def differing_option_names(self, asked: Mapping[str, Any]) -> list[str]:
        """Return the names of the options whose values in ``asked`` differ from those of the recorded command line."""
        mine, other = _value_as_read_back(self.asked), _value_as_read_back(asked)
        return [key for key in {**mine, **other} if key not in mine or key not in other or mine[key] != other[key]]


_FIELD_TYPES: dict[str, Any] = {
    "name": str, "created": (int, float), "roots": tuple, "options": dict, "asked": dict, "t0": int, "umask": int,
    "user": int, "nonce": str, "runs": int, "state": str, "totals": dict, "mounts": tuple, "tasks": int,
    "above": tuple, "killed": bool, "stored": int, "doubted": int,
}  # fmt: skip
"""Types that the values in a job file must have, by field; a file without one of the fields is refused."""


def encode_job(job: JobFile) -> bytes:
    """Return the contents of a job file for ``job``, in the format that the module's docstring describes.

    Raise ``TypeError`` if a field has a value that the format does not allow.
    """
    fields = job._asdict().items()
    texts = {name: _roots_as_json_text(value) if name == "roots" else _json_text(value) for name, value in fields}
    lines = (f" {json.dumps(name)}: {text}" for name, text in texts.items())
    body = ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")  # json.dumps(indent=…) takes far longer
    return b"%s%d %s\n%s" % (_JOB_FILE_BEGINNING, JOB_FORMAT_VERSION, _digest_of_json_text(body), body)


def decode_job(contents: bytes) -> JobFile:
    """Return the job whose file has these ``contents``, which ``encode_job`` wrote.

    Raise ``JobFileVersionError`` if another version wrote it, and any other ``ValueError``, with the reason, if the
    contents are damaged or are no job.
    """
    body = _checked_json_text(contents)
    try:
        fields = json.loads(body)
        if isinstance(tasks := fields.get("tasks"), int) and tasks != TASK_FORMAT:
            raise JobFileVersionError(
                f"tasks of version {tasks}; this pcopy reads version {TASK_FORMAT}", _roots_of_other_version(body)
            )
        job = _job_from_object(fields)
    except JobFileVersionError:
        raise
    except _JobFileStructureError as error:
        raise ValueError(f"not what pcopy writes: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ValueError("not what pcopy writes: its contents have another structure") from None
    if not job.name.isalnum() or job.state not in JOB_STATES or not job.roots or job.runs < 1:
        raise ValueError("not what pcopy writes: the name, the state, the roots or the number of runs is invalid")
    return job


def decode_nonce(contents: bytes) -> str:
    """Return the nonce (random text that identifies a job) from the contents of a job file, without parsing the other
    fields.

    Raise ``JobFileVersionError`` if another version wrote the file, and any other ``ValueError``, with the reason, if
    the contents are damaged or are no job.
    """
    found = [line for line in _checked_json_text(contents).splitlines() if line.startswith(_NONCE_LINE_BEGINNING)]
    if len(found) != 1:
        raise ValueError("not what pcopy writes: its contents have another structure")
    return str(json.loads(found[0].removeprefix(_NONCE_LINE_BEGINNING).rstrip(b",")))


def _checked_json_text(contents: bytes) -> bytes:
    """Check the digest in a job file with these ``contents``, and return the JSON text, which follows the first line.

    Raise ``JobFileVersionError`` if the first line names another version, and any other ``ValueError`` if it is no
    first line of a job file or if the digest is wrong.
    """
    head, _, body = contents.partition(b"\n")
    if not head.startswith(_JOB_FILE_BEGINNING):
        raise ValueError("not a job of pcopy's")
    version, _, digest = head.removeprefix(_JOB_FILE_BEGINNING).partition(b" ")
    is_whole = digest == _digest_of_json_text(body)
    if version != b"%d" % JOB_FORMAT_VERSION:
        roots = _roots_of_other_version(body) if is_whole else ()
        raise JobFileVersionError(
            f"version {printable_path(version)} of pcopy's jobs; this pcopy reads version {JOB_FORMAT_VERSION}", roots
        )
    if not is_whole:
        raise ValueError("damaged: its digest does not match its contents")
    return body


def _job_from_object(primitives: Mapping[str, Any]) -> JobFile:
    """Return the job that ``primitives``, the parsed JSON object of a job file, describe.

    Raise ``_JobFileStructureError``, or any exception that unexpected values cause, if the object has another structure
    than ``encode_job`` gives it.
    """
    fields = {name: _from_json_value(value) for name, value in primitives.items()}
    for name, kind in _FIELD_TYPES.items():
        if name not in fields:
            raise _JobFileStructureError(f"the field {name} is missing")
        if not isinstance(fields[name], kind):
            raise _JobFileStructureError(f"the field {name} has a wrong type")
    if not all(isinstance(path, bytes) for path in fields["above"]):
        raise _JobFileStructureError("the field 'above' has a wrong type")
    for path, (_, _, _, _) in fields["mounts"]:
        if not isinstance(path, bytes):
            raise _JobFileStructureError("the field mounts has a wrong type")
    fields["roots"] = _roots_from_array(fields["roots"])
    return JobFile(**fields)


def _roots_from_array(primitives: Any) -> tuple[JobRoot, ...]:
    """Return the sources and targets of the parsed array ``roots`` of a job file."""
    roots = (JobRoot(*root) for root in primitives)
    return tuple(root._replace(made=TargetIdentity(*root.made)) for root in roots)


def _roots_of_other_version(body: bytes) -> tuple[JobRoot, ...]:
    """Return the sources and targets in ``body``, the JSON text of a job file of another version.

    Empty if they have another format than in this version.
    """
    try:
        roots = _roots_from_array(_from_json_value(json.loads(body)["roots"]))
        paths = [(root.target, root.name) for root in roots]
        if all(target.startswith(b"/") and b"/" not in name and b"\0" not in target + name for target, name in paths):
            return roots
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return ()


def _digest_of_json_text(body: bytes) -> bytes:
    """Return the digest of ``body``, the JSON text of a job file, in hexadecimal."""
    return blake2b(body, digest_size=16).hexdigest().encode()


_json = json.JSONEncoder(allow_nan=False).encode


def _json_text(value: Any) -> str:
    """Return ``value`` as JSON text in the form in which the job file contains it: bytes and mappings become tagged
    objects.
    """
    return _json(_to_json_value(value))


@lru_cache(maxsize=1)  # The roots rarely change between two writes.
def _roots_as_json_text(roots: tuple[JobRoot, ...]) -> str:
    """Return the sources and targets of a job as JSON text.

    The result is that of ``_json_text(roots)``, but faster: in a job with thousands of sources most fields are equal,
    and here each different value is converted only once.
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
    """Return a value in the form in which the job file contains it: bytes and mappings become tagged objects.

    Raise ``TypeError`` if it is neither primitive nor a sequence or mapping of such values.
    """
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
    """Return the value that a parsed JSON value stands for; the inverse of ``_to_json_value``."""
    if isinstance(primitives, list):
        return tuple(_from_json_value(inner) for inner in primitives)
    if not isinstance(primitives, dict):
        return primitives
    ((kind, inner),) = primitives.items()
    if kind == "bytes":
        return inner.encode("utf-8", "surrogateescape")
    if kind != "map":
        raise _JobFileStructureError(f"unknown kind of value: {printable_path(os.fsencode(kind))}")
    return {key: _from_json_value(one) for key, one in inner.items()}


def _value_as_read_back(value: Any) -> Any:
    """Return ``value`` as it would be read back from the file: named tuples and lists become tuples."""
    return _from_json_value(_to_json_value(value))
