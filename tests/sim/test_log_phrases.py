"""Phrases of logs that states and roles parse: one table, whose former wordings are read like the present ones."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from nodes.systems.catalog import SYSTEMS
from nodes.systems.reference.log_events import event_of
from nodes.systems.reference.log_phrases import PHRASES, PRESENT

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "nodes" / "systems" / "reference"


def texts(*paths: Path) -> Iterator[str]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def events_asked_for(path: Path) -> Iterator[str]:
    """The events that a module of states counts by name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("logged", "during", "broken_off", "moved"):
            yield from (each.value for each in node.args if isinstance(each, ast.Constant))


def test_brokers_log_each_phrase_and_no_former_wording() -> None:
    production = set(texts(*(path for path in (ROOT / "nodes/reference").rglob("*.py") if "bugs" not in path.parts)))
    assert production >= PHRASES.keys() and not production & PRESENT.keys()


def test_states_count_phrases_of_the_table() -> None:
    asked = {event for path in REFERENCE.glob("*/rules/states.py") for event in events_asked_for(path)}
    assert len(asked) > 20 and asked <= PHRASES.keys()


def test_former_wordings_of_old_logs_are_read() -> None:
    assert event_of("stood still seconds=2.5").event == "process stalled"
    for name in ("joram", "qpid", "fiorano"):
        for phrase in ("stood still", "process stalled"):
            log = f"1.000000 2000-01-01T00:00:01.000Z {phrase} seconds=3\n"
            assert SYSTEMS.load(name).states_reached({"n1": log})["stood-still"] == 1


def test_a_former_wording_belongs_to_one_phrase() -> None:
    assert len(PRESENT) == sum(map(len, PHRASES.values())) and not PRESENT.keys() & PHRASES.keys()
