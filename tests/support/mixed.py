"""A source and a destination that share some items, and the expected outcome of each item by the rules of CLI.md.

The rules are written here again from the user's view, without code of pcopy.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from tests.support.files import NOW, same_contents, write

SECOND = 10**9
LARGE = 6 << 20
MIDDLING = 5 << 20


def mixed(source: Path, copy: Path) -> None:
    """Create files of all sizes, links, special files and directories: new ones, unchanged ones, and different ones."""
    for place in ("same", "other", "new", "other/deep", "new/deep"):
        (source / place).mkdir(parents=True)
    for place in ("same", "other"):
        for number in range(6):
            write(source / place / f"small{number}", b"contents %d" % number)
    write(source / "same/middling", bytes(range(256)) * (MIDDLING // 256))
    write(source / "other/large", bytes(LARGE))
    write(source / "other/grown", b"longer than there")
    write(source / "other/file-over-link", b"a file")
    write(source / "new/deep/middling", os.urandom(MIDDLING))
    write(source / "new/a\nb\\\xe9".encode("latin-1").decode("utf-8", "surrogateescape"), b"an odd name")
    write(source / "new/empty", b"")
    os.mkfifo(source / "new/fifo")
    for name in ("same/link", "other/link", "new/link"):
        (source / name).symlink_to("small1")
        os.utime(source / name, ns=(NOW, NOW), follow_symlinks=False)
    write(source / "new/one", b"two names")
    os.link(source / "new/one", source / "new/deep/two")
    write(source / "same/one", b"two names")
    os.link(source / "same/one", source / "same/two")
    write(source / "other/both", b"two names, of which one is there")
    os.link(source / "other/both", source / "other/deep/both")
    for directory in sorted(source.rglob("*/"), reverse=True):
        os.utime(directory, ns=(NOW, NOW))
    os.utime(source, ns=(NOW, NOW))
    shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("new"))
    (copy / "same/two").unlink()
    os.link(copy / "same/one", copy / "same/two")
    (copy / "other/deep/both").unlink()
    (copy / "other/file-over-link").unlink()
    (copy / "other/file-over-link").symlink_to("nowhere")
    write(copy / "other/small0", b"contents 0", NOW - 100 * SECOND)
    write(copy / "other/small1", b"contents 1", NOW + 100 * SECOND)
    write(copy / "other/small2", b"another size")
    write(copy / "other/grown", b"short")
    write(copy / "other/large", bytes(LARGE), NOW - 100 * SECOND)
    write(copy / "other/only-there", b"only there")
    (copy / "other/link").unlink()
    (copy / "other/link").symlink_to("elsewhere")
    os.utime(copy / "other/link", ns=(NOW - SECOND, NOW - SECOND), follow_symlinks=False)
    (copy / "other/deep").chmod(0o700)
    for place in ("other/deep", "other", "same", "."):
        os.utime(copy / place, ns=(NOW, NOW))
    os.utime(copy / "other", ns=(NOW, NOW - SECOND))


def expected(source: Path, copy: Path, policy: str) -> dict[bytes, str]:
    """Return the outcome of each item by its path below ``source``, before the copy (the empty path: ``source``
    itself).
    """
    words = {}
    for directory, directories, files in os.walk(os.fsencode(source)):
        for name in [b"", *files, *(each for each in directories if os.path.islink(os.path.join(directory, each)))]:
            path = os.path.join(directory, name).rstrip(b"/")
            below = os.path.relpath(path, os.fsencode(source))
            there = os.path.join(os.fsencode(copy), below)
            words[b"" if below == b"." else below] = _word(path, there, policy)
    return words


def _word(path: bytes, copy: bytes, policy: str) -> str:
    if not os.path.lexists(copy):
        return "copy"
    item, there = os.lstat(path), os.lstat(copy)
    if stat.S_ISDIR(item.st_mode):
        looks = [(each.st_mode, each.st_uid, each.st_gid, each.st_mtime_ns) for each in (item, there)]
        return "skip" if looks[0] == looks[1] else "meta"
    later = item.st_mtime_ns // SECOND - there.st_mtime_ns // SECOND
    is_of_type = stat.S_IFMT(item.st_mode) == stat.S_IFMT(there.st_mode)
    if policy == "newer":
        is_resized = not later and item.st_size != there.st_size
        return "replace" if later > 0 or is_resized or not is_of_type else "skip"
    if policy == "changed":  # if only the time differs, it is updated
        is_alike = is_of_type and item.st_size == there.st_size and (not later or _hold_the_same(path, copy))
        return ("meta" if later else "skip") if is_alike else "replace"
    return {"replace": "replace", "skip": "skip", "fail": "fail"}[policy]


def _hold_the_same(one: bytes, other: bytes) -> bool:
    if os.path.islink(one):
        return os.readlink(one) == os.readlink(other)
    return same_contents(one, other)
