"""Messages of the programs in words of the interface: options as keywords, commands as functions.

The programs write advice for the command line (``--max-delete N``, ``pcopy --resume JOB``, ``see pcopy --help``).
Keywords come from ``keywords.py``, which is generated from the table of options. Paths of the caller are not changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import partial

from pcopy.api.escapes import printable_path
from pcopy.api.keywords import KEYWORDS

LETTERS = {
    "-n": "ranks",
    "-0": "null",
    "-u": "update",
    "-L": "dereference",
    "-x": "one_file_system",
    "-T": "no_target_directory",
    "-f": "force",
    "-C": "directory",
    "-z": "gzip",
}
"""The keywords of options with a single letter that messages may name."""
_LETTERS_OF_TAR = {"-c": "archive()", "-x": "extract()", "-f": "archive", "-T": "from_"}
LETTERS_OF_FUNCTIONS = {
    "archive": _LETTERS_OF_TAR,
    "extract": {**_LETTERS_OF_TAR, "-C": "destination"},
}
"""Those with another meaning in a function."""

_OPERANDS = {
    "several SRC": "several sources",
    "SRC": "source",
    "DST": "destination",
    "SIGNATURE": "signature",
    "MANIFEST": "manifest",
    "MODE": "mode",
    "ARCHIVE": "archive",
    "MEMBER": "members",
    "PATH": "paths",
}
"""The parameters that messages call by these words."""
_PATH_PARAMETERS = {"verify": "path", "sign": "path", "archive": "source", "extract": "members"}
"""The parameter for PATH, if it has another name than usual."""

_ADVISED = re.compile(rf"--?[A-Za-z0-9]|/dev/fd/|\b(?:{'|'.join(_OPERANDS)})\b")
"""What is changed outside of paths."""
_VERB = r"(?P<verb>\b(?:give|use|write|add) )?"
"""Words before an option that is to be given."""
_EFFECTS = ("replaces", "lets", "removes", "deletes")
"""Words after a flag that has an effect."""
_VALUE = r"(?:(?P<sign>[= ])(?P<value>'[^']*'|[A-Z]+(?![\w-])|[\w-]+))?"
"""What may be the value of an option."""
_WORD = r"(?:'[^']*'|[^\s;,()]+)"
"""A word of a command that is quoted for a shell."""


def in_words_of_python(message: str, function: str, paths: Sequence[bytes] = ()) -> str:
    """Return ``message`` for callers of ``function``. ``paths`` are texts of the caller, which are not changed where
    they occur, nor is what follows them without a space.
    """
    texts = {printable_path(each) for path in paths for each in _with_directories(path)}
    kept = sorted(filter(_ADVISED.search, texts), key=len, reverse=True)
    if not kept:
        return _translated(message, function)
    parts = re.split(rf"((?<![\w/.-])(?:{'|'.join(map(re.escape, kept))})[^\s;,:()]*)", message)
    return "".join(part if number % 2 else _translated(part, function) for number, part in enumerate(parts))


def texts_of_caller(words: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the operands and the values of options in the ``words`` of a command line."""
    are_operands = False
    for word in words:
        if are_operands or not word.startswith(b"--"):
            yield word
        elif word == b"--":
            are_operands = True
        elif value := word.partition(b"=")[2]:
            yield value


def _with_directories(path: bytes) -> Iterator[bytes]:
    """Yield a path, and the directories in it."""
    while path.strip(b"/"):
        yield path
        path = path.rstrip(b"/").rpartition(b"/")[0]


