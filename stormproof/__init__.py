"""Stormproof: chaos testing for highly available message brokers.

The minimum for a test file::

    import stormproof

    class MyBroker(stormproof.ShellSystem): ...

    if __name__ == "__main__":
        result = stormproof.run(MyBroker, nemesis="kill")
        print(result.verdict["sentence"])

``stormproof.load("runs")`` opens a store of runs for analysis with pandas.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stormproof import blocking
from stormproof.contracts.backend import Backend
from stormproof.contracts.check import Anomaly, Check, CheckOutcome, RecordedRun
from stormproof.contracts.client import Client, Delivery, NotDone, NotFound, QueueConnection, RegisterConnection
from stormproof.contracts.cluster import Cluster, Deployment, NodeStatus
from stormproof.contracts.fault import ClusterFacts, Evidence, Fault, FaultPlan, Infeasible
from stormproof.contracts.guarantee import Guarantee
from stormproof.contracts.option import Option
from stormproof.contracts.system import System
from stormproof.contracts.topology import Helper, Topology
from stormproof.contracts.workload import Workload
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError, HistoryError, StormproofError, UsageError
from stormproof.operation import Op
from stormproof.shell_system import Machine, ShellCluster, ShellSystem
from stormproof.test import Test

if TYPE_CHECKING:
    from harness.api import check, run
    from harness.store.dataframes import ObjectFrames, StoreFrames


def load(store: str | Path) -> StoreFrames | ObjectFrames:
    """Open a store of runs: ``load("runs").runs()``, ``load("runs").run("latest").history()``; or a store in an object
    store: ``load("s3://bucket/runs").runs()``."""
    from stormproof.own_packages import demand_own_packages

    demand_own_packages()
    from harness.store.dataframes import load as load_store

    return load_store(store)


def __getattr__(name: str) -> Any:
    # The package that runs tests is above this one, and takes a second to import.
    if name in ("run", "check"):
        from stormproof.own_packages import demand_own_packages

        demand_own_packages()
        from harness import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Anomaly", "Backend", "BackendError", "Check", "CheckOutcome", "Client", "Cluster", "ClusterFacts", "Delivery",
    "Demands", "Deployment", "Evidence", "Fault", "FaultPlan", "Guarantee", "Helper", "HistoryError", "Infeasible",
    "Machine", "NodeStatus", "NotDone", "NotFound", "Op", "Option", "QueueConnection", "RecordedRun",
    "RegisterConnection", "ShellCluster", "ShellSystem", "StormproofError", "System", "Test", "Topology", "UsageError",
    "Workload", "blocking", "check", "load", "run",
]  # fmt: skip
