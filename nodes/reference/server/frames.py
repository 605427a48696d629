"""The meaning of STOMP frames: client frames as commands, effects as server frames. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from nodes import stomp
from nodes.reference.api import Command, Deliver
from nodes.reference.engine.model import ACK_MODES, AUTO, DURABLE, QUEUE_PREFIX
from nodes.reference.engine.server_queues import split
from nodes.reference.engine.topics import EXCHANGE_PREFIX, MANAGEMENT, SECURITY, TOPIC_MANAGER, TOPIC_PREFIX
from nodes.reference.engine.value_names import EXPECTED, KEY, LAST_VALUE, LAST_VALUE_PREFIX
from nodes.stomp import Frame

VERSION = "1.2"
SERVER = "stormproof-reference/1"
DEFAULT_PREFETCH = 64
ADMIN_STATUS = "/admin/status"
ADMIN_TIME = "/admin/time"
ADMIN_ADD_REPLICA = "/admin/add-replica"
ADMIN_DESIGN = "/admin/design"
DECLARE = "x-declare"
"""Header of SEND and SUBSCRIBE, named as in Qpid's addresses: the arguments for creating their queue on demand."""
MAX_VALUE = 16 << 10
"""Maximum bytes of a last-value queue's value, because a RECEIPT's header carries it."""
MAX_NAME = 200
"""Maximum characters in a destination, and in the names that clients give to subscriptions and transactions."""

_QUEUE = re.compile(rf"{QUEUE_PREFIX}(?!{DURABLE}:|{LAST_VALUE})[^\s\x00-\x1f]+")
_LAST_VALUE = re.compile(rf"{LAST_VALUE_PREFIX}[^\s\x00-\x1f]+")
_LEVEL = r"[^\s\x00-\x1f.*>]+"
_EXCHANGE = re.compile(rf"{EXCHANGE_PREFIX}[^\s/\x00-\x1f]+/[^\s\x00-\x1f]*")
_TOPIC = re.compile(rf"{TOPIC_PREFIX}{_LEVEL}(\.{_LEVEL})*")
_PATTERN = re.compile(rf"{TOPIC_PREFIX}(>|({_LEVEL}|\*)(\.({_LEVEL}|\*))*(\.>)?)")
_DURABLE = re.compile(r"[^\s\x00-\x1f:]+")
_XID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_NUMBER = re.compile(r"[0-9]{1,15}")
_WORD = re.compile(rf"[!-~]{{1,{MAX_NAME}}}")
# Headers of SEND that are meant for the broker, and headers of MESSAGE that only the broker may set.
_NOT_FORWARDED = frozenset({
    "destination", "receipt", "transaction", "content-length", "subscription", "message-id", "ack",
    "redelivered", "x-redeliveries", "x-seq", "x-received", DECLARE, EXPECTED,
})


