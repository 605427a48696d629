"""The part of a dialogue about exchanges, queues and bindings: the objects of a broker such as qpid's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from nodes.reference.engine.topics import EXCHANGE_PREFIX, MANAGEMENT
from workloads.reference.connection import ConnectionBroken, Rejected
from workloads.reference.dialogue.broker_model import Mismatch
from workloads.reference.dialogue.speaker import DialogueSpeaker
from workloads.reference.stomp_client import json_request

_KINDS = ("direct", "fanout", "topic")
_KEYS = ("x", "x.y", "x.y.z")
_BINDING_KEYS = (*_KEYS, "x.*", "x.>", "*.y", "x", "x.y")


class ExchangeDialogue:
    """The private objects of one client."""

    def __init__(self, client: DialogueSpeaker) -> None:
        self._client = client
        self._levels = 0

    async def _ask(self, request: str, body: Mapping[str, str], wrong: str | None) -> Mapping[str, str]:
        """Send a request about objects; ``wrong`` is the prefix of the expected error, None if the request must be
        carried out."""
        self._client.said.append(f"{request} {dict(body)}")
        try:
            answer: Mapping[str, str] = await self._client.request("SEND", *json_request(MANAGEMENT, request, body))
        except Rejected as error:
            raise Mismatch(f"{request} was refused ({error})") from None
        said = answer.get("x-error", "")
        if said == "unknown":
            raise ConnectionBroken("its outcome is unknown")
        if bool(said) != (wrong is not None) or not said.startswith(wrong or ""):
            raise Mismatch(f"{request} was answered by {said or 'yes'}, not {wrong or 'yes'}")
        return answer

    async def _send_some(self, queue: str, numbers: Sequence[int]) -> None:
        for _ in range(self._client.rng.choice(numbers)):
            await self._client.send_to(f"/queue/{queue}")

    async def configure(self) -> None:
        """Create or delete a queue, an exchange, or a binding."""
        model, rng = self._client.model, self._client.rng
        exchange, queue = f"{self._client.mine}-{rng.choice('fgh')}", self._client.queue()
        if model.exchanges and rng.random() < 0.6:
            exchange = rng.choice(sorted(model.exchanges))
        there, has_queue = exchange in model.exchanges, queue in model.queues
        match rng.choice(("exchange", "exchange", "bind", "bind", "bind", "unbind", "queue", "queue", "queue", "queue",
                          "queue", "list", "level", "wrong", "wrong")):
            case "exchange" if there and rng.random() < 0.5:
                await self._ask("delete-exchange", {"exchange": exchange}, None)
                model.delete_exchange(exchange)
                if rng.random() < 0.5:  # a new exchange of the same name must inherit nothing
                    await self._make_exchange(exchange, rng.choice((0.0, 0.5)))
                    await self.send()
            case "exchange" if there:
                kind = rng.choice(_KINDS)
                await self._ask("create-exchange", {"exchange": exchange, "type": kind},
                                _exists(exchange, model.exchanges[exchange] == kind))
            case "exchange":
                await self._make_exchange(exchange, 0.5)
                await self.send()
            case "bind" if there and has_queue:
                key = rng.choice(_BINDING_KEYS)
                known = (exchange, queue, key) in model.bindings
                await self._ask("bind", {"exchange": exchange, "queue": queue, "key": key},
                                "binding-exists" if known else None)
                model.bindings.add((exchange, queue, key))
            case "unbind" if model.bindings:
                exchange, queue, key = rng.choice(sorted(model.bindings))
                await self._ask("unbind", {"exchange": exchange, "queue": queue, "key": key}, None)
                model.bindings.remove((exchange, queue, key))
            case "queue" if not has_queue:
                await self._ask("create-queue", {"queue": queue}, None)
                model.queue(queue)
                await self._send_some(queue, (0, 2, 4))
            case "queue" if not model.queues[queue].subscriptions and not self._meant_for(queue):
                await self._ask("delete-queue", {"queue": queue}, None)
                model.delete_queue(queue)
                await self._send_some(queue, (0, 2, 4, 8))  # a new queue of the same name must inherit nothing
            case "list":
                await self._list()
            case "level":
                await self._make_unreplicated()
            case "wrong":
                await self._ask_wrongly(exchange, queue)
            case _:
                pass
        self._client.coverage.use("qpid-objects")

    async def _ask_wrongly(self, exchange: str, queue: str) -> None:
        """Send a request that is refused and changes nothing."""
        rng, model = self._client.rng, self._client.model
        nobody = f"{self._client.mine}-nobody"
        there, has_queue = exchange in model.exchanges, queue in model.queues
        key = rng.choice(_BINDING_KEYS)
        wrong: list[tuple[str, dict[str, str], str]] = [
            ("delete-queue", {"queue": nobody}, "no-such-queue"),
            ("delete-exchange", {"exchange": nobody}, "no-such-exchange"),
            ("unbind", {"exchange": nobody, "queue": queue, "key": key}, "no-such-binding"),
            ("bind", {"exchange": nobody, "queue": queue, "key": key}, "no-such-exchange"),
            ("create-exchange", {"exchange": nobody, "type": "headers"}, "type "),
            ("create-queue", {"queue": nobody, "qpid.replicate": "some"}, "qpid.replicate "),
            ("create-queue", {"queue": nobody, "qpid.store_errors": "some"}, "qpid.store_errors "),
            ("create-queue", {"queue": nobody, "created": "1.1"}, "created: "),
            ("create-queue", {"queue": f"{nobody}/{key}"}, "queue: "),
            ("create-queue", {}, "queue: "),
            ("create-queue", {"queue": nobody, "x": "x" * 500}, "arguments "),
            ("create-queue", {"queue": nobody, **{f"x{number}": "" for number in range(17)}}, "arguments "),
            ("make-queue", {"queue": nobody}, "there is no request "),
        ]
        if there:
            wrong += [("bind", {"exchange": exchange, "queue": nobody, "key": key}, "no-such-queue"),
                      ("create-exchange", {"exchange": exchange, "type": model.exchanges[exchange], "x": "y"},
                       f"exchange {exchange} exists with other arguments")]  # fmt: skip
            if has_queue and (exchange, queue, key) not in model.bindings:
                wrong.append(("unbind", {"exchange": exchange, "queue": queue, "key": key}, "no-such-binding"))
        if has_queue:
            wrong += [("create-queue", {"queue": queue, "x": "y"}, f"queue {queue} exists with other arguments"),
                      ("create-queue", {"queue": queue}, "queue-exists")]  # fmt: skip
        await self._ask(*rng.choice(wrong))
        self._client.coverage.use("qpid-refused")

    async def _make_exchange(self, exchange: str, share: float) -> None:
        """Create an exchange, and bind a ``share`` of the queues to it."""
        kind = self._client.rng.choice(_KINDS)
        await self._ask("create-exchange", {"exchange": exchange, "type": kind}, None)
        self._client.model.exchanges[exchange] = kind
        for queue in sorted(self._client.model.queues):
            if self._client.rng.random() < share:
                key = self._client.rng.choice(_BINDING_KEYS)
                await self._ask("bind", {"exchange": exchange, "queue": queue, "key": key}, None)
                self._client.model.bindings.add((exchange, queue, key))

    async def _make_unreplicated(self) -> None:
        """Create a queue that other brokers must not replicate, or of which they replicate the name only; the model
        ignores its content."""
        self._levels += 1
        queue = f"level-{self._client.mine}-{self._levels}"
        level = self._client.rng.choice(("none", "none", "configuration"))
        await self._ask("create-queue", {"queue": queue, "qpid.replicate": level}, None)
        await self._client.say("SEND", {"destination": f"/queue/{queue}"}, b"for whoever is here")
        self._client.coverage.use("qpid-replicate")

    def _meant_for(self, queue: str) -> bool:
        """Return whether a transaction will send to this queue."""
        return any(item.destination == f"/queue/{queue}" for each in self._client.model.transactions.values()
                   for item in each.items)  # fmt: skip

    async def _list(self) -> None:
        """Check that the listed objects of this client are exactly those that exist."""
        model = self._client.model
        ends = {"\n".join(each) for each in model.bindings}
        for kind, known in (("exchange", set(model.exchanges)), ("queue", {*model.queues, *model.apart}),
                            ("binding", ends)):
            found: list[str] = []
            after = ""
            while True:
                answer = await self._ask("list", {"kind": kind, **({"after": after} if after else {})}, None)
                found += [name for _, name, _ in json.loads(answer["x-answer"])]
                before, after = after, answer.get("x-more", "")
                if not after:
                    break
                if after == before:
                    raise Mismatch("a list does not go on")
                self._client.coverage.use("qpid-pages")
            mine = [name for name in found if name.startswith((f"{self._client.mine}-", f"{self._client.mine}."))]
            if sorted(mine) != sorted(known):
                raise Mismatch(f"other {kind}s are listed than there are")
        if model.exchanges:
            await self._list_one(self._client.rng.choice(sorted(model.exchanges)))

    async def _list_one(self, exchange: str) -> None:
        """Check that an exchange is listed with the arguments with which it was created."""
        answer = await self._ask("list", {"kind": "exchange", "name": exchange}, None)
        expected = [["exchange", exchange, {"type": self._client.model.exchanges[exchange]}]]
        if json.loads(answer["x-answer"]) != expected:
            raise Mismatch(f"of exchange {exchange} {answer['x-answer']} is listed")

    async def send(self) -> None:
        """Send a message through an exchange, if there is one."""
        if not self._client.model.exchanges:
            return
        exchange = self._client.rng.choice(sorted(self._client.model.exchanges))
        destination = f"{EXCHANGE_PREFIX}{exchange}/{self._client.rng.choice(_KEYS)}"
        headers, body = self._client.content()
        await self._client.say("SEND", {"destination": destination, **headers}, body)
        self._client.model.send(destination, headers, body)
        self._client.coverage.use(f"qpid-{self._client.model.exchanges[exchange]}")


def _exists(exchange: str, alike: bool) -> str:
    return "exchange-exists" if alike else f"exchange {exchange} exists with other arguments"
