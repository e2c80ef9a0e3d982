"""The base class of all programs: from the command line to the exit status.

Rules:

- An option either has the effect that its help states, or is refused. Abbreviations are not accepted. An error is
  reported in one line.
- Rank 0 resolves the arguments, and refuses an invalid request before anything is changed. Then it forks the other
  ranks; under mpiexec or srun they run already, and rank 0 sends them the job.
- Only rank 0 writes to standard output.
- argparse is imported only if there are options to parse, so that ``--version`` is fast.
"""

from __future__ import annotations

import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn

from pcopy import __version__, errors
from pcopy.cli.argument_types import Option
from pcopy.cli.common_options import (
    INSECURE_LINKS_OPTION,
    OPTION_GROUPS,
    PROGRESS_CHOICES,
    SIZE_TEXT,
    STOP_AT_EOF_OPTION,
)
from pcopy.cli.mistakes import (
    UnknownOptionAdvice,
    message_with_nearest_choice,
    refuse_unknown_letters,
    refuse_unknown_options,
)
from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.choose import backend_name
from pcopy.fsio.retries import set_wait_announcer
from pcopy.launch import interrupts
from pcopy.report.streams import words_before_double_dash
from pcopy.text import OTHER_NAMES, printable_text, with_invoked_name

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.launch.tool import ToolEntryPoint
    from pcopy.report.streams import StandardStreams

SYSTEM_CONFIG_FILE = b"/etc/pcopy.yaml"
"""The configuration file that is read for all users, if it exists."""
_SECOND_USAGE = "\n       "
"""What separates the lines of a usage."""
_PAGE_LINES = 24
"""Number of lines of the page that ``-h`` prints: as many usages are shown as it has room for."""

_PAGE_WIDTH = 78
"""Width of the text above the options in the page of ``-h``."""
_HELP_WITH_PATHS_MESSAGE = (
    "-h prints the help only without paths (sizes are always in units); leave it out, or write --help"
)
"""The message for ``-h`` together with paths, where rsync's ``-h`` may be meant."""


class ParsedCommandLine(NamedTuple):
    """A parsed command line, without the values of configuration files.

    Fields:

    - ``option_words``: the words before ``--`` as they were written: options, and operands among them.
    - ``values``: the parsed options.
    - ``operands``: the words that are neither options nor their values.
    - ``config_files``: the configuration files to read, in ascending precedence.
    - ``expression``: the words of the expression of pwalk (as in find(1)); empty for other programs.
    """

    option_words: Sequence[str]
    values: Namespace
    operands: Sequence[str]
    config_files: Sequence[bytes]
    expression: tuple[str, ...] = ()


