"""JORAM's configuration, its views, and what is refused; the real one is in tests/brokers."""

from __future__ import annotations

import asyncio
import shutil
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.run.settings import make_test
from nodes.systems.joram_real import client, configuration
from nodes.systems.joram_real.system import JORAM_REAL
from stormproof.contracts.client import NotDone
from stormproof.contracts.cluster import NodeStatus
from stormproof.contracts.protocol_client import BrokerSetup
from stormproof.errors import UsageError

ADDRESSES = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3"}
STAMP = "2026-11-29T09:36:26.067 FINE org.jgroups.protocols.pbcast.GMS - "
VIEW = "[local_addr=10.0.0.1:44259] view is [10.0.0.1:44259|3] [10.0.0.1:44259, 10.0.0.2:53640]"
MERGED = "[local_addr=10.0.0.3:43248] view is MergeView::[10.0.0.1:44259|4] [10.0.0.1:44259, 10.0.0.3:43248], " \
         "subgroups=[[10.0.0.1:44259|3] [10.0.0.1:44259], [10.0.0.3:43248|3] [10.0.0.3:43248]]"


def servers(text: str, path: str) -> list[dict[str, str]]:
    return [server.attrib for server in ElementTree.fromstring(text).findall(path)]


def test_replicas_are_one_server_and_others_are_several() -> None:
    ha = configuration.servers_xml(ADDRESSES, cluster=True)
    assert servers(ha, "cluster/server") == [{"id": str(number), "hostname": address}
                                             for number, address in enumerate(ADDRESSES.values())]  # fmt: skip
    several = configuration.servers_xml(ADDRESSES, cluster=False)
    assert [found["name"] for found in servers(several, "server")] == list(ADDRESSES)
    assert len(ElementTree.fromstring(several).findall("server/network")) == 3
    single = configuration.servers_xml({"n1": "10.0.0.1"}, cluster=False)
    assert not ElementTree.fromstring(single).findall(".//network")


def test_the_map_of_classes_loses_arrays_alone(tmp_path: Path) -> None:
    entry = "<class><description>{0}</description><class-name>{0}</class-name><magic-number>1</magic-number></class>\n"
    names = ("java.lang.String", "[Ljava.lang.Object;", "org.jgroups.View")
    with zipfile.ZipFile(tmp_path / "jgroups-all-2.2.9.1.jar", "w") as jar:
        jar.writestr("jg-magic-map.xml", f"<magic>{''.join(map(entry.format, names))}</magic>")
    found = ElementTree.fromstring(configuration.magic_map(str(tmp_path)))
    assert [each.text for each in found.findall("class/class-name")] == ["java.lang.String", "org.jgroups.View"]


def test_failure_detection_is_one_more_protocol() -> None:
    own, fd = (" ".join(configuration.group_properties("10.0.0.1", 2, detector))
               for detector in (configuration.OWN_STACK, configuration.FD))  # fmt: skip
    assert ":FD_SOCK:VERIFY" in own and ":FD_SOCK:FD(" in fd


@pytest.mark.parametrize(("text", "role", "leads", "members"), [
    (VIEW, "coordinator", True, ("10.0.0.1", "10.0.0.2")),
    (VIEW.replace("addr=10.0.0.1", "addr=10.0.0.2"), "slave", False, ("10.0.0.1", "10.0.0.2")),
    (MERGED, "slave", False, ("10.0.0.1", "10.0.0.3")),
])  # fmt: skip
def test_a_view_tells_roles(text: str, role: str, leads: bool, members: tuple[str, ...]) -> None:
    parsed = JORAM_REAL.parse_line(STAMP + text)
    assert parsed.text == text and parsed.time == pytest.approx(1795944986.067)
    change, group = JORAM_REAL.role_change(text), JORAM_REAL.group_change(text)
    assert change is not None and (change.role, change.leads, change.serving) == (role, leads, True)
    assert group is not None and (group.members, group.group) == (members, change.group)


