"""A program: from its command line to its exit status. What all programs share.

Rules: an option does what its help says or is unknown; nothing is guessed from an abbreviation; whatever is wrong is
said in one line. Rank 0 resolves and refuses before anything is touched. Without a launcher it forks the other ranks;
under mpiexec or srun it tells them the job. Only rank 0 writes to standard output. argparse is imported only when there
is something to parse, so that ``--version`` is quick.
"""

from __future__ import annotations

import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from pcopy import __version__, errors
from pcopy.cli.common_options import INPLACE, INSECURE_LINKS, PROGRESS
from pcopy.cli.mistakes import Unknown, refuse_letters, refuse_unknown, with_nearest
from pcopy.errors import Refused
from pcopy.fsio.kernel.choose import kernel_name
from pcopy.fsio.patience import announce_waits
from pcopy.launch import interrupts
from pcopy.named import NamedTuple
from pcopy.text import harmless

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.launch.tool import Command
    from pcopy.report.streams import Streams

SYSTEM_FILE = b"/etc/pcopy.yaml"
_VALUES_WITH_DASHES = ("--stripe", "--newer-than", "--older-than")
"""Options whose values may begin with a dash; of those with an age that is refused with another line."""
_NUMBERS = ("N", "SECONDS", "SIZE", "RATE")
"""Metavariables of options whose values are numbers: a negative one is refused by the option, and is no option."""
_HELP_ALONE = "-h prints the help only without paths (sizes are always in units); leave it out, or write --help"


class Words(NamedTuple):
    """A command line as the parser reads it: the words that are options, their ``values``, and the ``others``."""

    options: Sequence[str]
    values: Namespace
    others: Sequence[str]
    files: Sequence[bytes]
    """Those of the configuration, the lowest first."""
    expression: tuple[str, ...] = ()
    """Of pwalk: the words of it, which are neither."""