def _translated(text: str, function: str) -> str:
    """Return ``text``, which has no path of the caller that could be taken for advice, in words of the interface."""
    option = partial(_option, function)
    text = re.sub(r"see p\w+ --help", f"see help(pcopy.{function})", text)
    text = re.sub(r"(?:pcopy )?--jobs\b", "pcopy.jobs()", text)
    text = re.sub(rf"pcopy --(resume|discard)(?: ({_WORD}))?", _job_function, text)
    text = re.sub(r"(?<![\w-])--(resume|discard)(?: (?:DIR|JOB)\b|(?= or| it))", r"pcopy.\1", text)
    text = re.sub(r"\. For .* itself: p(?:copy|sync) .*", "; add the slash, or use pcopy.sync()", text)
    text = re.sub(r"with ptar -t --signature", "with the program ptar", text)
    text = re.sub(r"; -vv shows .* --json prints the summary", "", text)
    text = re.sub(r"name the signature first, and then what is compared with it: (?=pverify )", "use ", text)
    text = re.sub(r"pverify --create\b", "pcopy.sign()", text)
    text = re.sub(rf"(?<=: |y |e )pverify (--manifest )?({_WORD}) ({_WORD})", _verify_function, text)
    text = re.sub(r"(?:--from )?/dev/fd/\d+", "from_", text)
    text = re.sub(rf"{_VERB}(?<![\w-])(?P<names>(?:--?[A-Za-z0-9][\w-]*/)*--[a-z0-9][\w-]*){_VALUE}", option, text)
    text = re.sub(rf"{_VERB}(?<![\w-])(?P<names>-[A-Za-z0-9])(?![\w-])", option, text)
    return re.sub(rf"\b(?:{'|'.join(_OPERANDS)})\b", partial(_parameter, function), text)


def _choices(kind: str) -> list[str]:
    """Return the words that an option of this ``kind`` takes."""
    return kind.partition("choice ")[2].split() or ["auto"] * kind.endswith(" auto")


def _job_function(found: re.Match[str]) -> str:
    """Return the function for ``pcopy --resume JOB`` and ``pcopy --discard JOB``."""
    argument = found[2] and (found[2] if found[2] == "JOB" else repr("".join(shlex.split(found[2]))))
    return f"pcopy.{found[1]}({argument or ''})"


def _verify_function(found: re.Match[str]) -> str:
    """Return the function for ``pverify SIGNATURE PATH`` and ``pverify --manifest MANIFEST PATH``."""
    (signature,), (path,) = shlex.split(found[2]), shlex.split(found[3])
    return f"pcopy.verify({path!r}, {'manifest=' if found[1] else ''}{signature!r})"


def _option(function: str, found: re.Match[str]) -> str:
    """Return the keyword for an option, with its value, or with True if it is a flag that is to be given."""
    values = found.groupdict()
    names, verb, sign, value = (values.get(name) or "" for name in ("names", "verb", "sign", "value"))
    keyword, kind = _keyword(names.split("/"), function)
    if not keyword:
        return found[0]
    if value in _choices(kind):
        return f"{verb}{keyword}={value!r}"
    if sign == "=" or value[:1] == "'" or value.isdigit():
        return f"{verb}{keyword}={value}"
    if value.isupper() and not kind.startswith("flag"):  # It stands for a value.
        return f"{verb}{keyword}"
    is_given = kind.startswith("flag") and (verb or value in _EFFECTS)
    return f"{verb}{keyword}{'=True' if is_given else ''}{sign}{value}"


def _keyword(names: Sequence[str], function: str) -> tuple[str, str]:
    """Return the keyword for an option with these names, and the kind of its value in ``function``, or in another one.
    It is empty for a letter that means something else, as in ``mkdir -p``.
    """
    letters = {**LETTERS, **LETTERS_OF_FUNCTIONS.get(function, {})}
    words = [letters.get(name, name[2:].replace("-", "_")) for name in names]
    for word in words:
        for keyword in (word, f"{word}_"):
            if keyword in KEYWORDS:
                kinds = KEYWORDS[keyword]
                return keyword, kinds.get(function) or next(iter(kinds.values()))
    return words[-1], ""


def _parameter(function: str, found: re.Match[str]) -> str:
    """Return the parameter for a word such as SRC."""
    return _PATH_PARAMETERS.get(function, "paths") if found[0] == "PATH" else _OPERANDS[found[0]]
