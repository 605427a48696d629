"""Invariants: each fires when the code is wrong that keeps it, in the moment in which it is broken; none without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fiorano_breaks import (
    FIORANO_BREAKS,
    both_in_view,
    changes_left_out,
    complete_at_once,
    epoch_untold,
    fence_unknown,
    forgotten_fence,
    forgotten_holder,
    lock_not_needed,
    more_disowned,
    never_above,
    no_margin,
    nobody_seeks,
    one_more_stored,
    own_lock_awaited,
)
from icestorm_breaks import ICESTORM_BREAKS

from harness.reference.mutants import case_of
from harness.run.cases import Case
from harness.sim.campaign import ALL, NONE, run_and_judge, run_seed
from harness.sim.invariants import Observer, WatchedGroup, kind_of
from nodes.reference.bugs import BUGS
from nodes.reference.designs.fiorano.active import ActiveSide
from nodes.reference.designs.fiorano.gateway.grants import Grants
from nodes.reference.designs.fiorano.lock import GatewayLock
from nodes.reference.designs.fiorano.repository import StoredStamp
from nodes.reference.designs.fiorano.states import PASSIVE, PASSIVE_TRANSITION
from nodes.reference.designs.fiorano.tally import DiskWriteCounter
from nodes.reference.designs.fiorano.transitions import Transition, next_step
from nodes.reference.designs.icestorm.delivery import SubscriberOutbox
from nodes.reference.designs.icestorm.election import InvitationElection
from nodes.reference.designs.icestorm.replication import Replication
from nodes.reference.designs.joram.leader import Leader
from nodes.reference.designs.joram.log import JoramLog, Member
from nodes.reference.designs.joram.replica import JoramReplica
from nodes.reference.designs.qpid.browsing import Browsing
from nodes.reference.designs.qpid.lease_client import ManagerPermission
from nodes.reference.designs.qpid.manager.coordinator import COORDINATING, Coordinator
from nodes.reference.designs.qpid.manager.record import ManagerRecord, RecordStore
from nodes.reference.designs.qpid.roles import Roles
from nodes.reference.designs.qpid.states import PRIMARY, READY
from nodes.reference.designs.qpid.store_status import CLEAN, PRIMARY_STORE, StoreStatus
from nodes.reference.engine.destinations import Destinations
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.model import Message, Subscription
from nodes.reference.engine.replica import QueueReplicas
from nodes.reference.replication.replicator import Replicator
from nodes.systems.catalog import SYSTEMS
from nodes.systems.reference.joram.probes import JoramObserved
from nodes.systems.reference.joram.rules.data import CommittedIsDurable
from nodes.systems.reference.rules.audits import COUNTS_ADD_UP, CountsAddUp, SameState, StoreHolds
from nodes.systems.reference.standalone.probes import StandaloneProbe
from stormproof.contracts.invariant import INVARIANTS, Invariant, Watcher
from stormproof.run_folder import read_run
from tests.qpid.qpid_breaks import QPID_BREAKS
from tests.sim.joram_breaks import JORAM_BREAKS
from tests.sim.surface_breaks import SURFACE_BREAKS
from tests.sim.work_breaks import WORK_BREAKS

Break = Callable[[pytest.MonkeyPatch], None]
QUICK = {"fault_duration": "1.5", "fault_gap": "0.3", "detection_timeout": "0.5", "idle_timeout": "2", "min_ok": "5"}
JORAM = Case("joram", "queue", "partition,pause,kill", 3, 15.0, 30.0, QUICK)
ICESTORM = Case("icestorm", "subscriptions", "partition,pause,kill", 3, 20.0, 30.0, {"min_ok": "5"})
FIORANO = Case("fiorano", "queue", "partition,pause,kill", None, 20.0, 30.0, {"min_ok": "5"})
QPID = Case("qpid", "queue", "partition,pause,kill", None, 30.0, 30.0, {"min_ok": "5"})
TOPIC = Case("standalone", "topic", "kill", None, 14.0, 30.0, {"min_ok": "5"})
SEEDS = range(1, 26)


def bug(name: str) -> Case:
    """The campaign that catches it; joram's bugs bite sooner when a majority is enough."""
    of_joram = BUGS[name].design == "joram"
    case = JORAM if of_joram else case_of(name)
    settings = {**case.settings, "bug": name, INVARIANTS: "true", **({"ack": "majority"} if of_joram else {})}
    return replace(case, settings=settings)