class ProgramCommandLine(ABC):
    """The command line of one program. Each program has a subclass with its options, help texts and command.

    ``usage``, ``description`` and ``examples`` are the texts before and after the options in the help.
    """

    usage: str
    description: str
    examples: str
    option_tables: Sequence[Sequence[Option]]
    """The tables of options that have rows of this program; the help has the rows of a group in this order."""
    work: str
    """What the ranks do, as a verb for the help."""
    done: str
    """What is done with items, as a participle for the help."""
    modes: Sequence[str] = ()
    """The names of its modes, if it has several with options of their own; ``Option.modes`` has some of them."""
    operand = "PATH"
    """What the help calls the trees on which the program works."""
    option_advice: UnknownOptionAdvice
    """The name of the program, and its advice to users who write options of other programs."""
    status_if_output_lost = errors.EXIT_INCOMPLETE
    """The exit status if standard output could not be written; a higher status because of another error remains."""
    _is_standard_input_closed = False
    """True if ``--stop-at-eof`` is given, and standard input is closed."""
    needs_standard_output = False
    """True if the program prints its result on standard output. Then it is an error if standard output is closed."""

    @abstractmethod
    def arguments_from_options(self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]) -> Any:
        """Return the arguments of the program's job, converted from the options and operands of the command line.

        Args:
            values: the parsed options, with those of configuration files.
            paths: the operands.
            words: the options as they were written.

        Raise ``RequestRefused`` if the combination of options and operands is not valid.
        """

    @abstractmethod
    def load_command(self) -> ToolEntryPoint:
        """Import the modules that run a job of this program, and return the command, which contains their functions."""

    @property
    def name(self) -> str:
        """The program's name."""
        return self.option_advice.program

    @property
    def other_names(self) -> tuple[str, ...]:
        """Further names under which the program is installed."""
        return tuple(name for name, program in OTHER_NAMES.items() if program == self.name)

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The options of the program, in the order of the help."""
        mine = [
            option.of_program(self.name, self.work, self.done)
            for table in self.option_tables
            for option in table
            if self.name in option.programs.split()
        ]
        titles = [title.format(done=self.done) for title in OPTION_GROUPS]
        return tuple(sorted(mine, key=lambda option: titles.index(option.group)))

    @property
    def flag_letters(self) -> str:
        """Single-letter options without a value, which may be bundled, as in ``-arv``."""
        return self._letters(with_value=False)

    @property
    def value_letters(self) -> str:
        """Single-letter options with a value, each of which may be the last one of a bundle."""
        return self._letters(with_value=True)

    def _letters(self, *, with_value: bool) -> str:
        """Return the single-letter options that take a value, or those that take none."""
        options = [option for option in self.options if bool(option.value) == with_value]
        return "".join(word[1] for option in options for word in option.spellings if len(word) == 2)

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the program with the arguments ``argv`` (default: those of the process), and return the exit status."""
        from pcopy.launch.launcher import is_reporting_rank
        from pcopy.report.streams import print_error, tolerant_standard_streams

        if is_reporting_rank(os.environ):
            set_wait_announcer(partial(print_error, self.name))
        words = sys.argv[1:] if argv is None else argv
        options = words_before_double_dash(list(map(os.fsdecode, words)))
        if INSECURE_LINKS_OPTION in options:
            # Checked before the command line is parsed, because that reads files, to which the option applies.
            from pcopy.fsio.named_file import set_symbolic_link_trust

            set_symbolic_link_trust(True)
        if STOP_AT_EOF_OPTION in options and is_reporting_rank(os.environ):
            self._is_standard_input_closed = not interrupts.stop_when_standard_input_ends()
        with tolerant_standard_streams() as streams:
            streams.is_output_essential = self.needs_standard_output
            try:
                status = self._run_command_line(words, streams)
            except KeyboardInterrupt:  # Raised only until the ranks handle signals themselves; nothing is changed yet.
                sys.stderr.write(interrupts.interrupted_line(self.name))
                status = interrupts.INTERRUPTED_STATUS
            return streams.exit_status_after_flush(status, self.name, self.status_if_output_lost)

    def _run_command_line(self, words: Sequence[str], streams: StandardStreams) -> int:
        """Do what the command line ``words`` requests, and return the exit status.

        If no ranks are needed (as for ``--help``), print the answer; else run a job on the ranks. Each error is printed
        in one line.
        """
        from pcopy.launch.launcher import is_reporting_rank, is_started_by_launcher

        try:
            try:
                text = self.output_if_no_ranks_needed(words)
            except RequestRefused as refused:
                if not is_reporting_rank(os.environ):
                    return refused.status
                raise
            if text is not None:
                streams.is_output_essential = True
                if text and is_reporting_rank(os.environ):
                    print(with_invoked_name(text, self.name))
                return errors.EXIT_OK
            # Import the modules that run jobs only here, because answers without ranks must be fast.
            command = self.load_command()
            if is_started_by_launcher(os.environ):
                from pcopy.launch.mpi_run import run_under_launcher

                return run_under_launcher(words, command)
            from pcopy.launch.local_run import run_on_forked_ranks

            # From here on SIGINT raises KeyboardInterrupt instead of ending the process: ranks must be stopped first.
            interrupts.restore_keyboard_interrupt()
            return run_on_forked_ranks(words, command)
        except errors.PcopyError as error:
            from pcopy.report.streams import report_refusal

            report_refusal(self.name, error, words)
            return error.status
        except Exception as error:  # an uncaught exception would end with status 1, which means "items failed"
            from pcopy.report.unexpected import report_unexpected_exception

            return report_unexpected_exception(self.name, error, words)

    def output_if_no_ranks_needed(self, words: Sequence[str]) -> str | None:
        """Return the text to print if no ranks are needed to answer the command line; None if they are needed."""
        if (text := self.help_or_version_text(words)) is not None or "--show-config" not in words:
            return text
        parsed = self.parse_options_and_operands(words)
        if not parsed.values.show_config:
            return None
        from pcopy.cli.show_config import effective_config_text
        from pcopy.launch.launcher import is_reporting_rank

        return (
            effective_config_text(self, parsed.option_words, parsed.config_files, default_config_files())
            if is_reporting_rank(os.environ)
            else ""
        )

    def help_or_version_text(self, argv: Sequence[bytes | str]) -> str | None:
        """Return the text that ``--version`` or ``-h`` in ``argv`` prints, without a final newline; None if neither is
        given.

        Raise ``RequestRefused`` if the C backend is required but not available.
        """
        words = words_before_double_dash(list(map(os.fsdecode, argv)))
        if "--version" in words:
            return f"{self.name} {__version__} (backend {backend_name()})"
        if "--help" in words:
            more = f"man {self.name} explains the options and the output in full."
            return f"{self.parser().format_help().rstrip()}\n\n{more}"
        return self._page_of_common_options() if _is_page_requested(words, self.flag_letters) else None

    def _page_of_common_options(self) -> str:
        """Return the text that ``-h`` prints: the most frequently used options, a line each, on one page."""
        from textwrap import fill

        from pcopy.cli.programs import PROGRAM_SUMMARIES

        summary = PROGRAM_SUMMARIES[self.name]
        lines = ["", *fill(f"{summary[0].upper()}{summary[1:]}.", _PAGE_WIDTH).splitlines(), ""]
        on_page = [option for option in self.options if option.brief]
        for option in sorted(on_page, key=lambda option: "-h" in option.spellings):  # -h is the last one
            words = f"{', '.join(option.page_spellings)}{option.value_suffix}"
            lines.append(f"  {words:23}  {option.brief}")
        more = f"{self.name} --help lists all options; man {self.name} explains them."
        lines += ["", *self.examples.splitlines()[:3], "", more]
        usages = self.usage.split(_SECOND_USAGE)
        usage = _SECOND_USAGE.join(usages[: max(1, _PAGE_LINES - len(lines))])
        return "\n".join([f"usage: {usage}", *lines])

    def parse_command_line(
        self, argv: Sequence[bytes | str], convert: Callable[[Any], Any] | None = None, *, use_config_files: bool = True
    ) -> Any:
        """Parse ``argv``, the command line without the program's name, and return the arguments of the program's job.

        The caller has called ``help_or_version_text`` before.

        Args:
            convert: a function that is called with the arguments; its result is returned instead. None: no conversion.
            use_config_files: True to include options from configuration files.

        Raise ``RequestRefused`` with a message of one line if the command line or a configuration file is not valid.
        """
        parsed = self.parse_options_and_operands(argv)
        if not (use_config_files and parsed.config_files):
            return self._arguments_of_parsed_command_line(parsed, parsed.values, convert)
        from pcopy.cli.configuration import parse_with_config_files

        return parse_with_config_files(
            self,
            parsed.option_words,
            parsed.config_files,
            lambda values: self._arguments_of_parsed_command_line(parsed, values, convert),
        )

    def _arguments_of_parsed_command_line(
        self, parsed: ParsedCommandLine, values: Namespace, convert: Callable[[Any], Any] | None
    ) -> Any:
        """Return the arguments of the program's job for the command line ``parsed``.

        ``values`` are the option values, including those of configuration files. If ``convert`` is not None, it is
        called with the arguments, and its result is returned instead.
        """
        paths = tuple(os.fsencode(word) for word in parsed.operands)
        arguments = self.arguments_from_options(values, paths, parsed.option_words)
        return arguments if convert is None else convert(arguments)

    def parse_options_and_operands(self, argv: Sequence[bytes | str]) -> ParsedCommandLine:
        """Parse ``argv`` into options and operands.

        Raise ``RequestRefused`` for an unknown option or an invalid value.
        """
        parser = self.parser()
        words = _joined_with_values(list(map(os.fsdecode, argv)), self.options)
        end = len(words_before_double_dash(words))
        if STOP_AT_EOF_OPTION in words[:end]:
            self._refuse_unusable_standard_input(words[:end])
        refuse_unknown_letters(self.option_advice, words[:end], self.flag_letters, self.value_letters)
        # The parser has no positional arguments, so argparse returns operands and unknown options in their order.
        values, others = parser.parse_known_args(words[:end])
        refuse_unknown_options(
            self.option_advice, others, [word for option in self.options for word in option.spellings]
        )
        if values.help:
            habit = self.option_advice.by_option.get("-h")
            raise RequestRefused(f"-h: {habit}; for the help write --help alone" if habit else _HELP_WITH_PATHS_MESSAGE)
        return ParsedCommandLine(words[:end], values, others + words[end + 1 :], existing_config_files(values.config))

    def _refuse_unusable_standard_input(self, words: Sequence[str]) -> None:
        """Raise ``RequestRefused`` if ``--stop-at-eof`` cannot watch standard input: it is closed, or an option in
        ``words`` reads it.
        """
        from pcopy.cli.configuration import command_line_options
        from pcopy.cli.filter_options import is_standard_input, may_be_standard_input

        if self._is_standard_input_closed:
            raise RequestRefused(f"{STOP_AT_EOF_OPTION}: standard input is closed")
        if not any(map(may_be_standard_input, words)):
            return
        reading = {word for option in self.options if option.reads_file for word in option.spellings}
        for option in command_line_options(words, self.parser()):
            if option.word in reading and is_standard_input(option.raw_value):
                message = f"{option.word} reads standard input, and so does {STOP_AT_EOF_OPTION}: name a file"
                raise RequestRefused(message)

    def options_settable_by_files(self, given: Collection[str]) -> Collection[str] | None:
        """Return the options (attributes of the namespace) that files may set if ``given`` are on the command line.

        None means all.
        """
        return None

    def group_texts(self, title: str) -> list[str]:
        """Return the paragraphs below the ``title`` of a group in the help."""
        text = next(text for group, text in OPTION_GROUPS.items() if group.format(done=self.done) == title)
        with_size = [option.group for option in self.options if "SIZE" in option.value + option.help]
        return [
            *([text.format(operand=self.operand)] if text else []),
            *([SIZE_TEXT] if [title] == with_size[:1] else []),
        ]

    def parser(self) -> ArgumentParser:
        """Return a new parser for the options of the program.

        On an error it raises ``RequestRefused`` with a message of one line. It accepts no abbreviations.
        """
        import argparse
        from textwrap import fill

        name = self.name
        equals_only = {word for option in self.options if option.is_value_after_equals for word in option.spellings}

        class Parser(argparse.ArgumentParser):
            def error(self, message: str) -> NoReturn:
                message = message.removeprefix("argument ").replace("ignored explicit argument", "takes no value:")
                raise RequestRefused(f"{printable_text(message_with_nearest_choice(message))}; see {name} --help")

            def _get_values(self, action: argparse.Action, words: list[str]) -> Any:
                # Before Python 3.13, argparse removes the value of --NAME=--, so that the option has an empty list.
                if words != ["--"] or not action.option_strings:
                    return super()._get_values(action, words)
                value = self._get_value(action, "--")
                self._check_value(action, value)
                return value if action.nargs in (None, argparse.OPTIONAL) else [value]

        class HelpFormatter(argparse.RawDescriptionHelpFormatter):
            def _format_action_invocation(self, action: argparse.Action) -> str:
                text = super()._format_action_invocation(action)
                after_equals = any(word in equals_only for word in action.option_strings)
                return text.replace(" [", "[=") if after_equals else text

        parser = Parser(
            prog=name,
            usage=self.usage,
            description=self.description,
            epilog=self.examples,
            allow_abbrev=False,
            add_help=False,
            formatter_class=lambda prog: HelpFormatter(prog, max_help_position=27, width=78),
        )
        groups: dict[str, Any] = {}
        exclusive: dict[str, Any] = {}
        for option in self.options:
            if option.group not in groups:
                text = "\n".join(fill(part, 76) for part in self.group_texts(option.group)) or None
                groups[option.group] = parser.add_argument_group(option.group, text)
            group = groups[option.group]
            if option.one_of:
                if option.one_of not in exclusive:
                    exclusive[option.one_of] = group.add_mutually_exclusive_group()
                group = exclusive[option.one_of]
            option.add_to(group)
            # argparse takes words such as -1 for options if the parser has an option like -0. That is not intended.
            group._has_negative_number_optionals.clear()
        return parser


