"""The page of a run as text: what it says, what it escapes, what it does without parts of the run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from report_run_factory import HOSTILE, SECOND, make_run

from checkers.lake.table import row_of
from checkers.run_check import check_run
from reports.run_page import write_report
from stormproof.errors import HistoryError
from stormproof.history.ledger import Repair


def text_of(run_dir: Path) -> str:
    return write_report(run_dir).read_text(encoding="utf-8")


def page_data(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    data: dict[str, object] = json.loads(found.group(1))
    return data


@pytest.mark.requirement("H10", part=True)
@pytest.mark.parametrize("verdict", ["valid", "unknown", "invalid"])
def test_the_page_opens_with_the_verdict_in_a_sentence(tmp_path: Path, verdict: str) -> None:
    run_dir = make_run(tmp_path, verdict=verdict, operations=600)
    sentence = json.loads((run_dir / "verdict.json").read_text())["sentence"]
    page = text_of(run_dir)
    assert f"<h1>{verdict.capitalize()}</h1>" in page
    assert f'<p class="sentence">{sentence}</p>' in page
    assert f'class="hero v-{verdict}"' in page


@pytest.mark.requirement("H10", part=True)
@pytest.mark.parametrize("old", [False, True])
def test_the_page_tells_what_was_tested_and_how_to_run_it_again(tmp_path: Path, old: bool) -> None:
    run_dir = make_run(tmp_path, operations=600, old=old)
    page = text_of(run_dir)
    command = json.loads((run_dir / "run.json").read_text())["command"]
    assert f'<code id="command">{command}</code>' in page
    assert "joram · queue · partition, pause, kill · 3 nodes on local · seed 7 · partitions=unspecified" in page
    assert "<dt>System</dt><dd>joram</dd>" in page
    assert page.count("decides, guaranteed<") == 4
    assert "pyspark" in page


@pytest.mark.requirement("H10", part=True)
def test_the_page_opens_with_all_settings_that_differ_from_their_defaults(tmp_path: Path) -> None:
    """Numbers, too; a word that is a default is no news."""
    run_dir = make_run(tmp_path, operations=600)
    run = json.loads((run_dir / "run.json").read_text())
    run["test"]["options"] |= {"ack": "all", "producers": 12, "retry": True, "bug": "own-log-wins", "wait": 0.5}
    head = "joram · queue · partition, pause, kill · 3 nodes on local · seed 7 · "
    for changed, told in (
        (["producers", "retry", "bug", "wait"], "bug=own-log-wins · producers=12 · retry=true · wait=0.5 · <a"),
        (["wait", "wait"] * 6, "wait=0.5 · " * 10 + "and 2 more settings · <a"),
        ([], "<a"), (["gone", 7, None], "<a"), ("nothing", "<a"),
    ):  # fmt: skip
        (run_dir / "run.json").write_text(json.dumps(run | {"changed": changed}))
        assert head + told in text_of(run_dir)


@pytest.mark.requirement("H15")
@pytest.mark.parametrize("old", [False, True])
def test_each_fault_stands_with_its_evidence_and_recovery(tmp_path: Path, old: bool) -> None:
    page = text_of(make_run(tmp_path, operations=600, old=old))
    cards = page.split('<article class="fault"')[1:]
    assert ["partition master #1" in cards[0], "pause one #2" in cards[1], "kill master #3" in cards[2]] == [True] * 3
    assert "packets dropped</dt><dd>n1 1312, n2 640" in cards[0]
    assert "0.84 s" in cards[0]
    assert "did not recover" in cards[2]
    assert all("confirmed</span>" in card and "not confirmed</span>" not in card for card in cards)


def test_a_fault_that_does_not_count_says_why(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=600)
    ledger = run_dir / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"pid": 4702', '"pid": 4702, "unmet": "nobody leads"'))
    page = text_of(run_dir)
    card = page.split('<article class="fault"')[3]
    assert "does not count</span>" in card and "not in the state that it requires (nobody leads)" in card
    assert "<strong>3</strong><span>2 confirmed</span>" in page
    assert [row["proven"] for row in row_of(run_dir, check_run(run_dir))["faults"]] == [True, True, False]
    killed = '"unmet": "n3 was killed", "signals": {"n3": "SIGKILL"}'
    ledger.write_text(ledger.read_text().replace('"unmet": "nobody leads"', killed))
    assert "It took effect, but it was not orderly (n3 was killed)." in text_of(run_dir)


def test_what_was_done_as_an_operator_would_stands_with_its_times(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=600)
    with (run_dir / "ledger.jsonl").open("a", encoding="utf-8") as ledger:
        ledger.write(Repair(f"queues told to synchronise {HOSTILE}", 28 * SECOND, 29_500_000_000).to_json() + "\n")
    page = text_of(run_dir)
    assert "<h3>Repairs</h3>" in page
    assert re.search(r"<li>28\.000\ss – 29\.500\ss: queues told to synchronise &lt;/script&gt;", page)
    assert page.count('<article class="fault"') == 3


@pytest.mark.requirement("H10", part=True)
def test_an_anomaly_shows_the_operations_that_prove_it(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=3000)
    verdict = json.loads((run_dir / "verdict.json").read_text())
    first = verdict["checks"][0]["anomalies"][0]
    page = text_of(run_dir)
    card = page.split('<details class="anomaly"')[1].split("</details>")[0]
    assert f"lost: message {first['value']} on queue 0" in card
    assert re.search(rf'<tr class="proof"><td class="mono">(\d+, )?{first["ops"][0]}</td>', card)
    assert "No operation of this run delivered it." in card


def test_anomalies_refer_to_the_packed_operations(tmp_path: Path) -> None:
    data = page_data(text_of(make_run(tmp_path, operations=3000)))
    spans = data["spans"]
    assert isinstance(spans, dict)
    anomalies = data["anomalies"]
    assert isinstance(anomalies, list)
    assert len(anomalies) >= 10
    assert all(0 <= at < spans["count"] for anomaly in anomalies for at in anomaly["spans"])


@pytest.mark.requirement("H10", part=True)
def test_what_a_broker_says_is_escaped(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=600, hostile=HOSTILE)
    run = json.loads((run_dir / "run.json").read_text())
    run["command"] = run["test"]["options"]["x"] = run["backend"]["why"] = HOSTILE
    (run_dir / "run.json").write_text(json.dumps(run))
    verdict = json.loads((run_dir / "verdict.json").read_text())
    verdict["sentence"] = verdict["checks"][0]["summary"] = HOSTILE
    verdict["checks"][0]["anomalies"][0] |= {"value": HOSTILE, "kind": HOSTILE, "detail": {HOSTILE: HOSTILE}}
    (run_dir / "verdict.json").write_text(json.dumps(verdict))
    page = text_of(run_dir)
    assert "<img" not in page
    assert page.count("</script>") == 2, "the data's and the script's own"
    assert "\u2028" not in page.split('id="data">')[1]
    assert "&lt;/script&gt;&lt;img" in page


@pytest.mark.requirement("H10", part=True)
def test_the_page_asks_the_network_for_nothing_and_allows_only_its_own_blocks(tmp_path: Path) -> None:
    page = text_of(make_run(tmp_path, operations=600))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    allowed = policy.group(1).replace("&#39;", "'")
    assert allowed.startswith("default-src 'none';")
    assert "unsafe" not in allowed
    for tag in ("script", "style"):
        block = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert block
        digest = base64.b64encode(hashlib.sha256(block.group(1).encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in allowed
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert ' style="' not in page, "the policy forbids style attributes"
    assert not re.search(r"<[^>]+ on[a-z]+=", page.split('<script type="application/json"')[0])


@pytest.mark.requirement("H10", part=True)
def test_a_page_of_100_000_operations_is_below_10_mb(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=100_000, seconds=300, clients=30)
    report = write_report(run_dir)
    assert report.stat().st_size < 10_000_000
    spans = page_data(report.read_text(encoding="utf-8"))["spans"]
    assert isinstance(spans, dict)
    assert spans["count"] == spans["total"] >= 100_000


MISSING = {
    "verdict.json": "No verdict",
    "ledger.jsonl": "There is no fault ledger",
    "history.parquet": "There is no history",
    "run.json": "run.json is missing",
    "logs": "There are no node logs",
}


@pytest.mark.parametrize("part", sorted(MISSING))
def test_a_missing_part_is_said_and_the_rest_still_shown(tmp_path: Path, part: str) -> None:
    run_dir = make_run(tmp_path, operations=600)
    if part == "logs":
        for log in (run_dir / "logs").iterdir():
            log.unlink()
    else:
        (run_dir / part).unlink()
    page = text_of(run_dir)
    assert MISSING[part] in page
    assert "run-1" in page


def test_a_run_without_faults_needs_no_ledger(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=600)
    (run_dir / "ledger.jsonl").unlink()
    info = json.loads((run_dir / "run.json").read_text())
    info["test"]["nemesis"], info["ledger_sha256"] = [], hashlib.sha256(b"").hexdigest()
    (run_dir / "run.json").write_text(json.dumps(info))
    assert "no fault ledger" not in text_of(run_dir)
    info["ledger_sha256"] = hashlib.sha256(b"a fault").hexdigest()
    (run_dir / "run.json").write_text(json.dumps(info))
    assert "There is no fault ledger" in text_of(run_dir)


@pytest.mark.parametrize("part", ["verdict.json", "ledger.jsonl", "history.parquet", "run.json"])
def test_a_broken_part_is_said_and_the_rest_still_shown(tmp_path: Path, part: str) -> None:
    run_dir = make_run(tmp_path, operations=600)
    (run_dir / part).write_bytes(b"\xff{broken\n{}\n{}\n")
    page = text_of(run_dir)
    assert "can&#39;t be read" in page
    assert 'id="setup"' in page


@pytest.mark.parametrize("junk", ["[]", "3", '{"checks": 3}', '{"checks": [3, {"anomalies": [7, {"ops": "x"}]}]}'])
def test_a_verdict_of_another_shape_breaks_no_page(tmp_path: Path, junk: str) -> None:
    run_dir = make_run(tmp_path, operations=600)
    (run_dir / "verdict.json").write_text(junk)
    assert "No verdict" in text_of(run_dir)


def test_an_unsealed_run_names_the_command_that_seals_it(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=600)
    (run_dir / "history.parquet").unlink()
    (run_dir / "verdict.json").unlink()
    (run_dir / "journal.bin").write_bytes(b"")
    assert "stormproof recover run-1" in text_of(run_dir)


def test_log_lines_stand_on_the_clock_of_the_history(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=600)
    (run_dir / "logs" / "n1.log").write_text("7.5 2026-05-01T10:00:04.250Z view 3 installed\n")
    logs = page_data(text_of(run_dir))["logs"]
    assert isinstance(logs, list)
    assert logs[0] == {"node": "n1", "lines": [[1, 4.25, "view 3 installed"]]}
    run = json.loads((run_dir / "run.json").read_text())
    assert "are some seconds late" not in text_of(run_dir)
    del run["clock_zero"]
    (run_dir / "run.json").write_text(json.dumps(run))
    assert "are some seconds late" in text_of(run_dir)


def test_a_broken_harness_is_told_with_its_reason(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=600)
    (run_dir / "verdict.json").unlink()
    run = json.loads((run_dir / "run.json").read_text()) | {"status": "broken", "failure": "node n2 did not answer"}
    (run_dir / "run.json").write_text(json.dumps(run))
    page = text_of(run_dir)
    assert "The harness failed" in page
    assert "node n2 did not answer" in page


def test_a_sentence_does_not_repeat_the_verdict_above_it(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=600)
    verdict = json.loads((run_dir / "verdict.json").read_text()) | {"sentence": "Invalid: two messages were lost."}
    (run_dir / "verdict.json").write_text(json.dumps(verdict))
    assert '<p class="sentence">Two messages were lost.</p>' in text_of(run_dir)


def test_gates_stand_in_words(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, verdict="unknown", operations=600)
    verdict = json.loads((run_dir / "verdict.json").read_text())
    gates = {
        "min_enqueue_ok": {"wanted": 5000, "found": 12, "met": False, "asks": "at least 5,000 sends were confirmed",
                           "told": f"only 12 {HOSTILE}"},
        "drain": {"wanted": True, "found": True, "met": True},
        "faults_confirmed": {"wanted": True, "found": ["kill", "pause"], "met": True},
    }  # fmt: skip
    verdict["checks"][-1]["figures"] = {"gates": gates}
    (run_dir / "verdict.json").write_text(json.dumps(verdict))
    page = text_of(run_dir)
    assert "<td>At least 5,000 sends were confirmed<br>" in page
    assert "<td>only 12 &lt;/script&gt;" in page and "missed</span>" in page
    assert "<td>Drain: yes<br>" in page, "verdicts of earlier releases tell figures alone"
    assert "<td>kill, pause</td>" in page


@pytest.mark.requirement("H25", part=True)
def test_what_bears_not_on_the_verdict_is_no_alarm(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=3000)
    verdict = json.loads((run_dir / "verdict.json").read_text())
    lost, twice = verdict["checks"][:2]
    twice["decides"] = False
    (run_dir / "verdict.json").write_text(json.dumps(verdict))
    page = text_of(run_dir)
    assert page.count('class="group tone-invalid"') == page.count('class="group tone-none"') == 1
    anomalies = page_data(page)["anomalies"]
    assert isinstance(anomalies, list)
    tones = {anomaly["title"].partition(":")[0]: anomaly["tone"] for anomaly in anomalies}
    assert tones == {lost["check"]: "invalid", twice["check"]: "none"}


@pytest.mark.requirement("H25", part=True)
def test_an_anomaly_is_named_by_what_it_is(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=3000)
    verdict = json.loads((run_dir / "verdict.json").read_text())
    first, second, *_ = verdict["checks"][0]["anomalies"]
    before = text_of(run_dir)
    every = [f"{check['check']}-{each['value']}" for check in verdict["checks"] for each in check["anomalies"]]
    assert re.findall(r'<details class="anomaly" id="([^"]*)"', before) == every
    verdict["checks"][0]["anomalies"] = [second, first | {"value": HOSTILE}, first, second, second]
    verdict["checks"].insert(0, verdict["checks"].pop(3))
    (run_dir / "verdict.json").write_text(json.dumps(verdict))
    idents = re.findall(r'<details class="anomaly" id="([^"]*)"', text_of(run_dir))
    assert len(idents) == len(set(idents))
    assert f"lost-{first['value']}" in idents, "where it stands plays no part"
    assert all(re.fullmatch(r"[A-Za-z0-9._/~@:+-]+", ident) for ident in idents)


@pytest.mark.requirement("H25", part=True)
def test_the_axis_begins_with_the_load(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, operations=600)
    run = json.loads((run_dir / "run.json").read_text())
    run["phases"][0]["start"] = 3 * SECOND
    (run_dir / "run.json").write_text(json.dumps(run))
    first = page_data(text_of(run_dir))["start"]
    assert isinstance(first, float) and 0 < first < 1, "operations came before the phase that holds them"
    (run_dir / "history.parquet").unlink()
    page = text_of(run_dir)
    assert page_data(page)["start"] == 3.0
    assert ">set-up 3.0 s</span>" in page
    assert re.search(r'<svg x="15\.625%" [^>]*class="role band fam-0"><title>partition master #1 n1, c1, 6\.000', page)


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_what_is_no_run_folder_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(HistoryError) as caught:
        write_report(tmp_path / name)
    assert "run folder" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_report_that_cannot_be_written_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make_run(tmp_path, operations=600)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(HistoryError, match="No space left"):
        write_report(run_dir)
    assert not list(run_dir.glob("*.html")) and not list(run_dir.glob(".page-*"))
