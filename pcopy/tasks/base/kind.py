"""Base classes of all kinds of tasks. A kind of task is one class, and its fields are what travels between ranks and
what checkpoints store.

The class says how a task of this kind runs, which directory it is about, how it is divided, and what a resumed job does
with it. A kind is identified by its ``code``, in messages and on disk. A code is never reused for another kind.
``FORMAT`` rises whenever a kind, a field of a kind, or a part (``pcopy.tasks.base.codec``) is added, removed or
changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, ClassVar, Self, dataclass_transform

from pcopy.engine.task import Task
from pcopy.engine.ticket import TicketGenerator
from pcopy.errors import InvariantBroken
from pcopy.fast_named_tuple import NamedTuple
from pcopy.tasks.base.dividing import portion_slices, split_column, split_names
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Item, Place

TASK_FORMAT = 9
"""Version of the packed form of tasks."""

Steps = TicketGenerator[None]
"""Type of a running task: a generator that yields between slices, and returns nothing."""

MissingDirectories = Any
"""Type of ``pcopy.jobs.missing_directories.MissingDirectories``: the directories that vanished from the destination
while a job was stopped.

It is ``Any`` here because that module imports this one.
"""

KIND_BY_CODE: dict[int, type[TaskKind]] = {}
"""All kinds whose modules are loaded, by code."""


@dataclass_transform(frozen_default=True, eq_default=False)
class TaskKind(tuple[Any, ...]):
    """Base class of all tasks: an immutable tuple of fields.

    A subclass with a code, such as ``class CopyFiles(Kind, code=10, …)``, declares its fields by annotations, as a
    dataclass does.
    """

    __slots__ = ()

    code: ClassVar[int]
    """Number that identifies the kind in messages and on disk."""
    fields: ClassVar[tuple[str, ...]]
    """Names of the fields, in the order of the tuple."""
    defaults: ClassVar[dict[str, Any]]
    """Default values of fields, by name."""
    doing: ClassVar[str]
    """Description of the work for messages, for example ``copying files of``. The path of the directory or item
    follows, if the task is about one.
    """
    is_note: ClassVar[bool]
    """True for a note: a short task that only passes information to one rank. A job that stops still runs its notes."""
    is_dropped_on_stop: ClassVar[bool] = False
    """True for a note that a stopping job drops nevertheless, because it may wait for storage."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Names of the packed fields of a ``DivisibleTask`` that hold the same number of bytes for each of its names."""
    depends_on_other_tasks: ClassVar[bool] = False
    """True if the task is useful only when other tasks find something. A resumed job does not repeat an earlier phase
    for it alone.
    """
    is_counted_if_unfinished: ClassVar[bool] = False
    """True if the counts of an unfinished task appear in the summary when the job stops before the task ends."""

    def __init_subclass__(cls, *, code: int | None = None, doing: str = "", is_note: bool | None = None) -> None:
        """Register a subclass that has a ``code`` and create a property for each of its fields.

        Args:
            code: number of the kind. A class without one is a base class of several kinds; its fields come before
                theirs.
            doing, is_note: the class attributes of the same names.

        Raise ``TypeError`` if a required attribute or method is missing, or if another kind has the code.
        """
        if doing:
            cls.doing = doing
        if is_note is not None:
            cls.is_note = is_note
        if code is None:
            return
        for needed in ("doing", "is_note", "run", "subject"):
            if getattr(cls, needed, None) is getattr(TaskKind, needed, None):
                raise TypeError(f"the kind {cls.__name__} does not define {needed}")
        known = KIND_BY_CODE.setdefault(code, cls)
        if known is not cls and known.__qualname__ != cls.__qualname__:
            raise TypeError(f"{cls.__name__}: the code {code} belongs to {known.__name__}")
        cls.code = code
        shared = [
            base.__annotations__ for base in cls.__mro__[1:] if issubclass(base, TaskKind) and base is not TaskKind
        ]
        cls.fields = tuple(name for fields in (*reversed(shared), cls.__annotations__) for name in fields)
        cls.defaults = {name: cls.__dict__[name] for name in cls.fields if name in cls.__dict__}
        for index, name in enumerate(cls.fields):
            setattr(cls, name, property(itemgetter(index)))

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Create a task from field values, positional or by name. Raise ``TypeError`` for unknown or surplus fields."""
        names = cls.fields[len(values) :]
        if named.keys() - set(names) or len(values) > len(cls.fields):
            raise TypeError(f"{cls.__name__}: unexpected or too many fields; its fields are {', '.join(cls.fields)}")
        given = cls.defaults | named
        return tuple.__new__(cls, (*values, *(given[name] for name in names)))

    @classmethod
    def from_values(cls, values: list[Any]) -> Self:
        """Return the task with these ``values``, one for each field in order. Raise ``InvariantBroken`` if there are
        more or fewer values than fields.
        """
        if len(values) != len(cls.fields):
            raise InvariantBroken(f"{len(values)} fields of a task that has {len(cls.fields)}: {cls.__name__}")
        return tuple.__new__(cls, values)

    def _replace(self, **fields: Any) -> Self:
        """Return a copy of the task in which the given ``fields`` have other values, as a named tuple's ``_replace``
        does.
        """
        return type(self)(**{**dict(zip(self.fields, self, strict=True)), **fields})

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in zip(self.fields, self, strict=True))
        return f"{type(self).__name__}({', '.join(shown)})"

    def run(self, rank: Rank, result: Any) -> Steps | None:
        """Run the task. Return an iterator over its slices, or None if it finished within this call.

        Args:
            rank: the rank that runs the task.
            result: a ``Result``, which collects what the task counts, spawns and reports.
        """
        raise NotImplementedError

    def subject(self) -> tuple[Place, bytes] | None:
        """Return the directory that the task is about and a name in it, for messages. Return None for a task that is
        about no directory.

        The name is ``b""`` if the task is about the directory itself. For several items it is the first.
        """
        raise NotImplementedError

    @property
    def attempt(self) -> int:
        """Number of earlier attempts of this run to process the task's items: 0 for the first attempt."""
        return 0

    operations_per_item: ClassVar[int] = 2
    """Number of metadata operations that each item of the task usually needs (docs/operations/limits.md)."""

    @property
    def estimated_operations(self) -> int:
        """Estimated number of metadata operations of the whole task, as far as it is known before the task begins."""
        return self.operations_per_item * max(1, self.item_count)

    is_respawned_on_resume: ClassVar[bool] = False
    """True if a resumed job discards tasks of this kind, because it repeats the phase that spawned
    them from its start.
    """

    min_items_per_portion: ClassVar[int] = 4
    """Least number of items of a portion when the task is divided, so that the fixed cost of a task is shared by that
    many items.
    """

    @property
    def item_count(self) -> int:
        """Number of items among which the task can be divided; 0 if it cannot be divided."""
        return 0

    def divide(self, portions: int) -> list[Self]:
        """Return tasks that together do the same as this one, each with about the same number of items, in their order.

        Args:
            portions: number of tasks, from 1 to ``items``.
        """
        raise NotImplementedError

    def contained_places(self) -> Iterator[Place]:
        """Yield the directories that the fields of the task contain, at any depth of nesting."""
        return places_in(self)

    def packed_tasks(self) -> Iterator[TaskKind]:
        """Yield the tasks that are packed in this one, for example the retries in ``ReportFailures``."""
        return iter(())

    def leftover_locations(self, *, after_first_run: bool) -> Iterator[LeftoverLocation]:
        """Yield the directories in which this task may have left temporary files, or in which tasks that it spawned
        since the last record may have.

        Args:
            after_first_run: True if the interrupted run was the first run of the job.
        """
        for place in self.contained_places():
            yield LeftoverLocation(place.root, place.path, False)

    def remove_temporaries(self, rank: Rank, since: int) -> None:
        """Remove the temporary files that the task would have continued with, if the run ``since`` or a later run
        created them.

        It is called for tasks that were dropped because the job stops and keeps nothing for a resume.
        """

    def with_first_run(self, since: tuple[int, int]) -> TaskKind:
        """Return the task with the information that no run before ``since`` created anything for its items. ``since``
        is as in ``Place``.
        """
        return self

    def spawn_retry(self, rank: Rank, result: Any, phase: int) -> None:
        """Spawn the task in a resumed job after it failed in an earlier run.

        Args:
            phase: the first phase in which the task may run.
        """
        result.spawn(self, phase=phase, expands=phase == 0)

    def written_directories(self) -> set[Place]:
        """Return the directories in which a retry of the task creates something. They are finished (given their
        metadata) again afterwards.
        """
        return set()

    def assigned_rank(self, ranks: int) -> int | None:
        """Return the number of the only rank that can run the task, given the number of ``ranks``. Return None if the
        spawning task chooses it.
        """
        return None

    def reassigned(self, task: Task, ranks: int) -> Task | None:
        """Return ``task`` with the owner that it has in a job that is resumed on ``ranks`` ranks. Return None if the
        resumed job creates the task anew.

        A task without an owner is unchanged. A task with an owner keeps it, modulo the number of ranks.

        Args:
            task: the packed form of this task.
        """
        home = self.assigned_rank(ranks)
        if home is None:
            home = task.owner % ranks if task.owner >= 0 else task.owner
        return task._replace(owner=home)

    @property
    def uncopied_item(self) -> Item | None:
        """The item whose first copy the task creates; None if it creates none."""
        return None

    def register_for_resume(self, task: Task, missing: MissingDirectories) -> None:
        """Record in ``missing`` the facts about this task that decide what becomes of other tasks. ``task`` packs this
        one.

        It is called for all remaining tasks before ``mended`` is called for any.
        """

    def replacement_tasks(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield the tasks that a resumed job runs in place of this one, if directories vanished (``missing``) or could
        not be read. ``task`` packs this one.
        """
        if any(map(missing.contains, self.contained_places())):
            return self.tasks_without_missing(task, missing)
        return self.regrouped_tasks(task, missing) if missing.may_find_links else iter((task,))

    def tasks_without_missing(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield the tasks that replace this one if some of its directories vanished.

        Only the names of one inode lie in several directories; for all other tasks nothing remains.
        """
        return (
            iter(()) if self.uncopied_item is None else missing.link_notes(self.uncopied_item, self.uncopied_item.names)
        )

    def regrouped_tasks(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield the tasks that replace this one if a resumed job may find more names of any inode.

        Names whose copy was not created yet are grouped anew, together with the names that will be found.
        """
        return (
            iter((task,))
            if self.uncopied_item is None or task.phase != Phase.LINK
            else self.tasks_without_missing(task, missing)
        )


class DirectoryTask(TaskKind):
    """Base class of tasks about the directory ``place``."""

    place: Place

    def subject(self) -> tuple[Place, bytes]:
        """Return the directory itself."""
        return self.place, b""


class DivisibleTask(DirectoryTask):
    """Base class of tasks about several items of the directory ``place`` that can be divided between ranks.

    The items are processed independently of each other. ``names`` holds their names, joined by slashes; the fields
    listed in ``columns`` hold one value for each name.
    """

    names: bytes

    @property
    def item_count(self) -> int:
        """Number of names."""
        return self.names.count(b"/") + 1

    def divide(self, portions: int) -> list[Self]:
        """Return ``portions`` tasks, each with a contiguous part of the names and of all ``columns``."""
        at = portion_slices(self.item_count, portions)
        divided = {"names": split_names(self.names, at)}
        divided |= {field: split_column(getattr(self, field), at) for field in self.columns}
        return [
            self._replace(**dict(zip(divided, fields, strict=True))) for fields in zip(*divided.values(), strict=True)
        ]


class ItemTask(TaskKind):
    """Base class of tasks about one ``item``. In messages it is called by its first name."""

    item: Item

    def subject(self) -> tuple[Place, bytes]:
        """Return the directory and the first name of the item."""
        return self.item.names[0]

    @property
    def attempt(self) -> int:
        """The attempt that is recorded in the item."""
        return self.item.attempt

    def written_directories(self) -> set[Place]:
        """Return the directories of all names of the item."""
        return {place for place, _ in self.item.names}

    def with_first_run(self, since: tuple[int, int]) -> Self:
        """Return the task with ``since`` set in the directory of each name of the item."""
        names = tuple((place._replace(first_run=since), name) for place, name in self.item.names)
        return self._replace(item=self.item._replace(names=names))


class Note(TaskKind, is_note=True):
    """Base class of notes that pass information to one rank and are about no directory."""

    def subject(self) -> None:
        return None


class RecreatedNote(Note):
    """Base class of notes that a resumed job does not restore, because it creates them anew from the
    remaining tasks.
    """

    def reassigned(self, task: Task, ranks: int) -> None:
        return None


class LeftoverLocation(NamedTuple):
    """A directory that may contain temporary files of an earlier run.

    Fields:
        root: number of the root.
        path: path of the directory below the source.
        is_recursive: True if all directories below it are included.
    """

    root: int
    path: bytes
    is_recursive: bool


def places_in(value: Any) -> Iterator[Place]:
    """Yield all ``Place`` values that a task, or a part of one, contains at any depth of nesting."""
    if isinstance(value, Place):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from places_in(part)
