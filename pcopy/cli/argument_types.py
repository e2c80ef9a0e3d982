"""What the command lines of pcopy and pverify share: the parser, and what their options take.

argparse is imported only when there is something to parse, so that ``--version`` is quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pcopy.errors import Refused
from pcopy.text import harmless, shown

if TYPE_CHECKING:
    from argparse import Action, ArgumentParser

MINIMUM_BLOCK = 64 << 10
_UNITS_OF_TIME = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
HELP_ALONE = "-h prints the help only without paths (sizes are always in units); leave it out, or write --help"
PROGRESS = ("auto", "bar", "plain", "json", "none")


def make_parser(program: str, usage: str, description: str, examples: str) -> ArgumentParser:
    """A parser that raises ``Refused`` with one line for whatever is wrong, and guesses nothing."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            message = message.removeprefix("argument ").replace("ignored explicit argument", "takes no value:")
            raise Refused(f"{harmless(message)}; see {program} --help")

    return Parser(
        prog=program,
        usage=usage,
        description=description,
        epilog=examples,
        allow_abbrev=False,
        add_help=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=27, width=78),
    )


def before_operands(words: Sequence[str]) -> Sequence[str]:
    """What comes before ``--``: after that nothing is an option."""
    return words[: words.index("--")] if "--" in words else words


def asks_for_help(words: Sequence[str], flags: str) -> bool:
    """Is help asked for? ``flags`` are the letters that may stand together.

    Beside a path ``h`` may be rsync's (``-avh``). Then it is no help, which has status 0 though nothing was done.
    """
    if "--help" in words:
        return True
    letters = [word for word in words if word[:1] == "-" and not word[1:].strip(flags)]
    return all(word[:1] == "-" for word in words) and any("h" in word for word in letters)


def names_of(parser: ArgumentParser) -> list[str]:
    """All options, as they are written."""
    return [name for action in parser._actions for name in action.option_strings]


def add_progress(add: Callable[..., object]) -> None:
    add("--progress", choices=PROGRESS, metavar="HOW", nargs="?", const=PROGRESS[0], default=PROGRESS[0],
        help="auto (default: a bar on a terminal, lines elsewhere), bar, plain, json, none")  # fmt: skip


def with_progress(words: Sequence[str]) -> list[str]:
    """``words`` in which a ``--progress`` that stands before something else than its value has one."""
    said = list(words)
    for number, word in enumerate(words):
        if word == "--":
            break
        if word == "--progress" and words[number + 1 : number + 2] not in [[how] for how in PROGRESS]:
            said[number] = f"--progress={PROGRESS[0]}"
    return said


def wishes_in_order() -> type[Action]:
    """An action that gathers (const, values) in ``preserve``, in the order of the command line."""
    import argparse

    class Wish(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None) -> None:
            wishes = getattr(namespace, "preserve", None) or []
            namespace.preserve = [*wishes, (self.const, values)]

    return Wish


def absolute(path: bytes) -> bytes:
    """``path`` from the root, which means the same in any directory; raises ``OSError`` without a current one.

    What comes before a ".." is followed as the kernel does: behind a symbolic link to a directory that is not the
    directory of the link.
    """
    parts = path.split(b"/")
    if b".." in parts:
        after = len(parts) - parts[::-1].index(b"..")
        path = os.path.join(os.path.realpath(b"/".join(parts[:after])), *parts[after:])
    return os.path.abspath(path)


def taking(convert: Any) -> Any:
    """``convert``, with the reason that it gives (argparse drops that of a ValueError)."""
    import argparse

    def converted(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{shown(os.fsencode(text))}: {error}" if text else str(error)) from None

    return converted


def integer(text: str, minimum: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < minimum:
        raise ValueError(f"not a whole number of {minimum} or more")
    return int(text)


def at_least_0(text: str) -> int:
    return integer(text, 0)


def at_least_1(text: str) -> int:
    return integer(text, 1)


def ranks(text: str) -> int:
    """Raises ``ValueError``, which also says what else the letter n may have meant."""
    if not text.lstrip("-").isdigit():
        raise ValueError("not a number of processes (--dry-run: not yet; cp's --no-clobber: --existing skip)")
    return at_least_1(text)


def seconds(text: str) -> float:
    if not text.isascii() or not text.replace(".", "", 1).isdigit() or float(text) <= 0:
        raise ValueError("not a number of seconds above 0")
    return float(text)


def age(text: str) -> float:
    """Seconds; raises ``ValueError``."""
    number, unit = text[:-1], _UNITS_OF_TIME.get(text[-1:])
    if unit is None or not number.isascii() or not number.replace(".", "", 1).isdigit():
        raise ValueError(f"not an age: a number and one of {', '.join(_UNITS_OF_TIME)}, as in 7d")
    return float(number) * unit


def chunk_size(text: str) -> int:
    from pcopy.cli.units import parse_size

    if text == "auto":
        return 0
    size = parse_size(text)
    if size < 1:
        raise ValueError("a chunk holds at least one byte")
    return size


def block_size(text: str) -> int:
    from pcopy.cli.units import parse_size

    size = parse_size(text)
    if size < MINIMUM_BLOCK or size & (size - 1):
        raise ValueError("not a power of two of 64 KiB or more")
    return size


def owner(text: str) -> tuple[int, int]:
    """Uid and gid; raises ``ValueError``."""
    from pcopy.cli.owner import parse_owner

    return parse_owner(text)
