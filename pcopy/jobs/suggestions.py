"""Suggestions for messages about a path, a job or a word that does not exist: the most similar one that does exist.

Rules: a suggestion is only shown, and never used instead of the user's word. The search is cheap: it lists few
directories, and none with more than ``MAX_SEARCHED_NAMES`` names.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from stat import S_IMODE

from pcopy.fsio.close import closing_descriptor
from pcopy.text import printable_path, shell_quoted

MAX_COMPARED_NAMES = 64
"""Number of names of a directory that are looked up in DST to find out whether DST is an older copy of the directory.
On a file server each look-up may take a millisecond.
"""
MAX_SEARCHED_NAMES = 10_000
"""A directory with more names is not searched for a similar one: listing it may take long on a file server."""
_MAX_MISSPELT_COMPONENTS = 3
"""Maximum number of misspelt components in one path; a path with more is too different, and nothing is suggested."""
_MIN_SIMILARITY = 0.75
"""Least similarity (the ratio of difflib, 0 to 1) of a suggested word. With a smaller value, --report would be
suggested for --restart.
"""
_MIN_PREFIX_LENGTH = 3
"""Least number of letters of a word for which the only word that begins with it is suggested."""

_SPACES = b" \t\r\n"
_QUOTES = "\"'\u2018\u2019\u201c\u201d"
_DASHES = ("\u2010", "\u2011", "\u2012", "\u2013", "\u2014", "\u2212")  # Text processors replace a "-" by one of these.


def suggestion_for_missing_path(path: bytes) -> str:
    """Return the end of a message that says that ``path`` does not exist: a similar path, or the part of it that
    exists.

    Empty if there is neither.
    """
    return _first_suggestion(path) or _explain_missing_component(path)


def suggestion_for_missing_directory(path: bytes, make_it: str = "create that first (mkdir -p)") -> str:
    """Return a suggestion for the missing directory ``path``: a similar one if there is one, and how to create it.

    ``make_it``: the words that say how to create it.
    """
    text = _first_suggestion(path)
    return joined_sentences(text, f"else {make_it}") if text else make_it


def reason_directory_is_unwritable(directory: bytes) -> str:
    """Return why this user cannot create files in ``directory``; empty if the user can.

    Raise ``OSError`` if that cannot be found out.
    """
    effective = (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid())
    if os.access(directory, os.W_OK | os.X_OK, effective_ids=effective):
        return ""
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        return f"{printable_path(directory)} is on a file system that is mounted read-only"
    status = os.stat(directory)
    return (
        f"{printable_path(directory)} is not writable by you (mode {S_IMODE(status.st_mode):04o}, owner "
        f"{status.st_uid})"
    )


def _first_suggestion(path: bytes) -> str:
    """Return the suggestion for ``path`` from the first function in ``_SUGGESTERS`` that has one; empty if none has."""
    return next((text for suggestion in _SUGGESTERS if (text := suggestion(path))), "")


def joined_sentences(text: str, more: str) -> str:
    """Return ``text`` and ``more``, two parts of a message, joined with a semicolon, or as two sentences if ``text``
    ends with a question mark.
    """
    return f"{text} {more[:1].upper()}{more[1:]}" if text.endswith("?") else f"{text}; {more}"


def most_similar_word(word: str, words: Iterable[str]) -> str | None:
    """Return the only one of ``words`` that begins with ``word``, else the most similar one; None if none is similar.

    Upper case and lower case letters count as equal.
    """
    from difflib import get_close_matches

    lower, by_lower = word.lower(), {one.lower(): one for one in words}
    similar = [one for one in by_lower if one.startswith(lower)] if len(word) >= _MIN_PREFIX_LENGTH else []
    if len(similar) != 1:
        similar = get_close_matches(lower, by_lower, 1, _MIN_SIMILARITY)
    return by_lower[similar[0]] if similar else None


def _explain_dangling_link(path: bytes) -> str:
    """If ``path`` is a symbolic link to a missing file, return a text that says so; else an empty text."""
    link = path.rstrip(b"/")
    target = os.path.realpath(link)
    if not os.path.islink(link) or os.path.lexists(target):
        return ""
    return f"it is a symbolic link to {printable_path(target)}, which does not exist"


def _suggest_option_with_dash(path: bytes) -> str:
    """If ``path`` is an option whose dash is another, similar character, return a text with the option in its right
    form.

    Such a character comes from copying a formatted text. If there is none, return an empty text.
    """
    text = os.fsdecode(path)
    option = text.lstrip("-" + "".join(_DASHES))
    if text.startswith(_DASHES) and option:
        dashes = "-" if len(option) == 1 else "--"
        return f"its dash is not the one of options: write {dashes}{_printable_suggestion(option)}"
    return ""


def _suggest_expanded_path(path: bytes) -> str:
    """If ``path`` contains ``~`` or a variable, say that a shell does not expand these in quotes, and name the expanded
    path if it exists.

    Else return an empty text.
    """
    sign = b"~" if path.startswith(b"~") else b"$" if re.search(rb"\$\{?[A-Za-z_]", path) else b""
    if not sign:
        return ""
    real = os.path.expanduser(path) if sign == b"~" else os.path.expandvars(path)
    suggestion = f"; {printable_path(real)} exists" if real != path and os.path.lexists(real) else ""
    quotes = "quotes" if sign == b"~" else "single quotes"
    return f"a shell does not expand {sign.decode()} in {quotes}{suggestion or ': write the path in full'}"


def _suggest_stripped_path(path: bytes) -> str:
    """Suggest the existing path that remains of ``path`` without superfluous characters; if there is none, return an
    empty text.

    These are white space and quotes around it, a carriage return at its end, backslashes, and ``file://``.
    """
    text = os.fsdecode(path)
    around = "carriage return" if path.endswith(b"\r") else "space"
    tries = (
        (path.strip(_SPACES), f"without the {around} around it"),
        (os.fsencode(text.strip(_QUOTES)), "without the quotes that are part of the word here"),
        (re.sub(rb"\\(.)", rb"\1", path), "without the backslash, which stays one in quotes"),
        (path.removeprefix(b"file://"), "without file://"),
    )
    for real, how in tries:
        if real and real != path and os.path.lexists(real):
            return f"{printable_path(real)} exists: write it {how}"
    return ""


def _suggest_several_paths(path: bytes) -> str:
    """If ``path`` consists of several existing paths, separated by spaces or commas, suggest how to write them; else
    return an empty text.
    """
    for sign, advice in ((b",", "write a space between them"), (b" ", "quote each of them, not all")):
        parts = path.split(sign)
        if len(parts) > 1 and all(part and os.path.lexists(part) for part in parts):
            return f"{' and '.join(map(printable_path, parts))} exist: {advice}"
    return ""


def _explain_shell_pattern(path: bytes) -> str:
    """If ``path`` is a shell pattern that the shell has not replaced by names, return a text that says so; else an
    empty text.
    """
    from fnmatch import fnmatchcase

    directory, name = os.path.split(path)
    if not re.search(rb"[*?]|\[.+\]", path):
        return ""
    for existing in _names_in_small_directory(directory):
        if not existing.startswith(".") and fnmatchcase(existing, os.fsdecode(name)):
            shown = printable_path(os.path.join(directory, os.fsencode(existing)))
            return f"{shown} exists: a shell does not expand patterns in quotes"
    return "no name matches this pattern, so the shell has left it as it is"


def _suggest_similar_path(path: bytes) -> str:
    """Suggest an existing path: ``path`` with similar names in place of components that do not exist; if there is none,
    return an empty text.
    """
    reached = b"/" if path.startswith(b"/") else b""
    slips = 0
    for part in filter(None, path.split(b"/")):
        name = os.path.join(reached, part)
        if not os.path.lexists(name):
            similar = (
                most_similar_word(os.fsdecode(part), _names_in_small_directory(reached))
                if slips < _MAX_MISSPELT_COMPONENTS
                else None
            )
            if similar is None:
                return ""
            slips += 1
            name = os.path.join(reached, os.fsencode(similar))
        reached = name
    return f"{printable_path(os.path.join(reached, b'') if path.endswith(b'/') else reached)} exists: was that meant?"


def _explain_missing_component(path: bytes) -> str:
    """Return a text that names the deepest existing directory above ``path`` and the component that it lacks.

    Empty if that directory is the root directory or the working directory.
    """
    reached = b"/" if path.startswith(b"/") else b""
    for part in filter(None, path.split(b"/")):
        name = os.path.join(reached, part)
        if not os.path.lexists(name):
            if reached in (b"", b"/") or not os.path.isdir(reached):
                break
            return (
                f"{printable_path(reached)} exists, but holds nothing named {printable_path(part)}, nor anything "
                "similar"
            )
        reached = name
    return ""


def _names_in_small_directory(directory: bytes) -> list[str]:
    """Return the names in a directory; empty if they are more than ``MAX_SEARCHED_NAMES`` or it cannot be listed."""
    names = _first_names(directory, MAX_SEARCHED_NAMES + 1)
    return list(map(os.fsdecode, names)) if len(names) <= MAX_SEARCHED_NAMES else []


def _first_names(directory: bytes, most: int) -> list[bytes]:
    """Return the names in a directory, but at most ``most`` of them; an empty list if it cannot be listed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(directory or b".", flags | os.O_NOATIME)
        except PermissionError:  # O_NOATIME is permitted to the owner only.
            descriptor = os.open(directory or b".", flags)
        with closing_descriptor(descriptor), os.scandir(descriptor) as entries:
            return [os.fsencode(entry.name) for entry in islice(entries, most)]
    except OSError:
        return []


