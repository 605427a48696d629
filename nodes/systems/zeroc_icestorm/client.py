"""A client of IceStorm: publishes by the proxies that a topic gives, subscribes with a servant of its own.

An event is an invocation of ``event`` with one string of bytes. It is sent and taken as the encapsulation that Ice
transfers, so that no Slice has to be compiled. (Ice manual 3.7: "IceStorm Interfaces", "Dynamic Invocation and
Dispatch", "Data Encoding for Encapsulations".)
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Mapping
from typing import Any

from stormproof.contracts.client import Event, NotDone, Subscriber

INSTANCE = "Stormproof"
"""``IceStorm.InstanceName``: the category of all its objects."""
MANAGER_PORT, PUBLISH_PORT, NODE_PORT = 10000, 10001, 10002
ENDLESS = 1_000
"""So many retries mean "for ever": ``retryCount`` -1."""
_OPERATION = "event"
_EMPTY = struct.pack("<iBB", 6, 1, 1)
_LONG = 255
"""A size from which on it takes five bytes."""
_PROPERTIES = {
    # What was sent is not sent again, so that an event is never two; and whoever can't be reached is given up soon.
    "Ice.RetryIntervals": "-1", "Ice.Override.ConnectTimeout": "1000", "Ice.Default.InvocationTimeout": "5000",
    # Without it, leaving waits a minute for a peer that is gone; the harness ends its connections itself.
    "Ice.Override.CloseTimeout": "500", "Ice.ACM.Client": "0", "Ice.Warn.Connections": "0",
    # One thread delivers, so that a subscriber has one event at a time, whoever sends it.
    "Ice.ThreadPool.Server.Size": "1", "Ice.ThreadPool.Server.SizeMax": "1",
}  # fmt: skip


class IceStormConnection:
    """One publisher, or one subscriber with the servant that replicas connect to.

    A publisher is non-replicated: its proxy has the endpoint of one replica, and never goes to another by itself.
    ``copies``: it publishes each event on so many replicas, and counts it as confirmed when all have it; subscribers
    then drop what they have had. ``hosts`` are the addresses of all replicas.
    """

    def __init__(self, hosts: tuple[str, ...], copies: int) -> None:
        self._hosts, self._copies = hosts, copies
        self._loop = asyncio.get_running_loop()
        self._ice: Any = None
        self._manager: Any = None
        self._place = ("", 0, "")
        self._publishers: dict[str, list[Any]] = {}
        self._servant: Any = None
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    async def connect(self, host: str, port: int, local: str) -> None:
        """Have that replica's topic manager answer; a servant that is there already stays."""
        import Ice
        import IceStorm

        self._place = (host, port, local)
        self._publishers.clear()
        if self._ice is None:
            self._ice = Ice.initialize(_initialization({"Ice.Default.SourceAddress": local}))
        self._manager = IceStorm.TopicManagerPrx.uncheckedCast(self._manager_at(host))
        await self._told(self._manager.ice_pingAsync())

    async def create(self, topic: str) -> None:
        """Make a topic."""
        import IceStorm

        try:
            await self._told(self._manager.createAsync(topic))
        except IceStorm.TopicExists:
            pass

    async def link(self, source: str, target: str) -> None:
        """Link two topics."""
        import IceStorm

        to = await self._topic(self._manager, target)
        try:
            await self._told((await self._topic(self._manager, source)).linkAsync(to, 0))
        except IceStorm.LinkExists:
            pass

    async def subscribe(self, topic: str, subscriber: Subscriber) -> None:
        """Subscribe the servant, which is made at the first time."""
        import Ice
        import IceStorm

        if self._servant is None:
            adapter = self._ice.createObjectAdapterWithEndpoints(
                subscriber.name, f"tcp -h {self._place[2]} -p {subscriber.port}")
            self._servant = adapter.add(self._new_servant(subscriber.work), Ice.Identity(subscriber.name))
            adapter.activate()
        retries = -1 if subscriber.retries >= ENDLESS else subscriber.retries
        quality = {"retryCount": str(retries), "reliability": "ordered" if subscriber.ordered else ""}
        try:
            await self._told((await self._topic(self._manager, topic))
                             .subscribeAndGetPublisherAsync(quality, self._servant))
        except IceStorm.AlreadySubscribed:
            pass
        except (IceStorm.BadQoS, IceStorm.InvalidSubscriber) as error:
            raise NotDone(str(error)) from error

    async def publish(self, topic: str, body: bytes) -> None:
        """Publish by two-way invocations; that they return means that the replicas have queued the event."""
        import Ice

        if topic not in self._publishers:
            self._publishers[topic] = await self._publishers_of(topic)
        calls = [self._told(proxy.ice_invokeAsync(_OPERATION, Ice.OperationMode.Normal, pack(body)))
                 for proxy in self._publishers[topic]]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        errors = [end for end in ends if isinstance(end, BaseException)]
        if errors:
            self._publishers.pop(topic, None)
            maybe = [error for error in errors if not isinstance(error, NotDone)]
            if not maybe and len(errors) < len(ends):  # some have it
                raise ConnectionError(f"{len(errors)} of {len(ends)} replicas have not taken it: {errors[0]}")
            raise (maybe or errors)[0]

    async def take(self, timeout: float) -> Event | None:
        """The next event that a replica delivered."""
        try:
            return await asyncio.wait_for(self._events.get(), timeout)
        except TimeoutError:
            return None

    async def close(self) -> None:
        """Leave; in a thread, since that waits for peers."""
        ice, self._ice = self._ice, None
        if ice is not None:
            await self._loop.run_in_executor(None, ice.destroy)

    def _manager_at(self, host: str) -> Any:
        return self._ice.stringToProxy(f"{INSTANCE}/TopicManager:tcp -h {host} -p {MANAGER_PORT}")

    def _from_here(self, proxy: Any) -> Any:
        """A proxy that came over the network, made again: ``Ice.Default.SourceAddress`` is for those that are made of
        text alone, and without it the client would not be on its side of a partition."""
        return type(proxy).uncheckedCast(self._ice.stringToProxy(self._ice.proxyToString(proxy)))

    async def _topic(self, manager: Any, name: str) -> Any:
        """A topic, as that one replica has it: the proxies that it gives out have the endpoints of all.

        Raises:
            NotDone: there is none.
        """
        import IceStorm

        try:
            topic = await self._told(manager.retrieveAsync(name))
        except IceStorm.NoSuchTopic as error:
            raise NotDone(f"there is no topic {name}") from error
        return self._from_here(topic.ice_endpoints(manager.ice_getEndpoints()))

    async def _publishers_of(self, topic: str) -> list[Any]:
        """A topic's non-replicated publishers: of the replica that we are connected to, and of the next ones that
        answer, as many as there are to be copies.

        Raises:
            NotDone: there are not enough; nothing has been sent.
        """
        import IceStorm

        first = self._hosts.index(self._place[0])
        found: list[Any] = []
        trouble: Exception | None = None
        for host in (*self._hosts[first:], *self._hosts[:first]):
            try:
                manager = IceStorm.TopicManagerPrx.uncheckedCast(self._manager_at(host))
                publisher = await self._told((await self._topic(manager, topic)).getNonReplicatedPublisherAsync())
                found.append(self._from_here(publisher))
            except Exception as error:  # whatever it is: another replica may answer
                trouble = error
                if not found:
                    break
            if len(found) == self._copies:
                return found
        raise NotDone(f"{len(found)} of {self._copies} publishers are to be had: {trouble}")

    async def _told(self, future: Any) -> Any:
        """What an invocation gives; one that Ice says was never carried out is NotDone."""
        import Ice

        try:
            return await Ice.wrap_future(future, loop=self._loop)
        except (Ice.ConnectFailedException, Ice.ConnectTimeoutException, Ice.DNSException, Ice.RequestFailedException,
                Ice.NoEndpointException) as error:
            raise NotDone(f"{type(error).__name__}") from error

    def _new_servant(self, work: float) -> Any:
        import Ice

        had: set[bytes] = set()

        class Servant(Ice.Blobject):  # type: ignore[misc]
            """Takes events; what it returns acknowledges them."""

            def ice_invoke(servant, parameters: bytes, current: Any) -> tuple[bool, bytes]:
                body = unpack(parameters)
                if self._copies > 1 and body in had:
                    return True, _EMPTY
                had.add(body)
                if work:
                    time.sleep(work)  # in a thread of Ice's, the one that delivers
                event = Event(body, current.con.getInfo().remoteAddress)
                try:
                    self._loop.call_soon_threadsafe(self._events.put_nowait, event)
                except RuntimeError:  # the loop has been closed
                    return False, _EMPTY
                return True, _EMPTY

        return Servant()


def pack(body: bytes) -> bytes:
    """The encapsulation of one sequence of bytes."""
    size = bytes([len(body)]) if len(body) < _LONG else struct.pack("<Bi", _LONG, len(body))
    return struct.pack("<iBB", 6 + len(size) + len(body), 1, 1) + size + body


def unpack(encapsulation: bytes) -> bytes:
    """The sequence of bytes in an encapsulation."""
    start = 7 if encapsulation[6] < _LONG else 11
    return bytes(encapsulation[start:])


def _initialization(properties: Mapping[str, str]) -> Any:
    import Ice

    data = Ice.InitializationData()
    data.properties = Ice.createProperties()
    for name, value in {**_PROPERTIES, **properties}.items():
        data.properties.setProperty(name, value)
    return data
