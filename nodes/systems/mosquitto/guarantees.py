"""Mosquitto's guarantees, with the places in its manual or in MQTT's standard."""

from __future__ import annotations

from stormproof.clients.mqtt import MQTT as PROTOCOL
from stormproof.contracts.guarantee import KNOWN_VIOLATION, Guarantee

_ENDS = ("kill", "crash", "power", "reboot")
"""Faults that end the broker without SIGTERM, on which it would write its sessions."""

GUARANTEES = (
    Guarantee("lost", KNOWN_VIOLATION, "mosquitto.conf(5), autosave_interval, autosave_on_changes",
              "sessions are written as a whole, now and then, and never before PUBACK: no setting is entirely safe",
              faults=_ENDS),
    *PROTOCOL.guarantees,
)  # fmt: skip
