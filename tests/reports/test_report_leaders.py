"""Who led which queue, as nodes told: watched during a run, shown as lanes; and the repair at the page's head."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from report_run_factory import make_run

from harness.run import leaders
from harness.run.leaders import watch_leaders
from nodes.systems.catalog import SYSTEMS
from nodes.systems.rabbitmq import system as rabbitmq
from reports.leaders import leader_lanes
from reports.run_page import write_report
from stormproof.history.ledger import Repair
from stormproof.run_folder import LEADERS
from stormproof.shell_system import ShellCluster

pytestmark = pytest.mark.requirement("H12", part=True)


class Told:
    """A cluster whose witnesses answer as planned, one answer a question; None: not at all."""

    def __init__(self, answers: Mapping[str, list[Mapping[str, str] | None]]) -> None:
        self.leader_witnesses = tuple(answers)
        self._answers = {name: itertools.chain(told, itertools.repeat(told[-1])) for name, told in answers.items()}

    async def leaders_told(self, witness: str) -> Mapping[str, str]:
        told = next(self._answers[witness])
        if told is None:
            raise ConnectionError("paused")
        return told


def watched(cluster: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str]]]:
    monkeypatch.setattr(leaders, "SECONDS", 0.0)
    ticks = itertools.count(0, 1_000_000_000)

    async def watch() -> None:
        task = asyncio.create_task(watch_leaders(cluster, lambda: next(ticks), path))
        for _ in range(200):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(watch())
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(row["witness"], row["leaders"]) for row in rows]


def test_what_a_witness_tells_is_noted_where_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = {"q0": "n1"}, {"q0": "n2"}
    cluster = Told({"n1": [one, None, None, one], "n2": [one, one, two]})
    found = watched(cluster, tmp_path / LEADERS, monkeypatch)
    assert [told for by, told in found if by == "n1"] == [one, {}, one]
    assert [told for by, told in found if by == "n2"] == [one, two]


def test_without_witnesses_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(Told({}), tmp_path / LEADERS, monkeypatch) == [] and not (tmp_path / LEADERS).exists()


@pytest.mark.parametrize(("name", "witnesses"), [("rabbitmq", ("n1", "n2")), ("nats", ("",)), ("mosquitto", ())])
def test_who_is_asked(name: str, witnesses: tuple[str, ...]) -> None:
    cluster: Any = SimpleNamespace(system=SYSTEMS.load(name), node_names=("n1", "n2"))
    assert ShellCluster.leader_witnesses.fget(cluster) == witnesses  # type: ignore[attr-defined]


def test_a_rabbitmq_node_tells_of_all_queues_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def evaluate(machine: object, text: str, timeout: float) -> str:
        assert text.count("See(") == 3
        return "['rabbit@n1',none,'rabbit@n3']"

    monkeypatch.setattr(rabbitmq, "evaluate", evaluate)
    machine: Any = SimpleNamespace(cluster=SimpleNamespace(demands=SimpleNamespace(queues=("q0", "q1", "q2"))))
    assert asyncio.run(rabbitmq.RABBITMQ.leaders_seen(machine)) == {"q0": "n1", "q2": "n3"}


SPLIT = [
    (2, "n1", {"q0": "n1", "q1": "n2"}), (2, "n2", {"q0": "n1"}), (4, "n1", {}), (5, "n2", {"q0": "n2"}),
    (6, "n2", {"q0": "n2", "q1": "n2"}), (7, "n1", {"q0": "n1"}), (9, "n1", {"q0": "n2"}),
]  # fmt: skip


def note(run_dir: Path) -> None:
    rows = ({"time": time * 1_000_000_000, "witness": by, "leaders": told} for time, by, told in SPLIT)
    (run_dir / LEADERS).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_two_nodes_that_tell_of_two_leaders(tmp_path: Path) -> None:
    note(tmp_path)
    lanes = {lane.node: [(s.start, s.end, s.role, s.leads, s.colour) for s in lane.stretches]
             for lane in leader_lanes(tmp_path, 10.0)}  # fmt: skip
    assert lanes == {
        "q0, n1": [(2.0, 4.0, "n1", True, 0), (7.0, 9.0, "n1", True, 0), (9.0, 10.0, "n2", False, 1)],
        "q0, n2": [(2.0, 5.0, "n1", False, 0), (5.0, 10.0, "n2", True, 1)],
        "q1, n1": [(2.0, 4.0, "n2", False, 1)],
        "q1, n2": [(6.0, 10.0, "n2", True, 1)],
    }


@pytest.mark.parametrize("noted", ["", "nonsense\n", "[]\n{}\n3\n", '{"time": "soon", "leaders": {"q0": "n1"}}\n\xff',
                                   '{"time": 1, "witness": 3, "leaders": [2]}\n'])  # fmt: skip
def test_notes_that_are_broken_show_no_leaders(tmp_path: Path, noted: str) -> None:
    (tmp_path / LEADERS).write_bytes(noted.encode("latin-1"))
    assert leader_lanes(tmp_path, 10.0) == []


def run_with_leaders(store: Path) -> Path:
    run_dir = make_run(store, "run-split", verdict="invalid", operations=300, seconds=12)
    note(run_dir)
    repair = Repair("restarted n1, whose state was given up for that of n2", 10_000_000_000, 11_000_000_000)
    with (run_dir / "ledger.jsonl").open("a") as ledger:
        ledger.write(repair.to_json() + "\n")
    return write_report(run_dir)


def test_the_page_tells_leaders_and_the_repair(tmp_path: Path) -> None:
    page = run_with_leaders(tmp_path).read_text(encoding="utf-8")
    assert "q0, n1: led by n1, 7.000" in page and 'href="#roles"' in page
    head = page[: page.index('class="facts"')]
    assert re.search(r"Repairs, in place of an operator: restarted n1, whose state was given up for that of n2\.", head)


@pytest.mark.skipif(sys.platform != "linux", reason="as the other pages")
def test_the_lanes_are_seen_in_a_browser(tmp_path: Path) -> None:
    browsers = pytest.importorskip("test_report_browser")
    if browsers.CHROMIUM is None:
        pytest.skip("no Chromium on this machine: make test installs it")
    with browsers.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browsers.CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(viewport=browsers.DESKTOP).new_page()
        page.goto(run_with_leaders(tmp_path).as_uri())
        lanes = page.locator(".lane-leaders")
        browsers.expect(lanes).to_have_count(4)
        fills = [lanes.nth(0).locator(".fill").nth(at).evaluate("e => getComputedStyle(e).fill") for at in (0, 2)]
        assert len({*fills, "rgb(0, 0, 0)"}) == 3, "each leader has a colour of its own"
        browsers.expect(page.locator(".hero .repaired")).to_be_in_viewport()
        browser.close()
