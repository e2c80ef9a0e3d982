r"""What is known of a job between its runs, and the form of the file ``job`` that says it.

The first line is ``pcopy job VERSION DIGEST``, where DIGEST is the BLAKE2b (16 bytes, in hexadecimal) of all that
follows: one JSON object, for people to read. Bytes are ``{"bytes": "..."}`` with ``\udcNN`` for what is not UTF-8,
mappings ``{"map": {...}}``, sequences arrays. So nothing but primitives can come out of it.
"""

from __future__ import annotations

import json
from _blake2 import blake2b  # hashlib would load OpenSSL, too, which takes as long as a hundred small files
from collections.abc import Mapping
from typing import Any, NamedTuple

from pcopy.checkpoint.layout import END_IT, VERSION
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


class JobRoot(NamedTuple):
    """One source and its target: the fields of a root of a job, in their order, and where the two directories lie.

    Paths are absolute, ``*_shown`` as the user gave them, ``*_id`` (device, inode), ``*_place`` (f_type, fsid) of
    statfs(2), with the UUID as a number in place of XFS's fsid (0: not told). ``made`` is the inode, f_type, fsid (or
    UUID) and time of birth (ns, 0: unknown) of the directory ``name`` in
    ``target``, where a directory is copied to one; zeros until it is known to be there.
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
    made: tuple[int, int, int, int] = (0, 0, 0, 0)


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
    above: tuple[bytes, ...] = ()
    """Directories around the job's own that were made for it, and go with it: absolute paths, the deepest first."""

    def differing(self, asked: Mapping[str, Any]) -> list[str]:
        """The keys under which ``asked`` says something else than what this job was asked for."""
        mine, other = _tuples(self.asked), _tuples(asked)
        return [key for key in {**mine, **other} if key not in mine or key not in other or mine[key] != other[key]]


_TYPES: dict[str, Any] = {
    "name": str, "created": (int, float), "roots": tuple, "options": dict, "asked": dict, "t0": int, "umask": int,
    "user": int, "nonce": str, "runs": int, "state": str, "totals": dict, "mounts": tuple, "above": tuple,
}  # fmt: skip


def encode(job: JobFile) -> bytes:
    """The file's contents; raises ``TypeError`` if there is anything but primitives in it."""
    fields = {name: _plain(value) for name, value in job._asdict().items()}
    body = json.dumps(fields, indent=1, allow_nan=False).encode("ascii") + b"\n"
    return b"%s%d %s\n%s" % (_MAGIC, VERSION, _digest(body), body)


def decode(contents: bytes) -> JobFile:
    """The job that ``encode`` wrote; raises ``ValueError`` with what is wrong for anything else."""
    head, _, body = contents.partition(b"\n")
    if not head.startswith(_MAGIC):
        raise ValueError("not a job of pcopy's")
    version, _, digest = head.removeprefix(_MAGIC).partition(b" ")
    if version != b"%d" % VERSION:
        raise ValueError(f"version {shown(version)} of pcopy's jobs; this pcopy reads version {VERSION}; {END_IT}")
    if digest != _digest(body):
        raise ValueError("damaged: its digest does not fit")
    try:
        fields = {name: _value(value) for name, value in json.loads(body).items()}
        for name, kind in _TYPES.items():
            if not isinstance(fields[name], kind):
                raise TypeError(name)
        if not all(isinstance(path, bytes) for path in fields["above"]):
            raise TypeError("above")
        for path, (_, _, _, _) in fields["mounts"]:
            if not isinstance(path, bytes):
                raise TypeError("mounts")
        fields["roots"] = tuple(JobRoot(*root) for root in fields["roots"])
        job = JobFile(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not what pcopy writes: {error!r}") from None
    if not job.name.isalnum() or job.state not in STATES or not job.roots or job.runs < 1:
        raise ValueError("not what pcopy writes: a name, a state, roots or runs that no job has")
    return job


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).hexdigest().encode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.decode("utf-8", "surrogateescape")}
    if isinstance(value, (tuple, list)):
        return [_plain(inner) for inner in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a job's mappings have names as keys")
        return {"map": {key: _plain(inner) for key, inner in value.items()}}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} is no primitive")


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(_value(inner) for inner in plain)
    if not isinstance(plain, dict):
        return plain
    ((kind, inner),) = plain.items()
    if kind == "bytes":
        return inner.encode("utf-8", "surrogateescape")
    if kind != "map":
        raise ValueError(f"no kind of value: {kind}")
    return {key: _value(one) for key, one in inner.items()}


def _tuples(value: Any) -> Any:
    """``value`` as it comes back from the file: named tuples and lists as tuples."""
    return _value(_plain(value))
