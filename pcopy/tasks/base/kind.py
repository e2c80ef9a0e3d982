"""A kind of task: one class in one file, which knows all that there is to know of it.

Its fields are what travels and what is stored; the class says how a task of the kind runs, what it is about, and what
becomes of it when a job is resumed. A kind is told apart by its ``code``, on the wire and on disk. A code is never
given to another kind, and ``FORMAT`` rises whenever a kind, a field of one, or a part (``pcopy.tasks.base.codec``)
comes, goes or changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, ClassVar, Self, dataclass_transform

from pcopy.engine.task import Task
from pcopy.engine.ticket import Stepwise
from pcopy.errors import InvariantBroken
from pcopy.named import NamedTuple
from pcopy.tasks.base.dividing import cut_column, cut_names, cuts
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Item, Place

FORMAT = 9
"""The version of what tasks are packed as."""

Steps = Stepwise[None]
"""A task as it runs."""

Gone = Any
"""What has gone from the destination while a job was stopped: ``pcopy.jobs.gone_directories.Gone``."""

KINDS: dict[int, type[Kind]] = {}
"""All kinds that are loaded, by their codes."""


@dataclass_transform(frozen_default=True, eq_default=False)
class Kind(tuple[Any, ...]):
    """The fields, in their order; ``class CopyFiles(Kind, code=10, …)`` annotates them as a dataclass does."""

    __slots__ = ()

    code: ClassVar[int]
    fields: ClassVar[tuple[str, ...]]
    defaults: ClassVar[dict[str, Any]]
    doing: ClassVar[str]
    """What a rank does with it, for people: ``copying files of``. The path follows, if it is about a directory."""
    is_note: ClassVar[bool]
    """Does it end at once and only tell one rank something, so that a job that stops still runs it?"""
    may_be_dropped: ClassVar[bool] = False
    """True for a note that a job which stops drops all the same, since it may wait for storage."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Of ``Divisible``: the fields that have as many bytes for each of the names."""
    waits_for_others: ClassVar[bool] = False
    """Is it only of use if other tasks find something, so that a resumed job begins no earlier phase for it?"""
    counts_when_cut: ClassVar[bool] = False
    """True if what it has counted is in the summary also where it does not come to its end, since the job stops."""

    def __init_subclass__(cls, *, code: int | None = None, doing: str = "", is_note: bool | None = None) -> None:
        """Without a ``code`` the class is what several kinds share, and no kind itself: its fields come first."""
        if doing:
            cls.doing = doing
        if is_note is not None:
            cls.is_note = is_note
        if code is None:
            return
        for needed in ("doing", "is_note", "run", "about"):
            if getattr(cls, needed, None) is getattr(Kind, needed, None):
                raise TypeError(f"the kind {cls.__name__} does not say {needed}")
        known = KINDS.setdefault(code, cls)
        if known is not cls and known.__qualname__ != cls.__qualname__:
            raise TypeError(f"{cls.__name__} has the code {code} of {known.__name__}")
        cls.code = code
        shared = [base.__annotations__ for base in cls.__mro__[1:] if issubclass(base, Kind) and base is not Kind]
        cls.fields = tuple(name for fields in (*reversed(shared), cls.__annotations__) for name in fields)
        cls.defaults = {name: cls.__dict__[name] for name in cls.fields if name in cls.__dict__}
        for index, name in enumerate(cls.fields):
            setattr(cls, name, property(itemgetter(index)))

    def __new__(cls, *values: Any, **named: Any) -> Self:
        names = cls.fields[len(values) :]
        if named.keys() - set(names) or len(values) > len(cls.fields):
            raise TypeError(f"{cls.__name__} has the fields {', '.join(cls.fields)}")
        given = cls.defaults | named
        return tuple.__new__(cls, (*values, *(given[name] for name in names)))

    @classmethod
    def of(cls, values: list[Any]) -> Self:
        """The task with these ``values``, one for each field; raises ``InvariantBroken`` if they are more or fewer."""
        if len(values) != len(cls.fields):
            raise InvariantBroken(f"{len(values)} fields of a task that has {len(cls.fields)}: {cls.__name__}")
        return tuple.__new__(cls, values)

    def _replace(self, **fields: Any) -> Self:
        """The same task, but for some ``fields``: as a named tuple's."""
        return type(self)(**{**dict(zip(self.fields, self, strict=True)), **fields})

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in zip(self.fields, self, strict=True))
        return f"{type(self).__name__}({', '.join(shown)})"

    def run(self, rank: Rank, result: Any) -> Steps | None:
        """Does it in slices, or at once (then there is nothing to iterate over); ``result`` is a ``Result``."""
        raise NotImplementedError

    def about(self) -> tuple[Place, bytes] | None:
        """The directory and the name in it (``b""``: itself) that the task is about, the first of several; or None."""
        raise NotImplementedError

    @property
    def attempt(self) -> int:
        """Which attempt at its items it is, counted from 0."""
        return 0

    operation_count: ClassVar[int] = 2
    """How many operations on metadata each of its items needs, as a rule (docs/operations/limits.md)."""

    @property
    def effort(self) -> int:
        """The operations of the whole task, as far as they are known when it begins."""
        return self.operation_count * max(1, self.items)

    is_found_anew: ClassVar[bool] = False
    """Is it left out of a job that goes on, since the phase in which it was spawned begins anew?"""

    least_items: ClassVar[int] = 4
    """How many items a portion has at least when it is divided: so many share what a task costs by itself."""

    @property
    def items(self) -> int:
        """How many items it can be divided between; 0 if it can't be divided."""
        return 0

    def divide(self, portions: int) -> list[Self]:
        """The same in so many tasks (from 1 up to ``items``), with about as many items each, in their order."""
        raise NotImplementedError

    def places(self) -> Iterator[Place]:
        """The directories that are named in it, however deep."""
        return places_in(self)

    def held(self) -> Iterator[Kind]:
        """Tasks that are packed in it."""
        return iter(())

    def leftovers(self, *, first: bool) -> Iterator[Left]:
        """Where it, or what has come of it since the last record, may have left temporary files.

        ``first``: no run was before the last one.
        """
        for place in self.places():
            yield Left(place.root, place.path, False)

    def discard(self, rank: Rank, since: int) -> None:
        """Removes what it would have gone on with, if the run ``since`` or a later one has made that.

        It was dropped in a job that stops, and of which nothing is kept.
        """

    def begun_now(self, since: tuple[int, int]) -> Kind:
        """The same, of items of which no earlier run has made anything. ``since`` as in ``Place``."""
        return self

    def try_again(self, rank: Rank, result: Any, phase: int) -> None:
        """Spawns it in a resumed job, after it had failed; ``phase`` is the first in which it may run."""
        result.spawn(self, phase=phase, expands=phase == 0)

    def puts_into(self) -> set[Place]:
        """The directories that it puts something into when it is tried again; they are finished once more then."""
        return set()

    def home(self, ranks: int) -> int | None:
        """The one of so many ``ranks`` that has to run it, wherever it comes from; None if who spawns it says that."""
        return None

    def readdress(self, task: Task, ranks: int) -> Task | None:
        """``task``, which packs this one, for a job that is resumed on so many ``ranks``; None if it is made anew.

        One that anybody may run stays as it is; one that is addressed keeps its rank, as far as there are as many.
        """
        home = self.home(ranks)
        if home is None:
            home = task.owner % ranks if task.owner >= 0 else task.owner
        return task._replace(owner=home)

    @property
    def unmade(self) -> Item | None:
        """The item of which it makes the first name."""
        return None

    def tell(self, task: Task, gone: Gone) -> None:
        """Tells ``gone`` what matters for other tasks, before any is mended. ``task`` packs this one."""

    def mended(self, task: Task, gone: Gone) -> Iterator[Task]:
        """What is to be done in its place in a resumed job, if directories have ``gone``, or could not be read."""
        if any(map(gone.has, self.places())):
            return self.reduced(task, gone)
        return self.gathered(task, gone) if gone.finds else iter((task,))

    def reduced(self, task: Task, gone: Gone) -> Iterator[Task]:
        """The same, if some of its directories have gone: only names of one inode lie in several."""
        return iter(()) if self.unmade is None else gone.released(self.unmade, self.unmade.names)

    def gathered(self, task: Task, gone: Gone) -> Iterator[Task]:
        """The same, if more names of any inode may be found: those that are not made meet with them."""
        return iter((task,)) if self.unmade is None or task.phase != Phase.LINK else self.reduced(task, gone)


