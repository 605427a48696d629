"""Pacemaker on corosync as the cluster manager of qpid, with fencing: a possible primary elsewhere is ended first.

The power switch that the fencing agent uses is outside of the nodes: it is the harness, which listens at its own
address in the test's network, where partitions don't cut it off. It ends everything that runs on a machine, and starts
corosync and Pacemaker there again.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import shlex
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import quoteattr

from nodes.reference.designs.qpid.options import PACEMAKER
from nodes.systems.reference.layout import ReplicaGroup
from nodes.systems.reference.qpid.external_manager import OutsideCluster
from nodes.timeouts import within
from stormproof.contracts.backend import DEAD, SHARED_ROOT
from stormproof.contracts.cluster import Deployment
from stormproof.errors import BackendError

COROSYNC = "corosync"
_CONTROL = "control"
"""The harness's own address."""
_KEY = "/etc/corosync/switch-key"
_MEMBERSHIP_SECONDS = 15.0
"""Time limit for corosync to find all nodes at the first start."""
_OFF_SECONDS = 1.0
"""The time for which a machine stays off."""
_REQUEST_SECONDS = 20.0
_POLL = 0.1
_LONGEST = 200

# A machine that sees the host's files gets separate folders in their places. In place of the folder of administrators'
# programs it gets one with links to these programs, and the agent next to them.
_ROOTS = """
mkdir -p {base}/sbin {base}/sbin.own && mount --bind /usr/sbin {base}/sbin &&
ln -s {base}/sbin/* {base}/sbin.own/ && mount --bind {base}/sbin.own /usr/sbin &&
for folder in /run /dev/shm /var/lib/corosync /var/lib/pacemaker /etc/corosync /etc/init.d; do
    mount -t tmpfs -o mode=755 tmpfs $folder || exit 1
done
chmod 1777 /dev/shm
"""
_FOLDERS = """
for folder in cib cores pengine blackbox; do mkdir -p /var/lib/pacemaker/$folder || exit 1; done
mkdir -p /run/lock /etc/corosync /var/lib/corosync && chown hacluster:haclient /var/lib/pacemaker/* &&
chmod 750 /var/lib/pacemaker/*
"""
_ENDED = """[ "$1" != start ] || export QPID_ENDED="$(
    timeout 5 cibadmin --query --local --xpath "//node_state[@expected='down'][@crmd='offline']" 2>/dev/null |
    sed -n 's/.*<node_state .*uname="\\([^"]*\\)".*/\\1/p')"
"""
_SECURED = f"chown hacluster:haclient /var/lib/pacemaker/cib/cib.xml && chmod 600 /var/lib/pacemaker/cib/cib.xml {_KEY}"

# Ends all processes except the machine's first one and the harness's own shells, whose sessions are led from outside of
# the machine. SPARED is a session that is not ended. The content of memory is lost.
_OFF = """
clock() { read -r now rest < /proc/uptime; now=${now%.*}; }
clock
last=$((now + 10))
while :; do
    found=
    for stat in /proc/[0-9]*/stat; do
        { read -r line < $stat; } 2>/dev/null || continue
        pid=${line%% *}
        set -- ${line##*) }
        case $1 in Z|X|x) continue ;; esac
        [ $4 != 0 ] && [ $4 != SPARED ] || continue
        { read -r line < /proc/$4/stat; } 2>/dev/null && { set -- ${line##*) }; [ $2 != 0 ] || continue; }
        found="$found $pid"
    done
    [ -n "$found" ] || { rm -rf /dev/shm/*; exit 0; }
    clock
    [ $now -lt $last ] || { echo "these outlive SIGKILL:$found"; exit 1; }
    kill -s KILL $found 2>/dev/null
    sleep 0.02
done
"""

_NOTE = "echo 0.0 $(date --utc +%Y-%m-%dT%H:%M:%S.%3NZ) fenced"
"""In the format of brokers' logs."""

