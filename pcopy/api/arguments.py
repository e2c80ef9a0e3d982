"""Keywords of functions as words of command lines.

``keywords.py``, which is generated from the table of options, has the kind of each keyword's value:

| kind | value |
|---|---|
| flag | True or False |
| choice A B | one of these words |
| flag choice A B | True, False, or one of these words |
| integer, integer auto | a number; the second kind also takes the word ``auto`` |
| size | bytes, or text such as ``1GiB`` |
| seconds | a number, or a timedelta |
| time | an age as seconds, a timedelta, or text such as ``7d``; or a date or datetime |
| text | text, or a number |
| list | a sequence of words, or these separated by commas |
| texts | a text (str or bytes), or a sequence of them: the option is given once for each |
| path, paths | a path, or a sequence of paths: the option is given once for each |
| listing | a sequence of paths, or the path of a file that lists them |

None always means that the option is not given. Whether a text is valid is checked by the program, which refuses the
request before it changes anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from errno import EISDIR
from functools import wraps
from math import inf
from operator import index

from pcopy.api.errors import InvalidOption
from pcopy.api.records import dataclass
from pcopy.api.typing_names import Any, ParamSpec, TypeVar

StrOrBytesPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Paths = StrOrBytesPath | Sequence[StrOrBytesPath]
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_LONGEST_SHOWN_VALUE = 80
"""A value whose text has more characters is shown as its type."""


class _WrongValue(Exception):
    """A value has the wrong type; the text says why."""


@dataclass(frozen=True)
class OptionWords:
    """The ``words`` of a command line; ``listed`` are paths that the option ``--from`` is to list, if there are any."""

    words: list[bytes]
    listed: list[bytes] | None


def option_words(function: str, options: Mapping[str, object], parameters: Sequence[str] = ()) -> OptionWords:
    """Return the words for the keywords ``options`` of ``function``, in their order.

    Raise ``InvalidOption`` for an unknown keyword, naming the nearest one or one of ``parameters``, or a value of the
    wrong type.
    """
    from pcopy.api.keywords import KEYWORDS

    words: list[bytes] = []
    listed = None
    if unknown := [keyword for keyword in options if function not in KEYWORDS.get(keyword, {})]:
        from pcopy.api.unknown_keywords import text_about_unknown_keywords

        known = [*(name for name, kinds in KEYWORDS.items() if function in kinds), *parameters, "launcher", "progress"]
        raise InvalidOption(text_about_unknown_keywords(function, unknown, known))
    for keyword, value in options.items():
        kind = KEYWORDS[keyword][function]
        if value is None or (value is False and kind.startswith("flag")):
            continue
        if kind == "listing" and not isinstance(value, (str, bytes, os.PathLike)):
            listed = paths_of(value, f"{function}({keyword}", may_be_empty=True)
            continue
        option = b"--" + keyword.rstrip("_").replace("_", "-").encode()
        try:
            texts = _CONVERTERS[kind.split()[0]](value, kind)
        except _WrongValue as wrong:
            raise wrong_value(f"{function}({keyword}", value, wrong) from None
        words += [option if text is None else option + b"=" + text for text in texts]
    return OptionWords(words, listed)


def wrong_value(name: str, value: object, why: object) -> InvalidOption:
    """Return the exception about a ``value``; ``name`` has the function and the parameter, as in ``copy(source``."""
    return InvalidOption(f"{name}={shown_value(value)}): {why}")


def file_path_of(value: object, name: str, why: str) -> bytes:
    """Return the path of a file as bytes. Raise ``InvalidOption`` with the reason ``why`` if it is a directory."""
    path = path_of(value, name)
    if os.path.isdir(path):
        raise InvalidOption(f"{name}={shown_value(value)}): a directory; {why}", errno=EISDIR, filename=path)
    return path


def shown_value(value: object) -> str:
    """Return ``value`` as in the source text of Python; only its name, or its type, if that is long, or an address."""
    try:
        text = repr(value)
    except Exception:  # For example: an integer with more digits than Python converts to text.
        return f"{type(value).__name__}(...)"
    if callable(value) and " at 0x" in text:
        return getattr(value, "__qualname__", type(value).__name__)
    return text if len(text) <= _LONGEST_SHOWN_VALUE and " at 0x" not in text else f"{type(value).__name__}(...)"


def path_of(value: object, name: str) -> bytes:
    """Return a path as bytes. Raise ``InvalidOption`` if ``value`` is none; ``name`` is as in ``wrong_value``."""
    try:
        return _path(value, name)[0]
    except _WrongValue as wrong:
        raise wrong_value(name, value, wrong) from None


def paths_of(value: object, name: str, *, may_be_empty: bool = False) -> list[bytes]:
    """Return one or several paths as bytes. Raise ``InvalidOption`` if ``value`` is neither, or has none."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return [path_of(value, name)]
    try:
        paths = _paths(value, "")
        if paths or may_be_empty:
            return paths
        raise _WrongValue("no path")
    except _WrongValue as wrong:
        raise wrong_value(name, value, wrong) from None


def words_of(value: object, name: str) -> list[bytes]:
    """Return a sequence of words as bytes, which is empty for None. Raise ``InvalidOption`` if ``value`` is none."""
    if value is None:
        return []
    try:
        if isinstance(value, str):
            import shlex

            raise _WrongValue(f"not a sequence of words; write {shlex.split(value)!r}")
        if isinstance(value, bytes):
            raise _WrongValue("not a sequence of words")
        return [_word(word) for word in _items(value, "not a sequence of words")]
    except (_WrongValue, ValueError) as wrong:
        why = wrong if isinstance(wrong, _WrongValue) else "not a sequence of words"
        raise wrong_value(name, value, why) from None


def _word(value: object) -> bytes:
    """Return one word of a sequence as bytes."""
    if isinstance(value, (str, bytes)):
        return _encoded(value)
    shown = shown_value(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and not shown.endswith(")")
    raise _WrongValue(f"{shown} is not text" + (f"; write '{shown}'" if is_number else ""))


def _items(value: object, why: str, *, is_ordered: bool = True) -> list[object]:
    """Return the items of a sequence. Raise ``_WrongValue`` with the reason ``why`` if ``value`` is none.

    Neither mappings nor open files are sequences of words, and a set is none if the order of the words has a meaning.
    """
    if hasattr(value, "read"):
        raise _WrongValue(f"{why}: a file object; give the name of a file, or its lines")
    if isinstance(value, Mapping):
        raise _WrongValue(f"{why}: a mapping")
    if is_ordered and isinstance(value, Set):
        raise _WrongValue(f"{why}: a set has no order")
    if not isinstance(value, Iterable):
        raise _WrongValue(why)
    return list(value)


def optional_paths_of(value: object, name: str) -> list[bytes]:
    """Return no path for None, otherwise one or several paths as bytes."""
    return [] if value is None else paths_of(value, name)


def refusing_unknown_keywords(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorator for a function without options: an unknown keyword raises ``InvalidOption``, as it does elsewhere."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @wraps(function)
    def call(*arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        if unknown := [keyword for keyword in keywords if keyword not in names]:
            from pcopy.api.unknown_keywords import text_about_unknown_keywords

            raise InvalidOption(text_about_unknown_keywords(function.__name__, unknown, names))
        return function(*arguments, **keywords)

    return call


def _encoded(value: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> bytes:
    """Return text or a path as bytes. A NUL is refused: it ends a word of a command line, and a path in a list."""
    try:
        encoded = os.fsencode(value)
    except UnicodeEncodeError as error:
        raise _WrongValue(f"not text that the file system can encode ({error.reason})") from None
    if b"\0" in encoded:
        raise _WrongValue("not text without NUL characters")
    return encoded


def _flag(value: object, kind: str) -> list[bytes | None]:
    choices = kind.split()[2:]
    if value is True:
        return [None]
    if isinstance(value, str) and value in choices:
        return [value.encode()]
    raise _WrongValue(f"not True, False or one of {', '.join(choices)}" if choices else "not True or False")


def _choice(value: object, kind: str) -> list[bytes]:
    choices = kind.split()[1:]
    if isinstance(value, str) and value in choices:
        return [value.encode()]
    raise _WrongValue(f"not one of {', '.join(choices)}")


def _digits(value: Any) -> bytes:
    """Return a whole number as decimal digits."""
    try:
        return b"%d" % index(value)
    except ValueError:  # It has more digits than Python converts.
        raise _WrongValue("too large") from None
    except TypeError:  # For example: an array with several numbers.
        raise _WrongValue("not a whole number") from None


def _integer(value: object, kind: str) -> list[bytes]:
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return [_digits(value)]
    if isinstance(value, str) and value == "auto" and kind.endswith("auto"):
        return [b"auto"]
    raise _WrongValue("not a whole number or 'auto'" if kind.endswith("auto") else "not a whole number")


def _size(value: object, _: str) -> list[bytes]:
    if isinstance(value, str):
        return [_encoded(value)]
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return [_digits(value)]
    if isinstance(value, float):
        raise _WrongValue("not a whole number of bytes")
    raise _WrongValue("not a number of bytes, or text such as '1GiB'")


def _number_of_seconds(value: object) -> bytes | None:
    """Return a number or a ``timedelta`` as decimal digits; None if ``value`` is neither, or not finite."""
    seconds = value.total_seconds() if hasattr(value, "total_seconds") else value
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        return None
    if not abs(seconds) < inf:
        return None
    try:
        return f"{seconds:.6f}".rstrip("0").rstrip(".").encode()
    except OverflowError:  # An integer that is larger than the largest float.
        raise _WrongValue("too large") from None


def _seconds(value: object, _: str) -> list[bytes]:
    text = _number_of_seconds(value)
    if text is None:
        raise _WrongValue("not a number of seconds or a timedelta")
    return [text]


def _time(value: object, _: str) -> list[bytes]:
    if isinstance(value, str):
        return [_encoded(value)]
    if hasattr(value, "isoformat"):
        return [value.isoformat().encode()]
    text = _number_of_seconds(value)
    if text is None:
        raise _WrongValue("not an age (seconds, a timedelta, or text such as '7d') or a date")
    return [text + b"s"]


def _text(value: object, _: str) -> list[bytes]:
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return [_encoded(value) if isinstance(value, str) else _digits(value)]
    raise _WrongValue("not text (str)")


def _list(value: object, _: str) -> list[bytes]:
    why = "not a sequence of words (str)"
    words = [value] if isinstance(value, str) else _items(value, why, is_ordered=False)
    if not all(isinstance(word, str) for word in words):
        raise _WrongValue(why)
    return [_encoded(",".join(map(str, words)))]


def _texts(value: object, _: str) -> list[bytes]:
    if isinstance(value, (str, bytes)):
        return [_encoded(value)]
    return [_word(word) for word in _items(value, "not text (str or bytes) or a sequence of texts")]


def _path(value: object, _: str) -> list[bytes]:
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise _WrongValue("not a path (str, bytes or os.PathLike)")
    path = _encoded(value)
    if not path:
        raise _WrongValue("not a path, which has at least one character")
    return [path]


def _paths(value: object, kind: str) -> list[bytes]:
    if isinstance(value, (str, bytes, os.PathLike)):
        return _path(value, kind)
    paths = []
    for each in _items(value, "not a path (str, bytes or os.PathLike) or a sequence of paths", is_ordered=bool(kind)):
        try:
            paths += _path(each, kind)
        except _WrongValue as wrong:
            raise _WrongValue(f"{shown_value(each)} is {wrong}") from None
    return paths


_CONVERTERS: Mapping[str, Callable[[object, str], Iterable[bytes | None]]] = {
    "flag": _flag,
    "choice": _choice,
    "integer": _integer,
    "size": _size,
    "seconds": _seconds,
    "time": _time,
    "text": _text,
    "list": _list,
    "texts": _texts,
    "path": _path,
    "paths": _paths,
    "listing": _path,
}
"""The function for each kind; it returns the values of the option, None for an option without a value."""
