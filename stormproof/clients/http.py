"""HTTP: queues, logs and registers of brokers whose requests a small mapping declares.

The option ``http_requests`` is the mapping, as TOML text, or the path of a file with it (docs/clients.md): a table for
each operation, with method, path, headers, body, and the statuses that mean *ok*, *empty* or *not done*.

Outcomes, by RFC 9110:

* Certainly not done: no connection (nothing was written), and the statuses that the mapping lists as ``not_done``.
* Done: the statuses that it lists as ``ok``, once the whole answer has arrived.
* May have happened: every other status (15.6: with 5xx, "the server is aware that it has erred or is incapable of
  performing the requested method"; that does not say that it has done nothing), and no answer, or an incomplete one.
* Nothing is sent again (9.2.2: "A client SHOULD NOT automatically retry a request with a non-idempotent method"), and
  redirections are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, overload
from urllib.parse import quote

from stormproof.contracts.client import Delivery, LogEntry, NotDone
from stormproof.contracts.option import Option
from stormproof.contracts.protocol_client import Broker, BrokerSetup, ProtocolClient
from stormproof.errors import UsageError

CONNECT_SECONDS = 2.0
TIME_SECONDS, ASK_SECONDS, EXACT_SECONDS = 7.0, 0.02, 0.08
"""How long a server's time is read at most, the pause between two requests, and the exactness of the result: a clock
fault is proven within half of its smallest jump, 0.2 s, and two readings are compared."""
OPERATIONS = ("connect", "create", "delete", "send", "take", "ack", "give_back", "depth", "append", "entries", "get",
              "write", "cas", "cas_new")  # fmt: skip
"""``entries`` reads a log, ``get`` a register; ``cas_new`` sets a register that has no value."""
_NEEDS = {"queues": ("send", "take"), "logs": ("append", "entries"), "registers": ("get", "write")}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_HEADER = "header:"


@dataclass(frozen=True)
class Request:
    """One operation's request, and the meaning of its answer.

    ``path``, ``headers`` and ``body`` may have placeholders: ``{queue}`` or ``{name}``, ``{body}``, ``{expected}``,
    ``{receipt}``, ``{after}``, ``{limit}``, ``{seconds}``, ``{milliseconds}``; ``{body_base64}`` and the like are
    encoded. ``ok``, ``empty`` and ``not_done`` are statuses.

    ``value`` is the place in the answer of what the operation returns: the message, value, offset, or number; a dotted
    path in JSON, ``header:NAME``, or empty: the whole answer. ``base64``: it is encoded. ``receipt`` is the place of
    what ``ack`` and ``give_back`` send as ``{receipt}``. ``items`` is the place of a log's entries, in each of which
    ``offset`` and ``value`` are places.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    ok: tuple[int, ...] = (200,)
    empty: tuple[int, ...] = ()
    not_done: tuple[int, ...] = ()
    value: str = ""
    base64: bool = False
    receipt: str = ""
    items: str = ""
    offset: str = "offset"


def requests_of(text: str) -> dict[str, Request]:
    """Return the requests of a mapping, by operation.

    Raises:
        UsageError: the text is neither TOML nor a file's path, or declares something else.
    """
    where = "http_requests"
    if "\n" not in text and "=" not in text:
        where = text
        try:
            text = Path(text).read_text()
        except OSError as error:
            raise UsageError(f"http_requests: can't read {where!r}: {error.strerror}; "
                             "give TOML text or a file's path") from error
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: no TOML: {error}") from error
    return {name: _request(where, name, table) for name, table in tables.items()}


def _request(where: str, name: str, table: object) -> Request:
    if name not in OPERATIONS or not isinstance(table, dict):
        raise UsageError(f"{where}: no operation {name!r} (known: {', '.join(OPERATIONS)})")
    kinds = {each.name: type(getattr(_EXAMPLE, each.name)) for each in fields(Request)}
    if unknown := sorted(set(table) - set(kinds)):
        raise UsageError(f"{where}: [{name}] has no setting {unknown[0]!r} (known: {', '.join(kinds)})")
    if missing := {"method", "path"} - set(table):
        raise UsageError(f"{where}: [{name}] needs {min(missing)}")
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value
                             for key, value in table.items()}  # fmt: skip
    for key, value in given.items():
        whole = all(isinstance(each, int) for each in value) if isinstance(value, tuple) else True
        if not isinstance(value, kinds[key]) or not whole:
            raise UsageError(f"{where}: [{name}] {key} = {value!r}: not the kind of value that is needed")
    return Request(**given)


_EXAMPLE = Request("GET", "/")


