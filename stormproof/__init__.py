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
from stormproof.contracts.bounds import Bound
from stormproof.contracts.check import Anomaly, Check, CheckOutcome, RecordedRun
from stormproof.contracts.client import (
    AcknowledgingUnseen,
    Beating,
    Client,
    CopyConnection,
    Delivery,
    Event,
    EventConnection,
    LockConnection,
    LogConnection,
    LogEntry,
    NotDone,
    NotFound,
    Prefetching,
    Progress,
    QueueConnection,
    Redelivering,
    Redirected,
    RegisterConnection,
    Subscriber,
    WatchConnection,
)
from stormproof.contracts.cluster import Cluster, Deployment, NodeStatus
from stormproof.contracts.fault import ClusterFacts, Evidence, Fault, FaultPlan, Infeasible, NoTarget
from stormproof.contracts.guarantee import KNOWN_VIOLATION, NOT_PROMISED, PROMISED, Guarantee, Trial
from stormproof.contracts.invariant import Invariant
from stormproof.contracts.launch import LaunchedProgram
from stormproof.contracts.option import Option
from stormproof.contracts.state_abstraction import Abstraction
from stormproof.contracts.system import (
    AdminAccess,
    AdminArgument,
    AdminCommand,
    GroupChange,
    KnownBug,
    MessageMark,
    RoleChange,
    StateTransfer,
    System,
)
from stormproof.contracts.topology import Helper, Topology
from stormproof.contracts.workload import Workload
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import BackendError, HistoryError, StormproofError, UsageError
from stormproof.node_logs import LogLine
from stormproof.operation import Op
from stormproof.protocol_system import ProtocolSystem
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
    "KNOWN_VIOLATION", "NOT_PROMISED", "PROMISED", "Abstraction", "AcknowledgingUnseen", "AdminAccess", "AdminArgument",
    "AdminCommand", "Anomaly", "Backend", "BackendError", "Beating", "Bound", "Check", "CheckOutcome", "Client",
    "Cluster", "ClusterFacts", "CopyConnection", "Delivery", "Demands", "Deployment", "Event", "EventConnection",
    "Evidence", "Fault", "FaultPlan", "GroupChange", "Guarantee", "Helper", "HistoryError", "Infeasible", "Invariant",
    "KnownBug", "LaunchedProgram", "LockConnection", "LogConnection", "LogEntry", "LogLine", "Machine", "MessageMark",
    "NoTarget", "NodeStatus", "NotDone", "NotFound", "Op", "Option", "Prefetching", "Progress", "ProtocolSystem",
    "QueueConnection", "RecordedRun",
    "Redelivering", "Redirected", "RegisterConnection", "RoleChange", "ShellCluster", "ShellSystem", "StateTransfer",
    "StormproofError", "Subscriber", "System", "Test", "Topology", "Trial", "UsageError", "WatchConnection", "Workload",
    "blocking", "check", "load", "run",
]  # fmt: skip
