"""What breaks the rules of clients' work and connections, and of stores that fail or hold what nobody wrote."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness.run.cases import Case
from nodes.reference.designs.qpid.browsing import Browser, Browsing
from nodes.reference.designs.qpid.pushed_urls import PushedUrls
from nodes.reference.designs.qpid.roles import Roles
from nodes.reference.designs.qpid.states import READY
from nodes.reference.designs.qpid.store_status import CLEAN, EMPTY
from nodes.reference.engine.state import EngineState
from nodes.reference.points import WRITTEN
from nodes.reference.server import frames
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.budget import Turns
from nodes.reference.server.inflight import Work

Break = Callable[[pytest.MonkeyPatch], None]
_QPID = {"min_ok": "1"}


def transactions_weigh_double(patch: pytest.MonkeyPatch) -> None:
    weigh = Work._in_transaction
    patch.setattr(Work, "_in_transaction", lambda self, command: 2 * weigh(self, command))


def time_stands_still(patch: pytest.MonkeyPatch) -> None:
    """Whoever has been idle has saved up for it."""
    begin = Turns._begin

    def without(self: Turns, start: int, size: int) -> None:
        begin(self, start, size)
        self._clock = 0

    patch.setattr(Turns, "_begin", without)


def goes_on(patch: pytest.MonkeyPatch) -> None:
    """A broker whose store has failed takes its transaction for stored."""
    transaction = ReferenceBroker.transaction

    @contextmanager
    def quietly(self: ReferenceBroker, *about: Any) -> Iterator[None]:
        try:
            with transaction(self, *about):
                yield
        except sqlite3.Error:
            self.runtime.point(WRITTEN)

    patch.setattr(ReferenceBroker, "transaction", quietly)


def no_end_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EngineState, "remember_closed", lambda self, context, reason, count: None)


def everything_discarded(patch: pytest.MonkeyPatch) -> None:
    """A backup discards what it has, whatever state its store is in."""
    as_backup = Roles._as_backup
    patch.setattr(Roles, "_as_backup", lambda self, discard: as_backup(self, discard=True))


def any_own_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("nodes.reference.designs.qpid.store_status._is_row", lambda *row: True)


def urls_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A person's URLs are not stored."""
    patch.setattr(PushedUrls, "keep", lambda self: None)


def first_start_by_most(patch: pytest.MonkeyPatch) -> None:
    """A first start needs one member that has nothing."""
    patch.setattr("nodes.reference.designs.qpid.manager.coordinator.may_bootstrap", lambda reports, *_: any(
        report.store in (EMPTY, CLEAN) for report in reports.values()))


def eligible_all_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roles, "eligible", property(lambda self: self.state == READY))


def never_full(patch: pytest.MonkeyPatch) -> None:
    """Whatever happens while a backup catches up waits for it."""
    def hold(self: Browsing, browser: Browser, events: list[Any], size: int) -> None:
        browser.held.append((self.number, events))
        browser.held_bytes += size

    patch.setattr(Browsing, "_hold", hold)


def all_take_requests(patch: pytest.MonkeyPatch) -> None:
    """Every design takes requests."""
    read = frames.command_of
    patch.setattr(frames, "command_of", lambda frame, conn, reliable, manager=False, secured=False: read(
        frame, conn, reliable, True, secured))


WORK_BREAKS: dict[str, tuple[Case, Break]] = {
    "work-estimated": (Case("standalone", "queue", "kill", None, 14.0, 30.0, _QPID), transactions_weigh_double),
    "destinations-judged": (Case("standalone", "queue", "kill", None, 14.0, 30.0, _QPID), all_take_requests),
    "turns-by-size": (Case("qpid", "dialogue", "kill", None, 26.0, 40.0, _QPID), time_stands_still),
    "passes-nothing-on": (Case("fiorano", "queue", "disk", None, 26.0, 17.0, {
        "min_ok": "1", "disk_kind": "sync-error"}), goes_on),
    "ends-remembered": (Case("standalone", "queue", "kill", None, 14.0, 30.0, _QPID), no_end_remembered),
    "attaches-with-all": (Case("qpid", "queue", "crash", None, 30.0, 30.0, {
        "min_ok": "5", "crash_kind": "shutdown"}), everything_discarded),
    "urls-kept": (Case("qpid", "queue", "membership", 4, 26.0, 30.0, {
        "min_ok": "5", "membership_kind": "remove"}), urls_forgotten),
    "first-start-of-all": (Case("qpid", "queue", "disk,crash", None, 40.0, 30.0, {
        "min_ok": "5", "disk_kind": "empty"}), first_start_by_most),
    "eligible-has-stored": (Case("qpid", "queue", "disk", None, 26.0, 30.0, {
        "min_ok": "5", "store_errors": "carry-on", "disk_target": "backup", "disk_kind": "full"}),
        eligible_all_the_same),
    "backlog-kept": (Case("qpid", "queue", "kill", None, 20.0, 100.0, {
        "min_ok": "5", "catchup_backlog": "1", "catchup_chunk": "1", "producers": "5", "consumers": "1"}), never_full),
    "own-rows-judged": (Case("qpid", "queue", "kill", None, 14.0, 30.0, _QPID), any_own_row),
}  # fmt: skip
