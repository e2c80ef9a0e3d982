"""The wire form: what is sent arrives as it was, and nothing else is ever taken for a message."""

from __future__ import annotations

import contextlib
import os
import pickle
from typing import get_args, get_type_hints

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pcopy.engine.messages import (
    AbortMessage,
    AddressedTasksMessage,
    CloseTransportMessage,
    CounterQuery,
    CounterSums,
    CreditReturnMessage,
    EndJobMessage,
    EpochMarker,
    HaltMessage,
    Message,
    RingToken,
    StartPhaseMessage,
    SubtreeReadyMessage,
    TaskReply,
    TaskRequest,
    decode_message,
    encode_message,
    length_of_common_prefix,
    load_primitives,
)
from pcopy.engine.task import TASK_OVERHEAD_BYTES, Task
from pcopy.errors import InvariantBroken

deterministic = settings(max_examples=150, deadline=None, derandomize=True, database=None)

numbers = st.integers(-1, 1 << 70)
tasks = st.builds(
    Task, st.tuples(numbers, numbers, numbers), numbers, st.binary(max_size=50), numbers, st.booleans(), numbers
)
batches = st.lists(tasks, max_size=5).map(tuple)
rows = st.lists(numbers, max_size=20).map(tuple)
sums = st.lists(numbers | st.floats(allow_nan=False), max_size=8).map(tuple)
orders = st.lists(numbers | st.text(max_size=9) | st.booleans() | sums, max_size=8).map(tuple)
messages = st.one_of(
    st.builds(StartPhaseMessage, numbers),
    st.builds(AddressedTasksMessage, numbers, batches),
    st.builds(TaskRequest, numbers, numbers),
    st.builds(TaskReply, numbers, numbers, batches),
    st.builds(CreditReturnMessage, numbers, numbers),
    st.builds(RingToken, numbers, numbers, st.booleans()),
    st.builds(CounterQuery, numbers, rows, orders),
    st.builds(CounterSums, numbers, rows, rows, numbers, sums),
    st.builds(HaltMessage, st.text(), numbers),
    st.builds(AbortMessage, numbers, st.text(), st.text()),
    st.builds(EndJobMessage, numbers),
    st.builds(SubtreeReadyMessage),
    st.builds(CloseTransportMessage),
)
ONE_OF_EACH: tuple[Message, ...] = (
    StartPhaseMessage(1),
    AddressedTasksMessage(2, (Task((1, 2, 3), 2, b"payload", 5, True, 4), Task((1, 2, 4), 2, b"", 5))),
    TaskRequest(2, 7),
    TaskReply(2, 7, (Task((1, 2, 3), 2, bytes(300), 5),)),
    CreditReturnMessage(2, 1),
    RingToken(2, -3, True),
    CounterQuery(9, (1, 2, 3), (True, 2.5, "word", (4,))),
    CounterSums(9, (4, 5, 6), (7, 8), 3, (0.5, 12)),
    EpochMarker(4),
    HaltMessage("SIGTERM", 15),
    AbortMessage(3, "Traceback …\n"),
    EndJobMessage(75),
    SubtreeReadyMessage(b"words"),
    CloseTransportMessage(),
)


def test_examples_cover_every_message_type() -> None:
    assert {type(message) for message in ONE_OF_EACH} == set(get_args(Message))


@deterministic
@given(messages)
def test_round_trip(message: Message) -> None:
    again = decode_message(encode_message(message))
    assert again == message
    assert type(again) is type(message)
    if isinstance(again, AddressedTasksMessage | TaskReply):
        assert all(type(task) is Task for task in again.tasks)


@pytest.mark.parametrize("message", ONE_OF_EACH, ids=lambda message: type(message).__name__)
def test_decoded_fields_keep_their_types(message: Message) -> None:
    again = decode_message(memoryview(bytearray(encode_message(message))))
    assert again == message
    assert [type(field) for field in again] == [type(field) for field in message]
    assert len(again) == len(get_type_hints(type(message)))


