"""Consumers of other servers' destinations (HA Joram, 1.1.1): the user's proxy is here, the destination is there.

A SUBSCRIBE to ``/server/N/...`` creates a *proxy*: a separate queue here, and on server N a connection context with one
subscription, which takes part in the destination's turns like any other. Messages delivered to that subscription are
sent here and wait for the client. On server N they stay delivered until the client's acknowledgement has been sent
back, or until the subscription ends, which gives the remaining messages back. Requests and deliveries travel in the two
servers' sequences, so each arrives once and in order: messages acknowledged before the end are not given back by it.

Requests to the server that has the destination: ``/proxy/subscribe``, ``/proxy/unsubscribe``, ``/proxy/ack``,
``/proxy/nack``. To the proxy's server: ``/proxy/deliver``, ``/proxy/refuse``. All name the proxy by its number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from nodes.reference.api import Deliver
from nodes.reference.engine.limits import Limits
from nodes.reference.engine.model import AUTO, INDIVIDUAL, QUEUE_PREFIX, ConnectionContext, Message, Queue, Subscription
from nodes.reference.engine.server_queues import PROXY_PREFIX, SERVER_PREFIX, ServerQueues
from nodes.reference.engine.state import EngineState
from nodes.reference.engine.topics import TOPIC_PREFIX

SUBSCRIBE, UNSUBSCRIBE, ACK, NACK = "subscribe", "unsubscribe", "ack", "nack"
DELIVER, REFUSE = "deliver", "refuse"
_AGENT = "server:"
"""Connection contexts of other servers' proxies are named ``server:N:PROXY``; the broker names those of clients."""
_ENVELOPE = ("ack", "message", "redeliveries", "destination", "headers")


def is_agent(conn: str) -> bool:
    """Return whether a connection context represents a proxy on another server."""
    return conn.startswith(_AGENT)


class Proxies:
    """The proxies of this server's clients, and the requests sent about any proxy."""

    def __init__(self, state: EngineState, server_queues: ServerQueues) -> None:
        self._state, self._server_queues = state, server_queues

    # For this server's clients.

    def open(self, context: ConnectionContext, server: int, destination: str, prefetch: int,
             durable: str | None) -> Queue:
        """Create the queue of a new proxy, and request its subscription from the other server."""
        queue = self._state.add_proxy(durable or "", f"{SERVER_PREFIX}{server}{destination}")
        about = {"login": context.login, "destination": destination, "prefetch": str(prefetch)}
        self._ask(queue, SUBSCRIBE, about | ({"durable": durable} if durable is not None else {}))
        return queue

    def end(self, queue: Queue, delete: bool) -> None:
        """End a proxy's subscription; ``delete`` also deletes its durable subscription on the other server."""
        self._ask(queue, UNSUBSCRIBE, {"durable": queue.name} if delete else {})

    def settle(self, message: Message, kind: str) -> None:
        """Report that the client has acknowledged a delivered message (``ack``), or given it back (``nack``)."""
        self._ask(message.queue, kind, {"id": self._state.content(message)[0]["ack"]})

    def delivery(self, message: Message, subscription: Subscription) -> Deliver:
        """Return the effect that delivers a proxy's message to its client."""
        envelope, body = self._state.content(message)
        server, context = self._server_of(message.queue), subscription.context
        return Deliver(context.conn, message.out_seq, subscription.name,
                       f"{SERVER_PREFIX}{server}{envelope['destination']}", message.ack_id,
                       f"{server}:{envelope['message']}", int(envelope["redeliveries"]),
                       json.loads(envelope["headers"]), body, subscription.ack == AUTO and not context.reliable)

    def _ask(self, queue: Queue, kind: str, about: Mapping[str, str]) -> None:
        self._server_queues.send(self._server_of(queue), PROXY_PREFIX + kind, {"proxy": str(queue.id), **about}, b"")

    def _server_of(self, queue: Queue) -> int:
        server, _ = self._server_queues.route(queue.pattern)
        if server is None:
            raise ValueError(f"queue {queue.id} is no proxy's")
        return server

    # For proxies on other servers.

    def forward(self, delivery: Deliver) -> None:
        """Send a message that was delivered to a proxy's agent to the proxy."""
        server, proxy = _place(delivery.conn)
        envelope = {"proxy": proxy, "ack": delivery.ack_id, "message": delivery.message_id,
                    "redeliveries": str(delivery.redeliveries), "destination": delivery.destination,
                    "headers": json.dumps(dict(delivery.headers), ensure_ascii=False)}
        self._server_queues.send(server, PROXY_PREFIX + DELIVER, envelope, delivery.body)

    def refuse(self, conn: str, reason: str) -> None:
        """Tell a proxy that its subscription has ended, and why."""
        server, proxy = _place(conn)
        self._server_queues.send(server, PROXY_PREFIX + REFUSE, {"proxy": proxy, "reason": reason}, b"")


