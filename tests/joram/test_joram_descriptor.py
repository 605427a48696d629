"""The configuration descriptor and the starting parameters of HA Joram (4.6.2, 4.6.3, 4.7.2)."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from joram_cluster import PATIENCE, QUEUE, ROOT, Client, status, until
from joram_servers import Node
from loopback import free_ports

from nodes.reference.__main__ import main
from nodes.reference.api import ConfigError
from nodes.reference.config import parse_config
from nodes.reference.designs.joram.options import JoramOptions
from nodes.reference.engine.limits import Limits
from nodes.reference.server.descriptor import LINK_OFFSET, config_of, parse_descriptor
from nodes.reference.server.services import SERVICES
from nodes.systems.reference.admin_connection import AdminConnection

DOCUMENT = Path(__file__).with_name("a3servers.xml").read_text()
"""The descriptor of section 4.6.3, letter by letter."""


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_descriptor(text.encode(), "a3servers.xml")
    return str(caught.value)


@pytest.mark.requirement("J13")
def test_the_documents_descriptor_is_read_as_printed():
    descriptor = parse_descriptor(DOCUMENT.encode(), "a3servers.xml")
    (server,) = descriptor.servers.values()
    assert (server.id, server.name, server.replicated) == (0, "s0", True)
    assert [(m.id, m.host, m.networks, m.client_port) for m in server.machines] == [
        (number, "localhost", {"D1": 16301 + number}, 2560 + number) for number in range(3)
    ]
    config = parse_config(config_of(descriptor, 0, "s0", 1, 3))
    assert (config.node, config.design, config.data, config.port) == ("s0.1", "joram", "s0", 2561)
    assert (config.login, config.passcode) == ("root", "root")
    assert config.client_addresses == {f"s0.{number}": f"localhost:{2560 + number}" for number in range(3)}
    assert list(config.peers) == ["s0.0", "s0.1", "s0.2"]
    assert config.options["nb_cluster_expected"] == 3
    assert config.networks == [[("localhost", 16301), ("localhost", 16302), ("localhost", 16303)]]


@pytest.mark.requirement("J13")
def test_servers_outside_a_cluster_know_the_cluster_and_are_known_to_it():
    alone = re.search(r'<server id="2".*?</server>', DOCUMENT, re.DOTALL)
    assert alone is not None
    outside = alone[0].replace('id="2"', 'id="7" name="local"').replace("16303", "16310").replace("2562", "2570")
    descriptor = parse_descriptor(DOCUMENT.replace("</config>", outside + "</config>").encode(), "x")
    local = parse_config(config_of(descriptor, 7, "data", None, None))
    assert (local.node, local.design, local.server) == ("local", "standalone", 7)
    assert local.servers == {0: [("localhost", port) for port in (16301, 16302, 16303)]}
    replica = parse_config(config_of(descriptor, 0, "data", 2, None))
    assert (replica.server, replica.servers) == (0, {7: [("localhost", 16310)]})


@pytest.mark.requirement("J13")
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("<domain name=\"D1\" />", "<domian name=\"D1\" />"), "2: <domian> inside <config>; possible: <domain>"),
        (('port="16302"', 'prot="16302"'), "13: <network> has no attribute 'prot' (there are: domain, port)"),
        (('hostname="localhost"', ""), "5: <server> without hostname"),
        (('<server id="1"', '<server id="0"'), "12: replica id 0 is declared twice, first on line 5"),
        (("</config>", '<cluster id="0" name="b"></cluster></config>'), "27: server id 0 is declared twice"),
        (("</config>", '<cluster id="3" name="b"></cluster></config>'), "27: a cluster without a server"),
        (("</config>", '<server id="3" hostname="h"/></config>'), "27: a server outside a cluster needs a name"),
        (('domain="D1" port="16303"', 'domain="D2" port="16303"'), "20: there is no domain 'D2' (there are: D1)"),
        (('<network domain="D1" port="16303" />', ""), "19: replica 2 does not declare the same networks as replica 0"),
        (('port="16302"', 'port="66000"'), "13: <network> port='66000' is not a number from 1 to 65535"),
        (('port="16302"', 'port="16301"'), "13: port 16301 of localhost is taken on line 6"),
        (('args="2560"', 'args="2561"'), "16: port 2561 of localhost is taken on line 9"),
        (('port="16302"', 'port="17301"'), "13: port 17301 of localhost is taken on line 6, for the links of that rep"),
        (('port="16301"', 'port="15303"'), "20: port 16303 of localhost is taken on line 6, for the links of that"),
        (('args="2561"', 'args="17301"'), "16: port 17301 of localhost is taken on line 6, for the links of that repl"),
        (('args="2560"', 'args="17302"'), "13: port 17302 of localhost is taken on line 9 (wanted here, for the links"),
        (('hostname="localhost"', 'hostname="my host"'), "5: hostname 'my host' holds white space"),
        (("tcp.TcpProxyService", "tcp.TcpProxy"), "9: there is no service 'org.objectweb.joram.mom.proxies.tcp.TcpP"),
        (('args="2561"', ""), "16: org.objectweb.joram.mom.proxies.tcp.TcpProxyService takes args \"PORT\""),
        (('args="root root"', 'args="root"'), "7: org.objectweb.joram.mom.proxies.ConnectionManager takes args"),
        (("</cluster>", ""), "27: not XML: mismatched tag"),
        (('<cluster id="0"', '<cluster id="zero"'), "4: <cluster> id='zero' is not a number"),
        (("</cluster>", "hello</cluster>"), "26: text between the elements: 'hello'"),
        (("<config>", "<config/><config>"), "not XML: junk after document element"),
    ],
)  # fmt: skip
def test_a_bad_descriptor_is_refused_with_its_line(change: tuple[str, str], complaint: str):
    assert change[0] in DOCUMENT
    message = refused(DOCUMENT.replace(*change, 1))
    assert message.startswith("a3servers.xml:")
    assert complaint in message
    assert "\n" not in message


PROPERTIES = {
    "ack": "majority", "propagation": "asynchronous", "sync_interval": "0.1", "partitions": "unspecified",
    "transfer": "held-back", "transfer_chunk": "4096", "idle_timeout": "12.5", "detection_timeout": "0.5",
    "heartbeat_interval": "0.1", "log_keep": "77", "nbClusterExpected": "2", "network_timeout": "1.5",
}


def with_properties(**properties: str) -> str:
    """The document's descriptor with properties of its cluster, on one line."""
    written = "".join(f'<property name="{name}" value="{value}" />' for name, value in properties.items())
    return DOCUMENT.replace('name="s0">', f'name="s0">{written}')


