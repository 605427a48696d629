"""Figures of a run's page in a browser: its size, its first paint, and how smoothly it zooms.

Needs Playwright and a Chromium, like the tests of the pages (``scripts/setup test``).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkers.run import Run
from checkers.run_check import attempt, load_check, opened
from checkers.synthetic import Defects, write_large_run
from checkers.verdict import CheckVerdict, Verdict, write_verdict
from reports.run_page import write_report
from stormproof.errors import StormproofError
from stormproof.run_folder import LOG_EVENTS

SIZES = (100_000, 1_000_000)
"""Numbers of operations."""
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ROLE_CHANGES = 300
"""Role changes of each of three nodes: more than in a run of minutes."""
FRAMES = 120
CHECKS = ("lost", "redelivered-unconfirmed")
"""Checks that name operations as evidence, which the page marks."""

ZOOM = """(frames) => new Promise((done) => {
  const box = document.getElementById('lanes');
  const area = box.getBoundingClientRect();
  const stamps = [];
  const frame = (stamp) => {
    stamps.push(stamp);
    if (stamps.length > frames) {
      const took = stamps.slice(1).map((each, at) => each - stamps[at]).sort((a, b) => a - b);
      done([1000 * frames / (stamps[frames] - stamps[0]), took[Math.floor(frames * 0.95)]]);
      return;
    }
    const inwards = Math.floor(stamps.length / 30) % 2 ? 40 : -40; // in and out, at the whole run most of the time
    box.dispatchEvent(new WheelEvent('wheel', {
      deltaY: inwards, ctrlKey: true, bubbles: true, cancelable: true,
      clientX: area.left + area.width / 2, clientY: area.top + 20,
    }));
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})"""


@dataclass(frozen=True)
class PageFigures:
    """The figures of one page.

    They are its size in ``megabytes``; the seconds for writing it, until the first paint, and until it is usable; the
    frames a second of a zoom, and the milliseconds within which 95 % of its frames stayed; the CPU milliseconds of the
    page's own thread for a frame, independent of the machine's other load.
    """

    megabytes: float
    writing_s: float
    paint_s: float
    ready_s: float
    frames: float
    slow_frame_ms: float
    own_ms: float


def report_figures() -> Iterator[tuple[str, str, str]]:
    """Yield (what, figure, aim) of pages of ``SIZES`` operations."""
    for size in SIZES:
        found = page_figures(size)
        name = f"page of a run of {size:,} operations"
        if found is None:
            yield name, "not measured", "needs Playwright and a Chromium"
            return
        asked = size == SIZES[0]
        yield f"{name}: written in / size", f"{found.writing_s:.1f} s / {found.megabytes:.1f} MB", "below 10 MB" * asked
        yield f"{name}: first paint / ready", f"{found.paint_s:.2f} / {found.ready_s:.2f} s", "paint under 1 s" * asked
        yield (f"{name}: zoom", f"{found.frames:.0f} frames/s, p95 {found.slow_frame_ms:.0f} ms",
               "at least 30 frames/s" * asked)  # fmt: skip
        yield f"{name}: zoom, a frame's work in the page's thread", f"{found.own_ms:.1f} ms", ""


def page_figures(operations: int) -> PageFigures | None:
    """Write the page of a synthetic run with lost messages, and open it in a headless Chromium; None without one."""
    chromium = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    with tempfile.TemporaryDirectory(prefix="stormproof-bench-") as folder, sync_playwright() as playwright:
        run_dir = Path(folder) / "run"
        write_large_run(run_dir, 2 * operations, 7, Defects(lost=40, crashed=20, redelivered=9))
        _announce_roles(run_dir)
        _judge(run_dir)
        begun = time.perf_counter()
        report = write_report(run_dir)
        writing = time.perf_counter() - begun
        browser = playwright.chromium.launch(executable_path=chromium,
                                             args=["--no-sandbox"] if os.geteuid() == 0 else [])  # fmt: skip
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-ready=yes]", timeout=120_000)
        ready: float = page.evaluate("() => performance.now() / 1000")
        paint: float = page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000")
        page.locator("#lanes").scroll_into_view_if_needed()
        tools = page.context.new_cdp_session(page)
        tools.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = _thread_seconds(tools)
        zoom: Any = page.evaluate(ZOOM, FRAMES)
        own = (_thread_seconds(tools) - before) / FRAMES * 1000
        browser.close()
        return PageFigures(report.stat().st_size / 1e6, writing, paint, ready, zoom[0], zoom[1], own)


def _thread_seconds(tools: Any) -> float:
    """Return the CPU seconds that the page's thread has used."""
    metrics = tools.send("Performance.getMetrics")["metrics"]
    return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")


def _judge(run_dir: Path) -> None:
    """Write a verdict that names lost messages."""
    run = opened(run_dir)
    if not isinstance(run, Run):
        raise StormproofError(f"the made-up run can't be read: {run.sentence}")
    results = tuple(CheckVerdict(name, name == CHECKS[0], attempt(load_check(name), run)) for name in CHECKS)
    write_verdict(run_dir, Verdict(run.name, "Invalid: made up.", results))


def _announce_roles(run_dir: Path) -> None:
    """Write elections by turns throughout the run, as in an unstable cluster."""
    lines = []
    for at in range(ROLE_CHANGES):
        for node in range(3):
            leads = at % 3 == node
            lines.append({"node": f"n{node + 1}", "time": at + 0.01 * node, "event": "role", "serving": True,
                          "role": "master" if leads else "slave", "leads": leads, "group": f"epoch {at}"})  # fmt: skip
    (run_dir / LOG_EVENTS).write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
