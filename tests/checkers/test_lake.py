"""The lake: a row a run, whoever writes and whatever is killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from checker_histories import depth, drained, sent, store_run, taken

from checkers.lake import table
from checkers.lake.files import LAKE, PART
from checkers.lake.table import append, compact, read_lake, refresh, row_of
from checkers.lake.views import duckdb_views, spark_views
from checkers.messages import add_messages
from checkers.run_check import check_run
from checkers.spark.job import check_and_store
from checkers.spark.tasks import sql_session
from checkers.synthetic import write_store
from harness.store.query import query as ask
from stormproof.run_folder import read_verdict, with_seal, write_json

pytestmark = pytest.mark.requirement("H9", part=True)

GOOD = [*sent(0, (0, 0)), *taken(1, (0, 0)), *drained(), *depth()]
BAD = [*sent(0, (0, 0)), *drained(), *depth()]


def name_of(number: int) -> str:
    return f"202601{1 + number // 50:02}T0000{number % 50:02}-joram-queue-{number}-{number:04x}"


def judged_run(store: Path, number: int, history: list[object] = GOOD) -> Path:
    run = store_run(store / name_of(number), history)
    check_and_store(run)
    return run


def verdicts(store: Path) -> dict[str, str]:
    table = read_lake(store)
    assert len(set(table.column("run").to_pylist())) == table.num_rows
    return dict(zip(table.column("run").to_pylist(), table.column("verdict").to_pylist(), strict=True))


def test_refresh_finds_new_changed_and_gone_runs(tmp_path: Path) -> None:
    one, two = judged_run(tmp_path, 1), judged_run(tmp_path, 2, BAD)
    assert refresh(tmp_path) == 2
    assert refresh(tmp_path) == 0
    assert verdicts(tmp_path) == {one.name: "valid", two.name: "invalid"}
    shutil.rmtree(two)
    assert verdicts(tmp_path) == {one.name: "valid"}
    assert refresh(tmp_path) == 1
    assert [row[0] for row in duckdb_views(tmp_path).execute("SELECT run FROM runs").fetchall()] == [one.name]
    judged_run(tmp_path, 2)
    assert refresh(tmp_path) == 1
    assert verdicts(tmp_path) == {one.name: "valid", two.name: "valid"}
    shutil.rmtree(tmp_path / LAKE)
    assert refresh(tmp_path) == 2


def test_many_small_files_become_one(tmp_path: Path) -> None:
    runs = [judged_run(tmp_path, number, BAD if number % 3 else GOOD) for number in range(4)]
    for turn in range(table.MANY_PARTS):
        run = runs[turn % 4]
        append(tmp_path, [json.loads(table.packed(row_of(run, check_run(run))))])
    before = verdicts(tmp_path)
    append(tmp_path, [json.loads(table.packed(row_of(runs[0], check_run(runs[0]))))])
    assert len(list((tmp_path / LAKE).glob(f"*/{PART}"))) == 1
    assert verdicts(tmp_path) == before == {run.name: read_verdict(run)["verdict"] for run in runs}


def test_a_damaged_part_comes_back_from_the_runs(tmp_path: Path) -> None:
    runs = [judged_run(tmp_path, number) for number in (1, 2)]
    refresh(tmp_path)
    (part,) = (tmp_path / LAKE).glob(f"*/{PART}")
    part.write_bytes(b"PAR1")
    assert verdicts(tmp_path) == {}
    assert refresh(tmp_path) == 2
    assert set(verdicts(tmp_path)) == {run.name for run in runs}
    assert len(duckdb_views(tmp_path).execute("FROM runs").fetchall()) == 2


def test_damage_within_a_part_is_found_when_a_query_fails_of_it(tmp_path: Path) -> None:
    runs = [judged_run(tmp_path, number) for number in (1, 2)]
    refresh(tmp_path)
    (part,) = (tmp_path / LAKE).glob(f"*/{PART}")
    column = next(column for column in (pq.read_metadata(part).row_group(0).column(index) for index in range(60))
                  if column.path_in_schema == "sentence")  # fmt: skip
    content = bytearray(part.read_bytes())
    content[column.data_page_offset : column.data_page_offset + column.total_compressed_size // 2] = b"\xff" * (
        column.total_compressed_size // 2)  # fmt: skip
    part.write_bytes(content)
    assert refresh(tmp_path) == 0, "what it takes to be up to date can be read"
    found = ask(tmp_path, "SELECT run, sentence FROM runs ORDER BY run").to_pylist()
    assert found == [{"run": run.name, "sentence": read_verdict(run)["sentence"]} for run in runs]


WRITER = """
import json, sys
from pathlib import Path
from checkers.lake import table
from checkers.run_check import check_run
table.MANY_PARTS = 2
store, first = Path(sys.argv[1]), int(sys.argv[2])
runs = sorted(store.glob("2*"))[first::2]
rows = [json.loads(table.packed(table.row_of(run, check_run(run)))) for run in runs]
print("ready", flush=True)
turn = 0
while True:
    table.append(store, [rows[turn % len(rows)] | {"noted": __import__("time").time_ns()}])
    turn += 1
    print(turn, flush=True)