@pytest.mark.requirement("J13")
def test_a_descriptor_chooses_every_mode_that_options_choose():
    descriptor = parse_descriptor(with_properties(**PROPERTIES).encode(), "x")
    config = parse_config(config_of(descriptor, 0, "s0", 1, None))
    options = JoramOptions.from_config(config)
    assert (options.ack, options.propagation, options.partitions) == ("majority", "asynchronous", "unspecified")
    assert (options.sync_interval, options.detection_timeout, options.heartbeat_interval) == (0.1, 0.5, 0.1)
    assert (options.transfer, options.transfer_chunk, options.log_keep) == ("held-back", 4096, 77)
    assert (options.nb_cluster_expected, options.restart_expected) == (2, 2)
    assert Limits.from_options(config.options).idle_timeout == 12.5
    assert config.options["network_timeout"] == 1.5
    # The command line comes first.
    assert parse_config(config_of(descriptor, 0, "s0", 1, 3)).options["nb_cluster_expected"] == 3


@pytest.mark.requirement("J13")
@pytest.mark.requirement("J19", part=True)
def test_properties_of_all_servers_and_destinations_that_are_spread_over_them():
    common = '<config><property name="ack" value="majority" /><property name="idle_timeout" value="7" />'
    clustered = '<clustered name="/queue/qa" servers="0 7" /><clustered name="/topic/t" servers="7 0" />'
    alone = re.search(r'<server id="2".*?</server>', DOCUMENT, re.DOTALL)
    assert alone is not None
    outside = alone[0].replace('id="2"', 'id="7" name="local"').replace("16303", "16310").replace("2562", "2570")
    text = DOCUMENT.replace("<config>", common).replace("</config>", f"{outside}{clustered}</config>")
    descriptor = parse_descriptor(text.encode(), "x")
    replica, local = (parse_config(config_of(descriptor, *which, None)) for which in ((0, "a", 1), (7, "b", None)))
    assert (replica.options["ack"], replica.options["idle_timeout"]) == ("majority", 7.0)
    assert local.options == {"idle_timeout": 7.0}
    assert replica.clustered == local.clustered == {"/queue/qa": [0, 7], "/topic/t": [7, 0]}
    apart = text.replace('<domain name="D1" />', '<domain name="D1" /><domain name="D2" />')
    apart = apart.replace('domain="D1" port="16310"', 'domain="D2" port="16310"')
    with pytest.raises(ConfigError, match="no domain in common"):
        config_of(parse_descriptor(apart.encode(), "x"), 7, "b", None, None)


