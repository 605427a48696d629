"""The table of faults and backends: what is tried, how it is told, and (soak) that each cell is still so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.backends.catalog import BACKENDS
from harness.tools import fault_table
from harness.tools.fault_table import (
    BEGIN,
    END,
    KindResult,
    kinds_of,
    note_seen,
    prove,
    read_seen,
    schedule_of,
    table,
    with_table,
)
from nemesis.catalog import FAULTS

pytestmark = pytest.mark.requirement("H24")


def test_every_kind_of_every_family_is_tried_once() -> None:
    words, limit = schedule_of("pause", ["one", "master"])
    assert words == "pause:one:5-10:1 pause:master:17-22:2" and limit == 34
    assert kinds_of("partition")[-4:] == ("majority-ring", "bridge", "random", "from-clients")
    assert kinds_of("rolling") == ("restart", "crash", "settings"), "another version is elsewhere"


def test_a_cell_says_what_was_proven_and_what_not_and_why() -> None:
    seen = [KindResult("sim", "kill", "one", True), KindResult("sim", "kill", "master", True),
            KindResult("local", "kill", "one", True),
            KindResult("local", "kill", "master", False, "it was not injected"),
            KindResult("local", "reboot", "one", False, "none of their own"), KindResult("sim", "reboot", "one", True),
            ]  # fmt: skip
    lines = table(seen).splitlines()
    assert lines[0] == "| fault | `local` | `sim` |" or lines[0] == "| fault | `sim` | `local` |"
    order = [name.strip("` ") for name in lines[0].split("|")[2:-1]]
    kill = dict(zip(order, (cell.strip() for cell in lines[2].split("|")[2:-1]), strict=True))
    assert kill == {"sim": "all 2", "local": "one; not master [1]"}
    reboot = dict(zip(order, (cell.strip() for cell in lines[3].split("|")[2:-1]), strict=True))
    assert reboot == {"sim": "yes", "local": "no [2]"}
    assert lines[-2:] == ["1. it was not injected: `local` kill", "2. none of their own: `local` reboot"]


def test_the_table_stands_between_its_marks() -> None:
    page = with_table(f"before\n{BEGIN}\nold\n{END}\nafter\n", [KindResult("sim", "kill", "one", True)])
    assert page.startswith(f"before\n{BEGIN}\n\n| fault | `sim` |") and page.endswith(f"\n\n{END}\nafter\n")
    assert "old" not in page and with_table(page, [KindResult("sim", "kill", "one", True)]) == page


def test_what_is_seen_anew_takes_the_place_of_what_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    assert read_seen(path) == []
    note_seen([KindResult("local", "kill", "one", False, "why"), KindResult("local", "pause", "one", True)], path)
    note_seen([KindResult("local", "kill", "one", True)], path)
    assert read_seen(path) == [KindResult("local", "pause", "one", True), KindResult("local", "kill", "one", True)]


def test_the_page_has_the_table_of_what_was_seen() -> None:
    text = fault_table.PAGE.read_text(encoding="utf-8")
    assert with_table(text, read_seen()) == text, "run `make docs`"


@pytest.mark.soak
def test_a_simulated_run_proves_a_family(tmp_path: Path) -> None:
    proven = [KindResult("sim", "pause", kind, True) for kind in kinds_of("pause")]
    assert list(prove("sim", "pause", tmp_path, {})) == proven


def test_what_a_backend_can_t_do_is_told_without_a_run(tmp_path: Path) -> None:
    (power,) = [each for each in prove("docker", "reboot", tmp_path, {}) if each.kind == "one"]
    assert not power.proven and "no kernel of their own" in power.why


NOTED = [(backend, family) for backend in ("local", "docker") for family in FAULTS.names()]


@pytest.mark.soak
@pytest.mark.parametrize(("backend", "family"), NOTED)
def test_what_was_proven_on_real_nodes_still_is(backend: str, family: str, tmp_path: Path) -> None:
    noted = {each.kind for each in read_seen() if (each.backend, each.family) == (backend, family) and each.proven}
    found = {each.kind: each for each in prove(backend, family, tmp_path, {})}
    assert {kind for kind, each in found.items() if each.proven} >= noted, found


@pytest.mark.soak
def test_what_was_proven_over_ssh_still_is(tmp_path: Path) -> None:
    """In a process that can reach the hosts; what it notes is not kept."""
    from harness.tools.bench.ssh_test_hosts import running_hosts, why_not

    if reason := why_not():
        pytest.skip(reason)
    code = ("import json, sys; from pathlib import Path; from harness.tools.fault_table import prove; "
            "print(json.dumps([vars(each) for each in prove('ssh', 'packets', Path(sys.argv[1]), "
            "json.loads(sys.argv[2]))]))")  # fmt: skip
    with running_hosts(tmp_path, 3) as hosts:
        words = [*hosts.enter, sys.executable, "-c", code, str(tmp_path / "runs"), json.dumps(hosts.options)]
        done = subprocess.run(words, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}, capture_output=True,
                              text=True, check=False)  # fmt: skip
    found = [KindResult(**row) for row in json.loads(done.stdout)]
    assert found and all(each.proven for each in found), (found, done.stderr)
    assert {each.backend for each in found} <= set(BACKENDS.names())
