"""Faults of whole machines: packets, clock, power, reboot. Only where the host is a machine of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.backends.base import gather_all
from harness.backends.ssh.connection import in_thread
from harness.backends.ssh.facts import HostFacts, own_machine
from harness.backends.ssh.hosts import Host
from harness.backends.ssh.power import HELP, Power, takes_connections
from stormproof.contracts.backend import CLOCKS, PACKETS, POWER, REBOOT
from stormproof.errors import BackendError

ABILITIES: Mapping[str, str] = {
    **{f"{PACKETS}:{kind}": "netem on the machine's own device, with counters; needs sch_netem in its kernel"
       for kind in ("loss", "delay", "duplicate", "reorder", "corrupt", "rate", "flaky")},
    POWER: "the machine's power is cut by its provider (--set power=...)",
    REBOOT: "an orderly restart of the machine",
    CLOCKS: "the machine's own clock is set (clock_settime), its tick changed (adjtimex), time services stopped",
}  # fmt: skip


def demand_abilities(needed: Iterable[str], nodes: Mapping[str, Host], facts: Mapping[str, HostFacts],
                     power: Power | None,
                  beside: bool) -> None:
    """Raises BackendError when an ability that a test's faults need can't be honoured on one of its hosts."""
    for ability in needed:
        for node, host in nodes.items():
            others = [each for other, each in facts.items() if other != node]
            why = _obstacle(ability, facts[node], others, power, beside)
            if why:
                raise BackendError(f"{host.label} can't have faults that need {ability!r}: {why}")


def _obstacle(ability: str, facts: HostFacts, others: Sequence[HostFacts], power: Power | None,
              beside: bool) -> str | None:
    if ability == PACKETS:
        if not facts.netem:
            return "its kernel has no netem (run there as root: modprobe sch_netem, or install a kernel that has it)"
        if beside and not facts.ifb:
            return "its kernel has no ifb, which packets of clients need; use --set clients=outside"
    if ability == POWER and power is None:
        return f"nobody is named who can cut its power; give --set power=...: {HELP}"
    if ability in (REBOOT, CLOCKS):
        return own_machine(facts, others)
    return None


async def switch(power: Power, hosts: Sequence[Host], on: bool) -> None:
    """Cut or give the power of all these at once. Raises BackendError when the provider fails for one."""
    calls = (in_thread(_nothing, power.switch, host.name, on) for host in hosts)
    await gather_all(calls)


async def has_power(host: Host) -> bool:
    """Whether a host takes connections: its kernel does, however slow its sshd may be."""
    return await in_thread(_nothing, takes_connections, host)


def _nothing(_: object) -> None:
    """A provider's command that nobody waits for any more has no result to discard."""
