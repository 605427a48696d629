"""The files of a broker: broker.xml, and the small ones beside it.

(Artemis User Manual: "Configuration Reference"; "High Availability and Failover"; "Clusters".)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

CORE_PORT = 61616
SINGLE, REPLICATION, LOCK_MANAGER, SHARED_STORE = "single", "replication", "lock-manager", "shared-store"
"""Values of the option ``mode``."""
PRIMARY, BACKUP = "primary", "backup"
ANSWERS = "answers"
"""The queue of the management's answers. It is kept in memory, so that questions write nothing to the journal."""
JOURNAL = ("journal_datasync", "journal_sync_transactional", "journal_sync_non_transactional")
"""Options of the journal: they have the manual's names, with ``_`` for ``-``."""
_BROKER = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
{settings}
{pair}
<acceptors>
<acceptor name="core">tcp://{address}:{core_port}?protocols=CORE</acceptor>
<acceptor name="clients">tcp://{address}:{port}?protocols=STOMP</acceptor>
</acceptors>
<address-settings><address-setting match="#">
{addresses}
</address-setting>
<address-setting match="activemq.management"><auto-create-queues>false</auto-create-queues></address-setting>
</address-settings>
<addresses>
{queues}
</addresses>
</core></configuration>
"""
_PAIR = """<connectors>
<connector name="self">tcp://{address}:{core_port}</connector>
<connector name="peer">tcp://{peer}:{core_port}</connector>
</connectors>
<cluster-user>pair</cluster-user><cluster-password>pair</cluster-password>
<cluster-connections><cluster-connection name="pair">
<connector-ref>self</connector-ref>
{cluster}
<static-connectors><connector-ref>peer</connector-ref></static-connectors>
</cluster-connection></cluster-connections>
<ha-policy><{policy}><{role}>
{policy_settings}
</{role}></{policy}></ha-policy>"""
_QUEUE = '<address name={name}><anycast><queue name={name}><durable>{durable}</durable></queue></anycast></address>'
_SMALL = {
    "etc/bootstrap.xml": """<broker xmlns="http://activemq.apache.org/schema">
<jaas-security domain="activemq"/>
<server configuration="file:{folder}/etc/broker.xml"/>
</broker>
""",
    "etc/management.xml": '<management-context xmlns="http://activemq.apache.org/schema"/>\n',
    "etc/login.config": "activemq {{ }};\n",
    "etc/log4j2.properties": """rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
logger.audit.name = org.apache.activemq.audit
logger.audit.level = OFF
logger.curator.name = org.apache.curator
logger.curator.level = WARN
logger.zookeeper.name = org.apache.zookeeper
logger.zookeeper.level = ERROR
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss,SSS}}{{UTC}} | %-5level | %msg%n
appender.console.filter.clients.type = RegexFilter
appender.console.filter.clients.regex = AMQ(332069|2220(61|67)|222107|22216[56]):.*
appender.console.filter.clients.onMatch = DENY
appender.console.filter.clients.onMismatch = NEUTRAL
""",
    "tmp/README": "Java's temporary files\n",
}
"""Files that all brokers need: without management.xml they do not start, and without the line for the audit they log
each message. The filter keeps out lines about clients that close their connections, and about dead-letter addresses."""


def small_files(folder: str) -> dict[str, str]:
    """Return the files that are the same for all settings, by their paths below the machine's folder."""
    return {path: text.format(folder=folder) for path, text in _SMALL.items()}


def broker_xml(name: str, address: str, port: int, store: str, options: Mapping[str, object], queues: Sequence[str],
               pair: str = "") -> str:
    """Return broker.xml. ``store`` is the folder of the journals; ``pair`` is what ``pair_xml`` returns."""
    return _BROKER.format(
        pair=pair, address=address, port=port, core_port=CORE_PORT,
        settings=elements({
            "name": name, "security-enabled": False, "persistence-enabled": True, "journal-type": "NIO",
            "paging-directory": f"{store}/paging", "bindings-directory": f"{store}/bindings",
            "journal-directory": f"{store}/journal", "large-messages-directory": f"{store}/large",
            "node-manager-lock-directory": f"{store}/lock",
            **{option.replace("_", "-"): options[option] for option in JOURNAL},
            "journal-file-size": "1M", "journal-min-files": 2, "journal-pool-files": 10,  # at first, files are filled
            "max-disk-usage": -1, "critical-analyzer": False,
        }),
        addresses=elements({
            "max-delivery-attempts": -1, "default-address-routing-type": "ANYCAST",
            "default-queue-routing-type": "ANYCAST", "auto-delete-queues": False, "auto-delete-addresses": False,
        }),
        queues="\n".join(_QUEUE.format(name=quoteattr(queue), durable=_text(queue != ANSWERS))
                         for queue in (*queues, ANSWERS)))  # fmt: skip


def pair_xml(address: str, peer: str, role: str, options: Mapping[str, object], zookeepers: str) -> str:
    """Return the elements of a broker with a peer: the connection of both, and the policy. ``zookeepers`` are the
    servers that the lock manager connects to."""
    mode, is_backup = options["mode"], role == BACKUP
    policy: dict[str, object] = {}
    if is_backup:
        policy |= {"allow-failback": options["allow_failback"], "restart-backup": True}
    if mode == REPLICATION:
        if not is_backup:
            policy["check-for-active-server"] = options["check_for_active_server"]
        policy |= {"vote-on-replication-failure": options["vote_on_replication_failure"],
                   "quorum-size": options["quorum_size"], "vote-retries": 3, "vote-retry-wait": 1000,
                   "quorum-vote-wait": 2}  # fmt: skip
    if mode == SHARED_STORE:
        policy["failover-on-shutdown"] = True
    manager = ""
    if mode == LOCK_MANAGER:
        properties = {"connect-string": zookeepers, "session-ms": options["session_ms"], "connection-ms": 2000}
        written = "".join(f"<property key={quoteattr(key)} value={quoteattr(str(value))}/>"
                          for key, value in properties.items())  # fmt: skip
        manager = f"<manager><properties>{written}</properties></manager>"
    cluster = {"check-period": options["check_period"], "connection-ttl": options["connection_ttl"],
               "call-timeout": options["connection_ttl"], "retry-interval": 250}  # fmt: skip
    return _PAIR.format(address=address, peer=peer, core_port=CORE_PORT, role=role, cluster=elements(cluster),
                        policy=SHARED_STORE if mode == SHARED_STORE else REPLICATION,
                        policy_settings=manager + elements(policy))  # fmt: skip


def elements(values: Mapping[str, object]) -> str:
    """Return an XML element a line for each setting."""
    return "\n".join(f"<{name}>{_text(value)}</{name}>" for name, value in values.items())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else escape(str(value))
