"""A replacement for ``typing.NamedTuple``: classes based on it are the same, but defined in less than half the time.

Each start of pcopy defines a hundred of them. ``typing`` compiles and examines the text of each annotation; here
annotations are only for mypy and readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from collections import namedtuple

    class _NamedTupleMetaclass(type):
        """Metaclass that turns a subclass of ``NamedTuple`` into a named tuple whose fields are the annotated names."""

        def __new__(making, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
            fields = body.get("__annotations__", {})
            defaults = [body[field] for field in fields if field in body]
            made = namedtuple(name, fields, defaults=defaults, module=body["__module__"])
            for key, value in body.items():
                if key not in fields:
                    setattr(made, key, value)
            return made

    NamedTuple = type.__new__(_NamedTupleMetaclass, "NamedTuple", (), {})
