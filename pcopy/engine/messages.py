"""Messages between ranks, and their wire format.

On the wire a message is a pickle of one tuple of primitive values, ``(code of the type, field, ...)``. The unpickler
that reads it refuses every reference to a class or function, so a message cannot run code.

A *message of work* can give its receiver tasks: ``StartPhaseMessage``, ``AddressedTasksMessage``, and a ``TaskReply``
with tasks. The termination detector, which finds out when a phase is over on all ranks, counts these messages only.
"""

from __future__ import annotations

import io
from _pickle import Unpickler, UnpicklingError, dumps  # the module pickle re-exports these, but takes longer to load
from typing import Any, NoReturn, get_args

from pcopy.engine.task import Task
from pcopy.errors import EXIT_INTERNAL, InvariantBroken
from pcopy.fast_named_tuple import NamedTuple

CREDIT_ACCOUNT_OF_SENDER = -1
"""Value of ``TerminationCreditStamp.account`` that means: the credits of the message were issued by its sender."""


class TerminationCreditStamp(NamedTuple):
    """Credits that each message of work (one that can give its receiver tasks) carries. The termination detector must
    get all of them back before a phase is over (see ``pcopy.engine.termination``).

    Attributes:
        account: rank that has issued the credits and to which they must be returned, or ``CREDIT_ACCOUNT_OF_SENDER``.
        credits: number of credits.
        depth: depth of the rank ``account`` in the tree of engaged ranks (those that may have work); rank 0 has 0.
    """

    account: int = CREDIT_ACCOUNT_OF_SENDER
    credits: int = 1
    depth: int = 0


class StartPhaseMessage(NamedTuple):
    """Message that begins the phase number ``phase`` on its receiver. Each rank sends it to its child ranks in the tree
    of ranks. It counts as a message of work (one that can give its receiver tasks).
    """

    phase: int
    stamp: TerminationCreditStamp = TerminationCreditStamp()


class AddressedTasksMessage(NamedTuple):
    """Message with tasks of ``phase`` that only the receiver may run. A message of work: it carries credits of the
    termination detector (``stamp``).
    """

    phase: int
    tasks: tuple[Task, ...]
    stamp: TerminationCreditStamp = TerminationCreditStamp()


class TaskRequest(NamedTuple):
    """Message by which an idle rank requests tasks of ``phase`` from another rank.

    ``sequence`` is the number of the request among those of its sender. A receiver without tasks to give may delay its
    reply for up to ``patience`` seconds.
    """

    phase: int
    sequence: int
    patience: float = 0.0


class TaskReply(NamedTuple):
    """Message that answers a ``TaskRequest`` and repeats its phase and sequence number. If it contains tasks, the
    receiver runs them, and the message counts as a message of work.
    """

    phase: int
    sequence: int
    tasks: tuple[Task, ...]
    stamp: TerminationCreditStamp = TerminationCreditStamp()


class CreditReturnMessage(NamedTuple):
    """Message by which a rank without work returns credits to the rank that has issued them. So Dijkstra and Scholten's
    detector finds out that the phase is over.
    """

    phase: int
    credits: int
    """Number of credits that are returned."""


class RingToken(NamedTuple):
    """Token that ranks without work pass around the ring of ranks. So Safra's detector finds out that the phase
    ``phase`` is over.
    """

    phase: int
    surplus: int
    """Number of messages of work (which can give their receiver tasks) that the ranks visited by the token have sent,
    minus those that they have received.
    """
    is_black: bool
    """True if one of the ranks visited by the token has received a message of work since the token's visit before. Then
    the token must go around once more.
    """


class CounterQuery(NamedTuple):
    """Message by which rank 0 queries the counters of all ranks; each rank passes it on to its child ranks in the tree
    of ranks.

    Attributes:
        sequence: number of the query, in ascending order.
        totals: the last known sums of each counter over all ranks.
        orders: instructions of rank 0 to all ranks, such as to pause (see ``pcopy.engine.steering``).
    """

    sequence: int
    totals: tuple[int, ...]
    orders: tuple[Any, ...] = ()


class CounterSums(NamedTuple):
    """Answer to a ``CounterQuery``: sums over the sender and all ranks below it in the tree of ranks. The answer that
    rank 0 computes for itself has the sums over all ranks.
    """

    sequence: int
    """Number of the query that this message answers."""
    totals: tuple[int, ...]
    """Sum of each counter over the sender and the ranks below it."""
    silent_ranks: tuple[int, ...]
    """Some of the ranks (at most 16) that have not answered this query. The sums contain the last known numbers of such
    a rank.
    """
    durable_epoch: int = 0
    """Last epoch (numbered part of the run) for which all these ranks have brought their records of spawned and done
    tasks to stable storage; -1 if a rank can no longer bring its data or records to storage.
    """
    reported_sums: tuple[float, ...] = ()
    """Sums of other numbers that the ranks report to rank 0, such as the bytes used of a limit (see
    ``pcopy.engine.steering``).
    """


class EpochMarker(NamedTuple):
    """Message that a rank sends to another one before its first message of a new epoch (numbered part of the run): the
    sender has sent all messages that follow in the epoch ``number`` or a later one.

    The receiver must end its own earlier epochs before it processes the messages that follow
    (``pcopy.engine.journal``).
    """

    number: int


