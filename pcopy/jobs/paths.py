"""Resolution of the arguments SRC... DST to the roots of a job: pairs of one source and its target.

As with cp, a source is copied into DST if that is an existing directory, else to the name DST. As with rsync, ``SRC/``
stands for the contents of SRC. Rules: a copy of an item onto or into itself is refused, and so is any command without a
clear meaning. Two directories are the same if device and inode are equal, whatever their names, so that symbolic links
and bind mounts make no difference. All sources are examined before anything else. Nothing is created, opened for
reading or changed.
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

from pcopy.errors import RequestRefused, path_refused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.retries import open_with_retries
from pcopy.jobs.suggestions import (
    suggestion_for_missing_directory,
    suggestion_for_missing_path,
    unsearchable_directory_text,
)
from pcopy.tasks.base.job import CopyOptions, DeviceInode, Root
from pcopy.text import printable_path, shell_quoted

if TYPE_CHECKING:
    from pcopy.jobs.job_file import JobRoot

_BLOCK_DEVICE, _SOCKET = "block device", "socket"
_SPECIAL_FILE_TYPES = (
    (stat.S_ISBLK, _BLOCK_DEVICE),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISFIFO, "FIFO"),
    (stat.S_ISSOCK, _SOCKET),
)
"""Types of files that are refused as DST: a test of ``st_mode``, and the name in messages."""
_DESCRIPTOR_LINK_PATTERN = rb"/proc/[0-9]+(/task/[0-9]+)?/fd/[0-9]+"
"""Path of the link in /proc that stands for an open file of a process."""
_REMOTE_HOST_PREFIX = rb"([A-Za-z][A-Za-z0-9.-]*|[0-9]+(\.[0-9]+){3}|\[[0-9A-Fa-f:.]+\]):"
"""Pattern of the beginning of a name that rsync and scp take for ``host:path``.

