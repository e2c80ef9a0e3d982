"""What ranks say to each other, and its form on the wire.

A message on the wire is a pickle of one tuple of primitives, ``(code, field, ...)``. The unpickler that reads it
refuses every global, so no message can run code.
"""

from __future__ import annotations

import io
from _pickle import Unpickler, UnpicklingError, dumps  # what pickle hands on, which takes longer to load
from typing import Any, NoReturn, get_args

from pcopy.engine.task import Task
from pcopy.errors import INTERNAL, InvariantBroken
from pcopy.named import NamedTuple

SENDER = -1
"""Stands for the sender's own account."""


class Stamp(NamedTuple):
    """What each message of work carries for the detector: whose account it is on, how many credits of it, and how deep
    in the tree of engaged ranks that account's owner is."""

    account: int = SENDER
    credits: int = 1
    depth: int = 0


class Start(NamedTuple):
    """A phase begins: goes down the tree, and counts as work of its sender."""

    phase: int
    stamp: Stamp = Stamp()


class Work(NamedTuple):
    """Tasks addressed to the receiver."""

    phase: int
    tasks: tuple[Task, ...]
    stamp: Stamp = Stamp()


class Request(NamedTuple):
    """An idle rank asks for tasks, and lets the receiver wait for up to ``patience`` seconds for some."""

    phase: int
    sequence: int
    patience: float = 0.0


class Reply(NamedTuple):
    """The answer to a request; with tasks it counts as work."""

    phase: int
    sequence: int
    tasks: tuple[Task, ...]
    stamp: Stamp = Stamp()


class Signal(NamedTuple):
    """Dijkstra-Scholten's acknowledgement: ``received`` credits come home to the account of its receiver."""

    phase: int
    received: int


class Token(NamedTuple):
    """Safra's token: work sent less work received on the ranks that it has passed, and whether one was black."""

    phase: int
    surplus: int
    black: bool


class Query(NamedTuple):
    """The root asks for counters; goes down the tree and brings the last known totals, and its ``orders``
    (``pcopy.engine.steering``)."""

    sequence: int
    totals: tuple[int, ...]
    orders: tuple[Any, ...] = ()


class Answer(NamedTuple):
    """Sums over a subtree, at the root over all ranks; ``silent`` names ranks whose share in them is old.

    ``durable`` is the least of the subtree's durable epochs; ``reported`` are sums, too (``pcopy.engine.steering``).
    """

    sequence: int
    totals: tuple[int, ...]
    silent: tuple[int, ...]
    durable: int = 0
    reported: tuple[float, ...] = ()


class Epoch(NamedTuple):
    """All that the sender says after this has happened in this epoch, or in a later one (``pcopy.engine.journal``)."""

    number: int


LAST_EPOCH = 1 << 62
"""In it no rank keeps a journal any more; none comes after it."""


class Halt(NamedTuple):
    """The job stops in order: queued tasks are dropped, running ones end at their next slice.

    ``text`` is the reason in words, ``code`` what kind of reason it is, which the engine does not read.
    """

    text: str
    code: int = 0


class Abort(NamedTuple):
    """The job ends at once, with ``status``: a rank has failed; ``text`` is its traceback, or what has hindered it."""

    rank: int
    text: str
    status: int = INTERNAL


class Stop(NamedTuple):
    """All phases are over; ``status`` is the exit status of every rank."""

    status: int


class Ready(NamedTuple):
    """The sender's subtree has no message under way any more (the barrier, upward); ``words`` are its last ones."""

    words: bytes = b""


class Close(NamedTuple):
    """Everybody is ready: the transport may be closed (the barrier, downward)."""


Message = Start | Work | Request | Reply | Signal | Token | Query | Answer | Epoch | Halt | Abort | Stop | Ready | Close

Outgoing = list[tuple[int, Message]]
"""Destinations, and what they are to be told."""

_KINDS = dict(enumerate(get_args(Message)))
_CODES = {kind: code for code, kind in _KINDS.items()}
_COUNTS_AS_WORK = (Start, Work, Reply)


def dump_primitives(value: Any) -> bytes:
    """``value`` as a pickle of protocol 5."""
    return dumps(value, 5)


class PrimitiveUnpickler(Unpickler):
    """Reads primitives and containers of primitives; refuses every global."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise UnpicklingError(f"refused to load {module_name}.{global_name}")


def load_primitives(data: bytes | bytearray | memoryview) -> Any:
    """The value that ``dump_primitives`` wrote, if it is made of primitives only.

    Raises ``pickle.UnpicklingError`` (or what a damaged pickle raises) otherwise.
    """
    return PrimitiveUnpickler(io.BytesIO(data)).load()


def encode(message: Message) -> bytes:
    code = _CODES[type(message)]
    if not isinstance(message, _COUNTS_AS_WORK):
        return dump_primitives((code, *message))
    fields: dict[str, Any] = message._asdict()
    fields["stamp"] = tuple(message.stamp)
    if "tasks" in fields:
        fields["tasks"] = [tuple(task) for task in fields["tasks"]]
    return dump_primitives((code, *fields.values()))


def decode(data: bytes | bytearray | memoryview) -> Message:
    """The message whose wire form is ``data``; raises ``InvariantBroken`` for anything else."""
    try:
        code, *values = load_primitives(data)
        kind = _KINDS[code]
        if kind not in _COUNTS_AS_WORK:
            message: Message = kind(*values)
            return message
        fields = dict(zip(kind._fields, values, strict=True))
        fields["stamp"] = Stamp(*fields["stamp"])
        if "tasks" in fields:
            fields["tasks"] = tuple(Task(*task) for task in fields["tasks"])
        message = kind(**fields)
    except Exception as error:
        raise InvariantBroken(f"a message that is none of pcopy's: {error}") from error
    return message
