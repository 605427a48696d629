"""Read-only probe of a ``qpid`` broker, for invariants, deadlines and counts."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nodes.reference import wire
from nodes.reference.api import Image, Pending
from nodes.reference.designs.qpid.browsing import WINDOW_GROUPS, Browsing
from nodes.reference.designs.qpid.configuration import CREATED, QUEUE, Configuration
from nodes.reference.designs.qpid.design import QpidDesign
from nodes.reference.designs.qpid.eviction import Eviction
from nodes.reference.designs.qpid.lease_client import ManagerPermission
from nodes.reference.designs.qpid.messages import size_of
from nodes.reference.designs.qpid.options import MESSAGES, NONE
from nodes.reference.designs.qpid.positions import Generation, Generations
from nodes.reference.designs.qpid.primary import Permission, Primary
from nodes.reference.designs.qpid.roles import Roles
from nodes.reference.designs.qpid.states import CATCHUP, CONNECTING, PRIMARY, READY
from nodes.reference.designs.qpid.store_status import CLEAN
from nodes.systems.reference.probes.broker import BrokerProbe
from nodes.systems.reference.probes.images import contents
from nodes.systems.reference.probes.replication import silent_links

_PATIENCE, _NEW_ROLE = 5, 2
"""Leases for which a broker waits for its first permission: after its start, and in a new role."""


class QpidObserved(NamedTuple):
    """The values that invariants observe.

    - ``state``: the broker's state. ``term``: the term in which its manager made it primary (0: it did not).
    - ``confirms`` and ``until``: whether it may confirm and deliver, and until when by its clock.
    - ``store``, ``role`` and ``generation``: its store's status.
    - ``times_ready``: how often it has become ready. ``eligible``: whether it may be promoted; ``vouched``: whether an
      administrator's approval allows that.
    - ``number``: the last group that it has sent, or completed. ``held_back``: a backup whose catch-up is stalled
      although its window has room. ``overheld``: a backup for which more waits than ``catchup_backlog``.
    - ``released``: as primary, the last group that clients know to be completed.
    - ``gave_up``: whether it has ended itself for lack of quorum although its manager had permitted it to continue."""

    state: str
    term: int
    confirms: bool
    until: float
    store: str
    role: str
    generation: int
    times_ready: int
    eligible: bool
    vouched: bool
    number: int
    held_back: str
    released: int
    gave_up: bool = False
    overheld: str = ""


class QpidProbe:
    """Observes one broker, in any of its roles."""

    def __init__(self, design: QpidDesign) -> None:
        self._design, self._roles, self._permission = design, design.roles, design.permission
        self._broker = BrokerProbe(design.broker)
        self._seen: QpidObserved | None = None
        self._role = (0, 0.0)
        self._patient_until = -math.inf

    def observed(self) -> QpidObserved:
        """Return the broker's state. A broker whose store has failed is ending: it stays as it was seen before."""
        if self._seen is not None and self._broker.failed:
            return self._seen
        roles, status, primary = self._roles, self._roles.store.now, self._roles.primary
        term, until = 0, 0.0
        if primary is not None and self._permission is not None:
            term, until = self._permission.term, self._permission.until
        self._seen = QpidObserved(roles.state, term, primary is not None and roles.may_go_on(), until, status.state,
                            status.role, status.generation, roles.times_ready, roles.eligible, roles.forced, self.step,
                            held_back(primary.browsing) if primary is not None else "",
                            primary.released if primary is not None else 0, self._design.gave_up,
                            overheld(primary.browsing) if primary is not None else "")  # fmt: skip
        return self._seen

    @property
    def failed(self) -> bool:
        """Tell whether its store has failed, so that it is ending."""
        return self._broker.failed

    def status(self) -> dict[str, Any]:
        """Return the status that an administrator gets."""
        return self._design.status()

    def confirms(self) -> bool:
        """Tell whether this broker is primary, and may confirm and deliver now."""
        return self._roles.primary is not None and self._roles.may_go_on()

    def lease_left(self) -> float:
        """Return the seconds for which its manager has permitted it to continue."""
        return self._permission.until - self._now() if self._permission is not None else 0.0

    def _now(self) -> float:
        return self._design.broker.runtime.now()

    @property
    def configuration(self) -> Configuration:
        """The objects that exist here."""
        return self._roles.configuration

    @property
    def serves_at(self) -> str | None:
        """The primary that this backup is attached to."""
        return self._roles.serves_at

    def leads(self, backup: str) -> int:
        """Return the generation of which this broker is primary, if that backup is attached to it; else 0."""
        primary = self._roles.primary
        return primary.generation if primary is not None and backup in primary.browsers else 0

    def has_its_time(self) -> Sequence[str]:
        """Return the backups that lack a group which clients know to be completed, and still have time to catch up."""
        primary, limit = self._roles.primary, self._design.options.catchup_timeout
        if primary is None:
            return ()
        now = self._now()
        found = [name for name, browser in primary.browsers.items()
                 if browser.state == CATCHUP and browser.number < primary.released and not browser.optional
                 and now < browser.since + limit]  # fmt: skip
        return [*found, *primary.yet_to_come] if now < primary.began + limit else found

    @property
    def step(self) -> int:
        """The number of the last replicated step on this node, comparable with other nodes (``replicated``): the last
        group of this primary, or the last that this backup has completed."""
        roles = self._roles
        return roles.primary.number if roles.primary is not None else roles.backup.completed

    def _patience(self, permission: ManagerPermission) -> float:
        """Return the time at which it has to end itself: that of its permission, unless it was just started, or has
        just changed its role."""
        now, lease = self._now(), self._design.options.manager_lease
        if permission.term != self._role[0]:
            self._role = permission.term, now
            self._patient_until = max(self._patient_until, now + _NEW_ROLE * lease)
        elif self._patient_until == -math.inf:
            self._patient_until = now + _PATIENCE * lease
        return max(permission.until, self._patient_until)

    # Content.

    def replicated(self) -> tuple[Hashable, Image] | None:
        """Return the position (generation, primary, number of the last group), and the content that backups must then
        have, too: queues with replicated messages. None for a backup that does not have everything.
        """
        roles = self._roles
        if self._broker.failed:
            return None
        if roles.primary is not None:
            at: tuple[int, str | None, int] = (roles.generation, roles.name, roles.primary.number)
        elif roles.state == READY and not roles.backup.begun:
            at = roles.generation, roles.serves_at, roles.backup.completed
        else:
            return None
        return at, {**self._image(), "changes": frozenset((("number", roles.configuration.number),))}

    @property
    def store_error(self) -> str:
        """The reason why it could not store everything that it carries on with; empty if it could."""
        return self._roles.store_error

    def urls(self) -> tuple[dict[str, tuple[str, int]], dict[str, str]]:
        """Return the broker URL and the client URL that it has now."""
        urls = self._roles.urls
        return dict(urls.brokers), dict(urls.clients)

    def configured_urls(self) -> tuple[dict[str, tuple[str, int]], dict[str, str]]:
        """Return the broker URL and the client URL that its configuration has."""
        config = self._design.broker.config
        return dict(config.peers), dict(config.client_addresses)

    @property
    def replaced(self) -> bool:
        """Tell whether another broker's store has taken the place of its own, without being in memory."""
        return self._roles.replaced

    def clean_image(self) -> tuple[str, Image] | None:
        """Return the identifier of its clean store, and the content common to all stores with that identifier; None if
        the store is not clean, or memory differs from it."""
        status = self._roles.store.now
        if self._broker.failed:
            return None
        return None if status.state != CLEAN or self._roles.replaced else (status.uuid, self._image())

    def _image(self) -> Image:
        """Return the content common to all brokers that have everything."""
        roles = self._roles
        told = [name for name, _ in self._copied()]
        positions, held = roles.engine.positions(), roles.engine.held()
        return {
            "objects": frozenset((kind, name, tuple(sorted(arguments.items())))
                                 for (kind, name), arguments in roles.configuration.items()
                                 if roles.levels.of(kind, name, arguments) != NONE),
            "positions": frozenset((name, positions.get(name, 0)) for name in told),
            "messages": frozenset((name, number) for name in told for number in held.get(name, ())),
            "generations": frozenset((name, tuple(roles.generations.of(name))) for name in told),
        }  # fmt: skip

    def _copied(self) -> Iterator[tuple[str, str]]:
        """Yield each queue with replicated messages, with the mark that distinguishes it from an earlier one of its
        name.
        """
        for (kind, name), arguments in self._roles.configuration.items():
            if kind == QUEUE and self._roles.levels.of(kind, name, arguments) == MESSAGES:
                yield name, arguments.get(CREATED, "")

    def numbering(self) -> dict[str, tuple[str, int, list[Generation]]]:
        """Return for each queue with replicated messages its creation mark, its last position, and the generations that
        numbered its messages."""
        positions = self._roles.engine.positions()
        return {name: (made, positions.get(name, 0), list(self._roles.generations.of(name)))
                for name, made in self._copied()}

    def position(self, told: Sequence[int]) -> int:
        """Decode a position in a message to another broker."""
        return told[0] << self._design.options.sequence_bits | told[1]

    def extent(self) -> dict[str, tuple[str, int, int]]:
        """Return for each queue with replicated messages its creation mark, its last position and its depth."""
        if self._broker.failed:
            return {}
        positions, depths = self._roles.engine.positions(), self._roles.engine.depths()
        return {name: (made, positions.get(name, 0), depths.get(name, 0)) for name, made in self._copied()}

    def copies(self) -> dict[str, tuple[str, int, Mapping[int, Any]]]:
        """Return for each queue with replicated messages its creation mark, its last position and its messages'
        content."""
        if self._broker.failed:
            return {}
        engine = self._roles.engine
        positions, held = engine.positions(), contents(engine.state)
        return {name: (made, positions.get(name, 0), held.get(name, {})) for name, made in self._copied()}

    @property
    def common(self) -> BrokerProbe:
        """The probe of the part that all designs share."""
        return self._broker

    def unlike_store(self) -> str:
        """Describe a difference between memory and store; empty if there is none."""
        roles = self._roles
        if (roles.replaced and roles.backup.discard) or self._broker.failed:
            return ""
        return (unlike_objects(roles.configuration) or unlike_generations(roles.generations)
                or self._broker.unlike_store())

    # Counts and pending work.

    def miscounted(self) -> str:
        """Describe the first wrong counter; empty if all are right."""
        primary = self._roles.primary
        if self._broker.failed:
            return ""
        if primary is not None and (wrong := miscounted_backups(primary) or self._undeclared()):
            return wrong
        return self._broker.miscounted()

    def _undeclared(self) -> str:
        """Describe queues of this primary that its configuration lacks; empty if there are none."""
        there, configuration = self._roles.engine.positions(), self._roles.configuration
        odd = [name for name in there if (QUEUE, name) not in configuration]
        return f"queues that no client has created, declared or used: {odd[:3]}" if odd else ""

    @property
    def admits(self) -> bool:
        """Tell whether clients are admitted."""
        return self._design.admission().accepted

    def pending(self) -> Pending:
        """Return pending work: the broker's actions and the messages it expects."""
        design, roles, permission = self._design, self._roles, self._permission
        if design.broker.stopping or self._broker.failed:
            return self._broker.pending() if self._broker.failed else {}
        found: dict[str, Collection[Hashable]] = dict(self._broker.pending())
        if missing := design.links.missing():
            found["link"] = missing
        if unspoken := design.links.unspoken():
            found["greeting"] = unspoken
        if heard := design.links.last_heard():
            found["silent-peer"] = heard
        found |= silent_links(design.links, design.options.silence)
        if roles.state == CONNECTING and roles.eligible:  # if none is, an administrator has to choose the primary
            found["primary"] = [""]
        elif roles.state == CATCHUP:
            found["catchup"] = [roles.serves_at]
        if roles.primary is not None:
            found |= _of_primary(roles.primary, roles)
            if newer := _newer_primaries(roles.primary, roles):
                found["gives-way"] = newer
            if permission is not None:
                found |= _of_notes(roles.primary, permission)
        if permission is not None and self._now() > (end := self._patience(permission)):
            found["unpermitted"] = [end]
        if permission is not None and permission.rests:
            found["unasking"] = [permission.times_asked]
        # Peers act upon each state but CATCHUP.
        if roles.told != roles.state and roles.state != CATCHUP and roles.urls.others(roles.name):
            found["untold"] = [roles.state]
        return found


