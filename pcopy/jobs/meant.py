"""What users may have meant by a path, a job or a word that is not there: the nearest that is.

Rule: nothing is guessed and done; it is asked. Looking costs little: some directories are listed, and none of those
that hold more than ``MOST_NAMES``.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from stat import S_IMODE

from pcopy.fsio.close import held_open
from pcopy.text import shown

MOST_NAMES = 10_000
"""Names of a directory that are compared; to list more may take long on a file server."""
_MOST_SLIPS = 3
"""Names of a path that are corrected at once; more is another path."""
_LEAST_LIKENESS = 0.75
"""How alike two words are, from 0 to 1, if one may be a slip of the other: with less, --restart would be --report."""
_LEAST_BEGINNING = 3
"""Letters that may stand for the only word that begins with them."""

_SPACES = b" \t\r\n"
_QUOTES = "\"'\u2018\u2019\u201c\u201d"
_DASHES = ("\u2010", "\u2011", "\u2012", "\u2013", "\u2014", "\u2212")  # what texts make of a "-"


def meant(path: bytes) -> str:
    """What to say of ``path``, which is not there; nothing if nothing is like it."""
    return _similar(path) or _so_far(path)


def meant_or_made(path: bytes, make_it: str = "make that first (mkdir -p)") -> str:
    """The same of a directory that may be yet to be made."""
    text = _similar(path)
    return followed(text, f"else {make_it}") if text else make_it


def unwritable(directory: bytes) -> str:
    """Return why this user can make no file in ``directory``, which it names; "" if he can. Raises ``OSError``."""
    effective = (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid())
    if os.access(directory, os.W_OK | os.X_OK, effective_ids=effective):
        return ""
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        return f"{shown(directory)} is on a file system that is mounted read-only"
    status = os.stat(directory)
    return f"{shown(directory)} may not be written by you (mode {S_IMODE(status.st_mode):04o}, of user {status.st_uid})"


def _similar(path: bytes) -> str:
    return next((text for look in _LOOKS if (text := look(path))), "")


def followed(text: str, more: str) -> str:
    """Both in one line; ``text`` may end with a question."""
    return f"{text} {more[:1].upper()}{more[1:]}" if text.endswith("?") else f"{text}; {more}"


def starts_elsewhere(path: bytes, directory: bytes) -> str:
    """What to say of a listed path that is not there below ``directory``, but from here, and leads into it."""
    if path.startswith(b"/") or os.path.lexists(os.path.join(directory, path)) or not os.path.lexists(path):
        return ""
    top = os.path.realpath(directory)
    real = os.path.join(os.path.realpath(os.path.dirname(path) or b"."), os.path.basename(path))
    if not (real + b"/").startswith(top.rstrip(b"/") + b"/"):
        return ""
    below = os.path.relpath(real, top)
    advice = f"write {shown(below)}, or a saved listing (pwalk --output LIST.jsonl), which tells where its paths start"
    return f"{shown(path)} is not in {shown(directory)}, but starts in the working directory: {advice}"


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The only one of ``words`` that begins with ``word``, else the one most like it, whatever the case of letters."""
    from difflib import get_close_matches

    lower, by_lower = word.lower(), {one.lower(): one for one in words}
    near = [one for one in by_lower if one.startswith(lower)] if len(word) >= _LEAST_BEGINNING else []
    if len(near) != 1:
        near = get_close_matches(lower, by_lower, 1, _LEAST_LIKENESS)
    return by_lower[near[0]] if near else None


def _as_link(path: bytes) -> str:
    """A symbolic link that is there, while what it leads to is not."""
    link = path.rstrip(b"/")
    goal = os.path.realpath(link)
    if not os.path.islink(link) or os.path.lexists(goal):
        return ""
    return f"it is a symbolic link to {shown(goal)}, which is not there"


def _as_dashes(path: bytes) -> str:
    text = os.fsdecode(path)
    option = text.lstrip("-" + "".join(_DASHES))
    if text.startswith(_DASHES) and option:
        return f"its dash is not the one of options: write {'-' if len(option) == 1 else '--'}{_told(option)}"
    return ""


