"""Consumers of other servers' destinations (HA Joram, 1.1.1): the user's proxy is here, the destination is there.

A SUBSCRIBE to ``/server/N/...`` makes a *proxy*: a queue of its own here, and on server N a connection context with one
subscription, which takes part in the destination's turns like any other. What that is given is sent here and waits for
the client; there it stays delivered, until the client's acknowledgement has been sent back, or the end of the
subscription, which gives all the rest back. Requests and deliveries travel in the two servers' sequences, so each comes
once and in order: what was acknowledged before the end is not given back by it.

Requests to the server that has the destination: ``/proxy/subscribe``, ``/proxy/unsubscribe``, ``/proxy/ack``,
``/proxy/nack``. To the proxy's server: ``/proxy/deliver``, ``/proxy/refuse``. All name the proxy by its number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from nodes.reference.api import Deliver
from nodes.reference.bugs import REMOTE_ACK_ON_ARRIVAL, REMOTE_END_UNTOLD
from nodes.reference.engine.limits import Limits
from nodes.reference.engine.model import AUTO, INDIVIDUAL, QUEUE_PREFIX, Context, Message, Queue, Subscription
from nodes.reference.engine.server_queues import PROXY_PREFIX, SERVER_PREFIX, ServerQueues
from nodes.reference.engine.state import State
from nodes.reference.engine.topics import TOPIC_PREFIX

SUBSCRIBE, UNSUBSCRIBE, ACK, NACK = "subscribe", "unsubscribe", "ack", "nack"
DELIVER, REFUSE = "deliver", "refuse"
_AGENT = "server:"
"""Connection contexts of other servers' proxies are named ``server:N:PROXY``; the broker names those of clients."""
_ENVELOPE = ("ack", "message", "redeliveries", "destination", "headers")


def is_agent(conn: str) -> bool:
    """Whether a connection context stands for a proxy on another server."""
    return conn.startswith(_AGENT)


class Proxies:
    """The proxies of this server's clients, and what is sent about any proxy."""

    def __init__(self, state: State, server_queues: ServerQueues, bugs: frozenset[str]) -> None:
        self._state, self._server_queues, self._bugs = state, server_queues, bugs

    # For this server's clients.

    def open(self, context: Context, server: int, destination: str, prefetch: int, durable: str | None) -> Queue:
        """The queue of a new proxy, whose subscription is asked of the other server."""
        queue = self._state.add_proxy(durable or "", f"{SERVER_PREFIX}{server}{destination}")
        about = {"login": context.login, "destination": destination, "prefetch": str(prefetch)}
        self._ask(queue, SUBSCRIBE, about | ({"durable": durable} if durable is not None else {}))
        return queue

    def end(self, queue: Queue, delete: bool) -> None:
        """The subscription is over here; ``delete``: a durable one is over there, too."""
        if REMOTE_END_UNTOLD not in self._bugs:
            self._ask(queue, UNSUBSCRIBE, {"durable": queue.name} if delete else {})

    def settle(self, message: Message, kind: str) -> None:
        """The client has acknowledged a delivered message (``ack``), or given it back (``nack``)."""
        if REMOTE_ACK_ON_ARRIVAL not in self._bugs:
            self._ask(message.queue, kind, {"id": self._state.content(message)[0]["ack"]})

    def arrived(self, queue: Queue, envelope: Mapping[str, str]) -> None:
        """A message has come for a proxy (where a switchable bug bites)."""
        if REMOTE_ACK_ON_ARRIVAL in self._bugs:
            self._ask(queue, ACK, {"id": envelope["ack"]})

    def delivery(self, message: Message, subscription: Subscription) -> Deliver:
        """The effect that brings a proxy's message to its client."""
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
        """Tell a proxy that its subscription is over, and why."""
        server, proxy = _place(conn)
        self._server_queues.send(server, PROXY_PREFIX + REFUSE, {"proxy": proxy, "reason": reason}, b"")


class ProxyRequests:
    """What comes from other servers about proxies, here or there.

    ``subscribe``, ``leave`` and ``finish`` are the destinations' side of it: what they do for a client they do for a
    proxy's agent; ``enqueue`` puts a message into a proxy's queue, ``refused`` ends a client's connection.
    """

    def __init__(self, state: State, limits: Limits, proxies: Proxies, *,
                 subscribe: Callable[[Context, Mapping[str, Any]], str | None],
                 leave: Callable[[Context, str | None], None],
                 finish: Callable[[str, list[Message]], None],
                 enqueue: Callable[[Queue, Mapping[str, str], bytes], None],
                 refused: Callable[[Context, str], None]) -> None:
        self._state, self._limits, self._proxies = state, limits, proxies
        self._subscribe, self._leave, self._finish = subscribe, leave, finish
        self._enqueue, self._refused = enqueue, refused

    def is_full(self, args: Mapping[str, Any]) -> bool:
        """Whether a message for a proxy has to wait on its server, since this one is full."""
        held = len(self._state.messages) + self._state.reserved
        return (args["destination"] == PROXY_PREFIX + DELIVER and held >= self._limits.max_messages
                and self._queue(args["server"], args["headers"]) is not None)

    def take(self, args: Mapping[str, Any]) -> None:
        """React to a request or a delivery. One that makes no sense, or comes too late, changes nothing."""
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
                self._proxies.arrived(queue, about)
                self._enqueue(queue, {name: about[name] for name in _ENVELOPE}, args["body"])
            return
        conn = f"{_AGENT}{server}:{about.get('proxy', '')}"
        if kind == SUBSCRIBE:
            self._begin(conn, about)
        elif (agent := self._state.contexts.get(conn)) is not None:
            self._go_on(agent, kind, about)

    def _queue(self, server: int, about: Mapping[str, str]) -> Queue | None:
        """The queue of the proxy that the message is for, if it is still there."""
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

    def _go_on(self, agent: Context, kind: str, about: Mapping[str, str]) -> None:
        if kind == UNSUBSCRIBE:
            self._leave(agent, about.get("durable"))
        elif kind in (ACK, NACK) and (message := agent.find(about.get("id", ""))) is not None:
            self._finish(kind, [message])


def _place(conn: str) -> tuple[int, str]:
    """The number of the server that an agent's context belongs to, and the proxy there."""
    server, _, proxy = conn.removeprefix(_AGENT).partition(":")
    return int(server), proxy


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 17


def _is_envelope(about: Mapping[str, str]) -> bool:
    """Whether it is a message for a proxy: a client can be given it."""
    if any(name not in about for name in _ENVELOPE) or not _is_number(about["redeliveries"]):
        return False
    try:
        headers = json.loads(about["headers"])
    except (ValueError, RecursionError):
        return False
    return isinstance(headers, dict) and all(
        isinstance(value, str) and "\0" not in name + value for name, value in headers.items())
