"""``copytree`` and ``rmtree`` with the parameters and the exceptions of the functions of that name in ``shutil``."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from pcopy.api.errors import InvalidOption, ItemsFailed, Refused, Stopped
from pcopy.api.functions import copy, discard, remove
from pcopy.api.results import FailedItem
from pcopy.api.typing_names import Any, TypeVar

_Path = TypeVar("_Path", bound=str | os.PathLike[str])
NOT_OF_COPYTREE = ("no_target_directory", "dereference")
NOT_OF_RMTREE = ("from_", "null", "recursive")
"""The options of ``copy`` and ``remove`` that ``copytree`` and ``rmtree`` do not have."""
_IGNORE_PATTERNS = shutil.ignore_patterns().__qualname__


def copytree(
    src: str | os.PathLike[str],
    dst: _Path,
    symlinks: bool = False,
    ignore: Callable[[Any, list[str]], Any] | None = None,
    copy_function: Callable[[str, str], object] = shutil.copy2,
    ignore_dangling_symlinks: bool = False,
    dirs_exist_ok: bool = False,
    **options: Any,
) -> _Path:
    """Copy a tree as ``shutil.copytree`` does, and return ``dst``; ``options`` are those of ``copy``.

    Owners, ACLs, sparse files and hard links are preserved, too, and FIFOs and devices are copied. ``ignore`` must be
    the result of ``shutil.ignore_patterns``, and ``copy_function`` must be ``shutil.copy2``. If items failed, raise
    ``shutil.Error`` with a list of (source, destination, reason); its ``__cause__`` is ``ItemsFailed``. If the copy was
    stopped early, as on a full file system, the last reason says so, and the ``__cause__`` is ``Stopped``.
    """
    if copy_function is not shutil.copy2:
        raise InvalidOption(
            "copytree(copy_function=...): only shutil.copy2 is possible, since files are not copied here"
        )
    _refuse_options("copytree", "copy", NOT_OF_COPYTREE, options)
    if ignore is not None:
        others = options.pop("exclude", None) or ()
        options["exclude"] = [*_patterns(ignore), *([others] if isinstance(others, (str, bytes)) else others)]
    with _naming("copytree", "copy"):
        copy.request((src, dst), dict(options))  # raises InvalidOption
    with os.scandir(src):  # raises the exceptions of shutil
        pass
    is_new = not os.path.lexists(dst)
    os.makedirs(dst, exist_ok=dirs_exist_ok)
    try:
        # A link that is the source itself is followed, as by shutil: with a slash it means the directory.
        source = os.path.join(os.fsencode(src), b"") if os.path.islink(src) else src
        copy(source, dst, no_target_directory=True, dereference=not symlinks, **options)
    except Refused as refused:  # For example: the destination lies in the source.
        if is_new:
            with suppress(OSError):
                os.rmdir(dst)
        raise shutil.Error(str(refused)) from refused
    except ItemsFailed as failed:
        failures = [each for each in failed if not (ignore_dangling_symlinks and _is_dangling(each))]
        if failures:
            raise shutil.Error(_entries(failures, src, dst)) from failed
        if failed.job is not None:
            discard(failed.job)
    except Stopped as stopped:
        whole = (os.fsdecode(src), os.fsdecode(dst), str(stopped))
        raise shutil.Error([*_entries(stopped.failures, src, dst), whole]) from stopped
    return dst


def rmtree(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    ignore_errors: bool = False,
    onerror: Callable[[Callable[..., Any], Any, Any], object] | None = None,
    *,
    onexc: Callable[[Callable[..., Any], Any, BaseException], object] | None = None,
    dir_fd: int | None = None,
    **options: Any,
) -> None:
    """Remove a tree as ``shutil.rmtree`` does; ``options`` are those of ``remove``.

    Other items are removed even if one fails. Without a handler, the ``OSError`` of the first failure is raised; its
    ``__cause__`` is ``ItemsFailed``, or ``Stopped`` if the program was stopped early. ``dir_fd`` is not possible.
    """
    if dir_fd is not None:
        raise NotImplementedError("rmtree(dir_fd=...): another process removes the tree; give a path")
    _refuse_options("rmtree", "remove", NOT_OF_RMTREE, options)
    with _naming("rmtree", "remove"):
        remove.request((os.curdir,), dict(options))  # raises InvalidOption for options; a wrong path is an OSError

    def handle(function: Callable[..., Any], failed: Any, error: OSError) -> None:
        if ignore_errors:
            return
        if onexc is None and onerror is None:
            raise error
        try:
            raise error
        except OSError:
            onexc(function, failed, error) if onexc is not None else onerror(function, failed, sys.exc_info())  # type: ignore[misc]

    try:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise OSError("Cannot call rmtree on a symbolic link")
        with os.scandir(path):
            pass
    except OSError as error:
        handle(os.path.islink if os.path.islink(path) else os.scandir, path, error)
        return
    for function, failed, reason in _removal_failures(path, options):
        handle(function, failed, reason)


def _removal_failures(path: Any, options: dict[str, Any]) -> Iterator[tuple[Callable[..., Any], Any, OSError]]:
    """Remove a tree, and yield its failures: the function of ``os`` that failed, the path, and the exception."""
    try:
        remove(path, **options)
    except Refused as refused:  # For example ".": rmdir refuses it, too.
        failure = OSError(errno.EINVAL, str(refused), path)
        failure.__cause__ = refused
        yield os.rmdir, path, failure
    except (ItemsFailed, Stopped) as items:
        for each in items.failures:
            shown = each.path if isinstance(path, bytes) else os.fsdecode(each.path)
            # The program knows mount points without asking the system.
            number = each.errno or (errno.EBUSY if os.path.ismount(each.path) else errno.EIO)
            failure = OSError(number, each.message if each.errno else os.strerror(number), shown)
            failure.__cause__ = items
            yield getattr(os, each.operation, os.unlink), shown, failure
        if isinstance(items, Stopped):
            failure = OSError(items.errno or errno.EINTR, str(items), path)
            failure.__cause__ = items
            yield os.rmdir, path, failure


def _refuse_options(function: str, called: str, names: Iterable[str], options: Mapping[str, Any]) -> None:
    """Raise ``InvalidOption`` if one of ``names`` is among the ``options`` of a function that calls another one."""
    for name in names:
        if name in options:
            raise InvalidOption(f"{function}({name}=...): not an option of {function}; use pcopy.{called}")


rmtree.avoids_symlink_attacks = True  # type: ignore[attr-defined]


@contextmanager
def _naming(function: str, called: str) -> Iterator[None]:
    """Context manager: ``InvalidOption`` about an option of the function ``called`` names ``function`` instead."""
    try:
        yield
    except InvalidOption as invalid:
        text = re.sub(r"^copy\((?:source|destination)", lambda found: _PARAMETERS[found[0]], str(invalid))
        raise InvalidOption(re.sub(rf"^{called}\(", f"{function}(", text)) from None


_PARAMETERS = {"copy(source": "copytree(src", "copy(destination": "copytree(dst"}


_SET = r"(?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[A-Za-z0-9._,+ ])+]"
_BRACKETS = re.compile(rf"\[{_SET}|\*\[!{_SET}|\[!{_SET}\*", re.ASCII)
"""Brackets of patterns that mean the same for shutil and for pcopy. With ``!``, which is one character for shutil and
one byte for pcopy, an asterisk must be next to them.
"""


def _patterns(ignore: Callable[[Any, list[str]], Any]) -> list[bytes]:
    """Return the patterns in the result of ``shutil.ignore_patterns``. Raise ``InvalidOption`` for another function."""
    closure = getattr(ignore, "__closure__", None)
    if getattr(ignore, "__qualname__", "") != _IGNORE_PATTERNS or not closure:
        raise InvalidOption("copytree(ignore=...): only shutil.ignore_patterns is possible; or use the option exclude")
    # For fnmatch "!" at the beginning and backslashes are themselves, and a pattern with a slash matches no name.
    names = [pattern.replace("\\", "\\\\") for pattern in closure[0].cell_contents if pattern and "/" not in pattern]
    for name in names:
        if "[" in (rest := _BRACKETS.sub("", name)):
            raise InvalidOption(f"copytree(ignore=...): {name!r}: use the option exclude for such brackets")
        if "?" in rest:
            raise InvalidOption(f"copytree(ignore=...): {name!r}: use the option exclude, in which ? is one byte")
    return [os.fsencode("\\" + name if name.startswith("!") else name) for name in names]


def _is_dangling(failure: FailedItem) -> bool:
    """Return True if the item that failed is a symbolic link that leads nowhere."""
    return os.path.islink(failure.path) and not os.path.exists(failure.path)


def _entries(
    failures: Iterable[FailedItem], src: str | os.PathLike[str], dst: str | os.PathLike[str]
) -> list[tuple[str, str, str]]:
    """Return source, destination and reason for each item that failed."""
    return [_entry(each, os.fsdecode(src), os.fsdecode(dst)) for each in failures]


def _entry(failure: FailedItem, src: str, dst: str) -> tuple[str, str, str]:
    """Return source, destination and reason for an item that failed; the program names one of its two paths."""
    path, why = os.fsdecode(failure.path), f"[Errno {failure.errno}] {failure.message}"
    for root in (src, dst):
        rest = path[len(root) :].lstrip("/")
        if path == root or (path.startswith(root) and (root.endswith("/") or path[len(root)] == "/")):
            return (os.path.join(src, rest) if rest else src), (os.path.join(dst, rest) if rest else dst), why
    return path, path, why
