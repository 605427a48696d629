"""Sentences of the document on real processes: managers and brokers on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from qpid_processes import PATIENCE, Cluster
from qpid_runs import Ran

from workloads.reference.connection import Rejected


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[Cluster]:
    """A cluster of which one broker is primary, and the others are ready."""
    cluster = Cluster(folder, **options)
    try:
        cluster.until("primary", "ready", "ready")
        yield cluster
    finally:
        cluster.end()


def primary_of(found: Mapping[str, Mapping[str, Any]]) -> str:
    return next(name for name, status in found.items() if status.get("state") == "primary")


def fail_over(cluster: Cluster) -> None:
    """The primary's broker is killed; another one is primary, and the others are ready again."""
    lost = primary_of(cluster.statuses())
    cluster.kill_brokers(lost)
    deadline = time.monotonic() + PATIENCE
    while primary_of(cluster.until("primary", "ready", "ready")) == lost:
        assert time.monotonic() < deadline, f"{lost} is primary again"
        time.sleep(0.1)


@pytest.mark.requirement("Q6", part=True)
@pytest.mark.requirement("Q7", part=True)
@pytest.mark.parametrize(("options", "own"), [
    ({"replicate": "none"}, {"kept": "messages", "left": ""}),
    ({"replicate": "none", "patterns": "kept*=messages"}, {"kept": "", "left": ""}),
    ({}, {"kept": "", "left": "none"}),
])
def test_a_binding_is_replicated_as_both_of_its_ends_are(tmp_path: Path, options: dict[str, str],
                                                         own: dict[str, str]) -> None:
    """Whatever is replicated by default: what a confirmed SEND to a replicated exchange brought to a replicated queue
    is there after a failover, and what comes later arrives, too; a binding with an end that is not replicated is not.
    """
    def said(name: str) -> dict[str, str]:
        return {"qpid.replicate": own[name]} if own[name] else {}

    with running(tmp_path, **options) as cluster:
        for name in ("kept", "left"):
            assert not cluster.manage("create-queue", queue=f"{name}-q", **said(name))
            assert not cluster.manage("create-exchange", exchange=f"{name}-x", type="fanout", **said(name))
        for exchange, queue in (("kept", "kept"), ("kept", "left"), ("left", "kept")):
            assert not cluster.manage("bind", exchange=f"{exchange}-x", queue=f"{queue}-q", key="")
        cluster.send("before", destination="/exchange/kept-x/any")
        listed = {name: {tuple(each[:2]) for each in cluster.ask(name, op="list")["objects"]}
                  for name, status in cluster.statuses().items() if status["state"] == "ready"}
        kept = {("queue", "kept-q"), ("exchange", "kept-x"), ("binding", "kept-x\nkept-q\n")}
        assert len(listed) == 2 and all(found == kept for found in listed.values())
        fail_over(cluster)
        cluster.send("after", destination="/exchange/kept-x/any")
        assert cluster.receive(2, queue="kept-q") == ["before", "after"]


@pytest.mark.requirement("Q7", part=True)
def test_what_is_not_replicated_is_refused_instead_of_lost(tmp_path: Path) -> None:
    """Durable subscriptions, prepared transactions, reliable connections; arguments that nobody knows."""
    with running(tmp_path) as cluster:
        about = {"id": "s", "destination": "/topic/t", "ack": "auto"}
        cluster.request("SUBSCRIBE", about)
        with pytest.raises(Rejected, match="durable subscriptions are not replicated by this design"):
            cluster.request("SUBSCRIBE", {**about, "x-durable": "mine"})
        for given in ("qpid.replicat", "qpid.Replicate", "QPID.replicate", "qpid.max_count"):
            for kind in ("queue", "exchange"):
                answer = cluster.manage(f"create-{kind}", **{kind: "new"}, **{given: "none"})
                assert answer.startswith(f"{given!r} is no argument of a {kind} (there are: qpid.replicate"), answer
        with pytest.raises(Rejected, match=r"'qpid\.replicat' is no argument of a queue"):
            declared = json.dumps({"qpid.replicat": "none"})
            cluster.request("SEND", {"destination": "/queue/new", "x-declare": declared})
        assert cluster.manage("create-exchange", exchange="h", type="headers").startswith("type 'headers' is none of")
        assert not cluster.manage("create-queue", queue="own", owner="tests")
        assert not cluster.manage("create-exchange", exchange="x")
        refused = cluster.manage("bind", exchange="x", queue="own", key="", **{"qpid.replicate": "none"})
        assert refused == "bind has no field 'qpid.replicate' (it has: exchange, queue, key)"
        objects = cluster.ask(primary_of(cluster.statuses()), op="list")["objects"]
        assert [each[:2] for each in objects] == [["exchange", "x"], ["queue", "own"]]


