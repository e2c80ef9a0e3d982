"""Resolution of SRC... DST, as the user wrote them, to the roots of a job: cp's rules, with rsync's trailing slash.

Rules: a copy onto or into itself is refused, and so is any command without a clear meaning. Two directories are the
same if device and inode are equal, whatever their names, so that symbolic links and bind mounts make no difference. All
sources are examined before anything else. Nothing is created, opened for reading or changed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from pcopy.errors import Refused
from pcopy.fsio.close import held_open
from pcopy.fsio.patience import open_patiently
from pcopy.jobs.meant import barrier, meant, meant_or_made
from pcopy.named import NamedTuple
from pcopy.tasks.base.job import DeviceInode, Options, Root
from pcopy.text import for_shell, shown

if TYPE_CHECKING:
    from pcopy.jobs.job_file import JobRoot

_DISK, _SOCKET = "block device", "socket"
_NODES = (
    (stat.S_ISBLK, _DISK),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISFIFO, "FIFO"),
    (stat.S_ISSOCK, _SOCKET),
)
_DESCRIPTOR = rb"/proc/[0-9]+(/task/[0-9]+)?/fd/[0-9]+"
_HOST = rb"([A-Za-z][A-Za-z0-9.-]*|[0-9]+(\.[0-9]+){3}|\[[0-9A-Fa-f:.]+\]):"
"""Beginning of a name that means ``host:path`` to rsync and scp; ``10:30`` and ``2026-11-24T18:00`` are times."""

_MOST_LINKS = 40  # limit of the Linux kernel


class _Source(NamedTuple):
    """A SRC argument and what it refers to. ``given`` is the argument; ``item`` is the name in ``directory``,
    empty if that directory itself is copied; ``name`` is its name in a target directory, empty for its contents.
    """

    given: bytes
    contents: bool  # written with a trailing slash, or as ".", "..", "X/.": only its contents are copied
    directory: bytes  # real path of the directory to copy, or of the directory that contains the item
    item: bytes
    name: bytes
    identity: DeviceInode  # of the directory or item to copy
    points_to: DeviceInode | None  # of the target of a symbolic link


class _Destination(NamedTuple):
    """The DST argument and what it refers to. ``given`` is the argument; ``slash``: it is written as a directory;
    ``parent`` and ``name`` are its two parts.
    """

    given: bytes
    slash: bool
    directory: bytes | None  # real path of an existing directory, or of the target of a link to one
    entry: os.stat_result | None  # lstat of the name itself; None if it does not exist
    parent: bytes
    name: bytes


def resolve(
    sources: Sequence[bytes],
    destination: bytes,
    exact: bool,
    *,
    follow: bool = False,
    stays: bool = False,
    recoding: Options | None = None,
) -> tuple[Root, ...]:
    """Return one root for each of ``sources``, in their order, all below the same target directory.

    Args:
        exact: DST itself is the target (``-T``).
        follow: a source that is a symbolic link stands for its target, and keeps its own name (``-L``).
        stays: the job does not leave each source's file system (``-x``), so DST may be another file system that is
            mounted inside a source.
        recoding: the options of a job that compresses or decompresses, and so renames files; None for other jobs.

    Raise ``Refused``, with the path and what to do, if the paths cannot be copied as they are given.
    """
    if not sources:
        raise Refused("nothing to copy: give SRC and DST")
    if recoding is not None:
        from pcopy.tasks.base.recoded import with_final_name
    real_path, identity_of = lru_cache(_real_path), lru_cache(_identity)  # Many sources may lie in one directory.
    source_items = [_look_at_source(path, follow, real_path) for path in sources]
    target_item = _look_at_destination(destination)
    _refuse_node(source_items, target_item)
    if len(source_items) > 1:
        _refuse_mixture(source_items, target_item, exact)
    targets = [_target(source, target_item, exact) for source in source_items]
    ancestors = _identities_upwards(targets[0][0])
    roots = []
    for source, (target, name) in zip(source_items, targets, strict=True):
        is_inside = bool(name) and target_item.directory is not None and not exact
        target_shown = os.path.join(destination, name) if is_inside else destination
        source_id = identity_of(source.directory)
        root = Root(source.directory, target, source.item, name, source.given, target_shown, source_id, ancestors[0])
        final_root = root if recoding is None else with_final_name(recoding, root)
        _refuse_onto_itself(source, final_root, ancestors, stays and not follow)
        roots.append(root)
    _refuse_over_sources(roots)
    return tuple(roots)


def absolute(path: bytes) -> bytes:
    """Return ``path`` as an absolute path, which is valid in any working directory.

    Raise ``OSError`` if the path is relative and there is no current directory. As in the operating system, ``..``
    behind a symbolic link to a directory is the parent of the link's target, not the directory of the link.
    """
    parts = path.split(b"/")
    if b".." in parts:
        after = len(parts) - parts[::-1].index(b"..")
        path = os.path.join(os.path.realpath(b"/".join(parts[:after])), *parts[after:])
    return os.path.abspath(path)


def source_of(root: Root | JobRoot) -> bytes:
    """Return the path of the root's source item; if that is a directory, without a trailing slash."""
    return os.path.join(root.source, root.item) if root.item else root.source


