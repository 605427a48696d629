"""Read-only probe of a broker's services: their destinations, and how collocated clients settle messages."""

from __future__ import annotations

from collections.abc import Sequence

from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.model import QUEUE_PREFIX, ConnectionContext
from nodes.reference.engine.server_queues import DONE
from nodes.reference.engine.threads import PREFIX, is_collocated, thread_of
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.reaction import EXACTLY_ONCE, REACTION
from nodes.reference.server.services import DESTINATIONS


def run(broker: ReferenceBroker) -> bool:
    """Return whether all services run, if there are any."""
    return not broker.design.has_services or (broker.services.ready and broker.entry_open)


def admits_early(broker: ReferenceBroker) -> str:
    """Tell that clients are admitted though the services do not run; empty if they are not."""
    return "" if run(broker) or not broker.admission().accepted else "clients are admitted, and the services do not run"


def unlike_configured(engine: StoreEngine, services: Sequence[Sequence[str]]) -> str:
    """Describe a destination that a service has not deployed, or a message that it settles otherwise than its quality
    of service says; empty if there is none."""
    state = engine.state
    deployed = engine.server_queues.deployment.phase == DONE
    for name, *arguments in services:
        names = arguments if name == DESTINATIONS and deployed else ()
        if missing := [each for each in names if each.removeprefix(QUEUE_PREFIX) not in state.queues]:
            return f"{missing[0]} is not there, which a service deploys"
        if name != REACTION:
            continue
        thread, quality, source = arguments[:3]
        if deployed and not source.startswith(QUEUE_PREFIX) and f"durable:{PREFIX}{thread}:{thread}" not in \
                state.durables:
            return f"the durable subscription of {thread} is not there, which its service deploys"
        for conn, context in state.contexts.items():
            if is_collocated(conn) and thread_of(conn) == thread and (wrong := _reacts(engine, context, quality)):
                return f"{thread} takes {quality}, and {wrong}"
    return ""


def _reacts(engine: StoreEngine, context: ConnectionContext, quality: str) -> str:
    """Describe how a client settles messages otherwise than in a branch for each, or in none."""
    state = engine.state
    branches = [xid for _, xid in (*state.prepared, *state.outcomes) if xid.startswith(f"{context.conn}:")]
    if quality != EXACTLY_ONCE:
        return "has a branch" if branches or context.transactions else ""
    settled = context.out_seq - len(context.inflight)
    return f"has settled {settled} messages in no branch" if settled and not branches else ""
