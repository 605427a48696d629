"""Systems that are set to store nothing on their nodes' own disks: faults of these disks count by their declaration."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.run.settings import make_test
from harness.sim.draw import DrawnCase, Given
from harness.tools.fault_table import record
from nodes.systems.catalog import SYSTEMS
from stormproof.errors import UsageError
from stormproof.history.disk_use import FILES, STORES_ELSEWHERE, stores_nothing, unused
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
    ("nats", {}, ""),
])  # fmt: skip
def test_what_a_real_system_declares(system: str, settings: dict[str, Any], reason: str) -> None:
    made: Any = SYSTEMS.load(system)
    options = {option.name: option.default for option in made.options} | settings
    cluster = SimpleNamespace(test=SimpleNamespace(time_limit=60.0))
    machine = SimpleNamespace(option=options.__getitem__, cluster=cluster)
    assert made.stores_nothing(machine) == reason
    assert made.stores_elsewhere(SimpleNamespace(option=(options | {"mode": "single"}).__getitem__)) == ""


def test_a_store_in_a_folder_in_common_is_one() -> None:
    """So the system does store, and a fault of a node's own disk needs evidence."""
    made, machine = SYSTEMS.load("activemq"), SimpleNamespace(option={"mode": "pair"}.__getitem__)
    assert made.stores_nothing(machine) == ""
    assert made.stores_elsewhere(machine) == "mode=pair: its store is in a folder that both share"


@pytest.mark.parametrize(("system", "family", "settings", "reason"), [
    ("fiorano", "power", {"mode": "shared", "power_kind": "one"}, "mode=shared: its database is that of shared-db"),
    ("fiorano", "disk", {"mode": "shared", "disk_kind": "empty"}, "mode=shared: its database is that of shared-db"),
    ("fiorano", "disk", {"mode": "shared", "disk_kind": "full"}, "mode=shared: its database is that of shared-db"),
    ("fiorano", "disk", {"disk_kind": "empty"}, ""),
    ("fiorano", "power", {"mode": "shared", "power_kind": "shared-db"}, ""),
    ("fiorano", "power", {"power_kind": "one"}, ""),
    ("qpid", "power", {"standby": "cold", "power_kind": "one"}, ""),  # managers store there
    ("qpid", "disk", {"standby": "cold", "disk_kind": "empty"}, ""),
    ("qpid", "power", {"power_kind": "one"}, ""),
])  # fmt: skip
def test_a_node_with_a_store_elsewhere_loses_power_and_no_disk(
    tmp_path: Path, system: str, family: str, settings: dict[str, str], reason: str
) -> None:
    """The ledger has the reason. Nodes that store need files on their disks."""
    test = make_test(system=system, workload="queue", nemesis=family, backend="sim", nodes=None, time_limit=20, rate=20,
                     seed=1, settings=settings)  # fmt: skip
    (window, *_) = read_ledger(record(test, tmp_path) / LEDGER)
    assert window.confirmed is not (bool(reason) and family == "disk"), window
    (use,) = window.inject_evidence["disks"].values()
    assert use.get(STORES_ELSEWHERE, "") == reason
    assert bool(use.get(FILES)) is not bool(reason)
    if reason:
        found = (unused if family == "disk" else stores_nothing)(window.inject_evidence)
        assert any(reason in sentence for sentence in found)


def test_disks_without_a_store_are_not_drawn() -> None:
    """A fault of the machine that has the store may be asked for."""
    settings = {"mode": "shared"}
    drawn = [DrawnCase("fiorano", Given(settings=settings)).of(seed).nemesis.split(",") for seed in range(60)]
    assert not any("disk" in names for names in drawn)
    assert any("power" in names for names in drawn)
    with pytest.raises(UsageError, match="store nothing on their own disks"):
        DrawnCase("fiorano", Given(nemeses=("disk",), settings=settings)).of(1)
    asked = Given(nemeses=("disk",), settings={**settings, "disk_target": "shared-db"})
    assert DrawnCase("fiorano", asked).of(1).nemesis == "disk"