class HttpConnection:
    """One client's connection to one server: each operation is one request, which is never sent again."""

    prefetch = 1

    def __init__(self, setup: BrokerSetup, requests: Mapping[str, Request]) -> None:
        self._access, self._requests = setup.access, requests
        self._client: Any = None

    async def connect(self, host: str, port: int, local: str) -> None:
        """Open a connection from the address ``local``, and send the request ``connect``, if there is one."""
        import httpx

        access = self._access
        bound = (local, 0) if local else None
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port, local_addr=bound), CONNECT_SECONDS)
        writer.close()
        transport = httpx.AsyncHTTPTransport(verify=access.tls.context() if access.tls else False, retries=0,
                                             local_address=local or None)  # fmt: skip
        login = access.credentials
        self._client = httpx.AsyncClient(
            base_url=f"{'https' if access.tls else 'http'}://{host}:{port}", transport=transport, trust_env=False,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            auth=(login.login, login.passcode) if login.login else None,
        )  # fmt: skip
        if "connect" in self._requests:
            await self._ask("connect")

    async def send(self, queue: str, body: bytes) -> None:
        """Send a message by ``send``."""
        await self._ask("send", queue=queue, body=body)

    async def take(self, queue: str, timeout: float) -> Delivery | None:
        """Take a message by ``take``; without ``ack``, that removes it."""
        request = self._requests["take"]
        times = {"seconds": f"{timeout:.0f}", "milliseconds": f"{timeout * 1000:.0f}"}
        answer = await self._ask("take", queue=queue, **times)
        if answer is None or (body := _found(answer, request.value, request)) is None:
            return None
        receipt = _text(_place(answer, request.receipt)) if request.receipt else ""

        async def settle(operation: str) -> None:
            if operation in self._requests:
                await self._ask(operation, queue=queue, receipt=receipt)

        give_back = (lambda: settle("give_back")) if "give_back" in self._requests else None
        return Delivery(body, lambda: settle("ack"), give_back)

    async def depth(self, queue: str) -> int | None:
        """Return the number of messages by ``depth``; None without it."""
        if "depth" not in self._requests:
            return None
        answer = await self._ask("depth", queue=queue)
        return 0 if answer is None else int(_text(_place(answer, self._requests["depth"].value)))

    async def append(self, name: str, body: bytes) -> int:
        """Append an entry by ``append``; the answer has its offset."""
        answer = await self._ask("append", name=name, body=body)
        return int(_text(_place(answer, self._requests["append"].value)))

    @overload
    async def read(self, name: str) -> bytes | None: ...
    @overload
    async def read(self, name: str, after: int, limit: int) -> Sequence[LogEntry]: ...
    async def read(self, name: str, after: int | None = None, limit: int = 0) -> bytes | Sequence[LogEntry] | None:
        """Return up to ``limit`` entries of a log after an offset by ``entries``; without them, the value of a register
        by ``get``."""
        if after is None:
            answer = await self._ask("get", name=name)
            return None if answer is None else _found(answer, self._requests["get"].value, self._requests["get"])
        request = self._requests["entries"]
        answer = await self._ask("entries", name=name, after=str(after), limit=str(limit))
        found = [] if answer is None else _place(answer, request.items) or []
        return [LogEntry(int(_walk(entry, request.offset)), _decoded(_walk(entry, request.value), request))
                for entry in found]  # fmt: skip

    async def write(self, name: str, value: bytes) -> None:
        """Set a register by ``write``."""
        await self._ask("write", name=name, body=value)

    async def cas(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """Compare and set by ``cas``, or ``cas_new`` if nothing is expected. ``empty`` statuses mean that it was not
        set; with ``value``, that place in the answer says whether it was."""
        operation = "cas_new" if expected is None else "cas"
        if operation not in self._requests:
            raise UsageError(f"http_requests: no [{operation}]")
        answer = await self._ask(operation, name=name, body=value, expected=expected or b"")
        place = self._requests[operation].value
        return answer is not None and (not place or bool(_place(answer, place)))

    async def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            await self._client.aclose()

    async def ask(self, operation: str, name: str) -> None:
        """Send the request of an operation on an object."""
        await self._ask(operation, name=name, queue=name)

    async def _ask(self, operation: str, **words: str | bytes) -> Any:
        """Return the answer to a request; None if its status means *empty*.

        Raises:
            NotDone: it certainly was not carried out. RuntimeError, httpx.HTTPError: it may have been.
        """
        import httpx

        request = self._requests[operation]
        known = {key: value.encode() if isinstance(value, str) else value for key, value in words.items()}
        known["name"] = known["queue"] = known.get("name", known.get("queue", b""))
        known |= {f"{key}_base64": base64.b64encode(value) for key, value in known.items()}
        tls = self._access.tls
        more = {"extensions": {"sni_hostname": tls.name}} if tls and tls.name else {}
        try:
            answer = await self._client.request(
                request.method, _filled(request.path, known, path=True).decode(),
                headers={key: _filled(value, known).decode() for key, value in request.headers.items()},
                content=_filled(request.body, known), **more)  # fmt: skip
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NotDone(f"no connection: {error}") from error
        if answer.status_code in request.ok:
            return answer
        if answer.status_code in request.empty:
            return None
        told = f"{operation}: status {answer.status_code}: {answer.text[:200]}"
        if answer.status_code in request.not_done:
            raise NotDone(told)
        raise RuntimeError(told)


def _filled(template: str, words: Mapping[str, bytes], *, path: bool = False) -> bytes:
    """Return a template with its placeholders filled; in a path they are percent-encoded."""

    def fill(found: re.Match[str]) -> str:
        if found[1] not in words:
            return found[0]
        word = words[found[1]]
        return quote(word, safe="") if path else word.decode("latin-1")

    return _PLACEHOLDER.sub(fill, template.encode().decode("latin-1")).encode("latin-1")


def _place(answer: Any, place: str) -> Any:
    """Return what is at a place in an answer; None if nothing is there."""
    if place.startswith(_HEADER):
        return answer.headers.get(place.removeprefix(_HEADER))
    return _walk(json.loads(answer.content), place) if place else answer.content


def _walk(found: Any, place: str) -> Any:
    for step in place.split(".") if place else ():
        if isinstance(found, list):
            found = found[int(step)] if int(step) < len(found) else None
        else:
            found = found.get(step) if isinstance(found, dict) else None
    return found


def _found(answer: Any, place: str, request: Request) -> bytes | None:
    found = _place(answer, place)
    return None if found is None else _decoded(found, request)


def _decoded(found: Any, request: Request) -> bytes:
    text = found if isinstance(found, bytes) else _text(found).encode()
    return base64.b64decode(text) if request.base64 else text


def _text(found: Any) -> str:
    if found is None:
        raise RuntimeError("the answer lacks what http_requests names")
    return found.decode() if isinstance(found, bytes) else str(found)


class Http(ProtocolClient):
    """Brokers with an HTTP interface."""

    name = "http"
    summary = "HTTP: requests that a mapping declares"
    port = 80
    tls_port = 443
    provides = frozenset({"queues", "logs", "registers"})
    distributions = ("httpx",)
    options = (Option("http_requests", "", "TOML that declares the requests, or the path of a file with it"),)

    def connection(self, setup: BrokerSetup) -> HttpConnection:
        """Return a connection to one server.

        Raises:
            UsageError: the mapping is wrong, or lacks an operation that the workload needs.
        """
        requests = requests_of(str(self.settings(setup)["http_requests"]))
        for kind, needed in _NEEDS.items():
            for operation in needed if getattr(setup.demands, kind) else ():
                if operation not in requests:
                    raise UsageError(f"http_requests: no [{operation}], which {kind} need")
        return HttpConnection(setup, requests)

    async def prepare(self, setup: BrokerSetup) -> None:
        """Send ``create``, if there is one, for each object."""
        demands = setup.demands
        await self._for_each("create", setup, (*demands.queues, *demands.logs, *demands.registers))

    async def time_of(self, setup: BrokerSetup, broker: Broker) -> float | None:
        """Return the time of day in the server's answers to ``HEAD /``: their header ``Date``, "the date and time at
        which the message was originated" (RFC 9110, 6.6.1). None without it, or if it can't be read exactly.

        The header counts whole seconds, so requests are repeated until another second has begun. The result is the time
        in the middle of this call.
        """
        import httpx

        access, clock = setup.access, asyncio.get_running_loop().time
        base = f"{'https' if access.tls else 'http'}://{broker.host}:{broker.port}"
        began, least, most = clock(), -math.inf, math.inf  # bounds of the difference of both clocks
        async with httpx.AsyncClient(base_url=base, verify=access.tls.context() if access.tls else False,
                                     trust_env=False, timeout=CONNECT_SECONDS) as client:  # fmt: skip
            while clock() - began < TIME_SECONDS:
                asked = clock()
                date = (await client.head("/")).headers.get("date")
                if not date:
                    return None
                second, now = parsedate_to_datetime(date).timestamp(), clock()
                least, most = max(least, second - now), min(most, second + 1 - asked)
                if least > most:  # the clock has jumped meanwhile
                    least, most = -math.inf, math.inf
                if most - least <= EXACT_SECONDS:
                    return (least + most) / 2 + (began + clock()) / 2
                await asyncio.sleep(ASK_SECONDS)
        return None

    async def clear(self, setup: BrokerSetup, names: Sequence[str]) -> Sequence[str]:
        """Send ``delete`` for each object; without it, all are left."""
        return () if await self._for_each("delete", setup, names) else names

    async def _for_each(self, operation: str, setup: BrokerSetup, names: Sequence[str]) -> bool:
        if operation not in requests_of(str(self.settings(setup)["http_requests"])):
            return False
        connection = await self.admitted(setup)
        try:
            for name in names:
                await connection.ask(operation, name)
        finally:
            await connection.close()
        return True


HTTP = Http()
