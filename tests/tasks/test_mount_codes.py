"""The mount codes of a job's roots, of which there may be as many as a command line holds."""

from __future__ import annotations

import time

from pcopy.tasks.base.job import Root, mount_codes


def root(source: int, target: int) -> Root:
    return Root(b"/s", b"/t", b"item", b"item", b"s/item", b"t/item", (source, 1), (target, 1))


def test_roots_on_one_device_share_the_number_of_the_first() -> None:
    roots = [root(5, 9), root(7, 9), root(5, 8), root(7, 8)]
    assert mount_codes(roots) == [(0, 0), (1, 0), (0, 2), (1, 2)]


def test_they_are_found_in_one_pass() -> None:
    """With a search for each root, 16,000 roots on devices of their own take longer than a second."""
    roots = [root(number, number) for number in range(16000)]
    began = time.process_time()
    assert mount_codes(roots)[-1] == (15999, 15999)
    assert time.process_time() - began < 0.5
