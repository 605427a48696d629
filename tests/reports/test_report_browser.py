"""The pages in a real browser: from index to run to anomaly, on a phone, with hostile data, with 100,000 operations."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from report_run_factory import HOSTILE, make_run, run_json

from reports.index_page import write_index
from reports.matrix_page import MatrixCell, Shown, SystemMatrix, write_matrix
from reports.run_page import write_report
from reports.trend_page import ChangeMark, Level, Point, Trend, TrendCase, TrendNight, TrendSeries, write_trend
from reports.triage_page import TriageKind, write_triage
from stormproof.run_folder import MESSAGE_TRACE

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: make test installs it")

expect.set_options(timeout=20_000)

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


@dataclass
class Watched:
    """A page, and what it must not have done."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, path: Path) -> Page:
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]")
        return self.page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def watched(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Watched]:
    size: Any = getattr(request, "param", DESKTOP)
    context = browser.new_context(viewport=size, reduced_motion="reduce")
    watched = Watched(context.new_page())
    watched.page.on("console", lambda message: watched.errors.append(message.text) if message.type == "error" else None)
    watched.page.on("pageerror", lambda error: watched.errors.append(str(error)))
    watched.page.on("dialog", lambda dialog: watched.errors.append(dialog.message))
    watched.page.on("request", lambda r: watched.requests.append(r.url) if not r.url.startswith("file:") else None)
    yield watched
    context.close()
    assert watched.errors == []
    assert watched.requests == []


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("store")
    for verdict in ("valid", "unknown", "invalid"):
        write_report(make_run(store, f"run-{verdict}", verdict=verdict, operations=3000, old=verdict == "unknown"))
    write_report(make_run(store, "run-hostile", operations=900, hostile=HOSTILE))
    write_report(make_run(store, "run-large", operations=100_000, seconds=300, clients=30))
    write_index(store)
    return store


def drawn_colours(page: Page) -> int:
    """How many different colours the timeline's canvas shows."""
    colours: Any = page.evaluate(
        """() => { const c = document.getElementById('lanes-canvas');
        const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);
        return new Set(d).size; }"""
    )
    return int(colours)


def canvas_hash(page: Page) -> str:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return str(page.evaluate("() => document.getElementById('lanes-canvas').toDataURL()"))


@pytest.mark.requirement("H10", part=True)
def test_from_the_index_to_the_run_to_the_anomaly_and_its_operations(watched: Watched, store: Path) -> None:
    page = watched.open(store / "index.html")
    expect(page.locator("#rows tr")).to_have_count(5)
    page.get_by_role("button", name="1 valid").click()
    expect(page.locator("#rows tr")).to_have_count(1)
    page.get_by_role("button", name="1 valid").click()
    page.get_by_role("link", name="run-invalid", exact=True).click()
    page.wait_for_selector("html[data-ready=yes]")
    expect(page.locator(".sentence")).to_contain_text("acknowledged messages were lost")
    second = page.locator("details.anomaly").nth(1)
    second.locator("> summary").click()
    expect(second.locator("table.operations tr.proof")).to_be_visible()
    expect(second.locator("table.operations")).to_contain_text("enqueue")
    expect(second.locator(".story")).to_contain_text("the receipt came after")
    title = second.locator(".what").inner_text()
    second.get_by_role("button", name="Show in timeline").click()
    value = title.split("message ")[1].split(" on")[0]
    expect(page.locator("#detail h3")).to_contain_text(f"enqueue {value}")
    second.get_by_role("button", name="Node logs around it").click()
    expect(page.locator("#log .mark:not(.fault)").first).to_contain_text(value)
    assert page.locator("#log > div").count() > 5


