"""The tasks of a model job: what pcopy's tasks do to files, in steps between which anything may happen.

They follow ``pcopy.tasks`` in what they write and in which order, what they hold, what they settle, and how they find
what an earlier run has left. Each ``yield`` is a moment at which messages come, facts are cut, or the world ends.
"""

from __future__ import annotations

import errno
import marshal
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any

from pcopy.engine.driver import Outcome
from pcopy.engine.task import Task, TaskId
from tests.recovery.datasets import BLOCKS, DIRECTORIES, FILES, LINKS, SKIPPED, Dataset, Path, SourceFile
from tests.recovery.files import Files, Problem
from tests.recovery.result import Result
from tests.recovery.rules import Rules

COPY, LINK, NAME, FINISH, SEAL = range(5)
LAST = SEAL

BUCKETS = 8
"""Inodes with several names are told apart by these, whatever the number of ranks."""

BATCH = 3
MOST_NAMES = 6
TRIES = 3
Names = Sequence[str]
Places = Sequence[tuple[int, str]]
Steps = Generator[None, None, None]


def address(task: Task) -> Task:
    """A note of a job that is resumed goes to the rank that the key in it leads to; the new run reduces it."""
    fields = marshal.loads(task.payload)
    key = KEYS.get(fields[0])
    return task if key is None else task._replace(owner=fields[key])


class Unfinished:
    """What the owner of a split file knows of its chunks."""

    def __init__(self, opened: tuple[Any, ...], parts: int) -> None:
        self.opened = opened
        self.remaining = parts
        self.stale = False
        self.held: list[TaskId] = []


