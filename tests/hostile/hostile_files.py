"""What is fuzzed of Stormproof: every reader of files that may come from strangers.

Each target allows the errors by which its reader tells a person what is wrong, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile_fuzz import Target
from hostile_histories import JSON_WORDS

from stormproof.run_folder import with_seal


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="hostile-"))


def _rows() -> list[Any]:
    from checker_histories import depth, drained, sent, taken

    rows = []
    for number in range(6):
        rows += [*sent(0, (0, number), node=f"n{number % 3 + 1}"), *taken(1, (0, number))]
    return [*rows, *sent(2, (2, 0), "info", error="no receipt in time"), *drained(), *depth()]


def run_folder(store: Path | None = None, **info: Any) -> Path:
    """A whole run on disk, with everything that one may hold."""
    from checker_histories import fault, store_run, write_ledger

    test = {
        "system": "joram",
        "backend": "local",
        "workload": "queue",
        "nodes": 3,
        "nemesis": ["kill", "partition"],
        "seed": 1,
        "time_limit": 10.0,
        "rate": 20.0,
        "concurrency": 3,
        "options": {"partitions": "unspecified"},
    }
    run_dir = store_run(
        (store or _folder()) / "20260101T000000-joram-queue-1-0001",
        _rows(),
        started="2026-01-01T00:00:00+00:00",
        clock_zero="2026-01-01T00:00:00+00:00",
        faults_planned=2,
        command="stormproof test --system joram",
        phases=[{"name": "main", "start": 0, "end": 20_000_000}, {"name": "drain", "start": 21_000_000, "end": None}],
        recovery={"healthy": True, "seconds": 0.1, "bound": 20.0, "state": ""},
        versions={"stormproof": "0.1.0"},
        coverage={"n1": 1},
        statuses={"lost": {"status": "promised"}},
        exemptions={"lost": ["x"]},
        plugins=[],
        livelock="",
        invariants={"logs-match": "Raft paper"},
        invariant_broken={"name": "logs-match", "rule": "r", "source": "s", "wrong": "w", "node": "n1", "time": 1.5,
                          "states": {"n1": "leads 1"}, "events": {"n1": ["a line"]}},
        **{"test": test, **info},
    )
    write_ledger(run_dir, [fault(3, 9, family="kill"), fault(5, 12, ident=2, evidence={"sides": [["n1"], ["n2"]]})])
    logs = run_dir / "logs"
    logs.mkdir()
    for node in ("n1", "n2", "n3"):
        (logs / f"{node}.log").write_text("".join(_log_lines(node)))
    return run_dir


def _log_lines(node: str) -> list[str]:
    return [
        f"{n}.100000 2026-01-01T00:00:0{n},500000 {text}\n"
        for n, text in enumerate(
            [
                f"{node} started address=127.0.0.1:1",
                f"{node} role role=master epoch=3",
                "replica state state=normal group=1",
                "group replicates group=1.2 members=n1,n2 epoch=4",
                f"{node} link up peer=n2",
            ]
        )
    ]


def small_history() -> bytes:
    import pyarrow.parquet as pq
    from checker_histories import table_of

    path = _folder() / "history.parquet"
    pq.write_table(table_of(_rows()), path, compression="zstd")
    return path.read_bytes()


_UNEXPECTED = ("reading the run failed", "the check ")


def _judged(run_dir: Path) -> None:
    """Judge a run: whatever is wrong with it, no reader and no check breaks."""
    from checkers.run_check import check_run

    verdict = check_run(run_dir)
    assert verdict.verdict in ("valid", "invalid", "unknown")
    told = [verdict.damage or "", *(check.outcome.summary for check in verdict.checks)]
    assert not any(text.startswith("the check ") and " failed: " in text for text in told), told
    assert not any("reading the run failed" in text for text in told), told
    assert "\n" not in (verdict.damage or "")
    json.dumps(verdict.to_json(), default=str)


def run_json() -> Target:
    run_dir = run_folder()
    path = run_dir / "run.json"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            path.write_text(json.dumps(with_seal(json.loads(data))))  # else the seal alone would refuse it
        _judged(run_dir)

    return Target(run, [path.read_bytes()], ("checkers/", "stormproof/"), (), True)


def ledger() -> Target:
    """The ledger of a run that is judged by it; its digest is always right."""
    from stormproof.history.ledger import Repair, Standstill, ledger_sha256

    run_dir = run_folder()
    path = run_dir / "ledger.jsonl"
    info = json.loads((run_dir / "run.json").read_text())
    more = f"{Repair('restarted n1', 5, 9).to_json()}\n{Standstill(3, 9, 1.5).to_json()}\n".encode()

    def run(data: bytes) -> None:
        path.write_bytes(data)
        info["ledger_sha256"] = ledger_sha256(path)
        (run_dir / "run.json").write_text(json.dumps(with_seal(info)))
        _judged(run_dir)

    return Target(run, [path.read_bytes(), path.read_bytes() + more], ("checkers/", "stormproof/"), (), True)


def history_file() -> Target:
    from stormproof.errors import HistoryError
    from stormproof.history.columns import read_columns
    from stormproof.history.seal import read_history

    folder = _folder()
    path = folder / "history.parquet"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        for read in (lambda: read_columns(path, None, "0" * 64, texts=True), lambda: read_history(folder)):
            try:
                read()
            except HistoryError as error:
                assert "\n" not in str(error)

    return Target(run, [small_history()], ("stormproof/history",), (b"PAR1",))


def _journal_frames() -> list[bytes]:
    from stormproof.history.journal import JournalWriter
    from stormproof.operation import INFO, INVOKE, OK, Op

    path = _folder() / "journal.bin"
    writer = JournalWriter(path, "r", lasting=False)
    for op in (
        Op(INVOKE, "enqueue", (1, 2), 7, 0, 5),
        Op(OK, "enqueue", {"a": 1}, None, 0, 6, "n2"),
        Op(INFO, "kill.inject", None, None, -1, 7, None, "gone"),
    ):
        writer.record(op)
    writer.close()
    data, frames = path.read_bytes(), []
    while data:
        (size,) = struct.unpack_from("<I", data, 4)
        frames.append(data[12 : 12 + size])
        data = data[12 + size :]
    return frames


def journal(whole: bool) -> Target:
    """A journal: the bytes of the file, or (``whole`` is false) of the frames, whose sums are always right."""
    import pyarrow as pa

    from stormproof.errors import HistoryError
    from stormproof.history.seal import seal

    run_dir = _folder()
    header, rows = _journal_frames()

    def framed(payload: bytes) -> bytes:
        return b"SPJ1" + struct.pack("<II", len(payload), zlib.crc32(payload)) + payload

    def run(data: bytes) -> None:
        if whole:
            content = data
        else:
            first, mark, rest = data.partition(b"\nFRAME\n")
            content = framed(first if mark else header) + framed(rest if mark else data)
        (run_dir / "journal.bin").write_bytes(content)
        try:
            seal(run_dir)
        except HistoryError as error:
            assert "\n" not in str(error)

    sink = pa.BufferOutputStream()
    with pa.ipc.open_stream(rows) as reader:
        batch = reader.read_next_batch()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(batch)
    packed = sink.getvalue().to_pybytes()
    seeds = [framed(header) + framed(rows)] if whole else [rows, packed, header + b"\nFRAME\n" + rows]
    return Target(run, seeds, ("stormproof/history",), (b"SPJ1", b"\xff\xff\xff\xff", b"\0\0\0\0"))


def verdict_json() -> Target:
    """The stored verdict: of a run's page, of the index, of the command."""
    from checkers.run_check import check_run
    from checkers.verdict import write_verdict
    from reports.index_page import write_index
    from reports.run_page import write_report
    from stormproof.errors import StormproofError
    from stormproof.run_folder import read_verdict

    run_dir = run_folder()
    write_verdict(run_dir, check_run(run_dir))
    path = run_dir / "verdict.json"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        try:
            read_verdict(run_dir)
        except StormproofError as error:
            assert "\n" not in str(error)
        write_report(run_dir)
        write_index(run_dir.parent)

    return Target(run, [path.read_bytes()], (), (), True)


