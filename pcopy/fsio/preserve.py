"""The kinds of metadata that a copy keeps, and the privileges of this process to set them."""

from __future__ import annotations

import os
from functools import cache

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.retries import TOO_MANY_OPEN_FILES_ERRNOS, call_with_retries

PRESERVABLE_METADATA = ("mode", "ownership", "timestamps", "links", "xattr", "acl", "sparse")
"""Kinds of metadata that the user can select with ``--preserve``: the boolean fields of ``PreservedMetadataKinds``."""


class PreservedMetadataKinds(NamedTuple):
    """The metadata that copies get from their sources: each field is True if copies get this kind.

    ``links`` means hard links, ``sparse`` holes. ``chown`` is the (uid, gid) that all items get (``--chown``); -1: not
    given, so that ``ownership`` decides about this id.
    """

    mode: bool = True
    ownership: bool = True
    timestamps: bool = True
    links: bool = True
    xattr: bool = True
    acl: bool = True
    sparse: bool = True
    chown: tuple[int, int] = (-1, -1)


CAP_CHOWN = 0
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
CAP_FOWNER = 3
CAP_FSETID = 4
CAP_SYS_ADMIN = 21
CAP_SYS_RESOURCE = 24
CAP_SETFCAP = 31
"""Numbers of capabilities (capabilities(7))."""


@cache
def has_capability(capability: int) -> bool:
    """Return True if this process has the effective ``capability``, a number of capabilities(7) (one of the ``CAP_``
    constants). The result is cached.
    """
    try:
        with call_with_retries(lambda: open("/proc/self/status", "rb"), TOO_MANY_OPEN_FILES_ERRNOS) as status:
            for line in status:
                if line.startswith(b"CapEff:"):
                    return bool(int(line.split()[1], 16) >> capability & 1)
    except FileNotFoundError:  # Without /proc only the user id is known.
        pass
    return os.geteuid() == 0


def are_all_user_ids_mapped() -> bool:
    """Return True if the user namespace of this process maps all user ids. In another one, capabilities do not apply to
    files of users that are not mapped.
    """
    return sum(count for _, count in _mapped_id_ranges("uid")) >= (1 << 32) - 1


def are_ids_mapped_in_namespace(uid: int, gid: int) -> bool:
    """Return True if the user namespace of this process maps the ids ``uid`` and ``gid`` (user_namespaces(7)); -1
    stands for no id.
    """
    return all(
        number < 0 or any(first <= number < first + count for first, count in _mapped_id_ranges(kind))
        for number, kind in ((uid, "uid"), (gid, "gid"))
    )


@cache
def _mapped_id_ranges(kind: str) -> tuple[tuple[int, int], ...]:
    """Return the ids that are mapped in the user namespace of this process as ranges (first id, number of ids).
    ``kind`` is "uid" or "gid".

    Without /proc, or without user namespaces, the range is that of all ids.
    """
    try:
        with call_with_retries(lambda: open(f"/proc/self/{kind}_map", "rb"), TOO_MANY_OPEN_FILES_ERRNOS) as ranges:
            return tuple((int(first), int(count)) for first, _, count in map(bytes.split, ranges))
    except OSError:
        return ((0, 1 << 32),)
