"""The mount codes of the roots of a job, of which there may be as many as a command line can name."""

from __future__ import annotations

import time

from pcopy.tasks.base.job import Root, mount_codes


def root(source: int, target: int) -> Root:
    return Root(b"/s", b"/t", b"item", b"item", b"s/item", b"t/item", (source, 1), (target, 1))


def test_roots_on_one_device_share_the_code_of_the_first() -> None:
    roots = [root(5, 9), root(7, 9), root(5, 8), root(7, 8)]
    assert mount_codes(roots) == [(0, 0), (1, 0), (0, 2), (1, 2)]


def test_mount_codes_are_found_in_one_pass() -> None:
    """A search for each root would take longer than a second for 16,000 roots on different devices."""
    roots = [root(number, number) for number in range(16000)]
    began = time.process_time()
    assert mount_codes(roots)[-1] == (15999, 15999)
    assert time.process_time() - began < 0.5