_COROSYNC = """totem {{
    version: 2
    cluster_name: qpid
    transport: knet
    crypto_cipher: none
    crypto_hash: none
    token: {token}
    token_coefficient: 0
    consensus: {consensus}
    join: 50
}}
nodelist {{
{nodes}
}}
quorum {{
    provider: corosync_votequorum
}}
system {{
    sched_rr: no
    move_to_root_cgroup: no
}}
logging {{
    to_stderr: yes
    to_syslog: no
    timestamp: hires
}}
"""

_AGENT = '''#!/usr/bin/env python3
"""Fences a node by asking the power switch; options come on standard input."""
import socket
import sys

METADATA = """<?xml version="1.0"?>
<resource-agent name="fence_stormproof" shortdesc="asks a power switch outside of the nodes">
<longdesc>Ends whatever runs on a node, and starts it again.</longdesc>
<parameters><parameter name="port" required="0"><content type="string"/><shortdesc lang="en">node</shortdesc>
</parameter></parameters>
<actions><action name="reboot"/><action name="off"/><action name="on"/><action name="status"/>
<action name="monitor"/><action name="list"/><action name="metadata"/></actions></resource-agent>"""

given = dict(line.strip().partition("=")[::2] for line in sys.stdin)
action = given.get("action", "reboot")
if action == "metadata":
    print(METADATA)
    sys.exit(0)
if action in ("monitor", "status", "list"):
    action = "status"
try:
    with open("{key}") as file, socket.create_connection(("{host}", {port}), timeout={seconds}) as switch:
        switch.sendall(f"{{file.read().strip()}} {{action}} {{given.get('port', '-')}}\\n".encode())
        answer = switch.makefile().readline().strip()
except OSError as error:
    answer = str(error)
if answer != "ok":
    print(f"the power switch at {host}: {{answer or 'it hung up'}}", file=sys.stderr)
    sys.exit(1)
'''