def unlike_objects(configuration: Configuration) -> str:
    """Describe a difference between the objects in memory and in the store; empty while there are unwritten changes."""
    rows = configuration.database.execute("SELECT kind, name, arguments FROM qpid_objects")
    stored = {(kind, name): wire.decode(arguments) for kind, name, arguments in rows}
    mine = dict(configuration.items())
    if configuration.records.unsaved or stored == mine:
        return ""
    odd = sorted(key for key in {*stored, *mine} if stored.get(key) != mine.get(key))
    return f"objects: memory has {mine.get(odd[0])} of {odd[0]}, and the store {stored.get(odd[0])}"


def unlike_generations(generations: Generations) -> str:
    """Describe a difference between the generations in memory and in the store; empty while there are unwritten
    changes."""
    stored = set(generations.database.execute("SELECT queue, generation, first FROM qpid_generations"))
    mine = {(queue, *each) for queue, known in generations.items() for each in known}
    if generations.records.unsaved or stored == mine:
        return ""
    return f"generations: memory has {sorted(mine - stored)[:3]}, and the store {sorted(stored - mine)[:3]}"


# The primary and its backups.


def held_back(browsing: Browsing) -> str:
    """Return a backup whose catch-up is stalled although its window has room; empty if there is none."""
    for browser in browsing.browsers.values():
        if browser.waits and browser.under_way < WINDOW_GROUPS and not browser.moved.is_set():
            return browser.name
    return ""


