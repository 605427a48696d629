"""The parts of a report: spans, series, stories, log lines, packing."""

from __future__ import annotations

import base64
import json
import zlib
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from report_run_factory import STARTED, write_history

from reports.folder import named_options, read_folder
from reports.narrative import Narrator, flat
from reports.node_logs import select_lines
from reports.pack import COLUMNS, choose_spans, inert_json, pack_spans, shorten
from reports.series import bucket_quantiles, bucket_width, run_series
from reports.spans import OPEN_CODE, pair_spans, parse_value, spans_of_message, spans_of_rows, value_text
from stormproof.history.columns import HistoryColumns
from stormproof.history.ledger import FaultWindow
from stormproof.history.log_timestamps import write_moments
from stormproof.history.schema import encode_value
from stormproof.node_logs import PlacedLine, place_lines, read_log
from stormproof.operation import FAIL, INFO, INVOKE, NEMESIS, OK, Op

MS = 1_000_000
ZERO = STARTED.timestamp()
CUT = FaultWindow(1, "partition", "master", ("n1",), 15 * MS, 40 * MS, True, {}, {})


def history_of(folder: Path, rows: list[Op]) -> HistoryColumns:
    write_history(folder / "history.parquet", rows, folder.name)
    (folder / "run.json").write_text("{}")
    history = read_folder(folder).history
    assert history is not None
    return history


def small_history(folder: Path) -> HistoryColumns:
    """One message confirmed and delivered, one confirmed and lost, one whose process never came back."""
    return history_of(
        folder,
        [
            Op(INVOKE, "enqueue", (0, 1), 0, 0, 10 * MS, "n1"),
            Op(INVOKE, "dequeue", None, 0, 1, 11 * MS, "n2"),
            Op(OK, "enqueue", (0, 1), 0, 0, 12 * MS, "n1"),
            Op(INFO, "partition.inject", {"id": 1}, None, NEMESIS, 15 * MS),
            Op(OK, "dequeue", (0, 1), 0, 1, 16 * MS, "n2"),
            Op(INVOKE, "enqueue", (0, 2), 0, 0, 20 * MS, "n1"),
            Op(OK, "enqueue", (0, 2), 0, 0, 29 * MS, "n1"),
            Op(INVOKE, "enqueue", (0, 3), 0, 0, 30 * MS, "n1"),
            Op(INVOKE, "drain", None, 0, 1, 50 * MS, "n2"),
            Op(FAIL, "drain", None, 0, 1, 51 * MS, "n2", "empty"),
        ],
    )


def test_spans_join_each_invocation_with_its_completion(tmp_path: Path) -> None:
    history = small_history(tmp_path)
    spans = pair_spans(history)
    rows = list(zip(history.index[spans.first].tolist(), history.index[spans.last].tolist(), strict=True))
    assert rows == [(0, 2), (1, 4), (5, 6), (7, 7), (8, 9)]
    assert spans.type.tolist() == [1, 1, 1, OPEN_CODE, 2]
    assert spans.value.tolist()[:2] == [encode_value((0, 1))[0]] * 2, "a dequeue's value is its completion's"


def test_a_completion_without_an_invocation_stands_alone(tmp_path: Path) -> None:
    history = history_of(tmp_path, [Op(OK, "enqueue", (0, 1), 0, 0, MS), Op(INVOKE, "enqueue", (0, 2), 0, 0, 2 * MS)])
    spans = pair_spans(history)
    assert spans.type.tolist() == [1, OPEN_CODE]


def test_an_empty_history_makes_no_spans(tmp_path: Path) -> None:
    history = history_of(tmp_path, [])
    spans = pair_spans(history)
    assert len(spans) == 0
    assert run_series(history, spans).buckets == 1


def test_spans_are_found_by_row_and_by_message(tmp_path: Path) -> None:
    history = small_history(tmp_path)
    spans = pair_spans(history)
    assert spans_of_rows(spans, [4, 6, 999], history).tolist() == [1, 2]
    assert spans_of_message(spans, 0, parse_value("0/1") or -9).tolist() == [0, 1]
    assert spans_of_message(spans, 7, parse_value("0/1") or -9).tolist() == []


@pytest.mark.parametrize(
    ("text", "value"), [("3/17", 3 << 32 | 17), ("17", 17), ("x/1", None), ("", None), ("1/", None), ("9" * 30, None)]
)
def test_values_are_read_as_people_write_them(text: str, value: int | None) -> None:
    assert parse_value(text) == value


def test_values_are_written_as_people_read_them() -> None:
    assert value_text(3 << 32 | 17, True, None) == "3/17"
    assert value_text(17, False, None) == "17"
    assert value_text(-1, True, None) == ""
    assert value_text(-2, True, '{"a":1}') == '{"a":1}'


