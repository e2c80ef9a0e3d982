"""``python -m bench.kinds``: how each program processes each kind of item, and what each option costs.

The first table has a row for each kind of item (directories, symbolic links, files with a hole, …) and a column for
each program. A cell is a ratio: the time of the program, divided by the time of the usual tool for the same work (cp,
rsync, diff, find, du, tar, chmod, rm), and in parentheses the seconds of the program. The second table (``--options``)
has a row for each option of pcopy. Its ratio is the time with the option, divided by the time without it.

Each time is the median of some rounds. In a round all commands of a row take turns, so that other load on the machine
affects all of them equally. With ``--against CHECKOUT`` the programs of another checkout take turns, too, and each cell
has a second ratio: this checkout to that one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.timing import CHECKOUT_DIRECTORY, RunTime, command_environment, measure_commands
from bench.turns import measure_in_turns

DIRECTORIES = 100
"""Number of directories among which the items of a kind are distributed."""
SMALL_FILE = bytes(4096)
LONG_NAME = "n" * 200
BEFORE_1970, AFTER_2262 = -500_000_000, 11_000_000_000
"""Times in seconds since 1970 that do not fit into the usual range of 64-bit nanoseconds since then, or of unsigned
seconds.
"""
CLOCK_TICK = 0.01
"""Resolution of processor time in seconds."""


def _file(path: str, contents: bytes = SMALL_FILE) -> None:
    with open(path, "xb") as file:
        file.write(contents)


def _file_with_hole(path: str) -> None:
    with open(path, "xb") as file:
        file.truncate(262_144)
        file.seek(131_072)
        file.write(SMALL_FILE)


def _pair_of_links(path: str) -> None:
    _file(path)
    os.link(path, path + "l")


def _file_with_attribute(path: str) -> None:
    _file(path)
    os.setxattr(path, "user.k", b"value")


def _file_with_acl(path: str) -> None:
    _file(path)
    entries = ((1, 6, 0xFFFFFFFF), (2, 4, 1234), (4, 4, 0xFFFFFFFF), (16, 4, 0xFFFFFFFF), (32, 4, 0xFFFFFFFF))
    packed = b"".join(tag.to_bytes(2, "little") + mode.to_bytes(2, "little") + who.to_bytes(4, "little")
                      for tag, mode, who in entries)  # fmt: skip
    os.setxattr(path, "system.posix_acl_access", (2).to_bytes(4, "little") + packed)


def _file_of_owner(path: str) -> None:
    _file(path)
    os.chown(path, 1000 + len(path) % 7, 2000)


def _file_with_time(path: str, seconds: int) -> None:
    _file(path)
    os.utime(path, (seconds, seconds))


def _file_with_mode(path: str, mode: int) -> None:
    _file(path)
    os.chmod(path, mode)


def _directory(path: str) -> None:
    os.mkdir(path)
    os.chmod(path, 0o2775)


def _chain(path: str) -> None:
    os.makedirs(path + "/a/b")
    _file(path + "/a/b/c")


KINDS: Mapping[str, Callable[[str], None]] = {
    "small": _file,
    "empty": partial(_file, contents=b""),
    "64k": partial(_file, contents=bytes(65_536)),
    "symlink": partial(os.symlink, "../target/of/the/link"),
    "fifo": os.mkfifo,
    "hole": _file_with_hole,
    "pair": _pair_of_links,
    "xattr": _file_with_attribute,
    "acl": _file_with_acl,
    "owner": _file_of_owner,
    "old": partial(_file_with_time, seconds=BEFORE_1970),
    "far": partial(_file_with_time, seconds=AFTER_2262),
    "suid": partial(_file_with_mode, mode=0o4755),
    "closed": partial(_file_with_mode, mode=0),
    "long": lambda path: _file(path + LONG_NAME),
    "odd": lambda path: _file(path + "\udcff\n"),
    "dir": _directory,
    "chain": _chain,
}
"""Functions that create one item at a path, by the name of the kind. The name ``flat`` stands for small files in one
directory.
"""


class ComparedPrograms(NamedTuple):
    """A column of the table of kinds: the command of the ``usual`` tool, and ``ours``, each for a shell.

    ``prepare`` is a command that is run before each of both. In the commands ``$T`` is the tree, ``$C`` a copy of it,
    ``$O`` a path where nothing exists, ``$A`` an archive of the tree, ``$P`` the parent of the tree and ``$N`` its
    name there. A program of the checkout is preceded by ``@``.
    """

    usual: str
    ours: str
    prepare: str = ":"


_NEW = "rm -rf $O"
PROGRAMS: Mapping[str, ComparedPrograms] = {
    "copy": ComparedPrograms("cp -a $T $O", "@pcopy -q -n 2 -T $T $O", _NEW),
    "copy -n 1": ComparedPrograms("cp -a $T $O", "@pcopy -q -n 1 -T $T $O", _NEW),
    "again": ComparedPrograms("rsync -aHAX $T/ $C", "@psync -q -n 2 $T/ $C"),
    "two trees": ComparedPrograms("diff -rq --no-dereference $T $C", "@pverify -q -n 2 $T $C"),
    "compare": ComparedPrograms("diff -rq --no-dereference $T $C", "@pverify -q -n 2 --compare type,content $T $C"),
    "walk": ComparedPrograms("find $T", "@pwalk -n 2 $T"),
    "walk -ls": ComparedPrograms("find $T -ls", "@pwalk -n 2 $T -ls"),
    "sums": ComparedPrograms("du -s $T", "@pwalk -n 2 --summary $T"),
    "tar -c": ComparedPrograms(
        "tar --xattrs --acls -cf $A.new -C $P $N", "@ptar -q -n 2 -c -f $A.new -C $P $N", "rm -rf $A.new*"
    ),
    "tar -x": ComparedPrograms(
        "tar --xattrs --acls --warning=no-timestamp -xf $A -C $O", "@ptar -q -n 2 -x -f $A -C $O", f"{_NEW} && mkdir $O"
    ),
    "chmod": ComparedPrograms("chmod -R g-w,o+r $C", "@pchmod -q -n 2 g-w,o+r $C", "chmod -R g+w,o-r $C"),
    "rm": ComparedPrograms("rm -rf $O", "@prm -q --yes -n 2 $O", f"{_NEW} && cp -a $T $O"),
}
"""The columns of the table of kinds."""

OPTIONS: Mapping[str, str] = {
    name: words or name
    for name, words in {
        "-L": "",
        "-x": "",
        "--exclude": "--exclude=*.none",
        "--older-than": "--older-than=1d",
        "--files-from": "--from=$A.list",
        "--dry-run": "",
        "--log": "--log=$A.log",
        "--backup": "--backup=$A.backup",
        "--inplace": "",
        "--chown": "--chown=1000:1000",
        "--checksum": "",
        "--verify": "--verify",
        "--signature": "--signature=$A.signature",
        "--compress": "--compress=zstd",
        "--oplimit": "--oplimit=100000000",
        "--bwlimit": "--bwlimit=100G",
        "--hash": "--hash=xxh3-128",
        "--fsync": "",
        "--no-sync": "",
        "--in-flight": "--in-flight=4",
        "--max-errors": "--max-errors=10",
        "--reflink": "--reflink=auto",
        "--json": "--json",
        "-v": "",
        "replace": "--existing=replace",
        "changed": "--existing=changed",
        "newer": "--existing=newer",
        "skip": "--existing=skip",
        "--delete": "--mirror --delete",
        "--checksum again": "--existing=changed --checksum",
        "--inplace again": "--existing=replace --inplace",
        "--backup again": "--existing=replace --backup=$A.backup",
    }.items()
}
"""Words of the command line for each row of the table of options. The last rows copy over an existing copy."""
_OVER_EXISTING = ("replace", "changed", "newer", "skip", "--delete")


class Measurement(NamedTuple):
    """What all commands of a run of this program share: the directory of the trees, the number of items of a kind and
    of rounds, and the other checkout, if there is one. ``takes_processor_time`` selects processor time instead of wall
    time.
    """

    base: Path
    items: int
    rounds: int
    other: Path | None
    takes_processor_time: bool = False

    def environment(self, kind: str, checkout: Path) -> dict[str, str]:
        """Return the environment of the commands about the tree of this kind of item."""
        tree = self.base / kind
        places = {"T": tree, "C": f"{tree}.copy", "O": f"{tree}.out", "A": f"{tree}.archive", "P": self.base, "N": kind}
        places["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        places["XDG_STATE_HOME"] = self.base / "state"
        return {**command_environment(), **{name: str(path) for name, path in places.items()},
                "PYTHONPATH": str(checkout)}  # fmt: skip

    def medians(self, kind: str, commands: Mapping[str, tuple[str, Path]], prepare: str) -> dict[str, float]:
        """Run the commands in turns, each after ``prepare``, and return the median of the seconds of each."""

        def run(command: str, checkout: Path) -> RunTime:
            environment = self.environment(kind, checkout)
            subprocess.run(["sh", "-c", prepare], check=True, env=environment)
            # Only what differs: if the command fails, the exception shows these words.
            different = environment.items() - command_environment().items()
            return measure_commands(["env", *(f"{name}={value}" for name, value in sorted(different)), "sh", "-c",
                                     command.replace("@", f"{checkout}/bin/")])  # fmt: skip

        ways = {name: partial(run, *each) for name, each in commands.items()}
        field = RunTime._fields.index("processor" if self.takes_processor_time else "wall")
        times = measure_in_turns(ways, self.rounds)
        return {name: median(one[field] for one in times[name]) for name in ways}

    def checkouts(self) -> Iterator[tuple[str, Path]]:
        """Yield a label and the directory of each checkout that is measured."""
        yield "ours", CHECKOUT_DIRECTORY
        if self.other is not None:
            yield "other", self.other


def make_tree(base: Path, kind: str, items: int) -> None:
    """Create the tree ``kind`` in ``base``, with this number of items."""
    directories = 1 if kind == "flat" else DIRECTORIES
    for number in range(directories):
        (base / kind / f"d{number}").mkdir(parents=True)
    create = KINDS.get(kind, _file)
    for number in range(items):
        create(f"{base}/{kind}/d{number % directories}/i{number}")


def rows_of_kinds(measured: Measurement, kinds: Iterable[str], programs: Sequence[str]) -> Iterator[list[str]]:
    """Measure each kind of item, and yield a row of the table: the kind, and the cells of ``programs``."""
    for kind in kinds:
        make_tree(measured.base, kind, measured.items)
        shell = measured.environment(kind, CHECKOUT_DIRECTORY)
        subprocess.run(["sh", "-c", "cp -a $T $C && tar --xattrs --acls -cf $A -C $T ."], check=True, env=shell)
        yield [kind, *(_cell(measured, kind, PROGRAMS[program]) for program in programs)]
        subprocess.run(["sh", "-c", "rm -rf $T $C $O $A*"], check=True, env=shell)


def _cell(measured: Measurement, kind: str, compared: ComparedPrograms) -> str:
    """Return a cell of the table of kinds."""
    if kind == "fifo" and compared.usual.startswith("diff"):
        return "-"  # diff reads FIFOs, and waits
    commands = {"usual": (compared.usual, CHECKOUT_DIRECTORY)}
    commands |= {name: (compared.ours, checkout) for name, checkout in measured.checkouts()}
    return _ratios(measured.medians(kind, commands, compared.prepare), "usual")


def rows_of_options(measured: Measurement, options: Iterable[str]) -> Iterator[list[str]]:
    """Measure a copy with each option, and yield a row of the table: the option, and the cell."""
    kind = "small"
    make_tree(measured.base, kind, measured.items)
    shell = measured.environment(kind, CHECKOUT_DIRECTORY)
    names = "cd $T && find . -type f > $A.list && "
    subprocess.run(["sh", "-c", f"{names}find $T -exec touch -hd 2020-02-02 {{}} +"], check=True, env=shell)
    for option in options:
        is_again = option in _OVER_EXISTING or option.endswith(" again")
        prepare = f"rm -rf $O $A.log $A.backup $A.signature{' && cp -a $T $O' if is_again else ''}"
        without = "--existing=replace" if is_again else ""
        commands = {"without": (f"@pcopy -q -n 2 {without} -T $T $O", CHECKOUT_DIRECTORY)}
        for name, checkout in measured.checkouts():
            commands[name] = f"@pcopy -q -n 2 {OPTIONS[option]} -T $T $O", checkout
        yield [OPTIONS[option], _ratios(measured.medians(kind, commands, prepare), "without")]
    subprocess.run(["sh", "-c", "rm -rf $T $C $O $A*"], check=True, env=shell)


def _ratios(seconds: Mapping[str, float], against: str) -> str:
    """Return the text of a cell: ratio, seconds, and the ratio to the other checkout, if there is one."""
    ours, base = seconds["ours"], max(seconds[against], CLOCK_TICK)
    text = f"{ours / base:.2f} ({ours:.2f})"
    return f"{text} {ours / max(seconds['other'], CLOCK_TICK):.2f}" if "other" in seconds else text


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line selects, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.kinds", description=(__doc__ or "").partition("\n\n")[2])
    add = parser.add_argument
    add(
        "rows",
        nargs="*",
        metavar="KIND",
        help=f"kinds of items: {', '.join((*KINDS, 'flat'))} (KINDS in bench/kinds.py defines them); with --options: "
        "options. Write -- before them if they follow --programs, or are options",
    )
    add("--options", action="store_true", help="measure options of pcopy")
    add(
        "--programs",
        nargs="+",
        choices=PROGRAMS,
        default=[*PROGRAMS],
        metavar="PROGRAM",
        help=", ".join(PROGRAMS) + " (in quotes if they contain spaces)",
    )
    add("--items", type=int, default=20_000, help="number of items of each kind (%(default)s)")
    add("--rounds", type=int, default=3, help="number of runs of each command (%(default)s)")
    add("--processor", action="store_true", help="compare processor time, on a machine with other load")
    add("--against", type=Path, metavar="CHECKOUT", help="another checkout of pcopy, whose programs take turns, too")
    add("--base", type=Path, default=Path("/dev/shm"), metavar="DIR", help="where trees are made (%(default)s)")
    options = parser.parse_args(arguments)
    if options.against and not os.access(options.against / "bin/pcopy", os.X_OK):
        parser.error(f"--against: {options.against}/bin/pcopy: no such program; name the directory of a checkout")
    if not options.base.is_dir():
        parser.error(f"--base: {options.base}: not a directory")
    known = OPTIONS if options.options else {**KINDS, "flat": _file}
    if unknown := set(options.rows) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    with TemporaryDirectory(prefix="pcopy-kinds-", dir=options.base) as base:
        measured = Measurement(Path(base), options.items, options.rounds, options.against, options.processor)
        columns = ["time / time without"] if options.options else options.programs
        rows = (
            rows_of_options(measured, options.rows or OPTIONS)
            if options.options
            else rows_of_kinds(measured, options.rows or known, options.programs)
        )
        sys.stdout.write(f"| {options.items} items | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}\n")
        for row in rows:
            sys.stdout.write(f"| {' | '.join(row)} |\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
