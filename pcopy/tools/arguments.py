"""The command lines of the programs, understood: values that ``pcopy.cli`` makes of words.

Rule: a resumed job copies what it was asked to copy. Options that say how it works may be given anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pcopy.errors import Refused
from pcopy.jobs.control import Change
from pcopy.jobs.lifecycle import Keeping, resuming
from pcopy.named import NamedTuple
from pcopy.report.screen import Telling
from pcopy.tasks.base.job import Options
from pcopy.text import shown

if TYPE_CHECKING:
    from pcopy.jobs.directories import StoredJob
    from pcopy.tasks.base.job import Root
    from pcopy.walk.expression import Expression

_RENEWED = {
    "max_errors": "max_errors",
    "termination": "termination",
    "no_sync": "sync",
    "bwlimit": "bwlimit",
    "oplimit": "oplimit",
}
_NOT_ASKED = {
    *_RENEWED.values(),
    *("umask", "dry_run", "select", "itemize", "after", "before", "nul_separated", "walk", "sequential"),
}
_IMPLY_A_HASH = frozenset(("--signature", "--manifest", "--verify", "--repair"))
_WORDS = {"patterns": "--exclude and --include"}


ALONE = b""
"""What ``--resume`` means without a job: the only one that there is."""


class Asked(NamedTuple):
    """What is to be done with older jobs, if anything; ``given`` are the options that came with that.

    The job ``control`` is to be changed as ``change`` says.
    ``discard`` names jobs, or is empty where all that nobody has worked on for ``older_than`` seconds are meant.
    """

    resume: bytes | None = None
    jobs: bool = False
    discard: tuple[bytes, ...] | None = None
    given: frozenset[str] = frozenset()
    older_than: float | None = None
    control: bytes | None = None
    change: Change = Change()

    @property
    def anything(self) -> bool:
        is_asked = self.resume is not None or self.discard is not None or self.control is not None
        return self.jobs or is_asked


class CopyArguments(NamedTuple):
    """A command line, understood.

    ``ranks`` is 0 where ``-n`` was not given, and ``in_flight`` where that is automatic; ``options.umask`` is left at
    its default. Where an older job is ``asked`` for, ``sources`` and ``destination`` are empty. ``keeping.directory``
    is empty where the user has named none. ``force``: also where there seems to be too little room.
    """

    sources: tuple[bytes, ...]
    destination: bytes
    no_target_directory: bool = False
    ranks: int = 0
    in_flight: int = 0
    options: Options = Options()
    telling: Telling = Telling()
    is_kept: bool = True
    keeping: Keeping = Keeping()
    asked: Asked = Asked()
    force: bool = False
    program: str = "pcopy"


class ByProperties(NamedTuple):
    """The properties by which two trees are compared (bits of ``pcopy.tasks.compare.properties``), and seconds by which
    times may differ; classes of items and the files that list them. ``nul``: paths in these end with a NUL."""

    wanted: int
    window: int = 0
    lists: tuple[tuple[str, bytes], ...] = ()
    nul: bool = False


class VerifyArguments(NamedTuple):
    """A command line, understood; in its options a ``block_size`` of 0 and an empty ``hash`` were not given."""

    paths: tuple[bytes, ...]
    create: bytes = b""
    manifest: bytes = b""
    ranks: int = 0
    in_flight: int = 0
    options: Options = Options(sync=False, block_size=0)
    telling: Telling = Telling()
    force: bool = False
    comparison: ByProperties | None = None


class TreeArguments(NamedTuple):
    """What the command lines of all tools say that go through trees in place."""

    paths: tuple[bytes, ...]
    ranks: int = 0
    in_flight: int = 0
    options: Options = Options(sync=False)
    telling: Telling = Telling()
    listing: bytes = b""
    """The file of ``--from``, or empty: then ``paths`` are not taken, and one at most is there, in which all lies."""
    nul: bool = False


class RemoveArguments(NamedTuple):
    """A command line, understood. ``missing_is_fine``: a path that is not there is no failure. ``whole``: directories
    that a list names go with all that is in them."""

    tree: TreeArguments
    yes: bool = False
    missing_is_fine: bool = False
    whole: bool = False


class ArchiveArguments(NamedTuple):
    """A command line of ptar, understood. ``directory`` is where paths begin, or members go."""

    archive: bytes
    paths: tuple[bytes, ...]
    directory: bytes = b""
    ranks: int = 0
    in_flight: int = 0
    options: Options = Options()
    telling: Telling = Telling()
    listing: bytes = b""
    """The file that lists what is archived; ``nul``: paths in it end with a NUL."""
    nul: bool = False


class StripeArguments(NamedTuple):
    """A command line, understood. ``stripe`` is empty where layouts are only looked at."""

    tree: TreeArguments
    stripe: str = ""
    stripe_table: str = ""


class BroadcastArguments(NamedTuple):
    """A command line, understood."""

    files: tuple[bytes, ...]
    directory: bytes
    bwlimit: int = 0
    sync: bool = True
    fsync: bool = False
    dry_run: bool = False
    termination: str = "tree"
    telling: Telling = Telling()


class BenchArguments(NamedTuple):
    """A command line, understood. ``files`` and ``size`` (bytes) are those of each rank; a measurement takes so many
    ``seconds``, and is made as often as ``repeats`` says. ``blocks`` are sizes in bytes; without ``tests`` all are
    made; ``svg`` is a file, or empty."""

    directory: bytes
    files: int
    size: int
    seconds: float
    blocks: tuple[int, ...]
    repeats: int = 1
    tests: tuple[str, ...] = ()
    direct: bool = False
    most_in_flight: int = 1
    ranks: int = 0
    svg: bytes = b""
    dry_run: bool = False
    termination: str = "tree"
    telling: Telling = Telling()


class WalkArguments(NamedTuple):
    """A command line, understood. ``now`` is when it was: ages count back from then."""

    tree: TreeArguments
    expression: Expression
    outputs: tuple[bytes, ...] = ()
    sort: str = ""
    fields: tuple[str, ...] = ()
    nul: bool = False
    json_lines: bool = False
    ls: bool = False
    summary: bool = False
    base: bytes = b""
    page: bytes = b""
    force: bool = False
    now: int = 0


class ChangeArguments(NamedTuple):
    """A command line, understood; ``change`` as in ``Options``."""

    tree: TreeArguments
    change: tuple[str, int, int, bytes, bytes] = ("", -1, -1, b"", b"")

    @property
    def names_owner(self) -> bool:
        """Do items get another owner or group?"""
        return self.change[1:3] != (-1, -1)

    @property
    def is_owner_alone(self) -> bool:
        """Do they get nothing else?"""
        return self.names_owner and not (self.change[0] or self.change[3])


def asked_for(arguments: CopyArguments) -> dict[str, Any]:
    """What a command line asks to be left in the destination, for comparison with a stored job, by option.

    The paths are as the user gave them, from the root: what DST resolves to changes as soon as it exists.
    """
    wanted: dict[str, Any] = {
        "SRC": tuple(_from_root(source) for source in arguments.sources),
        "DST": _from_root(arguments.destination),
        "--no-target-directory": arguments.no_target_directory,
    }
    options = {**arguments.options._asdict(), **arguments.options.select._asdict()}
    for name, value in options.items():
        if name not in _NOT_ASKED:
            word = _WORDS.get(name) or "--" + name.replace("_", "-")
            wanted[word] = tuple(value) if isinstance(value, tuple) else value
    return wanted


def refuse_different(
    stored: StoredJob, arguments: CopyArguments, words: Sequence[str], resolved: Callable[[], Sequence[Root]]
) -> None:
    """Raises ``Refused`` if the job was begun with other ``arguments`` than these, which ``words`` say.

    What DST means may have changed since: so its words and these are compared by what they mean now, which for these
    is ``resolved``.
    """
    from pcopy.jobs.earlier_jobs import are_same, means_now

    different = stored.file.differing(asked_for(arguments))
    if {"SRC", "DST"}.intersection(different) and are_same(means_now(stored.file), resolved()):
        different = [each for each in different if each not in ("SRC", "DST")]
    is_named = any(word.partition("=")[0] == "--hash" for word in words)
    if "--hash" in different and _IMPLY_A_HASH.intersection(different) and not is_named:
        different.remove("--hash")
    if different:
        raise Refused(
            f"{shown(arguments.keeping.directory)}: holds an unfinished job with other arguments "
            f"(different: {', '.join(different)}): name another directory, "
            f"or go on with it: {resuming(stored.path)}"
        )


def _from_root(path: bytes) -> bytes:
    """``path`` as it was given, behind the current directory if that matters; where it does not, there may be none."""
    return path if path.startswith(b"/") else os.path.join(os.getcwdb(), path)


def renewed(stored: Options, now: Options, given: frozenset[str] | None) -> Options:
    """The options of a resumed job: the stored ones, but for those that were ``given`` now; None: on a whole command
    line, on which an option that is missing has its default. Raises ``Refused``."""
    fields = {field: getattr(now, field) for name, field in _RENEWED.items() if given is None or name in given}
    options = stored._replace(**fields, itemize=now.itemize)
    if options.verify and not options.sync:
        raise Refused("--no-sync leaves nothing on storage that the job's --verify could read back: leave it out")
    return options
