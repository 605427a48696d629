"""Systems that are set to store nothing on their nodes' own disks: faults of these disks count by their declaration."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.fault_table import record
from harness.settings import make_test
from nodes.systems.catalog import SYSTEMS
from stormproof.history.disk_use import FILES, STORES_NOTHING
from stormproof.history.ledger import read_ledger
from stormproof.run_folder import LEDGER

pytestmark = pytest.mark.requirement("H5", part=True)


@pytest.mark.parametrize(("system", "settings", "reason"), [
    ("redis", {"appendonly": "no"}, "appendonly=no"),
    ("redis", {"appendonly": "yes"}, ""),
    ("mosquitto", {"persistence": False}, "persistence=False"),
    ("mosquitto", {}, "autosave_interval=1800: nothing is written before that"),
    ("mosquitto", {"autosave_interval": 5}, ""),
    ("mosquitto", {"autosave_interval": 1000, "autosave_on_changes": True}, ""),
    ("activemq", {"mode": "single"}, ""),
    ("activemq", {"mode": "pair"}, "mode=pair: its store is in a folder that both share"),
    ("nats", {}, ""),
])  # fmt: skip
def test_what_a_real_system_declares(system: str, settings: dict[str, Any], reason: str) -> None:
    made: Any = SYSTEMS.load(system)
    options = {option.name: option.default for option in made.options} | settings
    cluster = SimpleNamespace(test=SimpleNamespace(time_limit=60.0))
    machine = SimpleNamespace(option=options.__getitem__, cluster=cluster)
    assert made.stores_nothing(machine) == reason


@pytest.mark.parametrize(("system", "family", "settings", "reason"), [
    ("fiorano", "power", {"mode": "shared", "power_kind": "one"}, "mode=shared: its database is that of shared-db"),
    ("fiorano", "disk", {"mode": "shared", "disk_kind": "empty"}, "mode=shared: its database is that of shared-db"),
    ("fiorano", "power", {"mode": "shared", "power_kind": "shared-db"}, ""),
    ("fiorano", "power", {"power_kind": "one"}, ""),
    ("qpid", "power", {"standby": "cold", "power_kind": "one"},
     "standby=cold: its store is in a folder that the nodes share"),
    ("qpid", "power", {"power_kind": "one"}, ""),
])  # fmt: skip
def test_a_fault_of_a_node_without_a_store_is_proven(
    tmp_path: Path, system: str, family: str, settings: dict[str, str], reason: str
) -> None:
    """With the reason in the ledger; nodes that store need files on their disks."""
    test = make_test(system=system, workload="queue", nemesis=family, backend="sim", nodes=None, time_limit=20, rate=20,
                     seed=1, settings=settings)  # fmt: skip
    (window, *_) = read_ledger(record(test, tmp_path) / LEDGER)
    assert window.confirmed, window
    (use,) = window.inject_evidence["disks"].values()
    assert use.get(STORES_NOTHING, "") == reason
    assert bool(use.get(FILES)) is not bool(reason)