def nothing(patch: pytest.MonkeyPatch) -> None:
    """The bug is switched on by the case."""


def same_epochs(patch: pytest.MonkeyPatch) -> None:
    """Whoever stands does so in the epoch that there is."""
    patch.setattr(JoramReplica, "next_epoch", lambda self: self.newest_promised or 64)
    patch.setattr("nodes.reference.designs.joram.election.refusal", lambda *_, **__: None)


def endless_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "holds_lease", lambda self: True)
    patch.setattr(Leader, "tick", lambda self: None)


def promised_beyond(patch: pytest.MonkeyPatch) -> None:
    """Whoever promises an epoch promises the one after it."""
    promise = JoramReplica.promise
    patch.setattr(JoramReplica, "promise", lambda self, epoch: promise(self, epoch + 64))


def whole_log_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """A replica acknowledges one entry more than it holds, where the master has that."""
    acked = Leader.acked
    patch.setattr(Leader, "acked", lambda self, peer, message: acked(
        self, peer, message._replace(match=min(message.match + 1, self._replica.log.last))))


def forgotten_promise(patch: pytest.MonkeyPatch) -> None:
    read = JoramLog._read_meta

    def without(self: JoramLog) -> tuple[int, int, int, int, list[str], list[Member], bool]:
        base, epoch, _, *rest = read(self)
        return base, epoch, 0, *rest

    patch.setattr(JoramLog, "_read_meta", without)


def exchanged(patch: pytest.MonkeyPatch) -> None:
    """A replica is taken in for another."""
    take_in = Leader._take_in

    def instead(self: Leader, learner: Member) -> None:
        self._replica.places = self._replica.places[:-1]
        take_in(self, learner)

    patch.setattr(Leader, "_take_in", instead)


def few_groups(patch: pytest.MonkeyPatch) -> None:
    """Groups are told apart by one of four names."""
    patch.setattr(InvitationElection, "_new_group", lambda self: f"GROUP {self._runtime.random.getrandbits(2)}")


def same_icestorm_epochs(patch: pytest.MonkeyPatch) -> None:
    """Every group is of the same epoch, which all promise again and again."""
    patch.setattr("nodes.reference.designs.icestorm.election.next_epoch", lambda newest, ident: 64)
    asked = InvitationElection.asked_to_promise

    def forgetful(self: InvitationElection, peer: str, group: str, epoch: int) -> object:
        self._database.promised = 0
        return asked(self, peer, group, epoch)

    patch.setattr(InvitationElection, "asked_to_promise", forgetful)


def own_count(patch: pytest.MonkeyPatch) -> None:
    """A member counts on the groups that it has coordinated itself."""
    form = InvitationElection._form
    patch.setattr(InvitationElection, "_form", lambda self, coordinator, group, epoch, members, max_seen: form(
        self, coordinator, group, epoch, members, max_seen if coordinator == self.name else self.max_seen))


def no_decision(patch: pytest.MonkeyPatch) -> None:
    """Whoever comes to coordinate takes nothing over."""
    patch.setattr("nodes.reference.designs.qpid.manager.coordinator.best_decision", lambda votes: (0, 0, ""))


def hasty_standby(patch: pytest.MonkeyPatch) -> None:
    """A server that is to be synchronised takes itself for the standby at once."""
    def step(table: object, view: object) -> Transition | None:
        line = next_step(table, view)  # type: ignore[arg-type]
        return replace(line, to=PASSIVE) if line is not None and line.to == PASSIVE_TRANSITION else line

    patch.setattr("nodes.reference.designs.fiorano.server.next_step", step)


def falling_grants(patch: pytest.MonkeyPatch) -> None:
    granted = GatewayLock._granted
    patch.setattr(GatewayLock, "_granted", lambda self, asked, epoch, sent: granted(self, asked, 1000 - epoch, sent))


