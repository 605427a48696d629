"""Mosquitto's guarantees, with the places in its manual or in MQTT's standard."""

from __future__ import annotations

from stormproof.contracts.guarantee import KNOWN_VIOLATION, NOT_PROMISED, Guarantee

_QUALITY_1 = "MQTT 3.1.1, 4.3.2 QoS 1: At least once delivery"

_ENDS = ("kill", "crash", "power", "reboot")
"""Faults that end the broker without SIGTERM, on which it would write its sessions."""

GUARANTEES = (
    Guarantee("lost", KNOWN_VIOLATION, "mosquitto.conf(5), autosave_interval, autosave_on_changes",
              "sessions are written as a whole, now and then, and never before PUBACK: no setting is entirely safe",
              faults=_ENDS),
    Guarantee("duplicated", NOT_PROMISED, _QUALITY_1, "what was not acknowledged is delivered again"),
    Guarantee("order", NOT_PROMISED, "MQTT 3.1.1, 4.6 Message ordering", "what is delivered again comes late"),
)  # fmt: skip
"""Loss is judged in every mode. MQTT 3.1.1, 4.1, demands that sessions are kept, "for as long as the network connection
lasts" at least, and leaves it to administrators what survives a crash; a publisher sees PUBACK either way."""
