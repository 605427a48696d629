"""Changes over nights: shifts are found where they are, noise is told as seldom as was asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from harness.nightly.changes import MAX_CHANGES, Samples, find_changes, too_short

pytestmark = pytest.mark.requirement("H22", part=True)

Rng = np.random.Generator


def series(nights: int, runs: int, value: Callable[[int, int], float], *, strata: int = 1,
           by_night: bool = False) -> Samples:
    """So many nights of so many runs each of so many strata; ``value`` is given night and stratum."""
    places = [(night, stratum) for night in range(nights) for stratum in range(strata) for _ in range(runs)]
    night, stratum = (np.array(column, np.int64) for column in zip(*places, strict=True))
    return Samples(night, stratum, np.array([value(*place) for place in places], np.float64), by_night)


def rate(rng: Rng, before: float, after: float, since: int) -> Callable[[int, int], float]:
    return lambda night, _: float(rng.random() < (after if night >= since else before))


def test_a_rate_that_rises_is_told_where_it_rose() -> None:
    rng = np.random.default_rng(1)
    found = find_changes(series(30, 20, rate(rng, 0.02, 0.2, 18)), 1e-3, rng)
    assert [(change.rose, abs(change.at - 18) <= 1) for change in found] == [(True, True)]
    assert found[0].p <= 1e-3


def test_one_bad_night_of_many_runs_is_enough() -> None:
    rng = np.random.default_rng(2)
    assert [change.at for change in find_changes(series(8, 40, rate(rng, 0.0, 0.3, 7)), 1e-3, rng)] == [7]


def test_what_rises_and_falls_again_is_two_changes() -> None:
    rng = np.random.default_rng(3)
    samples = series(40, 10, lambda night, _: rng.lognormal(2.0 if 12 <= night < 25 else 0.5, 0.3))
    found = find_changes(samples, 1e-3, rng)
    assert [(change.at, change.rose) for change in found] == [(12, True), (25, False)]


def test_a_slow_shift_of_latency_on_real_nodes_is_found_night_by_night() -> None:
    rng = np.random.default_rng(4)
    moods = rng.normal(0, 0.1, 30)  # what runs of a night have in common
    samples = series(30, 4, lambda night, _: np.exp(moods[night] + rng.normal(0, 0.2) + 0.7 * (night >= 14)),
                     by_night=True)  # fmt: skip
    found = find_changes(samples, 1e-3, rng)
    assert [(change.rose, abs(change.at - 14) <= 1) for change in found] == [(True, True)]


NOISE: dict[str, Callable[[Rng], Samples]] = {
    "rates of few runs": lambda rng: series(14, 3, lambda *_: float(rng.random() < 0.15)),
    "heavy tails": lambda rng: series(20, 4, lambda *_: rng.pareto(1.1)),
    "two kinds of runs, mixed by chance": lambda rng: Samples(
        np.sort(rng.integers(0, 12, 150)), stratum := rng.integers(0, 2, 150), stratum * 10 + rng.normal(size=150)),
    "nights with moods": lambda rng: (lambda moods: series(
        18, 5, lambda night, _: moods[night] + rng.normal(0, 0.2), by_night=True))(rng.normal(0, 1, 18)),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOISE)
def test_noise_is_told_as_a_change_as_seldom_as_was_asked_for(kind: str) -> None:
    rng = np.random.default_rng(5)
    alarms = sum(bool(find_changes(NOISE[kind](rng), 0.05, rng)) for _ in range(300))
    assert 1 <= alarms <= 26  # 15 are expected; more than 26 come by chance once in 400 times


def test_moods_of_nights_would_be_false_alarms_if_runs_were_exchanged() -> None:
    rng = np.random.default_rng(6)
    alarms = 0
    for _ in range(40):
        noise = NOISE["nights with moods"](rng)
        alarms += bool(find_changes(Samples(noise.night, noise.stratum, noise.value), 0.05, rng))
    assert alarms > 20


def test_another_mixture_of_combinations_is_no_change() -> None:
    rng = np.random.default_rng(7)
    nights = np.repeat(np.arange(20), 20)
    stratum = (rng.random(400) < np.where(nights < 10, 0.1, 0.9)).astype(np.int64)  # later nights have more of one
    failed = (rng.random(400) < np.where(stratum == 1, 0.5, 0.02)).astype(np.float64)
    assert find_changes(Samples(nights, stratum, failed), 1e-3, rng) == []
    assert find_changes(Samples(nights, np.zeros(400, np.int64), failed), 1e-3, rng) != []


def test_what_never_varies_and_what_is_too_short_has_no_changes() -> None:
    rng = np.random.default_rng(8)
    assert find_changes(series(50, 10, lambda *_: 0.0), 0.05, rng) == []
    assert find_changes(series(1, 500, lambda *_: rng.normal()), 0.05, rng) == []
    assert find_changes(Samples(*(np.empty(0, kind) for kind in (np.int64, np.int64, np.float64))), 0.05, rng) == []
    short = series(6, 1, lambda night, _: float(night >= 3))
    assert too_short(short, 0.05) and find_changes(short, 0.05, rng) == []
    longer = series(16, 1, lambda night, _: float(night >= 8))
    assert not too_short(longer, 1e-3)
    assert [change.at for change in find_changes(longer, 1e-3, rng)] == [8]
    assert too_short(longer, 1e-6)


def test_at_most_so_many_changes_are_told() -> None:
    rng = np.random.default_rng(9)
    assert len(find_changes(series(40, 30, lambda night, _: float(night // 2 * 7 % 5)), 0.05, rng)) <= MAX_CHANGES