def report_of(name: str, seeds: Callable[[Path], bytes]) -> Target:
    """Another file of a run's folder: of a run's page, and of the index."""
    from harness.analysis.coverage import note_log_events
    from reports.index_page import write_index
    from reports.run_page import write_report
    from stormproof.errors import StormproofError

    run_dir = run_folder()
    note_log_events(run_dir)
    path = run_dir / name
    first = seeds(run_dir)

    def run(data: bytes) -> None:
        path.write_bytes(data)
        if name.startswith("logs/"):
            (run_dir / "log-events.jsonl").unlink(missing_ok=True)
        try:
            note_log_events(run_dir)
            write_report(run_dir)
            write_index(run_dir.parent)
        except StormproofError as error:
            assert "\n" not in str(error)

    return Target(run, [first], (), (), "json" in name)


def notes() -> Target:
    """What heal and recover read of a run's folder."""
    from harness.backends.ssh.remote import Remote
    from harness.run.recovery import recover
    from stormproof.errors import StormproofError
    from stormproof.history.undo import UndoJournal, pending_undos
    from stormproof.resource_log import made_folders, owner_of, unfinished
    from stormproof.run_folder import JOURNAL

    run_dir = run_folder(status="running")
    (run_dir / "history.parquet").unlink()
    files = ("undo.jsonl", "made.jsonl", "remote.json", "run.json", JOURNAL)
    turn = iter(range(1 << 60))

    def run(data: bytes) -> None:
        name = files[next(turn) % len(files)]
        kept = (run_dir / "run.json").read_bytes()
        (run_dir / name).write_bytes(data)
        for read in (pending_undos, made_folders, owner_of, unfinished, Remote.read, recover):
            try:
                read(run_dir)
            except StormproofError as error:
                assert "\n" not in str(error), read
        try:
            UndoJournal(run_dir).close()
        except StormproofError:
            pass
        for each in (*files, "history.parquet"):
            (run_dir / each).unlink(missing_ok=True)
        (run_dir / "run.json").write_bytes(kept)

    undo = b'{"id":0,"undo":"network","nodes":["n1"]}\n{"id":0,"done":true}\n{"id":1,"undo":"resume","nodes":["n2"]}\n'
    made = (
        b'{"owner": {"uid": 0, "processes": [[1, 2]], "lock": [1, 2], "namespace": "x", "boot": "b", "machine": "m"}}\n'
        b'{"folder": "/nowhere/stormproof-x"}\n{"container": "c"}\n'
    )
    remote = json.dumps(
        {
            "run": "r",
            "known_hosts": "/k",
            "clients": {"link": "l", "addresses": ["10.0.0.1"], "length": 8},
            "nodes": {
                "n1": {
                    "name": "n1",
                    "address": "10.0.0.1",
                    "port": 22,
                    "user": "root",
                    "keys": [],
                    "agent": True,
                    "network": "",
                }
            },
            "power": "",
        }
    ).encode()
    return Target(
        run,
        [undo, made, remote, (run_dir / "run.json").read_bytes()],
        ("stormproof/", "harness/recovery", "harness/backends/ssh/remote"),
        (b"\n",),
        True,
    )


