"""A client of IceStorm: publishes by the proxies that a topic provides, and subscribes with its own servant.

An event is an invocation of ``event`` with one sequence of bytes. It is sent and received as the encapsulation that Ice
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
"""This number of retries means "forever": ``retryCount`` -1."""
_OPERATION = "event"
_EMPTY = struct.pack("<iBB", 6, 1, 1)
_LONG = 255
"""The size from which on the encoded size takes five bytes."""
_PROPERTIES = {
    # Sent invocations are not repeated, so that an event is never duplicated, and an unreachable peer is dropped soon.
    "Ice.RetryIntervals": "-1", "Ice.Override.ConnectTimeout": "1000", "Ice.Default.InvocationTimeout": "5000",
    # Without it, closing waits a minute for a lost peer; the harness ends its connections itself.
    "Ice.Override.CloseTimeout": "500", "Ice.ACM.Client": "0", "Ice.Warn.Connections": "0",
    # One thread delivers, so that a subscriber has one event at a time, regardless of the sender.
    "Ice.ThreadPool.Server.Size": "1", "Ice.ThreadPool.Server.SizeMax": "1",
}  # fmt: skip


class IceStormConnection:
    """One publisher, or one subscriber with the servant to which replicas connect.

    A publisher is non-replicated: its proxy has the endpoint of one replica, and never switches to another by itself.
    ``copies``: it publishes each event on this number of replicas, and considers it confirmed when all have it;
    subscribers then drop duplicates. ``hosts`` are the addresses of all replicas.
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
        """Connect to that replica's topic manager; an existing servant stays."""
        import Ice
        import IceStorm

        self._place = (host, port, local)
        self._publishers.clear()
        if self._ice is None:
            self._ice = Ice.initialize(_initialization({"Ice.Default.SourceAddress": local}))
        self._manager = IceStorm.TopicManagerPrx.uncheckedCast(self._manager_at(host))
        await self._told(self._manager.ice_pingAsync())

    async def create(self, topic: str) -> None:
        """Create a topic."""
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
        """Subscribe the servant, which is created by the first subscription."""
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
        """Publish by two-way invocations; their return means that the replicas have queued the event."""
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
            if not maybe and len(errors) < len(ends):  # some replicas have it
                raise ConnectionError(f"{len(errors)} of {len(ends)} replicas have not taken it: {errors[0]}")
            raise (maybe or errors)[0]

    async def take(self, timeout: float) -> Event | None:
        """Return the next event that a replica delivered."""
        try:
            return await asyncio.wait_for(self._events.get(), timeout)
        except TimeoutError:
            return None

    async def close(self) -> None:
        """Disconnect; in a thread, since that waits for peers."""
        ice, self._ice = self._ice, None
        if ice is not None:
            await self._loop.run_in_executor(None, ice.destroy)

    def _manager_at(self, host: str) -> Any:
        return self._ice.stringToProxy(f"{INSTANCE}/TopicManager:tcp -h {host} -p {MANAGER_PORT}")

    def _from_here(self, proxy: Any) -> Any:
        """Recreate a proxy that arrived over the network: ``Ice.Default.SourceAddress`` applies only to proxies created
        from text, and without it the client would not be on its side of a partition."""
        return type(proxy).uncheckedCast(self._ice.stringToProxy(self._ice.proxyToString(proxy)))

    async def _topic(self, manager: Any, name: str) -> Any:
        """Return a topic on this one replica: the proxies that it provides have the endpoints of all.

        Raises:
            NotDone: the topic does not exist.
        """
        import IceStorm

        try:
            topic = await self._told(manager.retrieveAsync(name))
        except IceStorm.NoSuchTopic as error:
            raise NotDone(f"there is no topic {name}") from error
        return self._from_here(topic.ice_endpoints(manager.ice_getEndpoints()))

    async def _publishers_of(self, topic: str) -> list[Any]:
        """Return a topic's non-replicated publishers: of the connected replica, and of the next ones that answer, one
        for each copy.

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
            except Exception as error:  # any error: another replica may answer
                trouble = error
                if not found:
                    break
            if len(found) == self._copies:
                return found
        raise NotDone(f"{len(found)} of {self._copies} publishers are to be had: {trouble}")

    async def _told(self, future: Any) -> Any:
        """Return the result of an invocation; raises NotDone if Ice reports that it was never carried out."""
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
            """Receives events; its return acknowledges them."""

            def ice_invoke(servant, parameters: bytes, current: Any) -> tuple[bool, bytes]:
                body = unpack(parameters)
                if self._copies > 1 and body in had:
                    return True, _EMPTY
                had.add(body)
                if work:
                    time.sleep(work)  # in a thread of Ice, the one that delivers
                event = Event(body, current.con.getInfo().remoteAddress)
                try:
                    self._loop.call_soon_threadsafe(self._events.put_nowait, event)
                except RuntimeError:  # the loop has been closed
                    return False, _EMPTY
                return True, _EMPTY

        return Servant()


def pack(body: bytes) -> bytes:
    """Return the encapsulation of one sequence of bytes."""
    size = bytes([len(body)]) if len(body) < _LONG else struct.pack("<Bi", _LONG, len(body))
    return struct.pack("<iBB", 6 + len(size) + len(body), 1, 1) + size + body


def unpack(encapsulation: bytes) -> bytes:
    """Return the sequence of bytes in an encapsulation."""
    start = 7 if encapsulation[6] < _LONG else 11
    return bytes(encapsulation[start:])


def _initialization(properties: Mapping[str, str]) -> Any:
    import Ice

    data = Ice.InitializationData()
    data.properties = Ice.createProperties()
    for name, value in {**_PROPERTIES, **properties}.items():
        data.properties.setProperty(name, value)
    return data
