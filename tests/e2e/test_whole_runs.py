"""Whole runs by the command line: faults, verdict, report, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command import Where, await_fault, children, docker_works, on, only_run, processes, run_info, stormproof
from playwright.sync_api import sync_playwright

from harness.tools.bench.ssh_test_hosts import SshTestHosts
from reports.index_page import write_index
from stormproof.history.ledger import read_ledger

SOAK, OVER_SSH = pytest.mark.soak, pytest.mark.requirement("H2", part=True)
DOCKER, SSH = pytest.param("docker", marks=pytest.mark.docker), pytest.param("ssh", marks=OVER_SSH)
SLOW_LOCAL, SLOW_SSH = pytest.param("local", marks=SOAK), pytest.param("ssh", marks=[SOAK, OVER_SSH])
ENDED_EARLY = [("local", "joram"), pytest.param("docker", "joram", marks=[SOAK, pytest.mark.docker]),
               pytest.param("ssh", "joram", marks=[SOAK, OVER_SSH]), pytest.param("local", "qpid", marks=SOAK),
               pytest.param("docker", "qpid", marks=[SOAK, pytest.mark.docker]),
               pytest.param("ssh", "qpid", marks=[SOAK, OVER_SSH])]  # fmt: skip
"""Where, and with which system: managers of qpid start brokers that outlive them."""
MASTER_CUT = ["--nemesis", "partition", "--set", "partition_kind=master", "--set", "fault_duration=3.5"]


@pytest.fixture(autouse=True)
def _docker_if_asked(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("docker") and not docker_works():
        pytest.skip("no Docker daemon answers here")


@pytest.fixture
def where(backend: str, request: pytest.FixtureRequest) -> Where:
    """The backend of a test's parameter."""
    return on(backend, request.getfixturevalue("ssh_hosts") if backend == "ssh" else None)


@pytest.mark.requirement("H15")
@pytest.mark.requirement("J6")
@pytest.mark.requirement("J9")
@pytest.mark.requirement("J14")
@pytest.mark.requirement("J20", part=True)
@pytest.mark.requirement("H29")
@pytest.mark.parametrize(
    "backend", [pytest.param("local", marks=[SOAK, pytest.mark.requirement("H3")]),
                pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.requirement("H1")]), SLOW_SSH],
)  # fmt: skip
def test_joram_keeps_its_promises_under_partition_pause_and_kill(backend: str, where: Where, tmp_path: Path) -> None:
    done = where.stormproof(
        "test", "--system", "joram", "--workload", "queue", "--nemesis", "partition,pause,kill",
        *where.words, "--time-limit", "14", "--rate", "150", "--seed", "5", "--store", str(tmp_path),
        "--set", "fault_duration=2.2", "--set", "fault_gap=0.5", "--set", "idle_timeout=1", "--set", "min_ok=20",
        "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    run = only_run(tmp_path)
    assert result["verdict"] == "valid" and result["run"] == run.name
    assert not {"lost", "duplicated", "phantom"} & set(result["anomalies"])
    assert Path(result["report"]).stat().st_size > 10_000
    windows = read_ledger(run / "ledger.jsonl")
    assert {window.fault for window in windows} == {"partition", "pause", "kill"}
    assert all(window.confirmed and window.end for window in windows)
    assert {log.name for log in (run / "logs").iterdir()} == {"n1.log", "n2.log", "n3.log"}
    assert f"backend {backend}" in done.stderr
    assert where.left_behind(run) == []
    costs = run_info(run)["costs"]
    assert costs["troubles"] == {} and set(costs["nodes"]) == {"n1", "n2", "n3"}
    for node, told in costs["nodes"].items():
        assert told["cpu_s"] > 0 and told["memory_peak"] > 1 << 20 and told["sent"] > 10_000, node
        assert told["sampling_s"] < 0.02 * told["seconds"], "what measures must not be seen"
    assert json.loads((run / "verdict.json").read_text())["figures"]["costs"]["each"] == "confirmed message"


@pytest.mark.requirement("H29")
def test_a_run_whose_costs_were_not_all_measured_says_so_and_keeps_its_verdict(tmp_path: Path) -> None:
    """What measures is killed on the node while the run goes on."""
    words = ["test", "--system", "standalone", "--nemesis", "none", "--backend", "local", "--time-limit", "3",
             "--rate", "40", "--set", "min_ok=5", "--set", "idle_timeout=1", "--set", "costs_interval=0.2",
             "--seed", "3", "--store", str(tmp_path)]  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stormproof, *words)
        while not (noted := list(tmp_path.glob("*/costs.jsonl"))) or noted[0].read_text().count("\n") < 5:
            assert not running.done(), running.result().stderr
            time.sleep(0.05)
        (run,) = (path.parent for path in noted)
        (measuring,) = (pid for pid, words in processes() if run.name in words and "class DataFolder" in words)
        os.kill(measuring, signal.SIGKILL)
        done = running.result()
    assert done.returncode == 0 and "was not measured all the time: n1: " in done.stdout, done.stdout
    told = run_info(run)["costs"]
    assert told["nodes"]["n1"]["cpu_s"] > 0 and told["troubles"]["n1"]["times"] == 1
    assert "n1 could not be measured from " in (run / "report.html").read_text()
    assert json.loads((run / "verdict.json").read_text())["figures"]["costs"]["complete"] is False


