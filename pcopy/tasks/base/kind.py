"""Base classes of all kinds of tasks. A kind of task is one class; its fields are sent between ranks and stored in
checkpoints.

The class says how a task of this kind runs, which directory it is about, how it is divided between ranks, and what a
resumed job does with it. Messages and checkpoints name the kind by a number, its ``code``. A code is never reused for
another kind. ``TASK_FORMAT`` must be raised whenever a kind, a field of a kind, or a type of values that fields contain
(``pcopy.tasks.base.codec.FIELD_VALUE_TYPES``) is added, removed or changed.

Words: a *note* is a message to one rank in the form of a short task. A *slice* is what a running task does between two
yields; between slices the rank handles messages.
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
"""Version of the bytes to which tasks are packed. Add 1 whenever a field of any task changes.

Job files store it: a job that another version recorded is not resumed. Ranks compare it when they connect: all must
have the same version.
"""

TaskSteps = TicketGenerator[None]
"""Type of a running task: a generator that yields None at the end of each slice of work, or a ticket for which the task
waits. It returns nothing.
"""

MissingDirectories = Any
"""Type of ``pcopy.jobs.missing_directories.MissingDirectories``: the directories that somebody removed from the
destination while a job was stopped.

It is ``Any`` here because that module imports this one.
"""

KIND_BY_CODE: dict[int, type[TaskKind]] = {}
"""All kinds of tasks whose modules are loaded, by their code."""


@dataclass_transform(frozen_default=True, eq_default=False)
class TaskKind(tuple[Any, ...]):
    """Base class of all tasks: an immutable tuple of fields.

    A subclass with a code, such as ``class CopyFiles(DivisibleTask, code=10, doing="copying files of")``, declares its
    fields by annotations, as a dataclass does.
    """

    __slots__ = ()

    code: ClassVar[int]
    """Number that identifies the kind in messages and on disk. It is never used again for another kind."""
    fields: ClassVar[tuple[str, ...]]
    """Names of the fields, in the order of the values in the tuple."""
    defaults: ClassVar[dict[str, Any]]
    """Default values of those fields that have one, by name."""
    doing: ClassVar[str]
    """Description of the task's activity, for messages about a rank that does not answer, for example ``copying files
    of``. The path of the directory or item follows, if the task is about one.
    """
    is_note: ClassVar[bool]
    """True for a note: a short task that only passes information to one rank. A job that is being stopped still runs
    its notes.
    """
    is_dropped_on_stop: ClassVar[bool] = False
    """True for a note that a job that is being stopped drops nevertheless, because the note may have to wait for
    storage.
    """
    columns: ClassVar[tuple[str, ...]] = ()
    """For a ``DivisibleTask``: names of the fields that hold one value of fixed length for each name. When the task is
    divided, each portion gets the values that belong to its names.
    """
    depends_on_other_tasks: ClassVar[bool] = False
    """True if the task has something to do only if other tasks find something. If only such tasks remain, a resumed job
    does not go back to an earlier phase for them.
    """
    is_counted_if_unfinished: ClassVar[bool] = False
    """True if the counts of a task that does not end, because the job stops, appear in the summary nevertheless: what
    the task has changed or deleted cannot be undone.
    """

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
        """Create a task from field values, positional or by name. Raise ``TypeError`` for unknown fields or too many
        values.
        """
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
            raise InvariantBroken(
                f"{len(values)} fields instead of {len(cls.fields)} in a task of the kind {cls.__name__}"
            )
        return tuple.__new__(cls, values)

    def _replace(self, **fields: Any) -> Self:
        """Return a copy of the task with other values in the given ``fields``; named tuples have a method of the same
        name.
        """
        return type(self)(**{**dict(zip(self.fields, self, strict=True)), **fields})

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in zip(self.fields, self, strict=True))
        return f"{type(self).__name__}({', '.join(shown)})"

    def run(self, rank: Rank, result: Any) -> TaskSteps | None:
        """Run the task. Return a generator that runs it in slices, or None if the task finished within this call.

        Args:
            rank: the rank that runs the task.
            result: a ``TaskResult``, which collects what the task counts, spawns and reports.
        """
        raise NotImplementedError

    def subject(self) -> tuple[Place, bytes] | None:
        """Return the directory that the task is about and a name in it, for messages. Return None for a task that is
        about no directory.

        The name is ``b""`` if the task is about the directory itself. For a task about several items it is the first of
        their names.
        """
        raise NotImplementedError

    @property
    def attempt(self) -> int:
        """Number of earlier attempts of this run to process the task's items: 0 for the first attempt."""
        return 0

    operations_per_item: ClassVar[int] = 2
    """Number of metadata operations (open, stat, rename, ...) that each item of the task usually needs. --oplimit
    charges a task for them before it begins (docs/operations/limits.md).
    """

    @property
    def estimated_operations(self) -> int:
        """Estimated number of metadata operations (open, stat, rename, ...) of the whole task, as far as it is known
        before the task begins. --oplimit charges it.
        """
        return self.operations_per_item * max(1, self.item_count)

    is_respawned_on_resume: ClassVar[bool] = False
    """True if a resumed job discards tasks of this kind: it repeats the phase that spawned them from its start, so they
    are spawned again.
    """

    min_items_per_portion: ClassVar[int] = 4
    """Least number of items of each portion when the task is divided. Each task has a fixed cost, which these items
    share.
    """

    @property
    def item_count(self) -> int:
        """Number of items of a task that can be divided into several tasks; 0 if the task cannot be divided."""
        return 0

    def divide(self, portions: int) -> list[Self]:
        """Return tasks that together do the same as this one: the items in their order, about the same number in each
        task.

        Args:
            portions: number of tasks, from 1 to ``item_count``.
        """
        raise NotImplementedError

    def contained_directory_places(self) -> Iterator[Place]:
        """Yield the directories that the fields of the task contain, at any depth of nesting. If one of them has
        vanished, a resumed job replaces the task.
        """
        return directory_places_in_value(self)

    def carried_tasks(self) -> Iterator[TaskKind]:
        """Yield the tasks that this task carries as packed bytes, for example those that ``ReportFailures`` has for
        failed items.
        """
        return iter(())

    def locations_of_leftover_files(self, *, after_first_run: bool) -> Iterator[LeftoverLocation]:
        """Yield the directories in which temporary files of an interrupted run may remain: those that this task, or a
        task that it spawned and that was not recorded yet, has created.

        Args:
            after_first_run: True if the interrupted run was the first run of the job.
        """
        for place in self.contained_directory_places():
            yield LeftoverLocation(place.root, place.path, False)

    def remove_temporary_files(self, rank: Rank, since: int) -> None:
        """Remove the temporary files that the task needs to continue, if the run with the number ``since`` or a later
        run created them.

        This is called for a task that is dropped because the job stops and keeps nothing for a resume.
        """

    def with_first_run(self, since: tuple[int, int]) -> TaskKind:
        """Return the task with ``since``, the number and start time of a run, as ``Place.first_run`` of its
        directories: no earlier run has created anything for its items. So items that exist are not taken for the job's
        own.

        By default return the task unchanged.
        """
        return self

    def spawn_retry(self, rank: Rank, result: Any, phase: int) -> None:
        """Spawn this task again in a resumed job, after it failed in an earlier run.

        Args:
            rank, result: the rank, and the result of the task that reported the failure.
            phase: the first phase in which the task may run.
        """
        result.spawn_task(self, phase=phase, expands=phase == 0)

    def directories_written_by_retry(self) -> set[Place]:
        """Return the directories in which a retry of the task creates something. Their metadata (mode, owner, times)
        are set again afterwards.
        """
        return set()

    def assigned_rank(self, ranks: int) -> int | None:
        """Return the number of the only rank that can run the task, for a run with ``ranks`` ranks. Return None if the
        kind does not determine it: the spawning task may then name a rank, else any rank runs the task.
        """
        return None

    def with_reassigned_owner(self, task: Task, ranks: int) -> Task | None:
        """Return ``task`` with the owner (the only rank that may run it) that it has in a job that is resumed on
        ``ranks`` ranks. Return None if the resumed job creates the task anew, so that the recorded one is discarded.

        A task without an owner is unchanged. Otherwise the owner is ``assigned_rank``, or, if that is None, the old
        owner modulo the number of ranks.

        Args:
            task: the engine's description of this task, with its packed form.
        """
        home = self.assigned_rank(ranks)
        if home is None:
            home = task.owner % ranks if task.owner >= 0 else task.owner
        return task._replace(owner=home)

    @property
    def uncopied_item(self) -> Item | None:
        """The item (with all of its hard links) of whose inode this task creates the first copy; None if it creates
        none.
        """
        return None

    def register_for_resume(self, task: Task, missing: MissingDirectories) -> None:
        """Record in ``missing`` what other remaining tasks must know about this one before they are replaced, such as
        the directories that this task scans. ``task`` is the engine's description of this task.

        A resume calls this for all remaining tasks before it calls ``replacement_tasks`` of any.
        """

    def replacement_tasks(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield the tasks that a resumed job runs instead of this one. Usually that is only this task itself; other
        tasks are yielded if directories of this task were removed from the destination (``missing``), or if more hard
        links of an inode may be found. ``task`` is the engine's description of this task.
        """
        if missing.parents and any(map(missing.contains, self.contained_directory_places())):
            return self.replacement_tasks_if_directories_missing(task, missing)
        return self.tasks_regathering_links(task, missing) if missing.may_find_links else iter((task,))

    def replacement_tasks_if_directories_missing(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield the tasks that a resumed job runs instead of this one if some of its directories were removed from the
        destination (``missing``).

        Only the names (hard links) of one inode lie in several directories: tasks for the names in the other
        directories are yielded. All other tasks are about one directory, and nothing replaces them.
        """
        return (
            iter(())
            if self.uncopied_item is None
            else missing.tasks_resending_link_names(self.uncopied_item, self.uncopied_item.names)
        )

    def tasks_regathering_links(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        """Yield the tasks that a resumed job runs instead of this one if it may find more names (hard links) of any
        inode.

        If this task would create the first copy of an inode in the phase LINK, the names of the inode are collected
        again, together with the names that will be found. Otherwise the task itself is yielded.
        """
        return (
            iter((task,))
            if self.uncopied_item is None or task.phase != Phase.LINK
            else self.replacement_tasks_if_directories_missing(task, missing)
        )


class DirectoryTask(TaskKind):
    """Base class of tasks about the directory ``place``, in the source, in the target, or in both."""

    place: Place

    def subject(self) -> tuple[Place, bytes]:
        """Return the directory, and the name ``b""``, which stands for the directory itself."""
        return self.place, b""


class DivisibleTask(DirectoryTask):
    """Base class of tasks about several items of the directory ``place``. Such a task can be divided between ranks,
    because its items are processed independently of each other.

    Fields:
        place: the directory.
        names: names of the items, joined by slashes. The fields that ``columns`` lists hold one value for each name.
    """

    names: bytes

    @property
    def item_count(self) -> int:
        """Number of names in ``names``."""
        return self.names.count(b"/") + 1

    def divide(self, portions: int) -> list[Self]:
        """Return ``portions`` tasks that together do the same as this one. Each has consecutive names, and the values
        of the fields in ``columns`` that belong to these names.
        """
        at = portion_slices(self.item_count, portions)
        divided = {"names": split_names(self.names, at)}
        divided |= {field: split_column(getattr(self, field), at) for field in self.columns}
        return [
            self._replace(**dict(zip(divided, fields, strict=True))) for fields in zip(*divided.values(), strict=True)
        ]


class ItemTask(TaskKind):
    """Base class of tasks about one ``item`` with all of its names (hard links). Messages show the item by its first
    name.
    """

    item: Item

    def subject(self) -> tuple[Place, bytes]:
        """Return the directory and the first name of the item."""
        return self.item.names[0]

    @property
    def attempt(self) -> int:
        """Number of earlier attempts to copy the item in this run, from 0."""
        return self.item.attempt

    def directories_written_by_retry(self) -> set[Place]:
        """Return the directories of all names of the item: the copy or a hard link is created in each."""
        return {place for place, _ in self.item.names}

    def with_first_run(self, since: tuple[int, int]) -> Self:
        """Return a copy of the task in which the directories of all names of the item have ``since`` (number and start
        time of a run) as their ``first_run``.
        """
        names = tuple((place._replace(first_run=since), name) for place, name in self.item.names)
        return self._replace(item=self.item._replace(names=names))


class TaskWithoutDirectory(TaskKind, is_note=True):
    """Base class of tasks that are about no directory. Most of them are notes (messages to one rank in the form of a
    short task); a subclass that is none declares ``is_note=False``.
    """

    def subject(self) -> None:
        return None


class NoteDiscardedOnResume(TaskWithoutDirectory):
    """Base class of notes (messages in the form of short tasks) that a resumed job discards, because the tasks that it
    runs again create them anew.
    """

    def with_reassigned_owner(self, task: Task, ranks: int) -> None:
        return None


class LeftoverLocation(NamedTuple):
    """A target directory that may contain temporary files of an earlier run.

    Fields:
        root: index in ``Job.roots``.
        path: path of the directory below its root.
        is_recursive: True if all directories below it may contain some, too.
    """

    root: int
    path: bytes
    is_recursive: bool


def directory_places_in_value(value: Any) -> Iterator[Place]:
    """Yield all ``Place`` values that a task, or a value in one of its fields, contains at any depth of nesting."""
    if isinstance(value, Place):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from directory_places_in_value(part)
