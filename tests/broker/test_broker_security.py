"""Principals and rights over the wire, with a broker in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from broker_process import BrokerProcess, RawClient
from test_broker_process import refused

pytestmark = pytest.mark.requirement("F8", part=True)


async def ask(client: RawClient, request: str, **said: str) -> dict[str, str]:
    client.send("SEND", {"destination": "/security", "x-request": request, "receipt": "r"}, json.dumps(said).encode())
    answer = await client.expect("RECEIPT")
    return {name: text for name, text in answer.headers.items() if name.startswith("x-")}


async def turned_away(port: int, login: str, passcode: str) -> str:
    client = await RawClient.dial(port)
    client.hello(login=login, passcode=passcode)
    error = await client.expect("ERROR")
    return error.headers["message"]


async def denied(client: RawClient, command: str, headers: dict[str, str], body: bytes = b"") -> str:
    client.send(command, {**headers, "receipt": "d"}, body)
    error = await client.expect("ERROR")
    assert error.headers["receipt-id"] == "d"
    return error.headers["message"]


async def test_principals_log_in_and_are_let_do_what_they_may_also_after_a_restart(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, security=True, passcode_cost=1024).start()
    admin = await RawClient.connect(broker.port)
    assert await ask(admin, "create-principal", login="ann", passcode="hush-hush") == {}
    assert await ask(admin, "create-principal", login="ann", passcode="other") == {"x-error": "principal-exists"}
    assert await ask(admin, "grant", login="ann", right="produce", destination="/queue/a") == {}
    assert await ask(admin, "create-object", name="factory", type="queue") == {}
    for _ in range(2):
        assert await turned_away(broker.port, "ann", "wrong") == "wrong login or passcode"
        assert await turned_away(broker.port, "nobody", "hush-hush") == "wrong login or passcode"
        ann = await RawClient.connect(broker.port, login="ann", passcode="hush-hush")
        ann.send("SEND", {"destination": "/queue/a", "receipt": "1"}, b"body")
        await ann.expect("RECEIPT")
        assert await ask(ann, "look-up", name="factory") == {"x-answer": '{"type": "queue"}'}
        assert (await ask(ann, "list"))["x-error"].startswith("access denied")
        assert await denied(ann, "SEND", {"destination": "/queue/b"}) == "access denied: produce /queue/b"
        ann = await RawClient.connect(broker.port, login="ann", passcode="hush-hush")
        assert "consume" in await denied(ann, "SUBSCRIBE", {"destination": "/queue/a", "id": "0"})
        broker.kill()
        broker.start()
    broker.stop()
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"hush-hush" not in kept, "neither in a log nor in the store"


async def test_a_right_that_is_taken_away_ends_its_consumer_at_once(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, security=True, passcode_cost=2).start()
    admin = await RawClient.connect(broker.port)
    await ask(admin, "create-principal", login="ann", passcode="p")
    await ask(admin, "grant", login="ann", right="consume", destination="/topic/>")
    ann = await RawClient.connect(broker.port, login="ann", passcode="p")
    ann.send("SUBSCRIBE", {"destination": "/topic/news", "id": "0", "receipt": "1"})
    await ann.expect("RECEIPT")
    assert await ask(admin, "revoke", login="ann", right="consume", destination="/topic/>") == {}
    assert (await ann.expect("ERROR")).headers["message"] == "access denied"
    broker.stop()


@pytest.mark.parametrize(("body", "reason"), [
    (b"[]", "not a JSON object"), (b"{", "not a JSON object"), (b'{"login": 5}', "object of texts"),
    (b'{"login": "\\ud800"}', "half a character"), (b"{" * 5000, "not a JSON object")])  # fmt: skip
async def test_what_is_no_request_ends_the_connection_with_a_reason(tmp_path: Path, body: bytes, reason: str) -> None:
    broker = BrokerProcess(tmp_path, security=True, passcode_cost=2).start()
    admin = await RawClient.connect(broker.port)
    assert reason in await denied(admin, "SEND", {"destination": "/security", "x-request": "list"}, body)
    broker.stop()


async def test_without_the_option_there_is_nothing_of_the_kind(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    client = await RawClient.connect(broker.port)
    assert "destination" in await denied(client, "SEND", {"destination": "/security", "x-request": "list"}, b"{}")
    broker.stop()


@pytest.mark.parametrize(("settings", "told"), [
    ({"options": {"security": "on"}}, "options.security"), ({"options": {"passcode_cost": 5}}, "options.passcode_cost"),
    ({"design": "icestorm", "peers": {"n1": ["127.0.0.1", 1]}, "options": {"security": True}},
     "design icestorm has no principals")])  # fmt: skip
def test_a_configuration_that_makes_no_sense_is_refused(tmp_path: Path, settings: dict[str, Any], told: str) -> None:
    assert told in refused(tmp_path, **settings)