@pytest.mark.requirement("H25")
def test_the_life_of_a_message_as_a_list_and_a_diagram(watched: Watched, tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, "run-traced", operations=600)
    check = next(c for c in json.loads((run_dir / "verdict.json").read_text())["checks"] if c["anomalies"])
    lost = check["anomalies"][0]["value"]
    log = (run_dir / "logs" / "n1.log").read_text().count("\n")
    with (run_dir / "logs" / "n1.log").open("a") as file:
        file.write("17.25 2026-05-01T10:00:15.000000+00:00 trace put=q0\n")
    marks = [("n1", 0.1, "held", "started", ()), ("n2", 0.1, "held", "started", ()),
             ("n1", 20.0, "put", "sent", (lost,)), ("n2", 20.0, "put", HOSTILE, (lost, "7/7")),
             ("n1", 21.0, "gone", "replaced", (lost,)), ("n2", 21.5, "gone", "closed", (lost,))]  # fmt: skip
    (run_dir / MESSAGE_TRACE).write_text("".join(json.dumps(
        {"node": node, "time": time, "what": what, "cause": cause, "messages": names, "place": "q0", "token": "",
         "line": log + 1}) + "\n" for node, time, what, cause, names in marks))  # fmt: skip
    page = watched.open(write_report(run_dir))
    first = page.locator("details.anomaly").first
    expect(first.locator(".life")).to_contain_text("n1 had its state replaced by one that lacked it")
    expect(first.locator(".life")).to_contain_text("no node had it after that, so it was lost")
    first.locator("details.diagram > summary").click()
    expect(first.locator(".sequence svg")).to_be_visible()
    expect(first.locator(".sequence .cross")).to_have_count(2)
    page.locator("#message-text").fill("7/7")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("#message-life")).to_contain_text("n2 had it (</script><img src=x")
    expect(page.locator("#message-life svg")).to_be_visible()
    page.locator("#message-text").fill("9999/1")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("#message-note")).to_contain_text("No operation of this run has the value 9999/1")
    expect(page.locator("#message-life")).to_be_hidden()
    expect(page.locator("#log")).not_to_contain_text("trace put=q0")
    first.get_by_role("button", name="Node logs around it").click()
    expect(page.locator("#log .mark.death")).to_contain_text("the last node that had it removed it")
    assert page.title().startswith("invalid")


@pytest.mark.requirement("H25")
def test_any_message_is_found_without_a_trace(watched: Watched, store: Path) -> None:
    page = watched.open(store / "run-valid" / "report.html")
    page.locator("#message-text").fill("0/3")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("#message-life .life")).to_contain_text("client 0 sent it to")
    expect(page.locator("#message-life .life")).to_contain_text("delivered it to client")
    expect(page.locator("#message-life")).to_contain_text("The places of the message were not recorded")
    expect(page.locator("#message-life svg")).to_be_visible()