Twins = tuple[Path, dict[str, Any]]


def run_twins(store: Path, unsafe: Where, safe: Where) -> Twins:
    """The two halves of the demo, shortened, at the same time: partitions -> what ``--json`` printed."""
    both = (("unspecified", "both_sides=true", unsafe), ("primary-partition", "majority_ok=20", safe))
    with ThreadPoolExecutor(2) as pool:
        running = {
            partitions: pool.submit(
                place.stormproof, "test", "--system", "joram", *MASTER_CUT, *place.words, "--time-limit", "9",
                "--rate", "120", "--seed", "11", "--store", str(store), "--set", f"partitions={partitions}",
                "--set", gate, "--set", "producers=4", "--set", "consumers=2", "--set", "idle_timeout=1",
                "--set", "min_ok=20", "--json",
            )
            for partitions, gate, place in both
        }  # fmt: skip
    results = {}
    for partitions, future in running.items():
        done = future.result()
        results[partitions] = {"exit": done.returncode, **json.loads(done.stdout or "{}"), "stderr": done.stderr}
    write_index(store)  # each wrote it, perhaps before the other had ended
    return store, results


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """The halves on ``local``."""
    return run_twins(tmp_path_factory.mktemp("twins"), on("local"), on("local"))


@pytest.mark.soak
@pytest.mark.requirement("H2", part=True)
def test_the_twins_come_out_alike_over_ssh(ssh_hosts: SshTestHosts, tmp_path: Path) -> None:
    unsafe, safe = on("ssh", ssh_hosts), on("ssh", ssh_hosts, first=4)
    test_the_unsafe_twin_is_invalid_and_the_safe_one_valid(run_twins(tmp_path, unsafe, safe))
    plans = [read_ledger(path) for path in tmp_path.glob("*/ledger.jsonl")]
    assert len(plans) == 2 and all(window.confirmed for plan in plans for window in plan)
    assert [path for path in tmp_path.glob("*/run.json") if unsafe.left_behind(path.parent)] == []


@pytest.mark.requirement("J20")
@pytest.mark.requirement("H16")
@pytest.mark.requirement("H17", part=True)
def test_the_unsafe_twin_is_invalid_and_the_safe_one_valid(twins: Twins) -> None:
    _, results = twins
    unsafe, safe = results["unspecified"], results["primary-partition"]
    assert (unsafe["exit"], unsafe["verdict"]) == (1, "invalid"), unsafe
    assert unsafe["anomalies"].get("lost", 0) + unsafe["anomalies"].get("duplicated", 0) > 0
    assert (safe["exit"], safe["verdict"]) == (0, "valid"), safe


@pytest.mark.soak
@pytest.mark.requirement("H9", part=True)
def test_stored_runs_are_checked_again_alike(twins: Twins) -> None:
    store, results = twins
    done = stormproof("check", "--all", "--store", str(store), "--json")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "invalid"
    again = {row["run"]: (row["verdict"], row["anomalies"]) for row in answer["runs"]}
    assert again == {result["run"]: (result["verdict"], result["anomalies"]) for result in results.values()}
    one = stormproof("check", results["primary-partition"]["run"], "--store", str(store))
    assert one.returncode == 0 and one.stdout.startswith("valid")


