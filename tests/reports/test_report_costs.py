"""What machines used, on the page of a run: totals, lines under the faults, what was not measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from report_run_factory import HOSTILE, make_run

from reports.costs import MAX_NODES, MAX_POINTS, cost_plots, cost_table
from reports.run_page import write_report
from stormproof.contracts.backend import Usage
from stormproof.history.costs import sample_line, summary, trouble_line
from stormproof.run_folder import COSTS, read_run, write_json

pytestmark = pytest.mark.requirement("H29")

SECOND = 10**9


def used(seconds: float) -> Usage:
    """A machine that is half busy, sends 2 KiB a second, and tells nothing of its storage."""
    return Usage(seconds / 2, 10 << 20, 4096, None, None, 0, int(2048 * seconds), 1, seconds / 1000)


def with_costs(tmp_path: Path, text: str, **of_run: str) -> Path:
    run_dir = make_run(tmp_path, seconds=30.0, operations=900, **of_run)  # type: ignore[arg-type]
    (run_dir / COSTS).write_text(text)
    write_json(run_dir / "run.json", {**read_run(run_dir), "costs": summary(run_dir / COSTS, 2.0, 1.0)})
    return run_dir


def lines_of(node: str, missing: range = range(0)) -> str:
    return "".join(sample_line(at * SECOND, node, used(at)) for at in range(31) if at not in missing)


def test_lines_are_rates_and_levels_and_break_where_nothing_was_measured(tmp_path: Path) -> None:
    text = lines_of("n1", range(10, 15)) + trouble_line(12 * SECOND, "n1", "it hangs") + lines_of("n2", range(20, 21))
    plots = {plot.name: plot for plot in cost_plots(with_costs(tmp_path, text))}
    assert set(plots) == {"cost-cpu", "cost-memory", "cost-sent", "cost-disk"}, "nobody knows what was written"
    first, second = plots["cost-cpu"].lines
    assert (first.name, second.name) == ("n1", "n2") and first.colour != second.colour
    assert [time for time, value in zip(first.times, first.values, strict=True) if value is None] == [12.0]
    assert {value for value in first.values if value is not None} == {50.0}
    assert None not in second.values, "one sample that was late is no gap"
    assert {value for value in plots["cost-sent"].lines[0].values if value is not None} == {2048.0}


def test_what_is_drawn_is_bounded(tmp_path: Path) -> None:
    text = "".join(sample_line(at * SECOND, f"n{node}", used(at)) for node in range(14) for at in range(700))
    (plot, *_) = cost_plots(with_costs(tmp_path, text))
    assert len(plot.lines) == MAX_NODES and max(len(line.values) for line in plot.lines) <= MAX_POINTS


def test_the_page_has_totals_and_says_what_was_not_measured(tmp_path: Path) -> None:
    run_dir = with_costs(tmp_path, lines_of("n1") + trouble_line(12 * SECOND, "n2", "no shell & no sample"))
    page = write_report(run_dir).read_text(encoding="utf-8")
    section = page[page.index('<section id="costs">') : page.index('<section id="faults">')]
    assert "14 s (50.0 %)" in section and "10 MiB" in section and "56 KiB" in section
    assert "n2 could not be measured from 12.0 s on: no shell &amp; no sample." in section
    assert 'href="#costs"' in page and 'href="costs.jsonl"' in page


def test_a_page_without_costs_has_no_section(tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path)).read_text(encoding="utf-8")
    assert 'id="costs"' not in page and 'href="#costs"' not in page


@pytest.mark.parametrize("damage", [
    {"costs": 7}, {"costs": {"nodes": [1]}}, {"costs": {"nodes": {"n1": 3}, "troubles": {"n1": 4, "": {}}}},
    {"costs": {"nodes": {"n1": {"cpu_s": "much", "seconds": 0, "disk_end": -1}}, "interval_s": "often"}},
    {"costs": {"troubles": {"n1": {"gaps": [[1], "x", [None, 2], [1, 2]], "reason": ["a"]}}}},
])  # fmt: skip
def test_whatever_a_run_says_of_costs_the_page_is_there(tmp_path: Path, damage: object) -> None:
    assert isinstance(damage, dict)
    run_dir = make_run(tmp_path)
    (run_dir / COSTS).write_bytes(b"\xff{]\n" + b'{"time": 5, "node": "n1"}\n')
    write_json(run_dir / "run.json", {**read_run(run_dir), **damage})
    assert write_report(run_dir).exists()
    assert isinstance(cost_table(read_run(run_dir), {"figures": {"costs": 3}}).rows, tuple)


@pytest.mark.skipif(sys.platform != "linux", reason="as the other pages")
def test_lines_are_seen_in_a_browser(tmp_path: Path) -> None:
    """Under the faults, with what the pointer is at; a machine's name is only ever text."""
    browsers = pytest.importorskip("test_report_browser")
    if browsers.CHROMIUM is None:
        pytest.skip("no Chromium on this machine: make test installs it")
    odd = lines_of("n2").replace('"n2"', json.dumps(HOSTILE))
    run_dir = with_costs(tmp_path, lines_of("n1", range(10, 15)) + odd)
    with browsers.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browsers.CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(viewport=browsers.DESKTOP).new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(write_report(run_dir).as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        plot = page.locator("#plot-cost-cpu")
        browsers.expect(page.locator("#plots .plot[id^=plot-cost]")).to_have_count(4)
        plot.scroll_into_view_if_needed()
        box = plot.locator("canvas").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 92 + (box["width"] - 92) * 0.45, box["y"] + 40)
        browsers.expect(plot.locator(".legend")).to_contain_text("50 %")
        browsers.expect(plot.locator(".legend")).to_contain_text(HOSTILE.partition("\u2028")[0])
        assert "owned" not in page.title() and errors == []
        browser.close()