@pytest.mark.requirement("J13")
@pytest.mark.parametrize(("properties", "complaint"), [
    ({"akc": "all"}, "4: unknown property 'akc' (known: max_messages"),
    ({"ack": "some"}, "4: property ack: 'some' is none of all, majority"),
    ({"log_keep": "many"}, "4: property log_keep: 'many' is not a whole number"),
    ({"idle_timeout": "-1"}, "4: property idle_timeout: -1.0 is not a number above zero"),
    ({"nbClusterExpected": "4"}, "4: property nb_cluster_expected: 4, but peers has 3"),
    ({"secret": "s"}, "4: unknown property 'secret'"),
    ({"heartbeat_interval": "0.4", "detection_timeout": "0.5"}, "4: property heartbeat_interval: 0.4 is more than"),
])
def test_a_property_that_makes_no_sense_is_refused_with_its_line(properties: dict[str, str], complaint: str):
    assert complaint in refused(with_properties(**properties))


@pytest.mark.requirement("J13")
@pytest.mark.parametrize(("change", "complaint"), [
    (('<network domain="D1" port="16302" />', '<property name="ack" value="all" />'), "a replica has no properties"),
    (("</config>", '<clustered name="q" servers="0 1" /></config>'), "name='q' is neither /queue/NAME nor /topic"),
    (("</config>", '<clustered name="/queue/q" servers="0 1" /></config>'), "name two servers at least, each once"),
    (("</config>", '<clustered name="/queue/q" servers="0 0" /></config>'), "name two servers at least, each once"),
    (("</config>", '<clustered name="/queue/q" servers="0" /></config>'), "(there are: 0)"),
    (("<config>", '<config><property name="ack" value="all" /><property name="ack" value="all" />'), "twice"),
])
def test_properties_and_clustered_destinations_in_wrong_places(change: tuple[str, str], complaint: str):
    assert change[0] in DOCUMENT
    assert complaint in refused(DOCUMENT.replace(*change, 1))


@pytest.mark.requirement("J13")
def test_services_of_ones_own_are_named_by_their_import_path():
    own = '<service class="my.services:Greeter" args="hello" />\n      <network domain="D1" port="1630'
    descriptor = parse_descriptor(DOCUMENT.replace('<network domain="D1" port="1630', own).encode(), "x")
    config = parse_config(config_of(descriptor, 0, "s0", 1, None))
    assert ("my.services:Greeter", "hello") in config.services
    assert "there is no service 'my.services'" in refused(
        DOCUMENT.replace('<network domain="D1" port="1630', own.replace(":Greeter", "")))
    reaction = 'stormproof.Reaction" args="r exactly-once /queue/a /queue/b pulled"'
    pulled = own.replace('my.services:Greeter" args="hello"', reaction)
    assert parse_descriptor(DOCUMENT.replace('<network domain="D1" port="1630', pulled).encode(), "x").servers
    assert "stormproof.Reaction takes" in refused(
        DOCUMENT.replace('<network domain="D1" port="1630', pulled.replace("b pulled", "b drawn")))