def existing_config_files(requested: str | None) -> list[bytes]:
    """Return the configuration files to read, in ascending precedence.

    These are the default files that exist, and ``requested``, the file of ``--config``.
    """
    found = []
    for path in default_config_files():
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            pass  # The file counts as existing: reading it later reports the error.
        found.append(path)
    return found if requested is None else [*found, os.fsencode(requested)]


def default_config_files() -> list[bytes]:
    """Return the default configuration files, in ascending precedence.

    A relative path in ``XDG_CONFIG_HOME`` is ignored, as the XDG Base Directory Specification requires.
    """
    own = os.environb.get(b"XDG_CONFIG_HOME", b"")
    if not own.startswith(b"/"):
        own = os.path.expanduser(b"~/.config")
    return [SYSTEM_CONFIG_FILE, *([os.path.join(own, b"pcopy.yaml")] if own.startswith(b"/") else [])]


def _is_page_requested(words: Sequence[str], letters: str) -> bool:
    """Return True if ``words`` request the page of common options, by ``-h`` without any path.

    ``-h`` may be part of a bundle of single-letter options; ``letters`` are those without a value. ``-h`` together with
    a path does not count as a request for help, because users of rsync write ``-avh SRC DST`` to copy: printing the
    help with status 0 would look as if the copy had succeeded.
    """
    bundles = [word for word in words if word[:1] == "-" and not word[1:].strip(letters)]
    return all(word[:1] == "-" for word in words) and any("h" in word for word in bundles)