@deterministic
@given(st.lists(tasks, min_size=1, max_size=20).map(tuple))
def test_encoded_message_is_no_larger_than_memory_footprint(batch: tuple[Task, ...]) -> None:
    """Limits count footprints; what is on the wire is never more than that and a small head."""
    assert TASK_OVERHEAD_BYTES >= 100
    assert len(encode_message(AddressedTasksMessage(1, batch))) <= sum(task.memory_use_in_bytes for task in batch) + 64


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pcopy-was-here",)


def refusals() -> list[bytes]:
    """Pickles that name something, each in another way."""
    by_code = b"\x80\x05\x82\x01."  # EXT1: a global by its number in the registry of extensions
    by_id = b"\x80\x05K\x01Q."  # BINPERSID: a global by an id outside the pickle
    classic = b"cos\nsystem\n(S'touch pcopy-was-here'\ntR."
    instance = b"(S'touch pcopy-was-here'\nios\nsystem\n."
    nested = pickle.dumps((0, [_Runs()]), 5)
    in_task = pickle.dumps((1, 2, [((1, 2, 3), 2, _Runs(), 5)]), 5)
    by_class = pickle.dumps(StartPhaseMessage(1), 5)
    by_function = pickle.dumps((0, len), 2)
    return [by_code, by_id, classic, instance, nested, in_task, by_class, by_function, pickle.dumps(_Runs(), 0)]


@pytest.mark.parametrize("data", refusals())
def test_decoder_refuses_pickle_with_global(data: bytes, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    with pytest.raises(InvariantBroken):
        decode_message(data)
    assert os.listdir(".") == []
    with pytest.raises((pickle.UnpicklingError, ValueError)):
        load_primitives(data)


@deterministic
@given(st.binary(max_size=80))
@example(b"")
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvariantBroken):
        decode_message(data)


@pytest.mark.parametrize("message", ONE_OF_EACH, ids=lambda message: type(message).__name__)
def test_truncated_message_is_refused(message: Message) -> None:
    data = encode_message(message)
    for length in range(len(data)):
        with pytest.raises(InvariantBroken):
            decode_message(data[:length])


@deterministic
@given(st.sampled_from(ONE_OF_EACH), st.data())
def test_flipped_byte_raises_no_unexpected_exception(message: Message, data: st.DataObject) -> None:
    """A byte that flips may make another message; it never makes another exception."""
    wire = bytearray(encode_message(message))
    wire[data.draw(st.integers(0, len(wire) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(InvariantBroken):
        decode_message(wire)


@pytest.mark.parametrize(
    "value",
    [
        5, None, (), [], (99,), (-1,), ("Start", 1), (0,), (0, 1, 2, 3, 4, 5), (2, 1), (1, 2), (1, 2, 3), (1, 2, [3]),
        (1, 2, [()]), (1, 2, [(1,)]), ([], 1), {0: 1}, (*pickle.loads(encode_message(SubtreeReadyMessage())), 1),
    ],
    ids=repr,
)  # fmt: skip
def test_pickled_value_that_is_no_message_is_refused(value: object) -> None:
    with pytest.raises(InvariantBroken):
        decode_message(pickle.dumps(value, 5))


@pytest.mark.parametrize(
    ("before", "following", "common"),
    [
        (b"", b"", 0),
        (b"", b"a", 0),
        (b"a", b"", 0),
        (b"a", b"b", 0),
        (b"ab", b"ab", 2),
        (b"ab", b"abc", 2),
        (b"abc", b"ab", 2),
        (b"abc", b"abd", 2),
        (b"abcd/x", b"abcd/y/z", 5),
        (b"a" * 1000 + b"b", b"a" * 1001, 1000),
    ],
)
def test_length_of_common_prefix(before: bytes, following: bytes, common: int) -> None:
    assert length_of_common_prefix(before, following) == common


def test_common_prefix_may_end_at_each_position() -> None:
    for length in range(20):
        assert length_of_common_prefix(b"a" * length + b"bbb", b"a" * length + b"ccccc") == length