class FrameError(Exception):
    """The client's frame can't be honoured: it gets an ERROR with this reason and these headers, and is closed."""

    def __init__(self, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.headers = headers if headers is not None else {}


class Greeting(NamedTuple):
    """The contents of CONNECT; heart-beats are in milliseconds."""

    login: str
    passcode: str
    can_beat: int
    wants_beat: int
    admin: bool
    reliable: bool
    resume: str | None
    received: int


def greeting(frame: Frame) -> Greeting:
    """Read CONNECT or STOMP; raises FrameError for another frame, another version, or bad values."""
    headers = frame.headers
    if frame.command not in ("CONNECT", "STOMP"):
        raise FrameError(f"{frame.command} before CONNECT")
    if VERSION not in headers.get("accept-version", "1.0").split(","):
        raise FrameError(f"supported protocol versions are {VERSION}", {"version": VERSION})
    beats = headers.get("heart-beat", "0,0").split(",")
    if len(beats) != 2 or not all(_NUMBER.fullmatch(beat) for beat in beats):
        raise FrameError("heart-beat is not two numbers")
    resume = _name(frame, "x-connection-id") if "x-connection-id" in headers else None
    return Greeting(
        login=headers.get("login", ""),
        passcode=headers.get("passcode", ""),
        can_beat=int(beats[0]),
        wants_beat=int(beats[1]),
        admin=headers.get("x-admin") == "true",
        reliable=headers.get("x-reliable") == "true" or resume is not None,
        resume=resume,
        received=_number(frame, "x-received", 0),
    )


def command_of(frame: Frame, conn: str, reliable: bool, manager: bool = False, secured: bool = False) -> Command:
    """Convert a client's frame to a command. ``manager``: the design takes requests; ``secured``: there are requests
    about security.

    Raises:
        FrameError: a header is missing or wrong, or the frame is not allowed here.
    """
    reader = _READERS.get(frame.command)
    if reader is None:
        raise FrameError(f"{frame.command} on an open connection")
    if manager and frame.command == "SEND":
        destination = frame.headers.get("destination", "")
        if destination in (TOPIC_MANAGER, MANAGEMENT):
            reader = _request
        elif _EXCHANGE.fullmatch(destination):
            reader = _send_to_exchange
    if secured and frame.command == "SEND" and frame.headers.get("destination") == SECURITY:
        reader = _secure
    kind, args = reader(frame)
    if manager and DECLARE in frame.headers and kind in ("send", "subscribe"):
        args["declare"] = frame.headers[DECLARE]
    receipt = frame.headers.get("receipt")
    if receipt is not None:
        args["receipt"] = receipt
    seq = 0
    if reliable:
        if "x-received" in frame.headers:
            args["received"] = _number(frame, "x-received", 0)
        if kind != "received":
            seq = _number(frame, "x-seq", 0)
            if seq == 0:
                raise FrameError(f"{frame.command} without x-seq on a reliable connection")
    elif kind == "received":
        raise FrameError("RECEIVED on a connection that is not reliable")
    return Command(kind, conn, seq, args)


def new_replica(frame: Frame) -> tuple[str, tuple[str, int], str]:
    """Read an administrator's request to add a replica: its name, the address of its links, and its address for
    clients.

    Raises:
        FrameError: the body is not JSON of that form.
    """
    try:
        asked = json.loads(frame.body)
        name, (host, port), client = asked["name"], asked["link"], asked["client"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FrameError('SEND: the body is not {"name": NAME, "link": [HOST, PORT], "client": "HOST:PORT"}') from error
    if not (all(isinstance(text, str) and text for text in (name, host, client)) and type(port) is int):
        raise FrameError("SEND: name, host and client must be texts, the port a number")
    if not (all(map(_WORD.fullmatch, (name, host, client))) and 0 < port < 65536):
        raise FrameError(f"SEND: name, host and client are 1 to {MAX_NAME} visible characters, the port is 1 to 65535")
    return name, (host, port), client


def design_request(frame: Frame) -> dict[str, Any]:
    """Read an administrator's request to the design: a JSON object; raises FrameError for anything else."""
    try:
        asked = json.loads(frame.body)
    except (ValueError, RecursionError) as error:
        raise FrameError("SEND: the body is not a JSON object") from error
    if not isinstance(asked, dict):
        raise FrameError("SEND: the body is not a JSON object")
    return asked


def message(delivery: Deliver, reliable: bool) -> bytes:
    """Encode the MESSAGE frame."""
    headers = {
        "subscription": delivery.subscription,
        "message-id": delivery.message_id,
        "destination": delivery.destination,
    }
    if not delivery.auto:
        headers["ack"] = delivery.ack_id
    if reliable:
        headers["x-seq"] = str(delivery.out_seq)
    if delivery.redeliveries:
        headers["redelivered"] = "true"
        headers["x-redeliveries"] = str(delivery.redeliveries)
    # The broker's own headers come first, and the client's can't have their names.
    headers.update(delivery.headers)
    headers["content-length"] = str(len(delivery.body))
    return stomp.encode(Frame("MESSAGE", headers, delivery.body))


def receipt(receipt_id: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Encode the RECEIPT frame."""
    if headers:
        return stomp.encode(Frame("RECEIPT", {"receipt-id": receipt_id, **headers}))
    return b"RECEIPT\nreceipt-id:%b\n\n\0" % stomp.escape(receipt_id).encode()


def safe(seq: int) -> bytes:
    """Encode the SAFE frame."""
    return b"SAFE\nx-safe:%d\n\n\0" % seq


def error(reason: str, headers: Mapping[str, str]) -> bytes:
    """Encode the ERROR frame; its body repeats the reason for human readers."""
    return stomp.encode(Frame("ERROR", {"message": reason, "content-type": "text/plain", **headers},
                              f"{reason}\n".encode()))


def _number(frame: Frame, name: str, default: int) -> int:
    text = frame.headers.get(name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text):
        raise FrameError(f"{frame.command}: {name} is not a number")
    return int(text)


def _name(frame: Frame, header: str) -> str:
    value = frame.headers.get(header)
    if not value:
        raise FrameError(f"{frame.command} without {header}")
    if len(value) > MAX_NAME:
        raise FrameError(f"{frame.command}: {header} is longer than {MAX_NAME} characters")
    return value


def _destination(frame: Frame, topics: re.Pattern[str]) -> str:
    """Return the destination of SEND or SUBSCRIBE, which may be on another server."""
    named = _name(frame, "destination")
    _check_destination(frame, split(named)[1], topics)
    return named


def _check_destination(frame: Frame, destination: str, topics: re.Pattern[str]) -> None:
    if not _QUEUE.fullmatch(destination) and not topics.fullmatch(destination):
        raise FrameError(f"{frame.command}: the destination is not {QUEUE_PREFIX}NAME or {TOPIC_PREFIX}NAME")


def _durable(frame: Frame) -> dict[str, str]:
    if "x-durable" not in frame.headers:
        return {}
    name = _name(frame, "x-durable")
    if not _DURABLE.fullmatch(name):
        raise FrameError(f"{frame.command}: x-durable holds a blank or a colon")
    return {"durable": name}


def _in_transaction(frame: Frame, args: dict[str, Any]) -> dict[str, Any]:
    if "transaction" in frame.headers:
        args["tx"] = _name(frame, "transaction")
    return args


def _send(frame: Frame) -> tuple[str, dict[str, Any]]:
    if frame.headers.get("destination", "").startswith(LAST_VALUE_PREFIX):
        return _put(frame)
    headers = {name: value for name, value in frame.headers.items() if name not in _NOT_FORWARDED}
    args = {"destination": _destination(frame, _TOPIC), "headers": headers, "body": frame.body}
    return "send", _in_transaction(frame, args)


def _put(frame: Frame) -> tuple[str, dict[str, Any]]:
    if "transaction" in frame.headers:
        raise FrameError(f"SEND: a value of {LAST_VALUE_PREFIX}NAME is written at once, in no transaction")
    if len(frame.body) > MAX_VALUE:
        raise FrameError(f"SEND: a value of {LAST_VALUE_PREFIX}NAME has {MAX_VALUE} bytes at most")
    headers = {name: value for name, value in frame.headers.items() if name not in _NOT_FORWARDED}
    args = {**_place(frame), "headers": headers, "body": frame.body}
    if EXPECTED in frame.headers:
        args["expected"] = _number(frame, EXPECTED, 0)
    return "put", args


def _read(frame: Frame) -> tuple[str, dict[str, Any]]:
    _name(frame, "receipt")
    return "read", _place(frame)


def _place(frame: Frame) -> dict[str, Any]:
    """Return the last-value destination and the key that a frame names."""
    destination = _name(frame, "destination")
    if not _LAST_VALUE.fullmatch(destination):
        raise FrameError(f"{frame.command}: the destination is not {LAST_VALUE_PREFIX}NAME")
    return {"destination": destination, "key": _name(frame, KEY)}


def _send_to_exchange(frame: Frame) -> tuple[str, dict[str, Any]]:
    headers = {name: value for name, value in frame.headers.items() if name not in _NOT_FORWARDED}
    args = {"destination": _name(frame, "destination"), "headers": headers, "body": frame.body}
    return "send", _in_transaction(frame, args)


def _request(frame: Frame) -> tuple[str, dict[str, Any]]:
    return "request", {"headers": dict(frame.headers), "body": frame.body}


def _secure(frame: Frame) -> tuple[str, dict[str, Any]]:
    said = design_request(frame)
    if not all(isinstance(value, str) for value in said.values()):
        raise FrameError("SEND: the body is not a JSON object of texts")
    try:
        "".join((*said, *said.values())).encode()
    except UnicodeEncodeError:
        raise FrameError("SEND: the body holds half a character (a lone surrogate)") from None
    return "security", {"request": _name(frame, "x-request"), "said": said}


def _subscribe(frame: Frame) -> tuple[str, dict[str, Any]]:
    ack = frame.headers.get("ack", AUTO)
    if ack not in ACK_MODES:
        raise FrameError(f"SUBSCRIBE: ack is none of {', '.join(ACK_MODES)}")
    prefetch = _number(frame, "x-prefetch", DEFAULT_PREFETCH)
    if prefetch == 0:
        raise FrameError("SUBSCRIBE: x-prefetch is 0")
    destination, durable = _destination(frame, _PATTERN), _durable(frame)
    if durable and not split(destination)[1].startswith(TOPIC_PREFIX):
        raise FrameError(f"SUBSCRIBE: x-durable is for {TOPIC_PREFIX}NAME only")
    return "subscribe", {"id": _name(frame, "id"), "destination": destination, "ack": ack, "prefetch": prefetch,
                         **durable}


def _unsubscribe(frame: Frame) -> tuple[str, dict[str, Any]]:
    args = _durable(frame)
    if not args or "id" in frame.headers:
        args["id"] = _name(frame, "id")
    return "unsubscribe", args


def _ack(frame: Frame) -> tuple[str, dict[str, Any]]:
    return frame.command.lower(), _in_transaction(frame, {"id": _name(frame, "id")})


def _xid(frame: Frame) -> dict[str, Any]:
    if "x-xid" not in frame.headers:
        return {}
    if not _XID.fullmatch(frame.headers["x-xid"]):
        raise FrameError(f"{frame.command}: x-xid is not 1 to 128 letters, digits, and characters of _.:-")
    return {"xid": frame.headers["x-xid"]}


def _begin(frame: Frame) -> tuple[str, dict[str, Any]]:
    return "begin", {"tx": _name(frame, "transaction"), **_xid(frame)}


def _prepare(frame: Frame) -> tuple[str, dict[str, Any]]:
    return "prepare", {"tx": _name(frame, "transaction")}


def _end(frame: Frame) -> tuple[str, dict[str, Any]]:
    args = _xid(frame)
    if args and "transaction" in frame.headers:
        raise FrameError(f"{frame.command}: a prepared branch is named by x-xid alone, any other by transaction alone")
    return frame.command.lower(), args or {"tx": _name(frame, "transaction")}


def _recover(frame: Frame) -> tuple[str, dict[str, Any]]:
    _name(frame, "receipt")
    return "recover", {}


def _disconnect(frame: Frame) -> tuple[str, dict[str, Any]]:
    return "close", {"reason": "client"}


def _received(frame: Frame) -> tuple[str, dict[str, Any]]:
    _name(frame, "x-received")
    return "received", {}


_READERS = {
    "SEND": _send, "SUBSCRIBE": _subscribe, "UNSUBSCRIBE": _unsubscribe, "ACK": _ack, "NACK": _ack,
    "BEGIN": _begin, "PREPARE": _prepare, "COMMIT": _end, "ABORT": _end, "RECOVER": _recover,
    "DISCONNECT": _disconnect, "RECEIVED": _received, "READ": _read,
}