@pytest.mark.requirement("H10", part=True)
def test_a_lost_message_tells_its_story(tmp_path: Path) -> None:
    history = small_history(tmp_path)
    narrator = Narrator.of(history, pair_spans(history), [CUT], "queue")
    found = {"kind": "lost", "key": 0, "value": "0/2", "ops": [6], "detail": {"part": 1}}
    anomaly = narrator.anomaly("a", "lost", found)
    assert anomaly.title == "lost: message 0/2 on queue 0"
    assert anomaly.story == (
        "0.020 s: sent by process 0 through n1, during partition master #1; the receipt came after 9.0 ms.",
        "No operation of this run delivered it.",
    )
    assert [(op.rows, op.proof, op.type) for op in anomaly.operations] == [("5, 6", True, "ok")]


@pytest.mark.requirement("H10", part=True)
def test_a_story_holds_operations_that_the_check_did_not_name(tmp_path: Path) -> None:
    history = small_history(tmp_path)
    narrator = Narrator.of(history, pair_spans(history), [CUT], "queue")
    anomaly = narrator.anomaly("a", "duplicated", {"kind": "duplicated", "key": 0, "value": "0/1", "ops": [4]})
    assert [(op.f, op.proof) for op in anomaly.operations] == [("enqueue", False), ("dequeue", True)]
    assert (
        "delivered to process 1 through n2, during partition master #1; the receipt of its ACK came."
        in anomaly.story[1]
    )


def test_an_anomaly_without_operations_is_named_by_its_detail(tmp_path: Path) -> None:
    history = small_history(tmp_path)
    narrator = Narrator.of(history, pair_spans(history), [], "queue")
    anomaly = narrator.anomaly("a", "gates", {"kind": "gate", "ops": [], "detail": {"gate": "drain", "found": False}})
    assert anomaly.title == "gate: drain"
    assert anomaly.window is None
    assert anomaly.story == ()


def test_nested_evidence_becomes_pairs() -> None:
    data = {"a_b": {"n1": 3, "n2": True}, "before": {"n1": {"pid": 4711}}, "links": ["x", 2], "none": None, "no": {}}
    assert flat(data) == (
        ("a b", "n1 3, n2 yes"),
        ("before / n1", "pid 4711"),
        ("links", "x, 2"),
        ("none", "—"),
        ("no", "—"),
    )


def test_quantiles_are_nearest_rank_per_bucket() -> None:
    place = np.array([0] * 100 + [2])
    sample = np.append(np.arange(100, 0, -1, dtype=float), 7.0)
    p50, p95, p99, top = bucket_quantiles(place, sample, 3)
    assert p50 == [50, None, 7]
    assert p95 == [95, None, 7]
    assert p99 == [99, None, 7]
    assert top == [100, None, 7]


def test_throughput_counts_ok_operations_a_second_and_leaves_empty_polls_out(tmp_path: Path) -> None:
    rows = []
    for at in range(40):
        rows.append(Op(INVOKE, "enqueue", (0, at), 0, 0, at * 100 * MS, "n1"))
        rows.append(Op(OK, "enqueue", (0, at), 0, 0, (at * 100 + 1) * MS, "n1"))
    rows.append(Op(INVOKE, "dequeue", None, 0, 1, 3990 * MS, "n1"))
    rows.append(Op(FAIL, "dequeue", None, 0, 1, 3999 * MS, "n1", "empty"))
    history = history_of(tmp_path, rows)
    series = run_series(history, pair_spans(history))
    assert sum(rate * series.width for rate in series.rate["enqueue ok"] if rate) == pytest.approx(40)
    assert not any(series.rate["fail"])
    assert {quantile for line in series.latency["enqueue"] for quantile in line if quantile is not None} == {1.0}


@pytest.mark.parametrize(("duration", "operations"), [(0.0, 0), (8.0, 300), (300.0, 100_000), (90_000.0, 10**7)])
def test_a_run_is_cut_into_a_bounded_number_of_buckets(duration: float, operations: int) -> None:
    assert duration / bucket_width(duration, operations) <= 121


def test_packed_columns_unpack_to_the_spans(tmp_path: Path) -> None:
    history = small_history(tmp_path)
    spans = pair_spans(history)
    packed = pack_spans(history, spans, np.arange(len(spans)))
    block = np.frombuffer(zlib.decompress(base64.b64decode(packed["block"])), dtype="<i4").reshape(len(COLUMNS), -1)
    column = dict(zip(COLUMNS, block.tolist(), strict=True))
    assert np.cumsum(column["start"]).tolist() == [10_000, 11_000, 20_000, 30_000, 50_000]
    assert column["duration"] == [2_000, 5_000, 9_000, -1, 1_000]
    assert [packed["f"][code] for code in column["f"]] == ["enqueue", "dequeue", "enqueue", "enqueue", "drain"]
    assert (column["high"][0], column["low"][0]) == (0, 1)
    assert column["high"][4] == -1, "a drain that found nothing has no value"
    assert packed["errors"][column["error"][4]] == "empty"


