"""Where a series of nights changed: a permutation test, whose share of false alarms is what one asks for.

The statistic is the largest standardised difference of ranks before and after any night, as in Pettitt's test (A. N.
Pettitt, A non-parametric approach to the change-point problem, Applied Statistics 28, 1979), within strata. What it
would be if nothing had changed is found by shuffling, and each part is searched again, as in E-divisive (D. S. Matteson
and N. A. James, A nonparametric approach for multiple change point analysis of multivariate data, Journal of the
American Statistical Association 109, 2014), which others use for the performance of software (D. Daly et al., The use
of change point detection to identify software performance regressions in a continuous integration system, ICPE 2020).
Shuffling ends early where nothing will come of it (J. Besag and P. Clifford, Sequential Monte Carlo p-values,
Biometrika 78, 1991), which leaves the level as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST = 8
"""Changes told of one series."""
_ENOUGH = 10
"""Shuffles that are as far from even as what was seen: more would not make it surprising."""
_PRECISION = 4
_CHUNK = 1_000_000
"""Numbers shuffled at a time."""


@dataclass(frozen=True)
class Samples:
    """One number of each run: ``night`` counts from 0, ``stratum`` numbers what the run has in common with others that
    it may be compared with.

    ``by_night``: runs of one night may resemble each other (a busy machine), so that only whole nights are exchanged;
    otherwise runs are.
    """

    night: Ints
    stratum: Ints
    value: Floats
    by_night: bool = False

    def between(self, first: int, last: int) -> Samples:
        """Those of the nights from ``first`` to before ``last``."""
        mine = (self.night >= first) & (self.night < last)
        return Samples(self.night[mine], self.stratum[mine], self.value[mine], self.by_night)


@dataclass(frozen=True)
class Change:
    """From night ``at`` on, values are others than before: ``rose``, or fell. ``p``: how likely shuffled values differ
    as much."""

    at: int
    rose: bool
    p: float


def find_changes(samples: Samples, level: float, rng: np.random.Generator) -> list[Change]:
    """The changes of a series, in order. Where nothing changed, any is told with a probability of at most ``level``."""
    found: list[Change] = []
    if not len(samples.night):
        return found
    left = [(int(samples.night.min()), int(samples.night.max()) + 1)]
    while left and len(found) < MOST:
        first, last = left.pop(0)
        change = _largest(samples.between(first, last), level, rng)
        if change is not None:
            found.append(change)
            left += [(first, change.at), (change.at, last)]
    return sorted(found, key=lambda change: change.at)


def too_short(samples: Samples, level: float) -> bool:
    """Whether there is so little that not even the clearest change could be told at this level."""
    units = len(np.unique(samples.night)) if samples.by_night else len(samples.night)
    return len(np.unique(samples.night)) < 2 or 2 / math.comb(units, units // 2) > level


def _largest(samples: Samples, level: float, rng: np.random.Generator) -> Change | None:
    """The change at which what comes before and after differs most, if that is no accident."""
    if too_short(samples, level):
        return None
    nights, place = np.unique(samples.night, return_inverse=True)
    units = _units(samples, place)
    deviation = _deviation(units, len(nights))
    usable = deviation > 0
    if not usable.any():
        return None
    scale = np.where(usable, 1 / np.where(usable, deviation, 1), 0)
    sums = np.cumsum(np.bincount(units.night, units.value, len(nights)))[:-1]
    seen = np.abs(sums * scale)
    at = int(seen.argmax())
    p = _p_value(units, scale, float(seen[at]), level, rng)
    return Change(int(nights[at + 1]), bool(sums[at] < 0), p) if p <= level else None


def _units(samples: Samples, place: Ints) -> Samples:
    """What is exchanged, sorted by stratum, with ranks that are centred in each stratum in place of values."""
    order = np.argsort(samples.stratum, kind="stable")
    strata, starts, counts = np.unique(samples.stratum[order], return_index=True, return_counts=True)
    values = np.concatenate([_centred(samples.value[order][start : start + n])
                             for start, n in zip(starts, counts, strict=True)])  # fmt: skip
    night, stratum = place[order].astype(np.int64), np.repeat(np.arange(len(strata)), counts)
    if not samples.by_night:
        return Samples(night, stratum, values)
    runs = np.bincount(night)
    means = np.bincount(night, values) / runs
    return Samples(np.arange(len(runs)), np.zeros(len(runs), np.int64), _centred(means.round(9)))


def _centred(values: Floats) -> Floats:
    """Ranks from -1/2 to 1/2, equal for equal values."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = ends - (counts - 1) / 2
    centred: Floats = (ranks[inverse] - (len(values) + 1) / 2) / len(values)
    return centred


def _deviation(units: Samples, nights: int) -> Floats:
    """How far the sums up to each night but the last scatter when values are shuffled within their strata."""
    variance = np.zeros(nights - 1)
    for stratum in np.unique(units.stratum):
        mine = units.stratum == stratum
        n = int(mine.sum())
        if n < 2:
            continue
        before = np.cumsum(np.bincount(units.night[mine], minlength=nights))[:-1]
        variance += before * (n - before) / (n * (n - 1)) * float(np.square(units.value[mine]).sum())
    return np.sqrt(variance)


def _p_value(units: Samples, scale: Floats, seen: float, level: float, rng: np.random.Generator) -> float:
    """The share of shuffles that are at least as far from even as what was seen."""
    most = math.ceil(_PRECISION / level)
    strata = [np.flatnonzero(units.stratum == stratum) for stratum in np.unique(units.stratum)]
    done = extreme = 0
    size = 4 * _ENOUGH
    while done < most:
        size = min(size * 4, max(1, _CHUNK // len(units.value)), most - done)
        sums = np.zeros((size, len(scale) + 1))
        for mine in strata:
            order = np.argsort(units.night[mine], kind="stable")
            nights, starts = np.unique(units.night[mine][order], return_index=True)
            shuffled = rng.permuted(np.broadcast_to(units.value[mine], (size, len(mine))), axis=1)
            sums[:, nights] += np.add.reduceat(shuffled, starts, axis=1)
        largest = np.abs(np.cumsum(sums, axis=1)[:, :-1] * scale).max(axis=1)
        hits = np.flatnonzero(largest >= seen - 1e-9)
        if extreme + len(hits) >= _ENOUGH:
            return _ENOUGH / (done + int(hits[_ENOUGH - extreme - 1]) + 1)
        extreme += len(hits)
        done += size
    return (extreme + 1) / (done + 1)