def target_of(root: Root | JobRoot) -> bytes:
    """Return the path of the root's target item."""
    return os.path.join(root.target, root.name) if root.name else root.target


def filled_by(roots: Sequence[Root]) -> bytes:
    """Return the path that a job creates or fills: the directory into which its sources are copied, or the target
    of its only source.
    """
    return roots[0].target if len(roots) > 1 else target_of(roots[0])


def directory_filled(roots: Sequence[Root]) -> bytes:
    """Return an existing directory in the destination: the target itself, or its parent if the target does not
    exist yet.
    """
    path = filled_by(roots)
    return path if os.path.isdir(path) and not os.path.islink(path) else roots[0].target


def lies_in(path: bytes, tree: bytes) -> bool:
    """True if ``path`` is ``tree`` or lies below it. Both are real paths."""
    return path == tree or path.startswith(tree if tree.endswith(b"/") else tree + b"/")


def lying_in(paths: Iterable[bytes], trees: Collection[bytes]) -> Iterator[bytes]:
    """Yield the paths for which ``lies_in`` is true with one of ``trees``; the time is proportional to paths plus
    trees.
    """
    tops = {tree.rstrip(b"/") for tree in trees}
    for path in paths:
        above = path.rstrip(b"/")
        while above not in tops and above:
            above = above.rpartition(b"/")[0]
        if above in tops:
            yield path


def refuse_within(option: str, file: bytes, roots: Sequence[Root], effect: str) -> None:
    """Raise ``Refused`` if the file of an option lies in a source; ``effect`` says what the job does with sources:
    "is removed".
    """
    real = os.path.realpath(file)
    for root in roots:
        if lies_in(real, source_of(root)):
            raise Refused(f"{option} {shown(file)}: lies in {shown(root.source_shown)}, which {effect}; name another")


def places_in(directory: bytes, roots: Sequence[Root]) -> tuple[tuple[int, bytes], ...]:
    """Return where ``directory`` lies in the sources: pairs of the number of the root and the path below it."""
    real = os.path.realpath(directory)
    trees = [(number, root.source) for number, root in enumerate(roots) if not root.item]
    return tuple(
        (number, os.path.relpath(real, tree)) for number, tree in trees if lies_in(real, tree) and real != tree
    )


def _real_path(path: bytes) -> bytes:
    """Return the real path; raise ``OSError`` if ``path`` does not exist."""
    return os.path.realpath(path, strict=True)


