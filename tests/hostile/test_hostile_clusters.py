"""What ended a broker or a manager, or was taken for something that it isn't, when a peer or a client said it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hostile_targets import TARGETS

from nodes.reference.designs.qpid import backup

_ATTACHED: Sequence[Any] = ("", ["BrokerStatus", "primary", 5, ""], 0.1)
_EMPTY = ["EventGroup", 0, 5, [["snapshot", 1, [["queue", "q", {"created": "1"}]]]], False]
_READY = ["EventGroup", 1, 5, [["caught-up"]], False]
_ANSWER: Mapping[str, Any] = {"ok": True, "state": "ready", "eligible": True, "generation": 3, "forced": False,
                              "store": {"state": "dirty", "uuid": ""}}  # fmt: skip
_REPORT = {"up": True, "state": "connecting", "eligible": True, "generation": 0, "store": "empty", "uuid": "",
           "ballot": 0, "promoted": 0, "finished": 0, "declined": 0, "forced": False}  # fmt: skip


_INVITED: Sequence[Any] = (
    ["ask", 1, "invitation", ["n1", "g"]], 0.2, ["ask", 1, "promise", ["g", 4]],
    ["ask", 1, "install", ["g", 4, [4, 0, 0.0], []]], ["ask", 1, "ready", ["g", 4, ["n2"], 3]], 0.1,
)  # fmt: skip
"""The replica is in a group that a hostile one coordinates."""


def lines(*said: Any) -> bytes:
    return b"\n".join(json.dumps(each).encode() for each in said)


CASES: Mapping[str, tuple[str, bytes]] = {
    "a position that is none": ("qpid-links", lines(*_ATTACHED, ["EventGroup", 0, 5, [["dequeue", "q", []]], False])),
    "a position beyond 64 bits": (
        "qpid-links", lines(*_ATTACHED, ["EventGroup", 0, 5, [["enqueue", "q", 5, [1 << 62, 1], {}, "b:x"]], False])),
    "an exchange without a type": (
        "qpid-links",
        lines(*_ATTACHED, ["EventGroup", 0, 5, [["snapshot", 1, [["exchange", "x", {}]]]], False], _READY)),
    "a header that no client can be sent": (
        "qpid-links", lines(*_ATTACHED, _EMPTY, _READY, ["EventGroup", 2, 5, [["enqueue", "q", 5, [0, 1], {"a\0": "b"},
                                                                            "b:x"]], False])),
    "an end before all is there": ("qpid-links", lines(*_ATTACHED, _EMPTY, ["Shutdown", "ab"])),
    "a part that is malformed": (
        "qpid-links", lines(*_ATTACHED, _EMPTY, ["EventGroup", 1, 5, [["enqueue", "q", 5, [0, 1]]], True])),
    "a queue with half a character": ("qpid-requests", lines({"request": "create-queue", "body": {"queue": "\ud800"}})),
    "an argument with half a character": (
        "qpid-requests", lines({"request": "create-queue", "body": {"queue": "q", "x": "\udfff"}})),
    "a client URL with half a character": (
        "qpid-requests", lines({"op": "set-client-url", "addresses": {"n1": ["\ud800", 5672], "n2": ["h", 1]}})),
    "a store of a generation beyond 64 bits": (
        "qpid-copies", lines({"copy": "a", "piece": 0, "rows": []},
                             {"op": "stamp-store", "copy": "a", "piece": 1, "uuid": "ab", "generation": 10**30})),
    "a state with half a character": ("qpid-manager-answers", lines({**_ANSWER, "state": "\ud800"})),
    "a generation beyond 64 bits": ("qpid-manager-answers", lines({**_ANSWER, "generation": 10**30})),
    "an answer nested without end": ("qpid-manager-answers", b"[" * 100_000),
    "a grant for ever": ("qpid-permission", lines("good", ["granted", "sent", 1e9, 0, 0])),
    "a grant from the future": ("qpid-permission", lines("good", ["granted", 1e308, 1.0, 0, 0])),
    "a heartbeat at no time": (
        "qpid-managers", lines(["Echo", float("nan"), 1, 1, 1, "n2", float("nan"), 0, 0, [0, 0, []]], 0.3,
                               ["Beat", 1.0, 1 << 62, 1 << 62, "n1", True, True, ["n3"], [40, 1, ["n3"]],
                                {**_REPORT, "generation": (1 << 63) - 1}], 1)),
    "an operation of a thousand brackets": ("qpid-requests", lines({"op": [[["x" * 2000]]]})),
    "an answer that is no list": (
        "icestorm-links", lines({"answers": {"request": ["done", None]}}, *_INVITED, {"request": "list", "body": {}})),
    "a name that no header can hold": (
        "icestorm-links", lines({"answers": {"request": ["done", ["a\0" * 8000, "b\0" * 8000]]}}, *_INVITED,
                                {"request": "list", "body": {}})),
    "a mistake that no header can hold": (
        "icestorm-links", lines({"answers": {"request": ["mistake", "a\0b"]}}, *_INVITED,
                                {"request": "create", "body": {"topic": "t"}})),
    "a store that no broker wrote": ("qpid-stored", lines(["qpid_objects", "binding", "x", {}],
                                                          ["qpid_store", 0, "dirty", "primary", -1, ""])),
}  # fmt: skip


@pytest.mark.requirement("H26")
@pytest.mark.parametrize("name", CASES)
def test_what_can_t_be_ends_a_link_or_is_refused_and_nobody_dies(name: str) -> None:
    target, said = CASES[name]
    TARGETS[target]().run(said)


@pytest.mark.requirement("H26")
def test_a_phase_of_a_number_of_400_digits_is_left_out_of_the_report() -> None:
    target = TARGETS["report-run.json"]()
    run = json.loads(target.seeds[0])
    run["phases"][0]["start"] = int("1" * 400)
    target.run(json.dumps(run).encode())


@pytest.mark.requirement("H26")
@pytest.mark.requirement("Q2", part=True)
@pytest.mark.parametrize("event", [
    ["enqueue", "q", 5, [0, 1], {"a": "x" * 300}, "b:" + "y" * 200],
    ["snapshot", 1, [["queue", "q", {"created": "1", "x": "y" * 500}]]],
    ["reset", "q", [0, 1], [[5, number] for number in range(20)]],
], ids=["messages", "snapshots", "resets"])  # fmt: skip
def test_a_group_without_end_ends_the_link(event: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "MAX_GROUP", 1500)
    parts = [["EventGroup", 1, 5, [event], True]] * 4
    log = str(TARGETS["qpid-links"]().run(lines(*_ATTACHED, _EMPTY, *parts)))
    assert "a group of events has more than 1500 bytes" in log


@pytest.mark.requirement("H26")
@pytest.mark.parametrize("name", [name for name in TARGETS if name.startswith(("qpid", "icestorm"))])
def test_honest_lines_are_carried_out(name: str) -> None:
    target = TARGETS[name]()
    told = [target.run(said) for said in target.seeds]
    if name == "qpid-copies":
        assert "store replaced generation=3" in str(told[0]) and "store is copied" in str(told[1]), told
    if name.startswith("qpid-links"):
        assert "ready generation=5" in str(told[0]) and "backup attached" in str(told[1]), told[:2]
        assert not any("link down" in line and "malformed" in line for line in str(told[0]).splitlines()), told[0]
