"""All targets, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import hostile_clusters as clusters
import hostile_files as files
import hostile_histories as histories
import hostile_wires as wires
from hostile_fuzz import Target

TARGETS: Mapping[str, Callable[[], Target]] = {
    "porcupine-jsonl": lambda: histories.porcupine_files(
        "jsonl", [histories.JSONL, histories.TXN], histories.JSON_WORDS, True
    ),
    "porcupine-edn": lambda: histories.porcupine_files(
        "edn", [histories.EDN, histories.TXN, histories.KV], histories.EDN_WORDS
    ),
    "porcupine-kv": lambda: histories.porcupine_files(
        "porcupine-kv", [histories.KV], histories.EDN_WORDS, names=("kv",)
    ),
    "porcupine-log": lambda: histories.porcupine_files(
        "jepsen-log", [histories.LOG], histories.EDN_WORDS, names=("cas-register", "register")
    ),
    "porcupine-any": lambda: histories.porcupine_files(
        None,
        [histories.JSONL, histories.EDN, histories.KV, histories.LOG, histories.TXN],
        histories.EDN_WORDS + histories.JSON_WORDS,
    ),
    "porcupine-gzip": histories.porcupine_gzip,
    "porcupine-parquet": histories.porcupine_parquet,
    "porcupine-initial": histories.porcupine_initial,
    "porcupine-command": histories.porcupine_command,
    "run.json": files.run_json,
    "ledger": files.ledger,
    "history.parquet": files.history_file,
    "journal": lambda: files.journal(True),
    "journal-frames": lambda: files.journal(False),
    "verdict.json": files.verdict_json,
    "report-run.json": lambda: files.report_of("run.json", lambda run: (run / "run.json").read_bytes()),
    "report-ledger": lambda: files.report_of("ledger.jsonl", lambda run: (run / "ledger.jsonl").read_bytes()),
    "report-log-events": lambda: files.report_of("log-events.jsonl", lambda run: files.LOG_EVENTS),
    "report-log": lambda: files.report_of("logs/n1.log", lambda run: (run / "logs/n1.log").read_bytes()),
    "notes": files.notes,
    "history.jsonl": files.json_lines,
    "config.toml": files.config_file,
    "plug-ins": files.plugin_list,
    "hosts": files.host_lists,
    "node-config": files.node_configuration,
    "a3servers.xml": files.xml_descriptor,
    "stomp-codec": wires.stomp_codec,
    "stomp-broker": wires.stomp_broker,
    "wire": wires.wire_encoding,
    "link-messages": wires.link_messages,
    "link-handshake": wires.link_handshake,
    "storage": wires.storage_service,
    "qpid-links": lambda: clusters.qpid_links({}),
    "qpid-links-documented": lambda: clusters.qpid_links({"as_documented": "LM1,LM2,LM3,LC3,LC6", "sequence_bits": 5}),
    "qpid-requests": clusters.qpid_requests,
    "qpid-copies": clusters.qpid_copies,
    "qpid-managers": clusters.qpid_managers,
    "qpid-manager-answers": clusters.qpid_manager_answers,
    "qpid-permission": clusters.qpid_permission,
    "qpid-stored": clusters.qpid_stored,
    "icestorm-links": clusters.icestorm_links,
}
