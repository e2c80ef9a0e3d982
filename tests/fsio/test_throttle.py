"""Token buckets, and files that are copied no faster than the buckets fill, with a clock controlled by the tests."""

from __future__ import annotations

import os
from functools import partial
from math import inf
from pathlib import Path
from random import Random

import pytest

from pcopy.fsio.contents import IncrementalDigest
from pcopy.fsio.data import ContentsCopier
from pcopy.fsio.memory_copy import PageCachePolicy
from pcopy.fsio.throttle import Throttle, TokenBucket

MIB = 1 << 20


class Clock:
    """A clock that advances when a sleep is requested."""

    def __init__(self) -> None:
        self.now = 0.0
        self.longest = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        self.longest = max(self.longest, seconds)


def throttled(mover: ContentsCopier, rate: float) -> Clock:
    clock = Clock()
    mover.throttle = Throttle(clock, clock.sleep)
    mover.throttle.set_rate_limits(rate, inf)
    return clock


def test_charged_tokens_are_paid_at_the_rate() -> None:
    bucket = TokenBucket(0.0)
    bucket.set_rate(100.0, 0.0)
    bucket.take_tokens(50)
    assert bucket.seconds_to_wait(0.0) == 0.5
    assert bucket.paid_tokens(0.2) == pytest.approx(20)
    assert bucket.seconds_to_wait(0.5) == 0.0
    assert bucket.paid_tokens(0.5) == 50


def test_bucket_holds_tokens_for_a_tenth_of_a_second() -> None:
    bucket = TokenBucket(0.0)
    bucket.set_rate(100.0, 0.0)
    bucket.take_tokens(60)
    assert bucket.seconds_to_wait(1000.0) == 0.0
    bucket.take_tokens(10)
    assert bucket.seconds_to_wait(1000.0) == 0.0
    bucket.take_tokens(1)
    assert bucket.seconds_to_wait(1000.0) == pytest.approx(0.01)


def test_without_a_limit_there_is_no_wait() -> None:
    bucket = TokenBucket(0.0)
    bucket.take_tokens(1 << 40)
    assert bucket.seconds_to_wait(0.0) == 0.0
    bucket.set_rate(1.0, 0.0)
    bucket.take_tokens(5)
    assert bucket.seconds_to_wait(0.0) == 5.0
    bucket.set_rate(inf, 0.0)
    assert bucket.seconds_to_wait(0.0) == 0.0


def test_lowering_the_rate_prolongs_the_wait() -> None:
    clock = Clock()
    throttle = Throttle(clock, clock.sleep)
    throttle.set_rate_limits(100.0, inf)
    waiting = throttle.charge_limits_and_wait(100)
    for _ in range(25):
        next(waiting)
    throttle.set_rate_limits(10.0, inf)
    assert list(waiting)
    assert clock.now == pytest.approx(0.5 + 5.0, abs=0.05)


def test_waiting_task_resumes_every_20_ms() -> None:
    clock = Clock()
    throttle = Throttle(clock, clock.sleep)
    throttle.set_rate_limits(inf, 2.0)
    assert len(list(throttle.charge_limits_and_wait(operations=4))) == pytest.approx(100, abs=2)
    assert clock.longest <= 0.02
    assert clock.now == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("how", "size", "rate"),
    [
        *((how, MIB, rate) for how in ("kernel", "memory", "digest") for rate in (64 << 10, 10 * MIB, 1000 * MIB)),
        *((how, 70 * MIB, 1000 * MIB) for how in ("memory", "digest")),
        ("direct", 12 * MIB, 100 * MIB),
    ],
)
def test_file_is_copied_at_the_rate(tmp_path: Path, how: str, size: int, rate: int) -> None:
    """By every method of copying. The copy is complete, and no step is larger than a twentieth of a second's bytes or a
    page.
    """
    contents = Random(size).randbytes(MIB) * (size // MIB)
    (tmp_path / "from").write_bytes(contents)
    with open(tmp_path / "from", "rb") as source, open(tmp_path / "to", "w+b") as target:
        reflink = "auto" if how == "kernel" else "never"
        mover = ContentsCopier(sparse=True, reflink=reflink, cache_policy=PageCachePolicy(direct=how == "direct"))
        clock = throttled(mover, rate)
        status = os.fstat(source.fileno())
        devices = status.st_dev, os.fstat(target.fileno()).st_dev
        digest = CountingDigest() if how == "digest" else None
        steps = list(
            mover.copy_byte_range(
                source.fileno(), target.fileno(), 0, size, devices, may_have_holes=False, digest=digest
            )
        )
    assert (tmp_path / "to").read_bytes() == contents
    assert digest is None or digest.seen == size
    assert sum(steps) == size
    assert max(steps) <= max(4096, rate // 20)
    assert clock.now == pytest.approx(size / rate, abs=0.06)


class CountingDigest(IncrementalDigest):
    """A digest that only counts."""

    def __init__(self) -> None:
        self.seen = 0

    def update(self, data: memoryview | bytes) -> None:
        self.seen += len(data)

    def add_zero_bytes(self, count: int) -> None:
        self.seen += count


def test_holes_are_not_throttled(tmp_path: Path) -> None:
    with open(tmp_path / "from", "w+b") as source, open(tmp_path / "to", "w+b") as target:
        os.pwrite(source.fileno(), b"x" * MIB, 1000 * MIB)
        mover = ContentsCopier(sparse=True, reflink="never")
        clock = throttled(mover, MIB)
        status = os.fstat(source.fileno())
        devices, extend = (status.st_dev,) * 2, partial(os.ftruncate, target.fileno())
        assert (
            sum(mover.copy_all_contents(source.fileno(), target.fileno(), status, devices, extend=extend)) == 1001 * MIB
        )
    assert clock.now == pytest.approx(1.0, abs=0.1)


def test_without_a_limit_no_step_is_divided() -> None:
    throttle = Throttle(Clock(), lambda seconds: pytest.fail("it sleeps"))
    assert not throttle.is_on
    assert throttle.bytes_to_copy_next(8 * MIB) == 8 * MIB
    assert list(throttle.charge_limits_and_wait(1 << 40, 1 << 40)) == []


def test_paused_throttle_starts_nothing_and_charges_nothing() -> None:
    clock = Clock()
    throttle = Throttle(clock, clock.sleep)
    throttle.set_rate_limits(inf, inf, is_paused=True)
    waiting = throttle.charge_limits_and_wait(100)
    for _ in range(500):
        next(waiting)
    throttle.set_rate_limits(1000.0, inf)
    assert list(waiting) == []
    throttle.set_rate_limits(inf, inf)
    assert not throttle.is_on