@pytest.mark.requirement("Q15", part=True)
def test_a_pushed_broker_url_survives_a_restart(tmp_path: Path) -> None:
    """And so does the client URL, until somebody edits the configuration."""
    with running(tmp_path) as cluster:
        leader = primary_of(cluster.statuses())
        restarted, left_out = (name for name in cluster.names if name != leader)
        told = [name for name in cluster.names if name != left_out]
        brokers = {name: ["127.0.0.1", cluster.links[name]] for name in told}
        clients = {name: ["127.0.0.1", cluster.clients[name]] for name in told}
        assert cluster.ask(restarted, op="set-broker-url", addresses=brokers)["ok"]
        assert cluster.ask(restarted, op="set-client-url", addresses=clients)["ok"]
        before = cluster.pids(restarted)[0]
        cluster.kill_brokers(restarted)

        def urls() -> tuple[Any, Any]:
            deadline = time.monotonic() + PATIENCE
            while not (status := cluster.statuses()[restarted]) or cluster.pids(restarted)[0] == before:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            return status["brokers"], status["clients"]

        pushed = (brokers, {name: f"{host}:{port}" for name, (host, port) in clients.items()})
        assert urls() == pushed
        path = tmp_path / f"{restarted}.json"
        config = json.loads(path.read_text())
        config["client_addresses"]["n9"] = "127.0.0.1:9"
        path.write_text(json.dumps(config))
        before = cluster.pids(restarted)[0]
        cluster.kill_brokers(restarted)
        assert [set(each) for each in urls()] == [set(cluster.names), {*cluster.names, "n9"}]


@pytest.mark.requirement("Q11", part=True)
@pytest.mark.requirement("Q16", part=True)
def test_a_shutdown_ends_the_programs_and_a_status_tells_from_what_a_broker_was_started(tmp_path: Path) -> None:
    """From clean stores the cluster starts by itself; a broker that was killed finds a dirty one."""
    with running(tmp_path) as cluster:
        cluster.send("a", "b")
        leader = primary_of(cluster.statuses())
        assert cluster.admin("status", "--server", cluster.server(leader)).stdout.count("started from an empty") == 3
        brokers = [cluster.pids(name)[0] for name in cluster.names]
        done = cluster.admin("shutdown", "--server", cluster.server(leader))
        assert done.returncode == 0 and "n1, n2, n3; managers end with their brokers" in done.stdout, done
        assert [process.wait(PATIENCE) for process in cluster.running] == [0, 0, 0]
        for pid in brokers:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        cluster.start()
        found = cluster.until("primary", "ready", "ready")
        uuid = done.stdout.split("clean, ")[1].split(":")[0]
        assert {tuple(each["started_from"][key] for key in ("state", "uuid")) for each in found.values()} == {
            ("clean", uuid)}
        told = cluster.admin("status", "--server", cluster.server(primary_of(found))).stdout
        assert told.count(f"started from a clean store ({uuid[:8]})") == 3
        assert cluster.receive(2) == ["a", "b"]
        backup = next(name for name in cluster.names if name != primary_of(found))
        cluster.kill_brokers(backup)
        time.sleep(0.5)
        found = cluster.until("primary", "ready", "ready")
        told = cluster.admin("status", "--server", cluster.server(primary_of(found))).stdout
        (line,) = (line for line in told.splitlines() if "started from a dirty store" in line)
        assert line.startswith(f"{backup}: ")


@pytest.mark.requirement("Q7", part=True)
def test_what_is_not_replicated_by_choice_is_not_promised_and_the_leader_is_the_broker(tmp_path: Path) -> None:
    """Messages are lost with each primary, which is told and does not decide; ``kill:leader`` hits the broker."""
    done = subprocess.run([sys.executable, "-m", "harness", "test", "--system", "qpid", "--backend", "local", "--seed",
                           "3", "--nemesis", "kill:leader", "--time-limit", "10", "--rate", "60", "--store",
                           str(tmp_path), "--set", "replicate=none", "--set", "producers=4", "--set", "consumers=1"],
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    (run_json,) = tmp_path.glob("*/run.json")
    ran, info = Ran(run_json.parent), json.loads(run_json.read_text())
    assert {line["evidence"]["program"] for line in ran.lines("inject")} == {"broker"}
    assert info["statuses"]["lost"]["status"] == "not promised" and "lost" not in info["guarantees"]
    assert "duplicated" in info["guarantees"], "nothing else is left out"
    lost = next(check for check in ran.verdict["checks"] if check["check"] == "lost")
    assert lost["count"] > 0 and done.returncode in (0, 2), done.stdout[-3000:]