def _joined_with_values(words: Sequence[str], options: Sequence[Option]) -> list[str]:
    """Return ``words`` with some options and their values joined into one word, so that argparse reads them correctly.

    - ``--progress`` gets its default value if the next word is not one of its values.
    - An option whose value may be left out, and otherwise follows an equals sign (``--inplace``), gets the value that
      it means alone.
    - An option whose value is a number is joined to the next word if that begins with a dash and a digit.

    Raise ``RequestRefused`` for ``--progress`` with a number.
    """
    numbers = {word for option in options if option.may_begin_with_dash for word in option.spellings if len(word) > 2}
    constants = {word: option.const for option in options if option.is_value_after_equals for word in option.spellings}
    joined: list[str] = []
    rest = list(words)
    while rest and rest[0] != "--":
        word, following = rest.pop(0), rest[0] if rest else ""
        if word == "--progress" and following not in PROGRESS_CHOICES:
            if following.isdigit() and not os.path.lexists(following):
                raise RequestRefused(
                    f"--progress {following}: not one of {', '.join(PROGRESS_CHOICES)}; to set the seconds between "
                    f"lines, write --progress-interval {following}"
                )
            word = f"--progress={PROGRESS_CHOICES[0]}"
        elif word in constants:
            word = f"{word}={constants[word]}"
        elif word in numbers and re.match(r"-\d", following):
            word = f"{word}={rest.pop(0)}"
        joined.append(word)
    return joined + rest
