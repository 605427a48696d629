"""The files and properties of servers.

(JORAM User Manual: "a3servers.xml"; HA Joram: 4.6.3, 4.7.2; JGroups 2.2: protocol stacks.)
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

CLIENT_PORT, NETWORK_PORT = 16010, 16301
LOGIN, PASSWORD = "root", "root"
OWN_STACK, FD = "own", "FD"
"""Values of the option ``detector``."""
GROUP_PORT = 25566
_MAP = "jg-magic-map.xml"
_CONNECTIONS, _TCP = (
    "org.objectweb.joram.mom.proxies.ConnectionManager",
    "org.objectweb.joram.mom.proxies.tcp.TcpProxyService",
)
_LOGGING = """handlers=java.util.logging.ConsoleHandler
.level=WARNING
java.util.logging.ConsoleHandler.level=FINE
java.util.logging.ConsoleHandler.formatter=java.util.logging.SimpleFormatter
java.util.logging.SimpleFormatter.format=%1$tFT%1$tT.%1$tL %4$s %3$s - %5$s%6$s%n
"""
_VIEWS = """org.jgroups.protocols.pbcast.GMS.level=FINE
fr.dyade.aaa.agent.AgentServer.level=SEVERE
"""


def servers_xml(servers: Mapping[str, str], cluster: bool) -> str:
    """Return a3servers.xml for servers, name -> address: the replicas of one server, or one server each in a domain in
    common."""
    entries = []
    for number, (name, address) in enumerate(servers.items()):
        own = "" if cluster else f" name={quoteattr(name)}"
        network = f'<network domain="D1" port="{NETWORK_PORT}"/>' if len(servers) > 1 else ""
        entries.append(
            f'<server id="{number}"{own} hostname={quoteattr(address)}>{network}'
            f'<service class="{_CONNECTIONS}" args="{LOGIN} {PASSWORD}"/>'
            f'<service class="{_TCP}" args="{CLIENT_PORT}"/></server>\n')  # fmt: skip
    domain = '<domain name="D1"/>\n' if len(servers) > 1 else ""
    inside = "".join(entries)
    inside = f'<cluster id="0" name="s0">\n{inside}</cluster>\n' if cluster else inside
    return f'<?xml version="1.0"?>\n<config>\n{domain}{inside}</config>\n'


def logging_properties(cluster: bool) -> str:
    """Return the configuration of logs: replicas report each view, and not that they have started."""
    return _LOGGING + _VIEWS if cluster else _LOGGING


def magic_map(jars: str) -> str:
    """Return JGroups' map of classes without arrays: since Java 9 a class loader does not find them by such a name, and
    JGroups does not start."""
    (jar,) = Path(jars).glob("jgroups-all-*.jar")
    with zipfile.ZipFile(jar) as archive:
        text = archive.read(_MAP).decode()
    return re.sub(r"<class>(?:(?!</class>).)*?<class-name>\[.*?</class>", "", text, flags=re.DOTALL)


def group_properties(address: str, expected: int, detector: str) -> Sequence[str]:
    """Return the properties of a replica: JORAM's own stack of JGroups, bound to an address, and with the failure
    detection ``FD`` if asked for."""
    detection = "FD_SOCK:FD(timeout=1000;max_tries=2;shun=false)" if detector == FD else "FD_SOCK"
    stack = ":".join((
        f"UDP(mcast_addr=224.0.0.35;mcast_port={GROUP_PORT};bind_addr={address};ip_ttl=32;mcast_send_buf_size=150000;"
        "mcast_recv_buf_size=80000)", "PING(timeout=2000;num_initial_members=3)",
        "MERGE2(min_interval=5000;max_interval=10000)", detection, "VERIFY_SUSPECT(timeout=1500)",
        "pbcast.NAKACK(gc_lag=50;retransmit_timeout=300,600,1200,2400,4800)", "UNICAST(timeout=5000)",
        "pbcast.STABLE(desired_avg_gossip=20000)", "FRAG(frag_size=4096;down_thread=false;up_thread=false)",
        "pbcast.GMS(join_timeout=5000;join_retry_timeout=2000;shun=false;print_local_addr=true)"))  # fmt: skip
    return ("-Djava.net.preferIPv4Stack=true", "-DEngine=fr.dyade.aaa.agent.HAEngine",
            "-DTransaction=fr.dyade.aaa.util.NullTransaction", "-DNTNoLockFile=true",
            f"-DnbClusterExpected={expected}", f"-DJGroupsProps={stack}")  # fmt: skip
