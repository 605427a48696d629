"""The checker's own numbers and samples, by which it asks a broker's guards."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodes.reference.designs.qpid.manager.record import ManagerRecord
from nodes.reference.engine import row_schema
from nodes.reference.engine.limits import Limits
from nodes.reference.engine.row_schema import ShapeError, check_row
from nodes.systems.reference.probes import configurations, design_options, guards, page
from nodes.systems.reference.qpid import own_rows

PAGE = Path(__file__).parents[2] / "docs/stomp.md"
_UNITS = {"": 1, " KiB": 1 << 10, " MiB": 1 << 20, " GiB": 1 << 30}


def number(text: str) -> float:
    """What a cell of the table of limits says."""
    found = re.fullmatch(r"([\d,.]+)( [KMG]iB)?", text.strip())
    assert found, text
    return float(found[1].replace(",", "")) * _UNITS[found[2] or ""]


def test_the_checkers_limits_are_those_of_the_page() -> None:
    told: dict[str, float] = {}
    text = PAGE.read_text(encoding="utf-8").partition("| option | default | limit |")[2].partition("\n\n")[0]
    for names, defaults in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", text, re.MULTILINE):
        numbers = [defaults] if names.count("`") == 2 else defaults.split(", ")
        told |= dict(zip(re.findall(r"`(\w+)`", names), map(number, numbers), strict=True))
    assert told == page.LIMITS


PAGES = {"qpid": {"detection_timeout": "silence", "eviction_timeout": "eviction"}}
"""Design -> name on its page -> name in the code, where they differ."""


@pytest.mark.parametrize("design", page.DESIGNS)
def test_the_checkers_options_of_a_design_are_those_of_its_page(design: str) -> None:
    text = (PAGE.parent / "designs" / f"{design}.md").read_text(encoding="utf-8")
    told: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", text, re.MULTILINE):
        for name, default in zip(re.findall(r"`(\w+)`", names), defaults.split(", "), strict=False):
            told.setdefault(PAGES.get(design, {}).get(name, name), default.strip("` "))
    for name, promised in page.DESIGNS[design].items():
        if isinstance(promised, bool | str):
            assert told[name] == (promised if isinstance(promised, str) else str(promised).lower())
        else:
            assert number(told[name]) == promised, name


def test_an_option_of_a_design_that_is_not_what_the_page_says_is_found() -> None:
    @dataclass
    class Options:
        mode: str = "replicated"
        lease: float = 2.0

    assert page.unlike_design("fiorano", Options()) == "lease is 2.0 by default, and should be 1.0"
    assert page.unlike_design("standalone", None) == ""


def test_a_limit_that_is_not_what_is_said_is_found() -> None:
    assert page.unlike_page(Limits(), {}) == ""
    assert page.unlike_page(Limits(max_queues=7), {"max_queues": 7}) == ""
    assert page.unlike_page(Limits(max_queues=7), {}) == "max_queues is 7, and should be 10000"
    assert "max_queues is 10000" in page.unlike_page(Limits(), {"max_queues": 7})


def test_each_configuration_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert configurations.misjudged() == ""
    for guard, told in (("_peers", "peers"), ("_services", "services"), ("_check_server", "server")):
        with monkeypatch.context() as patch:
            patch.setattr(f"nodes.reference.config.{guard}", lambda value, *_: value)
            assert told in configurations.misjudged()


@pytest.mark.parametrize(("design", "guard", "told"), [
    ("qpid", "nodes.reference.designs.qpid.options.read_patterns", "patterns"),
    ("qpid", "nodes.reference.designs.qpid.options.whole", "catchup_backlog"),
    ("qpid", "nodes.reference.designs.qpid.options.choice", "replicate"),
    ("fiorano", "nodes.reference.designs.fiorano.configuration.seconds", "lease"),
    ("fiorano", "nodes.reference.designs.fiorano.configuration.switch", "start_alone"),
    ("fiorano", "nodes.reference.designs.fiorano.configuration._LAYER", "Primary"),
])
def test_each_option_of_a_design_is_judged(design: str, guard: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert design_options.misjudged(design) == design_options.misjudged("standalone") == ""
    monkeypatch.setattr(guard, {} if guard.endswith("_LAYER") else lambda options, name="", *_, **__: (
        options.get(name) if isinstance(options, dict) else options))
    assert told in design_options.misjudged(design)


@pytest.mark.parametrize("module", ["store_status", "configuration", "positions", "pushed_urls", "manager.record"])
def test_each_own_row_of_a_qpid_broker_is_judged(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_rows.misjudged() == ""
    if module == "manager.record":
        monkeypatch.setattr(f"nodes.reference.designs.qpid.{module}._read", lambda row: ManagerRecord())
    else:
        monkeypatch.setattr(f"nodes.reference.designs.qpid.{module}._is_row", lambda *row: True)
    assert "is taken, which has a wrong column" in own_rows.misjudged()


def test_what_a_guard_of_rows_lets_through_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guards.misjudged_sample() == ""
    for reference in row_schema._REFERENCES:
        with monkeypatch.context() as patch:
            patch.setattr(row_schema, "_REFERENCES", [each for each in row_schema._REFERENCES if each != reference])
            assert guards.misjudged_sample().startswith(f"a state is accepted in which a row of {reference[0]} names")
    for table in row_schema._CONTENTS:
        with monkeypatch.context() as patch:
            patch.setattr(row_schema, "_CONTENTS", {**row_schema._CONTENTS, table: lambda columns: True})
            assert f"a row of {table} is accepted" in guards.misjudged_sample()


def test_a_deletion_that_is_refused_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole_only(row: list[object]) -> None:
        if len(row) == 2:
            raise ShapeError("it has no columns")
        check_row(row)

    monkeypatch.setattr(guards, "check_row", whole_only)
    assert "when it is deleted: it has no columns" in guards.misjudged([["queues", 1, "q", "queue", "", 0, 0]])
