"""The rule about the content of CONNECTED and ERROR: every header where it belongs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from nodes.systems.reference.wire_reader import Said
from stormproof.contracts.invariant import WIRE, Invariant, Watcher

_GREETING = {"version", "server", "heart-beat", "session", "x-connection-id", "x-received", "x-replicas", "x-early"}
_REFUSAL = {"message", "content-type", "content-length", "receipt-id", "version", "x-master", "x-closed", "x-received"}
_VERSIONS = "supported protocol versions"
_CLOSED = ("idle", "client", "error", "gap", "unknown")
_REFUSED = ("error", "gap")
"""The reasons with which a reliable connection is closed because of a client's command."""
_ELSEWHERE = ("not master", "not primary", "this server does not serve now")


class Admission(Protocol):
    """A broker's decision about clients now."""

    accepted: bool
    reason: str
    master: str | None
    early: bool


class Admitting(Protocol):
    """The part of a broker that admits clients."""

    @property
    def admission(self) -> Admission: ...

    @property
    def names_replicas(self) -> bool: ...


class Greeter(Protocol):
    """A program with such a part."""

    @property
    def common(self) -> Admitting: ...


class TellsClients(Watcher):
    """Knows the programs, whose decisions are compared with what clients are told."""

    period = 1.0

    def __init__(self) -> None:
        self._programs: dict[str, Greeter] = {}

    def inspect(self, node: str, program: Greeter) -> str:
        """Remember the program."""
        self._programs[node] = program
        return ""

    def ended(self, node: str) -> None:
        """Forget the program."""
        self._programs.pop(node, None)

    def sent(self, node: str, peer: str, frame: Any) -> str:
        """Check a frame for a client."""
        if type(frame) is not Said:
            return ""
        program = self._programs.get(node)
        wrong = (_after_the_end(frame) if not frame.command else
                 _wrong_greeting(frame.headers, program) if frame.command == "CONNECTED" else
                 _wrong_refusal(frame, program))  # fmt: skip
        return f"it tells a client at {peer} {frame.command} {dict(frame.headers)}: {wrong}" if wrong else ""


def _after_the_end(frame: Said) -> str:
    return f"{frame.body[:60]!r} follows an ERROR"


def _wrong_greeting(told: Mapping[str, str], program: Greeter | None) -> str:
    reliable = "x-connection-id" in told
    if told.keys() - _GREETING:
        return "these are other headers than a greeting has"
    if told.get("version") != "1.2" or told.get("heart-beat") != "100,100" or not told.get("server"):
        return "version, heart-beats or server are missing, or others than agreed on"
    if not told.get("session") or (reliable and told["session"] != told["x-connection-id"]):
        return "it names no session, or another one than the connection"
    if reliable is not told.get("x-received", "").isdecimal():
        return "the input counter is told for a reliable connection, and only for that"
    if program is None:
        return ""
    if program.common.names_replicas is not bool(told.get("x-replicas")):
        return "it lists the replicas' addresses if there are any"
    admission = program.common.admission
    if admission.accepted and (admission.early and reliable) is not (told.get("x-early") == "true"):
        return "it says whether receipts are early, of a reliable connection"
    return ""


def _wrong_refusal(frame: Said, program: Greeter | None) -> str:
    told, greeted = frame.headers, frame.greeted
    reason, closed = told.get("message", ""), told.get("x-closed")
    if told.keys() - _REFUSAL:
        return "these are other headers than a refusal has"
    kind = told.get("content-type"), told.get("content-length")
    if not reason or frame.body != f"{reason}\n".encode() or kind != ("text/plain", str(len(frame.body))):
        return "there is no reason, or the body does not repeat it as it says"
    if told.get("version") != ("1.2" if reason.startswith(_VERSIONS) else None):
        return "it names the version if the client's is refused, and only then"
    if closed is not None and (closed not in _CLOSED or (closed != "gap" and reason == "gap")):
        return "x-closed is no reason, or another one"
    if "x-received" in told and (closed is None or not told["x-received"].isdecimal()):
        return "the input counter is told with x-closed only"
    reliable = greeted is not None and "x-connection-id" in greeted
    if greeted is not None and closed == "client":
        return "an orderly end has its receipt, and no ERROR"
    if greeted is not None and not reliable and closed not in (None, "idle"):  # icestorm closes idle ones, too
        return "x-closed is about reliable connections only"
    if reliable and "receipt-id" in told and closed not in _REFUSED:
        return "a reliable connection is closed because of a command, which x-closed has to tell"
    if greeted is None and program is not None and reason in _ELSEWHERE:
        master = program.common.admission.master
        if told.get("x-master") != master:
            return f"the master is at {master}, as it knows"
    return ""


TELLS_CLIENTS = Invariant(
    "tells-clients", "CONNECTED and ERROR have the headers that the protocol promises, each where it belongs, and "
    "nothing follows an ERROR", "docs/stomp.md, Errors; Nodes that do not serve; Reliable connections",
    TellsClients, seen=(WIRE,))
