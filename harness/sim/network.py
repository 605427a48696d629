"""The simulated network: hosts, listeners, links with delays, directed cuts, and TCP connections over them.

A packet on a cut link is lost and counted; a packet on a link with conditions may be lost, delayed or refused, and is
counted. The effect on TCP is imitated: data is retransmitted after 0.2 s, 0.4 s, 0.8 s...; connection attempts are
repeated after 1 s, 2 s, 4 s... A connection therefore stalls, and recovers some time after the heal. A segment for a
connection that no longer exists is answered by a reset.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.sim.latency import LatencyModel
from harness.sim.loop import SimLoop
from harness.sim.process import DEAD, Handle, Resource, SimProcess
from harness.sim.tcp import Endpoint, Pipe, Sent
from harness.sim.transport import SimTransport
from stormproof.contracts.backend import Link, LinkConditions
from stormproof.contracts.topology import endpoint, machine_of

Address = tuple[str, int]
Factory = Callable[[], asyncio.BaseProtocol]

CONTROL = "control"
"""The harness's own endpoint, which no cut touches."""

FIRST_PORT = 32768
HEADERS = 66
"""Bytes of a packet in addition to its data (Ethernet, IP, TCP)."""
CONNECT_RETRY = 1.0
CONNECT_ATTEMPTS = 7
UNREACHABLE_SECONDS = 3.0
"""Seconds until a sender learns that no machine on its network holds an address."""


class SimListener(Resource):
    """A listening socket, which looks like an ``asyncio.Server`` to its creator."""

    def __init__(self, network: Network, address: Address, key: Address, factory: Factory,
                 owner: SimProcess | None) -> None:
        """``key`` is its key among the listeners; on a floating address, each machine's listener has a separate key."""
        self.address, self.key = address, key
        self.factory = factory
        self.owner = owner
        self.context = contextvars.copy_context()
        self.sockets = (_ListeningSocket(address),)
        self._network = network
        if owner is not None:
            owner.resources[self] = None

    def close(self) -> None:
        """Stop listening; accepted connections live on."""
        self._network.listeners.pop(self.key, None)
        if self.owner is not None:
            self.owner.resources.pop(self, None)

    def is_serving(self) -> bool:
        """Return whether the socket accepts connections."""
        return self._network.listeners.get(self.key) is self

    async def wait_closed(self) -> None:
        """Return at once: there is nothing to wait for."""

    def described(self) -> str:
        """Return the address on which it listens."""
        return "a listener at {}:{}".format(*self.address)

    def owner_ended(self, powerless: bool) -> None:
        """Close the socket, as the system does."""
        self._network.listeners.pop(self.key, None)


@dataclass(frozen=True)
class _ListeningSocket:
    address: Address

    def getsockname(self) -> Address:
        """Return the address on which the socket listens."""
        return self.address


class FloatingAddress:
    """An address that machines of a network hold for a while.

    ``holders`` are those machines; ``route`` is the machine to which its packets go. The last machine to announce the
    address is the route, even after it has lost the address: packets are then lost there. A machine that loses the
    address no longer answers on connections to it.
    """

    def __init__(self, loop: SimLoop) -> None:
        self.holders: dict[str, Handle] = {}
        """Machine -> the timer that takes the address away from it."""
        self.route = ""
        self._loop = loop
        self._accepted: dict[str, list[Endpoint]] = {}

    def give(self, machine: str, seconds: float) -> None:
        """Give the address to a machine for ``seconds``, unless it is given again meanwhile."""
        if machine in self.holders:
            self.holders[machine].cancel()
        self.holders[machine] = self._loop.after(seconds, self.take, machine)

    def take(self, machine: str) -> None:
        """Take the address from a machine."""
        timer = self.holders.pop(machine, None)
        if timer is None:
            return
        timer.cancel()
        for connection in self._accepted.pop(machine, []):
            connection.forgotten = True
            connection.vanish()

    def announce(self, machine: str) -> None:
        """Route packets to a machine from now on, if it holds the address."""
        if machine in self.holders:
            self.route = machine

    def accepted(self, machine: str, connection: Endpoint) -> None:
        """Register a connection that a machine accepted on the address."""
        living = [each for each in self._accepted.get(machine, []) if not each.gone]
        self._accepted[machine] = [*living, connection]


