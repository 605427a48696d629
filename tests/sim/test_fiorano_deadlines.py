"""Deadlines of a FioranoMQ pair: each is missed where the code is wrong that keeps it, and ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.run.cases import Case
from harness.sim.campaign import ALL, run_and_judge
from nodes.reference.api import Admission
from nodes.reference.designs.fiorano import lock, shared
from nodes.reference.designs.fiorano.active import ActiveSide
from nodes.reference.designs.fiorano.configuration import FioranoOptions
from nodes.reference.designs.fiorano.design import FioranoDesign
from nodes.reference.designs.fiorano.gateway import service
from nodes.reference.designs.fiorano.gateway.protocol import TAKE
from nodes.reference.designs.fiorano.lock import GatewayLock, Wish
from nodes.reference.designs.fiorano.messages import ServerStatus, StoredUpTo
from nodes.reference.designs.fiorano.pair import Pair
from nodes.reference.designs.fiorano.server import HAServer
from nodes.reference.designs.fiorano.states import ACTIVE, PASSIVE, STANDALONE, WAITING
from nodes.reference.storage.client import StorageClient
from nodes.reference.storage.service import StorageService
from nodes.systems.catalog import SYSTEMS
from stormproof.contracts.invariant import INVARIANTS
from stormproof.run_folder import read_run
from tests.breaking import later

Patch = pytest.MonkeyPatch


def undecided(patch: Patch) -> None:
    """Who serves alone thinks about what the other server says at the next sign of life."""
    take = HAServer.take_hello
    patch.setattr(HAServer, "take_hello", lambda self, hello: (
        setattr(self, "peer", hello) if self.state == STANDALONE else take(self, hello)))


def not_broadcast(patch: Patch) -> None:
    """Who has become active says so with the next sign of life."""
    tell = HAServer._tell_state
    patch.setattr(HAServer, "_tell_state", lambda self: None if self.state == ACTIVE else tell(self))


def seldom_alive(patch: Patch) -> None:
    """A server greets when its state has changed."""
    greet = HAServer.greet
    patch.setattr(HAServer, "greet", lambda self: greet(self) if self.told != (self.state, self.before) else None)


def long_silence(patch: Patch) -> None:
    """A channel is given up after ten heartbeats."""
    patch.setattr(FioranoOptions, "silence", property(lambda self: 10 * self.heartbeat))


def short_silence(patch: Patch) -> None:
    """A channel is given up after two heartbeats."""
    patch.setattr(FioranoOptions, "silence", property(lambda self: 2 * self.heartbeat))


def nobody_named(patch: Patch) -> None:
    """Who does not serve does not say who does."""
    admission = FioranoDesign.admission

    def without(self: FioranoDesign) -> Admission:
        found = admission(self)
        return Admission(found.accepted, found.reason)

    patch.setattr(FioranoDesign, "admission", without)


def asks_seldom(patch: Patch) -> None:
    """The lock is asked for once in a lease."""
    patch.setattr(lock, "_RENEWALS_PER_LEASE", 1)


def not_woken(patch: Patch) -> None:
    """What is wanted anew is asked with the next request."""
    def want(self: GatewayLock, wish: Wish | None) -> None:
        self.wish = wish
        self._known = self._known and wish is not None

    patch.setattr(GatewayLock, "want", want)


def looks_seldom(patch: Patch) -> None:
    """A gateway looks at its lock file every two leases."""
    patch.setattr(service, "_FILE_CHECKS_PER_LEASE", 0.5)


def not_carried_out(patch: Patch) -> None:
    """Commands wait for the next one."""
    def submit(self: ActiveSide, command: Any) -> None:
        if self.commands:
            self._wake.set()
        self.commands.append(command)

    patch.setattr(ActiveSide, "submit", submit)


def told_more(patch: Patch) -> None:
    """A standby hears of a change that was not sent."""
    take = Pair.take_hello

    def more(self: Pair, hello: ServerStatus) -> None:
        take(self, hello._replace(counter=hello.counter + (self.state == PASSIVE)))

    patch.setattr(Pair, "take_hello", more)


def copies_no_more(patch: Patch) -> None:
    """Who has filled the window does not hear that there is room again."""
    stored = ActiveSide.stored

    def deaf(self: ActiveSide, message: StoredUpTo) -> bool:
        if self.standing is not None:
            self.standing.moved = asyncio.Event()
        return stored(self, message)

    patch.setattr(ActiveSide, "stored", deaf)


def not_released(patch: Patch) -> None:
    """What the standby has stored is confirmed with the next command."""
    stored = ActiveSide.stored

    def later(self: ActiveSide, message: StoredUpTo) -> bool:
        vars(self)["release"] = lambda: None
        try:
            return stored(self, message)
        finally:
            del vars(self)["release"]

    patch.setattr(ActiveSide, "stored", later)


def database_not_heard(patch: Patch) -> None:
    """What the database has taken is confirmed with the next command."""
    patch.setattr(shared.SharedPair, "_committed", lambda self, task: None)


def never_alone(patch: Patch) -> None:
    """What only one server has is never confirmed."""
    patch.setattr(ActiveSide, "may_go_alone", lambda self: False)


def database_not_asked(patch: Patch) -> None:
    """Whether the database is there is asked every five leases."""
    patch.setattr(shared, "_CHECKS_PER_LEASE", 0.2)


def lost_for_long(patch: Patch) -> None:
    """A database that is there again is used five seconds later."""
    reached = shared.SharedPair._reached

    async def late(self: shared.SharedPair) -> None:
        if not self.reachable:
            await asyncio.sleep(5)
        await reached(self)

    patch.setattr(shared.SharedPair, "_reached", late)


def rests_at_once(patch: Patch) -> None:
    """A database that could not be reached is left alone like one that is damaged."""
    failed = shared.SharedPair._failed

    def rests(self: shared.SharedPair, error: shared.StorageError) -> None:
        self._rest_until = self._runtime.now() + 10 * self._options.lease
        failed(self, error)

    patch.setattr(shared.SharedPair, "_failed", rests)


def patient(patch: Patch) -> None:
    """A commit may take twenty seconds."""
    def client(*about: Any) -> StorageClient:
        return StorageClient(*about[:-1], 20.0)

    patch.setattr(shared, "StorageClient", client)


def not_told(patch: Patch) -> None:
    """Whoever waits for the database is not told that the connection is lost."""
    def lose(self: StorageClient, reason: str) -> None:
        self._writer = self._reading = None

    patch.setattr(StorageClient, "_lose", lose)


def requests_wait(patch: Patch) -> None:
    """The storage service does nothing for a second."""
    done = StorageService._do_all

    async def late(self: StorageService) -> None:
        await asyncio.sleep(1)
        await done(self)

    patch.setattr(StorageService, "_do_all", late)


def unheard(patch: Patch) -> None:
    """What the other server says of itself does not count."""
    later(patch, HAServer, "take_hello", lambda self, hello: None)


def gateway_lost(patch: Patch) -> None:
    """A gateway that was away is not called again."""
    talk = GatewayLock._talk_forever

    async def once(self: GatewayLock) -> None:
        connected = False
        work = asyncio.ensure_future(talk(self))
        try:
            while self.connected or not connected:
                connected = connected or self.connected
                await asyncio.sleep(0.01)
        finally:
            work.cancel()
        await asyncio.sleep(1000)

    patch.setattr(GatewayLock, "_talk_forever", once)


def never_asks(patch: Patch) -> None:
    """Who wants the lock does not ask for it."""
    request = GatewayLock._request
    later(patch, GatewayLock, "_request", lambda self: (
        found if (found := request(self)) and found[0] != TAKE else None))


def stays_in_between(patch: Patch) -> None:
    """Nothing is decided when a server has left a state that lasts."""
    decide = HAServer.decide
    later(patch, HAServer, "decide", lambda self: decide(self) if self.state in (WAITING, ACTIVE, PASSIVE) else None)


def pages_not_counted(patch: Patch) -> None:
    """What the standby has of the repository is not noted."""
    later(patch, ActiveSide, "stored", lambda self, message: False)


LATE: dict[str, tuple[str, dict[str, str], Callable[[Patch], None]]] = {
    "hello": ("kill", {}, unheard),
    "gateway": ("gateway", {}, gateway_lost),
    "taking": ("kill", {}, never_asks),
    "state": ("kill", {}, stays_in_between),
    "state-or-person": ("kill", {"lease": "0.2", "heartbeat": "0.1"}, stays_in_between),
    "page": ("kill", {}, pages_not_counted),
    "completion": ("kill", {}, pages_not_counted),
    "overdue": ("kill", {"heartbeat": "1"}, undecided),
    "broadcast": ("kill", {"client_order": "nearest-first"}, not_broadcast),
    "sign-of-life": ("kill", {}, seldom_alive),
    "silent-link": ("channel", {"fault_duration": "4"}, long_silence),
    "link-cut-early": ("channel", {"fault_duration": "4"}, short_silence),
    "unnamed": ("kill", {}, nobody_named),
    "asking": ("kill", {}, asks_seldom),
    "unasked": ("kill", {"lease": "2"}, not_woken),
    "renewal": ("kill", {"bug": "renews-late"}, lambda patch: None),
    "file": ("kill", {}, looks_seldom),
    "command": ("kill", {}, not_carried_out),
    "behind": ("kill", {}, told_more),
    "copying": ("kill", {"page": "24"}, copies_no_more),
    "unreleased": ("kill", {}, not_released),
    "unreleased shared": ("kill", {"mode": "shared"}, database_not_heard),
    "unconfirmed": ("kill", {}, never_alone),
    "database-look": ("kill", {"mode": "shared"}, database_not_asked),
    "database": ("partition", {"mode": "shared"}, lost_for_long),
    "database resting": ("partition", {"mode": "shared"}, rests_at_once),
    "database-lost": ("shared-db", {"mode": "shared", "client_order": "nearest-first"}, not_told),
    "commit": ("shared-db", {"mode": "shared", "shared_db_kind": "cut"}, patient),
    "request": ("kill", {"mode": "shared"}, requests_wait),
}


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize("name", LATE)
def test_a_deadline_that_is_missed_ends_the_run(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    nemesis, settings, break_it = LATE[name]
    name = name.partition(" ")[0]
    system = SYSTEMS.load("fiorano")
    (deadline,) = (each for each in system.deadlines if each.name == name)
    monkeypatch.setattr(system, "deadlines", (deadline,))
    monkeypatch.setattr(system, "invariants", ())
    monkeypatch.setattr(system, "waits", ())
    break_it(monkeypatch)
    case = Case("fiorano", "queue", nemesis, None, 26.0, 17.0, {"min_ok": "1", INVARIANTS: "true", **settings})
    seen = []
    for seed in range(1, 13):
        found, *_ = run_and_judge(case, seed, tmp_path / str(seed), tmp_path, ALL)
        seen.append(found.sentence)
        if found.run_dir is not None and read_run(found.run_dir).get("invariant_broken", {}).get("name") == name:
            return
    raise AssertionError(seen)