def nested_copy_notice(source: bytes, shown: bytes, destination: bytes, given: bytes, name: bytes) -> str:
    """Return a notice if the copy of a directory would be created inside an older copy of it; empty if not.

    cp copies into an existing directory, too. But if the same command is repeated, DST exists because the first run has
    created it, and users of rsync expect the copy to be updated.

    Args:
        source, shown: absolute path of the source, and as the user gave it.
        destination, given: absolute path of the existing directory DST, and as the user gave it.
        name: name of the new copy in it.
    """
    if os.path.lexists(os.path.join(destination, name)):
        return ""
    names = _first_names(source, MAX_COMPARED_NAMES)
    if not names or not all(os.path.lexists(os.path.join(destination, each)) for each in names):
        return ""
    return (
        f"{printable_path(given)} has the names of {printable_path(shown)} already: is it an older copy? To copy to "
        f"{printable_path(given)} itself, write {shell_quoted(shown + b'/')} {shell_quoted(given)}"
    )


def unsearchable_directory_text(path: bytes, error: OSError) -> str:
    """Return the end of a message about "permission denied" (EACCES): the uppermost directory above ``path`` that this
    user may not search.

    Empty if ``error`` is not EACCES, or there is no such directory.
    """
    if error.errno == errno.EACCES:
        for directory in _directories_above(os.path.abspath(path)):
            if not os.access(directory, os.X_OK):
                return f"; {printable_path(directory)} may not be entered: check its mode"
    return ""


def _directories_above(path: bytes) -> Iterator[bytes]:
    """Yield the directories above ``path``, beginning with the root directory."""
    parts = path.split(b"/")
    for end in range(1, len(parts)):
        yield b"/".join(parts[:end]) or b"/"


def _printable_suggestion(text: str) -> str:
    """Return ``text`` with unprintable characters escaped, for messages."""
    return printable_path(os.fsencode(text))


_SUGGESTERS: tuple[Callable[[bytes], str], ...] = (
    _explain_dangling_link, _suggest_option_with_dash, _suggest_expanded_path, _suggest_stripped_path,
    _suggest_several_paths,
    _explain_shell_pattern, _suggest_similar_path
)  # fmt: skip