"""


def test_two_writers_are_killed_at_any_moment(tmp_path: Path) -> None:
    runs = [judged_run(tmp_path, number, BAD if number % 2 else GOOD) for number in range(4)]
    wanted = {run.name: read_verdict(run)["verdict"] for run in runs}
    for turn in range(3):
        writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(number)], stdout=subprocess.PIPE,
                                    text=True) for number in range(2)]  # fmt: skip
        try:
            for writer in writers:
                assert writer.stdout
                while writer.stdout.readline().strip() in ("ready", "1", "2", "3"):
                    pass
            time.sleep(0.05 * turn)
            assert verdicts(tmp_path) == wanted
        finally:
            for writer in writers:
                writer.kill()
                writer.communicate()
        assert verdicts(tmp_path) == wanted
        refresh(tmp_path)
        counted = duckdb_views(tmp_path).execute("SELECT run, verdict FROM runs").fetchall()
        assert dict(counted) == wanted and len(counted) == len(wanted)
    compact(tmp_path, "month=2026-01")
    assert verdicts(tmp_path) == wanted


def test_views_count_as_the_checks_do(tmp_path: Path) -> None:
    written = list(write_store(tmp_path, 12, 600))
    for run, _ in written:
        check_and_store(run)
    refresh(tmp_path)
    made, refused = add_messages(tmp_path)
    assert (made, refused) == (12, [])
    assert add_messages(tmp_path) == (0, [])
    connection = duckdb_views(tmp_path)
    lost = dict(connection.execute("SELECT run, count_if(lost) FROM messages GROUP BY run").fetchall())
    query = "SELECT run, count_if(state = 'confirmed') FROM messages GROUP BY run"
    confirmed = dict(connection.execute(query).fetchall())
    operations = connection.execute("SELECT run, f, outcome, count(*) FROM operations GROUP BY ALL").fetchall()
    counted = {(run, f, outcome): count for run, f, outcome, count in operations}
    for run, defects in written:
        figures = read_verdict(run)["figures"]
        assert lost[run.name] == defects.anomalies.get("lost", 0)
        (checked,) = (check for check in read_verdict(run)["checks"] if check["check"] == "lost")
        assert confirmed[run.name] == checked["figures"]["confirmed"]
        assert counted[run.name, "enqueue", "ok"] == figures["enqueue_ok"]
        here = Counter()
        for (name, _, outcome), count in counted.items():
            if name == run.name:
                here[outcome] += count
        assert {name: here[name] for name in ("ok", "fail", "info", "open")} == {
            name: figures[name] for name in ("ok", "fail", "info", "open")}  # fmt: skip
    sums = connection.execute("SELECT sum(lost) FROM runs").fetchone()
    assert sums == (sum(lost.values()),)
    window = connection.execute("""
        SELECT count(*) FROM (SELECT run, min(sent_s) a, max(sent_s) b FROM messages WHERE lost GROUP BY run) m
        JOIN runs r USING (run) WHERE abs(a - loss_from_s) > 1e-6 OR abs(b - loss_to_s) > 1e-6""").fetchone()
    assert window == (0,)


def test_an_empty_store_has_empty_views(tmp_path: Path) -> None:
    connection = duckdb_views(tmp_path)
    for view in ("runs", "verdicts", "faults", "latency", "operations", "messages"):
        assert connection.execute(f"SELECT * FROM {view}").fetchall() == []


def test_spark_and_duckdb_see_the_same(spark: object, tmp_path: Path) -> None:
    for run, _ in write_store(tmp_path, 4, 300):
        check_and_store(run)
    refresh(tmp_path)
    add_messages(tmp_path)
    connection = duckdb_views(tmp_path)
    session = sql_session(spark)
    spark_views(session, tmp_path)
    for query in (
        "SELECT run, verdict, lost, p99_ms FROM runs ORDER BY run",
        "SELECT run, check_name, verdict, count FROM verdicts ORDER BY run, check_name",
        "SELECT run, id, family, start_s, seconds, proven FROM faults ORDER BY run, id",
        "SELECT run, f, p99_ms FROM latency ORDER BY run, f",
        "SELECT run, process, f, key, producer, sequence, node, outcome, start_s, latency_ms FROM operations "
        "ORDER BY run, start_s, process",
        "SELECT run, queue, producer, sequence, state, confirmed_by, deliveries, lost FROM messages "
        "ORDER BY run, queue, producer, sequence",
    ):
        ours = connection.execute(query).fetchall()
        assert ours and ours == [tuple(row) for row in session.sql(query).collect()], query


def test_parts_are_parquet_that_anybody_reads(tmp_path: Path) -> None:
    judged_run(tmp_path, 1, BAD)
    refresh(tmp_path)
    (part,) = (tmp_path / LAKE).glob("month=2026-01/part-*.parquet")
    (row,) = pq.ParquetFile(part).read().to_pylist()
    assert (row["verdict"], row["lost"]) == ("invalid", 1)


def test_settings_and_versions_are_maps(tmp_path: Path) -> None:
    run = judged_run(tmp_path, 1)
    info = json.loads((run / "run.json").read_text())
    info["test"]["options"] = {"ack": "all", "nodes": 3, "reliable": True, "schedule": ""}
    info["versions"] = {"stormproof": "0.1.0"}
    write_json(run / "run.json", with_seal(info))
    refresh(tmp_path)
    query = "SELECT settings['ack'], settings['nodes'], settings['reliable'], settings['none'], version FROM runs"
    assert duckdb_views(tmp_path).execute(query).fetchall() == [("all", "3", "true", None, "0.1.0")]
