"""Workload ``topic-dialogue``: clients create and end private topics, subscribers and links, step by step, and query
them; a model of the topic manager predicts each answer.

In the workload ``subscriptions`` many clients change the same few objects. In this one each client makes every kind of
change in every order, which reveals state that one change leaves behind for another: a topic that is created again, the
second link of a topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodes.reference.engine.topics import TOPIC_MANAGER
from nodes.stomp import Frame
from stormproof.contracts.client import Client
from stormproof.contracts.cluster import Cluster
from stormproof.contracts.option import Option
from stormproof.operation import Op
from workloads.draws import TOPIC_DIALOGUE as DRAWS
from workloads.event_names import FIRST_PORT
from workloads.options import CLIENT_HEARTBEAT, CLIENT_ORDER
from workloads.reference.connection import ConnectionBroken, NotSent, Rejected, StompConnection
from workloads.reference.dialogue.broker_model import Mismatch
from workloads.reference.dialogue.client import NOT_AS_MODELLED, SETTLE
from workloads.reference.dialogue.strangers import Strangers
from workloads.reference.dialogue.workload import PrivateDialoguesWorkload
from workloads.reference.managed_objects import ManagedConnection
from workloads.reference.pushed_events import FailingSubscriber
from workloads.reference.stomp_client import StompCluster, failed, json_request

_MAX_STEPS = 7
_UNREACHABLE = "127.0.0.1:9"
"""A subscriber's endpoint at which nothing listens: no event is delivered there."""
RETRIES = "icestorm-retries"
"""Counted item: the number of times that a subscriber was retried until it was removed."""
PAGES = "icestorm-pages"
"""Counted item: the number of continuation pages of lists."""
_MAX_NAME_CHARS = 200
"""Upper bound of the characters of a name."""
_INVALID_REQUESTS: tuple[tuple[str, Mapping[str, Any], str], ...] = (
    *(("create", {"topic": name}, "bad-name")
      for name in ("", "a b", "a\tb", "a\u0007", "x" * (_MAX_NAME_CHARS + 1), 7)),
    ("retrieve", {"topic": "x" * _MAX_NAME_CHARS}, "no-such-topic"),
    ("list", {"after": "a b"}, "bad-name"),
    *(("subscribe", {"endpoint": where}, "bad-endpoint")
      for where in ("127.0.0.1", "127.0.0.1:0", "a:70000", "a b:9", 9)),
    *(("subscribe", {"retryCount": count}, "bad-qos") for count in (-2, True, "1", 1 << 31)),
    ("subscribe", {"reliability": "fast"}, "bad-qos"),
    *(("link", {"cost": cost}, "bad-qos") for cost in (-1, 0.5)),
    ("remove", {"since": ""}, "bad-request"),
    ("frob", {}, "bad-request"),
)
"""Invalid requests, and the errors that answer them."""
_INVALID_COMMANDS: tuple[tuple[str, Mapping[str, str]], ...] = (
    *(("SEND", {"destination": where}) for where in (
        "/queue/a", "/topic/", "/topic/a..b", "/topic/a b", "/topic/*", "/topic/a.>", "/topic/" + "x" * _MAX_NAME_CHARS,
        "/exchange/a/b", "a")),
    ("SEND", {}),
    ("SEND", {"destination": "/topic/a", "transaction": "t"}),
    ("SUBSCRIBE", {"destination": "/topic/a", "id": "1"}),
    ("UNSUBSCRIBE", {"id": "1"}),
    ("ACK", {"id": "1"}),
    ("BEGIN", {"transaction": "t"}),
    ("SHOUT", {}),
)
"""Commands that a replica refuses, and whose connection it ends: it takes requests, and events for topics, only."""
_OTHER_SHARE = 0.04
"""The share of steps that send commands which make no sense, or several requests at once."""
_MAX_ROUNDS = 8
_FEW = 10
"""An upper bound of the events that may wait for a subscriber, up to which it is exceeded on purpose."""
_BAD_COSTS = ("many", "-1", "1" * 10)
_RETRY_COUNT = 3
"""The number of further attempts that a subscriber has after a failed delivery, before it is removed."""
_DELIVERY_SECONDS = 10.0
"""Time after the end of all faults within which an event must arrive, and an unreachable subscriber must be removed."""
_CHECK_SECONDS = 0.05
"""Pause between two checks of these conditions."""
_RETURN_SHARE = 0.2
"""The share of steps about a subscriber that is removed and subscribes again."""
_STRANGERS_SHARE = 0.05
"""The share of steps before which another connection logs in, in a wrong way or a right one."""


