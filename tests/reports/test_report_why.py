"""What a report says of why a guarantee was violated: only what the run recorded."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest
from report_run_factory import HOSTILE, make_run

from reports.narrative import ShownAnomaly, ShownOperation
from reports.roles import Lane, RolePeriod, TransferMark, read_transfers
from reports.root_cause import BINS, AnomalyGroup, declared, groups
from reports.run_facts import Facts
from reports.run_page import CheckGroup, write_report
from stormproof.run_folder import LOG_EVENTS

pytestmark = pytest.mark.requirement("H25", part=True)

N1 = Lane("n1", (RolePeriod(0, 30, "master", "epoch 1", True, True, 0),))
N2 = Lane("n2", (
    RolePeriod(0, 6, "slave", "epoch 1", True, False, 0), RolePeriod(6, 12, "master", "epoch 2", True, True, 1),
    RolePeriod(12, 12.5, "slave", "epoch 3", True, False, 2), RolePeriod(12.5, 13, "slave", "epoch 3", True, False, 2),
    RolePeriod(13, 30, "master", "epoch 4", True, True, 3),
))  # fmt: skip


def lost(number: int, at: float, node: str = "n2", faults: tuple[str, ...] = ("partition master #2",),
         kind: str = "ok", process: int = 1) -> ShownAnomaly:  # fmt: skip
    value = f"{process}/{number}"
    send = ShownOperation(span=number, rows="1, 2", start=at, end=at + 0.1, process=process, node=node, type=kind,
                     f="enqueue", key=0, value=value, error="", faults=faults, proof=True)  # fmt: skip
    return ShownAnomaly(f"a0-{number}", "lost", "lost", 0, value, (), (send,), 0, (), "queue")


def grouped(members: list[ShownAnomaly], count: int, roles: list[Lane], transfers: list[TransferMark],
            duration: float, **figures: object) -> tuple[AnomalyGroup, ...]:  # fmt: skip
    check = CheckGroup("lost", True, "invalid", count, "", (), tuple(members), figures)
    return groups(check, Facts(roles=roles, transfers=transfers), duration, list)


def test_messages_in_common_and_what_became_of_the_node_that_had_them() -> None:
    (group,) = grouped([lost(1, 8.0), lost(2, 11.95, process=2)], 2, [N1, N2],
                      [TransferMark(12.7, "n1", "n2", "entry 9")], 30)  # fmt: skip
    assert group.sentence == ("2 lost: all confirmed by n2, sent 8.000 to 11.950 s, during partition master #2, by 2 "
                              "client processes.")  # fmt: skip
    assert group.happened == (
        "6.000 – 12.000 s: n1 and n2 both reported that they led (epoch 1 and epoch 2).",
        # The receipt came when n2 was a slave already; it confirmed before.
        "11.950 s: the last message that n2 confirmed was sent; n2 was master (epoch 2).",
        "12.000 s: n2 was slave (epoch 3).",
        "12.700 s: n2 reported a state transfer from n1 (entry 9).",
    )
    assert len(group.bars) == BINS
    assert [at for at, bar in enumerate(group.bars) if bar] == [16, 23]


def test_what_the_run_does_not_tell_is_not_told() -> None:
    early = TransferMark(7.0, "n1", "n2", "")
    (group,) = grouped([lost(1, 20.0, faults=())], 1, [Lane("n1", ()), N2],
                      [early, TransferMark(25, "n2", "n1", "")], 30)  # fmt: skip
    assert group.sentence == ("1 lost: confirmed by n2, sent at 20.000 s, while no fault was in force, by 1 client "
                              "process.")  # fmt: skip
    assert group.happened[-1] == "The logs report no later state transfer to n2."
    assert not any("announced a transfer" in line or "both" in line for line in group.happened)
    (group,) = grouped([lost(1, 8.0)], 1, [], [], 30)
    assert group.happened == ("The logs report no role of n2.",)


def test_only_some_were_confirmed_or_are_named() -> None:
    members = [lost(1, 8.0), lost(2, 9.0, faults=()), lost(3, 10.0, kind="info")]
    (group,) = grouped(members, 199, [], [], 30)
    assert group.sentence == ("Of the 3 lost that the verdict names: 2 confirmed by n2, sent 8.000 to 9.000 s, some "
                              "during partition master #2, by 1 client process.")  # fmt: skip


def test_all_are_counted_by_node_where_the_verdict_names_some() -> None:
    (group,) = grouped([lost(1, 8.0)], 199, [], [], 30, by_node={"n2": 198, "n1": 1},
                       window={"from": 8.0, "to": 12.5})  # fmt: skip
    assert group.sentence.startswith(
        "199 lost: confirmed by n2 (198) and n1 (1), sent 8.000 to 12.500 s. Of these the 1 that the verdict names: "
        "confirmed by n2")  # fmt: skip


def test_a_machine_is_not_two_masters() -> None:
    programs = [Lane("n2.manager", N1.stretches), N2]
    (group,) = grouped([lost(1, 8.0)], 1, programs, [], 30)
    assert not any("both" in line for line in group.happened)


@pytest.mark.parametrize(("status", "words"), [
    ("promised", "Promised (4.8): because"), ("not promised", "Not promised (4.8): because"),
    ("known violation", "A known violation: required, but impossible in this mode (4.8): because"), ("?", ""),
])  # fmt: skip
def test_what_the_system_says_of_the_guarantee(status: str, words: str) -> None:
    run = {"statuses": {"lost": {"status": status, "where": "4.8", "why": "because"}}}
    assert declared(run, "lost") == words
    assert declared(run, "order") == ""


def test_the_page_says_it_and_escapes_it(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=600)
    run = json.loads((run_dir / "run.json").read_text())
    check = next(c for c in json.loads((run_dir / "verdict.json").read_text())["checks"] if c["anomalies"])
    run["statuses"] = {check["check"]: {"status": "promised", "where": HOSTILE, "why": HOSTILE}}
    (run_dir / "run.json").write_text(json.dumps(run))
    rows = [{"node": node, "time": 0.0, "event": "role", "role": HOSTILE, "leads": True} for node in ("n1", "n2", "n3")]
    rows += [{"time": 1e6, "event": "transfer", "source": HOSTILE, "target": n} for n in ("n1", "n2", "n3")]
    (run_dir / LOG_EVENTS).write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"event": "transfer"}]))
    page = write_report(run_dir).read_text(encoding="utf-8")
    assert len(read_transfers(run_dir)) == 3
    assert HOSTILE not in page
    assert f"Promised ({html.escape(HOSTILE, quote=False)}" in page.replace("&#34;", '"').replace("&#39;", "'")
    assert 'class="together"' in page