Names that begin with a time, such as ``10:30`` and ``2026-11-24T18:00``, do not match.
"""

_MAX_LINKS = 40  # limit of the Linux kernel


class _SourceArgument(NamedTuple):
    """A SRC argument, and the file or directory that it refers to.

    Fields:
    - ``argument``: the argument as the user wrote it.
    - ``is_contents``: True if it ends with a slash, or is ``.``, ``..`` or ``X/.``: only the contents of that directory
      are copied.
    - ``directory``: real path of the directory to copy, or of the directory that contains the single item to copy.
    - ``item``: the name of that single item in ``directory``; empty if ``directory`` itself is copied.
    - ``name``: the name of the copy in a target directory; empty if only contents are copied.
    - ``identity``: device and inode of the directory or item to copy.
    - ``link_target``: device and inode of the target if the item is a symbolic link; None if it is none or dangling.
    """

    argument: bytes
    is_contents: bool
    directory: bytes
    item: bytes
    name: bytes
    identity: DeviceInode
    link_target: DeviceInode | None


class _DestinationArgument(NamedTuple):
    """The DST argument, and the file or directory that it refers to.

    Fields:
    - ``argument``: the argument as the user wrote it.
    - ``has_slash``: True if it is written as a directory: ``X/``, ``.``, ``..`` or ``X/.``.
    - ``directory``: real path of DST if it is a directory or a symbolic link to one; else None.
    - ``entry``: status (lstat) of the name itself; None if it does not exist.
    - ``parent``, ``name``: the two parts of the argument, without trailing slashes.
    """

    argument: bytes
    has_slash: bool
    directory: bytes | None
    entry: os.stat_result | None
    parent: bytes
    name: bytes


def resolve_sources_and_targets(
    sources: Sequence[bytes],
    destination: bytes,
    no_target_directory: bool,
    *,
    follow: bool = False,
    one_file_system: bool = False,
    recoding: CopyOptions | None = None,
) -> tuple[Root, ...]:
    """Return one root (a source and its target) for each of ``sources``, in their order, all below the same target
    directory.

    Args:
        destination: the argument DST.
        no_target_directory: True if DST itself is the target, even if it is a directory (``-T``).
        follow: True to copy the target of a source that is a symbolic link, under the name of the link (``-L``).
        one_file_system: True if the job stays on the file system of each source (``-x``). Then DST may be in a source
            if it is on another file system that is mounted there.
        recoding: the options of a job that compresses or decompresses files, which changes their names; None for other
            jobs.

    Raise ``RequestRefused``, with the path and what to do, if the paths cannot be copied as they are given.
    """
    if not sources:
        raise RequestRefused("nothing to copy: give SRC and DST")
    if recoding is not None:
        from pcopy.tasks.base.recoded_names import root_with_recoded_name
    real_path, identity_of = (
        lru_cache(_real_path),
        lru_cache(_identity_of_directory),
    )  # Many sources may lie in one directory.
    source_items = [_examine_source(path, follow, real_path) for path in sources]
    target_item = _examine_destination(destination)
    _refuse_special_file(source_items, target_item)
    if len(source_items) > 1:
        _refuse_equal_targets(source_items, target_item, no_target_directory)
    targets = [_target_of_source(source, target_item, no_target_directory) for source in source_items]
    ancestors = _identities_of_directories_above(targets[0][0])
    roots = []
    for source, (target, name) in zip(source_items, targets, strict=True):
        is_inside = bool(name) and target_item.directory is not None and not no_target_directory
        target_shown = os.path.join(destination, name) if is_inside else destination
        source_id = identity_of(source.directory)
        root = Root(source.directory, target, source.item, name, source.argument, target_shown, source_id, ancestors[0])
        final_root = root if recoding is None else root_with_recoded_name(recoding, root)
        _refuse_copy_onto_itself(source, final_root, ancestors, one_file_system and not follow)
        roots.append(root)
    _refuse_copy_over_sources(roots)
    return tuple(roots)


def absolute_path(path: bytes) -> bytes:
    """Return ``path`` as an absolute path without ``..``.

    As in the operating system, ``..`` after a symbolic link to a directory is the parent of the link's target, not the
    directory that contains the link. Raise ``OSError`` if the path is relative and the working directory was removed.
    """
    parts = path.split(b"/")
    if b".." in parts:
        after = len(parts) - parts[::-1].index(b"..")
        path = os.path.join(os.path.realpath(b"/".join(parts[:after])), *parts[after:])
    return os.path.abspath(path)


def source_path(root: Root | JobRoot) -> bytes:
    """Return the path of the file or directory that ``root`` copies, without a trailing slash."""
    return os.path.join(root.source, root.item) if root.item else root.source


def target_path(root: Root | JobRoot) -> bytes:
    """Return the path to which ``root`` copies its file or directory."""
    return os.path.join(root.target, root.name) if root.name else root.target


def destination_path(roots: Sequence[Root]) -> bytes:
    """Return the path that a job creates or fills: the directory into which its sources are copied, or the target
    of its only source.
    """
    return roots[0].target if len(roots) > 1 else target_path(roots[0])


def destination_directory(roots: Sequence[Root]) -> bytes:
    """Return an existing directory in the destination: the target itself, or its parent if the target does not
    exist yet.
    """
    path = destination_path(roots)
    return path if os.path.isdir(path) and not os.path.islink(path) else roots[0].target


def is_in_tree(path: bytes, tree: bytes) -> bool:
    """Return True if ``path`` is ``tree`` or lies below it. Both are real paths."""
    return path == tree or path.startswith(tree if tree.endswith(b"/") else tree + b"/")


def paths_in_trees(paths: Iterable[bytes], trees: Collection[bytes]) -> Iterator[bytes]:
    """Yield those of ``paths`` that lie in one of the directory ``trees``, or are the top of one. All are real paths.

    The time is proportional to the sum of the two numbers, not to their product.
    """
    tops = {tree.rstrip(b"/") for tree in trees}
    for path in paths:
        above = path.rstrip(b"/")
        while above not in tops and above:
            above = above.rpartition(b"/")[0]
        if above in tops:
            yield path


def refuse_file_in_source(option: str, file: bytes, roots: Sequence[Root], effect: str) -> None:
    """Raise ``RequestRefused`` if ``file``, the value of ``option``, lies in a source.

    ``effect`` says for the message what the job does with a source, such as "is removed".
    """
    real = os.path.realpath(file)
    for root in roots:
        if is_in_tree(real, source_path(root)):
            tree = printable_path(root.source_shown or b".")
            raise path_refused(file, f"lies in {tree}, which {effect}; name another file", option=option)


def positions_in_sources(directory: bytes, roots: Sequence[Root]) -> tuple[tuple[int, bytes], ...]:
    """Return where ``directory`` lies in the sources: pairs of the number of a root and the path below its source.

    Empty if it lies in none of them.
    """
    real = os.path.realpath(directory)
    trees = [(number, root.source) for number, root in enumerate(roots) if not root.item]
    return tuple(
        (number, os.path.relpath(real, tree)) for number, tree in trees if is_in_tree(real, tree) and real != tree
    )


def _real_path(path: bytes) -> bytes:
    """Return the real path; raise ``OSError`` if ``path`` does not exist."""
    return os.path.realpath(path, strict=True)


def _examine_source(path: bytes, follow: bool, real_path: Callable[[bytes], bytes]) -> _SourceArgument:
    """Find out what the SRC argument ``path`` refers to.

    Args:
        follow: True if a symbolic link stands for its target (``-L``).
        real_path: returns the real path of an existing path.

    Raise ``RequestRefused`` if the source does not exist, or stat fails for another reason.
    """
    if not path:
        raise RequestRefused("a SRC is the empty string: name a file or a directory (. for the current one)")
    _refuse_remote_path(path)
    stem, contents = _path_without_trailing_slashes(path)
    parent, name = os.path.split(stem)
    with _path_errors_as_refusal(path):
        try:
            status = os.stat(path) if contents or follow else os.lstat(path)
        except FileNotFoundError:
            if follow and os.path.lexists(stem):
                raise path_refused(path, "a symbolic link that leads nowhere, so -L cannot follow the link") from None
            advice = (
                _remote_path_advice(path)
                or suggestion_for_missing_path(path)
                or "check the name, and the order: SRC comes before DST"
            )
            raise path_refused(path, f"does not exist; {advice}") from None
        except NotADirectoryError:
            raise path_refused(path, "not a directory; leave out what follows the name of the file") from None
        if stat.S_ISDIR(status.st_mode):
            directory, item = os.path.realpath(path, strict=True), b""
            identity = _identity_of_directory(directory)
        else:
            directory, item = real_path(parent or b"."), name
            identity = (status.st_dev, status.st_ino)
    points_to = _link_target_identity(path) if stat.S_ISLNK(status.st_mode) else None
    return _SourceArgument(path, contents, directory, item, b"" if contents else name, identity, points_to)


def _examine_destination(path: bytes) -> _DestinationArgument:
    """Find out what the DST argument ``path`` refers to.

    Raise ``RequestRefused`` if nothing can be copied to it: for example, it is empty, names another host, or has a
    trailing slash although it is a file.
    """
    if not path:
        raise RequestRefused("DST is the empty string: name a file or a directory (. for the current one)")
    _refuse_remote_path(path)
    stem, slash = _path_without_trailing_slashes(path)
    parent, name = os.path.split(stem)
    with _path_errors_as_refusal(path):
        is_directory = False
        try:
            is_directory = stat.S_ISDIR(os.stat(path).st_mode)
        except OSError as error:
            # stat fails for "file/" and for a loop of symbolic links, although the name exists.
            name_exists = error.errno in {errno.ENOTDIR, errno.ELOOP} and os.path.lexists(stem)
            if error.errno != errno.ENOENT and not name_exists:
                raise
        entry = os.lstat(stem) if os.path.lexists(stem) else None
        directory = os.path.realpath(path, strict=True) if is_directory else None
    if directory is None and slash and entry is not None:
        advice = (
            "name another DST"
            if _special_file_type(path, entry)
            else "leave out the trailing slash to replace it by a file"
        )
        raise path_refused(path, f"not a directory; {advice}", code=errno.ENOTDIR)
    if directory is None and name in {b".", b".."}:
        raise path_refused(path, "does not exist; make the directory first", code=errno.ENOENT)
    if entry is None and not parent and re.match(_REMOTE_HOST_PREFIX, name) and (advice := _remote_path_advice(path)):
        raise path_refused(path, f"does not exist; {advice}; {_local_file_name_advice(path)}", code=errno.ENOENT)
    return _DestinationArgument(path, slash, directory, entry, parent or b".", name)


def _refuse_remote_path(path: bytes) -> None:
    """Raise ``RequestRefused`` if ``path`` is ``user@host:path`` and no file of that name exists.

    For rsync and scp it is a path on another host. For pcopy it would be the name of a local file, which is hardly
    meant.
    """
    user, at, _ = path.partition(b":")[0].partition(b"@")
    if user and at and (advice := _remote_path_advice(path)):
        raise path_refused(path, f"{advice}; {_local_file_name_advice(path)}")


def _local_file_name_advice(path: bytes) -> str:
    """Return advice how to write the name of a local file that looks like a path on another host."""
    return f"for a file of that name write ./{printable_path(path)}"


def _remote_path_advice(path: bytes) -> str:
    """Return advice if ``path`` has the form ``host:path`` of rsync and no file of that name exists; else empty."""
    first = path.partition(b"/")[0]
    if not re.fullmatch(rb"(?!file:)[^:]+:.*", first, re.DOTALL) or os.path.lexists(first):
        return ""
    return "on another host? pcopy reaches no other hosts: use rsync, or mount the file system here"


def _refuse_special_file(sources: Sequence[_SourceArgument], destination: _DestinationArgument) -> None:
    """Raise ``RequestRefused`` if DST is a device, FIFO or socket: a file would replace it, while the user probably
    means to write into it.
    """
    kind = _special_file_type(destination.argument, destination.entry)
    if not kind and destination.directory is None and _leads_to_descriptor(destination.argument):
        kind = "link to an open file of a process"  # for example /dev/stdout, redirected to a file
    if kind:
        source, target = shell_quoted(sources[0].argument), shell_quoted(destination.argument)
        into = f"dd if={source} of={target} bs=4M" if kind == _BLOCK_DEVICE else f"cat {source} > {target}"
        is_written_into = len(sources) == 1 and sources[0].item and kind != _SOCKET
        advice = f"to write into it: {into}" if is_written_into else "name another DST"
        raise path_refused(destination.argument, f"a {kind}, which is not replaced; {advice}")


def _special_file_type(path: bytes, entry: os.stat_result | None) -> str:
    """Return the type of ``path``, such as "FIFO", if it is or leads to one of ``_SPECIAL_FILE_TYPES``; else empty.

    ``entry`` is the status (lstat) of the name itself; None if it does not exist.
    """
    try:
        mode = os.stat(path.rstrip(b"/") or b"/").st_mode
    except OSError:  # It does not exist, or is a dangling link.
        mode = entry.st_mode if entry else 0
    return next((kind for is_one, kind in _SPECIAL_FILE_TYPES if is_one(mode)), "")


def _leads_to_descriptor(path: bytes) -> bool:
    """True if ``path`` is a symbolic link that leads through /proc/PID/fd/N to a file that a process has open."""
    path = path.rstrip(b"/")
    for _ in range(_MAX_LINKS):
        if not os.path.islink(path):
            return False
        directory = os.path.realpath(os.path.dirname(path) or b".")
        if re.fullmatch(_DESCRIPTOR_LINK_PATTERN, os.path.join(directory, os.path.basename(path))):
            return True
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return False


def _refuse_equal_targets(
    sources: Sequence[_SourceArgument], destination: _DestinationArgument, no_target_directory: bool
) -> None:
    """Raise ``RequestRefused`` if two of several ``sources`` would be copied to the same name in the target directory.

    The sources are copied in no defined order, so either of them could remain. Also raise it if DST is not an existing
    directory, which several sources need.
    """
    if no_target_directory:
        raise RequestRefused(
            "--no-target-directory takes one SRC; to copy several SRC into a directory, leave the option out"
        )
    if destination.directory is None:
        problem = "not a directory"
        if destination.entry is None:
            problem = f"does not exist; {suggestion_for_missing_directory(destination.argument, 'create it first')}"
        raise path_refused(
            destination.argument,
            f"{problem}: several SRC need an existing directory as DST",
            code=errno.ENOENT if destination.entry is None else errno.ENOTDIR,
        )
    by_name: dict[bytes, _SourceArgument] = {}
    for source in sources:
        other = by_name.setdefault(source.name, source)
        if other is not source:
            raise _equal_target_names_error(other, source, os.path.join(destination.argument, source.name))
    if (merged := by_name.pop(b"", None)) is not None:
        for name, source in by_name.items():
            if os.path.lexists(os.path.join(merged.directory, name)):
                raise _equal_target_names_error(merged, source, os.path.join(destination.argument, name))


def _equal_target_names_error(first: _SourceArgument, second: _SourceArgument, target: bytes) -> RequestRefused:
    """Return the error for the sources ``first`` and ``second``, which would be copied to the same name in the
    directory ``target``.
    """
    return RequestRefused(
        f"{printable_path(first.argument)} and {printable_path(second.argument)}: both would go to "
        f"{printable_path(target)}; copy them one after the other, or to different directories",
        path=first.argument,
    )


def _target_of_source(
    source: _SourceArgument, destination: _DestinationArgument, no_target_directory: bool
) -> tuple[bytes, bytes]:
    """Return where a source is copied to: a directory, and the name in it (empty: the directory itself).

    ``no_target_directory``: True if DST (``destination``) itself is the target, even if it is a directory
    (``-T``). Raise ``RequestRefused`` if the source cannot be copied to DST: a directory onto a file, for
    example.
    """
    if destination.directory is not None:
        if not source.item and (source.is_contents or no_target_directory):
            return destination.directory, b""
        if not no_target_directory:
            return destination.directory, source.name
        if destination.has_slash or (destination.entry and stat.S_ISLNK(destination.entry.st_mode)):
            raise path_refused(
                destination.argument,
                f"a directory, which {printable_path(source.argument)} cannot replace; leave out -T to copy into it",
                code=errno.EISDIR,
            )
    elif not source.item and destination.entry is not None:
        raise path_refused(
            destination.argument,
            f"not a directory, but {printable_path(source.argument)} is one; remove "
            f"{printable_path(destination.argument)} or name another DST",
            code=errno.ENOTDIR,
        )
    elif source.item and destination.has_slash:
        raise path_refused(
            destination.argument,
            "does not exist; make the directory first, or leave out the trailing slash",
            code=errno.ENOENT,
        )
    with _path_errors_as_refusal(destination.parent):
        try:
            return os.path.realpath(destination.parent, strict=True), destination.name
        except FileNotFoundError:
            advice = _remote_path_advice(destination.argument) or suggestion_for_missing_directory(destination.parent)
            raise path_refused(
                destination.argument, f"its directory {printable_path(destination.parent)} does not exist; {advice}"
            ) from None


def _refuse_copy_onto_itself(
    source: _SourceArgument, root: Root, ancestors: Sequence[DeviceInode], stays: bool
) -> None:
    """Raise ``RequestRefused`` if a source would be copied onto or into itself.

    Args:
        source: the source.
        root: the pair of source and target for it.
        ancestors: device and inode of the target directory and of all directories above it.
        stays: True if the job stays on the source's file system. Then a target in the source is permitted if it is on
            another file system.
    """
    given = printable_path(source.argument)
    existing = None if root.name else root.target_id
    if root.name:
        with _path_errors_as_refusal(root.target_shown), suppress(FileNotFoundError):
            status = os.lstat(os.path.join(root.target, root.name))
            existing = (status.st_dev, status.st_ino)
    if existing == source.identity:
        reason = "the same file (a hard link of it, perhaps)" if source.item else "the same directory"
        raise RequestRefused(
            f"{given} and {printable_path(root.target_shown)}: {reason}; name another DST", path=source.argument
        )
    if source.item:
        if existing is not None and existing == source.link_target:
            raise path_refused(
                root.target_shown, f"would be replaced by {given}, a link to this file; name another DST"
            )
    elif source.identity in ancestors:
        is_elsewhere = source.identity[0] not in {root.target_id[0], (existing or root.target_id)[0]}
        if not (stays and is_elsewhere):
            alternative = ", or write -x (without -L), since DST is on another file system" if is_elsewhere else ""
            raise path_refused(
                root.target_shown,
                f"is inside {given}, which cannot be copied into itself; name a DST outside{alternative}",
            )


def _refuse_copy_over_sources(roots: Sequence[Root]) -> None:
    """Raise ``RequestRefused`` if a copy would be written to the path of a source.

    Example: the contents of ``a/b/`` are copied to ``a``, and ``a/b/b`` exists: its copy would be the source ``a/b``.
    """
    top = roots[0].target.rstrip(b"/") + b"/"
    by_name = {root.name: root for root in roots if not root.item}
    for root in roots:
        path = source_path(root)
        if not path.startswith(top):
            continue
        below = path[len(top) :]
        first, _, rest = below.partition(b"/")
        for name, inner in ((b"", below), (first, rest)):
            other = by_name.get(name)
            if other is not None and inner and os.path.lexists(os.path.join(other.source, inner)):
                writer = printable_path(os.path.join(other.source_shown, inner))
                raise path_refused(root.source_shown, f"{writer} would be copied over this source; name another DST")


def _path_without_trailing_slashes(path: bytes) -> tuple[bytes, bool]:
    """Return ``path`` without trailing slashes, and whether it is spelled as a directory: ``X/``, ``.``, ``..`` or
    ``X/.``.
    """
    stem = path.rstrip(b"/")
    return stem or b"/", stem != path or os.path.basename(stem) in {b".", b".."}


def _identity_of_directory(directory: bytes) -> DeviceInode:
    """Return (device, inode) of the real path ``directory``, for which no permission to read it is needed.

    Raise ``RequestRefused`` if it cannot be opened.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with _path_errors_as_refusal(directory), closing_descriptor(open_with_retries(directory, flags)) as descriptor:
        status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _identities_of_directories_above(directory: bytes) -> list[DeviceInode]:
    """Return (device, inode) of the real path ``directory`` and of all directories above it; the last one is ``/``."""
    found = [_identity_of_directory(directory)]
    while (parent := os.path.dirname(directory)) != directory:
        directory = parent
        found.append(_identity_of_directory(directory))
    return found


def _link_target_identity(path: bytes) -> DeviceInode | None:
    """Return (device, inode) of the target of the symbolic link ``path``; None if stat fails."""
    with suppress(OSError):  # The link is dangling, or its target cannot be reached; the link can be copied anyway.
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None


@contextmanager
def _path_errors_as_refusal(path: bytes) -> Iterator[None]:
    """Context manager: if its block raises ``OSError``, raise ``RequestRefused`` that names ``path`` instead."""
    try:
        yield
    except OSError as error:
        raise path_refused(
            path, f"cannot be examined: {error.strerror}{unsearchable_directory_text(path, error)}"
        ) from None
