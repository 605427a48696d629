"""The real IceStorm from Debian's packages: one server, or a replicated group of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from nodes.systems.clients import demand_client, extras_of
from nodes.systems.zeroc_icestorm.client import INSTANCE, MANAGER_PORT, NODE_PORT, PUBLISH_PORT, IceStormConnection
from nodes.systems.zeroc_icestorm.guarantees import GUARANTEES
from stormproof.contracts.cluster import NodeStatus
from stormproof.contracts.option import Option
from stormproof.contracts.system import RoleChange, StateTransfer
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError, UsageError
from stormproof.node_logs import LogLine, parse_dated
from stormproof.shell_system import BINARY, Machine, ShellCluster, ShellSystem
from stormproof.test import Test

NORMAL = "normal"
ASK_MILLISECONDS = 800
"""Time limit for each replica's answer to the one administrative command that asks all of them."""
_LINE = re.compile(r"(?:--|-!|!!) (\d\d/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}) [^:]+: (.*)")
_ELECTION = re.compile(r"Election: node (\d+): (.*)")
_GROUP = re.compile(r"reporting for duty in group (\d+:\w{1,8})\S* (as coordinator|with coordinator)")
_LEFT = re.compile(r"transition from normal to (\w+)")
_SYNC = re.compile(r"syncing database state with node (\d+)")