def _look_at_source(path: bytes, follow: bool, real_path: Callable[[bytes], bytes]) -> _Source:
    """Examine a SRC argument; raise ``Refused`` if it does not exist or cannot be examined."""
    if not path:
        raise Refused("a SRC is the empty string: name a file or a directory (. for the current one)")
    _refuse_elsewhere(path)
    stem, contents = _split(path)
    parent, name = os.path.split(stem)
    with _explaining(path):
        try:
            status = os.stat(path) if contents or follow else os.lstat(path)
        except FileNotFoundError:
            if follow and os.path.lexists(stem):
                raise Refused(f"{shown(path)}: a symbolic link that leads nowhere, which cannot be followed") from None
            advice = _on_another_host(path) or meant(path) or "check the name, and the order: SRC comes before DST"
            raise Refused(f"{shown(path)}: does not exist; {advice}") from None
        except NotADirectoryError:
            raise Refused(f"{shown(path)}: not a directory; leave out what follows the name of the file") from None
        if stat.S_ISDIR(status.st_mode):
            directory, item = os.path.realpath(path, strict=True), b""
            identity = _identity(directory)
        else:
            directory, item = real_path(parent or b"."), name
            identity = (status.st_dev, status.st_ino)
    points_to = _followed(path) if stat.S_ISLNK(status.st_mode) else None
    return _Source(path, contents, directory, item, b"" if contents else name, identity, points_to)


def _look_at_destination(path: bytes) -> _Destination:
    """Examine the DST argument; raise ``Refused`` if it cannot be a destination."""
    if not path:
        raise Refused("DST is the empty string: name a file or a directory (. for the current one)")
    _refuse_elsewhere(path)
    stem, slash = _split(path)
    parent, name = os.path.split(stem)
    with _explaining(path):
        is_directory = False
        try:
            is_directory = stat.S_ISDIR(os.stat(path).st_mode)
        except OSError as error:
            # "file/" and a loop of symbolic links cannot be examined with stat, but the name exists.
            name_exists = error.errno in {errno.ENOTDIR, errno.ELOOP} and os.path.lexists(stem)
            if error.errno != errno.ENOENT and not name_exists:
                raise
        entry = os.lstat(stem) if os.path.lexists(stem) else None
        directory = os.path.realpath(path, strict=True) if is_directory else None
    if directory is None and slash and entry is not None:
        advice = "name another DST" if _node_at(path, entry) else "leave out the trailing slash to replace it by a file"
        raise Refused(f"{shown(path)}: not a directory; {advice}")
    if directory is None and name in {b".", b".."}:
        raise Refused(f"{shown(path)}: does not exist; make the directory first")
    if entry is None and not parent and re.match(_HOST, name) and (advice := _on_another_host(path)):
        raise Refused(f"{shown(path)}: does not exist; {advice}; {_as_a_name(path)}")
    return _Destination(path, slash, directory, entry, parent or b".", name)


def _refuse_elsewhere(path: bytes) -> None:
    """Raise ``Refused`` for ``user@host:path``: rsync and scp take it for a path on another host.

    Here it would be the name of a local file, which is hardly meant.
    """
    user, at, _ = path.partition(b":")[0].partition(b"@")
    if user and at and (advice := _on_another_host(path)):
        raise Refused(f"{shown(path)}: {advice}; {_as_a_name(path)}")


def _as_a_name(path: bytes) -> str:
    """Return advice for a user who does mean a file with such a name."""
    return f"for a file of that name write ./{shown(path)}"


def _on_another_host(path: bytes) -> str:
    """Return advice if ``path`` has the form of a path on another host and no file of that name exists; else empty."""
    first = path.partition(b"/")[0]
    if not re.fullmatch(rb"(?!file:)[^:]+:.*", first, re.DOTALL) or os.path.lexists(first):
        return ""
    return "on another host? pcopy reaches no other hosts: use rsync, or mount the file system here"


