"""`systems check` finds what later leads to false verdicts: each broken adapter fails exactly the item about it."""

from __future__ import annotations

import pytest
from system_runs import HERE, possible
from test_contract import check

from harness.contract.core import FAILED

pytestmark = [
    pytest.mark.skipif("local" not in possible(), reason="stormproof doctor tells what backend local lacks"),
    pytest.mark.soak,
    pytest.mark.requirement("H20", part=True),
]


@pytest.mark.parametrize(("adapter", "items", "told"), [
    ("Holders", set(), ""),
    ("Repeating", {"lock", "tokens", "tokens-kept"}, "each must be above those before"),
    ("Forgetting", {"tokens-kept"}, "before a kill of all nodes"),
    ("Deaf", {"heartbeat"}, "does not miss its heartbeats"),
    ("Clashing", {"options"}, "the option work is declared"),
    ("Outside", {"data"}, "wrote nothing to machine.data"),
    ("Contradicting", {"leader-serves"}, "status() that n2 does not serve"),
    ("Early", {"joined"}, "healthy() was true while"),
    ("Sessions", {"tokens"}, "each must be above those before"),
    ("Backwards", {"lock", "tokens", "tokens-kept"}, "each must be above those before"),
    ("Drawing", {"options"}, "the option power_kind is declared"),
    ("Beside", {"data"}, "and none in machine.data"),
    ("Stale", {"leader-serves"}, "status() that n2 does not serve"),
    ("Restless", {"heartbeat"}, "does not miss its heartbeats"),
    ("Misspelt", {"heartbeat"}, "the harness never calls it"),
    ("Late", {"joined"}, "healthy() was true while n2 was 'starting'"),
    ("Roleless", {"joined"}, "s later it was"),
])  # fmt: skip
def test_each_pitfall_is_found_where_it_is(adapter: str, items: set[str], told: str) -> None:
    outcomes = check(f"{HERE / 'holders.py'}:{adapter}")
    failed = {name: outcome for name, outcome in outcomes.items() if outcome.status == FAILED}
    assert set(failed) == items, failed
    if adapter == "Holders":
        assert {outcomes[name].status for name in ("tokens", "tokens-kept", "heartbeat", "options", "data",
                                                   "leader-serves", "joined")} == {"ok"}  # fmt: skip
    else:
        assert any(told in outcome.told for outcome in failed.values()), failed
