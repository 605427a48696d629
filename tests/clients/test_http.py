"""The HTTP client: its mapping, outcomes against a server that breaks off after every byte, and etcd's gateway."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from certificates import certificates
from cut_server import FAIL, INFO, OK, Cut, every_cut, outcome, serving
from http_script import MAPPING, HttpScript
from loopback import free_ports

from stormproof.clients import PROTOCOLS
from stormproof.clients.http import HttpConnection, requests_of
from stormproof.contracts.client import LogEntry, NotDone
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError

pytest.importorskip("httpx")

HTTP = PROTOCOLS.load("http")
ETCD = """
[connect]
method = "POST"
path = "/v3/maintenance/status"
body = "{}"

[get]
method = "POST"
path = "/v3/kv/range"
body = '{"key": "{name_base64}"}'
value = "kvs.0.value"
base64 = true

[write]
method = "POST"
path = "/v3/kv/put"
body = '{"key": "{name_base64}", "value": "{body_base64}"}'

[cas]
method = "POST"
path = "/v3/kv/txn"
body = '''{"compare": [{"key": "{name_base64}", "target": "VALUE", "result": "EQUAL", "value": "{expected_base64}"}],
 "success": [{"request_put": {"key": "{name_base64}", "value": "{body_base64}"}}]}'''
value = "succeeded"

[cas_new]
method = "POST"
path = "/v3/kv/txn"
body = '''{"compare": [{"key": "{name_base64}", "target": "CREATE", "result": "EQUAL", "create_revision": "0"}],
 "success": [{"request_put": {"key": "{name_base64}", "value": "{body_base64}"}}]}'''
value = "succeeded"

[delete]
method = "POST"
path = "/v3/kv/deleterange"
body = '{"key": "{name_base64}"}'

[append]
method = "POST"
path = "/v3/kv/put"
body = '{"key": "{name_base64}", "value": "{body_base64}"}'
value = "header.revision"

[entries]
method = "POST"
path = "/v3/kv/range"
body = '{"key": "{name_base64}"}'
items = "kvs"
offset = "mod_revision"
value = "value"
base64 = true
"""


def setup_of(port: int = 0, mapping: str = MAPPING, demands: Demands | None = None,
             access: Access | None = None) -> BrokerSetup:  # fmt: skip
    return BrokerSetup([Broker("n1", "127.0.0.1", port)], access or Access(), demands or Demands(("q0",)),
                       {"http_requests": mapping})  # fmt: skip


def connection() -> HttpConnection:
    return HttpConnection(setup_of(), requests_of(MAPPING))


async def send(client: HttpConnection) -> None:
    await client.send("q0", b"1/2")


async def acknowledge(client: HttpConnection) -> None:
    delivery = await client.take("q0", 5.0)
    assert delivery is not None and delivery.body == b"1/2"
    await delivery.ack()


async def test_a_message_that_was_received_never_counts_as_not_done() -> None:
    counts = await every_cut(HttpScript, connection, send, lambda script: script.published == [b"1/2"])
    assert counts[INFO] > 100, counts


async def test_an_acknowledgement_that_was_received_never_counts_as_not_done() -> None:
    counts = await every_cut(lambda: HttpScript(holds=b"1/2"), connection, acknowledge,
                             lambda script: script.requests[-1:] == ["DELETE /queues/q0/messages/a%2Fb"])  # fmt: skip
    assert counts[INFO] > 100, counts


@pytest.mark.parametrize(("status", "ends"), [
    (201, OK), (429, FAIL), (200, INFO), (307, INFO), (400, INFO), (404, INFO), (500, INFO), (503, INFO),
])  # fmt: skip
async def test_statuses(status: int, ends: str) -> None:
    async with serving(HttpScript(status), Cut()) as cutter:
        assert await outcome(connection(), cutter.port, send) == ends


async def test_nobody_listens() -> None:
    async with serving(HttpScript(), Cut()) as cutter:
        port = cutter.port
    assert await outcome(connection(), port, send) == FAIL


async def test_a_server_that_is_gone_before_a_request_has_not_done_it() -> None:
    script = HttpScript()
    async with serving(script, Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "127.0.0.9")
    with pytest.raises(NotDone, match="no connection"):
        await send(client)
    await client.close()
    assert not script.requests


async def test_an_empty_queue() -> None:
    script = HttpScript()
    async with serving(script, Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "")
        assert await client.take("q0", 0.25) is None and await client.depth("q0") is None
        await client.close()
    assert script.requests == ["POST /queues/q0/take?wait=250"]


@pytest.mark.parametrize(("mapping", "told"), [
    ("/none/such.toml", "can't read '/none/such.toml'"), ("a = = b", "no TOML"), ("[fetch]\nmethod = 'GET'", "'fetch'"),
    ("[send]\npath = '/'", "needs method"), ("[send]\nmethod = 'GET'\npath = '/'\nokay = [1]", "'okay'"),
    ("[send]\nmethod = 'GET'\npath = '/'\nok = 201", "ok = 201"), ("send = 1", "'send'"),
    ("[send]\nmethod = 'GET'\npath = '/'\nok = ['201']", "ok = "),
    ("[send]\nmethod = 'GET'\npath = '/'", "no [take], which queues need"),
])  # fmt: skip
def test_mappings_that_are_wrong(mapping: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        HTTP.connection(setup_of(mapping=mapping))
    assert told in str(error.value) and "\n" not in str(error.value)


def test_a_mapping_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "requests.toml").write_text(MAPPING)
    assert requests_of(str(tmp_path / "requests.toml")) == requests_of(MAPPING)


async def test_etcd(tmp_path: Path) -> None:
    if not shutil.which("etcd"):
        pytest.skip("etcd is not installed (apt-get install etcd-server)")
    port, peer = free_ports(2)
    tls = certificates(tmp_path)
    here = f"https://127.0.0.1:{port}"
    server = subprocess.Popen(
        ["etcd", "--data-dir", tmp_path / "data", "--listen-client-urls", here, "--advertise-client-urls", here,
         "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
         "--initial-cluster", f"default=http://127.0.0.1:{peer}", "--cert-file", tls.cert, "--key-file", tls.key,
         "--trusted-ca-file", tls.ca, "--client-cert-auth"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        setup = setup_of(port, ETCD, Demands(registers=("r0",), logs=("l0",)), Access(tls=tls))
        while True:
            client = HTTP.connection(setup)
            try:
                await client.connect("127.0.0.1", port, "127.0.0.9")
                break
            except Exception:
                assert server.poll() is None
                await client.close()
                await asyncio.sleep(0.05)
        await HTTP.prepare(setup)
        assert await client.read("r0") is None
        swaps = [(None, b"1"), (None, b"2"), (b"1", b"3"), (b"1", b"4")]
        assert [await client.cas("r0", *swap) for swap in swaps] == [True, False, True, False]
        await client.write("r0", b"\xff")
        assert await client.read("r0") == b"\xff"
        offset = await client.append("l0", b"a")
        assert offset > 0 and await client.read("l0", 0, 9) == [LogEntry(offset, b"a")]
        assert await HTTP.clear(setup, ["r0"]) == () and await client.read("r0") is None
        await client.close()
        misnamed = HTTP.connection(replace(setup, access=Access(tls=replace(tls, name=""))))
        with pytest.raises(NotDone, match="certificate"):
            await misnamed.connect("127.0.0.1", port, "")
        await misnamed.close()
    finally:
        server.kill()
        server.wait()
