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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from operator import index

from pcopy.api.errors import InvalidOption
from pcopy.api.records import dataclass
from pcopy.api.typing_names import ParamSpec, TypeVar

StrOrBytesPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Paths = StrOrBytesPath | Sequence[StrOrBytesPath]
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_OTHER_WORDS = {
    "n": "ranks",
    **dict.fromkeys(("processes", "workers", "threads", "nproc", "jobs"), "ranks"),
    "timeout": "start(), and wait(timeout) of the job",
    "ignore": "exclude",
    "overwrite": "existing",
    "follow_symlinks": "dereference",
}
"""What users may mean by words that are no keywords."""


class _WrongValue(Exception):
    """A value has the wrong type; the text says which one is expected."""


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
    for keyword, value in options.items():
        kind, functions = KEYWORDS.get(keyword, {}).get(function), KEYWORDS.get(keyword)
        if kind is None:
            advice = _advice(function, keyword, functions or (), parameters)
            raise InvalidOption(f"{function}() has no option {keyword!r}{advice}")
        if value is None or (value is False and kind.startswith("flag")):
            continue
        if kind == "listing" and not isinstance(value, (str, bytes, os.PathLike)):
            listed = paths_of(value, keyword, may_be_empty=True)
            continue
        option = b"--" + keyword.rstrip("_").replace("_", "-").encode()
        try:
            texts = _CONVERTERS[kind.split()[0]](value, kind)
        except _WrongValue as wrong:
            raise InvalidOption(f"{function}({keyword}={value!r}): not {wrong}") from None
        words += [option if text is None else option + b"=" + text for text in texts]
    return OptionWords(words, listed)


def path_of(value: object, name: str) -> bytes:
    """Return a path as bytes. Raise ``InvalidOption`` with the parameter's ``name`` if ``value`` is no path."""
    try:
        return _path(value, name)[0]
    except _WrongValue as wrong:
        raise InvalidOption(f"{name}={value!r}: not {wrong}") from None