class ZerocIceStorm(ShellSystem):
    """IceStorm in IceBox; the options are its properties."""

    name = "zeroc-icestorm"
    no_attaching = "its topics and subscribers are found by names that are part of its configuration"
    packages = ("libzeroc-icestorm3.7", "zeroc-icebox", "zeroc-ice-utils")
    distributions = ("zeroc-ice",)
    port = MANAGER_PORT
    max_nodes = 5
    leading_roles, joined_roles = ("master",), ("slave",)
    provides = frozenset({"events"})
    guarantees = GUARANTEES
    options = (
        BINARY,
        Option("master_timeout", 2, "IceStorm.Election.MasterTimeout in seconds (IceStorm's default: 10)"),
        Option("election_timeout", 2, "IceStorm.Election.ElectionTimeout in seconds (IceStorm's default: 10)"),
        Option("response_timeout", 2, "IceStorm.Election.ResponseTimeout in seconds (IceStorm's default: 10)"),
        Option("invocation_timeout", 2.0, "Ice.Default.InvocationTimeout of the replicas, in seconds; 0, IceStorm's "
               "default: none, and a paused or cut-off peer goes unnoticed for minutes"),
        Option("send_timeout", 60.0, "IceStorm.Send.Timeout: seconds that a subscriber has to take an event"),
        Option("discard_interval", 60, "IceStorm.Discard.Interval: seconds for which a subscriber that failed, and may "
               "be tried again, gets nothing"),
        Option("copies", 1, "replicas that a publisher publishes each event on, and that must have it"),
    )

    def command(self, machine: Machine, program: str) -> Sequence[str]:
        """Return the command of IceBox, which loads the service."""
        return [machine.binary("icebox"), f"--Ice.Config={machine.folder}/ice.conf"]

    def environment(self, machine: Machine, program: str) -> Mapping[str, str]:
        """Return the environment, which fixes the time zone and language of its log."""
        return {"TZ": "UTC", "LC_ALL": "C"}

    def files(self, machine: Machine) -> Mapping[str, str]:
        """Return the configuration (Ice manual, "Highly Available IceStorm", *Configuring a Replica*)."""
        own = machine.replicas.index(machine.name) + 1
        folder = machine.data
        properties: dict[str, Any] = {
            "IceBox.Service.IceStorm": "IceStormService,37:createIceStorm",
            "IceBox.InheritProperties": 1,
            "IceStorm.InstanceName": INSTANCE,
            "IceStorm.TopicManager.Endpoints": f"tcp -h {machine.address} -p {MANAGER_PORT}",
            "IceStorm.Publish.Endpoints": f"tcp -h {machine.address} -p {PUBLISH_PORT}",
            "IceStorm.LMDB.Path": folder,
            "IceStorm.Send.Timeout": _milliseconds(machine.option("send_timeout")),
            "IceStorm.Discard.Interval": machine.option("discard_interval"),
            "IceStorm.Trace.TopicManager": 1, "IceStorm.Trace.Topic": 1, "IceStorm.Trace.Subscriber": 1,
        }  # fmt: skip
        if invocation := _milliseconds(machine.option("invocation_timeout")):
            properties["Ice.Default.InvocationTimeout"] = invocation
        if len(machine.replicas) > 1:
            addresses = [machine.address_of(name) for name in machine.replicas]
            properties |= {
                "IceStorm.NodeId": own,
                "IceStorm.Node.Endpoints": f"tcp -h {machine.address} -p {NODE_PORT}",
                **{f"IceStorm.Nodes.{number}": f"{INSTANCE}/node{number}:tcp -h {address} -p {NODE_PORT}"
                   for number, address in enumerate(addresses, 1)},
                "IceStorm.ReplicatedTopicManagerEndpoints": _all(addresses, MANAGER_PORT),
                "IceStorm.ReplicatedPublishEndpoints": _all(addresses, PUBLISH_PORT),
                "IceStorm.Election.MasterTimeout": machine.option("master_timeout"),
                "IceStorm.Election.ElectionTimeout": machine.option("election_timeout"),
                "IceStorm.Election.ResponseTimeout": machine.option("response_timeout"),
                "IceStorm.Trace.Election": 2,
            }  # fmt: skip
        return {"ice.conf": "".join(f"{name}={value}\n" for name, value in properties.items())}

    async def status(self, machine: Machine) -> NodeStatus:
        """Return the replica's own report of its state, group and coordinator (icestormadmin, ``replica``)."""
        alone = len(machine.replicas) == 1
        told = await _admin(machine, "topics" if alone else "replica")
        if alone:
            return NodeStatus(machine.name, reachable=True, role="alone", serving=True)
        own = machine.replicas.index(machine.name) + 1
        facts = dict(re.findall(rf"^{own}: ([a-z ]+): *(.*)$", told, re.MULTILINE))
        if "state" not in facts:
            raise BackendError(" ".join(told.split())[-200:] or "it says nothing of itself")
        state, leads = facts["state"], facts["coord"] == str(own)
        role = state if state != NORMAL else "master" if leads else "slave"
        return NodeStatus(machine.name, reachable=True, role=role, epoch=int(leads), serving=state == NORMAL,
                          detail={"group": facts["group name"], "coordinator": facts["coord"],
                                  "members": facts.get("group", "")})  # fmt: skip

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Tell whether all replicate in one group."""
        groups = {(status.detail or {}).get("group") for status in statuses}
        return all(status.serving for status in statuses) and len(groups) == 1

    async def prepare(self, cluster: ShellCluster) -> None:
        """Create the topics, so that publishers find them where they begin."""
        await _admin(cluster.machine(cluster.node_names[0]), f"create {' '.join(cluster.demands.topics)}")

    def connection(self, cluster: ShellCluster) -> Any:
        """Create a client of one replica, or, with copies, of several."""
        hosts = tuple(cluster.machine(name).address for name in cluster.node_names)
        return IceStormConnection(hosts, cluster.test.options["copies"])

    def check(self, test: Test, demands: Demands) -> None:
        """Check the settings; raises UsageError when there are too few replicas for the copies, or the clients' package
        is missing.
        """
        demand_client(self.name, "IceStorm", *extras_of(self.distributions))
        if not 1 <= test.options["copies"] <= len(test.node_names):
            raise UsageError(f"--set copies={test.options['copies']}: at least 1, and at most one on each of "
                             f"{len(test.node_names)} replicas")

    def parse_line(self, line: str) -> LogLine:
        """Parse a line ``-- 11/23/26 19:08:04.374 icebox-IceStorm: text``, by the machine's clock, which is in UTC."""
        return parse_dated(line, _LINE, "%m/%d/%y %H:%M:%S.%f")

    def role_change(self, text: str) -> RoleChange | None:
        """Parse a role change from the election's trace: a group's coordinator, or a replica that leaves the group."""
        if (said := _ELECTION.fullmatch(text)) is None:
            return None
        if duty := _GROUP.match(said[2]):
            leads = duty[2] == "as coordinator"
            return RoleChange("master" if leads else "slave", duty[1], serving=True, leads=leads)
        if left := _LEFT.match(said[2]):
            return RoleChange(left[1])
        return RoleChange("inactive") if said[2].startswith("creating new self-coordinated group") else None

    def state_transfer(self, text: str) -> StateTransfer | None:
        """Parse a coordinator's takeover of the newest database of its group."""
        said = _ELECTION.fullmatch(text)
        source = _SYNC.match(said[2]) if said else None
        return StateTransfer(f"node {source[1]}", f"node {said[1]}") if said and source else None


async def _admin(machine: Machine, command: str) -> str:
    """Return the output of a command of icestormadmin that asks this one replica.

    Raises:
        BackendError: it failed.
    """
    proxy = shlex.quote(f"{INSTANCE}/TopicManager:tcp -h {machine.address} -p {MANAGER_PORT}")
    return await machine.run(
        f"icestormadmin --IceStormAdmin.TopicManager.Default={proxy} -e {shlex.quote(command)} "
        f"--Ice.Default.InvocationTimeout={ASK_MILLISECONDS} --Ice.Override.ConnectTimeout={ASK_MILLISECONDS} "
        f"--Ice.Override.CloseTimeout={ASK_MILLISECONDS}"
    )


def _all(addresses: Sequence[str], port: int) -> str:
    return ":".join(f"tcp -h {address} -p {port}" for address in addresses)


def _milliseconds(seconds: object) -> int:
    return round(float(str(seconds)) * 1000)


ZEROC_ICESTORM = ZerocIceStorm()
