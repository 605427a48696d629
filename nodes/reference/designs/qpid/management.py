"""Requests that create and delete queues, exchanges and bindings [Replicating configuration].

A client sends them to ``/management``, with ``x-request`` naming one of ``REQUESTS`` and a JSON object as body. The
receipt has ``x-error`` if the request was not carried out. Otherwise it has ``x-answer`` (JSON) if the request is a
query, and ``x-more`` if the answer is incomplete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from nodes.reference.designs.qpid import options
from nodes.reference.designs.qpid.configuration import (
    BINDING,
    CREATED,
    DIRECT,
    EXCHANGE,
    EXCHANGE_TYPES,
    QUEUE,
    REPLICATE,
    STORE_ERRORS,
    Configuration,
    InvalidRequest,
    binding_name,
)
from nodes.reference.engine.value_names import LAST_VALUE, LAST_VALUE_PREFIX

CREATE_QUEUE, DELETE_QUEUE = "create-queue", "delete-queue"
CREATE_EXCHANGE, DELETE_EXCHANGE = "create-exchange", "delete-exchange"
BIND, UNBIND, LIST = "bind", "unbind", "list"
REQUESTS = (CREATE_QUEUE, DELETE_QUEUE, CREATE_EXCHANGE, DELETE_EXCHANGE, BIND, UNBIND, LIST)
_CHOICES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    QUEUE: {REPLICATE: options.LEVELS, STORE_ERRORS: options.STORE_ERRORS},
    EXCHANGE: {REPLICATE: options.LEVELS},
}
"""The arguments of queues and exchanges that brokers interpret, with their values."""
_OURS = "qpid."
"""The prefix of each such argument; other names are the client's."""
_FIELDS = {DELETE_QUEUE: (QUEUE,), DELETE_EXCHANGE: (EXCHANGE,), BIND: (EXCHANGE, QUEUE, "key"),
           UNBIND: (EXCHANGE, QUEUE, "key"), LIST: ("kind", "name", "after")}
"""The permitted fields of requests that create neither a queue nor an exchange."""
_NAME = re.compile(r"[^\s/\x00-\x1f]{1,200}")
_KEY = re.compile(r"[^\s\x00-\x1f]{0,200}")
MAX_OBJECTS = 8_000
"""Maximum number of objects: they fit into one frame together with the default maximum of queues created on demand."""
_MAX_ARGUMENTS = 16
_MAX_ARGUMENT_TEXT = 500
"""Maximum number of characters of an object's arguments, including their names."""
Change = tuple[bool, str, str, dict[str, str]]
"""(whether it creates, kind, name, arguments)."""


def read_request(headers: Mapping[str, str], body: bytes) -> tuple[str, dict[str, Any]]:
    """Parse a request into its name and its fields; raises InvalidRequest if it is invalid."""
    name = headers.get("x-request", "")
    if name not in REQUESTS:
        raise InvalidRequest(f"there is no request {name[:40]!r} (there are: {', '.join(REQUESTS)})")
    said = _read_texts("the body", body)
    fields = _FIELDS.get(name, said)
    for field in said:
        if field not in fields:
            raise InvalidRequest(f"{name} has no field {field[:40]!r} (it has: {', '.join(fields)})")
    return name, said


def read_declaration(text: str) -> dict[str, str]:
    """Parse the arguments in ``x-declare``, a JSON object of texts; raises InvalidRequest if it is invalid."""
    return _arguments(QUEUE, _read_texts("x-declare", text))


def _read_texts(what: str, text: str | bytes) -> dict[str, str]:
    try:
        said = json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise InvalidRequest(f"{what} is not a JSON object") from None
    if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
        raise InvalidRequest(f"{what} is not a JSON object of texts")
    try:
        "".join((*said, *said.values())).encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what} holds half a character (a lone surrogate)") from None
    return said


def changes_of(request: str, said: Mapping[str, str], configuration: Configuration) -> list[Change]:
    """Return the changes that a request makes, in order.

    Raises:
        InvalidRequest: it can't be carried out: an object that it names does not exist, or exists already.
    """
    if request in (CREATE_QUEUE, CREATE_EXCHANGE, BIND) and sum(1 for _ in configuration.items()) >= MAX_OBJECTS:
        raise InvalidRequest(f"there are {MAX_OBJECTS} queues, exchanges and bindings: delete some first")
    if request in (CREATE_QUEUE, CREATE_EXCHANGE):
        return _create(QUEUE if request == CREATE_QUEUE else EXCHANGE, said, configuration)
    if request in (DELETE_QUEUE, DELETE_EXCHANGE):
        kind = QUEUE if request == DELETE_QUEUE else EXCHANGE
        name = _named(said, kind)
        if (kind, name) not in configuration:
            raise InvalidRequest(f"no-such-{kind}")
        bindings: list[Change] = [(False, BINDING, each, {}) for each in configuration.bindings_of(kind, name)]
        return [*bindings, (False, kind, name, {})]
    return _bind(request, said, configuration)