class OfPlace(Kind):
    """It is about the directory ``place``."""

    place: Place

    def about(self) -> tuple[Place, bytes]:
        return self.place, b""


class Divisible(OfPlace):
    """It is about items of the directory ``place``: ``names``, joined by slashes, and ``columns`` beside them.

    What is done with an item does not depend on the others, so that it can be divided between them.
    """

    names: bytes

    @property
    def items(self) -> int:
        return self.names.count(b"/") + 1

    def divide(self, portions: int) -> list[Self]:
        at = cuts(self.items, portions)
        divided = {"names": cut_names(self.names, at)}
        divided |= {field: cut_column(getattr(self, field), at) for field in self.columns}
        return [
            self._replace(**dict(zip(divided, fields, strict=True))) for fields in zip(*divided.values(), strict=True)
        ]


class OfItem(Kind):
    """It is about ``item``, by its first name."""

    item: Item

    def about(self) -> tuple[Place, bytes]:
        return self.item.names[0]

    @property
    def attempt(self) -> int:
        return self.item.attempt

    def puts_into(self) -> set[Place]:
        return {place for place, _ in self.item.names}

    def begun_now(self, since: tuple[int, int]) -> Self:
        names = tuple((place._replace(since=since), name) for place, name in self.item.names)
        return self._replace(item=self.item._replace(names=names))


class Note(Kind, is_note=True):
    """It tells one rank something, and is about no directory."""

    def about(self) -> None:
        return None


class Again(Note):
    """A resumed job makes it anew, from what remains."""

    def readdress(self, task: Task, ranks: int) -> None:
        return None


class Left(NamedTuple):
    """A directory of a root, by its path in the source; with all ``below`` it, or without."""

    root: int
    path: bytes
    below: bool


def places_in(value: Any) -> Iterator[Place]:
    """All that are named in a task or a part of one, however deep."""
    if isinstance(value, Place):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from places_in(part)
