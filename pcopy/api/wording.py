"""Texts of the programs in the words of Python: ``in_python``.

Messages and help name options and operands as on the command line (``--from FILE``, ``-T``, ``DST``). Whoever calls a
function knows them as keywords and parameters (``from_=FILE``, ``no_target_directory=True``, ``destination``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

OPTIONS_OF_PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "archive": {"--file": "archive", "-f": "archive"},
    "extract": {"--file": "archive", "-f": "archive", "--directory": "destination", "-C": "destination"},
    "sign": {"--create": "signature"},
}
"""Parameters of functions that are options of the program with another name."""
_JOB_FUNCTIONS = {
    "--resume": "pcopy.resume",
    "--jobs": "pcopy.jobs()",
    "--discard": "pcopy.discard",
    "--control": "RunningJob.control",
}
_FUNCTIONS: Mapping[str, Mapping[str, str]] = {
    "pcopy": _JOB_FUNCTIONS,
    "psync": _JOB_FUNCTIONS,
    "pverify": {"--create": "pcopy.sign"},
    "ptar": {
        "-c": "pcopy.archive",
        "--create": "pcopy.archive",
        "-x": "pcopy.extract",
        "--extract": "pcopy.extract",
        "-t": "ptar -t",
        "--list": "ptar -t",
    },
}
"""For each program, options that are functions of their own, or that no function has."""
_OPERANDS: Mapping[str, Sequence[str]] = {
    "SRC": ("source",),
    "DST": ("destination",),
    "PATH": ("path", "paths", "source"),
    "ARCHIVE": ("archive",),
    "MEMBER": ("members",),
    "SIGNATURE": ("signature",),
    "MANIFEST": ("manifest",),
}
"""For each placeholder of the usage, the names of the parameter; a function has at most one of them."""
_PROGRAMS = "pcopy|psync|pverify|prm|pchmod|ptar|pstripe|pwalk"
_OTHER_PROGRAMS = "bsdtar|chmod|chown|cp|dcp|find|gzip|lfs|mpiexec|mpirun|rm|rsync|setfacl|srun|tar|xargs|zstd"

_OPTION = r"--[a-z][a-z0-9-]*|-[A-Za-z0](?![\w-])"
_WORD = re.compile(
    rf"(?P<other>\b(?:{_OTHER_PROGRAMS})(?:'s)? (?:{_OPTION}))"
    rf"|(?P<program>(?<![\w./-])(?:{_PROGRAMS}) )?"
    rf"(?<![\w./=-])(?P<option>{_OPTION})"
    r"(?P<value>=[^\s,;)]+| [\w<][\w.:,|<>\[\]-]*)?"
    rf"(?P<more>(?(program)(?: (?:{_OPTION}))*))"
)
"""An option in a text, with the word after it, which may be its value; ``more``: options of the same command."""
_PLACEHOLDER = re.compile(r"[A-Z][A-Z.|:\[\]]*[a-z.]*")


def in_python(text: str, function: str) -> str:
    """Return ``text``, a message or the help of a program, with the keywords and parameters of ``function`` instead of
    options and operands. Options of other programs and those that no function has stay as they are.
    """
    from pcopy.api.keywords import PARAMETERS, PROGRAMS

    program, parameters = PROGRAMS[function], PARAMETERS[function]
    text = _WORD.sub(lambda match: _in_python(match, function, program), text)
    for placeholder, names in _OPERANDS.items():
        for name in {*names}.intersection(parameters):
            text = _with_parameter(text, placeholder, name)
    return text


def _with_parameter(text: str, placeholder: str, name: str) -> str:
    """Return ``text`` with the parameter ``name`` instead of an operand. A sequence of paths keeps the noun."""
    one, all_ = (name[:-1], name) if name.endswith("s") else (name, f"the paths in {name}")
    text = re.sub(rf"(?<![\w=./-]){placeholder}(?:s|\.\.\.)(?![\w/-])", all_, text)
    return re.sub(rf"(?<![\w=./-]){placeholder}(?![\w/-])", one, text)


def _in_python(match: re.Match[str], function: str, program: str) -> str:
    """Return what stands for one option, and the word after it."""
    if match["other"]:
        return match[0]
    option, value, named = match["option"], match["value"] or "", (match["program"] or "").strip()
    if option in ("--help", "-h") and not match["more"]:
        return f"help(pcopy.{function}){value}"
    if not named:
        own = _keyword_or_parameter(option, value, function, program)
        if own:
            return own
    other = _FUNCTIONS.get(named or program, {}).get(option, "")
    if not other or match["more"]:
        return match[0]
    if value and other in ("pcopy.resume", "pcopy.discard") and _is_job(value[1:]):
        job = value[1:] if _is_placeholder(value[1:]) else repr(value[1:])
        return f"{other}({job})"
    return other + value


def _keyword_or_parameter(option: str, value: str, function: str, program: str) -> str:
    """Return the keyword or the parameter for an option of the program, with its value; empty if there is none."""
    from pcopy.api.keywords import KEYWORDS, PARAMETERS, PROGRAMS, SPELLINGS

    name = OPTIONS_OF_PARAMETERS.get(function, {}).get(option)
    if name:
        return name + _without_placeholder(value)
    name = SPELLINGS.get(program, {}).get(option) or _keyword(option)
    kinds = KEYWORDS.get(name, {})
    if function in kinds:
        return _keyword_with_value(name, kinds[function], value)
    if name in PARAMETERS[function]:
        return name + _without_placeholder(value)
    if option in _FUNCTIONS.get(program, {}):
        return ""
    others = [each for each in PROGRAMS if PROGRAMS[each] == program]
    for other in others:
        if other in kinds:
            return _keyword_with_value(name, kinds[other], value)
    is_parameter = any(name in PARAMETERS[other] for other in others)
    return name + _without_placeholder(value) if is_parameter else ""


def _keyword(option: str) -> str:
    """Return the keyword for the first long spelling of an option."""
    from keyword import iskeyword

    name = option.lstrip("-").replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def _keyword_with_value(name: str, kind: str, value: str) -> str:
    """Return a keyword with the word in ``value``, which begins with an equals sign or a space, if it is the value."""
    from pcopy.api.keywords import OFFERED

    words = kind.split()
    choices = words[words.index("choice") + 1 :] if "choice" in words else OFFERED.get(name, ())
    word = value[1:].rstrip(".,:")
    rest = value[1:][len(word) :]
    if kind == "flag":
        return f"{name}=True{value}"
    is_known = _is_placeholder(word) or word == "none" or all(each in choices for each in word.split(","))
    if not word or not (value[0] == "=" or (words[0] != "flag" and is_known)):
        return name + value
    is_bare = _is_placeholder(word) or (words[0] in ("integer", "seconds") and word.isdigit())
    shown = word if is_bare else f'"{word}"'
    return f"{name}={shown}{rest}"


def _without_placeholder(value: str) -> str:
    """Return the punctuation after a placeholder; another word unchanged."""
    return value[len(value.rstrip(".,:")) :] if _is_placeholder(value[1:]) else value


def _is_placeholder(word: str) -> bool:
    return bool(_PLACEHOLDER.fullmatch(word.rstrip(".,:;")))


def _is_job(word: str) -> bool:
    """True for a placeholder, or the name of a job, which has digits."""
    return _is_placeholder(word) or any(map(str.isdigit, word))