ABANDONED_EPOCH = 1 << 62
"""Number in place of an epoch (part of the run) that says: recording of the job was given up, because a rank cannot
write its records.
"""


class HaltMessage(NamedTuple):
    """Message that stops the job in order: ranks drop their queued tasks, and end running tasks at their next yield. A
    rank that wants to stop the job sends it up the tree of ranks; rank 0 then sends it down to all ranks.

    Attributes:
        text: reason of the stop, to be shown to the user.
        code: number of a signal, or another number for the kind of reason; the engine does not interpret it.
    """

    text: str
    code: int = 0


class AbortMessage(NamedTuple):
    """Message that ends the job immediately because a rank has failed.

    Attributes:
        rank: the rank that has failed.
        text: traceback, or the error that prevented the rank from continuing.
        status: exit status of all ranks.
    """

    rank: int
    text: str
    status: int = EXIT_INTERNAL


class EndJobMessage(NamedTuple):
    """Message that ends the job, because all phases are over. Each rank passes it on to its child ranks in the tree of
    ranks. ``status`` is the exit status of every rank.
    """

    status: int


class SubtreeReadyMessage(NamedTuple):
    """Message from a rank to its parent in the tree of ranks, in the barrier at the end of a job: the sender and all
    ranks below it have ended their work and await no reply.
    """

    report: bytes = b""
    """Final report of the sender and all ranks below it, such as statistics, combined and packed (see
    ``pcopy.engine.barrier``).
    """


class CloseTransportMessage(NamedTuple):
    """Message that rank 0 sends down the tree of ranks at the end of a job: all ranks are ready, so each may close its
    connections.
    """


Message = (
    StartPhaseMessage
    | AddressedTasksMessage
    | TaskRequest
    | TaskReply
    | CreditReturnMessage
    | RingToken
    | CounterQuery
    | CounterSums
    | EpochMarker
    | HaltMessage
    | AbortMessage
    | EndJobMessage
    | SubtreeReadyMessage
    | CloseTransportMessage
)
"""Any message between ranks."""

OutgoingMessages = list[tuple[int, Message]]
"""List of messages to be sent, as (number of the receiving rank, message)."""

_MESSAGE_TYPES = dict(enumerate(get_args(Message)))
_MESSAGE_CODES = {kind: code for code, kind in _MESSAGE_TYPES.items()}
_WORK_MESSAGES = (StartPhaseMessage, AddressedTasksMessage, TaskReply)


def length_of_common_prefix(before: bytes, following: bytes) -> int:
    """Return how many bytes at the beginning of ``before`` and ``following`` are equal.

    Paths that follow each other in a deep tree are sent and recorded without these bytes: the full paths of a chain of
    directories take memory in proportion to the square of its depth.
    """
    if following.startswith(before):
        return len(before)
    common, end = 0, min(len(before), len(following))
    while common < end:
        middle = (common + end + 1) // 2
        if following.startswith(before[common:middle], common):
            common = middle
        else:
            end = middle - 1
    return common


def dump_primitives(value: Any) -> bytes:
    """Return ``value`` as a pickle of protocol 5, without references to classes or functions. ``value`` consists of
    numbers, strings, bytes, None and containers of these.
    """
    return dumps(value, 5)


class PrimitiveUnpickler(Unpickler):
    """Unpickler for primitive values (numbers, strings, bytes, None) and containers of them.

    It raises ``UnpicklingError`` for a pickle that refers to a class or function, so that no code is run.
    """

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse a reference to a class or function by raising ``UnpicklingError``."""
        raise UnpicklingError(f"refused to load {module_name}.{global_name}")


def load_primitives(data: bytes | bytearray | memoryview) -> Any:
    """Return the value that ``dump_primitives`` packed.

    If ``data`` are something else, raise ``pickle.UnpicklingError`` or any other exception that a damaged pickle
    causes.
    """
    return PrimitiveUnpickler(io.BytesIO(data)).load()


def encode_message(message: Message) -> bytes:
    """Return ``message`` as bytes to be sent to another rank."""
    code = _MESSAGE_CODES[type(message)]
    if not isinstance(message, _WORK_MESSAGES):
        return dump_primitives((code, *message))
    fields: dict[str, Any] = message._asdict()
    fields["stamp"] = tuple(message.stamp)
    if "tasks" in fields:
        fields["tasks"] = [tuple(task) for task in fields["tasks"]]
    return dump_primitives((code, *fields.values()))


def decode_message(data: bytes | bytearray | memoryview) -> Message:
    """Return the message that ``encode_message`` has converted to the bytes ``data``; raise ``InvariantBroken`` if they
    are not a message.
    """
    try:
        code, *values = load_primitives(data)
        kind = _MESSAGE_TYPES[code]
        if kind not in _WORK_MESSAGES:
            message: Message = kind(*values)
            return message
        fields = dict(zip(kind._fields, values, strict=True))
        fields["stamp"] = TerminationCreditStamp(*fields["stamp"])
        if "tasks" in fields:
            fields["tasks"] = tuple(Task(*task) for task in fields["tasks"])
        message = kind(**fields)
    except Exception as error:
        raise InvariantBroken(f"received data are not a message of pcopy: {error}") from error
    return message
