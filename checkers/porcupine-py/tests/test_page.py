import shutil

import pytest

import porcupine
from porcupine import Operation, check_operations_verbose, generate

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def page():
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 700})
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("dialog", lambda dialog: page.errors.append(dialog.message))
        yield page
        browser.close()


def test_values_stay_text_and_a_click_shows_an_operation(page, tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    operations = [Operation(0, ("write", evil), None, 0, 3), Operation(1, ("read",), "x", 1, 2)]
    model = porcupine.model_named("register")
    result = check_operations_verbose(model, operations)
    porcupine.write_html(tmp_path / "h.html", model, operations, result, title=evil)
    page.goto((tmp_path / "h.html").as_uri())
    assert page.inner_text("#title") == evil and page.inner_text("#verdict") == "illegal"
    assert "never written" in page.inner_text("#reason")
    assert "Operation 1" in page.inner_text("#detail") and "read()" in page.inner_text("#detail")
    assert page.query_selector("img") is None and page.errors == []


def test_ten_thousand_operations_are_drawn_and_stepped_through(page, tmp_path):
    history = generate.queue(10_000, 10, 1, 9)
    operations = [
        Operation(i % 10, ("enqueue", v) if f == 0 else ("dequeue",), v if f == 1 else None, c, r)
        for i, (f, v, c, r) in enumerate(
            zip(*(x.tolist() for x in (history.f, history.value, history.call, history.ret)), strict=True)
        )
    ]
    model = porcupine.model_named("fifo-queue")
    result = check_operations_verbose(model, operations)
    assert result.verdict is porcupine.CheckResult.OK
    porcupine.write_html(tmp_path / "h.html", model, operations, result)
    page.goto((tmp_path / "h.html").as_uri())
    spent = page.evaluate("() => { const t = performance.now(); whole(); return performance.now() - t; }")
    assert spent < 2000
    page.click("#next")
    assert "1 of 10000 in the order" in page.inner_text("#detail")
    page.keyboard.press("ArrowRight")
    assert "2 of 10000 in the order" in page.inner_text("#detail")
    assert page.errors == []
