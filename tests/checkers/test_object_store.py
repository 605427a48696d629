"""A store in an object store: the same verdicts, the same lake, whoever writes and whatever is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from checker_histories import depth, drained, sent, store_run, taken
from object_server import KEY, SECRET, object_server

import stormproof
from checkers.lake import table
from checkers.lake.object_store import ObjectStore, object_store
from checkers.lake.table import append, compact, read_lake, refresh, row_of
from checkers.lake.views import duckdb_views
from checkers.messages import add_messages
from checkers.run_check import check_run
from checkers.spark.job import check_and_store
from checkers.spark.object_job import check_object
from checkers.synthetic import write_store
from harness.store.copying import pull, push
from harness.store.query import query
from stormproof.errors import StormproofError, UsageError
from stormproof.run_folder import read_verdict, with_seal

pytestmark = pytest.mark.requirement("H23", part=True)

GOOD = [*sent(0, (0, 0)), *taken(1, (0, 0)), *drained(), *depth()]
BAD = [*sent(0, (0, 0)), *drained(), *depth()]


@pytest.fixture(scope="module")
def service() -> Iterator[Mapping[str, str]]:
    with object_server() as variables:
        yield variables


@pytest.fixture
def store(service: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ObjectStore:
    for name, value in service.items():
        monkeypatch.setenv(name, value)
    return object_store(f"s3://bucket/{request.node.name.partition('[')[0]}/deeper")


def name_of(number: int) -> str:
    return f"20260101T0000{number:02}-joram-queue-{number}-{number:04x}"


def command(service: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "harness", *words], capture_output=True, text=True, check=False,
                          env={**os.environ, **service})  # fmt: skip


def checked(store: ObjectStore, **options: bool) -> dict[str, dict[str, str]]:
    rows = {run: check_object(store, run, files, **options).to_pylist()[0] for run, files in store.runs().items()}
    append(store, [json.loads(row["lake"]) for row in rows.values()])
    return rows


def test_verdicts_are_those_of_a_folder(store: ObjectStore, tmp_path: Path) -> None:
    runs = {run.name: defects for run, defects in write_store(tmp_path, 8, 400)}
    assert push(tmp_path, store, [], again=False) == 0
    found = checked(store)
    assert {run: row["verdict"] for run, row in found.items()} == {run: d.verdict for run, d in runs.items()}
    assert pull(tmp_path / "back", store, []) == 0
    for run in runs:
        check_and_store(tmp_path / run)
        here, there = read_verdict(tmp_path / run), read_verdict(tmp_path / "back" / run)
        assert {**here, "judged": 0} == {**there, "judged": 0}
        assert here["judged"]["records"] == there["judged"]["records"], "records are the same, wherever they lie"
    assert all(row["taken"] for row in checked(store).values()), "none is judged again"
    assert not any(row["taken"] for row in checked(store, again=True).values())
    changed = next(iter(runs))
    info = json.loads((tmp_path / changed / "run.json").read_text())
    store.write(f"{changed}/run.json", json.dumps(with_seal({**info, "more": 1})).encode())
    assert [run for run, row in checked(store).items() if not row["taken"]] == [changed]
    assert add_messages(store) == (8, []) and add_messages(store) == (0, [])
    lost = query(store, "SELECT run, count_if(lost) AS lost FROM messages GROUP BY run ORDER BY run").to_pydict()
    assert dict(zip(*lost.values(), strict=True)) == {run: d.anomalies.get("lost", 0) for run, d in runs.items()}
    frame = stormproof.load(str(store)).runs()
    assert dict(zip(frame.run, frame.verdict, strict=True)) == {run: d.verdict for run, d in runs.items()}
    with pytest.raises(UsageError, match="stormproof pull --from"):
        stormproof.load(str(store)).run("latest")
    counted = "SELECT f, outcome, count(*) AS n FROM operations GROUP BY ALL ORDER BY ALL"
    assert query(tmp_path, counted).to_pylist() == query(store, counted).to_pylist()


def test_damage_is_told_by_its_address_and_costs_nobody_else(store: ObjectStore, tmp_path: Path) -> None:
    for number in range(4):
        store_run(tmp_path / name_of(number), GOOD)
    assert push(tmp_path, store, [], again=False) == 0
    store.write(f"{name_of(0)}/history.parquet", b"PAR1 of old")
    store.write(f"{name_of(1)}/run.json", b"{")
    store.remove(f"{name_of(2)}/run.json")
    found = checked(store)
    assert list(found) == [name_of(0), name_of(1), name_of(3)], "without a description there is no run yet"
    assert found[name_of(3)]["verdict"] == "valid"
    for number in (0, 1):
        row = found[name_of(number)]
        assert row["verdict"] == "unknown" and f"{store}/{name_of(number)}/" in row["damage"]
        assert "/tmp" not in row["damage"] + row["sentence"]
    assert query(store, "SELECT count(*) AS n FROM runs WHERE damage IS NOT NULL").to_pylist() == [{"n": 2}]


def test_the_lake_finds_new_changed_and_gone_runs(store: ObjectStore, tmp_path: Path) -> None:
    for number, history in enumerate((GOOD, BAD)):
        check_and_store(store_run(tmp_path / name_of(number), history))
    assert push(tmp_path, store, [], again=False) == 0
    assert refresh(store) == 2 and refresh(store) == 0
    # Whatever the clocks say: this row claims to be from the day after.
    late = [row | {"noted": time.time_ns() + 86_400 * 10**9} for row in read_lake(store).to_pylist()]
    append(store, [{**row, "started": None} for row in late])
    verdict = json.loads(store.read(f"{name_of(1)}/verdict.json"))
    verdict["checks"] = [{**check, "verdict": "valid"} for check in verdict["checks"]]
    time.sleep(1.1)  # times of a service are of whole seconds
    store.write(f"{name_of(1)}/verdict.json", json.dumps(verdict).encode())
    assert refresh(store) == 1 and refresh(store) == 0
    assert set(read_lake(store).column("verdict").to_pylist()) == {"valid"}
    for name in store.items(name_of(0)):
        store.remove(f"{name_of(0)}/{name}")
    store.fs.delete_dir(f"{store.root}/{name_of(0)}")
    assert read_lake(store).column("run").to_pylist() == [name_of(1)]
    assert refresh(store) == 1
    assert duckdb_views(store).execute("SELECT run FROM runs").fetchall() == [(name_of(1),)]
    (part, *_) = [name for name in store.items("lake") if "part-" in name]
    store.write(f"lake/{part}", b"PAR1")
    refresh(store)
    assert read_lake(store).column("run").to_pylist() == [name_of(1)]


WRITER = """
import json, sys, time
from pathlib import Path
from checkers.lake import table
from checkers.lake.object_store import object_store
table.MANY_PARTS = 2
store, first = object_store(sys.argv[1]), int(sys.argv[2])
rows = json.loads(Path(sys.argv[3]).read_text())[first::2]
print("ready", flush=True)
turn = 0
while True:
    table.append(store, [rows[turn % len(rows)] | {"noted": time.time_ns()}])
    turn += 1
    print(turn, flush=True)