class Program(ABC):
    """The command line of one program; each fills in what is its own."""

    usage: str
    description: str
    examples: str
    letters: str
    """Letters of options that may stand together, as in ``-arv``; behind them a ``valued`` one, which has a value."""
    valued = "n"
    unknown: Unknown
    """What is said of options that it does not have. It holds the program's name, too."""
    status_of_loss = errors.INCOMPLETE
    """The least status of a run whose output is lost."""
    answers = False
    """Is what it prints all that it is run for, so that no closed standard output is good enough?"""

    @abstractmethod
    def add_options(self, parser: ArgumentParser) -> None:
        """All options that are its own."""

    @abstractmethod
    def understand(self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]) -> Any:
        """What its preparation takes; ``words`` are the options. Raises ``Refused``."""

    @abstractmethod
    def command(self) -> Command:
        """Loads what is needed to run a job."""

    @property
    def name(self) -> str:
        return self.unknown.program

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Runs the program with ``argv`` (default: the process's own, without its name); returns the exit status."""
        from pcopy.launch.launcher import speaks
        from pcopy.report.streams import standard_streams, tell

        if speaks(os.environ):
            announce_waits(partial(tell, self.name))
        words = sys.argv[1:] if argv is None else argv
        if INSECURE_LINKS in _before_operands(list(map(os.fsdecode, words))):  # files are read while words are parsed
            from pcopy.fsio.named_file import trust_all_links

            trust_all_links(True)
        with standard_streams() as streams:
            streams.answers = self.answers
            try:
                status = self._run(words, streams)
            except KeyboardInterrupt:  # before signals stop a job in order, and before anything is touched
                sys.stderr.write(interrupts.line(self.name))
                status = interrupts.STATUS
            return streams.settle(status, self.name, self.status_of_loss)

    def _run(self, words: Sequence[str], streams: Streams) -> int:
        from pcopy.launch.launcher import is_launched, speaks

        try:
            try:
                text = self.answer(words)
            except Refused as refused:
                if not speaks(os.environ):
                    return refused.status
                raise
            if text is not None:
                streams.answers = True
                if text and speaks(os.environ):
                    print(text)
                return errors.OK
            command = self.command()
            if is_launched(os.environ):
                from pcopy.launch.mpi_run import run_under_launcher

                return run_under_launcher(words, command)
            from pcopy.launch.local_run import run_locally

            interrupts.raise_again()
            return run_locally(words, command)
        except errors.PcopyError as error:
            from pcopy.report.streams import tell

            tell(self.name, error)
            return error.status
        except Exception as error:  # never Python's own status 1, which says something else
            from pcopy.report.unexpected import tell_unexpected

            return tell_unexpected(self.name, error)

    def answer(self, words: Sequence[str]) -> str | None:
        """What needs no ranks; None if they are needed."""
        if (text := self.early_answer(words)) is not None or "--show-config" not in words:
            return text
        said = self.read_words(words)
        if not said.values.show_config:
            return None
        from pcopy.cli.config_shown import shown_config
        from pcopy.launch.launcher import speaks

        return shown_config(self, said.options, said.files, default_files()) if speaks(os.environ) else ""

    def early_answer(self, argv: Sequence[bytes | str]) -> str | None:
        """What ``--version`` or ``-h`` prints, without a final newline; None if neither is asked for.

        Raises ``Refused`` if the kernel that has to be there is not.
        """
        words = _before_operands(list(map(os.fsdecode, argv)))
        if "--version" in words:
            return f"{self.name} {__version__} (kernel {kernel_name()})"
        return self.parser().format_help().rstrip() if _asks_for_help(words, self.letters) else None

    def parse(
        self, argv: Sequence[bytes | str], make: Callable[[Any], Any] | None = None, *, configured: bool = True
    ) -> Any:
        """The meaning of ``argv`` (without the program's name), or what ``make`` makes of that; ``early_answer`` has
        been asked before.

        What is ``configured`` counts, too. Raises ``Refused`` with one line on what is wrong with it.
        """
        said = self.read_words(argv)
        if not (configured and said.files):
            return self._made(said, said.values, make)
        from pcopy.cli.configuration import made_with_files

        return made_with_files(self, said.options, said.files, lambda values: self._made(said, values, make))

    def _made(self, said: Words, values: Namespace, make: Callable[[Any], Any] | None) -> Any:
        paths = tuple(os.fsencode(word) for word in said.others)
        understood = self.understand(values, paths, said.options)
        return understood if make is None else make(understood)

    def read_words(self, argv: Sequence[bytes | str]) -> Words:
        """``argv`` as the parser of options reads it; raises ``Refused`` for whatever is none."""
        parser = self.parser()
        words = _with_values(list(map(os.fsdecode, argv)), parser)
        end = len(_before_operands(words))
        refuse_letters(self.unknown, words[:end], self.letters, self.valued)
        # Without positionals of its own argparse hands back operands and unknown options in their order.
        values, others = parser.parse_known_args(words[:end])
        refuse_unknown(self.unknown, others, [name for action in parser._actions for name in action.option_strings])
        if values.help:
            habit = self.unknown.habits.get("-h")
            raise Refused(f"-h: {habit}; for the help write --help alone" if habit else _HELP_ALONE)
        return Words(words[:end], values, others + words[end + 1 :], configuration_files(values.config))

    def configurable(self, given: Collection[str]) -> Collection[str] | None:
        """Which options files may set (as names in the namespace) beside those that are ``given``; None: all."""
        return None

    def parser(self) -> ArgumentParser:
        """It raises ``Refused`` with one line for whatever is wrong, and guesses nothing."""
        import argparse

        name = self.name

        class Parser(argparse.ArgumentParser):
            def error(self, message: str) -> NoReturn:
                message = message.removeprefix("argument ").replace("ignored explicit argument", "takes no value:")
                raise Refused(f"{harmless(with_nearest(message))}; see {name} --help")

        class HelpFormatter(argparse.RawDescriptionHelpFormatter):
            def _format_action_invocation(self, action: argparse.Action) -> str:
                from pcopy.cli.config_keys import may_be_flag  # only a help needs it

                text = super()._format_action_invocation(action)
                return text.replace(" [", "[=") if may_be_flag(action) else text

        parser = Parser(
            prog=name,
            usage=self.usage,
            description=self.description,
            epilog=self.examples,
            allow_abbrev=False,
            add_help=False,
            formatter_class=lambda prog: HelpFormatter(prog, max_help_position=27, width=78),
        )
        self.add_options(parser)
        return parser


def configuration_files(asked: str | None) -> list[bytes]:
    """Those of the defaults that are there, and the one that is ``asked`` for; the lowest first."""
    found = []
    for path in default_files():
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            pass  # who reads it says why it can't
        found.append(path)
    return found if asked is None else [*found, os.fsencode(asked)]


def default_files() -> list[bytes]:
    """As the XDG Base Directory Specification wants it, a path that is not absolute is ignored."""
    own = os.environb.get(b"XDG_CONFIG_HOME", b"")
    if not own.startswith(b"/"):
        own = os.path.expanduser(b"~/.config")
    return [SYSTEM_FILE, *([os.path.join(own, b"pcopy.yaml")] if own.startswith(b"/") else [])]


def _before_operands(words: Sequence[str]) -> Sequence[str]:
    """What comes before ``--``: after that nothing is an option."""
    return words[: words.index("--")] if "--" in words else words


def _asks_for_help(words: Sequence[str], letters: str) -> bool:
    """Is help asked for? ``letters`` may stand together.

    Beside a path ``h`` may be rsync's (``-avh``). Then it is no help, which has status 0 though nothing was done.
    """
    if "--help" in words:
        return True
    bundles = [word for word in words if word[:1] == "-" and not word[1:].strip(letters)]
    return all(word[:1] == "-" for word in words) and any("h" in word for word in bundles)


def _options_with_numbers(parser: ArgumentParser) -> set[str]:
    """Return the options whose values may begin with a dash and a digit."""
    found = {word for action in parser._actions if action.metavar in _NUMBERS for word in action.option_strings}
    return {word for word in found if word.startswith("--")} | set(_VALUES_WITH_DASHES)


def _with_values(words: Sequence[str], parser: ArgumentParser) -> list[str]:
    """``words`` in which a ``--progress`` that stands before something else than its value has one, an ``--inplace``
    alone has one, and an option with a number has a value that begins like an option. Raises ``Refused``."""
    numbers, has_inplace = _options_with_numbers(parser), any(action.dest == "inplace" for action in parser._actions)
    said: list[str] = []
    rest = list(words)
    while rest and rest[0] != "--":
        word, following = rest.pop(0), rest[0] if rest else ""
        if word == "--progress" and following not in PROGRESS:
            if following.isdigit() and not os.path.lexists(following):
                raise Refused(f"--progress {following}: for a time between lines write --progress-interval {following}")
            word = f"--progress={PROGRESS[0]}"
        elif word == "--inplace" and has_inplace:  # the next word is no value of it
            word = f"--inplace={INPLACE[0]}"
        elif word in numbers and re.match(r"-\d", following):
            word = f"{word}={rest.pop(0)}"
        said.append(word)
    return said + rest
