"""Requests that make and remove queues, exchanges and bindings [Replicating configuration].

A client sends them to ``/management``, with ``x-request`` naming one of ``REQUESTS`` and a JSON object as body. The
receipt has ``x-error`` when the request was not carried out, else ``x-answer`` (JSON) where it asks for something.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from nodes.reference.designs.qpid.configuration import (
    BINDING,
    CREATED,
    DIRECT,
    EXCHANGE,
    EXCHANGE_TYPES,
    QUEUE,
    REPLICATE,
    Configuration,
    Mistaken,
    binding_name,
)
from nodes.reference.designs.qpid.options import LEVELS

CREATE_QUEUE, DELETE_QUEUE = "create-queue", "delete-queue"
CREATE_EXCHANGE, DELETE_EXCHANGE = "create-exchange", "delete-exchange"
BIND, UNBIND, LIST = "bind", "unbind", "list"
REQUESTS = (CREATE_QUEUE, DELETE_QUEUE, CREATE_EXCHANGE, DELETE_EXCHANGE, BIND, UNBIND, LIST)
_NAME = re.compile(r"[^\s/\x00-\x1f]{1,200}")
_KEY = re.compile(r"[^\s\x00-\x1f]{0,200}")
Change = tuple[bool, str, str, dict[str, str]]
"""(whether it creates, kind, name, arguments)."""


def read_request(headers: Mapping[str, str], body: bytes) -> tuple[str, dict[str, Any]]:
    """The name of a request and what it says; raises Mistaken when it is none."""
    name = headers.get("x-request", "")
    if name not in REQUESTS:
        raise Mistaken(f"there is no request {name[:40]!r} (there are: {', '.join(REQUESTS)})")
    try:
        said = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise Mistaken("the body is not a JSON object") from None
    if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
        raise Mistaken("the body is not a JSON object of texts")
    return name, said


def changes_of(request: str, said: Mapping[str, str], configuration: Configuration) -> list[Change]:
    """What a request changes, in order; none when things are so already.

    Raises:
        Mistaken: it can't be carried out: what it names is not there, or is there with other arguments.
    """
    if request in (CREATE_QUEUE, CREATE_EXCHANGE):
        return _create(QUEUE if request == CREATE_QUEUE else EXCHANGE, said, configuration)
    if request in (DELETE_QUEUE, DELETE_EXCHANGE):
        kind = QUEUE if request == DELETE_QUEUE else EXCHANGE
        name = _named(said, kind)
        if (kind, name) not in configuration:
            raise Mistaken(f"no-such-{kind}")
        bindings: list[Change] = [(False, BINDING, each, {}) for each in configuration.bindings_of(kind, name)]
        return [*bindings, (False, kind, name, {})]
    return _bind(request, said, configuration)


def _create(kind: str, said: Mapping[str, str], configuration: Configuration) -> list[Change]:
    name = _named(said, kind)
    arguments = {key: value for key, value in said.items() if key != kind}
    if kind == EXCHANGE:
        arguments.setdefault("type", DIRECT)
        if arguments["type"] not in EXCHANGE_TYPES:
            raise Mistaken(f"type {arguments['type']!r} is none of {', '.join(EXCHANGE_TYPES)}")
    if arguments.get(REPLICATE, LEVELS[0]) not in LEVELS:
        raise Mistaken(f"{REPLICATE} {arguments[REPLICATE]!r} is none of {', '.join(LEVELS)}")
    there = configuration.get((kind, name))
    if there is None:
        return [(True, kind, name, arguments)]
    alike = {key: value for key, value in there.items() if key != CREATED} == arguments
    raise Mistaken(f"{kind}-exists" if alike else f"{kind} {name} exists with other arguments")


def _bind(request: str, said: Mapping[str, str], configuration: Configuration) -> list[Change]:
    exchange, queue, key = _named(said, EXCHANGE), _named(said, QUEUE), said.get("key", "")
    if not _KEY.fullmatch(key):
        raise Mistaken("the key is not 0 to 200 visible characters")
    name = binding_name(exchange, queue, key)
    there = (BINDING, name) in configuration
    if request == UNBIND:
        if not there:
            raise Mistaken("no-such-binding")
        return [(False, BINDING, name, {})]
    for kind, end in ((EXCHANGE, exchange), (QUEUE, queue)):
        if (kind, end) not in configuration:
            raise Mistaken(f"no-such-{kind}")
    if there:
        raise Mistaken("binding-exists")
    return [(True, BINDING, name, {"exchange": exchange, "queue": queue, "key": key})]


def _named(said: Mapping[str, str], what: str) -> str:
    name = said.get(what, "")
    if not _NAME.fullmatch(name):
        raise Mistaken(f"{what}: a name of 1 to 200 visible characters without / is missing")
    return name


def listing(configuration: Configuration, kind: str = "") -> str:
    """All objects, or those of a kind, as JSON."""
    return json.dumps([[what, name, dict(arguments)] for (what, name), arguments in configuration.items()
                       if kind in ("", what)])