class Copier:
    """One rank's memory, which ends with it."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        run: int,
        client: int,
        chunk: int,
        root: Path,
        dataset: Dataset,
        files: Files,
        rules: Rules,
        random: Random,
    ) -> None:
        self.rank, self.size, self.run, self.client = rank, size, run, client
        self.chunk, self.root = chunk, root
        self.dataset, self.files, self.rules, self.random = dataset, files, rules, random
        self.names_last = rules.named_last and dataset.existing != "replace"
        self.problems: list[str] = []
        self.phase = COPY
        self._temporaries = 0
        self._unfinished: dict[str, Unfinished] = {}
        self._early: dict[str, list[tuple[bool, TaskId]]] = {}
        self._links: dict[int, list[tuple[int, Any, TaskId]]] = {}

    def run_task(self, task: Task) -> Generator[None, None, Outcome]:
        kind, *fields = marshal.loads(task.payload)
        self.phase = task.phase
        result = Result(task, self.problems, holds=self.rules.notes_held)
        yield from RUNNERS[kind](self, result, *fields)
        if self.random.random() < 0.5:
            yield
        return Outcome(result.spawned, tuple(result.counts), tuple(result.settled), result.held)

    # What several tasks need.

    def directory(self, number: int) -> int:
        return self.files.walk(self.root + self.dataset.directories[number].path)

    def temporary(self) -> str:
        self._temporaries += 1
        run = f"{self.run}." if self.rules.run_in_names else ""
        return f".pcopy-{run}{self.rank}.{self._temporaries}"

    def is_stale(self, name: str) -> bool:
        """Is this the temporary file of an earlier run?"""
        if not name.startswith(".pcopy-") or self.run == 1 or not self.rules.stale_removed:
            return False
        return not self.rules.run_in_names or int(name.split(".")[1][len("pcopy-") :]) < self.run

    def keeps(self, result: Result, directory: int, name: str) -> bool:
        """Does a file that was there before stay? Then that is counted."""
        found = self.files.look(directory, name)
        if found is None or self.dataset.existing == "replace":
            return False
        return self._stays(result, name)

    def _stays(self, result: Result, name: str) -> bool:
        if self.dataset.existing == "fail":
            raise Problem(errno.EEXIST, name)
        result.count(SKIPPED)
        return True

    def copy_whole(self, directory: int, name: str, file: SourceFile) -> Generator[None, None, tuple[int, str]]:
        """In place, if nothing is there; else under a temporary name. Returns the inode, and what it is called."""
        files, client = self.files, self.client
        in_place = files.look(directory, name) is None and not self.names_last
        made_as = name if in_place else self.temporary()
        number = files.create(client, directory, made_as)
        yield
        files.resize(client, number, file.size)
        for block in range(file.size):
            files.write(client, number, block, file.block(block))
            yield
        files.attributes(client, number, file.mode, file.mtime)
        if not in_place and not self.names_last:
            yield
            files.rename(client, directory, made_as, name)
        return number, made_as

    # The tasks.

    def scan(self, result: Result, number: int) -> Steps:
        source, files = self.dataset.directories[number], self.files
        path = self.root + source.path
        above = files.walk(path[:-1])
        found = files.look(above, path[-1])
        if found is None:
            files.mkdir(self.client, above, path[-1])
        elif files.inode(found).mode & 0o700 != 0o700:
            files.attributes(self.client, found, files.inode(found).mode | 0o700)
        yield
        result.count(DIRECTORIES)
        result.spawn("finish_dir", number, phase=SEAL if source.mode == 0o555 else FINISH)
        for below in source.below:
            result.spawn("scan", below, expands=True)
        names = list(source.files)
        self.random.shuffle(names)
        if len(names) <= MOST_NAMES:
            self._sort(result, number, names)
        else:
            for at in range(0, len(names), MOST_NAMES):
                result.spawn("scan_names", number, names[at : at + MOST_NAMES], expands=True)

    def scan_names(self, result: Result, number: int, names: Names) -> Steps:
        self._sort(result, number, names)
        return
        yield

    def _sort(self, result: Result, number: int, names: Names) -> None:
        small, links = [], dict[int, list[str]]()
        for name in names:
            file = self.dataset.directories[number].files[name]
            if file.linked:
                links.setdefault(file.inode % BUCKETS, []).append(name)
            elif 2 * file.size >= 3 * self.chunk and file.readable:
                result.spawn("split", number, name, (), 0, self.run, cost=file.size)
            else:
                small.append(name)
        for at in range(0, len(small), BATCH):
            result.spawn("copy_files", number, small[at : at + BATCH], cost=3)
        for bucket, linked in links.items():
            result.spawn("link_note", bucket, number, linked, owner=bucket % self.size)

    def copy_files(self, result: Result, number: int, names: Names) -> Steps:
        for name in names:
            file = self.dataset.directories[number].files[name]
            try:
                directory = self.directory(number)
                if not self.keeps(result, directory, name):
                    if not file.readable:
                        raise Problem(errno.EACCES, "unreadable")
                    inode, made_as = yield from self.copy_whole(directory, name, file)
                    self._copied(result, number, name, (), inode, made_as)
            except Problem as problem:
                result.fail(problem)
            yield

    def split(self, result: Result, number: int, name: str, links: Places, tries: int, run: int) -> Steps:
        """A file that is too small for the chunks of this run is copied whole."""
        file, files = self.dataset.directories[number].files[name], self.files
        try:
            directory = self.directory(number)
            if self.keeps(result, directory, name):
                return
            if 2 * file.size < 3 * self.chunk:
                inode, made_as = yield from self.copy_whole(directory, name, file)
                self._copied(result, number, name, links, inode, made_as)
                return
            temporary = self.temporary()
            inode = files.create(self.client, directory, temporary)
            yield
            files.resize(self.client, inode, file.size)
        except Problem as problem:
            result.fail(problem)
            return
        starts = range(0, file.size, self.chunk)
        opened = (number, name, links, tries, run, temporary, inode)
        result.spawn("file_opened", self.rank, opened, len(starts), owner=self.rank)
        for start in starts:
            end = min(start + self.chunk, file.size)
            result.spawn("copy_chunk", self.rank, opened, start, end, cost=end - start)

    def _copied(self, result: Result, number: int, name: str, links: Any, inode: int, temporary: str) -> None:
        """What has a temporary name only is named, and counted, once it is durable."""
        if self.names_last:
            result.spawn("name_item", number, name, links, inode, temporary, phase=max(NAME, self.phase))
        else:
            self._named(result, number, name, links, inode)

    def name_item(self, result: Result, number: int, name: str, links: Places, inode: int, temporary: str) -> Steps:
        """Nothing is replaced; what has the name already is the item, or the user's."""
        files = self.files
        try:
            directory = self.directory(number)
            found = files.look(directory, name)
            if found is None and files.look(directory, temporary) == inode:
                files.rename(self.client, directory, temporary, name)
            elif found is None:
                raise Problem(errno.ENOENT, temporary)
            elif found != inode:
                if files.look(directory, temporary) == inode:
                    files.unlink(self.client, directory, temporary)
                self._stays(result, name)
                return
        except Problem as problem:
            result.fail(problem)
        else:
            yield
            self._named(result, number, name, links, inode)

    def _named(self, result: Result, number: int, name: str, links: Any, inode: int) -> None:
        result.count(FILES)
        result.count(BLOCKS, self.dataset.directories[number].files[name].size)
        if links:
            result.spawn("make_links", number, name, inode, links, cost=len(links))

    def copy_chunk(self, result: Result, owner: int, opened: Any, start: int, end: int) -> Steps:
        number, name, _, _, _, temporary, inode = opened
        file, files = self.dataset.directories[number].files[name], self.files
        stale = False
        try:
            if files.look(self.directory(number), temporary) != inode:
                raise Problem(errno.ENOENT, temporary)
            for block in range(start, end):
                yield
                files.write(self.client, inode, block, file.block(block))
        except Problem:
            stale = True
        result.spawn("chunk_done", owner, temporary, stale, owner=owner % self.size)

    def file_opened(self, result: Result, owner: int, opened: Any, parts: int) -> Steps:
        result.hold()
        unfinished = self._unfinished[opened[5]] = Unfinished(opened, parts)
        unfinished.held.append(result.id)
        for stale, note in self._early.pop(opened[5], ()):
            self._take(result, unfinished, stale, note)
        return
        yield

    def chunk_done(self, result: Result, owner: int, temporary: str, stale: bool) -> Steps:
        result.hold()
        unfinished = self._unfinished.get(temporary)
        if unfinished is None:
            assert self.run > 1
            self._early.setdefault(temporary, []).append((stale, result.id))
        else:
            self._take(result, unfinished, stale, result.id)
        return
        yield

    def _take(self, result: Result, unfinished: Unfinished, stale: bool, note: TaskId) -> None:
        unfinished.held.append(note)
        unfinished.stale |= stale
        unfinished.remaining -= 1
        if unfinished.remaining:
            return
        del self._unfinished[unfinished.opened[5]]
        result.settle(unfinished.held)
        if unfinished.stale:
            self._again(result, unfinished.opened)
        else:
            result.spawn("finish_file", unfinished.opened, owner=self.rank)

    def _again(self, result: Result, opened: Any) -> None:
        """A temporary file is not what it was: the file is split anew, three times in a run at most."""
        number, name, links, tries, run, _, _ = opened
        tries = tries + 1 if run == self.run else 1
        if tries > TRIES:
            result.fail(Problem(errno.EAGAIN, name))
        else:
            result.spawn("split", number, name, links, tries, self.run)

    def finish_file(self, result: Result, opened: Any) -> Steps:
        number, name, links, _, _, temporary, inode = opened
        file, files = self.dataset.directories[number].files[name], self.files
        try:
            directory = self.directory(number)
            if files.look(directory, temporary) == inode:
                files.attributes(self.client, inode, file.mode, file.mtime)
                yield
                if not self.names_last:
                    files.rename(self.client, directory, temporary, name)
            elif files.look(directory, name) == inode:  # an earlier run has renamed it
                files.attributes(self.client, inode, file.mode, file.mtime)
            else:
                self._again(result, opened)
                return
        except Problem as problem:
            result.fail(problem)
        else:
            self._copied(result, number, name, links, inode, temporary)

    def link_note(self, result: Result, bucket: int, number: int, names: Names) -> Steps:
        result.hold()
        if bucket not in self._links:
            result.spawn("group_links", bucket, phase=max(LINK, self.phase), owner=self.rank)
        self._links.setdefault(bucket, []).append((number, names, result.id))
        return
        yield

    def group_links(self, result: Result, bucket: int) -> Steps:
        groups: dict[int, list[tuple[int, str]]] = {}
        for number, names, note in self._links.pop(bucket, ()):
            result.settle([note])
            for name in names:
                groups.setdefault(self.dataset.directories[number].files[name].inode, []).append((number, name))
        for places in groups.values():
            result.spawn("link_group", places, cost=len(places))
        return
        yield

    def link_group(self, result: Result, places: Places) -> Steps:
        (number, name), links = places[0], places[1:]
        yield from self.split(result, number, name, tuple(links), 0, self.run)

    def make_links(self, result: Result, number: int, name: str, inode: int, links: Places) -> Steps:
        files = self.files
        for other, new in links:
            try:
                if files.look(self.directory(number), name) != inode:
                    raise Problem(errno.ENOENT, name)
                directory = self.directory(other)
                found = files.look(directory, new)
                if found != inode:
                    if found is not None:
                        files.unlink(self.client, directory, new)
                        yield
                    files.link(self.client, directory, new, inode)
                result.count(LINKS)
            except Problem as problem:
                result.fail(problem)
            yield

    def finish_dir(self, result: Result, number: int) -> Steps:
        source, files = self.dataset.directories[number], self.files
        try:
            directory = self.directory(number)
            for name in [name for name in files.list(directory) if self.is_stale(name)]:
                if not files.inode(directory).mode & 0o200:
                    files.attributes(self.client, directory, files.inode(directory).mode | 0o700)
                files.unlink(self.client, directory, name)
                yield
            files.attributes(self.client, directory, source.mode, source.mtime)
        except Problem as problem:
            result.fail(problem)


RUNNERS: dict[str, Callable[..., Steps]] = {
    kind: getattr(Copier, kind)
    for kind in (
        "scan", "scan_names", "copy_files", "split", "file_opened", "copy_chunk", "chunk_done", "finish_file",
        "name_item", "link_note", "group_links", "link_group", "make_links", "finish_dir",
    )
}  # fmt: skip

KEYS = {"file_opened": 1, "chunk_done": 1, "link_note": 1, "group_links": 1}
"""Which field of a note says where it belongs."""
