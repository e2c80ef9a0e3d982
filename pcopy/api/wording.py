"""Texts of the programs in the words of Python: ``help_in_python`` and ``message_in_python``.

Help and messages name options and operands as on the command line (``--from FILE``, ``-T``, ``DST``). A caller of a
function knows them as keywords and parameters (``from_=FILE``, ``no_target_directory=True``, ``destination``). Which
these are is in ``keywords.py``, which is generated from the table of options.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from keyword import iskeyword

from pcopy.api.keywords import KEYWORDS, OFFERED, PARAMETERS, PROGRAMS, SPELLINGS
from pcopy.text import printable_path

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
    "pverify": {**_JOB_FUNCTIONS, "--create": "pcopy.sign"},
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
    "PATH": ("path", "paths", "source", "members"),
    "ARCHIVE": ("archive",),
    "MEMBER": ("members",),
    "MODE": ("mode",),
    "SIGNATURE": ("signature",),
    "MANIFEST": ("manifest",),
}
"""For each placeholder of the usage, the names of the parameter. The first one that a function has is meant."""
_PROGRAMS = "pcopy|psync|pverify|prm|pchmod|ptar|pstripe|pwalk"
_OTHER_PROGRAMS = "bsdtar|chmod|chown|cp|dcp|find|gzip|lfs|mkdir|mpiexec|mpirun|rm|rsync|setfacl|srun|tar|xargs|zstd"

_OPTION = r"--[a-z][a-z0-9-]*|-[A-Za-z0](?![\w-])"
_WORD = re.compile(
    rf"(?P<other>\b(?:{_OTHER_PROGRAMS})(?:'s)? (?:{_OPTION}))"
    rf"|(?P<verb>\b(?:give|use|write|add) )?(?P<program>(?<![\w./-])(?:{_PROGRAMS}) )?"
    rf"(?<![\w./=-])(?P<options>(?:{_OPTION})(?:/(?:{_OPTION}))*)"
    r"(?P<value>=[^\s,;)]+| '[^']*'| [\w<][\w.:,|<>\[\]-]*)?"
    rf"(?P<more>(?(program)(?: (?:{_OPTION}))*))"
)
"""An option, or several spellings of one, with the word after it, which may be its value; ``verb``: the option is to be
given; ``more``: options of the same command.
"""
_JOB_COMMAND = re.compile(r"pcopy --(resume|discard) ('[^']*'|[A-Z]+\b|[^\s;,()]*[\d/][^\s;,()]*)")
"""A command for a job: a placeholder, the name of a job, which has digits, or its directory."""
_PLACEHOLDER = re.compile(r"[A-Z][A-Z.|:\[\]]*[a-z.]*")
_ADVISED = re.compile(rf"--?[A-Za-z0-9]|/dev/fd/|\b(?:{'|'.join(_OPERANDS)}|{_PROGRAMS})\b")
"""What is changed outside of paths."""
_EFFECTS = ("replaces", "lets", "removes", "deletes")
"""Words after a flag that has an effect if it is given."""
_QUOTED = r"((?:'[^']*'|[^\s;,()]+))"
"""A word of a command that is quoted for a shell."""


def help_in_python(text: str, function: str) -> str:
    """Return a part of the help with the keywords and parameters of ``function`` instead of options and operands.

    Options of other programs and those that no function has stay as they are. A flag is shown with its value True.
    """
    return _translated(text, function, is_message=False)


def message_in_python(message: str, function: str, paths: Sequence[bytes] = ()) -> str:
    """Return a message for callers of ``function``, as ``help_in_python`` does, with functions instead of commands.

    ``paths`` are texts of the caller, which are not changed where they occur, nor is what follows them without a space.
    A flag is shown with its value True only where the message says that it is to be given.
    """
    texts = {printable_path(each) for path in paths for each in _with_directories(path)}
    kept = "|".join(map(re.escape, sorted(filter(_ADVISED.search, texts), key=len, reverse=True)))
    parts = re.split(rf"((?<![\w/.-])(?:{kept})[^\s;,:()]*)", message) if kept else [message]
    return "".join(part if number % 2 else _message_part(part, function) for number, part in enumerate(parts))


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


def _message_part(text: str, function: str) -> str:
    """Return a part of a message in which no path of the caller could be taken for advice."""
    for pattern, replacement in _ADVICE.items():
        text = re.sub(pattern, replacement, text)
    text = _translated(text, function, is_message=True)
    return _PROGRAM.sub(partial(_program_in_python, function), text)


def _sign_call(found: re.Match[str]) -> str:
    """Return the call for ``pverify --create SIGNATURE PATH``."""
    return f"pcopy.sign({''.join(shlex.split(found[1]))!r}, signature)"


def _verify_call(found: re.Match[str]) -> str:
    """Return the call for ``pverify SIGNATURE PATH`` and ``pverify --manifest MANIFEST PATH``."""
    (signature,), (path,) = shlex.split(found[2]), shlex.split(found[3])
    return f"pcopy.verify({path!r}, {'manifest=' if found[1] else ''}{signature!r})"


def _job_call(found: re.Match[str]) -> str:
    """Return the call for ``pcopy --resume JOB`` or ``pcopy --discard JOB``."""
    job = found[2] if _is_placeholder(found[2]) else repr("".join(shlex.split(found[2])))
    return f"pcopy.{found[1]}({job})"


_GLOB = "patterns are not expanded; use glob.glob()"
_ADVICE: Mapping[str, str | Callable[[re.Match[str]], str]] = {
    r"\. For .* itself: p(?:copy|sync) .*": "; add the slash, or use pcopy.sync()",
    r"with ptar -t --signature": "with the program ptar",
    r"; -vv shows .* --json prints the summary": "",
    r"name the signature first, and then what is compared with it: (?=pverify )": "use ",
    rf"(?<=: |y |e )pverify --create SIGNATURE {_QUOTED}": _sign_call,
    rf"(?<=: |y |e )pverify (--manifest )?(?!-){_QUOTED} {_QUOTED}": _verify_call,
    r"(?:--from )?/dev/fd/\d+": "from_",
    r"no name matches this pattern, so the shell has left it as it is": _GLOB,
    r"a shell does not expand patterns in quotes": _GLOB,
    r"a shell does not expand ~ in quotes(?:: write the path in full)?": "~ is not expanded; use os.path.expanduser()",
    r"a shell does not expand \$ in single quotes(?:: write the path in full)?": (
        "$ is not expanded; use os.path.expandvars()"
    ),
    r"(?<=create )that first \(mkdir -p\)": "it first with os.makedirs()",
    r" is not in (.*), but starts in the working directory: write (.*), or a saved listing .* start$": (
        r" is not in \1; write '\2'"
    ),
    r"(?<=pwalk runs no commands; )write -print0 \| xargs -0": "use the entries in a loop",
    r"(?<=pwalk changes nothing; )write --output LIST.jsonl, and prm --from LIST.jsonl": (
        "give the paths to pcopy.remove(from_=[...])"
    ),
    r"(?<=: )write --json-lines, or --output FILE.csv": "use the entries in a loop",
    r"(?<=: )write --output FILE(?![\w.])": "use the entries in a loop",
    r"filter the lines with grep": "test the paths of the entries",
    r", or all of --output, .*--print0": "",
}
"""Advice in messages that is different in Python, and the list of paths, which has no name there."""
_FUNCTIONS_OF_PROGRAMS = {
    "psync": ("sync",),
    "pverify": ("verify", "compare", "sign"),
    "prm": ("remove",),
    "pchmod": ("change_modes",),
    "ptar": ("archive", "extract"),
    "pstripe": ("restripe",),
    "pwalk": ("walk",),
}
"""The functions for which a program stands in messages: that of the caller, or else the first one."""
_PROGRAM = re.compile(rf"(?<![\w./'-])(?<!program )(?<!man )({'|'.join(_FUNCTIONS_OF_PROGRAMS)})(?![\w./'-]| -)")


def _program_in_python(function: str, match: re.Match[str]) -> str:
    """Return the function that stands for the name of a program."""
    functions = _FUNCTIONS_OF_PROGRAMS[match[1]]
    return f"{function if function in functions else functions[0]}()"


def _translated(text: str, function: str, *, is_message: bool) -> str:
    """Return ``text`` with keywords and functions instead of options, and with parameters instead of operands."""
    text = _JOB_COMMAND.sub(_job_call, text)
    text = _WORD.sub(partial(_option_in_python, function, is_message=is_message), text)
    for placeholder, names in _OPERANDS.items():
        own = [name for name in names if name in PARAMETERS.get(function, ())]
        text = _with_parameter(text, placeholder, (own or names)[0])
    return text


def _with_parameter(text: str, placeholder: str, name: str) -> str:
    """Return ``text`` with the parameter ``name`` instead of an operand. A sequence of paths keeps the noun."""
    one, all_ = (name[:-1], name) if name.endswith("s") else (name, f"the paths in {name}")
    text = re.sub(rf"(?<![\w=./-])several {placeholder}(?![\w/-])", f"several {one}s", text)
    text = re.sub(rf"(?<![\w=./-]){placeholder}(?:s|\.\.\.)(?![\w/-])", all_, text)
    text = re.sub(rf"(?<=leave out ){placeholder}(?![\w/-])", name, text)
    return re.sub(rf"(?<![\w=./-]){placeholder}(?![\w/-])", one, text)


def _option_in_python(function: str, match: re.Match[str], *, is_message: bool) -> str:
    """Return what stands for one option, and the word after it."""
    if match["other"]:
        return match[0]
    verb, value, named = match["verb"] or "", match["value"] or "", (match["program"] or "").strip()
    options, program = match["options"].split("/"), PROGRAMS.get(function, "pcopy")
    if options[0] in ("--help", "-h") and not match["more"]:
        return f"{verb}help(pcopy.{function}){value}"
    if not named:
        for option in options:
            if name := _keyword_or_parameter(option, function, program):
                shown = _with_value(name, function, value, is_message=is_message)
                is_given = not is_message or bool(verb) or value[1:] in _EFFECTS
                return verb + (shown or _flag(name, function, is_given=is_given, is_message=is_message) + value)
    other = _FUNCTIONS.get(named or program, _JOB_FUNCTIONS).get(options[0], "")
    if match["more"] or not (other or is_message):
        return match[0]
    if not other:  # An option that no function has.
        name = _keyword(options[-1]) if options[-1].startswith("--") else match["options"]
        return f"{verb}{match['program'] or ''}{name}{value}"
    if named and other.startswith("pcopy.") and not other.endswith(")"):
        other += "()"
    return verb + other + ("" if _is_placeholder(value[1:]) else value)


def _keyword_or_parameter(option: str, function: str, program: str) -> str:
    """Return the keyword or the parameter for an option of the program, or of another one; empty if there is none."""
    if name := OPTIONS_OF_PARAMETERS.get(function, {}).get(option):
        return name
    name = SPELLINGS.get(program, {}).get(option) or _keyword(option)
    if function in KEYWORDS.get(name, {}) or name in PARAMETERS.get(function, ()):
        return name
    if option in _FUNCTIONS.get(program, _JOB_FUNCTIONS):
        return ""
    name = next((names[option] for names in SPELLINGS.values() if option in names), name)
    is_parameter = any(name in PARAMETERS[each] for each in PROGRAMS if PROGRAMS[each] == program)
    return name if name in KEYWORDS or is_parameter else ""


def _keyword(option: str) -> str:
    """Return the keyword for the first long spelling of an option."""
    name = option.lstrip("-").replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def _kind(name: str, function: str) -> str:
    """Return the kind of a keyword in ``function``, or in another one; empty for a parameter."""
    kinds = KEYWORDS.get(name, {})
    if function in kinds or name not in PARAMETERS.get(function, ()):
        return kinds.get(function) or next(iter(kinds.values()), "")
    return ""


def _flag(name: str, function: str, *, is_given: bool, is_message: bool) -> str:
    """Return a keyword without a value in the text; with True if it is a flag that is given."""
    kind = _kind(name, function)
    is_flag = kind.startswith("flag") if is_message else kind == "flag"
    return f"{name}=True" if is_flag and is_given else name


def _with_value(name: str, function: str, value: str, *, is_message: bool) -> str:
    """Return a keyword or parameter with the word in ``value``, which begins with an equals sign or a space; empty if
    that is not the value of the option.
    """
    kind, word = _kind(name, function), value[1:].rstrip(".,:")
    if not word:
        return ""
    rest = value[1:][len(word) :]
    if _is_placeholder(word) and (not kind or (is_message and value[0] == " " and not kind.startswith("flag"))):
        return name + rest
    words = kind.split()
    choices = words[words.index("choice") + 1 :] if "choice" in words else OFFERED.get(name, ())
    is_known = _is_placeholder(word) or word == "none" or all(each in choices for each in word.split(","))
    if value[0] != "=" and not (kind and words[0] != "flag" and (is_known or word[0] == "'")):
        return ""
    is_bare = not kind or kind == "flag" or _is_placeholder(word) or word.isdigit() or word[0] == "'"
    shown = word if is_bare else f"'{word}'" if is_message else f'"{word}"'
    return f"{name}={shown}{rest}"


def _is_placeholder(word: str) -> bool:
    return bool(_PLACEHOLDER.fullmatch(word.rstrip(".,:;")))