def json_lines() -> Target:
    from stormproof.errors import HistoryError
    from stormproof.history.jsonl import import_jsonl

    path = _folder() / "h.jsonl"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        try:
            import_jsonl(path)
        except HistoryError as error:
            assert "\n" not in str(error)

    seed = (
        b'{"schema": 1, "run": "r"}\n{"index":0,"type":"invoke","f":"enqueue","process":0,"key":0,"value":[0,1]}\n'
        b'{"type":"ok","f":"enqueue","process":0,"time":7,"text":"{}","node":"n1","error":"e"}\n'
    )
    return Target(run, [seed], ("stormproof/history",), JSON_WORDS, True)


def config_file() -> Target:
    from harness.cli.config_file import BOOLEAN, INTEGER, NUMBER, STRING, TABLE, Key, read_config
    from stormproof.errors import UsageError

    path = _folder() / "c.toml"
    keys = {
        "system": Key(STRING),
        "nemesis": Key(STRING, True),
        "time-limit": Key(NUMBER),
        "nodes": Key(INTEGER),
        "json": Key(BOOLEAN),
        "set": Key(TABLE),
    }

    def run(data: bytes) -> None:
        path.write_bytes(data)
        try:
            read_config(path, keys)
        except UsageError as error:
            assert str(error).startswith(str(path))

    seed = (
        b'system = "joram"\nnemesis = ["partition", "pause"]\ntime-limit = 60\njson = true\n[set]\npartitions = "x"\n'
        b"fault_duration = 5.5\nx.y = 1979-05-27T07:32:00Z\n"
    )
    words = (
        b"[[",
        b"]]",
        b"{",
        b"}",
        b"=",
        b'"""',
        b"'''",
        b".",
        b"\n",
        b"[set]",
        b"inf",
        b"0x",
        b"1979-05-27",
        b"\\u",
    )
    return Target(run, [seed], ("harness/config_file",), words)


def plugin_list() -> Target:
    """What a run's description says of the plug-ins that it was made with."""
    from harness.run.plugins import demand_same
    from stormproof.errors import HistoryError

    def run(data: bytes) -> None:
        try:
            info = json.loads(data)
        except (ValueError, RecursionError):
            return
        try:
            demand_same(info if isinstance(info, dict) else {"plugins": info}, "r")
        except HistoryError as error:
            assert "\n" not in str(error)

    plugin = {"kind": "check", "name": "late", "target": "/x/late.py:Late", "sha256": "0" * 64}
    return Target(run, [json.dumps({"plugins": [plugin]}).encode()], ("harness/plugins",), (), True)