class Network:
    """All hosts and links of a run. ``hosts`` maps addresses to names; delays are drawn from ``rng``."""

    def __init__(self, loop: SimLoop, hosts: Mapping[str, str], rng: random.Random,
                 floating: Sequence[str] = (), distances: Mapping[str, float] | None = None) -> None:
        """``floating`` lists the addresses that move between machines; ``distances`` are those of ``Topology``."""
        self.loop = loop
        self.floating = {address: FloatingAddress(loop) for address in floating}
        self.listeners: dict[Address, SimListener] = {}
        self.latency = LatencyModel.draw(rng)
        self.rng = rng
        self._hosts = dict(hosts)
        self._addresses = {name: address for address, name in hosts.items()}
        self._cut: frozenset[Link] = frozenset()
        self._dropped: dict[Link, int] = {}
        self.sent: dict[Link, Sent] = {}
        """Counts of what programs have sent so far, on each link."""
        self.dialled: dict[Link, int] = {}
        """The number of connection attempts so far, on each link."""
        self._conditions: dict[Link, LinkConditions] = {}
        self._affected: dict[Link, int] = {}
        self._queues: dict[Link, deque[tuple[Pipe, bytes]]] = {}
        self._dark: dict[str, None] = {}
        self._delays: dict[Link, float] = {}
        self._distances = dict(distances or {})
        self.calm = True
        """Whether no link is cut or has conditions, and no host is without power."""
        self.tap: Callable[[Pipe, bytes], None] | None = None
        """Called with all bytes that programs hand to their kernels."""
        self._next_port = FIRST_PORT
        loop.network = self

    def set_cut(self, cut: Iterable[Link]) -> None:
        """Drop every packet on exactly these links from now on."""
        self._cut = frozenset(cut)
        self._note_calm()
        self._dropped = {link: self._dropped.get(link, 0) for link in sorted(self._cut)}

    @property
    def cut(self) -> frozenset[Link]:
        """The cut links; the object's identity changes only when they are set."""
        return self._cut

    def dropped(self) -> dict[Link, int]:
        """Return the packets lost so far on each link that is cut now."""
        return dict(self._dropped)

    def set_conditions(self, conditions: Mapping[Link, LinkConditions]) -> None:
        """Set the conditions of links, and remove all others; release the chunks that are queued on slow links."""
        self._conditions = dict(conditions)
        self._note_calm()
        self._affected = {link: self._affected.get(link, 0) for link in conditions}
        queues, self._queues = self._queues, {}
        for waiting in queues.values():
            for pipe, chunk in waiting:
                pipe.depart(chunk)

    def affected_packets(self) -> dict[Link, int]:
        """Return the packets affected so far on each link that has conditions now."""
        return dict(self._affected)

    def set_power(self, host: str, on: bool) -> None:
        """Switch a host's power: without it, the host neither receives nor sends packets."""
        if on:
            self._dark.pop(host, None)
        else:
            self._dark[host] = None
            for address in self.floating.values():
                address.take(host)
        self._note_calm()

    def _note_calm(self) -> None:
        self.calm = not (self._cut or self._conditions or self._dark)

    def sent_on(self, link: Link) -> Sent:
        """Return the counters of what programs have sent on the link; the caller adds to them."""
        return self.sent.setdefault(link, Sent())

    def passes(self, link: Link) -> bool:
        """Return whether a packet on the link arrives now; count a lost one."""
        if self._cut and link in self._cut:
            self._dropped[link] += 1
            return False
        if self._dark and (link[0] in self._dark or link[1] in self._dark):
            return False
        condition = self._conditions.get(link) if self._conditions else None
        if condition is None:
            return True
        lost = condition.loss + (1 - condition.loss) * condition.corrupt  # A checksum reveals damaged packets.
        return not self._happens(link, lost)

    def refuses(self, link: Link) -> bool:
        """Return whether a middlebox answers a packet on the link with a reset."""
        condition = self._conditions.get(link) if self._conditions else None
        return condition is not None and self._happens(link, condition.reset)

    def delay(self, link: Link) -> float:
        """Return the delay of the next packet on the link, in seconds."""
        usual = self.usual_delay(link)
        condition = self._conditions.get(link) if self._conditions else None
        return usual if condition is None else usual + self._extra_delay(link, condition)

    def _extra_delay(self, link: Link, condition: LinkConditions) -> float:
        seconds = condition.delay
        if condition.jitter:
            seconds = max(0.0, seconds + condition.jitter * self.rng.uniform(-1, 1))
        if condition.delay or condition.jitter:
            self._affected[link] += 1
        if self._happens(link, condition.reorder):
            # TCP holds back early segments, so a reader sees reordering only as a delay.
            seconds += self.usual_delay(link)
        self._happens(link, condition.duplicate)  # TCP discards the second one.
        return seconds

    def _happens(self, link: Link, share: float) -> bool:
        if share <= 0 or self.rng.random() >= share:
            return False
        self._affected[link] += 1
        return True

    def shaped(self, pipe: Pipe, link: Link, chunk: bytes) -> bool:
        """Return whether the chunk has to queue on a slow link, which calls ``depart`` in its turn."""
        condition = self._conditions.get(link) if self._conditions else None
        if condition is None or not condition.rate:
            return False
        queue = self._queues.get(link)
        if queue is None:
            queue = self._queues[link] = deque()
        queue.append((pipe, chunk))
        if len(queue) == 1:
            self._next_on(link, queue, condition.rate)
        return True

    def _next_on(self, link: Link, queue: deque[tuple[Pipe, bytes]], rate: float) -> None:
        self._affected[link] += 1

        def through() -> None:
            if self._queues.get(link) is not queue:
                return
            pipe, chunk = queue.popleft()
            pipe.depart(chunk)
            if queue:
                self._next_on(link, queue, rate)

        self.loop.after((len(queue[0][1]) + HEADERS) / rate, through)

    def usual_delay(self, link: Link) -> float:
        """Return the delay of the next packet on the link without conditions, in seconds."""
        rng, latency = self.rng, self.latency
        base = self._delays.get(link)
        if base is None:
            here, there = (self._distances.get(machine_of(host), 0.0) for host in link)
            # Machines at one place are near to each other, wherever that place is.
            base = self._delays[link] = latency.base * rng.uniform(0.5, 1.5) + (0.0 if here == there else here + there)
        seconds = base - latency.jitter * math.log(1.0 - rng.random())
        if latency.spikes and rng.random() < latency.spikes:
            seconds += latency.spike * rng.random()
        return seconds

    # Connections.

    def listen(self, factory: Factory, host: str, port: int, owner: SimProcess | None) -> SimListener:
        """Listen on an address; raises OSError when it is taken."""
        address = (host, port or self._free_port())
        key = address
        if host in self.floating and owner is not None:
            key = _floating_key(address, owner.name)
        elif host not in self._hosts:
            raise OSError(99, f"{host} is not an address of a simulated host")
        if key in self.listeners:
            raise OSError(98, f"address {host}:{port} is in use")
        listener = self.listeners[key] = SimListener(self, address, key, factory, owner)
        return listener

    async def connect(self, factory: Factory, host: str, port: int, local: Address | None,
                      owner: SimProcess | None) -> tuple[SimTransport, asyncio.BaseProtocol]:
        """Connect as TCP does: refused by a host that does not listen, hanging while packets are lost.

        Raises:
            OSError: refused, unreachable for two minutes, or the host does not exist.
        """
        if host in self.floating and not self.floating[host].route:
            await asyncio.sleep(UNREACHABLE_SECONDS)
        target = self.whereabouts(host)
        if target is None:
            raise OSError(113, f"no route to the simulated host {host}")
        source = self._place(local, owner, target)
        if source not in self._addresses:
            raise OSError(101, f"{source.partition('@')[0]} is not on the network of {target}")
        self.dialled[source, target] = self.dialled.get((source, target), 0) + 1
        mine = (self._addresses[source], self._free_port())
        client = Endpoint(self, source, owner)
        answer: asyncio.Future[Endpoint] = self.loop.create_future()
        attempt = _Attempt(self, client, (host, port), mine, source, answer)
        attempt.send(CONNECT_RETRY, CONNECT_ATTEMPTS)
        try:
            server = await answer
        except BaseException:
            attempt.over = True
            client.vanish()
            # The error's traceback holds this frame, and the answer holds the error: a reference cycle, which is not
            # collected.
            del answer, attempt
            raise
        protocol = factory()
        transport = SimTransport(client, protocol, mine, (host, port), contextvars.copy_context())
        client.join(server)
        transport.begin()
        return transport, protocol

    def whereabouts(self, host: str) -> str | None:
        """Return the host to which packets for an address go now; None for nowhere."""
        return (self.floating[host].route or None) if host in self.floating else self._hosts.get(host)

    def listener(self, address: Address, machine: str) -> SimListener | None:
        """Return the listener on an address at the machine to which its packets go."""
        return self.listeners.get(_floating_key(address, machine) if address[0] in self.floating else address)

    def _place(self, local: Address | None, owner: SimProcess | None, target: str) -> str:
        """Return the endpoint that a connection comes from.

        A machine has an address on each network, and uses the one on the target's network.
        """
        if local is not None:
            return self._hosts[local[0]]
        if owner is None:
            return CONTROL
        _, at, network = target.partition("@")
        return endpoint(owner.name, network) if at else owner.name

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port