class ProxyRequests:
    """Requests and deliveries from other servers about proxies, on either side.

    ``subscribe``, ``leave`` and ``finish`` belong to the destinations, which treat a proxy's agent like a client.
    ``enqueue`` puts a message into a proxy's queue, and ``refused`` ends a client's connection.
    """

    def __init__(self, state: EngineState, limits: Limits, proxies: Proxies, *,
                 subscribe: Callable[[ConnectionContext, Mapping[str, Any]], str | None],
                 leave: Callable[[ConnectionContext, str | None], None],
                 finish: Callable[[str, list[Message]], None],
                 enqueue: Callable[[Queue, Mapping[str, str], bytes], None],
                 refused: Callable[[ConnectionContext, str], None]) -> None:
        self._state, self._limits, self._proxies = state, limits, proxies
        self._subscribe, self._leave, self._finish = subscribe, leave, finish
        self._enqueue, self._refused = enqueue, refused

    def is_full(self, args: Mapping[str, Any]) -> bool:
        """Return whether a message for a proxy has to wait on its server, because this server is full."""
        held = len(self._state.messages) + self._state.reserved
        return (args["destination"] == PROXY_PREFIX + DELIVER and held >= self._limits.max_messages
                and self._queue(args["server"], args["headers"]) is not None)

    def take(self, args: Mapping[str, Any]) -> None:
        """React to a request or a delivery. A malformed or late one changes nothing."""
        server, kind, about = args["server"], args["destination"].removeprefix(PROXY_PREFIX), args["headers"]
        if kind in (DELIVER, REFUSE):
            queue = self._queue(server, about)
            if queue is None:
                return
            if kind == REFUSE:
                reason = f"server {server}: {about.get('reason', '')}"
                for subscription in list(queue.subscriptions.values()):
                    self._refused(subscription.context, reason)
            elif _is_envelope(about):
                self._enqueue(queue, {name: about[name] for name in _ENVELOPE}, args["body"])
            return
        conn = f"{_AGENT}{server}:{about.get('proxy', '')}"
        if kind == SUBSCRIBE:
            self._begin(conn, about)
        elif (agent := self._state.contexts.get(conn)) is not None:
            self._go_on(agent, kind, about)

    def _queue(self, server: int, about: Mapping[str, str]) -> Queue | None:
        """Return the queue of the proxy that the message is for, if it still exists."""
        proxy = about.get("proxy", "")
        queue = self._state.proxies.get(int(proxy)) if _is_number(proxy) else None
        return queue if queue is not None and queue.pattern.startswith(f"{SERVER_PREFIX}{server}/") else None

    def _begin(self, conn: str, about: Mapping[str, str]) -> None:
        destination, prefetch = about.get("destination", ""), about.get("prefetch", "")
        known = destination.startswith((QUEUE_PREFIX, TOPIC_PREFIX)) and _is_number(prefetch)
        if not known or not _is_number(about.get("proxy", "")) or conn in self._state.contexts:
            return
        if len(self._state.contexts) >= self._limits.max_contexts:
            self._proxies.refuse(conn, "too many connections")
            return
        self._state.add_context(conn, False, about.get("login", ""))
        agent = self._state.contexts[conn]
        mistake = self._subscribe(agent, {"id": about["proxy"], "destination": destination, "ack": INDIVIDUAL,
                                          "prefetch": int(prefetch), "durable": about.get("durable")})
        if mistake is not None:
            self._state.remove_context(agent)
            self._proxies.refuse(conn, mistake)

    def _go_on(self, agent: ConnectionContext, kind: str, about: Mapping[str, str]) -> None:
        if kind == UNSUBSCRIBE:
            self._leave(agent, about.get("durable"))
        elif kind in (ACK, NACK) and (message := agent.find(about.get("id", ""))) is not None:
            self._finish(kind, [message])


def _place(conn: str) -> tuple[int, str]:
    """Return the number of the server that an agent's context belongs to, and the proxy's number there."""
    server, _, proxy = conn.removeprefix(_AGENT).partition(":")
    return int(server), proxy


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 17


def _is_envelope(about: Mapping[str, str]) -> bool:
    """Return whether this is a message for a proxy that can be delivered to a client."""
    if any(name not in about for name in _ENVELOPE) or not _is_number(about["redeliveries"]):
        return False
    try:
        headers = json.loads(about["headers"])
    except (ValueError, RecursionError):
        return False
    return isinstance(headers, dict) and all(
        isinstance(value, str) and "\0" not in name + value for name, value in headers.items())