def paths_of(value: object, name: str, *, may_be_empty: bool = False) -> list[bytes]:
    """Return one or several paths as bytes. Raise ``InvalidOption`` if ``value`` is neither."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return [path_of(value, name)]
    if not isinstance(value, Iterable):
        raise InvalidOption(f"{name}={value!r}: neither a path (str, bytes or os.PathLike) nor a sequence of paths")
    paths = [path_of(path, name) for path in value]
    if not (paths or may_be_empty):
        raise InvalidOption(f"{name}={value!r}: no path")
    return paths


def optional_paths_of(value: object, name: str) -> list[bytes]:
    """Return no path for None, otherwise one or several paths as bytes."""
    return [] if value is None else paths_of(value, name)


def _advice(function: str, keyword: str, functions: Iterable[str], more: Sequence[str]) -> str:
    """Return the end of the message about an unknown keyword. ``functions`` are those that have it, and ``more`` the
    parameters of ``function``.
    """
    from difflib import get_close_matches

    from pcopy.api.keywords import KEYWORDS, LEFT_OUT

    reason = LEFT_OUT.get(f"{function} {keyword}", LEFT_OUT.get(keyword))
    if reason:
        return f": {reason}"
    known = [name for name, kinds in KEYWORDS.items() if function in kinds]
    other = _OTHER_WORDS.get(keyword, "")
    if other in known or "(" in other:
        return f"; use {other}"
    nearest = get_close_matches(keyword, [*known, *more, "launcher", "progress"], 1)
    return f"; the nearest is {nearest[0]!r}" if nearest else _text_about_functions([*functions])


def _text_about_functions(functions: Sequence[str]) -> str:
    """Return which functions have a keyword; empty if none has it."""
    have = "has" if len(functions) == 1 else "have"
    return f"; {', '.join(f'{name}()' for name in functions)} {have} it" if functions else ""


def refusing_unknown_keywords(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorator for a function without options: an unknown keyword raises ``InvalidOption``, as it does elsewhere."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @wraps(function)
    def call(*arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        if unknown := next((keyword for keyword in keywords if keyword not in names), None):
            from difflib import get_close_matches

            nearest = get_close_matches(unknown, names, 1)
            advice = f"; the nearest is {nearest[0]!r}" if nearest else ""
            raise InvalidOption(f"{function.__name__}() has no option {unknown!r}{advice}")
        return function(*arguments, **keywords)

    return call


def _encoded(value: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> bytes:
    """Return text or a path as bytes. A NUL is refused: it ends a word of a command line, and a path in a list."""
    try:
        encoded = os.fsencode(value)
    except UnicodeEncodeError as error:
        raise _WrongValue(f"text that the file system can encode ({error.reason})") from None
    if b"\0" in encoded:
        raise _WrongValue("text without NUL characters")
    return encoded


def _flag(value: object, kind: str) -> list[bytes | None]:
    choices = kind.split()[2:]
    if value is True:
        return [None]
    if choices and value in choices:
        return [str(value).encode()]
    raise _WrongValue(f"True, False or one of {', '.join(choices)}" if choices else "True or False")


def _choice(value: object, kind: str) -> list[bytes]:
    choices = kind.split()[1:]
    if isinstance(value, str) and value in choices:
        return [value.encode()]
    raise _WrongValue(f"one of {', '.join(choices)}")


def _integer(value: object, kind: str) -> list[bytes]:
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return [b"%d" % index(value)]
    if value == "auto" and kind.endswith("auto"):
        return [b"auto"]
    raise _WrongValue("a whole number or 'auto'" if kind.endswith("auto") else "a whole number")


def _size(value: object, _: str) -> list[bytes]:
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return [_encoded(str(value))]
    raise _WrongValue("a number of bytes, or text such as '1GiB'")


def _number_of_seconds(value: object) -> bytes | None:
    """Return a number or a ``timedelta`` as decimal digits; None if ``value`` is neither."""
    seconds = value.total_seconds() if hasattr(value, "total_seconds") else value
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        return None
    return f"{seconds:.6f}".rstrip("0").rstrip(".").encode()


def _seconds(value: object, _: str) -> list[bytes]:
    text = _number_of_seconds(value)
    if text is None:
        raise _WrongValue("a number of seconds or a timedelta")
    return [text]


def _time(value: object, _: str) -> list[bytes]:
    if isinstance(value, str):
        return [_encoded(value)]
    if hasattr(value, "isoformat"):
        return [value.isoformat().encode()]
    text = _number_of_seconds(value)
    if text is None:
        raise _WrongValue("an age (seconds, a timedelta, or text such as '7d') or a date")
    return [text + b"s"]


def _text(value: object, _: str) -> list[bytes]:
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return [_encoded(str(value))]
    raise _WrongValue("text (str)")


def _list(value: object, _: str) -> list[bytes]:
    words = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [None]
    if not all(isinstance(word, str) for word in words):
        raise _WrongValue("a sequence of words (str)")
    return [_encoded(",".join(map(str, words)))]


def _texts(value: object, _: str) -> list[bytes]:
    words = [value] if isinstance(value, (str, bytes)) else list(value) if isinstance(value, Iterable) else [None]
    if not all(isinstance(word, (str, bytes)) for word in words):
        raise _WrongValue("text (str or bytes) or a sequence of texts")
    return [_encoded(word) for word in words]  # type: ignore[arg-type]


def _path(value: object, _: str) -> list[bytes]:
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise _WrongValue("a path (str, bytes or os.PathLike)")
    path = _encoded(value)
    if not path:
        raise _WrongValue("a path, which has at least one character")
    return [path]


def _paths(value: object, kind: str) -> list[bytes]:
    values = [value] if isinstance(value, (str, bytes, os.PathLike)) else value
    if not isinstance(values, Iterable):
        raise _WrongValue("a path or a sequence of paths")
    return [path for each in values for path in _path(each, kind)]


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
