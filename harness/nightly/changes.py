"""Change points in a series of nights, found by a permutation test at a chosen rate of false alarms.

The statistic is the largest standardised difference of ranks before and after any night, as in Pettitt's test (A. N.
Pettitt, A non-parametric approach to the change-point problem, Applied Statistics 28, 1979), within strata. Shuffling
gives its distribution under the hypothesis of no change. Each part is then searched again, as in E-divisive (D. S.
Matteson and N. A. James, A nonparametric approach for multiple change point analysis of multivariate data, Journal of
the American Statistical Association 109, 2014). E-divisive is also used for the performance of software (D. Daly et
al., The use of change point detection to identify software performance regressions in a continuous integration system,
ICPE 2020). Shuffling stops early when significance is out of reach (J. Besag and P. Clifford, Sequential Monte Carlo
p-values, Biometrika 78, 1991). This does not alter the level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_CHANGES = 8
"""The most changes reported of one series."""
EXTREME_SHUFFLES = 10
"""The number of shuffles at least as extreme as the observation after which shuffling stops. Further shuffles would not
make the observation significant."""
_PRECISION = 4
_CHUNK = 1_000_000
"""The number of values that are shuffled at a time."""


@dataclass(frozen=True)
class Samples:
    """One number for each run. ``night`` counts from 0. ``stratum`` numbers the groups of comparable runs.

    With ``by_night``, runs of one night may resemble each other (a busy machine), so only whole nights are exchanged.
    Otherwise single runs are exchanged.
    """

    night: Ints
    stratum: Ints
    value: Floats
    by_night: bool = False

    def between(self, first: int, last: int) -> Samples:
        """Return the samples of the nights from ``first`` to before ``last``."""
        mine = (self.night >= first) & (self.night < last)
        return Samples(self.night[mine], self.stratum[mine], self.value[mine], self.by_night)


@dataclass(frozen=True)
class ChangePoint:
    """From night ``at`` on, values differ from those before: they ``rose``, or fell. ``p`` is the probability that
    shuffled values differ as much."""

    at: int
    rose: bool
    p: float


def find_changes(samples: Samples, level: float, rng: np.random.Generator) -> list[ChangePoint]:
    """Return the changes of a series, in order. If nothing changed, the probability of reporting any is at most
    ``level``."""
    found: list[ChangePoint] = []
    if not len(samples.night):
        return found
    left = [(int(samples.night.min()), int(samples.night.max()) + 1)]
    while left and len(found) < MAX_CHANGES:
        first, last = left.pop(0)
        change = _largest(samples.between(first, last), level, rng)
        if change is not None:
            found.append(change)
            left += [(first, change.at), (change.at, last)]
    return sorted(found, key=lambda change: change.at)


def too_short(samples: Samples, level: float) -> bool:
    """Return whether the samples are too few for even the clearest change to be significant at this level."""
    units = len(np.unique(samples.night)) if samples.by_night else len(samples.night)
    return len(np.unique(samples.night)) < 2 or 2 / math.comb(units, units // 2) > level


def _largest(samples: Samples, level: float, rng: np.random.Generator) -> ChangePoint | None:
    """Return the change with the largest difference between before and after, if it is significant."""
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
    return ChangePoint(int(nights[at + 1]), bool(sums[at] < 0), p) if p <= level else None


def _units(samples: Samples, place: Ints) -> Samples:
    """Return the units of exchange, sorted by stratum. Their values are replaced by ranks that are centred in each
    stratum."""
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
    """Return ranks from -1/2 to 1/2, equal for equal values."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = ends - (counts - 1) / 2
    centred: Floats = (ranks[inverse] - (len(values) + 1) / 2) / len(values)
    return centred


def _deviation(units: Samples, nights: int) -> Floats:
    """Return the standard deviation of the sums up to each night but the last, when values are shuffled within
    strata."""
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
    """Return the share of shuffles that are at least as extreme as the observed statistic."""
    most = math.ceil(_PRECISION / level)
    strata = [np.flatnonzero(units.stratum == stratum) for stratum in np.unique(units.stratum)]
    done = extreme = 0
    size = 4 * EXTREME_SHUFFLES
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
        if extreme + len(hits) >= EXTREME_SHUFFLES:
            return EXTREME_SHUFFLES / (done + int(hits[EXTREME_SHUFFLES - extreme - 1]) + 1)
        extreme += len(hits)
        done += size
    return (extreme + 1) / (done + 1)
