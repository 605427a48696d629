"""The traffic of a run's machines, if their network counts it (``stormproof.contracts.bounds.WorkBound``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from stormproof.contracts.backend import Link
from stormproof.contracts.topology import machine_of

Sent = Mapping[Link, tuple[int, int]]
"""Frames and bytes on each link."""


def since(now: Sent, before: Sent) -> Sent:
    """Return the traffic between ``before`` and ``now``."""
    none = (0, 0)
    return {link: (frames - before.get(link, none)[0], size - before.get(link, none)[1])
            for link, (frames, size) in now.items()}  # fmt: skip


def dialled_between(now: Mapping[Link, int], before: Mapping[Link, int], machines: Collection[str]) -> dict[str, int]:
    """Return how often each machine has tried to connect to another one between ``before`` and ``now``."""
    found = dict.fromkeys(machines, 0)
    for (source, target), count in now.items():
        one, other = machine_of(source), machine_of(target)
        if one != other and one in found and other in found:
            found[one] += count - before.get((source, target), 0)
    return found


def work_done(sent: Sent, machines: Collection[str], seconds: float) -> dict[str, Any]:
    """Return the traffic after this number of seconds, for a run's ``run.json``: frames and bytes that each machine
    sent to others (``machines``), that machines sent to clients (``answers``), and that clients sent to machines
    (``requests``)."""
    between = {machine: [0, 0] for machine in machines}
    answers, requests = [0, 0], [0, 0]
    for (source, target), counted in sent.items():
        if machine_of(source) == machine_of(target):
            continue  # it crosses no network
        if machine_of(source) not in between:
            counts = requests
        elif machine_of(target) not in between:
            counts = answers
        else:
            counts = between[machine_of(source)]
        for at, count in enumerate(counted):
            counts[at] += count
    return {"seconds": round(seconds, 3), "machines": between, "answers": answers, "requests": requests}