def forgotten_count(patch: pytest.MonkeyPatch) -> None:
    read = StoredStamp.__init__

    def init(self: StoredStamp, database: object) -> None:
        read(self, database)  # type: ignore[arg-type]
        self.stamp = replace(self.stamp, counter=0)

    patch.setattr(StoredStamp, "__init__", init)


def same_term(patch: pytest.MonkeyPatch) -> None:
    lead = ManagerPermission.lead
    patch.setattr(ManagerPermission, "lead", lambda self, term: lead(self, 1 if term else 0))


def never_ready(patch: pytest.MonkeyPatch) -> None:
    """A backup that has caught up takes itself for the primary."""
    change = Roles._change_state
    patch.setattr(Roles, "_change_state",
                  lambda self, state, **fields: change(self, PRIMARY if state == READY else state, **fields))


def clean_primary(patch: pytest.MonkeyPatch) -> None:
    write = StoreStatus.write

    def without(self: StoreStatus, **changes: object) -> None:
        write(self, **{**changes, "state": CLEAN} if changes.get("role") == PRIMARY_STORE else changes)

    patch.setattr(StoreStatus, "write", without)


def forgotten_generation(patch: pytest.MonkeyPatch) -> None:
    read = StoreStatus.__init__

    def init(self: StoreStatus, database: object) -> None:
        read(self, database)  # type: ignore[arg-type]
        self.now = replace(self.now, generation=min(self.now.generation, 1))

    patch.setattr(StoreStatus, "__init__", init)


def counts_on(patch: pytest.MonkeyPatch) -> None:
    """Whoever is started anew leaves out a number."""
    start = StoreEngine.__init__

    def init(self: StoreEngine, *args: object, **more: object) -> None:
        start(self, *args, **more)  # type: ignore[arg-type]
        self.state.counters.next_id += 1

    patch.setattr(StoreEngine, "__init__", init)


def everything_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JoramLog, "compact", lambda self, *_: False)


def all_disowned(patch: pytest.MonkeyPatch) -> None:
    """A server says of the epoch that it has asked for that it will not come to use it."""
    patch.setattr(GatewayLock, "settled", property(lambda self: self.asked))


def never_adopted(patch: pytest.MonkeyPatch) -> None:
    """Whoever holds the lock confirms, whatever its repository says."""
    patch.setattr(ActiveSide, "adopt_epoch", lambda self: self.release())
    patch.setattr(ActiveSide, "may_go_alone", lambda self: self._lock.holds())


def released_too_early(patch: pytest.MonkeyPatch) -> None:
    """The gateway lets the lock go when it is renewed."""
    renew = Grants.renew

    def instead(self: Grants, name: str, epoch: int, now: float) -> bool:
        renewed = renew(self, name, epoch, now)
        self.release(name, epoch, now)
        return renewed

    patch.setattr(Grants, "renew", instead)


def other_messages(patch: pytest.MonkeyPatch) -> None:
    """A backup keeps something else than it was sent."""
    enqueue = QueueReplicas.enqueue
    patch.setattr(QueueReplicas, "enqueue", lambda self, name, sequence, headers, body: enqueue(
        self, name, sequence, headers, body + b"!"))


def held_for_ever(patch: pytest.MonkeyPatch) -> None:
    """What is acknowledged still counts as in flight."""
    release = Subscription.release

    def without_bytes(self: Subscription, message: Message) -> None:
        held = self.context.held
        release(self, message)
        self.context.held = held

    patch.setattr(Subscription, "release", without_bytes)


def same_ballots(patch: pytest.MonkeyPatch) -> None:
    """Whoever gets votes takes them for those of the first ballot, in which others coordinate, too."""
    count = Coordinator._count_votes

    def counted(self: Coordinator) -> None:
        count(self)
        if self.phase == COORDINATING:
            self.last_ballot = 1

    patch.setattr(Coordinator, "_count_votes", counted)