"""


def test_two_writers_are_killed_at_any_moment(store: ObjectStore, tmp_path: Path) -> None:
    runs = [store_run(tmp_path / name_of(number), BAD if number % 2 else GOOD) for number in range(4)]
    for run in runs:
        check_and_store(run)
    push(tmp_path, store, [], again=False)
    refresh(store)
    wanted = {run.name: read_verdict(run)["verdict"] for run in runs}
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([json.loads(table.packed(row_of(run, check_run(run)))) for run in runs]))
    for turn in range(2):
        writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(store), str(number), str(file)],
                                    stdout=subprocess.PIPE, text=True) for number in range(2)]  # fmt: skip
        try:
            for writer in writers:
                assert writer.stdout
                while (said := writer.stdout.readline().strip()) in ("ready", "1", "2", "3"):
                    pass
                assert said == "4", "a writer has ended"
            time.sleep(0.05 * turn)
            assert verdicts(store) == wanted
        finally:
            for writer in writers:
                writer.kill()
                writer.communicate()
        assert verdicts(store) == wanted
        refresh(store)
        assert dict(duckdb_views(store).execute("SELECT run, verdict FROM runs").fetchall()) == wanted
    compact(store, "month=2026-01")
    assert verdicts(store) == wanted


def verdicts(store: ObjectStore) -> dict[str, str]:
    table = read_lake(store)
    assert len(set(table.column("run").to_pylist())) == table.num_rows
    return dict(zip(table.column("run").to_pylist(), table.column("verdict").to_pylist(), strict=True))


def test_a_copy_that_was_cut_short_is_no_run_and_goes_on(store: ObjectStore, tmp_path: Path) -> None:
    run = store_run(tmp_path / name_of(0), GOOD)
    store.put(run.name, [("history.parquet", run / "history.parquet")])
    assert store.runs() == {}
    assert push(tmp_path, store, [], again=False) == 0
    assert list(store.runs()) == [run.name]
    assert set(store.items(run.name)) >= {"run.json", "history.parquet"}


@pytest.mark.parametrize(("address", "told"), [
    ("s3://key:secret@bucket/x", "neither credentials"), ("s3://bucket/x?endpoint_override=y", "neither credentials"),
    ("s3://b", "write it as s3://bucket/prefix"), ("s3://bucket/../x y", "write it as s3://bucket/prefix"),
    ("s3a://bucket/x", "write it as s3://bucket/prefix"),
])  # fmt: skip
def test_what_is_no_address_is_refused(address: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        object_store(address)
    assert "secret" not in str(refused.value).replace(told, "")


def test_a_service_that_refuses_is_one_line(store: ObjectStore, service: Mapping[str, str],
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StormproofError, match=r"s3://nowhere/x: no such bucket"):
        query(object_store("s3://nowhere/x"), "FROM runs")
    with pytest.raises(StormproofError, match="the service does not answer"):
        query(ObjectStore("s3://bucket/x", "http://127.0.0.1:9", "us-east-1"), "FROM runs")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "ftp:/ /")
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL"):
        object_store("s3://bucket/x").items()
    done = command(service, "report", "--store", "s3://bucket/x")
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1 and "push" in done.stderr


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_commands_over_an_object_store(store: ObjectStore, service: Mapping[str, str], tmp_path: Path) -> None:
    written = {run.name: defects.verdict for run, defects in write_store(tmp_path / "runs", 40, 600)}
    assert command(service, "push", "--store", str(tmp_path / "runs"), "--to", str(store)).returncode == 0
    said = []

    def told(*words: str) -> dict[str, str]:
        done = command(service, "check", "--all", "--json", "--store", str(store), *words)
        said.append(done.stdout + done.stderr)
        assert done.returncode == 1 and done.stderr == "", done.stderr
        return {run["run"]: run["verdict"] for run in json.loads(done.stdout)["runs"]}

    assert told() == written == told("--again")
    latest = command(service, "check", "latest", "--store", str(store), "--junit", str(tmp_path / "junit.xml"))
    assert "judged before" in latest.stdout and f"{store}/{max(written)}" in (tmp_path / "junit.xml").read_text()
    for engine in ("duckdb", "spark"):
        asked = command(service, "query", "--json", "--engine", engine, "--store", str(store),
                        "SELECT verdict, count(*) AS n FROM runs GROUP BY verdict")  # fmt: skip
        found = {row["verdict"]: row["n"] for row in json.loads(asked.stdout)["rows"]}
        assert found == {verdict: list(written.values()).count(verdict) for verdict in set(written.values())}
        said.append(asked.stdout + asked.stderr)
    text = "".join(said).encode() + b"".join(store.read(name) for name in store.items())
    assert KEY.encode() not in text and SECRET.encode() not in text
