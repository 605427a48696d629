"""Faults of whole machines: packets, clock, power, reboot. Reboots need a host that is a separate machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.backends import disk_machines
from harness.backends.base import gather_all
from harness.backends.ssh.connection import in_thread
from harness.backends.ssh.facts import HostFacts, own_machine
from harness.backends.ssh.hosts import SshHost
from harness.backends.ssh.power import HELP, PowerSwitch, takes_connections
from stormproof.contracts.backend import CLOCKS, DISKS, PACKETS, POWER, REBOOT
from stormproof.errors import BackendError

ABILITIES: Mapping[str, str] = {
    POWER: "the machine's power is cut by its provider (--set power=...)",
    REBOOT: "an orderly restart of the machine",
    CLOCKS: "the machine's own clock is set (clock_settime), its tick changed (adjtimex), time services stopped; on "
            "hosts that share a clock, libfaketime in the nodes' programs",
    DISKS: disk_machines.ABILITIES[DISKS],
}  # fmt: skip


def contradiction(needed: set[str]) -> str:
    """Return why no host can have all of these abilities at once; empty: one may."""
    if DISKS in needed and needed & {POWER, REBOOT}:
        return ("a disk that can fail is gone when its host boots: leave out either faults of disks or power and "
                "reboot")  # fmt: skip
    return ""


def demand_abilities(needed: Iterable[str], nodes: Mapping[str, SshHost], facts: Mapping[str, HostFacts],
                     power: PowerSwitch | None,
                  beside: bool) -> None:
    """Raise BackendError when one of a test's hosts lacks an ability that the faults need."""
    for ability in sorted(set(needed)):
        for node, host in nodes.items():
            others = [each for other, each in facts.items() if other != node]
            why = _obstacle(ability, facts[node], others, power, beside)
            if why:
                raise BackendError(f"{host.label} can't have faults that need {ability!r}: {why}")


def _obstacle(ability: str, facts: HostFacts, others: Sequence[HostFacts], power: PowerSwitch | None,
              beside: bool) -> str | None:
    if ability == PACKETS:
        if not (facts.netem or facts.queue):
            return ("its kernel has neither netem nor rules that queue packets (run there as root: modprobe sch_netem, "
                    "or apt-get install iptables)")
        if beside and not (facts.ifb or facts.queue):
            return "its kernel has no ifb, which packets of clients need; use --set clients=outside"
    if ability == POWER and power is None:
        return f"nobody is named who can cut its power; give --set power=...: {HELP}"
    if ability == DISKS and not facts.fuse:
        return ("it has no /dev/fuse or no libfuse3 (run there as root: apt-get install fuse3; a container needs "
                "--device /dev/fuse and the capability SYS_ADMIN)")
    if ability == CLOCKS and (why := own_machine(facts, others)) and not facts.faketime:
        return f"{why}, and it has no libfaketime (run there as root: apt-get install libfaketime)"
    return own_machine(facts, others) if ability == REBOOT else None


async def switch(power: PowerSwitch, hosts: Sequence[SshHost], on: bool) -> None:
    """Cut or restore the power of all these hosts at once. Raises BackendError when the provider fails for one."""
    calls = (in_thread(_nothing, power.switch, host.name, on) for host in hosts)
    await gather_all(calls)


async def has_power(host: SshHost) -> bool:
    """Return whether a host accepts connections: its kernel does, however slow its sshd may be."""
    return await in_thread(_nothing, takes_connections, host)


def _nothing(_: object) -> None:
    """Do nothing: the result of an abandoned provider's command needs no cleanup."""