def _floating_key(address: Address, machine: str) -> Address:
    """Return the key of one machine's listener on a floating address."""
    return f"{address[0]}%{machine}", address[1]


class _Attempt:
    """One connection attempt: the handshake, repeated while its packets are lost."""

    def __init__(self, network: Network, client: Endpoint, address: Address, mine: Address, source: str,
                 answer: asyncio.Future[Endpoint]) -> None:
        self.over = False
        self._network = network
        self._client = client
        self._address = address
        self._mine = mine
        self._source = source
        self._answer = answer
        self._server: Endpoint | None = None
        self._connected = False

    @property
    def _over(self) -> bool:
        owner = self._client.owner
        return self.over or self._answer.done() or (owner is not None and owner.state == DEAD)

    def send(self, wait: float, left: int) -> None:
        """Send the first packet, and repeat it after ``wait`` seconds, then twice that, while no answer arrives."""
        if self._over:
            return
        loop = self._network.loop
        if left == 0:
            self._answer.set_exception(TimeoutError(110, "connection timed out"))
            return
        if target := self._network.whereabouts(self._address[0]):
            loop.after(self._network.delay((self._source, target)), self._arrived, target)
        loop.after(wait, self.send, 2 * wait, left - 1)

    def _arrived(self, target: str) -> None:
        network, floating = self._network, self._network.floating.get(self._address[0])
        if not network.passes((self._source, target)) or (floating is not None and target not in floating.holders):
            return
        listener = network.listener(self._address, target)
        if listener is not None and self._server is None and not self._over:
            self._server = self._accept(listener, target)
            if floating is not None:
                floating.accepted(target, self._server)
        back = (target, self._source)
        network.loop.after(network.delay(back), self._answered, self._server, back)

    def _accept(self, listener: SimListener, target: str) -> Endpoint:
        """Complete the handshake as the system does, even for a process that is paused."""
        server = Endpoint(self._network, target, listener.owner)
        server.join(self._client)
        context = listener.context.copy()
        self._network.loop.post(listener.owner, context, self._hand_over, listener, server, context)
        return server

    def _hand_over(self, listener: SimListener, server: Endpoint, context: contextvars.Context) -> None:
        transport = SimTransport(server, listener.factory(), self._address, self._mine, context.copy())
        transport.begin()

    def _answered(self, server: Endpoint | None, back: Link) -> None:
        if not self._network.passes(back):
            return
        if self._over:
            if server is not None and not self._connected:
                server.reset_by_peer()
            return
        if server is None:
            self._answer.set_exception(ConnectionRefusedError(111, f"{self._address[0]} refused"))
        else:
            self._connected = True
            self._answer.set_result(server)