def _as_shells_do(path: bytes) -> str:
    """What a shell would have replaced, had there been no quotes."""
    what = b"~" if path.startswith(b"~") else b"$" if re.search(rb"\$\{?[A-Za-z_]", path) else b""
    if not what:
        return ""
    real = os.path.expanduser(path) if what == b"~" else os.path.expandvars(path)
    meant = f"; {shown(real)} does" if real != path and os.path.lexists(real) else ""
    quotes = "quotes" if what == b"~" else "single quotes"
    return f"a shell does not replace {what.decode()} in {quotes}{meant or ': write the path in full'}"


def _without_frame(path: bytes) -> str:
    """The same without what a list, a mouse or a second pair of quotes has put around it."""
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
            return f"{shown(real)} does: write it {how}"
    return ""


def _as_several(path: bytes) -> str:
    for sign, advice in ((b",", "write a space between them"), (b" ", "quote each of them, not all")):
        parts = path.split(sign)
        if len(parts) > 1 and all(part and os.path.lexists(part) for part in parts):
            return f"{' and '.join(map(shown, parts))} do: {advice}"
    return ""


def _as_pattern(path: bytes) -> str:
    from fnmatch import fnmatchcase

    directory, name = os.path.split(path)
    if not re.search(rb"[*?]|\[.+\]", path):
        return ""
    for there in _names(directory):
        if not there.startswith(".") and fnmatchcase(there, os.fsdecode(name)):
            return f"{shown(os.path.join(directory, os.fsencode(there)))} does: a shell replaces no patterns in quotes"
    return "no name matches this pattern, so the shell has left it as it is"


def _with_slips(path: bytes) -> str:
    here = b"/" if path.startswith(b"/") else b""
    slips = 0
    for part in filter(None, path.split(b"/")):
        name = os.path.join(here, part)
        if not os.path.lexists(name):
            near = nearest(os.fsdecode(part), _names(here)) if slips < _MOST_SLIPS else None
            if near is None:
                return ""
            slips += 1
            name = os.path.join(here, os.fsencode(near))
        here = name
    return f"{shown(os.path.join(here, b'') if path.endswith(b'/') else here)} does: was that meant?"


def _so_far(path: bytes) -> str:
    """The part of ``path`` that is there, if it is a directory."""
    here = b"/" if path.startswith(b"/") else b""
    for part in filter(None, path.split(b"/")):
        name = os.path.join(here, part)
        if not os.path.lexists(name):
            if here in (b"", b"/") or not os.path.isdir(here):
                break
            return f"{shown(here)} does, but holds nothing named {shown(part)}, nor anything similar"
        here = name
    return ""


def _names(directory: bytes) -> list[str]:
    """None of them if it holds too many, or may not be listed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(directory or b".", flags | os.O_NOATIME)
        except PermissionError:  # another user's: its access time is not ours to keep
            descriptor = os.open(directory or b".", flags)
        with held_open(descriptor), os.scandir(descriptor) as entries:
            names = [entry.name for entry in islice(entries, MOST_NAMES + 1)]
    except OSError:
        return []
    return names if len(names) <= MOST_NAMES else []


def barrier(path: bytes, error: OSError) -> str:
    """Behind ``error``: the first directory on the way to ``path`` that this user may not enter, if that is it."""
    if error.errno == errno.EACCES:
        for directory in _upwards(os.path.abspath(path)):
            if not os.access(directory, os.X_OK):
                return f"; {shown(directory)} may not be entered: check its mode"
    return ""


def _upwards(path: bytes) -> Iterator[bytes]:
    """The directories above ``path``, the root first."""
    parts = path.split(b"/")
    for end in range(1, len(parts)):
        yield b"/".join(parts[:end]) or b"/"


def _told(text: str) -> str:
    return shown(os.fsencode(text))


_LOOKS: tuple[Callable[[bytes], str], ...] = (
    _as_link, _as_dashes, _as_shells_do, _without_frame, _as_several, _as_pattern, _with_slips
)  # fmt: skip
