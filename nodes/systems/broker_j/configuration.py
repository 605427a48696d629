"""The first configuration of a broker: initial.json.

(Apache Qpid Broker-J documentation: "Initial Configuration"; "Virtual Host Nodes"; "High Availability".)
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from stormproof.contracts.backend import Credentials

GROUP_PORT = 5000
BDB, BDB_HA, DERBY = "BDB", "BDB_HA", "DERBY"
"""Types of virtual host nodes, and of their virtual hosts."""
OURS = Credentials("stormproof", "stormproof")
"""The user that the broker knows."""
NOBODY, ALL = "none", "all"
"""Values of ``designated_primary`` besides a node's name."""
_LEVELS = {"ROOT": "WARN", **{f"qpid.message.{group}.*": "INFO"
                              for group in ("broker", "highavailability", "messagestore", "virtualhost")}}
"""Levels of loggers: warnings, and operational messages except those about connections."""


def initial_json(name: str, port: int, store: str, addresses: Mapping[str, str], options: Mapping[str, object]) -> str:
    """Return the configuration of the broker ``name``. ``store`` is the folder of its messages, ``addresses`` are those
    of all brokers, by name, the first one's first."""
    return json.dumps({
        "name": name, "modelVersion": "9.0",
        "authenticationproviders": [{
            "name": "plain", "type": "Plain", "secureOnlyMechanisms": [],
            "users": [{"name": OURS.login, "type": "managed", "password": OURS.passcode}]}],
        "brokerloggers": [{
            "name": "console", "type": "Console",
            "brokerloginclusionrules": [{"name": logger, "type": "NameAndLevel", "level": level, "loggerName": logger}
                                        for logger, level in _LEVELS.items()]}],
        "ports": [{
            "name": "AMQP", "port": port, "bindingAddress": addresses[name], "authenticationProvider": "plain",
            "protocols": ["AMQP_0_9_1", "AMQP_1_0"],
            "virtualhostaliases": [{"name": kind, "type": kind}
                                   for kind in ("nameAlias", "defaultAlias", "hostnameAlias")]}],
        "virtualhostnodes": [_node(name, store, addresses, options)],
    }, indent=1)  # fmt: skip


def _node(name: str, store: str, addresses: Mapping[str, str], options: Mapping[str, object]) -> dict[str, object]:
    kind = options["type"]
    host: dict[str, object] = {"type": kind}
    node: dict[str, object] = {"name": name, "type": kind, "storePath": store, "defaultVirtualHostNode": True}
    if kind != BDB_HA:
        host["name"] = "stormproof"
    else:
        group = {each: f"{address}:{GROUP_PORT}" for each, address in addresses.items()}
        first = next(iter(group))
        silence = f"{options['je_rep_timeout']} s"
        host |= {"localTransactionSynchronizationPolicy": options["local_transaction_synchronization_policy"],
                 "remoteTransactionSynchronizationPolicy": options["remote_transaction_synchronization_policy"]}
        node |= {"groupName": "stormproof", "address": group[name], "helperAddress": group[first],
                 "permittedNodes": list(group.values()), "quorumOverride": options["quorum_override"],
                 "designatedPrimary": options["designated_primary"] in (name, ALL),
                 "context": {f"je.rep.{each}Timeout": silence
                             for each in ("feeder", "replica", "electionsOpen", "electionsRead")}}
        if name != first:
            node["helperNodeName"] = first
    return {**node, "virtualHostInitialConfiguration": json.dumps(host)}
