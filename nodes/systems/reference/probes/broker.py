"""Read-only probe of the part of a broker that all designs share."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import cast

from nodes.reference.api import Admission, Broker, Pending
from nodes.reference.engine.threads import PREFIX
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.budget import Turns
from nodes.reference.server.sessions import Session
from nodes.systems.reference.probes import flow, guards, networks, page, services, sessions
from nodes.systems.reference.probes.engine import EngineProbe


class BrokerProbe:
    """A broker's sessions, connections, networks, services and engine."""

    def __init__(self, broker: Broker) -> None:
        self._broker = cast("ReferenceBroker", broker)
        self.engine = EngineProbe(self._broker.engine)
        self._unread = sessions.UnreadOutput()
        self._beats = sessions.BeatTimes()
        self._turns = flow.SeenTurns()

    @property
    def common(self) -> BrokerProbe:
        """The probe of what all designs share: this one."""
        return self

    @property
    def design(self) -> str:
        """The name of its design."""
        return self._broker.config.design

    @property
    def failed(self) -> bool:
        """Tell whether its store has failed: it is ending, and its memory is ahead of the store."""
        return self._broker.store_failed

    @property
    def admission(self) -> Admission:
        """Its decision about admitting clients, which it tells them."""
        return self._broker.design.admission()

    @property
    def names_replicas(self) -> bool:
        """Tell whether its configuration has addresses for clients."""
        return bool(self._broker.config.client_addresses)

    def pending(self) -> Pending:
        """Return the work that clients here wait for, or that a component has yet to do for them."""
        broker, connections = self._broker, self._broker.connections
        if broker.store_failed:
            return {"failed-store": [""]}
        found: dict[str, Collection[Hashable]] = networks.pending(broker.networks)
        if connections.idle_since:
            found["idle-connection"] = list(connections.idle_since.items())
        if timed := [conn for conn in connections.idle_since if conn in connections.attached]:
            found["idle-client"] = timed
        if connections.overtaken:
            found["overtaken"] = list(connections.overtaken)
        if shared := sessions.of_former(broker.sessions, connections.attached):
            found["superseded"] = shared
        if denied := self.engine.denied():
            found["denied"] = denied
        if bereft := self.engine.bereft():
            found["bereft"] = bereft
        if broker.logins:
            found["login"] = list(broker.logins)
        if hasty := sessions.cut_early(broker.silences):
            found["cut-early"] = hasty
        if broker.guard.refused_idle:
            found["refused-idle"] = broker.guard.refused_idle
        now, overdue = broker.runtime.now(), dict[str, dict[Hashable, float]]()
        for session in broker.sessions:
            self._beats.look(session)
            for what, since, own in sessions.overdue(session, now, self._unread):
                overdue.setdefault(what, {})[session.conn, session.asked, since] = own
        if beyond := [session.conn for session in broker.sessions if sessions.beyond_limits(session, broker.limits)]:
            found["taken-beyond"] = beyond
        outputs = {session.output for session in broker.sessions}
        self._unread.keep(outputs)
        self._beats.keep(outputs)
        if self._beats.hasty:
            found[sessions.HASTY_BEAT] = self._beats.hasty
        if turns_stall(broker.turns):
            overdue.setdefault("held-up", {})["turns"] = 0.0
        found |= overdue
        admission = broker.design.admission()
        if admission.master and admission.master == broker.config.client_addresses.get(broker.config.node):
            found["misdirects"] = [admission.master]
        if ready := self.engine.deliverable():
            found["delivery"] = ready
        if unshared := self.engine.unshared():
            found["sharing"] = unshared
        if early := self.engine.settled_early():
            found["settled-early"] = early
        if broker.serving and broker.collocated and broker.runs_services():
            found |= self._reactions()
        if broker.serving:
            orphans = [(conn, connections.idle_since.get(conn)) for conn in broker.engine.connections()
                       if connections.is_orphan(conn)
                       or ((holder := connections.attached.get(conn)) is not None and holder.ended)]
            if orphans:
                found["orphan"] = orphans
        return found

    def _reactions(self) -> dict[str, Collection[Hashable]]:
        """Return the collocated clients without a connection here, and those with an unacknowledged message."""
        open_now, node, names = self.engine.collocated(), self._broker.config.node, self._broker.collocated
        here = {name: open_now[name] for name in names
                if name in open_now and open_now[name][0].startswith(f"{PREFIX}{name}:{node}-")}
        found: dict[str, Collection[Hashable]] = {
            "collocated": [name for name in names if name not in here],
            "reaction": [(conn, oldest) for conn, oldest in here.values() if oldest],
        }
        return {name: things for name, things in found.items() if things}

    def unlike_store(self) -> str:
        """Describe how this node's memory differs from its store; both should be equal."""
        return "" if self._broker.store_failed else self.engine.unlike_store()

    def unlike_page(self) -> str:
        """Describe a default that differs from what its page promises; empty if there is none."""
        options = getattr(self._broker.design, "options", None)
        return (page.unlike_page(self._broker.limits, self._broker.config.options)
                or page.unlike_design(self._broker.config.design, options))

    def held_by_ended(self) -> str:
        """Describe what a client that was ended still holds; empty if there is nothing."""
        return sessions.held_by_ended(self._broker.sessions)

    def runs_services(self) -> bool:
        """Return whether all services run."""
        return services.run(self._broker)

    def admits_early(self) -> str:
        """Tell that clients are admitted though the services do not run; empty if they are not."""
        return "" if self._broker.stopping else services.admits_early(self._broker)

    def unlike_configured(self) -> str:
        """Describe how services do otherwise than their configuration says; empty if they do not."""
        broker = self._broker
        if broker.gives_up and not broker.config.services:
            return "it gives up since its services could not be initialised, and it has none"
        return "" if broker.store_failed else services.unlike_configured(broker.engine, broker.config.services)

    def misjudged_rows(self) -> str:
        """Describe a row of this node's store that the guards of links judge wrongly; empty if there is none."""
        return "" if self._broker.store_failed else guards.misjudged(self.engine.stored_rows())

    def miscounted(self) -> str:
        """Describe a counter that is wrong: one of the engine, or one over all sessions."""
        broker = self._broker
        if broker.store_failed:
            return ""
        all_sessions, turns = list(broker.sessions), broker.turns
        sums = {
            "bytes that sessions hold": (broker.budget.total, sum(each.held for each in all_sessions)),
            "weight of commands under way": (turns.weight, sum(each.flow.outstanding_weight for each in all_sessions)),
            "size of work that has its turn": (turns.taken, sum(map(sessions.turns, all_sessions))),
            "sessions that count wrongly what they have to do": (0, sum(map(sessions.miscounts, all_sessions))),
            "sessions with commands under way": (turns.busy, sum(bool(each.flow.outstanding) for each in all_sessions)),
            "things that sessions have noted of what is over": (sum(map(self._stale_notes, all_sessions)), 0),
        }
        wrong = [f"{what}: {counted} are counted, and there are {there}"
                 for what, (counted, there) in sums.items() if counted != there]
        return (self.engine.miscounted() or next(iter(wrong), "") or networks.miscounted(broker.networks)
                or self.left_over())

    def connections(self) -> tuple[frozenset[str], frozenset[str], bool] | None:
        """Return the reliable connections, those whose ends are remembered, and whether there is no room for more of
        these; None while this node does not serve.
        """
        broker = self._broker
        if not broker.serving or broker.store_failed:
            return None
        closed, most = self.engine.closed(), broker.limits.max_closed
        return self.engine.reliable(), closed, len(closed) >= most

    def reads_too_much(self) -> str:
        """Describe how much of a client's input is taken in one turn, if it is more than a piece."""
        return flow.reads_too_much(self._broker.sessions)

    def unfair_turns(self) -> str:
        """Describe how turns are given otherwise than the page says; empty if they are not."""
        broker = self._broker
        if broker.store_failed:
            return ""
        return self._turns.unfair(broker.turns, [each.flow for each in broker.sessions])

    def _stale_notes(self, session: Session) -> int:
        """Return the number of things a session has noted beyond one for each open transaction of its connection."""
        open_now = self.engine.open_transactions(session.conn) if session.conn is not None else None
        return max(0, sessions.notes(session) - open_now) if open_now is not None else 0

    def left_over(self) -> str:
        """Describe state that is left over from the time when this node served; empty if there is none."""
        broker, connections, those = self._broker, self._broker.connections, self._broker.services
        if not broker.serving:
            left = (len(connections.attached) + len(connections.waiting) + len(connections.idle_timers)
                    + len(connections.overtaken))
            if left:
                return f"connections that clients had, or waited for, while this node served: {left} are counted"
            if left := len(broker.networks.outward) + len(broker.networks.inward):
                return f"connections with other servers, while this node served: {left} are counted"
        running = len(those.started) - len(those.services)
        return f"services that were stopped: {running} are counted" if running > 0 else ""


def turns_stall(turns: Turns) -> bool:
    """Return whether work waits although there is room for it; this lasts only until the input of others has been
    read."""
    waiting = [each for each in turns.waiting if not each[3].done()]
    return bool(waiting) and turns.fits(min(waiting)[2])