@pytest.mark.requirement("H10", part=True)
def test_the_index_filters_by_system_nemesis_and_text(watched: Watched, store: Path) -> None:
    page = watched.open(store / "index.html")
    page.locator("#by-text").fill("nothing came twice")
    expect(page.locator("#rows tr")).to_have_count(1)
    page.locator("#by-text").fill("")
    page.locator("#by-nemesis").select_option("pause")
    page.locator("#by-system").select_option("joram")
    expect(page.locator("#rows tr")).to_have_count(5)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 1,300 bare runs, whose numbers count up with time."""
    store = tmp_path_factory.mktemp("many")
    for number in range(1300):
        verdict = "invalid" if number % 100 == 7 else "valid"
        run = run_json(f"run-{number}", 30, 6, number, verdict) | {
            "started": f"2026-05-01T{number // 60:02}:{number % 60:02}:00+00:00",
            "backend": {"name": "docker" if number % 10 else "local"}, "statuses": {"lost": {"status": "promised"}}}
        (store / f"run-{number}").mkdir()
        (store / f"run-{number}" / "run.json").write_text(json.dumps(run))
        (store / f"run-{number}" / "night.json").write_text(json.dumps({"night": f"night-{number // 500}"}))
        checks = [{"check": "lost", "verdict": verdict}]
        (store / f"run-{number}" / "verdict.json").write_text(json.dumps(
            {"verdict": verdict, "sentence": f"It is {verdict}.", "anomalies": {"lost": number}, "checks": checks}))
    write_index(store)
    return store


def runs_shown(page: Page) -> list[str]:
    return page.locator("#rows td:nth-child(2) > span").all_inner_texts()


@pytest.mark.requirement("H22", part=True)
def test_many_runs_are_paged_sorted_and_found_by_the_address(watched: Watched, many: Path) -> None:
    page = watched.open(many / "index.html")
    assert len(list((many / "index").iterdir())) == 2
    assert runs_shown(page) == [f"run-{number}" for number in range(1299, 1199, -1)]
    assert page.locator("head script[src]").count() == 0  # the page itself holds them
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#place")).to_have_text("page 2 of 13")
    page.get_by_role("button", name="Last").click()
    expect(page.locator("#place")).to_have_text("page 13 of 13")
    assert runs_shown(page) == [f"run-{number}" for number in range(99, -1, -1)]
    assert page.locator("head script[src]").count() == 1
    page.go_back()
    expect(page.locator("#place")).to_have_text("page 2 of 13")
    page.get_by_role("button", name="Seed").click()
    page.get_by_role("button", name="Seed").click()
    expect(page.locator("#rows td.seed").first).to_have_text("0")
    assert page.url.endswith("#sort=seed")
    page.get_by_role("button", name="13 invalid").click()
    expect(page.locator("#rows tr")).to_have_count(13)
    page.locator("#by-night").select_option("night-1")
    expect(page.locator("#shown")).to_have_text("5 of 1,300")
    assert runs_shown(page) == [f"run-{number}" for number in (507, 607, 707, 807, 907)]
    address = page.url
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("#rows tr")).to_have_count(100)
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#rows tr")).to_have_count(5)
    expect(page.locator("#by-night")).to_have_value("night-1")
    for asked, told in (("seed=77", ["run-77"]), ("text=local+run-1290", ["run-1290"]), ("seed=nothing", []),
                        ("guarantee=lost&shows=violated&night=night-2", ["run-1207", "run-1107", "run-1007"]),
                        ("guarantee=lost&shows=violated&status=not+promised", []),
                        ("sort=anomalies&page=13&backend=docker", None), ("page=99&sort=__proto__", None)):  # fmt: skip
        page.evaluate("(asked) => { document.getElementById('rows').replaceChildren(); location.hash = asked; }", asked)
        if told is not None:
            expect(page.locator("#rows tr")).to_have_count(len(told))
            assert runs_shown(page) == told
        else:
            expect(page.locator("#rows tr").first).to_be_visible()
    expect(page.locator("#place")).to_have_text("page 13 of 13")


def test_a_list_that_has_changed_meanwhile_says_so(watched: Watched, many: Path, tmp_path: Path) -> None:
    shutil.copytree(many / "index", tmp_path / "index")
    shutil.copy(many / "index.html", tmp_path)
    damaged, gone = sorted((tmp_path / "index").iterdir())
    damaged.write_text("// nothing")
    gone.unlink()
    page = watched.open(tmp_path / "index.html")
    page.locator("#by-text").fill("valid")
    expect(page.locator("#shown")).to_have_text("The list of runs has changed: reload this page.")
    watched.errors.clear()  # the browser says that a file is missing


@pytest.mark.parametrize("watched", [PHONE], indirect=True)
@pytest.mark.parametrize("page_of", ["index.html", "run-invalid/report.html", "run-hostile/report.html"])
def test_a_phone_never_scrolls_sideways(watched: Watched, store: Path, page_of: str) -> None:
    page = watched.open(store / page_of)
    page.evaluate("() => document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.requirement("H10", part=True)
def test_hostile_values_stay_text(watched: Watched, store: Path) -> None:
    page = watched.open(store / "run-hostile" / "report.html")
    page.evaluate("() => document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    page.locator("#log-window").select_option("all")
    page.locator("#log-text").fill("onerror")
    expect(page.locator("#log > div").first).to_contain_text("</script><img")
    page.locator("#find-text").fill('{"body": "' + HOSTILE.replace('"', '\\"').replace("\u2028", "\\u2028") + '"}')
    page.get_by_role("button", name="Find").click()
    expect(page.locator("#detail")).to_contain_text("</script><img")
    page.locator("#lanes").hover()
    assert page.locator("img").count() == 0
    assert page.title() == "invalid: run-hostile"


@pytest.mark.requirement("H10", part=True)
def test_a_page_of_100_000_operations_can_be_worked_with(watched: Watched, store: Path) -> None:
    page = watched.open(store / "run-large" / "report.html")
    assert drawn_colours(page) > 6
    whole = canvas_hash(page)
    for _ in range(8):
        page.get_by_role("button", name="Zoom in").click()
    zoomed = canvas_hash(page)
    assert zoomed != whole
    page.locator("#lanes").focus()
    page.keyboard.press("Shift+ArrowRight")
    assert canvas_hash(page) != zoomed
    page.keyboard.press("0")
    assert canvas_hash(page) == whole
    page.locator("#find-text").fill("4/17")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("#detail h3")).to_contain_text("4/17")
    expect(page.locator("#detail .story li")).to_have_count(2)
    page.locator("#detail .story button").first.click()
    expect(page.locator("#detail h3")).to_contain_text("4/17")
    page.locator("#lanes").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#detail h3")).not_to_contain_text("4/17")
    page.keyboard.press("Escape")
    expect(page.locator("#detail")).to_be_hidden()


def test_the_timeline_answers_pointer_and_wheel(watched: Watched, store: Path) -> None:
    page = watched.open(store / "run-invalid" / "report.html")
    page.locator("[data-fault='0']").click()
    page.locator("#lanes").scroll_into_view_if_needed()
    box = page.locator("#lanes").bounding_box()
    assert box
    before = canvas_hash(page)
    page.mouse.move(box["x"] + 600, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 60, steps=4)
    page.mouse.up()
    dragged = canvas_hash(page)
    assert dragged != before
    page.keyboard.down("Control")
    for _ in range(12):
        page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    assert canvas_hash(page) != dragged
    for x in range(int(box["x"]) + 100, int(box["x"] + box["width"]), 6):
        page.mouse.move(x, box["y"] + 10)
        if page.locator(".tip").is_visible():
            page.mouse.click(x, box["y"] + 10)
            break
    expect(page.locator("#detail h3")).to_contain_text("enqueue")


ALONG = """() => [...document.querySelectorAll('#axis .axis-line')].map((e) => e.getBoundingClientRect().left)
  .concat([...document.querySelectorAll('#axis canvas')].map((e) => e.getBoundingClientRect().left
    + parseFloat(getComputedStyle(document.getElementById('axis')).getPropertyValue('--gutter'))))"""


@pytest.mark.requirement("H25", part=True)
@pytest.mark.parametrize("watched", [DESKTOP, PHONE], indirect=True)
def test_everything_lies_on_one_axis_with_one_zoom_and_one_cursor(watched: Watched, store: Path) -> None:
    page = watched.open(store / "run-invalid" / "report.html")
    edges = page.evaluate(ALONG)
    assert len(edges) >= 1 + 1 + 3 + 3 + 4, "times, phases, faults, nodes, operations and plots"
    assert max(edges) - min(edges) < 1
    assert page.locator(".lane-roles .axis-label").all_inner_texts() == ["n1", "n2", "n3"]
    kill = page.locator(".lane-faults .role").filter(has_text="master #3")
    plot = page.locator("#plot-latency-enqueue canvas")
    wide, drawn = kill.get_attribute("width"), plot.evaluate("(e) => e.toDataURL()")
    lanes = canvas_hash(page)
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40)
    expect(page.locator("#axis-cursor")).to_be_visible()
    cursor = page.locator("#axis-cursor").bounding_box()
    axis = page.locator("#axis").bounding_box()
    assert cursor and axis and abs(cursor["x"] - box["x"] - box["width"] * 0.6) < 2
    assert cursor["height"] == pytest.approx(axis["height"], abs=2), "it goes through all"
    expect(page.locator("#plot-latency-enqueue .legend b").first).to_contain_text("ms")
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 40, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert canvas_hash(page) != lanes
    assert plot.evaluate("(e) => e.toDataURL()") != drawn
    assert float(str(kill.get_attribute("width"))[:-1]) > 2 * float(str(wide)[:-1])


@pytest.mark.requirement("H25", part=True)
def test_links_lead_from_the_log_to_the_timeline_and_back(watched: Watched, store: Path) -> None:
    report = store / "run-invalid" / "report.html"
    page = watched.open(report)
    line = page.locator("#log > div[data-line]").nth(7)
    name, time = line.get_attribute("data-line"), float(line.locator(".at").inner_text())
    line.locator(".text").click()
    expect(page.locator("#axis-pin span")).to_contain_text(f"{time:.1f}")
    expect(page).to_have_url(re.compile("#.*log="))
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#log .here")).to_have_attribute("data-line", str(name))
    expect(page.locator("#axis-pin span")).to_contain_text(f"{time:.1f}")
    page.locator("[data-fault-logs='1']").click()
    expect(page.locator("#log .mark.fault").filter(has_text="pause one #2 injected")).to_be_visible()
    page.locator("#find-text").fill("2/17")
    page.get_by_role("button", name="Find").click()
    page.locator("#detail").get_by_role("button", name="Node logs at that time").click()
    expect(page.locator("#log .mark").first).to_contain_text("the chosen moment")
    expect(page).to_have_url(re.compile("#.*op="))
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#detail h3")).to_contain_text("2/17")
    anomaly = page.locator("details.anomaly").nth(2)
    ident = str(anomaly.get_attribute("id"))
    page.goto("about:blank")
    page.goto(f"{report.as_uri()}#{ident}")
    expect(page.locator("details.anomaly").nth(2)).to_have_attribute("open", "")
    expect(page.locator("#detail h3")).to_contain_text(ident.partition("-")[2])
    for wrong in ("t=9-3&op=99999999&by=nobody", "at=soon&log=%E0%A4%A", "t=1e99-2e99", "%E0%A4%A", "lanes"):
        page.evaluate("(hash) => { location.hash = hash; }", wrong)
    expect(page.locator("#lanes-note")).to_contain_text("row 99999999")


@pytest.mark.requirement("H25", part=True)
def test_a_link_that_is_followed_at_once_stays_in_the_address(watched: Watched, store: Path) -> None:
    """The page writes its address a little after a change of what it shows: not over a link followed meanwhile."""
    page = watched.open(store / "run-invalid" / "report.html")
    line = page.locator("#log > div[data-line] .text").nth(7)
    line.evaluate("(line) => { line.click(); document.querySelector('nav.sections a[href=\"#faults\"]').click(); }")
    page.wait_for_timeout(1000)  # four times QUIET_MS of the page's address.js
    expect(page).to_have_url(re.compile("#faults$"))
    page.locator("#log > div[data-line] .text").nth(8).click()
    expect(page).to_have_url(re.compile("#.*log="))


@pytest.mark.requirement("H25", part=True)
def test_a_run_can_be_stepped_through(watched: Watched, store: Path) -> None:
    page = watched.open(store / "run-invalid" / "report.html")
    page.get_by_role("button", name="Step through time").click()
    page.locator("#play-events").select_option("nodes")
    here = page.locator("#now .events .here").first
    seen: list[str] = []
    # The page's own listener has run when this one does.
    page.evaluate("() => new Promise(done => { addEventListener('hashchange', () => done(), { once: true }); "
                  "location.hash = 'at=5.5'; })")
    for _ in range(40):
        page.get_by_role("button", name="Next event").click()
        seen.append(here.inner_text())
        if "partition master #1" in seen[-1]:
            break
    assert "partition master #1 on n1, c1: in force" in seen[-1] and len({*seen}) == len(seen)
    expect(page.locator("#now [role=status]")).to_contain_text("In force: partition master #1.")
    page.get_by_role("button", name="Previous event").click()
    expect(here).to_have_text(seen[-2])
    page.locator("#play-events").select_option("all")
    page.locator("#lanes").focus()
    page.keyboard.press("n")
    expect(page.locator("#now [role=status]")).to_contain_text("in progress")
    moment = page.locator("#now [role=status] strong").inner_text()
    page.locator("#play-button").click()
    expect(page.locator("#now [role=status] strong")).not_to_have_text(moment)
    page.locator("#play-button").click()
    expect(page.locator("#play-button")).to_have_text("Play")


@pytest.mark.requirement("H25", part=True)
def test_an_accessibility_checker_finds_nothing_serious(watched: Watched, tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    run_dir = make_run(tmp_path, operations=400)
    verdict = json.loads((run_dir / "verdict.json").read_text())
    for check in verdict["checks"]:
        del check["anomalies"][3:]  # one more is no other kind of thing, and each takes the checker its time
    (run_dir / "verdict.json").write_text(json.dumps(verdict))
    page = watched.open(write_report(run_dir))
    page.evaluate("() => document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    page.get_by_role("button", name="Step through time").click()
    page.locator("#lanes").focus()
    page.keyboard.press("ArrowRight")
    for _ in ("light", "dark"):
        found = Axe().run(page).response["violations"]
        assert [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found] == []
        page.locator("#theme").click()


@pytest.mark.parametrize("by", ["process", "node"])
def test_lanes_can_be_drawn_otherwise(watched: Watched, store: Path, by: str) -> None:
    page = watched.open(store / "run-invalid" / "report.html")
    before = canvas_hash(page)
    page.locator("#lanes-by").select_option(by)
    assert canvas_hash(page) != before


def test_colours_can_be_chosen(watched: Watched, store: Path) -> None:
    page = watched.open(store / "run-unknown" / "report.html")
    light = canvas_hash(page)
    page.locator("#theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert canvas_hash(page) != light


def test_the_command_can_be_copied(watched: Watched, store: Path) -> None:
    page = watched.open(store / "run-valid" / "report.html")
    page.locator("#copy").click()
    expect(page.locator("#copy")).to_have_text("Copied")


def test_a_page_without_a_history_opens(watched: Watched, tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=300)
    for part in ("history.parquet", "verdict.json", "ledger.jsonl"):
        (run_dir / part).unlink()
    page = watched.open(write_report(run_dir))
    expect(page.locator(".notes li")).to_have_count(2)


@pytest.mark.requirement("H25", part=True)
def test_an_invalid_run_has_four_pages_of_paper_at_most(watched: Watched, store: Path) -> None:
    page = watched.open(store / "run-invalid" / "report.html")
    closed = page.locator("details.anomaly:not([open])").count()
    assert closed > 3
    page.locator("#theme").click()
    dark = canvas_hash(page)
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert canvas_hash(page) != dark
    assert page.locator("details.anomaly:not([open])").count() < closed, "an example of each kind is unfolded"
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.anomaly:not([open])").count() == closed
    paper = page.pdf(format="A4", print_background=True)
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 4


@pytest.fixture(scope="module")
def store_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all its pages: trends that changed, a matrix, kinds of failure; some of it hostile."""
    store = tmp_path_factory.mktemp("pages")
    for number in range(3):
        verdict = "valid" if number else "invalid"
        run = run_json(f"run-{number}", 30, 6, number, verdict) | {"statuses": {"lost": {"status": "promised"}}}
        (store / f"run-{number}").mkdir()
        (store / f"run-{number}" / "run.json").write_text(json.dumps(run))
        checks = [{"check": "lost", "verdict": verdict}]
        (store / f"run-{number}" / "verdict.json").write_text(json.dumps(
            {"verdict": verdict, "sentence": f"It is {verdict}.", "anomalies": {}, "checks": checks}))
    nights = tuple(TrendNight(f"night-{number}", HOSTILE, f"2026-05-{number + 1:02}", 9) for number in range(30))
    slow = TrendSeries("p99 of sends", "ms", False, tuple(Point(at, 5.0 + 20 * (at > 14), 9) for at in range(30)),
                  (Level(0, 15, 5.0), Level(15, 30, 25.0)), (ChangeMark(15, f"{HOSTILE}: rose", True, 1e-4),))
    calm = TrendSeries("invalid runs", "", True, (Point(3, 0.0, 9), Point(4, 0.0, 9)), (Level(0, 30, 0.0),), ())
    write_trend(store, Trend(nights, (TrendCase("calm", True, (calm,)), TrendCase(HOSTILE, False, (slow, calm))), 3, 1,
                             0.05))  # fmt: skip
    shown = {"promised": Shown(9, 2, 3, [("run-0", False)], [("run-1", False)])}
    faults = ("kill", "partition", *(f"fault-{number}" for number in range(20)))
    line = [MatrixCell(fault, shown if fault == "partition" else {}) for fault in faults]
    write_matrix(store, [SystemMatrix("joram", faults, {"lost": line, HOSTILE: line}, {}, (HOSTILE,), ("clock",), 4)])
    kind = TriageKind("0123456789", HOSTILE, "new", 2, "night-1", "night-2", HOSTILE, "run-0", f"stormproof {HOSTILE}",
                      (2, 3), "", (("run-0", False),), True)
    write_triage(store, [kind, replace(kind, example=HOSTILE, stored=(), fingerprint=HOSTILE, urgent=False)], 30)
    write_index(store)
    return store