def _refuse_node(sources: Sequence[_Source], destination: _Destination) -> None:
    """Raise ``Refused`` if DST is a device, FIFO or socket: a file would replace it, while the user probably
    means to write into it.
    """
    kind = _node_at(destination.given, destination.entry)
    if not kind and destination.directory is None and _is_descriptor(destination.given):
        kind = "link to an open file of a process"  # for example /dev/stdout, redirected to a file
    if kind:
        source, target = for_shell(sources[0].given), for_shell(destination.given)
        into = f"dd if={source} of={target} bs=4M" if kind == _DISK else f"cat {source} > {target}"
        is_written_into = len(sources) == 1 and sources[0].item and kind != _SOCKET
        advice = f"to write into it: {into}" if is_written_into else "name another DST"
        raise Refused(f"{shown(destination.given)}: a {kind}, which is not replaced; {advice}")


def _node_at(path: bytes, entry: os.stat_result | None) -> str:
    """Return the type of ``path`` if it leads to one of ``_NODES``, else empty; ``entry`` is the lstat of the
    name, if it exists.
    """
    try:
        mode = os.stat(path.rstrip(b"/") or b"/").st_mode
    except OSError:  # It does not exist, or is a dangling link.
        mode = entry.st_mode if entry else 0
    return next((kind for is_one, kind in _NODES if is_one(mode)), "")


def _is_descriptor(path: bytes) -> bool:
    """True if ``path`` is a symbolic link that leads through a descriptor of a process (/proc/PID/fd/N)."""
    path = path.rstrip(b"/")
    for _ in range(_MOST_LINKS):
        if not os.path.islink(path):
            return False
        directory = os.path.realpath(os.path.dirname(path) or b".")
        if re.fullmatch(_DESCRIPTOR, os.path.join(directory, os.path.basename(path))):
            return True
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return False


def _refuse_mixture(sources: Sequence[_Source], destination: _Destination, no_target_directory: bool) -> None:
    """Raise ``Refused`` if several sources would meet in the target, where the last one copied would remain, in
    no defined order.
    """
    if no_target_directory:
        raise Refused("--no-target-directory takes one SRC; leave it out to copy several into a directory")
    if destination.directory is None:
        problem = "not a directory"
        if destination.entry is None:
            problem = f"does not exist; {meant_or_made(destination.given, 'make it first')}"
        raise Refused(f"{shown(destination.given)}: {problem}: several SRC need an existing directory as DST")
    by_name: dict[bytes, _Source] = {}
    for source in sources:
        other = by_name.setdefault(source.name, source)
        if other is not source:
            raise _would_meet(other, source, os.path.join(destination.given, source.name))
    if (merged := by_name.pop(b"", None)) is not None:
        for name, source in by_name.items():
            if os.path.lexists(os.path.join(merged.directory, name)):
                raise _would_meet(merged, source, os.path.join(destination.given, name))


def _would_meet(first: _Source, second: _Source, target: bytes) -> Refused:
    """Return the error for two sources with the same target."""
    return Refused(
        f"{shown(first.given)} and {shown(second.given)}: both would go to {shown(target)}; "
        "copy them one after the other, or to different directories"
    )


def _target(source: _Source, destination: _Destination, no_target_directory: bool) -> tuple[bytes, bytes]:
    """Return the target directory of a source and the name in it (empty: the directory itself)."""
    given = shown(destination.given)
    if destination.directory is not None:
        if not source.item and (source.contents or no_target_directory):
            return destination.directory, b""
        if not no_target_directory:
            return destination.directory, source.name
        if destination.slash or (destination.entry and stat.S_ISLNK(destination.entry.st_mode)):
            raise Refused(
                f"{given}: a directory, which {shown(source.given)} cannot replace; leave out -T to copy into it"
            )
    elif not source.item and destination.entry is not None:
        raise Refused(f"{given}: not a directory, but {shown(source.given)} is one; remove it or name another DST")
    elif source.item and destination.slash:
        raise Refused(f"{given}: does not exist; make the directory first, or leave out the trailing slash")
    with _explaining(destination.parent):
        try:
            return os.path.realpath(destination.parent, strict=True), destination.name
        except FileNotFoundError:
            told = _on_another_host(destination.given) or meant_or_made(destination.parent)
            raise Refused(f"{given}: its directory {shown(destination.parent)} does not exist; {told}") from None


