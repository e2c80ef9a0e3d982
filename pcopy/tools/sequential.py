"""Checks, before a job starts, of what the destination's file system can do (``pcopy.fsio.sequential``).

Some file systems, such as mounts of object stores, cannot rename files, or can only write them from start to end.
"""

from __future__ import annotations

from pcopy.errors import RequestRefused, path_refused
from pcopy.fsio.copy_methods import supports_rename_and_random_writes
from pcopy.fsio.sequential import DirectoryExamination, examine_supported_operations, examine_times_after_close
from pcopy.tasks.base.job import EXISTING_CHOICES_THAT_KEEP, CopyOptions, Options, message_refusing_existing_choice
from pcopy.text import printable_path


def options_for_destination(
    options: Options, path: bytes, copy_options: CopyOptions | None = None
) -> tuple[Options, list[str]]:
    """Return ``options`` adapted to a job that writes into the directory ``path``, and notices for the user.

    If files there can only be written from start to end and under their final names, ``sequential`` is set in the
    options, so that one rank writes each file in that way. Holes are then filled with zeros. Raise ``RequestRefused``
    if other options need renaming; ``copy_options`` are the options of a copy.
    """
    copying = copy_options or CopyOptions()
    notices: list[str] = []
    if not options.sequential:
        if supports_rename_and_random_writes(path):
            if options.preserve.timestamps and not options.dry_run:
                examine_times_after_close(path)
            return options, notices
        lacking, remaining_file = DirectoryExamination() if options.dry_run else examine_supported_operations(path)
        if remaining_file:
            notices.append(f"{remaining_file}: a file of pcopy's own is left there, since it cannot be removed")
        if not lacking:
            return options, notices
        why = f"{printable_path(path)}: the file system {lacking}"
        if copying.existing in EXISTING_CHOICES_THAT_KEEP:
            raise RequestRefused(f"{why}, and {message_refusing_existing_choice(copying.existing)}")
        if copying.backup:
            raise RequestRefused(f"{why}, and --backup would rename what is replaced: leave out --backup")
        notices.append(f"{why}: each file is written under its own name, in order, by one rank")
        options = options._replace(sequential=True)
    return options._replace(preserve=options.preserve._replace(sparse=False)), notices


def refuse_file_system_without_rename(path: bytes, file: bytes, advice: str, *, at_any_offset: bool) -> None:
    """Raise ``RequestRefused`` if the file system of the directory ``path`` cannot rename files.

    An output file could not be written there, because it has a temporary name until it is complete.

    Args:
        path: the directory.
        file: the path of the output file, for the message.
        advice: what the user can do, for the message.
        at_any_offset: True if the file is not written from start to end; then the file system must permit that, too.
    """
    if why := examine_supported_operations(path, writes=at_any_offset).reason_renaming_is_impossible:
        raise path_refused(file, f"cannot be created: {why}; {advice}")
