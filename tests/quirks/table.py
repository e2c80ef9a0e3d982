"""The table of expected outcomes of each program on each quirk. Cells that are not listed are ``RIGHT``."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import NamedTuple

from tests.quirks.world import Names, Shown, same, unchanged
from tests.support.compared import Seen

METADATA = frozenset({"mtime", "mode", "owner", "acl", "xattr"})


class Expected(NamedTuple):
    """The expected outcome of a cell."""

    statuses: tuple[int, ...] = (0,)
    errnos: tuple[str, ...] = ()
    """Errors that may be reported; any error if empty."""
    ignored: frozenset[str] = frozenset()
    """Properties that the file system cannot store or does not show, and kinds of differences."""


RIGHT = Expected()
"""Status 0, and a correct copy."""
ANY = (0, 1, 2, 75)
REFUSED = Expected((2,))
ENDS = Expected((75,))
"""The rank cannot continue: a message names the path and the operation."""
DIFFERENT = Expected((1,), (), frozenset({"told"}))


class Row(NamedTuple):
    """One file system: its quirks, the expected outcome by cell, and how it shows items."""

    quirks: str
    cells: Mapping[str, Expected]
    ignored: frozenset[str] = frozenset()
    """Ignored in all cells."""
    names: Names = same
    change: Shown = unchanged


def _fails(*errnos: str) -> Expected:
    return Expected((1,), errnos)


def _may_fail(*errnos: str, ignored: frozenset[str] = frozenset()) -> Expected:
    return Expected((0, 1), errnos, ignored)


def _stops(*errnos: str) -> Expected:
    """Some programs stop immediately, others fail each item."""
    return Expected((1, 2, 75), errnos)


READ = ("pcopy from", "psync from", "ptar -c")
WRITTEN = ("pcopy to", "psync to", "ptar -x")


def _each(cells: tuple[str, ...], expected: Expected) -> dict[str, Expected]:
    return dict.fromkeys(cells, expected)


def _row(quirks: str, cells: Mapping[str, Expected] | None = None, *ignored: str) -> Row:
    return Row(quirks, cells or {}, frozenset(ignored))


def _rounded(seconds: int) -> Shown:
    def change(item: Seen) -> None:
        step = seconds * 10**9
        item.values["mtime"] = int(str(item.values["mtime"])) // step * step

    return change


def _coarse(seconds: int) -> Row:
    """Source times are those that the quirk shows; written times are stored exactly below the quirk."""
    return Row(f"coarse_times={seconds}", _each((*READ, *WRITTEN, "pverify"), RIGHT), change=_rounded(seconds))


def lower(name: bytes) -> bytes:
    return name.lower()


def decomposed(name: bytes) -> bytes:
    return unicodedata.normalize("NFD", name.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


COPIED_LINKS = Expected(ignored=frozenset({"links"}))
"""Additional names of a file may be copies, which a warning reports."""
NOT_LINKED = _each(("pcopy to", "psync to", "ptar -x"), Expected(ignored=frozenset({"links"})))
EACH_HOST_FAILS = Expected((1,))
"""``pbcast``: each host notices what its directory does not support."""
IN_ORDER = _each(WRITTEN, RIGHT) | {"ptar -c to": REFUSED, "pbcast": EACH_HOST_FAILS, "pdbench": Expected((0, 1, 2))}
"""Where files cannot be renamed, outputs that must be complete when they get their name are refused."""
UNSYNCED = _each((*WRITTEN, "ptar -c to", "pbcast"), RIGHT) | {"pdbench": Expected((0, 1))}
NO_LINKS = ("EXDEV", "EPERM", "ENOSYS", "EOPNOTSUPP", "EMLINK")
NOT_SYNCED = ("EINVAL", "ENOSYS", "EOPNOTSUPP")
UNREADABLE = ("getxattr=EIO", "getxattr=EPERM", "getxattr=E2BIG", "listxattr=EIO", "listxattr=EACCES")
OUT_OF_ORDER = (
    "no_dot_names",
    "rename=EPERM",
    "rename=ENOSYS",
    "rename=EOPNOTSUPP,no_dot_names,sequential,link=EOPNOTSUPP",
)

SHOWN = (
    _row("", {}),
    _row("listed_inodes", _each((*WRITTEN, "pwalk", "prm"), RIGHT)),
    _row("untyped", _each((*READ, *WRITTEN, "pwalk", "prm"), RIGHT)),
    _row("fixed_mode=0755", _each((*WRITTEN, "ptar -c to", "pbcast", "pchmod"), RIGHT), "mode", "acl"),
    _row("fixed_owner=65534", _each((*WRITTEN, "ptar -c to", "pbcast"), RIGHT) | _each(("pcopy to",), COPIED_LINKS),
         "owner"),
    _row("fixed_mode=0700,fixed_owner=0", _each((*WRITTEN, "ptar -c to", "pbcast"), RIGHT), "mode", "owner", "acl"),
    _row("close_time", _each(WRITTEN, RIGHT)),
    _coarse(1),
    _coarse(2),
    _row("fixed_ctime", _each((*WRITTEN, *READ), RIGHT)),
    _row("no_blocks", _each((*WRITTEN, "ptar -c to", "pbcast", "pdbench"), RIGHT)),
    _row("short_reads", _each((*READ, "pverify", "pbcast"), RIGHT)),
    _row(
        "early_end=5",
        {"pverify": Expected((2,), (), frozenset({"told"}))}
        | _each(READ, Expected((1,), (), frozenset({"size", "content"})))
        | _each(WRITTEN, RIGHT),
    ),
    _row("stale=5", _each((*READ, *WRITTEN, "prm", "pchmod", "pwalk", "pbcast", "pverify", "ptar -c to"), RIGHT)
         | {"pdbench": _may_fail("ESTALE", ignored=frozenset({"extra"}))}),
)  # fmt: skip

UNSEEN = frozenset({"missing", "extra", "mode", "acl", "mtime", "links"})
LISTED = (
    _row("twice", _each((*READ, *WRITTEN, "pwalk", "prm", "pchmod", "pverify"), RIGHT)),
    _row(
        "list_ends=3",
        _each((*READ, *WRITTEN, "pwalk", "pchmod"), Expected(ignored=UNSEEN))
        | {"prm": Expected((0, 1), ("ENOTEMPTY",), frozenset({"extra"})), "pverify": DIFFERENT},
    ),
    _row(
        "list_fails=3",
        _each((*READ, "psync to", "prm", "pchmod", "pwalk"), _fails("EIO"))
        | {"pcopy to": _may_fail("EIO"), "pverify": REFUSED, "pdbench": _may_fail("EIO")},
    ),
    _row("readdir=EIO", _each((*READ, "psync to", "prm", "pchmod", "pwalk"), _fails("EIO"))
         | {"pcopy to": _may_fail("EIO"), "pverify": REFUSED,
            "pdbench": _may_fail("EIO", ignored=frozenset({"extra"}))}),
    _row("opendir=EACCES", _each((*READ, "prm", "pchmod", "pwalk", "pbcast"), _fails("EACCES"))
         | _each((*WRITTEN, "ptar -c to"), _stops("EACCES"))
         | {"pverify": REFUSED, "pdbench": Expected((1,), ("EACCES",), frozenset({"extra"}))}),
)  # fmt: skip

NAMED = (
    _row("no_dot_names", IN_ORDER | _each(("pcopy to", "ptar -x"), _fails("EINVAL"))
         | {"psync to": _may_fail("EINVAL")}),
    _row("sequential", IN_ORDER),
    _row("rename=EPERM", IN_ORDER),
    _row("rename=ENOSYS", IN_ORDER),
    _row("rename=EOPNOTSUPP,no_dot_names,sequential,link=EOPNOTSUPP",
         IN_ORDER | _each(("pcopy to", "ptar -x"), _fails("EINVAL"))
         | {"psync to": _may_fail("EINVAL")}, "links"),
    _row("full=deep", _each(WRITTEN, _fails("ENOSPC"))),
    Row("fold_case", _each((*READ, *WRITTEN, "pwalk", "prm"), RIGHT) | {"pverify": DIFFERENT}, names=lower),
    Row("decompose", _each((*READ, *WRITTEN, "pwalk", "prm"), RIGHT) | {"pverify": DIFFERENT}, names=decomposed),
    _row("utf8_only", _each(("pcopy to", "ptar -x"), _fails("EILSEQ")) | _each(("psync to", "prm"), RIGHT)),
)  # fmt: skip

ATTRIBUTES = (
    _row("foreign=com.apple.x", _each((*READ, *WRITTEN, "ptar -c"), RIGHT)),
    _row("foreign=gpfs.x", _each((*READ, *WRITTEN, "ptar -c"), RIGHT)),
    _row("foreign=user.more", _each(READ, Expected(ignored=frozenset({"xattr"}))) | {"psync to": _fails("EPERM")}),
    _row("unknown=user.", _each((*WRITTEN, "pbcast"), _fails("EOPNOTSUPP"))),
    _row("unknown=system.",
         _each(("pcopy to", "ptar -x"), _fails("EOPNOTSUPP")) | _each(("psync to", "pbcast"), RIGHT)),
    _row("setxattr=EOPNOTSUPP", _each((*WRITTEN, "pbcast"), _fails("EOPNOTSUPP")) | {"pchmod": RIGHT}),
    *(_row(f"setxattr={error}",
           _each((*WRITTEN, "pbcast"), _fails(error)))
      for error in ("ENOSPC", "EPERM")),
    *(_row(quirk, _each(READ, _fails(quirk.partition("=")[2]))
           | _each((*WRITTEN, "pchmod", "pbcast"), _may_fail(quirk.partition("=")[2]))
           | {"pverify": Expected((0, 2))})
      for quirk in UNREADABLE),
    _row("listxattr=EOPNOTSUPP,getxattr=EOPNOTSUPP", _each(READ, Expected(ignored=frozenset({"acl", "xattr"})))
         | _each(WRITTEN, _may_fail("EOPNOTSUPP"))),
)  # fmt: skip

LEFT = frozenset({"left over", "extra"})
"""Temporary files that cannot be removed, which a warning reports."""
NOT_EMPTY = Expected((0, 1), ("EPERM", "EBUSY"), frozenset({"extra"}))
REFUSALS = (
    *(_row(f"link={error}", NOT_LINKED) for error in NO_LINKS),
    *(_row(f"fsync={error}", UNSYNCED) for error in NOT_SYNCED),
    _row("fsync=EIO", _each((*WRITTEN, "ptar -c to", "pbcast", "pdbench"), Expected(ANY, ("EIO",)))),
    _row("statfs=ENOSYS", _each((*READ, *WRITTEN, "ptar -c to", "pbcast", "pverify", "prm", "pchmod", "pdbench"),
                                RIGHT)),
    _row("statfs=EIO", _each((*WRITTEN, "ptar -c to", "prm", "pchmod", "pdbench"), ENDS)
         | _each(("pcopy from", "psync from", "pverify"), REFUSED) | {"ptar -c": _fails("EIO")}
         | _each(("pbcast", "pwalk"), RIGHT)),
    *(_row(f"chown={error}", _each((*WRITTEN, "pbcast"), _fails(error))) for error in ("EPERM", "EINVAL")),
    _row("chmod=EPERM", _each(("pcopy to", "ptar -x", "pchmod"), _fails("EPERM"))
         | {"psync to": _fails("EPERM"), "pbcast": _fails("EPERM"), "ptar -c to": _fails("EPERM")}),
    _row("utimens=EPERM", _each(WRITTEN, _fails("EPERM")) | {"pbcast": _fails("EPERM")}),
    _row("truncate=EPERM", IN_ORDER),
    _row("mknod=EPERM", _each(("pcopy to", "ptar -x"), _fails("EPERM"))),
    _row("symlink=EPERM", _each(WRITTEN, _fails("EPERM"))),
    _row("symlink=EOPNOTSUPP", _each(WRITTEN, _fails("EOPNOTSUPP"))),
    _row("mkdir=EACCES", _each(("pcopy to", "ptar -x"), _fails("EACCES")) | {"pdbench": _fails("EACCES")}),
    *(_row(f"create={error}", _each((*WRITTEN, "pbcast"), _stops(error))
           | {"ptar -c to": _stops(error), "pdbench": _stops(error)})
      for error in ("EACCES", "ENOSPC", "EROFS")),
    _row("unlink=EPERM", _each(("pcopy to", "ptar -x"), Expected((0,), (), LEFT))
         | {"ptar -c to": REFUSED._replace(ignored=LEFT), "pbcast": EACH_HOST_FAILS._replace(ignored=LEFT)}
         | {"prm": _fails("EPERM"), "psync to": Expected((1,), ("EPERM",), LEFT), "pdbench": NOT_EMPTY}),
    _row("rmdir=EBUSY", {"prm": _fails("EBUSY"), "psync to": _fails("EBUSY"), "pdbench": NOT_EMPTY}),
    _row("fallocate=EOPNOTSUPP", _each((*WRITTEN, "ptar -c to", "pbcast"), RIGHT)),
    *(_row(f"fallocate={error}", _each((*WRITTEN, "ptar -c to", "pbcast"), Expected(ANY, (error,))))
      for error in ("ENOSPC", "EIO")),
    _row("lseek=EINVAL", _each((*READ, "pverify"), RIGHT)),
    _row("copy_file_range=EXDEV", _each(("pcopy from", "pcopy to"), RIGHT)),
    _row("open=EIO", _each((*READ, "pverify"), Expected((1, 2), ("EIO",), frozenset({"size", "content"})))
         | _each((*WRITTEN, "ptar -c to", "pbcast", "pdbench"), Expected(ANY, ("EIO",)))),
    _row("read=EIO", _each((*READ, "pverify"), Expected((1, 2), ("EIO",), frozenset({"content"})))
         | {"psync to": _may_fail("EIO"), "pdbench": _may_fail("EIO"), "pbcast": RIGHT}),
    *(_row(f"write={error}", _each((*WRITTEN, "ptar -c to", "pbcast"), _stops(error)) | {"pdbench": _fails(error)})
      for error in ("EIO", "ENOSPC", "EDQUOT")),
    _row("flush=EIO", _each((*READ, *WRITTEN, "pbcast", "ptar -c to", "pdbench", "pverify"),
                            Expected(ANY, ("EIO", "ENOENT")))),
)  # fmt: skip

TABLE = (*SHOWN, *LISTED, *NAMED, *ATTRIBUTES, *REFUSALS)


def expected(row: Row, cell: str) -> Expected:
    """Return the expected outcome of ``cell``: pstripe refuses everything that is not on Lustre."""
    found = REFUSED if cell == "pstripe" else row.cells.get(cell, RIGHT)
    more = ("ENOENT",) if cell == "ptar -x" and found.errnos else ()  # links to members that have failed
    return found._replace(ignored=found.ignored | row.ignored, errnos=(*found.errnos, *more))
