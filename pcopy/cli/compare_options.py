"""The options of ``pverify --compare``: by which properties two trees are compared, and which paths are listed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pcopy.cli.argument_types import Option, parse_non_negative
from pcopy.cli.mistakes import similar_choice_hint
from pcopy.errors import RequestRefused
from pcopy.text import printable_path

if TYPE_CHECKING:
    from argparse import Namespace

    from pcopy.tools.arguments import ComparisonArguments

_ALL_PROPERTIES = "all"
_PROPERTY_NAMES = ("type", "size", "mtime", "mode", "owner", "acl", "xattr", "content")
"""The names of the properties by which ``pverify --compare`` compares items.

Their order is that of the bits in ``pcopy.tasks.compare.properties``. They are repeated here because that module is
slow to import.
"""
_DIFFER_CLASS_PREFIX = "differ-in-"
"""Beginning of a class in ``--output CLASS:FILE``: the class ``differ-in-PROPERTY`` lists the paths that differ in this
property.
"""
_PATH_CLASSES = ("common", "only-a", "only-b", "differ")
"""The classes in ``--output CLASS:FILE`` besides ``differ-in-PROPERTY``: which paths are listed in FILE."""


def requested_comparison(values: Namespace, words: Sequence[str]) -> ComparisonArguments | None:
    """Return the comparison by properties that ``--compare`` requests; None if the option is not given.

    Without it pverify compares the two trees as a whole. ``words`` are the options as they were written. Raise
    ``RequestRefused`` for options without effect and for contradictions.
    """
    if values.nul_separated and not values.output:
        raise RequestRefused("-0 says how paths in --output end: give --output, too; see pverify --help")
    if values.compare is None:
        window = any(word.partition("=")[0] == "--modify-window" for word in words)
        if values.output or window:
            option = "--output" if values.output else "--modify-window"
            raise RequestRefused(
                f"{option} can only be given with --compare LIST: say which properties are compared; see pverify --help"
            )
        return None
    if values.create or values.manifest:
        option = "--create" if values.create else "--manifest"
        raise RequestRefused(
            f"--compare takes two trees, and {option} takes one tree: leave one option out; see pverify --help"
        )
    if "mtime" not in values.compare and any(word.partition("=")[0] == "--modify-window" for word in words):
        raise RequestRefused("--modify-window is for times, which are not compared: add mtime to --compare")
    for name, path in values.output:
        word = name.removeprefix(_DIFFER_CLASS_PREFIX)
        if name.startswith(_DIFFER_CLASS_PREFIX) and word != "type" and word not in values.compare:
            raise RequestRefused(
                f"--output {name}:{printable_path(path)}: {word} is not compared: add it to --compare", path=path
            )
    from pcopy.tools.arguments import ComparisonArguments

    wanted = sum(1 << at for at, word in enumerate(_PROPERTY_NAMES) if word in values.compare or word == "type")
    return ComparisonArguments(wanted, values.modify_window, tuple(values.output), values.nul_separated)


def _parse_properties(text: str) -> frozenset[str]:
    """Return the names of the properties in ``text``, a comma-separated list; "all" stands for all of them.

    Raise ``ValueError`` for an unknown one.
    """
    words = text.split(",")
    for word in words:
        if word not in (*_PROPERTY_NAMES, _ALL_PROPERTIES):
            if os.path.lexists(text):
                raise ValueError("is a path; write properties before the paths, as in --compare size,mtime A B")
            raise ValueError(
                f"'{printable_path(os.fsencode(word))}' is not one of "
                f"{', '.join((*_PROPERTY_NAMES, _ALL_PROPERTIES))}"
                f"{_hint_for_property_synonym(word) or similar_choice_hint(word, _PROPERTY_NAMES)}"
            )
    return frozenset(_PROPERTY_NAMES if _ALL_PROPERTIES in words else words)


def _hint_for_property_synonym(word: str) -> str:
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


def _parse_path_class_and_file(text: str) -> tuple[str, bytes]:
    """Return the two parts of ``text``, a value of ``--output``: the class of paths and the path of the file.

    Raise ``ValueError`` if ``text`` does not have the form ``CLASS:FILE``.
    """
    name, colon, file = text.partition(":")
    names = (*_PATH_CLASSES, *(_DIFFER_CLASS_PREFIX + word for word in _PROPERTY_NAMES))
    known = f"{', '.join(_PATH_CLASSES)} or {_DIFFER_CLASS_PREFIX}PROPERTY"
    if not colon and name not in names:
        raise ValueError(f"write CLASS:FILE, where CLASS is {known}")
    if name not in names:
        raise ValueError(
            f"'{printable_path(os.fsencode(name))}' is not one of {known}{similar_choice_hint(name, names)}"
        )
    if not colon or not file:
        raise ValueError(f"write {name}:FILE")
    if file == "-" or file.endswith("/"):
        raise ValueError(f"FILE is not the name of a file: write {name}:FILE")
    return name, os.fsencode(file)


COMPARE_OPTIONS: tuple[Option, ...] = (
    Option(
        "--compare",
        "pverify",
        "which properties of A and B are compared",
        "compare A and B by these properties; files are read only for content. Lines printed: "
        "only A, only B, differ in ...",
        brief="compare by properties, such as size,mtime or all",
        value="LIST",
        parse=_parse_properties,
        list_words=lambda: (*_PROPERTY_NAMES, _ALL_PROPERTIES),
        in_files=False,
        modes="compare",
    ),
    Option(
        "--modify-window",
        "pverify",
        "which properties of A and B are compared",
        "times that differ by at most SECONDS are equal (default 0: equal to the nanosecond)",
        value="SECONDS",
        parse=parse_non_negative,
        default=0,
        modes="compare",
    ),
    Option(
        "--output",
        "pverify",
        "which properties of A and B are compared",
        f"list in FILE the paths of a class: {', '.join(_PATH_CLASSES)}, or {_DIFFER_CLASS_PREFIX}size and so on; "
        "may be given several times; classes with the same FILE come into one list",
        action="append",
        value="CLASS:FILE",
        parse=_parse_path_class_and_file,
        default=[],
        in_files=False,
        modes="compare",
    ),
    Option(
        "-0 --null",
        "pverify",
        "which properties of A and B are compared",
        "paths in FILE end with a NUL: any name can be listed",
        dest="nul_separated",
        in_files=False,
        modes="compare",
    ),
)
"""The options of a comparison by properties."""