def overheld(browsing: Browsing) -> str:
    """Return a backup for which more events wait during its catch-up than may; empty if there is none."""
    most = browsing.options.catchup_backlog
    return next((each.name for each in browsing.browsers.values() if each.held_bytes > most), "")


def miscounted_backups(primary: Primary) -> str:
    """Describe the first wrong count of held bytes, an attached backup that does not belong to this cluster, or a
    catch-up that still runs for a backup that has left; empty if there is none.
    """
    if strangers := [name for name in primary.browsers if name not in primary.urls.brokers]:
        return f"backups that the broker URL does not name: {strangers}"
    return miscounted_catch_up(primary.browsing)


def miscounted_catch_up(browsing: Browsing) -> str:
    """Describe the first wrong count of held bytes, or a catch-up that still runs for a backup that has left; empty if
    there is none."""
    for task, browser in browsing.catching_up.items():
        if browsing.browsers.get(browser.name) is not browser and not task.cancelling():
            return f"backups that are gone: {browser.name} is still sent what it lacks"
    for each in browsing.browsers.values():
        there = sum(size_of(events) for _, events in each.held)
        if each.held_bytes != there:
            return f"bytes that wait for backup {each.name}: {each.held_bytes} are counted, and there are {there}"
    return ""


def _of_primary(primary: Primary, roles: Roles) -> Pending:
    """Return the causes for which completions wait, and missing backups."""
    found: dict[str, Collection[Hashable]] = {}
    browsers = primary.browsers
    if primary.expected:
        found["expected"] = list(primary.expected.items())
        if there := [name for name in primary.expected if name in browsers]:
            found["expected-though-there"] = there
    if primary.waiting:
        found["completion"] = [primary.waiting[0][0]]
    if unreleased := _unreleased(primary):
        found["unreleased"] = unreleased
    if away := [name for name in roles.urls.others(roles.name) if name not in browsers]:
        found["away"] = away
    if slow := [(each.name, each.until) for each in browsers.values() if each.counts and each.state == CATCHUP]:
        found["slow-backup"] = slow
    if uncounted := [name for name, each in browsers.items()
                     if each.state == READY and not each.counts and not each.optional]:  # fmt: skip
        found["ready-uncounted"] = uncounted
    if lacking := [(each.name, each.sent) for each in browsers.values()
                   if not each.live and each.under_way < WINDOW_GROUPS]:  # fmt: skip
        found["catch-up-window"] = lacking
    if sent := [(each.name, each.number, each.under_way) for each in browsers.values() if each.under_way]:
        found["browser"] = sent
    return found


