"""The program ``pcopy``: its options, and their conversion to the arguments of a copy or a command on stored jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import DIRECTORY_PLACEHOLDERS, FILE_PLACEHOLDERS, Option
from pcopy.cli.common_options import (
    COMMON_OPTIONS,
    checked_in_flight_count,
    output_settings,
    refuse_invalid_file_names,
    refuse_unused_stripe_table,
)
from pcopy.cli.copy_options import COPY_OPTIONS
from pcopy.cli.filter_options import (
    FILTER_OPTIONS,
    has_patterns_from_standard_input,
    is_standard_input,
    requested_path_list,
    requested_selection,
)
from pcopy.cli.job_options import (
    JOB_COMMAND_USAGES,
    JOB_COMMANDS,
    JOB_OPTIONS,
    NO_CHECKPOINT_WORD,
    changeable_fields,
    checkpoint_settings,
    options_with_command,
    requested_job_command,
)
from pcopy.cli.mirror_options import MIRROR_OPTIONS, deletion_option_fields
from pcopy.cli.mistakes import ADVICE_OF_PCOPY
from pcopy.cli.program import ProgramCommandLine
from pcopy.errors import RequestRefused
from pcopy.fsio.preserve import PRESERVABLE_METADATA
from pcopy.jobs.paths import absolute_path
from pcopy.launch import interrupts
from pcopy.signature.algorithms import DEFAULT_ALGORITHM
from pcopy.tasks.base.job import (
    EXISTING_CHOICES_THAT_KEEP,
    CopyOptions,
    Options,
    PreservedMetadataKinds,
    message_refusing_existing_choice,
)
from pcopy.text import printable_path

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pcopy.launch.tool import ToolEntryPoint
    from pcopy.tools.arguments import CopyArguments


class PcopyCommandLine(ProgramCommandLine):
    """The command line of ``pcopy``."""

    option_tables: tuple[tuple[Option, ...], ...] = (
        COMMON_OPTIONS,
        FILTER_OPTIONS,
        COPY_OPTIONS,
        MIRROR_OPTIONS,
        JOB_OPTIONS,
    )
    work, done, operand = "copy", "copied", "SRC"
    option_advice = ADVICE_OF_PCOPY
    main_usage = "pcopy [options] SRC... DST"
    """The form of the command line that copies; messages quote it."""
    usage = "\n       ".join((main_usage, *JOB_COMMAND_USAGES))
    description = """\
Copies files and directory trees faithfully, with several processes at once.

  SRC      copied to DST, or into DST if that is an existing directory
  SRC/     with a trailing slash: the contents of SRC go into DST
"""
    examples = """\
examples:
  pcopy results /archive          copy results to /archive/results
  pcopy results/ /archive         copy what is in results into /archive
  pcopy -u results /archive       again, but only what has become newer
  pcopy -n 4 a b c /archive       three sources, four processes
  pcopy --no-preserve ownership --errors failed.jsonl /data/ /mnt/data

exit status:
  0 all done; 1 finished, but some items failed; 2 wrong usage or refused,
  nothing was touched; 70 internal error; 75 stopped early
