"""``pcopy.fast_named_tuple.NamedTuple``, compared with that of ``typing``."""

from __future__ import annotations

import copy
import pickle
import typing
from typing import Any

import pytest

from pcopy import fast_named_tuple


class Ours(fast_named_tuple.NamedTuple):
    """A named tuple with two default values."""

    first: int
    second: Any = b""
    third: tuple[int, ...] = ()

    @property
    def both(self) -> int:
        return self.first + len(self.third)

    @classmethod
    def made(cls, first: int) -> Ours:
        return cls(first, third=(first,))


class Theirs(typing.NamedTuple):
    """A named tuple with two default values."""

    first: int
    second: Any = b""
    third: tuple[int, ...] = ()

    @property
    def both(self) -> int:
        return self.first + len(self.third)

    @classmethod
    def made(cls, first: int) -> Theirs:
        return cls(first, third=(first,))


def test_fast_named_tuple_is_not_that_of_typing() -> None:
    assert fast_named_tuple.NamedTuple is not typing.NamedTuple


@pytest.mark.parametrize("name", ["_fields", "_field_defaults", "__match_args__", "__doc__", "__module__", "__slots__"])
def test_fast_class_has_the_attributes_of_typing_named_tuple(name: str) -> None:
    assert getattr(Ours, name) == getattr(Theirs, name)
    assert Ours.__annotations__.keys() == Theirs.__annotations__.keys()
    assert {type(Ours), type(Theirs)} == {type}
    assert Ours.__mro__[1:] == Theirs.__mro__[1:]


def test_fast_value_behaves_like_typing_named_tuple() -> None:
    ours, theirs = Ours.made(4), Theirs.made(4)
    assert tuple(ours) == tuple(theirs) == (4, b"", (4,))
    assert (ours.third, ours.both) == (theirs.third, theirs.both)
    assert ours._asdict() == theirs._asdict()
    assert tuple(ours._replace(second=2)) == tuple(theirs._replace(second=2))
    assert tuple(Ours._make([1, 2, (3,)])) == tuple(Theirs._make([1, 2, (3,)]))
    assert repr(ours).replace("Ours", "Theirs") == repr(theirs)
    assert type(pickle.loads(pickle.dumps(ours))) is Ours
    assert type(copy.copy(ours)) is Ours
    match ours:
        case Ours(first, _, third):
            assert (first, third) == (4, (4,))


@pytest.mark.parametrize("values", [(), (1, 2, (), 4)])
def test_wrong_number_of_values_is_refused(values: tuple[Any, ...]) -> None:
    for kind in (Ours, Theirs):
        with pytest.raises(TypeError):
            kind(*values)