def _unreleased(primary: Primary) -> list[int]:
    """Return the first waiting group if nothing holds it."""
    if not primary.waiting or primary.awaits_backups or primary.waiting[0][0] > primary.browsing.completed_by_all():
        return []
    permission = primary.permission
    held = permission is not None and not (permission.holds() and knows(permission, primary.excluded))
    return [] if held else [primary.waiting[0][0]]


def knows(permission: Permission, excluded: Sequence[str]) -> bool:
    """Tell whether the primary may confirm data that these backups lack, without requesting a record."""
    if isinstance(permission, ManagerPermission):
        return permission.knows(excluded)
    assert isinstance(permission, Eviction)
    now = permission.runtime.now()
    return all(now >= permission.missing_since.get(name, now) + permission.seconds for name in excluded)


def _newer_primaries(primary: Primary, roles: Roles) -> list[str]:
    """Return the peers that claim to be primary of a newer generation than this primary's."""
    return [peer for peer, status in roles.heard.items()
            if status.state == PRIMARY and status.generation > primary.generation]  # fmt: skip


def _of_notes(primary: Primary, permission: ManagerPermission) -> Pending:
    """Return the notes that managers still have to take, and those that the primary still has to revoke."""
    found: dict[str, Collection[Hashable]] = {}
    recorded = min(permission.versions) if permission.known is not None else 0
    if permission.version > recorded:
        found["noting"] = [permission.version]
    if not permission.version:  # an earlier primary's record counts
        if not primary.expected:
            found["noted-though-ready"] = [""]
    elif there := [name for name in permission.wanted if name not in primary.excluded]:
        found["noted-though-ready"] = there
    return found


# The manager.