@dataclass
class ModelTopic:
    """The expected state of a topic: subscriber -> (endpoint, retry count, reliability), and target -> cost."""

    subscribers: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    links: dict[str, int] = field(default_factory=dict)


class TopicDialogueClient(ManagedConnection):
    """One process, with private topics, whose names begin with ``mine``."""

    destination = TOPIC_MANAGER

    def __init__(self, cluster: StompCluster, host: str, first: int, rng: random.Random, mine: str) -> None:
        super().__init__(cluster, host, first)
        self._mine, self._rng = mine, rng
        self._turns = cluster.test.rng(f"returns/{mine}")
        self._others = cluster.test.rng(f"others/{mine}")
        self._returned = self._hurries = 0
        self._strangers = Strangers(self.addresses, self.settings, cluster.test.rng(f"strangers/{mine}"))
        self._endpoint = self.settings.local_host or host, FIRST_PORT + first
        self._topics: dict[str, ModelTopic] = {}
        self.used: dict[str, int] = {}

    async def invoke(self, op: Op) -> Op:
        """Carry out ``talk``, or ``settle``: every topic is checked once more, and destroyed."""
        if op.f == SETTLE:
            await self._connection.abort()  # the broker may be closing the idle connection just now
        try:
            await self._reconnect()
        except ConnectionBroken as error:
            return op.fail(f"no connection: {error}")
        try:
            if op.f == SETTLE:
                for name in sorted(self._topics):
                    await self._look(name)
                    await self._destroy(name)
                await self._list()
                if self.options.get("offline_events", "kept") == "kept":  # otherwise a failed delivery loses the event
                    await self._retried()
                    await self._overflow()
                await self._end_what_others_left()
                await self._part()
            else:
                for _ in range(self._rng.randint(1, _MAX_STEPS)):
                    await self._step()
            done = op.ok()
        except Mismatch as error:
            kind = str(error).partition(" (")[0]
            self.observe(op, None, f"{NOT_AS_MODELLED}: {kind}")
            done = op.info(f"{NOT_AS_MODELLED}: {error}")
        except (NotSent, TimeoutError, ConnectionBroken) as error:
            done = failed(op, error, "answer")
        except Rejected as error:
            done = op.info(f"connection broken: {error}")
        return done._replace(node=self.node_of(self._connection))

    async def _step(self) -> None:
        rng = self._rng
        if self._strangers.come(_STRANGERS_SHARE):
            await self._be_a_stranger()
        if self._others.random() < _OTHER_SHARE:
            await self._others.choice((self._be_refused, self._hurry))()
            return
        if self._turns.random() < _RETURN_SHARE:
            await self._come_back()
            return
        name = f"{self._mine}-{rng.choice('abcd')}"
        if name not in self._topics:
            await rng.choice((self._create, self._create, self._create, self._miss))(name)
            return
        steps = (self._create, self._destroy, self._subscribe, self._subscribe, self._unsubscribe, self._link,
                 self._link, self._link, self._unlink, self._unlink, self._look, self._publish, self._publish,
                 self._miss, self._proxies, self._invalid_request)
        await rng.choice(steps)(name)
        if rng.random() < 0.15:
            await self._list()

    # Requests, each with its expected answer.

    async def _request(self, request: str, body: Mapping[str, Any], wrong: str | None) -> Any:
        """Send a request and return its answer; ``wrong`` is the expected error."""
        answer = await self._ask_all(request, body)
        said = answer.get("x-error")
        if said == "unknown":
            raise ConnectionBroken("its outcome is unknown")
        if said != wrong:
            raise Mismatch(f"{request} was answered by {said or 'yes'}, not by {wrong or 'yes'} ({dict(body)})")
        self.used[request] = self.used.get(request, 0) + 1
        return json.loads(answer["x-answer"]) if said is None and "x-answer" in answer else None

    async def _create(self, name: str) -> None:
        await self._request("create", {"topic": name}, "topic-exists" if name in self._topics else None)
        self._topics.setdefault(name, ModelTopic())
        await self._look(name)

    async def _destroy(self, name: str) -> None:
        await self._request("destroy", {"topic": name}, None)
        del self._topics[name]
        for topic in self._topics.values():
            topic.links.pop(name, None)

    async def _subscribe(self, name: str) -> None:
        rng, topic = self._rng, self._topics[name]
        ident = f"{self._mine}-{rng.choice('xyz')}"
        how = (_UNREACHABLE, rng.choice((-1, -1, -1, 3)), rng.choice(("ordered", "unordered")))
        body = {"topic": name, "subscriber": ident, "endpoint": how[0], "retryCount": how[1], "reliability": how[2]}
        await self._request("subscribe", body, "already-subscribed" if ident in topic.subscribers else None)
        topic.subscribers.setdefault(ident, how)

    async def _unsubscribe(self, name: str) -> None:
        topic = self._topics[name]
        ident = self._rng.choice([*sorted(topic.subscribers), f"{self._mine}-w"])
        known = ident in topic.subscribers
        await self._request("unsubscribe", {"topic": name, "subscriber": ident},
                            None if known else "no-such-subscriber")
        topic.subscribers.pop(ident, None)

    async def _link(self, name: str) -> None:
        target, cost = f"{self._mine}-{self._rng.choice('abcd')}", self._rng.choice((0, 0, 5))
        topic = self._topics[name]
        wrong = ("no-such-topic" if target not in self._topics else "link-exists" if target in topic.links
                 else "link-to-itself" if target == name else None)
        await self._request("link", {"topic": name, "target": target, "cost": cost}, wrong)
        if wrong is None:
            topic.links[target] = cost

    async def _unlink(self, name: str) -> None:
        topic = self._topics[name]
        target = self._rng.choice([*sorted(topic.links), f"{self._mine}-{self._rng.choice('abcd')}"])
        known = target in topic.links
        await self._request("unlink", {"topic": name, "target": target}, None if known else "no-such-link")
        topic.links.pop(target, None)
        await self._look(name)

    async def _look(self, name: str) -> None:
        topic = self._topics[name]
        found = await self._request("subscribers", {"topic": name}, None)
        if found != [[ident, *how] for ident, how in sorted(topic.subscribers.items())]:
            raise Mismatch(f"a topic has other subscribers than were subscribed ({found})")
        links = await self._request("links", {"topic": name}, None)
        if links != [[target, cost] for target, cost in sorted(topic.links.items())]:
            raise Mismatch(f"a topic has other links than were made ({links})")

    async def _miss(self, name: str) -> None:
        """Check that a request about a missing topic is refused."""
        gone = name if name not in self._topics else f"{self._mine}-never"
        request = self._rng.choice(("retrieve", "subscribers", "links", "destroy", "subscribe"))
        about = {"subscriber": f"{self._mine}-x", "endpoint": _UNREACHABLE} if request == "subscribe" else {}
        await self._request(request, {"topic": gone, **about}, "no-such-topic")

    async def _proxies(self, name: str) -> None:
        """Check that publishers' proxies name all replicas, or the one that handled the request."""
        for request in ("publisher", "non-replicated-publisher"):
            found = await self._request(request, {"topic": name}, None)
            one = request != "publisher" or self.options.get("publisher_endpoints") == "one"
            addresses = [self._connection.peer] if one else self.addresses
            if found != [f"{host}:{port}" for host, port in filter(None, addresses)]:
                raise Mismatch(f"{request} names {found}, not {addresses}")

    async def _invalid_request(self, name: str) -> None:
        """Check that an invalid request is refused with the right error."""
        request, about, wrong = self._rng.choice(_INVALID_REQUESTS)
        whole = {"topic": name, "subscriber": f"{self._mine}-w", "endpoint": _UNREACHABLE, "target": f"{self._mine}-w"}
        await self._request(request, {**whole, **about}, wrong)
        about = {"destination": f"/topic/{name}", "content-type": "text/plain", "x-cost": self._rng.choice(_BAD_COSTS)}
        answer = await self._connection.request("SEND", about, b"costs", self.op_timeout)
        if (said := answer.get("x-error")) != "bad-cost":
            raise Mismatch(f"an event whose cost makes no sense was answered by {said or 'yes'}")

    async def _be_refused(self) -> None:
        """Send a command that makes no sense here: it is refused, and the connection ends."""
        command, headers = self._others.choice(_INVALID_COMMANDS)
        connection = self._connection
        try:
            await connection.request(command, headers, b"", self.op_timeout)
        except Rejected:
            await self._reconnect()
            return
        raise Mismatch(f"{command} {dict(headers)} was confirmed")

    async def _hurry(self) -> None:
        """Send requests without waiting for answers: each is carried out, and answered, after the one before."""
        self._hurries += 1
        name = f"{self._mine}-h{self._hurries}"
        target, about = f"{name}-t", {"topic": name, "subscriber": name, "endpoint": _UNREACHABLE}
        steps: list[tuple[str, Mapping[str, Any], Any]] = [("create", about, None), ("create", {"topic": target}, None)]
        for _ in range(self._others.randint(1, _MAX_ROUNDS)):
            steps += [
                ("subscribe", about, None), ("subscribers", about, [[name, _UNREACHABLE, 0, "unordered"]]),
                ("link", {"topic": name, "target": target}, None), ("links", about, [[target, 0]]),
                ("unlink", {"topic": name, "target": target}, None), ("unsubscribe", about, None),
                ("subscribers", about, []),
            ]  # fmt: skip
        steps += [("destroy", about, None), ("destroy", {"topic": target}, None)]
        answered: list[int] = []

        async def ask(place: int, request: str, body: Mapping[str, Any], expected: Any) -> None:
            found = await self._request(request, body, None)
            answered.append(place)
            if expected is not None and found != expected:
                raise Mismatch(f"{request} behind others was answered by {found}, not by {expected}")

        asking = [asyncio.ensure_future(ask(place, *step)) for place, step in enumerate(steps)]
        found = await asyncio.gather(*asking, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        if answered != sorted(answered):
            raise Mismatch(f"requests were answered in another order than they were sent ({answered})")

    async def _publish(self, name: str) -> None:
        """Publish an event to subscribers that are unreachable and are never removed: it waits until they
        unsubscribe."""
        topic = self._topics[name]
        reached = [topic, *(self._topics[target] for target in topic.links)]
        if any(retries != -1 for each in reached for _, retries, _ in each.subscribers.values()):
            return
        await self._send(name, b"to nobody")

    async def _come_back(self) -> None:
        """Let an unreachable subscriber be removed by a replica that has an event for it, then subscribe it again. The
        second subscription is another one and must remain, even if a replica learns late that the first has no attempts
        left.

        Each time a new topic is used, since the event may be late as well.
        """
        name = f"{self._mine}-v{self._returned}"
        if name in self._topics and (how := self._topics[name].subscribers.get(name)) is not None:
            if how[1] == 0:
                await self._return(name)
                return
            await self._look(name)
            await self._destroy(name)
            self._returned += 1
            name = f"{self._mine}-v{self._returned}"
        if name not in self._topics:
            await self._create(name)
        await self._request("subscribe", {**_about(name), "retryCount": 0}, None)
        self._topics[name].subscribers[name] = (_UNREACHABLE, 0, "unordered")

    async def _return(self, name: str) -> None:
        await self._publish_elsewhere(name)
        try:
            said = (await self._ask("unsubscribe", _about(name))).get("x-error")
            if said not in (None, "no-such-subscriber"):
                raise ConnectionBroken(f"the outcome for a subscriber is unknown ({said})")
            await self._request("subscribe", {**_about(name), "retryCount": -1}, None)
        except NotSent as error:
            raise ConnectionBroken(f"{error}, and it may have been removed") from None
        self._topics[name].subscribers[name] = (_UNREACHABLE, -1, "unordered")
        await self._look(name)

    async def _be_a_stranger(self) -> None:
        """Log in on another connection, in a wrong way or a right one."""
        headers, body = json_request(TOPIC_MANAGER, "create", {"topic": f"{self._mine}-s"})
        if self._strangers.come(0.2):
            await self._strangers.administer()
            return
        await self._strangers.visit(Frame("SEND", {**headers, "receipt": "behind a login"}, body))

    async def _publish_elsewhere(self, name: str) -> None:
        """Publish at any replica; it does not matter whether the event arrives there."""
        other = StompConnection([self._turns.choice(self.addresses)], self.settings)
        about = {"destination": f"/topic/{name}", "content-type": "text/plain"}
        with contextlib.suppress(ConnectionBroken, NotSent, Rejected, TimeoutError):
            await other.open(self.open_timeout)
            await other.request("SEND", about, b"to nobody", self.op_timeout)
        await other.abort()

    async def _retried(self) -> None:
        """Check that a subscriber that takes each event at its last attempt but one remains, and that one that takes
        none is removed, but not before all its attempts have failed."""
        name, ident = f"{self._mine}-r", f"{self._mine}-r"
        subscriber = FailingSubscriber(*self._endpoint, _RETRY_COUNT - 1)
        try:
            await subscriber.open()
        except OSError as error:
            raise ConnectionBroken(f"can't listen on {subscriber.endpoint}: {error.strerror}") from None
        try:
            await self._create(name)
            how = (subscriber.endpoint, _RETRY_COUNT, "ordered")
            body = {"topic": name, "subscriber": ident, "endpoint": how[0], "retryCount": how[1], "reliability": how[2]}
            await self._request("subscribe", body, None)
            self._topics[name].subscribers[ident] = how
            for count, event in enumerate((b"1", b"2"), 1):
                await self._send(name, event)
                if not await self._comes(subscriber.has_taken(count)):
                    raise Mismatch("an event did not come to a subscriber that has attempts left")
            await self._look(name)
            subscriber.failing = None
            await self._send(name, b"3")
            del self._topics[name].subscribers[ident]
            if not await self._comes(lambda: subscriber.attempts > _RETRY_COUNT):
                found = await self._request("subscribers", {"topic": name}, None)
                raise Mismatch("a subscriber is given up before its attempts are used up "
                               f"({subscriber.attempts} failed, retryCount is {_RETRY_COUNT}, subscribed are {found})")
            await self._goes(name)
            await self._destroy(name)
            self.used[RETRIES] = self.used.get(RETRIES, 0) + 1
        finally:
            subscriber.close()

    async def _overflow(self) -> None:
        """Check that of the events for a subscriber that can't be reached the last ones wait, as many as may."""
        most = int(self.options.get("max_waiting", 0))
        if not 0 < most <= _FEW:
            return
        name = f"{self._mine}-o"
        subscriber = FailingSubscriber(*self._endpoint, 0)
        await self._create(name)
        body = {"topic": name, "subscriber": name, "endpoint": subscriber.endpoint, "retryCount": -1,
                "reliability": "ordered"}  # fmt: skip
        await self._request("subscribe", body, None)
        events = [b"%d" % number for number in range(most + 2)]
        for event in events:
            await self._send(name, event)
        try:
            await subscriber.open()
            if not await self._comes(lambda: subscriber.taken[-1:] == events[-1:]):
                raise Mismatch("the last event did not come to a subscriber that is reached again")
        except OSError as error:
            raise ConnectionBroken(f"can't listen on {subscriber.endpoint}: {error.strerror}") from None
        finally:
            subscriber.close()
        if subscriber.taken != events[-most:]:
            raise Mismatch(f"of {len(events)} events the last {most} were to wait, and {len(subscriber.taken)} came")
        await self._request("destroy", {"topic": name}, None)

    async def _send(self, name: str, body: bytes) -> None:
        about = {"destination": f"/topic/{name}", "content-type": "text/plain"}
        answer = await self._connection.request("SEND", about, body, self.op_timeout)
        if (said := answer.get("x-error")) is not None:
            raise Mismatch(f"an event to a topic that is there was answered by {said}")

    async def _comes(self, so: Callable[[], bool]) -> bool:
        """Wait until a condition holds; return whether it does."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _DELIVERY_SECONDS
        while not so():
            if loop.time() > until:
                return False
            await asyncio.sleep(_CHECK_SECONDS)
        return True

    async def _goes(self, name: str) -> None:
        """Wait until the topic has no subscriber left."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _DELIVERY_SECONDS
        while found := await self._request("subscribers", {"topic": name}, None):
            if loop.time() > until:
                raise Mismatch(f"a subscriber whose attempts are used up is not removed ({found})")
            await asyncio.sleep(_CHECK_SECONDS)

    async def _list(self) -> None:
        if [name for name in await self._listed() if name.startswith(f"{self._mine}-")] != sorted(self._topics):
            raise Mismatch("other topics are listed than there are")

    async def _end_what_others_left(self) -> None:
        """Destroy the topics of former processes of this thread, which no other process would destroy."""
        for name in await self._listed():
            if name.startswith(f"{self._mine.partition('-')[0]}-"):
                await self._ask("destroy", {"topic": name})

    async def _part(self) -> None:
        """DISCONNECT while no fault is active, and check that it is confirmed."""
        try:
            await self._connection.request("DISCONNECT", {}, b"", self.op_timeout)
        except Rejected as error:
            raise Mismatch(f"DISCONNECT was refused ({error})") from None
        except (ConnectionBroken, TimeoutError) as error:
            await self._connection.abort()
            await self._reconnect()
            await self._listed()  # a replica answers
            raise Mismatch(f"DISCONNECT was not confirmed ({error})") from None
        await self._connection.abort()

    async def _listed(self) -> list[str]:
        answer = await self._ask_all("list", {})
        if "x-error" in answer:
            raise ConnectionBroken("it could not be listed")
        found: list[str] = json.loads(answer["x-answer"])
        return found


def _about(name: str) -> dict[str, Any]:
    """Return the body of a request about an unreachable subscriber, whose topic has the same name."""
    return {"topic": name, "subscriber": name, "endpoint": _UNREACHABLE}


class TopicDialogueWorkload(PrivateDialoguesWorkload):
    """Clients of the topic manager, each with private topics."""

    name = "topic-dialogue"
    needs = ("topic manager",)
    draws = DRAWS
    drawn = 2
    share = 1 / 3  # each dialogue has about four requests
    options = (
        Option("talkers", 4, "threads that talk with the topic manager", load=True),
        Option("op_timeout", 3.0, "seconds after which a request's outcome is unknown"),
        Option("open_timeout", 2.0, "seconds a new client tries to connect before its operation fails"),
        CLIENT_HEARTBEAT,
        CLIENT_ORDER,
        Option("drain_limit", 60.0, "seconds that the last queries may take in all"),
        Option("min_ok", 15, "dialogues that went as modelled below which the verdict is unknown"),
    )
    guarantees = ("dialogue", "elections")

    def __init__(self) -> None:
        super().__init__()
        self._made: list[TopicDialogueClient] = []

    def used(self) -> Mapping[str, int]:
        """Return the number of requests about topics, subscribers and links, of subscribers that used up their
        attempts, and of continuation pages."""
        retried = sum(client.used.get(RETRIES, 0) for client in self._made)
        asked = sum(count for client in self._made for count in client.used.values())
        pages = sum(client.pages for client in self._made)
        return {"topic-dialogue": asked - retried, RETRIES: retried, PAGES: pages}

    def client(self, cluster: Cluster, thread: int, host: str) -> Client:
        """Return a client for one process of a thread; it tries the replica nearest to its host first."""
        mine = self.next_prefix(thread)
        self._made.append(TopicDialogueClient(cluster, host, thread, cluster.test.rng(f"topics/{mine}"), mine))
        return self._made[-1]
