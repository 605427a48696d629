"""The workload ``topic-dialogue``, and other logins in ``dialogue``: right brokers are right, wrong ones are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.run.cases import Case
from harness.sim.campaign import NONE, run_and_judge
from nodes.reference.designs.icestorm.delivery import SubscriberOutbox
from nodes.reference.designs.icestorm.topics import Change, ReplicatedTopic, TopicDatabase

TOPICS = Case("icestorm", "topic-dialogue", "kill", 3, 14.0, 30.0, {"min_ok": "5"})
LOGINS = Case("standalone", "dialogue", "kill", None, 14.0, 60.0, {"fault_gap": "2", "visitors": "true"})


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize(("case", "item", "least"), [
    (TOPICS, "topic-dialogue", 6), (TOPICS, "icestorm-retries", 4), (LOGINS, "other-logins", 6),
])
def test_an_unchanged_broker_answers_as_the_model_does(case: Case, item: str, least: int, tmp_path: Path) -> None:
    result, _ = run_and_judge(case, 1, tmp_path, tmp_path, NONE)
    assert result.verdict == "valid", result.sentence
    times, judged = result.surface[item]
    assert times >= least and judged


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize(("case", "bug"), [
    (replace(TOPICS, settings={**TOPICS.settings, "invariants": "false"}), "unlink-one-way"),
    (TOPICS, "retries-ignored"), (LOGINS, "recover-tells-all"),
    (TOPICS, "goodbye-unanswered"), (replace(LOGINS, system="fiorano"), "wide-pattern-covered"),
    (replace(LOGINS, system="fiorano"), "revoked-consumer-stays"),
    (replace(LOGINS, system="fiorano", settings={**LOGINS.settings, "answer_page": "60"}), "security-page-overlaps"),
    pytest.param(replace(TOPICS, settings={**TOPICS.settings, "invariants": "false"}), "destroyed-subscribers",
                 marks=pytest.mark.soak),
    pytest.param(LOGINS, "commit-unchecked", marks=pytest.mark.soak),
    pytest.param(LOGINS, "principal-gone-stays", marks=pytest.mark.soak),
    pytest.param(replace(LOGINS, system="fiorano"), "passcode-of-former", marks=pytest.mark.soak),
    pytest.param(replace(LOGINS, system="fiorano"), "grants-of-group", marks=pytest.mark.soak),
])  # fmt: skip
def test_an_edited_broker_is_seen(case: Case, bug: str, tmp_path: Path) -> None:
    made = Case(case.system, case.workload, case.nemesis, case.nodes, case.time_limit, case.rate,
                {**case.settings, "bug": bug})  # fmt: skip
    results = (run_and_judge(made, seed, tmp_path, tmp_path, NONE)[0] for seed in range(1, 33))
    found = next((result for result in results if result.verdict == "invalid"), None)
    assert found is not None and "dialogue" in found.broken


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize(("counted", "told"), [
    (lambda was, now: max(was, now), "did-not-come-to-a-subscriber-that-has-attempts-left"),
    (lambda was, now: now + (now == 3), "is-given-up-before-its-attempts-are-used-up"),
    (lambda was, now: min(now, 2), "is-not-removed"),
], ids=["in all", "one fewer", "without end"])  # fmt: skip
def test_attempts_that_are_counted_otherwise_are_seen(
        counted: Callable[[int, int], int], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscriber of three retries is removed when four attempts in a row have failed."""
    def count(outbox: SubscriberOutbox, now: int) -> None:
        vars(outbox)["attempts"] = counted(vars(outbox).get("attempts", 0), now)

    attempts = property(lambda self: vars(self)["attempts"], count)
    monkeypatch.setattr(SubscriberOutbox, "_attempts", attempts, raising=False)
    result, verdict = run_and_judge(TOPICS, 1, tmp_path, tmp_path, NONE)
    assert "dialogue" in result.broken and verdict is not None
    found = [str(each) for check in verdict.checks for each in check.outcome.anomalies]
    assert any(told in each for each in found), found


@pytest.mark.requirement("H17", part=True)
def test_a_removal_that_takes_the_subscription_of_after_is_seen(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that was cut off learns late that a subscriber has no attempts left, who has subscribed again since."""
    make = TopicDatabase._change

    def whichever(self: TopicDatabase, change: Change, since: str) -> list[str]:
        topic = self.topics.get(change[1], ReplicatedTopic(""))
        known = topic.subscribers.get(change[2]) if change[0] == "remove" else None
        return make(self, [*change[:3], known.since] if known is not None else change, since)

    case = replace(TOPICS, nemesis="partition", time_limit=16.0, rate=17.0, settings={
        "min_ok": "3", "invariants": "false", "talkers": "8", "partition_kind": "bridge", "op_timeout": "1",
        "election_timeout": "2", "master_timeout": "0.5", "fault_lengths": "0.53,1.1,6", "fault_gap": "0.1"})
    sound, _ = run_and_judge(case, 1, tmp_path, tmp_path, NONE)
    assert sound.verdict == "valid", sound.sentence
    monkeypatch.setattr(TopicDatabase, "_change", whichever)
    results = (run_and_judge(case, seed, tmp_path, tmp_path, NONE)[0] for seed in range(1, 33))
    found = next((result for result in results if result.verdict == "invalid"), None)
    assert found is not None and "dialogue" in found.broken
