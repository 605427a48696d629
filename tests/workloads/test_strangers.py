"""Dialogues see brokers that admit strangers, or keep another limit than the page states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.run.cases import Case
from harness.sim.campaign import NONE, run_and_judge
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.server import frames
from nodes.reference.server.administration import AdministratorRequests
from nodes.reference.server.frames import FrameError
from nodes.reference.server.login import Login
from nodes.stomp import FrameLimits

Break = Callable[[pytest.MonkeyPatch], None]
DIALOGUE = Case("standalone", "dialogue", "none", None, 15.0, 40.0, {"min_ok": "1", "invariants": "false"})
EVENTS = Case("icestorm", "topic-dialogue", "none", None, 15.0, 40.0, {"min_ok": "1", "invariants": "false"})


def any_passcode(patch: pytest.MonkeyPatch) -> None:
    check = Login.check

    def instead(self: Login, frame: Any) -> Any:
        try:
            return check(self, frame)
        except FrameError as error:
            if "passcode" not in str(error):
                raise
            self.greeting = frames.greeting(frame)
            return self.greeting

    patch.setattr(Login, "check", instead)


def administrators_may_all(patch: pytest.MonkeyPatch) -> None:
    handle = AdministratorRequests.handle

    def instead(self: AdministratorRequests, frame: Any) -> bool:
        try:
            return handle(self, frame)
        except FrameError:
            return False

    patch.setattr(AdministratorRequests, "handle", instead)


def one_reason(patch: pytest.MonkeyPatch) -> None:
    make = StoreEngine.__init__

    def init(self: StoreEngine, *args: Any, **more: Any) -> None:
        make(self, *args, **more)
        original = self._contexts.close
        patch.setattr(self._contexts, "close", lambda context, reason, *of: original(context, "client", *of))

    patch.setattr(StoreEngine, "__init__", init)


def shorter_login(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("nodes.reference.server.sessions.login_limits", lambda limits: FrameLimits(
        limits.max_login_bytes - 1, limits.max_headers, limits.max_login_bytes))


def more_headers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("nodes.reference.server.sessions.login_limits", lambda limits: FrameLimits(
        limits.max_login_bytes, limits.max_headers + 1, limits.max_login_bytes))


def shorter_value(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(frames, "MAX_VALUE", frames.MAX_VALUE - 1)


def shorter_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(frames, "MAX_NAME", frames.MAX_NAME - 1)


def one_message_id(patch: pytest.MonkeyPatch) -> None:
    message = frames.message
    patch.setattr(frames, "message", lambda delivery, reliable: message(
        dataclasses.replace(delivery, message_id="7"), reliable))


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize("break_it", [
    any_passcode, administrators_may_all, one_reason, shorter_login, more_headers, shorter_value, shorter_names,
    one_message_id,
])  # fmt: skip
def test_a_broker_that_does_otherwise_is_seen(break_it: Break, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    seen = []
    for seed in range(1, 9):
        found, *_ = run_and_judge(DIALOGUE, seed, tmp_path, tmp_path, NONE)
        seen.append(found.sentence)
        if "dialogue" in found.broken:
            return
    raise AssertionError(seen)


@pytest.mark.requirement("H17", part=True)
def test_replicas_of_icestorm_that_admit_everybody_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound, *_ = run_and_judge(EVENTS, 1, tmp_path, tmp_path, NONE)
    assert sound.verdict == "valid", sound.sentence
    any_passcode(monkeypatch)
    found, *_ = run_and_judge(EVENTS, 1, tmp_path, tmp_path, NONE)
    assert "dialogue" in found.broken, found.sentence