def _refuse_onto_itself(source: _Source, root: Root, ancestors: Sequence[DeviceInode], stays: bool) -> None:
    """Raise ``Refused`` if a source would be copied onto or into itself.

    ``stays``: the job does not leave the source's file system, so a target on another file system in the source is
    permitted.
    """
    given, target = shown(source.given), shown(root.target_shown)
    existing = None if root.name else root.target_id
    if root.name:
        with _explaining(root.target_shown), suppress(FileNotFoundError):
            status = os.lstat(os.path.join(root.target, root.name))
            existing = (status.st_dev, status.st_ino)
    if existing == source.identity:
        reason = "the same file (a hard link of it, perhaps)" if source.item else "the same directory"
        raise Refused(f"{given} and {target}: {reason}; name another DST")
    if source.item:
        if existing is not None and existing == source.points_to:
            raise Refused(f"{target}: {given} is a link to it and would replace it; name another DST")
    elif source.identity in ancestors:
        is_elsewhere = source.identity[0] not in {root.target_id[0], (existing or root.target_id)[0]}
        if not (stays and is_elsewhere):
            alternative = ", or write -x (without -L), since DST is on another file system" if is_elsewhere else ""
            raise Refused(
                f"{target}: inside of {given}, which cannot be copied into itself; name a DST outside{alternative}"
            )


def _refuse_over_sources(roots: Sequence[Root]) -> None:
    """Raise ``Refused`` if a source lies in the target where a copy of it, or of another source, would be written.

    Example: ``a/b/`` to ``a`` if ``a/b/b`` exists, which would be copied to the source ``a/b``.
    """
    top = roots[0].target.rstrip(b"/") + b"/"
    by_name = {root.name: root for root in roots if not root.item}
    for root in roots:
        path = source_of(root)
        if not path.startswith(top):
            continue
        below = path[len(top) :]
        first, _, rest = below.partition(b"/")
        for name, inner in ((b"", below), (first, rest)):
            other = by_name.get(name)
            if other is not None and inner and os.path.lexists(os.path.join(other.source, inner)):
                writer = shown(os.path.join(other.source_shown, inner))
                raise Refused(
                    f"{shown(root.source_shown)}: {writer} would be copied over this source; name another DST"
                )


def _split(path: bytes) -> tuple[bytes, bool]:
    """Return ``path`` without trailing slashes, and whether it is written as a directory (``X/``, ``.``, ``..``,
    ``X/.``).
    """
    stem = path.rstrip(b"/")
    return stem or b"/", stem != path or os.path.basename(stem) in {b".", b".."}


def _identity(directory: bytes) -> DeviceInode:
    """Return (device, inode) of ``directory``; needs no permission to read it."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with _explaining(directory), held_open(open_patiently(directory, flags)) as descriptor:
        status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _identities_upwards(directory: bytes) -> list[DeviceInode]:
    """Return (device, inode) of the real path ``directory`` and of all directories above it."""
    found = [_identity(directory)]
    while (parent := os.path.dirname(directory)) != directory:
        directory = parent
        found.append(_identity(directory))
    return found


def _followed(path: bytes) -> DeviceInode | None:
    """Return (device, inode) of the target of a symbolic link; None if it cannot be examined."""
    with suppress(OSError):  # The link is dangling, or its target cannot be reached; it can be copied all the same.
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None


@contextmanager
def _explaining(path: bytes) -> Iterator[None]:
    """Turn an ``OSError`` of the block into ``Refused`` with ``path``."""
    try:
        yield
    except OSError as error:
        raise Refused(f"{shown(path)}: cannot be examined: {error.strerror}{barrier(path, error)}") from None
