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
    Entry("partition", "cuts the network: halves, one node, the master, one way", "nemesis.partition:PartitionFault"),
    Entry("pause", "stops a node's processes and continues them later", "nemesis.process:PauseFault"),
    Entry("kill", "kills a node's processes and restarts them", "nemesis.process:KillFault"),
    Entry("stop", "shuts a node's programs down in an orderly way, and restarts them", "nemesis.stop:StopFault"),
    Entry("move-leader", "asks the system to hand leadership over to another node",
          "nemesis.move_leader:MoveLeaderFault"),
    Entry("rolling", "restarts the nodes one after the other, each when the system is healthy again",
          "nemesis.rolling:RollingFault"),
    Entry("membership", "adds new replicas to the running group",
          "nemesis.membership:MembershipFault"),
    Entry("packets", "loses, delays, duplicates, reorders, corrupts or slows down packets, or resets connections",
          "nemesis.packets:PacketsFault"),
    Entry("power", "cuts the power of machines; unsynced data is lost", "nemesis.machine:PowerFault"),
    Entry("reboot", "reboots a machine in an orderly way", "nemesis.machine:RebootFault"),
    Entry("clock", "makes clocks jump, jump back and forth, or run at a wrong rate", "nemesis.clock:ClockFault"),
    Entry("disk", "makes disks full, faulty or slow, or loses or corrupts written data", "nemesis.disk:StorageFault"),
    Entry("crash", "kills all nodes, or the serving node; an operator recovers the system",
          "nemesis.crash:CrashFault"),
    Entry("manager", "kills or pauses a manager, or cuts it off from its broker",
          "nemesis.manager:ManagerFault"),
    Entry("quorum", "kills, pauses or cuts off most managers, so that all brokers end",
          "nemesis.manager:QuorumFault"),
    Entry("gateway", "kills the machine that grants the lock, or cuts it off from one node or all",
          "nemesis.helpers:GatewayFault"),
    Entry("lockfile", "deletes the lock's file, lets its holder's lease expire, or pauses its holder",
          "nemesis.lockfile:LockFileFault"),
    Entry("points", "kills, pauses, cuts off or delays a program exactly at a named point of its code",
          "nemesis.points:PointsFault"),
    Entry("channel", "cuts only the private network between nodes", "nemesis.channel:ChannelFault"),
    Entry("shared-db", "kills, cuts off, slows down or damages the shared database",
          "nemesis.helpers:SharedDatabaseFault"),
)  # fmt: skip
