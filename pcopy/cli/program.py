"""The base class of all programs: a program's way from its command line to its exit status.

Rules:

- An option does what its help says, or it is unknown. Abbreviations are not accepted. An error is reported in one line.
- Rank 0 resolves the arguments and refuses a request before anything is changed. Without a launcher it forks the other
  ranks; under mpiexec or srun it sends the job to them.
- Only rank 0 writes to standard output.
- argparse is imported only if there are options to parse, so that ``--version`` is fast.
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
"""The configuration file for all users."""
_VALUES_WITH_DASHES = ("--stripe", "--newer-than", "--older-than")
"""Options whose values may begin with a dash.

For the options with an age, such a value is refused with a specific message.
"""
_NUMBERS = ("N", "SECONDS", "SIZE", "RATE")
"""Metavariables of options whose values are numbers.

A negative number after such an option is its value, which the option then refuses.
"""
_HELP_ALONE = "-h prints the help only without paths (sizes are always in units); leave it out, or write --help"
"""The message for ``-h`` together with paths, where rsync's ``-h`` may be meant."""


class Words(NamedTuple):
    """A parsed command line: the ``options`` as they were written, their ``values``, and the ``others`` (operands)."""

    options: Sequence[str]
    values: Namespace
    others: Sequence[str]
    files: Sequence[bytes]
    """Configuration files, in ascending precedence."""
    expression: tuple[str, ...] = ()
    """The words of pwalk's expression; empty for other programs."""