"""

    def output_if_no_ranks_needed(self, words: Sequence[str]) -> str | None:
        """Return the text to print if no ranks are needed, as for ``--help`` or ``--jobs``; None if they are needed."""
        if (text := super().output_if_no_ranks_needed(words)) is not None:
            return text
        if not any(word == "--jobs" or word.startswith(("--discard", "--control")) for word in words):
            return None
        from pcopy.cli.job_commands import run_job_command
        from pcopy.launch.launcher import is_reporting_rank

        interrupts.restore_keyboard_interrupt()
        return run_job_command(self.parse_command_line(words, use_config_files=is_reporting_rank(os.environ)))

    def load_command(self) -> ToolEntryPoint:
        from pcopy.launch.tool import ToolEntryPoint
        from pcopy.tools.copy import CopyJob, CopyTool

        def prepare(words: Sequence[str], arguments: CopyArguments) -> CopyJob:
            if not arguments.options.dry_run:
                return CopyJob(words, arguments)
            from pcopy.tools.dry_run import DryRunJob

            return DryRunJob(words, arguments)

        return ToolEntryPoint(
            CopyTool(self.name), lambda words: self.parse_command_line(words, partial(prepare, words))
        )

    def options_settable_by_files(self, given: Collection[str]) -> Collection[str] | None:
        """Return the options (attributes of the namespace) that files may set if ``given`` are on the command line.

        None means all. If ``given`` contains a command on stored jobs, only the few options that such a command accepts
        may be set: a resumed job keeps its own options, and the other commands copy nothing.
        """
        command = next((command for command in JOB_COMMANDS if command in given), None)
        return None if command is None else options_with_command(self.options, command) - {"older_than"}

    def arguments_from_options(
        self, values: Namespace, paths: tuple[bytes, ...], words: Sequence[str]
    ) -> CopyArguments:
        from pcopy.tools.arguments import CopyArguments

        if "-t" in words:
            raise RequestRefused(f"-t: write DST last: {self.main_usage}; rsync's -t is the default: leave it out")
        refuse_unused_stripe_table(values)
        refuse_invalid_file_names(values, "signature", "manifest", "errors", "log")
        asked = requested_job_command(values, paths, words, self.parser, self.options)
        if asked.is_any_command_requested:
            paths = (b"",)  # A command on stored jobs has no SRC, and an empty DST.
        elif not paths:
            raise RequestRefused(
                f"SRC and DST are missing: {self.main_usage}{self._path_as_value_hint(words)}; see pcopy --help"
            )
        elif len(paths) == 1:
            hint = self._path_as_value_hint(words) or _hint_about_quoted_src_and_dst(paths[0])
            raise RequestRefused(
                f"DST is missing after {printable_path(paths[0])}: {self.main_usage}{hint}; see pcopy --help",
                path=paths[0],
            )
        output_options, existing = output_settings(values), _policy_for_existing_files(values)
        list_file = _path_of_path_list(values, words, self.parser)
        return CopyArguments(
            sources=paths[:-1],
            destination=paths[-1],
            no_target_directory=values.no_target_directory,
            ranks=values.ranks,
            in_flight=checked_in_flight_count(values),
            options=Options(
                preserve=_preserved_attributes(values.preserve or [])._replace(chown=values.chown),
                block_size=values.block_size,
                sync=not values.no_sync,
                max_errors=values.max_errors,
                bwlimit=values.bwlimit,
                oplimit=values.oplimit,
                hash=_requested_digest_algorithm(values),
                signature=absolute_path(os.fsencode(values.signature)) if values.signature else b"",
                manifest=absolute_path(os.fsencode(values.manifest)) if values.manifest else b"",
                direct=values.direct,
                drop_cache=values.drop_cache,
                termination=values.termination,
                sequential=_is_sequential_inplace(values, existing),
                one_file_system=values.one_file_system,
                select=requested_selection(values, paths, deletes_selected=values.delete or values.mirror),
                itemize=output_options.reported_items,
                dry_run=values.dry_run is not None,
            ),
            copy_options=CopyOptions(
                existing=existing,
                modify_window=values.modify_window,
                chunk_size=values.chunk_size,
                verify=values.verify or values.repair,
                repair=values.repair,
                reflink=values.reflink,
                fsync=values.fsync,
                stripe=values.stripe or "",
                stripe_table=values.stripe_table or "",
                stripe_affinity=values.stripe_affinity,
                group_lock=values.group_lock,
                checksum=values.checksum,
                inplace=values.inplace == "parallel",
                dereference=values.dereference,
                list_file=list_file,
                nul_separated=values.nul_separated,
                **deletion_option_fields(values, paths, self.name),
                **_requested_compression(values, existing),
            ),
            output=output_options,
            is_recorded=values.checkpoint != NO_CHECKPOINT_WORD,
            checkpoint=checkpoint_settings(values),
            job_request=asked,
            force=values.force,
            program=self.name,
            changeable_fields=changeable_fields(self.options),
        )

    def _path_as_value_hint(self, words: Sequence[str]) -> str:
        """Return a hint for the error that SRC or DST is missing: an option in ``words`` has taken an existing path as
        its value.

        Empty if there is no such option.
        """
        from pcopy.cli.configuration import command_line_options

        placeholders = (*FILE_PLACEHOLDERS, *DIRECTORY_PLACEHOLDERS)
        with_paths = {option.key for option in self.options if option.value in placeholders}
        for option in command_line_options(words, self.parser()):
            value = os.fsencode(option.raw_value) if isinstance(option.raw_value, str) else b""
            if os.path.isdir(value) or (os.path.lexists(value) and option.name not in with_paths):
                return f" (--{option.name} has taken {printable_path(value)} as its value)"
        return ""


def _hint_about_quoted_src_and_dst(path: bytes) -> str:
    """Return a hint for a message that DST is missing, if ``path`` seems to be SRC and DST in one pair of quotes.

    Else the result is empty.
    """
    first, space, _ = path.partition(b" ")
    if space and os.path.lexists(first) and not os.path.lexists(path):
        return " (SRC and DST are in one pair of quotes: quote each of them)"
    return ""


def _requested_digest_algorithm(values: Namespace) -> str:
    """Return the name of the digest algorithm that the copy uses; empty if no digests are computed.

    Raise ``RequestRefused`` if an option needs digests and ``--hash none`` excludes them, or if ``--verify`` is given
    with ``--no-sync``.
    """
    dependent = [name for name in ("signature", "manifest", "verify", "repair") if getattr(values, name)]
    if values.hash == "none" and dependent:
        raise RequestRefused(f"--{dependent[0]} needs digests, which --hash none leaves out; see pcopy --help")
    if values.no_sync and (values.verify or values.repair):
        option = "--verify" if values.verify else "--repair"
        raise RequestRefused(
            f"{option} reads copies from storage, but with --no-sync the copies may not be stored yet: leave one out"
        )
    if values.hash in (None, "none"):
        return DEFAULT_ALGORITHM if dependent else ""
    return str(values.hash)


def _policy_for_existing_files(values: Namespace) -> str:
    """Return the policy for existing files, one of ``EXISTING_CHOICES``.

    ``--checksum`` means the policy "changed", but with a comparison of contents instead of size and time. Raise
    ``RequestRefused`` if ``--existing`` requests another policy together with ``--checksum``.
    """
    policy = values.existing
    if not values.checksum:
        return str(policy or ("changed" if values.mirror else CopyOptions().existing))
    if policy not in (None, "changed"):
        raise RequestRefused(
            f"--checksum compares contents, --existing {policy} does not: leave one out; see pcopy --help"
        )
    return "changed"


def _is_sequential_inplace(values: Namespace, existing: str) -> bool:
    """Return True if ``--inplace=sequential`` is given: each file is written under its final name.

    Raise ``RequestRefused`` if the policy ``existing`` keeps existing files: it might keep a file that an interrupted
    copy left incomplete under its final name.
    """
    if values.inplace != "sequential":
        return False
    if existing in EXISTING_CHOICES_THAT_KEEP:
        raise RequestRefused(f"--inplace=sequential: {message_refusing_existing_choice(existing)}")
    return True


def _path_of_path_list(values: Namespace, words: Sequence[str], new_parser: Callable[[], ArgumentParser]) -> bytes:
    """Return the absolute path of the list of paths that ``--from`` names, ``-`` for standard input, or an empty
    path for no list.

    ``new_parser`` returns a new parser, with which the options ``words`` are parsed again. Raise ``RequestRefused`` if
    the value of ``--from`` is empty, if ``-0`` is given without it, or if patterns are also read from standard
    input.
    """
    name = requested_path_list(values.list_file, "pcopy", nul=values.nul_separated)
    if name is None:
        return b""
    if is_standard_input(name) and has_patterns_from_standard_input(words, new_parser()):
        raise RequestRefused("--from - and --exclude-from - both read standard input: name a file for one of them")
    return name.encode() if name == "-" else absolute_path(os.fsencode(name))


def _requested_compression(values: Namespace, existing: str) -> dict[str, Any]:
    """Return the values of ``--compress`` and ``--decompress`` as fields of ``CopyOptions``; empty if neither is given.

    ``existing`` is the policy for existing files. Raise ``RequestRefused`` if other options cannot be combined with
    these two.
    """
    if values.compress is None and not values.decompress:
        return {}
    from pcopy.cli.recode_options import compression_option_fields

    return compression_option_fields(values, existing)


def _preserved_attributes(requests: Sequence[tuple[str, Sequence[str]]]) -> PreservedMetadataKinds:
    """Return the attributes that copies get from their sources, as ``--preserve`` and ``--no-preserve`` request.

    ``requests`` has an entry for each of these options, in their order: "preserve" or "no_preserve", and the
    attributes. The first "preserve" replaces the default, which is all attributes; later ones add to it; "no_preserve"
    removes attributes.
    """
    kept = set(PRESERVABLE_METADATA)
    replaced = False
    for wish, words in requests:
        if wish == "no_preserve":
            kept.difference_update(words)
        else:
            kept = kept.union(words) if replaced else set(words)
            replaced = True
    return PreservedMetadataKinds(**{name: name in kept for name in PRESERVABLE_METADATA})  # type: ignore[arg-type]


PCOPY = PcopyCommandLine()
main, help_or_version, parse = PCOPY.main, PCOPY.help_or_version_text, PCOPY.parse_command_line
