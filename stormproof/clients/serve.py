"""A Python client as a program: ``python -m stormproof.clients.serve NAME`` (docs/clients.md).

The harness starts it for protocol clients whose library can't bind to an address, in the client place's network.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from stormproof.clients import PROTOCOLS
from stormproof.clients.exec import InProgram
from stormproof.clients.program import (
    FEATURES,
    MAX_LINE_BYTES,
    VERSION,
    decode_bytes,
    encode_bytes,
)
from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import Delivery, NotDone, NotFound
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup, ProtocolClient, Tls
from stormproof.contracts.workload_requirements import Demands
from stormproof.text import reason, words_of


class Server:
    """The program's only connection, and its deliveries. ``write`` takes the lines for standard output."""

    def __init__(self, client: ProtocolClient, write: Callable[[Mapping[str, Any]], None]) -> None:
        self._client, self._write = client, write
        self._connection: Any = None
        self._deliveries: dict[int, Delivery] = {}
        self._numbers = itertools.count(1)
        self._acquiring: asyncio.Task[None] | None = None

    def hello(self) -> Mapping[str, Any]:
        """Return the first line."""
        return {"stormproof": VERSION, "can": sorted(self._client.provides & set(FEATURES))}

    async def take_line(self, line: bytes) -> None:
        """Carry out a request and write its answer. Only ``acquire`` continues beside the next request."""
        request = json.loads(line)
        if request["op"] == "acquire":
            self._acquiring = asyncio.create_task(self._answer(request))
        else:
            await self._answer(request)

    async def _answer(self, request: dict[str, Any]) -> None:
        number, op = request.pop("id"), request.pop("op")
        try:
            answer: dict[str, Any] = {"ok": await _OPS[op](self, request)}
        except NotDone as error:
            answer = {"fail": words_of(error) or reason(error)}
            if isinstance(error, NotFound):
                answer["missing"] = True
        except asyncio.CancelledError:
            answer = {"fail": "given up"}
        except Exception as error:
            answer = {"error": reason(error)}
        self._write({"id": number, **answer})

    async def _connect(self, request: dict[str, Any]) -> None:
        tls = request["tls"]
        names = {kind: tuple(found) for kind, found in request["names"].items()}
        setup = BrokerSetup(
            [Broker(**each) for each in request["addresses"]],
            Access(Credentials(request["login"], request["password"]), request["vhost"], request["sasl"],
                   Tls(**tls) if tls else None),
            Demands(queues=names["queues"], topics=names["topics"], logs=names["logs"], registers=names["registers"],
                    locks=names["locks"]), request["options"], request["hosts"],
        )  # fmt: skip
        self._connection = self._client.connection(setup)
        await self._connection.connect(request["host"], request["port"], request["local"])

    async def _send(self, request: dict[str, Any]) -> None:
        await self._connection.send(request["queue"], decode_bytes(request["body"]))

    async def _take(self, request: dict[str, Any]) -> Mapping[str, Any] | None:
        found: Delivery | None = await self._connection.take(request["queue"], request["timeout"])
        if found is None:
            return None
        number = next(self._numbers)
        self._deliveries[number] = found
        answer: dict[str, Any] = {"delivery": number, "body": encode_bytes(found.body), "number": found.number,
                                  "give_back": found.give_back is not None}  # fmt: skip
        if found.came is not None:
            answer["age"] = max(0.0, asyncio.get_running_loop().time() - found.came)
        return answer

    async def _ack(self, request: dict[str, Any]) -> None:
        await self._deliveries.pop(request["delivery"]).ack()

    async def _give_back(self, request: dict[str, Any]) -> None:
        give_back = self._deliveries.pop(request["delivery"]).give_back
        assert give_back is not None  # its delivery said so
        await give_back()

    async def _depth(self, request: dict[str, Any]) -> int | None:
        found: int | None = await self._connection.depth(request["queue"])
        return found

    async def _append(self, request: dict[str, Any]) -> int:
        return int(await self._connection.append(request["log"], decode_bytes(request["body"])))

    async def _read(self, request: dict[str, Any]) -> Any:
        if "log" in request:
            found = await self._connection.read(request["log"], request["after"], request["limit"])
            return [{"offset": entry.offset, "body": encode_bytes(entry.body)} for entry in found]
        value = await self._connection.read(request["register"])
        return None if value is None else encode_bytes(value)

    async def _set(self, request: dict[str, Any]) -> None:
        await self._connection.write(request["register"], decode_bytes(request["value"]))

    async def _cas(self, request: dict[str, Any]) -> bool:
        expected = request["expected"]
        return bool(await self._connection.cas(request["register"], None if expected is None else
                                               decode_bytes(expected), decode_bytes(request["value"])))  # fmt: skip

    async def _acquire(self, request: dict[str, Any]) -> int | None:
        token: int | None = await self._connection.acquire(request["lock"], request["seconds"])
        return token

    async def _give_up(self, request: dict[str, Any]) -> None:
        if self._acquiring is not None and not self._acquiring.done():
            self._acquiring.cancel()
            await asyncio.wait({self._acquiring})
        await self._connection.give_up(request["lock"])

    async def _release(self, request: dict[str, Any]) -> bool:
        return bool(await self._connection.release(request["lock"]))

    async def _close(self, request: dict[str, Any]) -> None:
        if self._connection is not None:
            await self._connection.close()


_OPS: Mapping[str, Callable[[Server, dict[str, Any]], Awaitable[Any]]] = {
    "connect": Server._connect, "send": Server._send, "take": Server._take, "ack": Server._ack,
    "give_back": Server._give_back, "depth": Server._depth, "append": Server._append, "read": Server._read,
    "write": Server._set, "cas": Server._cas, "acquire": Server._acquire, "give_up": Server._give_up,
    "release": Server._release, "close": Server._close,
}  # fmt: skip


async def serve(client: ProtocolClient) -> None:
    """Answer requests until the end of standard input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keep a library's output apart from the answers

    def write(line: Mapping[str, Any]) -> None:
        answers.write(json.dumps(line, separators=(",", ":")) + "\n")
        answers.flush()

    server = Server(client, write)
    write(server.hello())
    requests = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    while line := await requests.readline():
        await server.take_line(line)


def main() -> None:
    """Serve the protocol client that the command line names: a registered name, or ``MODULE:ATTRIBUTE``."""
    name = sys.argv[1]
    module, colon, attribute = name.partition(":")
    client = PROTOCOLS.accept(getattr(importlib.import_module(module), attribute), name) if colon \
        else PROTOCOLS.load(name)
    asyncio.run(serve(client.inner if isinstance(client, InProgram) else client))


if __name__ == "__main__":
    status = 0
    try:
        main()
    except BaseException:
        traceback.print_exc()
        status = 1
    os._exit(status)  # a thread that a blocking library holds would keep the process alive
