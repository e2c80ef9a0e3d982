"""When a rank tries to sum up subtrees, and when it lists directories at once."""

from __future__ import annotations

from pcopy.tasks.walk.walk_dirs import MAX_SKIPPED_ATTEMPTS, SubtreeSumAttempts


def attempts_of(outcomes: list[tuple[int, int]]) -> list[int]:
    """Return how many calls are skipped after each attempt; ``outcomes`` are (summed, rows) of the attempts."""
    attempts, skipped = SubtreeSumAttempts(), []
    for outcome in outcomes:
        assert attempts.is_next_worthwhile()
        attempts.record(*outcome)
        number = 0
        while not attempts.is_next_worthwhile():
            number += 1
        skipped.append(number)
        attempts._skipped = 0
    return skipped


def test_calls_are_skipped_after_attempts_that_failed() -> None:
    assert attempts_of([(16, 16), (8, 16), (7, 16), (0, 16), (0, 1), (0, 2), (0, 2), (0, 2)]) == [
        *(0, 0, 1, 2, 4, 8, MAX_SKIPPED_ATTEMPTS, MAX_SKIPPED_ATTEMPTS)
    ]


def test_success_ends_the_skipping() -> None:
    assert attempts_of([(0, 1), (0, 1), (1, 1), (0, 1)]) == [1, 2, 0, 1]