class PacemakerCluster(OutsideCluster):
    """Brokers with corosync and Pacemaker next to each, and the power switch."""

    manager_programs = (COROSYNC, PACEMAKER)

    def __init__(self, groups: tuple[ReplicaGroup, ...], deployment: Deployment) -> None:
        super().__init__(groups, deployment)
        self._key = secrets.token_hex(16)
        self._switch: asyncio.Server | None = None
        self._restarts: dict[str, asyncio.Task[None]] = {}

    # Files.

    async def before_install(self) -> None:
        """Open the switch first, since the agents must know its address."""
        self._switch = await asyncio.start_server(self._serve, self.backend.address(_CONTROL), 0)

    async def prepare_machine(self, node: str) -> None:
        """Create the folders that corosync and Pacemaker use under fixed names."""
        if self.backend.root_folder == SHARED_ROOT:
            await self.demand(node, _ROOTS.format(base=shlex.quote(self.backend.node_dir(node))))
        await self.demand(node, _FOLDERS)

    async def _install_manager(self, node: str) -> None:
        await super()._install_manager(node)
        await self.demand(node, _SECURED)

    def script(self, node: str, service: str) -> str:
        """Return the path at which Pacemaker expects scripts of class ``lsb``."""
        return f"/etc/init.d/qpid-{service}"

    def before_script(self, service: str) -> str:
        """Pass the fenced nodes to the script: a node that is offline, and expected to be, was fenced or ended in
        order.
        """
        return _ENDED if service == "primary" else ""

    def manager_files(self, node: str) -> Mapping[str, str]:
        """Return membership, resources, the agent and its key: the same on all nodes."""
        assert self._switch is not None
        token = round(float(self.test.options["manager_lease"]) * 1000)
        nodes = "\n".join(
            f"    node {{\n        ring0_addr: {self.backend.address(name)}\n        name: {name}\n"
            f"        nodeid: {number}\n    }}" for number, name in enumerate(self.test.node_names, 1)
        )  # fmt: skip
        agent = _AGENT.format(key=_KEY, host=self.backend.address(_CONTROL),
                              port=self._switch.sockets[0].getsockname()[1], seconds=_REQUEST_SECONDS)
        return {
            "/etc/corosync/corosync.conf": _COROSYNC.format(token=token, consensus=token * 6 // 5, nodes=nodes),
            "/var/lib/pacemaker/cib/cib.xml": resources(self.test.node_names, self.virtual_address),
            "/usr/sbin/fence_stormproof": agent,
            _KEY: f"{self._key}\n",
            self._switch_log(node): "",
        }

    def manager_command(self, node: str, program: str) -> Sequence[str]:
        """Return the command; Pacemaker waits until corosync listens."""
        if program == COROSYNC:
            return ["corosync", "-f"]
        return ["sh", "-c", "until corosync-cmapctl -g totem.token; do sleep 0.1; done >/dev/null 2>&1; "
                "PCMK_logfacility=none PCMK_logfile=none PCMK_stderr=yes exec pacemakerd -f"]  # fmt: skip

    # Start and end.

    async def start(self) -> None:
        """Start Pacemaker once corosync has found all nodes: a node missing at its first start would be fenced."""
        nodes = self.test.node_names
        await asyncio.gather(*(super(PacemakerCluster, self).start_program(node, COROSYNC) for node in nodes))
        await asyncio.gather(*(self._await_members(node) for node in nodes))
        await asyncio.gather(*(self.start_program(node, PACEMAKER) for node in nodes))

    async def _await_members(self, node: str) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _MEMBERSHIP_SECONDS
        count = len(self.test.node_names)
        while True:
            found = await self.shells.exec(node, "corosync-quorumtool -s 2>&1")
            if f"Total votes:      {count}" in found.output:
                return
            if loop.time() >= deadline:
                raise BackendError(f"{node}: corosync does not find all nodes within {_MEMBERSHIP_SECONDS:g} s: "
                                   f"{' '.join(found.output.split())[-_LONGEST:]}")
            await asyncio.sleep(_POLL)

    async def start_program(self, machine: str, program: str) -> None:
        """Start corosync or Pacemaker, which ends when corosync does."""
        if program == COROSYNC:
            await super().start_program(machine, COROSYNC)
        await super().start_program(machine, PACEMAKER)

    async def stop(self) -> None:
        """Cut the power of all managers, whose orderly end would take long because each reacts to the others' end, and
        end the brokers in order."""
        if self._switch is not None:
            self._switch.close()
        for task in self._restarts.values():
            task.cancel()
        await asyncio.gather(*(self._off(node, spare_broker=True) for node in self.test.node_names))
        await super().stop()

    def logs(self, machine: str) -> Mapping[str, str]:
        """Return the logs; the power switch's log of a machine is added to those of its programs."""
        return {**super().logs(machine), f"{machine}.switch": self._switch_log(machine)}

    def _switch_log(self, node: str) -> str:
        return f"{self.backend.node_dir(node)}/switch.log"

    # The power switch.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with within(_REQUEST_SECONDS):
                key, action, node = (await reader.readline()).decode(errors="replace").split()
                answer = "no such key"
                if hmac.compare_digest(key.encode(), self._key.encode()):
                    answer = await self._switched(action, node)
                writer.write(f"{answer}\n".encode())
                await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass  # the client notices the missing answer
        finally:
            writer.close()

    async def _switched(self, action: str, node: str) -> str:
        """Carry out a request; return ``ok``, or an error text."""
        if action == "status":
            return "ok"
        if node not in self.test.node_names or action not in ("off", "on", "reboot"):
            return f"there is no {action[:_LONGEST]} of {node[:_LONGEST]}"
        try:
            if action != "on":
                await self._off(node)
                # A machine loses an added address when it is switched off.
                lost = f"ip address flush to {self.virtual_address}; " if self.virtual_address else ""
                await self.demand(node, f"{lost}{_NOTE} >> {shlex.quote(self._switch_log(node))}")
            if action != "off":
                self._restart(node)
        except BackendError as error:
            return " ".join(str(error).split())[:_LONGEST]
        return "ok"

    async def _off(self, node: str, spare_broker: bool = False) -> None:
        """End everything that runs on a machine."""
        broker = await self.backend.process(node, self.programs(node)[0])
        spared = str(broker.pid) if spare_broker and broker.state != DEAD else "none"
        async with self._starting[node]:
            done = await self.shells.exec(node, _OFF.replace("SPARED", spared))
        if done.status:
            raise BackendError(f"{node}: {done.output.strip()}")

    def _restart(self, node: str) -> None:
        """Restore the power of a machine after a delay."""
        earlier = self._restarts.get(node)
        if earlier is not None:
            earlier.cancel()

        async def restart() -> None:
            await asyncio.sleep(_OFF_SECONDS)
            await self.start_program(node, COROSYNC)

        self._restarts[node] = asyncio.create_task(restart())


def resources(nodes: Sequence[str], virtual_address: str) -> str:
    """Build the cluster information base: a clone of the service ``backup``, one ``primary`` where a backup runs, and
    the address where the primary is.

    A node on which a resource fails to start, or to be primary, is skipped for ten seconds.
    """
    properties = {"no-quorum-policy": "stop", "dc-deadtime": "3s", "stonith-enabled": "true"}
    address = ""
    beside = ""
    if virtual_address:
        address = _primitive("address", 'class="ocf" provider="heartbeat" type="IPaddr2"', {"monitor": (2, 10)},
                             given={"ip": virtual_address, "cidr_netmask": "24"})
        beside = ('<rsc_colocation id="address-with-primary" rsc="address" with-rsc="primary" score="INFINITY"/>\n'
                  '<rsc_order id="primary-then-address" first="primary" then="address"/>\n')
    backup = _primitive("backup", 'class="lsb" type="qpid-backup"',
                        {"monitor": (2, 10), "start": (0, 40), "stop": (0, 40)})
    primary = _primitive("primary", 'class="lsb" type="qpid-primary"',
                         {"monitor": (1, 10), "start": (0, 40), "stop": (0, 40)},
                         meta={"migration-threshold": "1", "failure-timeout": "10s"})
    switch = _primitive("switch", 'class="stonith" type="fence_stormproof"', {}, given={
        "pcmk_host_list": " ".join(nodes), "pcmk_host_check": "static-list"})
    return f"""<cib validate-with="pacemaker-3.9" epoch="1" num_updates="0" admin_epoch="1">
<configuration>
<crm_config><cluster_property_set id="properties">
{_pairs("properties", properties)}</cluster_property_set></crm_config>
<nodes/>
<resources>
{switch}<clone id="backups">
{backup}</clone>
{primary}{address}</resources>
<constraints>
<rsc_colocation id="primary-with-backup" rsc="primary" with-rsc="backups" score="INFINITY"/>
<rsc_order id="backups-then-primary" first="backups" then="primary" kind="Optional"/>
{beside}</constraints>
</configuration>
<status/>
</cib>
"""


def _primitive(name: str, kind: str, operations: Mapping[str, tuple[int, int]], *,
               given: Mapping[str, str] | None = None, meta: Mapping[str, str] | None = None) -> str:
    """Build a resource; ``operations`` are interval and time limit by name, in seconds."""
    text = f'<primitive id="{name}" {kind}>\n'
    for tag, pairs in (("meta_attributes", meta), ("instance_attributes", given)):
        if pairs:
            text += f'<{tag} id="{name}-{tag}">\n{_pairs(f"{name}-{tag}", pairs)}</{tag}>\n'
    text += "<operations>\n" if operations else ""
    for operation, (interval, limit) in operations.items():
        text += (f'<op id="{name}-{operation}" name="{operation}" interval="{interval}s" timeout="{limit}s"/>\n')
    return text + ("</operations>\n" if operations else "") + "</primitive>\n"


def _pairs(prefix: str, pairs: Mapping[str, str]) -> str:
    return "".join(f'<nvpair id="{prefix}-{name}" name="{name}" value={quoteattr(value)}/>\n'
                   for name, value in pairs.items())