@pytest.mark.requirement("J13")
def test_entities_and_files_named_by_a_descriptor_are_never_read(tmp_path: Path):
    (tmp_path / "secret").write_text("secret")
    bomb = '<!DOCTYPE config [<!ENTITY a "b"><!ENTITY c "&a;&a;">]>' + DOCUMENT
    outside = f'<!DOCTYPE config [<!ENTITY a SYSTEM "{tmp_path}/secret">]>' + DOCUMENT
    for text in (bomb, outside):
        assert "1: the DOCTYPE has declarations of its own" in refused(text)
    assert "undefined entity" in refused(DOCUMENT.replace("<domain", "&x;<domain"))
    assert parse_descriptor(('<!DOCTYPE config SYSTEM "a3config.dtd">' + DOCUMENT).encode(), "x").servers
    assert "nested deeper" in refused("<config>" * 40)
    assert "at most" in refused(DOCUMENT + " " * (1 << 20))


@pytest.mark.requirement("J14")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["0", "s0"], "name one of the replicas of server 0: 0, 1, 2"),
        (["0", "s0", "9"], "name one of the replicas of server 0: 0, 1, 2"),
        (["5", "s0", "1"], "unknown server 5 (known: 0)"),
        (["s0", "s0", "1"], "id of the server: 's0' is not a number"),
        (["0"], "id of the server, storage path and, in a cluster, id of the replica"),
        (["--nb-cluster-expected", "4", "0", "s0", "1"], "nbClusterExpected: 4, but server 0 of"),
        (["--nb-cluster-expected", "0", "0", "s0", "1"], "nbClusterExpected: 0, but server 0 of"),
        (["--nb-cluster-expected", "x", "0", "s0", "1"], "invalid int value: 'x'"),
    ],
)
def test_wrong_starting_parameters_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str],
    complaint: str,
):
    file = tmp_path / "a3servers.xml"
    file.write_text(DOCUMENT)
    monkeypatch.chdir(tmp_path)
    assert main(["--descriptor", str(file), *arguments]) == 3
    told = capsys.readouterr().err
    assert complaint in told
    assert told.count("\n") == 1


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


async def role(port: int) -> str:
    try:
        return str((await status(port, login="root", passcode="root"))["role"])
    except OSError:
        return "not there"


async def until_roles(ports: list[int], wanted: list[str]) -> list[str]:
    async with asyncio.timeout(PATIENCE):
        while True:
            roles = [await role(port) for port in ports]
            if sorted(roles) == sorted(wanted):
                return roles
            await asyncio.sleep(0.05)


def with_free_ports(text: str) -> str:
    """A descriptor with ports that other programs of this machine don't use, nor those for links."""
    ports = list(dict.fromkeys(re.findall(r'(?:port|args)="(\d+)"', text)))
    for old, new in zip(ports, free_ports(len(ports), LINK_OFFSET), strict=True):
        text = text.replace(f'"{old}"', f'"{new}"')
    return text


def client_ports(text: str) -> list[int]:
    return [machine.client_port for machine in parse_descriptor(text.encode(), "x").servers[0].machines]


def replica_of(file: Path, replica: int, *words: str) -> subprocess.Popen[bytes]:
    """Start one replica of server 0, as the document's command line does."""
    argv = [sys.executable, "-m", "nodes.reference", "--descriptor", str(file), *words, "0", f"s0-{replica}",
            str(replica)]  # fmt: skip
    with file.with_name(f"{replica}.log").open("ab") as log:
        return subprocess.Popen(argv, cwd=file.parent, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log,
                                stderr=log)  # fmt: skip


@pytest.mark.requirement("J13")
@pytest.mark.requirement("J14")
@pytest.mark.parametrize("printed", [False, pytest.param(True, marks=pytest.mark.soak)])
async def test_the_documents_descriptor_and_command_line_start_a_cluster(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], printed: bool
):
    """As printed in the thorough run; otherwise with ports that other programs of this machine don't use."""
    text, file = DOCUMENT, tmp_path / "a3servers.xml"
    if not printed:
        text = with_free_ports(text)
    file.write_text(text)
    clients = client_ports(text)

    def start(replica: int) -> None:
        started.append(replica_of(file, replica, "--nb-cluster-expected", "3"))

    start(0)
    start(1)
    await until_roles(clients[:2], ["starting", "starting"])
    start(2)
    roles = await until_roles(clients, ["master", "slave", "slave"])
    client = await Client.connect(clients[roles.index("master")], login="root", passcode="root")
    await client.confirm("SEND", {"destination": QUEUE}, b"hello")
    assert client.connected.headers["x-replicas"].count("localhost:") == 3
    assert (tmp_path / "s0-0" / "broker.sqlite").exists()
    for process in started:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(PATIENCE) for process in started] == [0, 0, 0]


