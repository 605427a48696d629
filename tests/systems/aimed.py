"""Brokers of which each serves, and the last one leads, by its status; others that tell less."""

from __future__ import annotations

from dataclasses import replace

from two_tier import TwoTier

import stormproof

LEADER = "n3"


class Led(TwoTier):
    """The last node leads; the others follow it, unless ``joined`` is false: then they say that they wait."""

    name = "led"
    leading_roles = ("leads",)
    joined_roles = ("follows",)
    options = (stormproof.Option("joined", True, "whether replicas have joined the leader"),
               stormproof.Option("led", True, "whether a node leads"))  # fmt: skip

    async def status(self, machine: stormproof.Machine) -> stormproof.NodeStatus:
        status = await super().status(machine)
        if machine.name == LEADER and machine.option("led"):
            return replace(status, role="leads")
        return replace(status, role="follows" if machine.option("joined") else "waits")


class Mute(TwoTier):
    """No status tells who leads, and no hook does."""

    name = "mute"
    leaders = stormproof.ShellSystem.leaders