def test_sampling_keeps_what_an_anomaly_needs(tmp_path: Path) -> None:
    spans = pair_spans(small_history(tmp_path))
    assert choose_spans(spans, np.array([3]), limit=2).tolist() == [0, 3]
    assert choose_spans(spans, np.array([3]), limit=5).tolist() == [0, 1, 2, 3, 4]


def test_json_between_script_tags_is_inert() -> None:
    data = {"</script><!--": "\u2028\u2029&<b>"}
    text = inert_json(data)
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == data


def test_lone_surrogates_can_be_written() -> None:
    assert shorten("a\ud800b").encode() == b"a?b"
    assert shorten("x" * 400) == "x" * 299 + "…"


def stamped(mono: float, wall: float, text: str) -> str:
    return f"{mono:.6f} {datetime.fromtimestamp(ZERO + wall, UTC).isoformat()} {text}"


def test_log_lines_stand_on_the_clock_of_the_run() -> None:
    raw = [stamped(0.0, 1.5, "up"), "  traceback", stamped(2.0, 3.5, "view"), stamped(0.0, 9.0, "up again")]
    lines = place_lines(raw, ZERO)
    assert [(line.time, line.text) for line in lines] == [
        (1.5, "up"),
        (1.5, "  traceback"),
        (3.5, "view"),
        (9.0, "up again"),
    ]


def test_a_process_that_lived_for_a_moment_only_is_not_taken_for_its_successor() -> None:
    raw = [stamped(0.13, 0.13, "up"), stamped(0.2, 0.2, "follows"), stamped(0.27, 6.66, "up again"),
           stamped(0.28, 6.67, "follows")]  # fmt: skip
    assert [line.time for line in place_lines(raw, ZERO)] == [0.13, 0.2, 6.66, 6.67]
    bumped = [stamped(t, t + (3600 if t > 2.5 else 0), "tick") for t in (0.5, 1.5, 2.5, 3.5)]
    assert [line.time for line in place_lines(bumped, ZERO)] == [0.5, 1.5, 2.5, 3.5]


def test_a_bumped_wall_clock_moves_no_line() -> None:
    raw = [stamped(t, 1 + t + (3600 if t == 2 else 0), "tick") for t in range(5)]
    assert [line.time for line in place_lines(raw, ZERO)] == [1, 2, 3, 4, 5]


def test_moments_that_the_run_knows_are_taken_for_those_that_a_node_wrote(tmp_path: Path) -> None:
    log = tmp_path / "n1.log"
    log.write_text("".join(f"{stamped(t, 3600 + t, 'tick')}\n" for t in range(3)))
    moments = tmp_path / "n1.log.moments"
    moments.write_bytes(write_moments(ZERO + t for t in (4, 5, 6)))
    assert [line.time for line in read_log(log, ZERO)[0]] == [4, 5, 6]
    moments.write_bytes(write_moments([ZERO]))
    assert [line.time for line in read_log(log, ZERO)[0]] == [3600, 3601, 3602], "they are of another log"


def test_a_log_whose_end_is_read_has_the_last_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "n1.log"
    raw = "".join(f"{stamped(t, 3600 + t, 'tick')}\n" for t in range(9))
    log.write_text(raw)
    monkeypatch.setattr("stormproof.node_logs.MAX_READ_BYTES", 2 * len(raw) // 9 + 5)
    moments = tmp_path / "n1.log.moments"
    moments.write_bytes(write_moments(ZERO + t for t in range(9)))
    assert [line.time for line in read_log(log, ZERO)[0]] == [6, 7, 8], "the first of them in part"
    moments.write_bytes(write_moments([ZERO]))
    assert read_log(log, ZERO)[0][-1].time == 3608, "they are of another log"


def test_without_the_start_of_the_run_lines_have_no_time() -> None:
    line = stamped(0.0, 1.0, "up")
    assert place_lines([line], None) == [PlacedLine(1, None, line)]


def test_lines_near_anomalies_are_kept_first() -> None:
    lines = [PlacedLine(n, n / 10, "x") for n in range(1, 10_001)]
    kept = select_lines(lines, [500.0], [800.0], 200)
    assert len(kept) == 200
    times = [line.time for line in kept if line.time is not None]
    assert times == sorted(times)
    assert sum(497 <= time <= 503 for time in times) == 61
    assert sum(799 <= time <= 801 for time in times) == 21
    assert kept[-1].number == 10_000


def test_a_bug_that_is_switched_on_is_told_first() -> None:
    options = {"ack": "all", "producers": 4, "bug": "own-log-wins", "kill_kind": "any", "schedule": ""}
    assert named_options({"options": options}) == ["bug=own-log-wins", "ack=all"]
    assert named_options({"options": {**options, "bug": "none"}}) == ["ack=all"]