def forgotten_record(patch: pytest.MonkeyPatch) -> None:
    """A manager that is started anew has promised nothing."""
    read = RecordStore.__init__

    def init(self: RecordStore, database: object) -> None:
        read(self, database)  # type: ignore[arg-type]
        self.record = ManagerRecord()

    patch.setattr(RecordStore, "__init__", init)


def unknown_command(patch: pytest.MonkeyPatch) -> None:
    """A broker looks for a queue by another name when something is acknowledged."""
    def missing(self: StoreEngine, *_: object) -> None:
        raise KeyError("x")

    patch.setattr(Destinations, "consume", missing)


def all_kept(patch: pytest.MonkeyPatch) -> None:
    """A primary takes a backup's messages for its own."""
    patch.setattr("nodes.reference.designs.qpid.browsing.agreement", lambda ours, last, theirs, their_last: their_last)


def said_yes_only(patch: pytest.MonkeyPatch) -> None:
    """Replicas say that they have made a change."""
    patch.setattr(Replication, "told_to_update", lambda self, *about: True)


def twice_the_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("nodes.reference.server.networks.WINDOW", 512)


def any_services(patch: pytest.MonkeyPatch) -> None:
    """Services are taken as they come."""
    patch.setattr("nodes.reference.config._services", lambda value: value)


def services_not_awaited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("nodes.reference.server.broker.ReferenceBroker.admission", lambda self: self.design.admission())


def never_in_a_branch(patch: pytest.MonkeyPatch) -> None:
    """A client that takes exactly once does so without a branch."""
    async def apart(self: Any, connection: Any, message: Any, args: dict[str, Any], xid: str) -> None:
        await connection.request("send", **args)
        await connection.request("ack", id=message.ack_id)

    patch.setattr("nodes.reference.server.reaction.ReactionService._in_a_branch", apart)


def any_row(patch: pytest.MonkeyPatch) -> None:
    """A row that is not of the right form is taken."""
    patch.setattr("nodes.systems.reference.probes.guards.check_row", lambda row: None)