def host_lists() -> Target:
    from harness.backends.ssh.hosts import parse_list, parse_ssh_config
    from stormproof.errors import UsageError

    path = Path("hosts")

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        for parse in (parse_list, parse_ssh_config):
            if parse is parse_ssh_config and any(word in text.lower() for word in ("exec", "canonical")):
                continue  # these would do something
            try:
                parse(text, path)
            except UsageError as error:
                assert "\n" not in " ".join(str(error).split("\n")[:1])

    seeds = [
        b"n1 root@10.0.0.1:22 key=~/k network=10.1.0.1\nn2 u@[::1] # c\n",
        b'Host n1\n  HostName 10.0.0.1\n  Port 22\n  User u\n  IdentityFile "~/.ssh/id %h"\n  IdentitiesOnly yes\n',
    ]
    words = (
        b"Host ",
        b"HostName ",
        b"Port ",
        b"Match host ",
        b"ProxyJump ",
        b"*",
        b'"',
        b"%h",
        b"=",
        b"key=",
        b"@",
        b":",
    )
    return Target(run, seeds, ("harness/backends/ssh/hosts",), words)


def node_configuration() -> Target:
    """Configurations of the programs of a node."""
    from nodes.reference import wire
    from nodes.reference.api import ConfigError
    from nodes.reference.config import read_config
    from nodes.reference.designs.qpid.manager.config import ManagerConfig, read_manager_config
    from nodes.reference.storage.config import read_storage_config

    path = _folder() / "c.json"
    readers: list[Callable[[Path], object]] = [read_config, read_storage_config, read_manager_config]

    def run(data: bytes) -> None:
        path.write_bytes(data)
        for read in readers:
            try:
                found = read(path)
            except ConfigError as error:
                assert str(error).startswith(str(path))
                continue
            if isinstance(found, ManagerConfig):  # it can be told to others, and to the system
                wire.encode([found.node, found.cluster, *found.members])
                assert not any("\0" in word for word in (*found.command, found.pid_file, found.log))

    broker = {
        "node": "n1",
        "design": "joram",
        "data": "/d",
        "host": "h",
        "port": 1,
        "login": "g",
        "passcode": "p",
        "peers": {"n1": ["10.0.0.1", 2], "n2": ["10.0.0.2", 2]},
        "client_addresses": {"n1": "h:1"},
        "server": 1,
        "networks": [{"name": "N", "port": 3}],
        "servers": {"2": [["h", 4]]},
        "clustered": {},
        "services": [["x.Y", ["a"]]],
        "options": {"seed": 1, "secret": "s", "max_body": 100},
    }
    manager = {
        "node": "n1",
        "data": "/d",
        "members": {"n1": ["10.0.0.1", 2], "n2": ["10.0.0.2", 2]},
        "listen": ["127.0.0.1", 3],
        "broker": ["10.0.0.1", 1],
        "command": ["python3", "-m", "nodes.reference"],
        "pid_file": "/d/p",
        "log": "/d/l",
        "secret": "s",
        "options": {"manager_lease": 1.0},
    }
    storage = {"data": "/d", "host": "127.0.0.1", "port": 1, "clients": ["a"], "secret": "s", "cluster": "c"}
    return Target(
        run,
        [json.dumps(broker).encode(), json.dumps(storage).encode(), json.dumps(manager).encode()],
        ("nodes/reference/config", "nodes/reference/storage/config", "nodes/reference/engine/limits",
         "nodes/reference/designs/qpid/manager/config"),
        (),
        True,
    )


def xml_descriptor() -> Target:
    from nodes.reference.api import ConfigError
    from nodes.reference.config import parse_config
    from nodes.reference.server.descriptor import config_of, parse_descriptor

    seed = (Path(__file__).resolve().parents[1] / "joram/a3servers.xml").read_bytes()

    def run(data: bytes) -> None:
        try:
            found = parse_descriptor(data, "a3servers.xml")
            parse_config(config_of(found, 0, "/data", 0, None, False))
        except ConfigError:
            pass

    words = (
        b"<!DOCTYPE a [<!ENTITY b 'c'>]>",
        b"&b;",
        b"<![CDATA[",
        b"<server ",
        b"<network ",
        b"<service ",
        b'id="1"',
        b'hostname="h"',
        b'port="1"',
        b'domain="D"',
        b"/>",
        b"<?xml version='1.0' encoding='UTF-16'?>",
    )
    return Target(run, [seed], ("nodes/reference/server/descriptor", "nodes/reference/config"), words)


LOG_EVENTS = (
    b'{"node": "n1", "time": 1.5, "event": "role", "role": "master", "group": "3", "serving": true, "leads": true}\n'
    b'{"node": "n2", "time": 2.0, "event": "transfer", "target": "n2", "source": "n1", "phase": "begin"}\n'
)