@pytest.mark.requirement("J13", part=True)
@pytest.mark.requirement("J18", part=True)
async def test_a_replica_of_a_longer_descriptor_joins_if_it_knows_the_secret(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
):
    third = re.findall(r' *<server id="2".*?</server>\n', DOCUMENT, re.DOTALL)[0]
    fourth = third.replace('id="2"', 'id="3"').replace("16303", "16304").replace("2562", "2563")
    text = with_free_ports(DOCUMENT.replace(third, third + fourth))
    shorter, longer = tmp_path / "shorter.xml", tmp_path / "longer.xml"
    longer.write_text(text)
    shorter.write_text(re.sub(r' *<server id="3".*?</server>\n', "", text, flags=re.DOTALL))
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_text("between us\n")
    wrong.write_text("something else")
    clients = client_ports(text)
    started += [replica_of(shorter, replica, "--secret-file", str(secret)) for replica in range(3)]
    roles = await until_roles(clients[:3], ["master", "slave", "slave"])
    machine = parse_descriptor(text.encode(), "x").servers[0].machines[3]
    admin = AdminConnection("127.0.0.1", clients[roles.index("master")], "root", "root")
    links = machine.networks["D1"] + LINK_OFFSET
    await admin.add_replica("s0.3", ("localhost", links), f"localhost:{clients[3]}", PATIENCE)
    stranger = replica_of(longer, 3, "--join", "--secret-file", str(wrong))
    started.append(stranger)
    async with asyncio.timeout(PATIENCE):
        while "s0.3 has another secret" not in (tmp_path / f"{roles.index('master')}.log").read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await role(clients[3]) == "starting"
    stranger.terminate()
    stranger.wait(PATIENCE)
    started.append(replica_of(longer, 3, "--join", "--secret-file", str(secret)))
    await until_roles(clients, ["master", "slave", "slave", "slave"])
    assert (await admin.status(PATIENCE))["replicas"] == ["s0.0", "s0.1", "s0.2", "s0.3"]
    admin.close()


TWO_SERVERS = """<config>
  <domain name="D1" />
  <property name="idle_timeout" value="7" />
  {servers}
  <clustered name="/queue/qa" servers="0 1" />
</config>"""
ALONE = """<server id="{id}" name="s{id}" hostname="127.0.0.1">
    <network domain="D1" port="{network}" />
    <service class="org.objectweb.joram.mom.proxies.ConnectionManager" args="guest guest" />
    <service class="org.objectweb.joram.mom.proxies.tcp.TcpProxyService" args="{client}" />
  </server>"""


@pytest.mark.requirement("J13", part=True)
@pytest.mark.requirement("J19", part=True)
@pytest.mark.requirement("J21", part=True)
async def test_servers_of_a_descriptor_share_a_clustered_queue_and_consume_from_each_other(tmp_path: Path):
    ports = free_ports(4)
    servers = "".join(ALONE.format(id=number, network=ports[number], client=ports[2 + number]) for number in range(2))
    descriptor = parse_descriptor(TWO_SERVERS.format(servers=servers).encode(), "a3servers.xml")
    logs = [io.StringIO(), io.StringIO()]
    nodes = [Node(parse_config(config_of(descriptor, number, str(tmp_path / str(number)), None, None)), log, SERVICES)
             for number, log in enumerate(logs)]  # fmt: skip
    try:
        for log in logs:
            await until(lambda log=log: "started" in log.getvalue(), "a server")
        here, there = [await Client.connect(port) for port in ports[2:]]
        await here.publish("moved", "/queue/qa")
        await there.subscribe("/queue/qa")
        moved = await there.message()
        assert (moved.body, moved.headers["destination"]) == (b"moved", "/queue/qa")
        await there.confirm("SUBSCRIBE", {"id": "far", "destination": "/server/0/queue/own", "ack": "client"})
        await here.publish("kept there", "/queue/own")
        assert (await there.message()).headers["destination"] == "/server/0/queue/own"
    finally:
        for node in nodes:
            await node.stop()
