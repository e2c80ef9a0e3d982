"""The options of ``pverify --compare``: the properties by which two trees are compared, and the lists to write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcopy.cli.argument_types import at_least_0, taking
from pcopy.cli.mistakes import named_nearest
from pcopy.errors import Refused
from pcopy.text import shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.tools.arguments import ByProperties

_ALL = "all"
_WORDS = ("type", "size", "mtime", "mode", "owner", "acl", "xattr", "content")
"""The names of the properties, in the order of ``pcopy.tasks.compare.properties``, a module that is slow to import."""
_IN = "differ-in-"
"""The prefix of a class of paths that differ in one property, as in ``differ-in-size``."""
_CLASSES = ("common", "only-a", "only-b", "differ")
"""The classes of paths that ``--output`` can list, besides ``differ-in-PROPERTY``."""


def add_compare_options(parser: ArgumentParser) -> None:
    """Add the options of a comparison by properties to ``parser``."""
    words = f"LIST: words out of {', '.join(_WORDS)}, {_ALL}; with commas"
    add = parser.add_argument_group("which properties of A and B are compared", words).add_argument
    add("--compare", metavar="LIST", type=taking(_properties), default=None,
        help="compare A and B by these properties; without content, no file is read. Lines: only A, only B, "
        "differ in ...")  # fmt: skip
    add("--modify-window", metavar="SECONDS", type=taking(at_least_0), default=0,
        help="times that differ by at most SECONDS are equal (default 0: equal to the nanosecond)")  # fmt: skip
    add("--output", metavar="CLASS:FILE", action="append", type=taking(_list), default=[],
        help=f"list in FILE the paths of a class: {', '.join(_CLASSES)}, or {_IN}size and so on; may be given several "
        "times; classes with the same FILE come into one list")  # fmt: skip
    add("-0", "--null", dest="nul_separated", action="store_true",
        help="paths in FILE end with a NUL: any name can be listed")  # fmt: skip


def comparison_of(values: Namespace, words: Sequence[str]) -> ByProperties | None:
    """Return the requested comparison by properties, or None if A and B are compared as a whole.

    ``words`` are the options of the command line. Raise ``Refused`` for options without effect and for contradictions.
    """
    if values.nul_separated and not values.output:
        raise Refused("-0 says how paths in --output end: give that, too; see pverify --help")
    if values.compare is None:
        window = any(word.partition("=")[0] == "--modify-window" for word in words)
        if values.output or window:
            option = "--output" if values.output else "--modify-window"
            raise Refused(f"{option} goes with --compare LIST: say which properties are compared; see pverify --help")
        return None
    if values.create or values.manifest:
        option = "--create" if values.create else "--manifest"
        raise Refused(f"--compare takes two trees, and {option} one: leave one of them out; see pverify --help")
    if "mtime" not in values.compare and any(word.partition("=")[0] == "--modify-window" for word in words):
        raise Refused("--modify-window is for times, which are not compared: add mtime to --compare")
    for name, path in values.output:
        word = name.removeprefix(_IN)
        if name.startswith(_IN) and word != "type" and word not in values.compare:
            raise Refused(f"--output {name}:{shown(path)}: {word} is not compared: add it to --compare")
    from pcopy.tools.arguments import ByProperties

    wanted = sum(1 << at for at, word in enumerate(_WORDS) if word in values.compare or word == "type")
    return ByProperties(wanted, values.modify_window, tuple(values.output), values.nul_separated)


def _properties(text: str) -> frozenset[str]:
    """Return the set of properties in ``text``, a comma-separated list. Raise ``ValueError`` for an unknown one."""
    words = text.split(",")
    for word in words:
        if word not in (*_WORDS, _ALL):
            if os.path.lexists(text):
                raise ValueError("is a path; what is compared comes first, as in --compare size,mtime A B")
            raise ValueError(
                f"there is no '{shown(os.fsencode(word))}' to compare, only {', '.join((*_WORDS, _ALL))}"
                f"{_meant(word) or named_nearest(word, _WORDS)}"
            )
    return frozenset(_WORDS if _ALL in words else words)


def _meant(word: str) -> str:
    """Return a hint that names the property for which other programs use ``word``; empty if there is none."""
    meant = {
        **dict.fromkeys(("group", "user", "uid", "gid", "ownership"), "owner"),
        **dict.fromkeys(("perms", "perm", "permissions"), "mode"),
        **dict.fromkeys(("time", "times", "timestamps"), "mtime"),
        **dict.fromkeys(("contents", "data", "checksum"), "content"),
        **dict.fromkeys(("acls", "ACL"), "acl"),
        **dict.fromkeys(("xattrs",), "xattr"),
    }.get(word.lower())
    return f"; it is called {meant}" if meant else ""


def _list(text: str) -> tuple[str, bytes]:
    """Return the class and the file of a ``CLASS:FILE``. Raise ``ValueError`` if ``text`` is not of that form."""
    name, colon, file = text.partition(":")
    names = (*_CLASSES, *(_IN + word for word in _WORDS))
    known = f"{', '.join(_CLASSES)} or {_IN}PROPERTY"
    if not colon and name not in names:
        raise ValueError(f"write CLASS:FILE, where CLASS is {known}")
    if name not in names:
        raise ValueError(f"'{shown(os.fsencode(name))}' is no class of paths: {known}{named_nearest(name, names)}")
    if not colon or not file:
        raise ValueError(f"write {name}:FILE")
    if file == "-" or file.endswith("/"):
        raise ValueError(f"write {name}:FILE, with the name of a file")
    return name, os.fsencode(file)
