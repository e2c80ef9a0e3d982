"""Distributions of the travelling time of messages with a given mean, by name."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Latency = Callable[[Random], float]
"""A function that returns the seconds that the next message travels."""


def _fixed(mean: float) -> Latency:
    """Return a latency that is always the mean."""
    return lambda random: mean


def _uniform(mean: float) -> Latency:
    """Return a latency that is uniformly distributed from 0.5 to 1.5 times the mean."""
    return lambda random: mean * (0.5 + random.random())


def _exponential(mean: float) -> Latency:
    """Return a latency of half of the mean plus an exponentially distributed waiting time."""
    return lambda random: mean * (0.5 + 0.5 * random.expovariate(1.0))


def _pareto(mean: float) -> Latency:
    """Return a latency with a heavy tail: a few messages take a hundred times as long as most.

    It is a third of the mean, multiplied by a variate whose mean is 3.
    """
    return lambda random: mean / 3 * random.paretovariate(1.5)


LATENCIES: dict[str, Callable[[float], Latency]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "exponential": _exponential,
    "pareto": _pareto,
}
"""Functions that return a distribution for a mean in seconds."""
