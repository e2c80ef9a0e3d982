"""``dataclass`` for the classes of results: they behave as those that ``dataclasses`` makes, and are accepted by its
functions (``fields``, ``replace``, ``asdict``), but they are defined without it.

The module ``dataclasses`` imports ``inspect`` and compiles the methods of each class. For the classes of this package
that took 15 ms of processor time in the first call of a process, as much as a fifth of the program that it runs.
"""

from __future__ import annotations

from functools import cache

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from typing import Any
else:

    class field:  # noqa: N801
        """A default that ``default_factory`` makes for each object."""

        def __init__(self, *, default_factory: Callable[[], Any]) -> None:
            self.default_factory = default_factory

    def dataclass(cls: type | None = None, *, frozen: bool, kw_only: bool = False) -> Any:
        """Return ``cls`` with the methods of a dataclass. ``frozen`` must be True."""
        assert frozen
        if cls is None:
            return lambda decorated: dataclass(decorated, frozen=frozen, kw_only=kw_only)
        own = {name: cls.__dict__.get(name, _REQUIRED) for name in cls.__annotations__}
        cls._defaults = {**getattr(cls, "_defaults", {}), **own}
        cls._types = {**getattr(cls, "_types", {}), **cls.__annotations__}
        cls._is_keyword_only = kw_only
        cls.__match_args__ = () if kw_only else tuple(cls._defaults)
        for name, default in own.items():
            if isinstance(default, field):
                delattr(cls, name)
        for name, value in _METHODS.items():
            has_own = cls.__dict__.get(name) is not None  # A class with ``__eq__`` has ``__hash__`` None.
            if not (has_own or (name == "__repr__" and cls.__repr__ is not object.__repr__)):
                setattr(cls, name, value)
        return cls


_REQUIRED = object()
"""The default of a field that has none."""


def field_names(cls: type) -> Mapping[str, object]:
    """Return the names of the fields of a class, in their order, as the keys of a mapping."""
    names: Mapping[str, object] = cls._defaults  # type: ignore[attr-defined]
    return names


def _init(self: Any, *positional: object, **named: object) -> None:
    cls = type(self)
    if len(positional) > len(cls.__match_args__):
        raise TypeError(f"{cls.__name__} takes {len(cls.__match_args__)} positional arguments")
    given = dict(zip(cls.__match_args__, positional, strict=False))
    for name in named:
        if name not in cls._defaults or name in given:
            problem = "multiple values for" if name in given else "an unexpected"
            raise TypeError(f"{cls.__name__} got {problem} argument {name!r}")
    given.update(named)
    for name, default in cls._defaults.items():
        value = given.get(name, default)
        if value is _REQUIRED:
            raise TypeError(f"{cls.__name__} lacks the argument {name!r}")
        self.__dict__[name] = value.default_factory() if type(value) is field else value


def _values(record: Any) -> tuple[object, ...]:
    return tuple(getattr(record, name) for name in type(record)._defaults)


def _repr(self: Any) -> str:
    values = ", ".join(f"{name}={value!r}" for name, value in zip(type(self)._defaults, _values(self), strict=True))
    return f"{type(self).__qualname__}({values})"


def _eq(self: Any, other: object) -> Any:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _refuse_change(self: Any, name: str, *_: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"{name!r} of a {type(self).__name__} cannot be changed")


class _Attribute:
    """An attribute of dataclasses by which ``dataclasses`` and ``inspect`` examine a class; made when it is used."""

    def __init__(self, make: Callable[[type], Any]) -> None:
        self._make = make

    def __get__(self, instance: object, owner: type) -> Any:
        return self._make(_real_dataclass(owner))


@cache
def _real_dataclass(cls: Any) -> type:
    """Return a class that ``dataclasses`` has made of the fields of ``cls``."""
    import dataclasses

    body = {"__annotations__": cls._types, "__module__": cls.__module__}
    for name, default in cls._defaults.items():
        if type(default) is field:
            body[name] = dataclasses.field(default_factory=default.default_factory)
        elif default is not _REQUIRED:
            body[name] = default
    return dataclasses.dataclass(frozen=True, kw_only=cls._is_keyword_only)(type(cls.__name__, (), body))


def _signature(real: type) -> Any:
    import inspect

    return inspect.signature(real)


_METHODS = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _refuse_change,
    "__delattr__": _refuse_change,
    "__dataclass_fields__": _Attribute(lambda real: real.__dataclass_fields__),  # type: ignore[attr-defined]
    "__dataclass_params__": _Attribute(lambda real: real.__dataclass_params__),  # type: ignore[attr-defined]
    "__signature__": _Attribute(_signature),
}
