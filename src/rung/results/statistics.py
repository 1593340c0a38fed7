"""Medians, spreads and verdicts from raw samples; nothing is dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Verdict = Literal["faster", "slower", "tie"]
MARGIN = 0.005  # within which two medians are a tie


@dataclass(frozen=True)
class Summary:
    """Seconds per call."""

    median: float
    p20: float
    p80: float
    n: int


def summarise(samples: list[float]) -> Summary:
    """Median and the 20th and 80th percentile."""
    p20, median, p80 = np.percentile(samples, [20, 50, 80])
    return Summary(float(median), float(p20), float(p80), len(samples))


SETTLED = 0.005


def settled(samples: list[float]) -> bool:
    """Whether the standard error of the mean is at most half a percent."""
    if len(samples) < 10:
        return False
    values = np.asarray(samples)
    return bool(values.std(ddof=1) / np.sqrt(len(values)) <= SETTLED * values.mean())


def verdict(ours: list[float], theirs: list[float]) -> Verdict:
    """Is `ours` faster than `theirs`? Decided by the bootstrapped 95 % interval of the medians' ratio. A difference of
    less than half a percent is a tie, even if it is certain.
    """
    random = np.random.default_rng(0)
    a, b = np.asarray(ours), np.asarray(theirs)
    rounds = 1000
    medians_a = np.median(a[random.integers(0, len(a), (rounds, len(a)))], axis=1)
    medians_b = np.median(b[random.integers(0, len(b), (rounds, len(b)))], axis=1)
    low, high = np.percentile(medians_a / medians_b, [2.5, 97.5])
    if high < 1 - MARGIN:
        return "faster"
    if low > 1 + MARGIN:
        return "slower"
    return "tie"