BREAKS: dict[str, tuple[Case, Break]] = {
    "one-master-an-epoch": (JORAM, same_epochs),
    "leads-in-its-promise": (JORAM, promised_beyond),
    "one-serves": (JORAM, endless_lease),
    "promises-survive": (JORAM, forgotten_promise),
    "logs-match": (bug("conflicting-tail-kept"), nothing),
    "committed-stays": (bug("own-log-wins"), nothing),
    "committed-is-durable": (bug("majority-too-small"), nothing),
    "acknowledged-is-there": (JORAM, whole_log_acknowledged),
    "one-coordinator-an-epoch": (ICESTORM, same_icestorm_epochs),
    "one-coordinator-a-group": (ICESTORM, few_groups),
    "all-know-how-many": (ICESTORM, own_count),
    "decisions-stay": (QPID, no_decision),
    "majority-replicates": (bug("minority-confirms"), nothing),
    "full-start": (bug("full-start-skipped"), nothing),
    "stamps-grow": (bug("stamp-lost-at-start"), nothing),
    "one-database-a-stamp": (bug("links-left-behind"), nothing),
    "agreed-is-there": (ICESTORM, said_yes_only),
    "confirmed-stays": (bug("oldest-database-wins"), nothing),
    "one-holds-the-lock": (bug("lock-not-rechecked"), nothing),
    "lock-epochs-grow": (FIORANO, falling_grants),
    "states-by-the-table": (FIORANO, hasty_standby),
    "serves-where-it-may": (bug("passive-serves"), nothing),
    "repository-stamps-grow": (FIORANO, forgotten_count),
    "one-primary-confirms": (bug("inquorate-broker-lives"), nothing),
    "one-primary-a-term": (QPID, same_term),
    "states-of-a-broker": (QPID, never_ready),
    "primary-is-dirty": (QPID, clean_primary),
    "generations-grow": (QPID, forgotten_generation),
    "store-holds-all": (replace(TOPIC, settings={**TOPIC.settings, "bug": "shared-stays"}), nothing),
    "counts-add-up": (TOPIC, held_for_ever),
    "same-state": (JORAM, counts_on),
    "no-mistakes": (TOPIC, unknown_command),
    "wakes-for-work": (Case("standalone", "dialogue", "kill,packets", None, 14.0, 40.0, {
        "min_ok": "1", "reliable": "false", "bug": "wake-lost"}), nothing),
    "answers-once": (replace(JORAM, workload="register", settings={**QUICK, "bug": "read-on-arrival"}), nothing),
    "votes-in-silence": (replace(QPID, nemesis="partition,pause", settings={
        "min_ok": "5", "partition_kind": "bridge", "bug": "votes-though-heard"}), nothing),
    "resets-what-differs": (replace(QPID, nemesis="points", settings={
        "min_ok": "5", "points_kind": "partial", "broker_network": "own"}), all_kept),
    "levels-kept": (replace(QPID, workload="dialogue", settings={"bug": "level-by-default-only"}), nothing),
    "promises-on-disk": (bug("promise-unwritten"), nothing),
    "rests-after-start": (replace(bug("no-rest-after-start"), nemesis="crash,kill"), nothing),
    "log-is-short": (replace(JORAM, settings={**QUICK, "log_keep": "5"}), everything_kept),
    "lease-protects": (JORAM, endless_lease),
    "newest-log-leads": (bug("own-log-wins"), nothing),
    "serves-after-own-entry": (bug("serves-before-own-entry"), nothing),
    "groups-match": (replace(JORAM, nodes=5, nemesis="membership", settings={
        **QUICK, "spares": "2", "log_keep": "5", "bug": "state-without-group"}), nothing),
    "members-come-along": (replace(ICESTORM, settings={"min_ok": "5", "bug": "members-not-invited"}), nothing),
    "granted-by-gateway": (FIORANO, released_too_early),
    "asked-on-disk": (replace(FIORANO, settings={"min_ok": "5", "bug": "epoch-not-noted"}), nothing),
    "disowned-stays": (FIORANO, all_disowned),
    "confirms-in-its-epoch": (FIORANO, never_adopted),
    "serves-with-all-confirmed": (bug("stale-standby-serves"), nothing),
    "alone-in-its-own-epoch": (FIORANO, never_above),
    "acknowledged-is-stored": (FIORANO, one_more_stored),
    "standby-is-told": (replace(FIORANO, nemesis="lockfile", settings={"min_ok": "5", "lockfile_kind": "delete"}),
                        epoch_untold),
    "standby-is-whole": (FIORANO, complete_at_once),
    "disowned-as-said": (FIORANO, more_disowned),
    "seeks-the-lock": (FIORANO, nobody_seeks),
    "changes-for-a-reason": (FIORANO, lock_not_needed),
    "database-has-all": (replace(FIORANO, settings={"min_ok": "5", "mode": "shared"}), changes_left_out),
    "database-blamed-rightly": (replace(FIORANO, nemesis="partition", settings={
        "min_ok": "5", "mode": "shared", "lock": "false"}), fence_unknown),
    "status-tells of fiorano": (FIORANO, both_in_view),
    "fence-grows": (replace(FIORANO, nemesis="kill", settings={
        "min_ok": "5", "mode": "shared", "kill_kind": "shared-db"}), forgotten_fence),
    "gateway-remembers": (replace(FIORANO, nemesis="lockfile", settings={"min_ok": "5", "lockfile_kind": "delete"}),
                          forgotten_holder),
    "kept-a-quarter-longer": (FIORANO, no_margin),
    "lock-kept-no-longer": (FIORANO, own_lock_awaited),
    "eligible-has-all": (bug("promoted-in-catchup"), nothing),
    "catch-up-window-used": (replace(QPID, nemesis="kill", settings={
        "min_ok": "5", "catchup_chunk": "100", "bug": "window-of-one"}), nothing),
    "copies-match": (QPID, other_messages),
    "one-coordinator-a-ballot": (QPID, same_ballots),
    "records-grow": (replace(QPID, nemesis="kill", settings={"min_ok": "5"}), forgotten_record),
    "tells-its-group": (replace(JORAM, nodes=5, nemesis="membership", settings={
        **QUICK, "spares": "1", "bug": "clients-told-configured"}), nothing),
    "groups-overlap": (replace(JORAM, nodes=5, nemesis="membership", settings={**QUICK, "spares": "1"}), exchanged),
    "defaults-as-promised": (TOPIC, twice_the_window),
    "configurations-judged": (TOPIC, any_services),
    "rows-judged": (JORAM, any_row),
    "admits-with-services": (JORAM, services_not_awaited),
    "services-as-configured": (replace(JORAM, workload="processing"), never_in_a_branch),
    **QPID_BREAKS,
    **ICESTORM_BREAKS,
    **JORAM_BREAKS,
    **SURFACE_BREAKS,
    **WORK_BREAKS,
    **FIORANO_BREAKS,
}
"""Name of an invariant, and the system where two have one of that name -> what breaks it."""


