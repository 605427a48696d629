"""Served pages of runs in a real browser: our own work, a stranger's reach nothing but themselves."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from report_run_factory import make_run

import reports.index_page
from reports.run_page import write_report
from reports.server import make_server

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: make test installs it"),
    pytest.mark.requirement("H26", part=True),
]
expect.set_options(timeout=20_000)

HOSTILE = """<!doctype html><title>working</title><body><script>
const other = new URL('../run-good/run.json', location.href).href;
const found = {};
const read = {
  fetch: async () => (await fetch(other)).text(),
  opaque: async () => (await fetch(other, {mode: 'no-cors'})).text(),
  request: () => new Promise((done, fail) => {
    const asked = new XMLHttpRequest();
    asked.onload = () => done(asked.responseText);
    asked.onerror = () => fail(new Error('refused'));
    asked.open('GET', other);
    asked.send();
  }),
  frame: () => new Promise((done, fail) => {
    const frame = document.createElement('iframe');
    frame.src = '../run-good/report.html';
    frame.onload = () => {
      try { done(frame.contentDocument.body.innerText || fail(new Error('empty'))); } catch (error) { fail(error); }
    };
    document.body.append(frame);
  }),
  window: async () => window.open('../run-good/report.html').document.body.innerText,
  storage: async () => localStorage.setItem('stormproof-theme', 'dark'),
  cookie: async () => document.cookie,
  script: () => new Promise((done, fail) => {
    const script = document.createElement('script');
    script.src = other;
    script.onload = () => done('loaded');
    script.onerror = () => fail(new Error('refused'));
    document.body.append(script);
  }),
  outside: async () => (await fetch('http://127.0.0.1:9/')).text(),
};
(async () => {
  for (const [name, attempt] of Object.entries(read)) {
    const late = new Promise((_, fail) => setTimeout(() => fail(new Error('nothing came')), 1500));
    try { found[name] = 'READ ' + await Promise.race([attempt(), late]); } catch (error) { found[name] = error.name; }
  }
  window.found = found;
  document.title = 'done';
})();
</script>"""


@dataclass
class Served:
    """A server over a store with a good run and a stranger's, and the paths that it was asked for."""

    address: str
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = tmp_path_factory.mktemp("store")
    write_report(make_run(store, "run-good", operations=600))
    stranger = make_run(store, "run-hostile", operations=300)
    for name in ("report.html", "linearizability-0.html"):
        (stranger / name).write_text(HOSTILE, encoding="utf-8")
    os.utime(stranger / "report.html", ns=(1 << 62, 1 << 62))
    with make_server(store, "127.0.0.1", 0) as server:
        found = Served(f"http://127.0.0.1:{server.server_address[1]}")
        _note_requests(server, found.asked)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def _note_requests(server: ThreadingHTTPServer, asked: list[str]) -> None:
    make = server.RequestHandlerClass

    def noted(*args: object) -> object:
        handler = make.func if hasattr(make, "func") else make  # type: ignore[attr-defined]

        class Noting(handler):  # type: ignore[misc, valid-type]
            def do_GET(self) -> None:
                asked.append(self.path)
                super().do_GET()

        return Noting(*make.args, *args)  # type: ignore[attr-defined]

    server.RequestHandlerClass = noted  # type: ignore[assignment]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("file", ["report.html", "linearizability-0.html"])
def test_a_strangers_page_reaches_no_other_run(served: Served, page: Page, file: str) -> None:
    served.asked.clear()
    page.goto(f"{served.address}/run-hostile/{file}")
    expect(page).to_have_title("done", timeout=30_000)  # a function to wait for needs an eval, which the page refuses
    found: dict[str, str] = page.evaluate("window.found")
    assert len(found) == 9
    assert not [name for name, outcome in found.items() if outcome.startswith("READ")], found
    assert not [path for path in served.asked if "run-good" in path]
    assert page.evaluate("self.origin") == "null"


def test_our_own_pages_still_work_in_their_sandbox(served: Served, page: Page) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(f"{served.address}/")
    page.wait_for_selector("html[data-ready=yes]")
    expect(page.locator("#rows tr")).to_have_count(2)
    page.get_by_role("link", name="run-good", exact=True).click()
    page.wait_for_selector("html[data-ready=yes]")
    assert page.evaluate("self.origin") == "null"
    second = page.locator("details.anomaly").nth(1)
    second.locator("> summary").click()
    second.get_by_role("button", name="Show in timeline").click()
    expect(page.locator("#detail h3")).to_contain_text("enqueue")
    second.get_by_role("button", name="Node logs around it").click()
    expect(page.locator("#log .mark").first).to_be_visible()
    expect(page).to_have_url(re.compile("#t=.*&op="))
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#detail h3")).to_contain_text("enqueue")
    page.locator("#copy-link").click()
    expect(page.locator("#copy-link")).to_have_text("Copied")
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") != theme
    page.locator("nav.sections").get_by_role("link", name="Faults").click()
    expect(page).to_have_url(re.compile("#faults$"))
    with page.expect_download() as download:
        page.get_by_role("link", name="history.parquet").click()
    assert download.value.suggested_filename == "history.parquet"
    page.locator("a.home").click()
    page.wait_for_selector("html[data-ready=yes]")
    expect(page.locator("#rows tr")).to_have_count(2)
    page.get_by_role("link", name="run-good", exact=True).click()
    page.wait_for_selector("html[data-ready=yes]")
    page.locator("p.files").get_by_role("link", name="run.json").click()
    expect(page.locator("body")).to_contain_text("run-good")
    assert errors == []


@pytest.mark.requirement("H22", part=True)
def test_a_served_index_loads_its_parts(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports.index_page, "PART_ROWS", 2)
    monkeypatch.setattr(reports.index_page, "LEAST_ROWS", 1)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    for number in range(5):
        (tmp_path / f"run-{number}").mkdir()
        (tmp_path / f"run-{number}" / "run.json").write_text(f'{{"started": "{number}", "test": {{"seed": {number}}}}}')
    with make_server(tmp_path, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            page.goto(f"http://127.0.0.1:{server.server_address[1]}/#seed=1")
            page.wait_for_selector("html[data-ready=yes]")
            expect(page.locator("#shown")).to_have_text("1 of 5")
            assert page.locator("head script[src]").count() == 2
        finally:
            server.shutdown()
            thread.join()
    assert errors == []