@pytest.mark.requirement("H22", part=True)
@pytest.mark.requirement("H10", part=True)
def test_pages_over_a_store_lead_to_the_runs_behind_them(watched: Watched, store_pages: Path) -> None:
    page = watched.open(store_pages / "index.html")
    page.get_by_role("link", name="Trends").click()
    page.wait_for_selector("html[data-ready=yes]")
    assert page.locator("ul.changes li").all_inner_texts() == [f"Worse{HOSTILE}: rose"]
    expect(page.locator("section h2").first).to_have_text(HOSTILE)  # what changed stands first
    chart = page.locator("figure.chart").first
    assert [chart.locator(f".{drawn}").count() for drawn in ("dot", "level", "mark")] == [30, 2, 1]
    high, low = (chart.locator(".dot").nth(at).bounding_box() for at in (20, 2))
    assert high is not None and low is not None and low["y"] - high["y"] > 30 and low["x"] < high["x"]
    page.get_by_role("link", name="Guarantees").click()
    page.wait_for_selector("html[data-ready=yes]")
    expect(page.locator(".runs-behind").first).to_be_hidden()
    page.locator("a.cell.defect").first.click()
    expect(page.locator(".runs-behind").first).to_contain_text("violated in 2 of 9 runs")
    expect(page.locator(".runs-behind").first).to_contain_text("6 were not kept in the store")
    page.get_by_role("link", name="runs that violated it").first.click()
    page.wait_for_selector("html[data-ready=yes]")
    expect(page.locator("#shown")).to_have_text("1 of 3")
    assert runs_shown(page) == ["run-0"]
    page.get_by_role("link", name="Kinds of failure").click()
    page.wait_for_selector("html[data-ready=yes]")
    expect(page.locator(".kind")).to_have_count(2)
    expect(page.locator(".kind .command").first).to_have_text(f"stormproof {HOSTILE}")
    page.locator(".kind").first.get_by_role("link", name="run-0").first.click()
    page.wait_for_selector("html[data-ready=yes]")
    expect(page.locator("#rows tr")).to_have_count(1)


@pytest.mark.parametrize("watched", [PHONE], indirect=True)
def test_pages_over_a_store_fit_a_phone(watched: Watched, store_pages: Path) -> None:
    for name in ("index.html", "trend.html", "matrix.html#c1-1-2", "triage.html"):
        page = watched.page
        page.goto(f"{store_pages.as_uri()}/{name}")
        page.wait_for_selector("html[data-ready=yes]")
        page.evaluate("() => document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name
        theme = page.evaluate("document.documentElement.dataset.theme")
        page.locator("#theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") != theme