class Program(ABC):
    """The command line of one program. Each program has a subclass with its options, help texts and command."""

    usage: str
    description: str
    examples: str
    letters: str
    """Single-letter options without a value, which may be bundled, as in ``-arv``."""
    valued = "n"
    """Single-letter options with a value, which may be the last one of a bundle."""
    unknown: Unknown
    """The advice on options that the program does not have; it also holds the program's name."""
    status_of_loss = errors.INCOMPLETE
    """The minimum exit status of a run whose output could not be written."""
    answers = False
    """True if the program's result is what it prints, so that a closed standard output is an error."""

    @abstractmethod
    def add_options(self, parser: ArgumentParser) -> None:
        """Add all options of the program to ``parser``."""

    @abstractmethod
    def understand(self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]) -> Any:
        """Return the arguments of the program's preparation. Raise ``Refused`` if the request is not valid.

        Args:
            values: the parsed options.
            paths: the operands.
            words: the options as they were written.
        """

    @abstractmethod
    def command(self) -> Command:
        """Import the modules that run a job of this program, and return the command."""

    @property
    def name(self) -> str:
        """The program's name."""
        return self.unknown.program

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the program with the arguments ``argv`` (default: those of the process), and return the exit status."""
        from pcopy.launch.launcher import speaks
        from pcopy.report.streams import standard_streams, tell

        if speaks(os.environ):
            announce_waits(partial(tell, self.name))
        words = sys.argv[1:] if argv is None else argv
        if INSECURE_LINKS in _before_operands(
            list(map(os.fsdecode, words))
        ):  # before parsing, because files are read during it
            from pcopy.fsio.named_file import trust_all_links

            trust_all_links(True)
        with standard_streams() as streams:
            streams.answers = self.answers
            try:
                status = self._run(words, streams)
            except KeyboardInterrupt:  # only before the ranks handle signals themselves; nothing is changed yet
                sys.stderr.write(interrupts.line(self.name))
                status = interrupts.STATUS
            return streams.settle(status, self.name, self.status_of_loss)

    def _run(self, words: Sequence[str], streams: Streams) -> int:
        """Answer without ranks if possible, else run the ranks; return the exit status.

        Errors are printed in one line.
        """
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
            # Only now import the modules that run jobs: answers without ranks must be fast.
            command = self.command()
            if is_launched(os.environ):
                from pcopy.launch.mpi_run import run_under_launcher

                return run_under_launcher(words, command)
            from pcopy.launch.local_run import run_locally

            # From here on SIGINT raises KeyboardInterrupt instead of ending the process, so that ranks end in order.
            interrupts.raise_again()
            return run_locally(words, command)
        except errors.PcopyError as error:
            from pcopy.report.streams import tell

            tell(self.name, error)
            return error.status
        except Exception as error:  # an uncaught exception would end with status 1, which means "items failed"
            from pcopy.report.unexpected import tell_unexpected

            return tell_unexpected(self.name, error)

    def answer(self, words: Sequence[str]) -> str | None:
        """Return the text to print if no ranks are needed to answer the command line; None if they are needed."""
        if (text := self.early_answer(words)) is not None or "--show-config" not in words:
            return text
        parsed = self.read_words(words)
        if not parsed.values.show_config:
            return None
        from pcopy.cli.config_shown import shown_config
        from pcopy.launch.launcher import speaks

        return shown_config(self, parsed.options, parsed.files, default_files()) if speaks(os.environ) else ""

    def early_answer(self, argv: Sequence[bytes | str]) -> str | None:
        """Return the text that ``--version`` or ``-h`` prints, without a final newline; None if neither is given.

        Raise ``Refused`` if the C backend is required but not available.
        """
        words = _before_operands(list(map(os.fsdecode, argv)))
        if "--version" in words:
            return f"{self.name} {__version__} (kernel {kernel_name()})"
        return self.parser().format_help().rstrip() if _asks_for_help(words, self.letters) else None

    def parse(
        self, argv: Sequence[bytes | str], make: Callable[[Any], Any] | None = None, *, configured: bool = True
    ) -> Any:
        """Return the arguments that ``argv`` (without the program's name) stands for, or the result of ``make`` for
        them.

        The caller has called ``early_answer`` before. If ``configured``, options from configuration files are included.
        Raise ``Refused`` with a one-line message if the command line is not valid.
        """
        parsed = self.read_words(argv)
        if not (configured and parsed.files):
            return self._made(parsed, parsed.values, make)
        from pcopy.cli.configuration import made_with_files

        return made_with_files(self, parsed.options, parsed.files, lambda values: self._made(parsed, values, make))

    def _made(self, said: Words, values: Namespace, make: Callable[[Any], Any] | None) -> Any:
        """Return the arguments for the command line ``said``, or the result of ``make`` for them.

        ``values`` are the option values, including those of configuration files.
        """
        paths = tuple(os.fsencode(word) for word in said.others)
        arguments = self.understand(values, paths, said.options)
        return arguments if make is None else make(arguments)

    def read_words(self, argv: Sequence[bytes | str]) -> Words:
        """Parse ``argv`` into options and operands. Raise ``Refused`` for an unknown option or an invalid value."""
        parser = self.parser()
        words = _with_values(list(map(os.fsdecode, argv)), parser)
        end = len(_before_operands(words))
        refuse_letters(self.unknown, words[:end], self.letters, self.valued)
        # The parser has no positional arguments, so argparse returns operands and unknown options in their order.
        values, others = parser.parse_known_args(words[:end])
        refuse_unknown(self.unknown, others, [name for action in parser._actions for name in action.option_strings])
        if values.help:
            habit = self.unknown.habits.get("-h")
            raise Refused(f"-h: {habit}; for the help write --help alone" if habit else _HELP_ALONE)
        return Words(words[:end], values, others + words[end + 1 :], configuration_files(values.config))

    def configurable(self, given: Collection[str]) -> Collection[str] | None:
        """Return the options (attributes of the namespace) that files may set if those of ``given`` are on the command
        line.

        None means all.
        """
        return None

    def parser(self) -> ArgumentParser:
        """Return a new parser.

        It raises ``Refused`` with a one-line message on errors, and accepts no abbreviations.
        """
        import argparse

        name = self.name

        class Parser(argparse.ArgumentParser):
            def error(self, message: str) -> NoReturn:
                message = message.removeprefix("argument ").replace("ignored explicit argument", "takes no value:")
                raise Refused(f"{harmless(with_nearest(message))}; see {name} --help")

        class HelpFormatter(argparse.RawDescriptionHelpFormatter):
            def _format_action_invocation(self, action: argparse.Action) -> str:
                from pcopy.cli.config_keys import may_be_flag  # only --help needs this module

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
    """Return the configuration files to read, in ascending precedence.

    These are the default files that exist, and ``asked``, the file of ``--config``.
    """
    found = []
    for path in default_files():
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            pass  # reading the file later reports the error
        found.append(path)
    return found if asked is None else [*found, os.fsencode(asked)]


def default_files() -> list[bytes]:
    """Return the default configuration files, in ascending precedence.

    A relative path in ``XDG_CONFIG_HOME`` is ignored, as the XDG Base Directory Specification requires.
    """
    own = os.environb.get(b"XDG_CONFIG_HOME", b"")
    if not own.startswith(b"/"):
        own = os.path.expanduser(b"~/.config")
    return [SYSTEM_FILE, *([os.path.join(own, b"pcopy.yaml")] if own.startswith(b"/") else [])]


def _before_operands(words: Sequence[str]) -> Sequence[str]:
    """Return the words before ``--``. The words after it are operands, even if they begin with a dash."""
    return words[: words.index("--")] if "--" in words else words


def _asks_for_help(words: Sequence[str], letters: str) -> bool:
    """Return True if help is requested by ``--help``, or by ``-h`` alone or in a bundle of ``letters``.

    Together with a path, ``-h`` may be rsync's (as in ``-avh``). It is then no request for help: printing the help
    would end with status 0 although nothing was copied.
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
    """Return ``words`` with the values of some options joined to them, so that argparse reads them correctly.

    - ``--progress`` gets its default value if the next word is not one of its values.
    - ``--inplace`` gets its default value: the next word never is its value.
    - An option with a number is joined to a next word that begins with a dash and a digit.

    Raise ``Refused`` for ``--progress`` with a number.
    """
    numbers, has_inplace = _options_with_numbers(parser), any(action.dest == "inplace" for action in parser._actions)
    joined: list[str] = []
    rest = list(words)
    while rest and rest[0] != "--":
        word, following = rest.pop(0), rest[0] if rest else ""
        if word == "--progress" and following not in PROGRESS:
            if following.isdigit() and not os.path.lexists(following):
                raise Refused(f"--progress {following}: for a time between lines write --progress-interval {following}")
            word = f"--progress={PROGRESS[0]}"
        elif word == "--inplace" and has_inplace:  # the next word is an operand
            word = f"--inplace={INPLACE[0]}"
        elif word in numbers and re.match(r"-\d", following):
            word = f"{word}={rest.pop(0)}"
        joined.append(word)
    return joined + rest