def test_a_master_against_the_view_and_a_server_without_views() -> None:
    second = JORAM_REAL.role_change("Bad view for coordinator")
    assert second is not None and (second.role, second.serving, second.leads) == ("second master", True, True)
    up = JORAM_REAL.role_change("AgentServer#0, started at Sun Nov 29 09:33:54 UTC 2026")
    assert up is not None and (up.role, up.serving) == ("up", True)
    assert JORAM_REAL.role_change("AgentServer#0, init()") is None


def status(node: str, role: str, coordinator: str = "", members: int = 0) -> NodeStatus:
    view = {"coordinator": coordinator, "members": members} if role != "up" else None
    return NodeStatus(node, reachable=True, role=role, serving=role in ("up", "master"), detail=view)


@pytest.mark.parametrize(("statuses", "healthy"), [
    ([("n1", "master", "n1", 2), ("n2", "slave", "n1", 2)], True),
    ([("n1", "master", "n1", 2), ("n2", "slave", "n1", 1)], False),  # its view is older
    ([("n1", "master", "n1", 2), ("n2", "master", "n1", 2)], False),
    ([("n1", "slave", "n1", 2), ("n2", "slave", "n1", 2)], False),  # nbClusterExpected is not reached
    ([("n1", "slave", "", 0), ("n2", "slave", "", 0)], False),
    ([("n1", "up"), ("n2", "up")], True),
])  # fmt: skip
def test_health(statuses: list[tuple[str, str]], healthy: bool) -> None:
    assert JORAM_REAL.healthy([status(*each) for each in statuses]) == healthy


def demand(**given: object) -> None:
    settings = {"mode": "ha", **given}
    make_test(system="joram-real", workload="queue", nemesis="none", backend="local", nodes=None, time_limit=30,
              rate=10, seed=1, settings=settings)  # fmt: skip


@pytest.mark.parametrize(("given", "words"), [
    ({"sync": True}, "sync=true"), ({"expected": 4}, "expected=4"), ({"version": "no"}, "version 'no'"),
])  # fmt: skip
def test_what_is_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        demand(**given)


def test_versions() -> None:
    defaults = {option.name: option.default for option in JORAM_REAL.options}
    for mode, name in (("single", "joram 5.10.0"), ("clustered", "joram 5.10.0"), ("ha", "joram-ha 5.0.9")):
        assert str(JORAM_REAL.fetched_version({**defaults, "mode": mode})) == name
    assert JORAM_REAL.fetched_version({**defaults, "program": "/opt/joram"}) is None


def test_a_missing_compiler_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name == "javac" else f"/usr/bin/{name}")
    with pytest.raises(UsageError, match="javac is not installed; run: apt-get install default-jdk-headless"):
        demand()


def test_replicas_need_multicast() -> None:
    with pytest.raises(UsageError, match=r"mode=ha needs multicast .* choose --backend local"):
        make_test(system="joram-real", workload="queue", nemesis="none", backend="docker", nodes=None, time_limit=30,
                  rate=10, seed=1, settings={"mode": "ha"})  # fmt: skip


async def test_no_program_starts_for_a_server_that_refuses(tmp_path: Path) -> None:
    began = tmp_path / "began"
    listening = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    listening.close()
    await listening.wait_closed()
    connection = client.JoramConnection(["touch", str(began)], BrokerSetup([]), 0.0)
    with pytest.raises(NotDone, match=r"no connection to 127\.0\.0\.1"):
        await connection.connect("127.0.0.1", port, "")
    await connection.close()
    assert not began.exists()


async def test_a_server_that_is_silent_does_not_answer() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    for serve, fails in ((closes, False), (silent, True)):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        asked = client.answers("127.0.0.1", server.sockets[0].getsockname()[1])
        if fails:
            with pytest.raises(TimeoutError):
                await asked
        else:
            await asked
        server.close()
