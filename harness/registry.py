"""Names that a user can type, each with a one-line summary and the object behind it.

The entries name their objects as ``module:attribute`` and import them when they are used, so listing
them costs nothing. ``stormproof list``, the command line's help and the documentation are made from them.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.errors import UsageError


@dataclass(frozen=True)
class Entry:
    """A registered name; ``target`` is ``module:attribute``."""

    name: str
    summary: str
    target: str

    def load(self) -> Any:
        """The object behind the name."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


class Registry:
    """Entries of one kind (``kind`` is the singular noun used in messages)."""

    def __init__(self, kind: str, *entries: Entry) -> None:
        self.kind = kind
        self._entries = {entry.name: entry for entry in entries}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def names(self) -> list[str]:
        """All names, in the order of registration."""
        return list(self._entries)

    def add(self, entry: Entry) -> None:
        """Register one more; a plug-in may call this."""
        self._entries[entry.name] = entry

    def entry(self, name: str) -> Entry:
        """The entry of that name.

        Raises:
            UsageError: there is none; the message names the nearest and all others.
        """
        if name in self._entries:
            return self._entries[name]
        near = difflib.get_close_matches(name, self._entries, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"no {self.kind} {name!r}{hint} (there are: {', '.join(self._entries)})")

    def load(self, name: str) -> Any:
        """The object behind the name; raises UsageError as ``entry`` does."""
        return self.entry(name).load()


BACKENDS = Registry(
    "backend",
    Entry("local", "Linux namespaces on this machine; no daemon, root or ordinary user",
          "harness.backends.local:LocalBackend"),
    Entry("sim", "simulated nodes, network, disks and time in one process; repeats exactly from the seed",
          "harness.sim.backend:SimBackend"),
    Entry("docker", "containers through Docker Engine", "harness.backends.docker:DockerBackend"),
    Entry("ssh", "hosts reached over SSH that may be broken: virtual machines, a lab's computers",
          "harness.backends.ssh.backend:SshBackend"),
)

DESIGNS = Registry(
    "design",
    Entry("standalone", "one broker, no replication", "nodes.systems.reference:Standalone"),
    Entry("joram", "HA Joram: group view, master is first of the view, eager atomic multicast",
          "nodes.systems.reference:Joram"),
    Entry("icestorm", "HA IceStorm: invitation election, replicated topics and subscribers, events from any replica",
          "nodes.systems.reference:IceStorm"),
)

WORKLOADS = Registry(
    "workload",
    Entry("queue", "producers and competing consumers on queues; unique messages, drained at the end",
          "workloads.queue:QueueWorkload"),
    Entry("topic", "producers, durable and transient subscribers of topics; what they saw, and in which order",
          "workloads.topic:TopicWorkload"),
    Entry("transaction", "sends to several queues at once, moves from queue to queue; one phase or two (XA)",
          "workloads.transaction:TransactionWorkload"),
    Entry("reaction", "a client inside the broker takes, computes, sends: at most once, at least once or exactly once",
          "workloads.reaction:ReactionWorkload"),
    Entry("forward", "store and forward: producers send to local servers, which pass on to the server of the consumers",
          "workloads.forward:ForwardWorkload"),
    Entry("events", "publishers of three kinds, subscribers that any replica delivers to",
          "workloads.events:EventsWorkload"),
    Entry("clustered", "queues spread over several HA servers: sent to one, taken at another",
          "workloads.clustered:ClusteredWorkload"),
    Entry("subscriptions", "topics and subscriptions made, ended and looked at by many; linearizable metadata",
          "workloads.subscriptions:SubscriptionsWorkload"),
)

NEMESES = Registry(
    "nemesis",
    Entry("partition", "cuts the network: halves, one node, the master, one way",
          "nemesis.partition:Partition"),
    Entry("pause", "stops a node's processes and lets them go on", "nemesis.process:Pause"),
    Entry("kill", "ends a node's processes at once and starts them again", "nemesis.process:Kill"),
    Entry("membership", "adds replicas, which the group did not know, while it runs",
          "nemesis.membership:Membership"),
    Entry("packets", "links lose, delay, double, reorder, damage, slow down or reset packets",
          "nemesis.packets:Packets"),
    Entry("power", "machines lose power at once, with what was not synced", "nemesis.machine:Power"),
    Entry("reboot", "a machine restarts in order", "nemesis.machine:Reboot"),
    Entry("clock", "clocks jump, jump to and fro, or run at a wrong rate", "nemesis.clock:Clock"),
    Entry("disk", "disks fill up, fail, slow down, lose or damage what was written", "nemesis.disk:Disk"),
)
