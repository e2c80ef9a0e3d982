"""Messages between ranks, and their wire format.

On the wire a message is a pickle of one tuple of primitives, ``(code, field, ...)``. The unpickler that reads it
refuses every global, so a message cannot run code.
"""

from __future__ import annotations

import io
from _pickle import Unpickler, UnpicklingError, dumps  # the module pickle re-exports these, but takes longer to load
from typing import Any, NoReturn, get_args

from pcopy.engine.task import Task
from pcopy.errors import EXIT_INTERNAL, InvariantBroken
from pcopy.fast_named_tuple import NamedTuple

SENDERS_ACCOUNT = -1
"""Value of ``Stamp.account`` that means the account of the message's sender."""


class Stamp(NamedTuple):
    """Credits that each message of work carries for the termination detector (see ``pcopy.engine.termination``).

    Attributes:
        account: rank whose account the credits belong to, or ``SENDERS_ACCOUNT``.
        credits: number of credits.
        depth: depth of the account's owner in the tree of engaged ranks.
    """

    account: int = SENDERS_ACCOUNT
    credits: int = 1
    depth: int = 0


class StartPhase(NamedTuple):
    """Message that begins a phase. Sent down the tree of ranks; counts as work of its sender."""

    phase: int
    stamp: Stamp = Stamp()


class AddressedTasks(NamedTuple):
    """Tasks that only the receiver may run. Counts as work."""

    phase: int
    tasks: tuple[Task, ...]
    stamp: Stamp = Stamp()


class TaskRequest(NamedTuple):
    """Request of an idle rank for tasks. The receiver may delay its reply for up to ``patience`` seconds until it has
    some.
    """

    phase: int
    sequence: int
    patience: float = 0.0


class TaskReply(NamedTuple):
    """Reply to a request for tasks. It counts as work if it contains tasks."""

    phase: int
    sequence: int
    tasks: tuple[Task, ...]
    stamp: Stamp = Stamp()


class CreditReturn(NamedTuple):
    """Acknowledgement of Dijkstra and Scholten's method: returns credits to the account of the receiver."""

    phase: int
    credits: int
    """Number of credits."""


class RingToken(NamedTuple):
    """Token of Safra's termination detector, which idle ranks pass around the ring of ranks."""

    phase: int
    surplus: int
    """Messages of work sent minus those received on the ranks that the token has passed."""
    is_black: bool
    """True if one of those ranks was black."""


class CounterQuery(NamedTuple):
    """Query of rank 0 for the counters of all ranks. Sent down the tree of ranks.

    Attributes:
        totals: the last known sums of all counters.
        orders: instructions to all ranks (see ``pcopy.engine.steering``).
    """

    sequence: int
    totals: tuple[int, ...]
    orders: tuple[Any, ...] = ()


class CounterSums(NamedTuple):
    """Answer to a ``CounterQuery``: sums over the sender's subtree. On rank 0, the sums over all ranks."""

    sequence: int
    totals: tuple[int, ...]
    """Sums of the counters."""
    silent_ranks: tuple[int, ...]
    """Ranks whose part of the sums is out of date."""
    durable_epoch: int = 0
    """The least durable epoch of the ranks in the subtree."""
    reported_sums: tuple[float, ...] = ()
    """Sums of the numbers that the ranks report (see ``pcopy.engine.steering``)."""


class EpochMarker(NamedTuple):
    """Marker: all later messages of the sender were sent in this epoch or a later one (``pcopy.engine.journal``)."""

    number: int


LAST_EPOCH = 1 << 62
"""Number of the final epoch, in which no rank keeps records any longer."""


class Halt(NamedTuple):
    """Message that stops the job in order: queued tasks are dropped, running tasks end after their current slice.

    Attributes:
        text: reason for the user.
        code: kind of reason; the engine does not interpret it.
    """

    text: str
    code: int = 0


class Abort(NamedTuple):
    """Message that ends the job immediately because a rank has failed.

    Attributes:
        rank: the rank that has failed.
        text: traceback, or the error that prevented the rank from continuing.
        status: exit status of all ranks.
    """

    rank: int
    text: str
    status: int = EXIT_INTERNAL


class Stop(NamedTuple):
    """Message that ends the job: all phases are over. ``status`` is the exit status of every rank."""

    status: int


class SubtreeReady(NamedTuple):
    """Upward message of the final barrier: no message is in transit in the sender's subtree any longer."""

    report: bytes = b""
    """Packed final report of the subtree's ranks (see ``pcopy.engine.barrier``)."""


class Close(NamedTuple):
    """Downward message of the final barrier: all ranks are ready, so the transport may be closed."""


Message = (
    StartPhase
    | AddressedTasks
    | TaskRequest
    | TaskReply
    | CreditReturn
    | RingToken
    | CounterQuery
    | CounterSums
    | EpochMarker
    | Halt
    | Abort
    | Stop
    | SubtreeReady
    | Close
)
"""Any message between ranks."""

OutgoingMessages = list[tuple[int, Message]]
"""Messages to be sent, each with its destination."""

_MESSAGE_TYPES = dict(enumerate(get_args(Message)))
_MESSAGE_CODES = {kind: code for code, kind in _MESSAGE_TYPES.items()}
_WORK_MESSAGES = (StartPhase, AddressedTasks, TaskReply)


def dump_primitives(value: Any) -> bytes:
    """Return ``value`` as a pickle of protocol 5."""
    return dumps(value, 5)


class PrimitiveUnpickler(Unpickler):
    """Unpickler for primitives and containers of primitives. It refuses every global."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise UnpicklingError(f"refused to load {module_name}.{global_name}")


def load_primitives(data: bytes | bytearray | memoryview) -> Any:
    """Return the value that ``dump_primitives`` packed.

    Raise ``pickle.UnpicklingError``, or whatever a damaged pickle raises, if ``data`` holds anything but primitives.
    """
    return PrimitiveUnpickler(io.BytesIO(data)).load()


def encode_message(message: Message) -> bytes:
    """Return the wire format of ``message``."""
    code = _MESSAGE_CODES[type(message)]
    if not isinstance(message, _WORK_MESSAGES):
        return dump_primitives((code, *message))
    fields: dict[str, Any] = message._asdict()
    fields["stamp"] = tuple(message.stamp)
    if "tasks" in fields:
        fields["tasks"] = [tuple(task) for task in fields["tasks"]]
    return dump_primitives((code, *fields.values()))


def decode_message(data: bytes | bytearray | memoryview) -> Message:
    """Return the message whose wire format is ``data``; raise ``InvariantBroken`` if it is not a message."""
    try:
        code, *values = load_primitives(data)
        kind = _MESSAGE_TYPES[code]
        if kind not in _WORK_MESSAGES:
            message: Message = kind(*values)
            return message
        fields = dict(zip(kind._fields, values, strict=True))
        fields["stamp"] = Stamp(*fields["stamp"])
        if "tasks" in fields:
            fields["tasks"] = tuple(Task(*task) for task in fields["tasks"])
        message = kind(**fields)
    except Exception as error:
        raise InvariantBroken(f"received data are not a message of pcopy: {error}") from error
    return message