def _create(kind: str, said: Mapping[str, str], configuration: Configuration) -> list[Change]:
    name = _named(said, kind)
    arguments = _arguments(kind, said)
    if kind == EXCHANGE:
        arguments.setdefault("type", DIRECT)
        if arguments["type"] not in EXCHANGE_TYPES:
            raise InvalidRequest(f"type {arguments['type']!r} is none of {', '.join(EXCHANGE_TYPES)}")
    there = configuration.get((kind, name))
    if there is None:
        return [(True, kind, name, arguments)]
    alike = {key: value for key, value in there.items() if key != CREATED} == arguments
    raise InvalidRequest(f"{kind}-exists" if alike else f"{kind} {name} exists with other arguments")


def _arguments(kind: str, said: Mapping[str, str]) -> dict[str, str]:
    arguments = {key: value for key, value in said.items() if key != kind}
    if len(arguments) > _MAX_ARGUMENTS or sum(len(key) + len(value) for key, value in arguments.items()
                                              ) > _MAX_ARGUMENT_TEXT:
        raise InvalidRequest(f"arguments are at most {_MAX_ARGUMENTS}, with {_MAX_ARGUMENT_TEXT} characters in all")
    if CREATED in arguments:
        raise InvalidRequest(f"{CREATED}: is no argument; brokers tell by it a queue from an earlier one of its name")
    known = _CHOICES[kind]
    for argument, value in arguments.items():
        if argument in known:
            if value not in known[argument]:
                raise InvalidRequest(f"{argument} {value!r} is none of {', '.join(known[argument])}")
        elif argument.casefold().startswith(_OURS):
            raise InvalidRequest(f"{argument[:60]!r} is no argument of a {kind} (there are: {', '.join(known)})")
    return arguments


def _bind(request: str, said: Mapping[str, str], configuration: Configuration) -> list[Change]:
    exchange, queue, key = _named(said, EXCHANGE), _named(said, QUEUE), said.get("key", "")
    if not _KEY.fullmatch(key):
        raise InvalidRequest("the key is not 0 to 200 visible characters")
    name = binding_name(exchange, queue, key)
    there = (BINDING, name) in configuration
    if request == UNBIND:
        if not there:
            raise InvalidRequest("no-such-binding")
        return [(False, BINDING, name, {})]
    for kind, end in ((EXCHANGE, exchange), (QUEUE, queue)):
        if (kind, end) not in configuration:
            raise InvalidRequest(f"no-such-{kind}")
    if there:
        raise InvalidRequest("binding-exists")
    if queue.startswith(LAST_VALUE):  # a message from an exchange would not be the value of a key
        raise InvalidRequest(f"{queue}: values are written to {LAST_VALUE_PREFIX}NAME, and come from no exchange")
    return [(True, BINDING, name, {"exchange": exchange, "queue": queue, "key": key})]


def _named(said: Mapping[str, str], what: str) -> str:
    name = said.get(what, "")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{what}: a name of 1 to 200 visible characters without / is missing")
    return name


def listing(configuration: Configuration, said: Mapping[str, str], page: int) -> dict[str, str]:
    """List all objects, or those of a ``kind`` or of a ``name``, in order; return the headers of the answer. A list
    longer than about ``page`` bytes is cut: ``x-more`` is the value of ``after`` for the next request."""
    found: list[str] = []
    size, last = 0, ""
    for (kind, name), arguments in sorted(configuration.items()):
        place = f"{kind} {name}"
        if place <= said.get("after", "") or said.get("kind", kind) != kind or said.get("name", name) != name:
            continue
        one = json.dumps([kind, name, dict(arguments)])
        size += len(one)
        if found and size > page:
            return {"x-answer": f"[{', '.join(found)}]", "x-more": last}
        found.append(one)
        last = place
    return {"x-answer": f"[{', '.join(found)}]"}
