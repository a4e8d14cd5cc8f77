"""Splitting a window of time into named buckets that sum to it exactly.

All times are whole nanoseconds, so that sums are exact. Where claims overlap, as clocks of hosts and controller do, the
higher layer has the moment; what nobody claims goes to the rest. No bucket can therefore be negative, and their sum is
the window by construction.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class Interval:
    """From ``start`` up to ``end``, in nanoseconds; one that ends before it starts claims nothing."""

    start: int
    end: int


@dataclass(frozen=True)
class Layer:
    """Intervals that one bucket claims."""

    bucket: str
    intervals: Sequence[Interval]


def nanoseconds(seconds: float) -> int:
    """Whole seconds apart from their fraction: the product of a time since the epoch would lose its last digits."""
    whole = math.floor(seconds)
    return whole * NANOSECONDS + round((seconds - whole) * NANOSECONDS)


def interval(start: float, end: float) -> Interval:
    """From two times in seconds since the epoch."""
    return Interval(nanoseconds(start), nanoseconds(end))


def allocate(window: Interval, layers: Sequence[Layer], *, rest: str) -> dict[str, int]:
    """Nanoseconds by bucket: each moment of the window goes to the first layer that claims it, else to ``rest``."""
    totals = {layer.bucket: 0 for layer in layers} | {rest: 0}
    edges: list[tuple[int, int, int]] = []
    for index, layer in enumerate(layers):
        for part in _union(layer.intervals, window):
            edges += [(part.start, index, 1), (part.end, index, -1)]
    active = [0] * len(layers)
    then = window.start
    for at, index, change in sorted(edges):
        totals[_claimant(layers, active, rest)] += at - then
        active[index] += change
        then = at
    totals[rest] += max(window.end - then, 0)
    return totals


def hundredths(parts: Sequence[int], *, total: int = 10_000) -> list[int]:
    """Whole shares of ``total`` in proportion to ``parts``, by largest remainder, so that they sum to it.

    All zero when there is nothing to share. Of equal remainders the earlier part wins.
    """
    whole = sum(parts)
    if whole == 0:
        return [0] * len(parts)
    shares = [part * total // whole for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda index: -(parts[index] * total % whole))
    for index in by_remainder[: total - sum(shares)]:
        shares[index] += 1
    return shares


def _union(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The same moments as disjoint intervals inside the window."""
    merged: list[Interval] = []
    for part in sorted(intervals, key=lambda part: part.start):
        start, end = max(part.start, window.start), min(part.end, window.end)
        if end <= start:
            continue
        if merged and start <= merged[-1].end:
            merged[-1] = Interval(merged[-1].start, max(end, merged[-1].end))
        else:
            merged.append(Interval(start, end))
    return merged


def _claimant(layers: Sequence[Layer], active: Sequence[int], rest: str) -> str:
    return next((layer.bucket for layer, count in zip(layers, active, strict=True) if count), rest)