def rule_of(broken: str) -> Invariant:
    """What one of ``BREAKS`` is about."""
    name = broken.partition(" of ")[0]
    (rule,) = (each for each in SYSTEMS.load(BREAKS[broken][0].system).invariants if each.name == name)
    return rule


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize("broken", BREAKS)
def test_an_invariant_that_is_broken_ends_the_run(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, break_it = BREAKS[broken]
    rule = rule_of(broken)
    name = rule.name
    monkeypatch.setattr(SYSTEMS.load(case.system), "invariants", (rule,))
    monkeypatch.setattr(SYSTEMS.load(case.system), "waits", ())
    break_it(monkeypatch)
    seen = []
    for seed in SEEDS:
        found = run_and_judge(case, seed, tmp_path / str(seed), tmp_path, ALL)[0]
        seen.append(found.sentence)
        if found.run_dir is not None and read_run(found.run_dir).get("invariant_broken", {}).get("name") == name:
            break
    else:
        raise AssertionError(seen)
    told = read_run(found.run_dir)["invariant_broken"]
    assert found.verdict == "invalid" and INVARIANTS in found.broken
    assert set(found.broken) <= {INVARIANTS, "elections"}, "the replicas' logs may show it, too"
    assert name in found.sentence and told["wrong"] in found.sentence
    assert told["node"] in told["states"] and told["source"] and told["rule"]
    assert all(told["events"].values()), "the last lines of each node's log"


def one_more(attribute: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """What counts one byte too many each time."""
    def counting(self: Any, *args: Any, **named: Any) -> Any:
        found = function(self, *args, **named)
        mine = args[0] if attribute == "held_bytes" else self
        setattr(mine, attribute, getattr(mine, attribute) + 1)
        return found

    return counting


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize(("case", "owner", "function", "attribute", "told"), [
    (JORAM, JoramLog, "append", "cached_bytes", "bytes of entries"),
    (JORAM, Replicator, "_send", "unacked", "bytes under way to n"),
    (replace(ICESTORM, workload="events"), SubscriberOutbox, "add", "waiting_bytes", "bytes that wait for "),
    (replace(QPID, nemesis="kill", rate=200.0, settings={"min_ok": "5", "catchup_chunk": "1"}), Browsing, "_hold",
     "held_bytes", "bytes that wait for backup n"),
    (FIORANO, DiskWriteCounter, "add", "changes", "change-sets: "),
], ids=["log", "replicator", "outbox", "browser", "tally"])
def test_each_sum_of_a_broker_is_counted_again(case: Case, owner: type, function: str, attribute: str, told: str,
                                               tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = SYSTEMS.load(case.system)
    monkeypatch.setattr(system, "invariants", (COUNTS_ADD_UP,))
    monkeypatch.setattr(CountsAddUp, "period", 0.01)
    monkeypatch.setattr(owner, function, one_more(attribute, getattr(owner, function)))
    found = []
    for seed in SEEDS:
        found.append(run_and_judge(case, seed, tmp_path / str(seed), tmp_path, ALL)[0].sentence)
        if told in found[-1]:
            break
    else:
        raise AssertionError(found)


@pytest.mark.requirement("H17", part=True)
def test_a_window_that_is_not_kept_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pump(self: Replicator, stamp: float) -> None:
        keep(self, stamp)
        while not self.sends_state and self.next <= self.replica.log.last:
            self._send(self.next, stamp)

    keep = Replicator.pump
    monkeypatch.setattr(Replicator, "pump", pump)
    monkeypatch.setattr(SYSTEMS.load("joram"), "invariants", (COUNTS_ADD_UP,))
    case = replace(JORAM, settings={**JORAM.settings, "send_window": "200"})
    found, _ = run_and_judge(case, 1, tmp_path, tmp_path, ALL)
    assert "was sent more when" in found.sentence


@pytest.mark.requirement("H17", part=True)
def test_local_servers_beside_the_system_under_test_keep_to_what_their_own_design_promises(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StandaloneProbe, "miscounted", lambda self: "one of a local server's sums")
    case = Case("joram", "store-and-forward", "kill", None, 22.0, 17.0, {"min_ok": "1", INVARIANTS: "true"})
    found, *_ = run_and_judge(case, 1, tmp_path, tmp_path, ALL)
    assert "counts-add-up: one of a local server's sums" in found.sentence


def test_a_backup_that_keeps_one_message_too_many_is_found(tmp_path: Path) -> None:
    case = Case("qpid", "consume-last", "rolling,pause,points", 4, 28.0, 17.0, {
        "bug": "agreement-by-one", "detection_timeout": "2", "catchup_timeout": "0.3", "catchup_chunk": "100",
        "sequence_bits": "8", "broker_network": "own", "client_order": "primary-first", "same_replica": "2",
        "op_timeout": "6", "poll": "0.05", "surface": "true", "min_ok": "3", "fault_lengths": "1.05,1.2",
        "fault_gap": "1", INVARIANTS: "true",
    })  # fmt: skip
    found, _ = run_and_judge(case, 2, tmp_path, tmp_path, ALL)
    assert "resets-what-differs" in found.sentence
    sound, _ = run_and_judge(replace(case, settings={**case.settings, "bug": "none"}), 2, tmp_path, tmp_path, ALL)
    assert not sound.failed, sound.sentence


def test_every_invariant_of_every_system_has_a_test_that_breaks_it() -> None:
    declared = {(each.name, each.watcher) for system in SYSTEMS.names() for each in SYSTEMS.load(system).invariants}
    assert declared == {(rule.name, rule.watcher) for rule in map(rule_of, BREAKS)}


@pytest.mark.requirement("H17", part=True)
@pytest.mark.parametrize("nemesis", ["partition,pause,kill", "power,stop"])
@pytest.mark.parametrize("case", [JORAM, ICESTORM, FIORANO, QPID], ids=lambda case: case.system)
def test_without_a_bug_none_is_broken(case: Case, nemesis: str, tmp_path: Path) -> None:
    for seed in range(1, 3):
        found, *_ = run_and_judge(replace(case, nemesis=nemesis), seed, tmp_path / str(seed), tmp_path, ALL)
        assert INVARIANTS not in found.broken and found.verdict != "invalid", found.sentence
        assert found.run_dir is not None
        info = read_run(found.run_dir)
        made = replace(case, nemesis=nemesis).test(seed)
        system = SYSTEMS.load(case.system)
        rules = {rule.name for rule in system.invariants if rule.claimed(made)}
        rules |= {rule.name for rule in system.deadlines if rule.claimed(made)}
        rules |= {wait.name for wait in system.waits if wait.claimed(made.options)}
        assert set(info["invariants"]) == rules
        assert INVARIANTS in info["guarantees"]


def test_a_server_that_asks_to_release_the_lock_holds_it_no_longer(tmp_path: Path) -> None:
    """The gateway may have granted it to the other server before the answer has come."""
    case = Case("fiorano", "queue", "partition,pause,kill", None, 30.0, 17.0, {
        "min_ok": "10", "mode": "shared", "fault_retries": "3",
    })  # fmt: skip
    found, *_ = run_and_judge(case, 3, tmp_path, tmp_path, ALL)
    assert found.verdict == "valid", found.sentence


def test_they_can_be_switched_off(tmp_path: Path) -> None:
    case = replace(JORAM, settings={**QUICK, "bug": "own-log-wins", INVARIANTS: "false"})
    found, *_ = run_and_judge(case, 1, tmp_path, tmp_path, ALL)
    assert INVARIANTS not in found.broken
    assert found.run_dir is not None and INVARIANTS not in read_run(found.run_dir)["guarantees"]


@pytest.mark.parametrize(("stored", "found"), [(7, ""), (6, "it commits entry 7, which 1 of 3 replicas have on disk")])
def test_what_was_stored_in_the_callback_that_a_kill_ended_is_on_disk(stored: int, found: str) -> None:
    """Whoever stores entries, says so, and is killed as the next frame is read is not looked at any more."""
    class Program:
        group = ("n1", "n2", "n3")

        def __init__(self) -> None:
            self.now = JoramObserved(0, False, 5, 64, 64, 0, 5, 64, 5, 0)

        def observed(self) -> JoramObserved:
            return self.now

    watcher, master, slave = CommittedIsDurable(), Program(), Program()
    look: Callable[..., str] = watcher.look
    before = master.now._replace(leads=64, serving=True, last=7, durable=7)
    assert look("n1", master, before, None) == look("n2", slave, slave.now, None) == ""
    slave.now = slave.now._replace(last=8, durable=stored)
    watcher.ended("n2")
    assert look("n1", master, before._replace(committed=7), before) == found


@pytest.mark.requirement("H17", part=True)
def test_what_watchers_say_that_they_look_at_is_observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would never be asked."""
    asked: dict[type[Watcher], set[str]] = {}

    def watch(observer: Observer, machine: str, node: str, group: str, program: Any,
              *rest: Any) -> Callable[[bool], None]:  # fmt: skip
        found = WatchedGroup(observer._invariants)
        for _, watcher in found.watchers_of(kind_of(program)):
            asked[type(watcher)] = set(watcher.fields) - set(getattr(program.observed(), "_fields", ()))
        return lambda woken: None

    monkeypatch.setattr(Observer, "watch", watch)
    monkeypatch.setattr(Observer, "ended", lambda *_: None)
    for system in ("standalone", "joram", "icestorm", "qpid", "fiorano"):
        run_seed(Case(system, "queue" if system != "icestorm" else "events", "kill", None, 5.0, 5.0), 1, tmp_path,
                 tmp_path, NONE)
    assert asked and {watcher.__name__: missing for watcher, missing in asked.items() if missing} == {}


def test_where_an_invariant_is_claimed() -> None:
    class Never(Watcher):
        def look(self, *_: object) -> str:
            return ""

    rule = Invariant("r", "rule", "source", Never, unless=("clock",), where={"mode": ("a", "b")})
    made = replace(JORAM, settings=QUICK).test(1)
    assert not rule.claimed(made), "it has no such option"
    fitting = replace(made, options={**made.options, "mode": "b"})
    assert rule.claimed(fitting)
    assert not rule.claimed(replace(fitting, nemesis=("clock",)))
    excused = replace(rule, unless=(), excuses={"disk": "it forgets; the checks judge what clients see"})
    assert excused.claimed(replace(fitting, nemesis=("clock",)))
    assert not excused.claimed(replace(fitting, nemesis=("disk",)))
    assert not rule.claimed(replace(fitting, options={**made.options, "mode": "c"}))


@pytest.mark.parametrize("system", ["joram", "fiorano", "qpid", "icestorm"])
def test_a_broker_that_has_closed_its_database_is_not_looked_at(system: str, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.sim.invariants.PERIOD", 0.0)
    monkeypatch.setattr(SameState, "period", 1e-9)
    monkeypatch.setattr(StoreHolds, "period", 1e-9)
    case = Case(system, "subscriptions" if system == "icestorm" else "queue", "stop", None, 15.0, 20.0,
                {INVARIANTS: "true", "min_ok": "1"})
    result, _ = run_and_judge(case, 1, tmp_path, tmp_path, ALL)
    assert result.verdict != "broken", result.sentence