def test_a_person_clicks_from_the_index_to_the_run_to_the_lost_message(twins: Twins) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium here: scripts/setup test installs one")
    store, results = twins
    unsafe = results["unspecified"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("request", lambda request: complaints.append(request.url) if request.url[:5] != "file:" else None)
        page.goto((store / "index.html").as_uri())
        page.get_by_role("link", name=unsafe["run"], exact=True).click()
        assert unsafe["sentence"].partition(": ")[2] in page.locator("body").inner_text()
        anomaly = page.locator("details", has_text="lost").filter(has_text="message").nth(1)
        anomaly.locator("summary").first.click()
        text = anomaly.inner_text()
        assert "enqueue" in text and "ok" in text and "partition" in text, text
        browser.close()
    assert complaints == []


def test_the_plan_repeats_from_the_seed(twins: Twins) -> None:
    store, results = twins
    plans = []
    for result in results.values():
        windows = read_ledger(store / result["run"] / "ledger.jsonl")
        plans.append([(window.fault, window.kind) for window in windows])
    assert plans[0] == plans[1] != []
    command = run_info(store / results["unspecified"]["run"])["command"]
    assert "--seed 11" in command and "partitions=unspecified" in command


@pytest.mark.parametrize(("backend", "system"), ENDED_EARLY)
def test_ctrl_c_heals_keeps_the_history_and_cleans_up(where: Where, system: str, tmp_path: Path) -> None:
    process = where.start_test(tmp_path, *MASTER_CUT, "--time-limit", "30", system=system)
    run = await_fault(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, (tmp_path / "out").read_text()
    info = run_info(run)
    assert info["status"] == "broken" and info["failure"] == "interrupted"
    (window,) = read_ledger(run / "ledger.jsonl")
    assert window.end is not None, "the fault was healed"
    assert where.left_behind(run) == []
    if where.hosts is None:  # it knows nothing of where the nodes were
        assert stormproof("check", run.name, "--store", str(tmp_path)).returncode == 2
    assert "interrupted" in (tmp_path / "out").read_text()


@pytest.mark.requirement("H15")
@pytest.mark.parametrize(("backend", "system"), ENDED_EARLY)
def test_after_kill_9_heal_and_recover_leave_a_clean_machine_and_a_history(
    where: Where, system: str, tmp_path: Path
) -> None:
    process = where.start_test(tmp_path, *MASTER_CUT, "--time-limit", "30", system=system)
    run = await_fault(tmp_path)
    victims = [process.pid, *children(process.pid)]
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(10)
    healed = where.stormproof("heal", "--store", str(tmp_path))
    assert healed.returncode == 0
    assert "still be in force" not in healed.stdout
    assert where.left_behind(run) == []
    recovered = stormproof("recover", "--store", str(tmp_path))
    assert recovered.returncode == 0 and "recovered" in recovered.stdout
    assert "nothing to recover" in stormproof("recover", "--store", str(tmp_path)).stdout
    if where.hosts is not None:
        return  # the check knows nothing of where the nodes were
    checked = stormproof("check", "latest", "--store", str(tmp_path), "--json")
    assert checked.returncode == 2, checked.stdout + checked.stderr
    assert json.loads(checked.stdout)["verdict"] == "unknown"


@pytest.mark.parametrize("backend", [SLOW_LOCAL, SSH])
def test_a_parent_that_is_killed_does_not_take_the_history_along(where: Where, tmp_path: Path) -> None:
    process = where.start_test(tmp_path, *MASTER_CUT, "--time-limit", "30")
    run = await_fault(tmp_path)
    words = dict(processes())
    runner = [pid for pid in children(process.pid) if "harness.run.test_runner" in words.get(pid, "")]
    process.kill()
    process.wait(10)
    for pid in runner:
        _await_end(pid)
    assert where.left_behind(run) == []
    assert run_info(run)["status"] == "broken", "the child healed, sealed and left by itself"
    assert (run / "history.parquet").exists()


def _await_end(pid: int, limit: float = 40.0) -> None:
    deadline = time.monotonic() + limit
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.1)
