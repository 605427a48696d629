"""The MQTT client: outcomes against a server that breaks off after every byte, by reasons, and on Mosquitto."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certificates import certificates
from cut_server import FAIL, INFO, OK, Cut, every_cut, outcome, serving, until
from loopback import free_ports
from mqtt_script import MqttScript

from stormproof.clients import PROTOCOLS
from stormproof.clients.mqtt import MqttConnection
from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import NotDone
from stormproof.contracts.protocol_client import Access, Broker, BrokerSetup
from stormproof.contracts.workload_requirements import Demands

pytest.importorskip("paho.mqtt.client")

MQTT = PROTOCOLS.load("mqtt")
VERSIONS = [("3.1.1", "1"), ("3.1.1", "2"), ("5", "1"), ("5", "2")]


def setup_of(port: int = 0, access: Access | None = None, **options: Any) -> BrokerSetup:
    return BrokerSetup([Broker("n1", "127.0.0.1", port)], access or Access(), Demands(queues=("q0",)), options)


def connection(version: str = "3.1.1", qos: str = "1") -> MqttConnection:
    return MqttConnection(setup_of(mqtt_version=version, qos=qos))


async def send(client: MqttConnection) -> None:
    await client.send("q0", b"1/2")


async def acknowledge(client: MqttConnection) -> None:
    delivery = await client.take("q0", 5.0)
    assert delivery is not None and delivery.body == b"1/2"
    await delivery.ack()


@pytest.mark.parametrize(("version", "qos"), VERSIONS)
async def test_a_publish_that_was_received_never_counts_as_not_done(version: str, qos: str) -> None:
    counts = await every_cut(lambda: MqttScript(version == "5"), lambda: connection(version, qos), send,
                             lambda script: script.published == [b"1/2"])  # fmt: skip
    assert counts[INFO] > 10 and counts[FAIL] > 10, counts


@pytest.mark.parametrize(("version", "qos"), VERSIONS)
async def test_an_acknowledgement_counts_once_the_broker_has_answered_after_it(version: str, qos: str) -> None:
    counts = await every_cut(lambda: MqttScript(version == "5", holds=b"1/2", quality=int(qos)),
                             lambda: connection(version, qos), acknowledge,
                             lambda script: script.acknowledged == 1)  # fmt: skip
    assert counts[INFO] > 3 and counts[FAIL] > 50, counts


@pytest.mark.parametrize(("version", "qos"), VERSIONS)
@pytest.mark.parametrize(("reason", "ends"), [(0, OK), (0x10, FAIL), (0x80, FAIL), (0x87, FAIL), (0x97, FAIL)])
async def test_reasons(version: str, qos: str, reason: int, ends: str) -> None:
    """MQTT 3.1.1 has none."""
    async with serving(MqttScript(version == "5", reason), Cut()) as cutter:
        assert await outcome(connection(version, qos), cutter.port, send) == (ends if version == "5" else OK)


async def test_a_failed_completion_may_have_happened() -> None:
    async with serving(MqttScript(True, complete=0x92), Cut()) as cutter:
        assert await outcome(connection("5", "2"), cutter.port, send) == INFO


async def test_after_a_refusal_the_connection_is_usable() -> None:
    script = MqttScript(True, reason=0x97)
    async with serving(script, Cut()) as cutter:
        client = connection("5", "2")
        await client.connect("127.0.0.1", cutter.port, "")
        for _ in range(30):  # more than may be under way
            with pytest.raises(NotDone, match="0x97"):
                await send(client)
        await client.close()
    assert len(script.published) == 30


async def test_a_connection_known_to_be_lost_sends_nothing_and_is_not_made_again() -> None:
    script = MqttScript()
    async with serving(script, Cut()) as cutter:
        client = connection()
        await client.connect("127.0.0.1", cutter.port, "127.0.0.1")
        cutter.end()
        await until(lambda: client._sender._lost)
        with pytest.raises(NotDone, match="lost"):
            await send(client)
        await client.close()
    assert not script.published


@asynccontextmanager
async def mosquitto(folder: Path, *lines: str) -> AsyncIterator[int]:
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if program is None:
        pytest.skip("mosquitto is not installed (apt-get install mosquitto)")
    (port,) = free_ports(1)
    anonymous = [] if any(line.startswith("password_file") for line in lines) else ["allow_anonymous true"]
    config = folder / "mosquitto.conf"
    config.write_text("\n".join([f"listener {port} 127.0.0.1", "user root", *anonymous, *lines, ""]))
    server = subprocess.Popen([program, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                assert server.poll() is None
                await asyncio.sleep(0.05)
                continue
            writer.close()
            break
        yield port
    finally:
        server.kill()
        server.wait()


async def bodies(client: MqttConnection, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            if delivery := await client.take("q0", 0.2):
                found.append(delivery.body)
                await delivery.ack()
    return found


@pytest.mark.parametrize(("version", "qos"), VERSIONS)
async def test_on_mosquitto(version: str, qos: str, tmp_path: Path) -> None:
    async with mosquitto(tmp_path) as port:
        setup = setup_of(port, mqtt_version=version, qos=qos)
        await MQTT.prepare(setup)
        client = MQTT.connection(setup)
        await client.connect("127.0.0.1", port, "127.0.0.9")
        assert client._sender._client.socket().getsockname()[0] == "127.0.0.9"
        for number in range(50):
            await client.send("q0", b"%d" % number)
        assert await client.depth("q0") is None
        assert await bodies(client, 10) == [b"%d" % number for number in range(10)]
        unfinished = await client.take("q0", 1.0)
        assert unfinished is not None and unfinished.body == b"10"
        await client.close()

        other = MQTT.connection(setup)
        await other.connect("127.0.0.1", port, "")
        assert sorted(map(int, await bodies(other, 40))) == list(range(10, 50))
        assert await other.take("q0", 0.1) is None
        await other.close()
        assert await MQTT.clear(setup, ["q0"]) == ()


async def test_a_queue_without_a_session_takes_no_message(tmp_path: Path) -> None:
    async with mosquitto(tmp_path) as port:
        setup = setup_of(port, mqtt_version="5")
        assert await outcome(MQTT.connection(setup), port, send) == FAIL
        await MQTT.prepare(setup)
        assert await outcome(MQTT.connection(setup), port, send) == OK


async def test_consumers_that_share_a_queue(tmp_path: Path) -> None:
    async with mosquitto(tmp_path) as port:
        setup = setup_of(port, mqtt_version="5", shared=2)
        await MQTT.prepare(setup)
        one, two, three = (MQTT.connection(setup) for _ in range(3))
        for client in (one, two, three):
            await client.connect("127.0.0.1", port, "")
        assert await one.take("q0", 0.1) is None and await two.take("q0", 0.1) is None
        with pytest.raises(NotDone, match="set shared"):
            await three.take("q0", 0.1)
        for number in range(20):
            await three.send("q0", b"%d" % number)
        first, second = await one.take("q0", 2.0), await two.take("q0", 2.0)
        assert first is not None and second is not None and first.body != second.body
        await first.ack()
        await two.close()  # its session has messages that only a consumer in its place gets
        rest = await bodies(one, 19)
        assert sorted(map(int, [first.body, *rest])) == list(range(20))
        await one.close()
        assert await three.take("q0", 0.1) is None
        await three.close()


async def test_tls_and_a_password(tmp_path: Path) -> None:
    tls = certificates(tmp_path)
    passwords = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-b", "-c", passwords, "bob", "open-sesame"], check=True)
    lines = (f"cafile {tls.ca}", f"certfile {tls.cert}", f"keyfile {tls.key}", f"password_file {passwords}")
    async with mosquitto(tmp_path, *lines) as port:
        access = Access(Credentials("bob", "open-sesame"), tls=tls)
        assert await outcome(MQTT.connection(setup_of(port, access)), port, send) == OK
        for wrong in (replace(access, tls=replace(tls, name="")), Access(tls=tls)):
            client = MQTT.connection(setup_of(port, wrong))
            with pytest.raises(Exception, match=r"certificate|refused"):
                await client.connect("127.0.0.1", port, "")
            await client.close()
