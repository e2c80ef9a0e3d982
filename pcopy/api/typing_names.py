"""Names of ``typing`` for the modules that each call loads. The module itself is not loaded: that takes as long as all
other modules of this package together.
"""

from __future__ import annotations

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any as Any
    from typing import Generic as Generic
    from typing import ParamSpec as ParamSpec
    from typing import TypeVar as TypeVar
    from typing import cast as cast
else:
    from types import GenericAlias

    Any = object

    class Generic:
        """Base class of classes with a type parameter, such as ``RunningJob[CopyResult]``."""

        __class_getitem__ = classmethod(GenericAlias)

    def TypeVar(name: str, **_: object) -> str:  # noqa: N802
        """Return the name of a type variable: annotations are only for mypy and readers."""
        return name

    ParamSpec = TypeVar

    def cast(_: object, value: object) -> object:
        """Return ``value``."""
        return value
