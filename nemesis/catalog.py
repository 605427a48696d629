"""All fault families by name. A new family is one module next to the others and one line here."""

from __future__ import annotations

from typing import TypeGuard

from stormproof.contracts.fault import Fault
from stormproof.registry import Entry, Registry


def _is_fault(found: object) -> TypeGuard[type[Fault]]:
    return isinstance(found, type) and issubclass(found, Fault)


FAULTS: Registry[type[Fault]] = Registry(
    "nemesis",
    _is_fault,
    Entry("partition", "cuts the network: halves, one node, the master, one way", "nemesis.partition:Partition"),
    Entry("pause", "stops a node's processes and lets them go on", "nemesis.process:Pause"),
    Entry("kill", "ends a node's processes at once and starts them again", "nemesis.process:Kill"),
    Entry("stop", "asks a node's programs to end, and starts them again", "nemesis.stop:Stop"),
    Entry("rolling", "nodes are stopped and started, one after the other, each when the system is healthy again",
          "nemesis.rolling:Rolling"),
    Entry("membership", "adds replicas, which the group did not know, while it runs",
          "nemesis.membership:Membership"),
    Entry("packets", "links lose, delay, double, reorder, damage, slow down or reset packets",
          "nemesis.packets:Packets"),
    Entry("power", "machines lose power at once, with what was not synced", "nemesis.machine:Power"),
    Entry("reboot", "a machine restarts in order", "nemesis.machine:Reboot"),
    Entry("clock", "clocks jump, jump to and fro, or run at a wrong rate", "nemesis.clock:Clock"),
    Entry("disk", "disks fill up, fail, slow down, lose or damage what was written", "nemesis.disk:Disk"),
    Entry("crash", "all nodes, or the one that serves, end at once; a person recovers the system",
          "nemesis.crash:Crash"),
    Entry("manager", "a manager is killed, paused, or cut from the program that it looks after",
          "nemesis.manager:Manager"),
    Entry("quorum", "most managers are killed, paused or cut off, so that all that they look after ends",
          "nemesis.manager:Quorum"),
    Entry("gateway", "the machine that grants the lock is killed, or cut off from all nodes or one",
          "nemesis.helpers:Gateway"),
    Entry("lockfile", "the lock's file is deleted, its holder's lease ends, its holder is paused",
          "nemesis.lockfile:LockFile"),
    Entry("points", "strikes a program at a named point of its code: ended, paused, cut off or delayed exactly there",
          "nemesis.points:Points"),
    Entry("channel", "the private network between nodes is cut, and nothing else", "nemesis.channel:Channel"),
    Entry("shared-db", "the only database is killed, cut off, slow, or damaged", "nemesis.helpers:SharedDatabase"),
)  # fmt: skip
