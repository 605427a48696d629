"""The machines and the cluster that a test needs."""

from __future__ import annotations

from nodes.systems.catalog import SYSTEMS
from stormproof.apart import Apart
from stormproof.contracts.backend import Backend
from stormproof.contracts.cluster import Cluster, Deployment
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.shell_system import ShellCluster
from stormproof.test import Test
from workloads.catalog import WORKLOADS


def demands_of(test: Test) -> Demands:
    """Return the demands of a test's workload on the setup of its system."""
    return WORKLOADS.load(test.workload).demands(test.options)


def topology_of(test: Test) -> Topology:
    """Return the machines and networks of a test."""
    return SYSTEMS.load(test.system).topology(test, demands_of(test))


def cluster_of(test: Test, backend: Backend, passcode: str) -> Cluster:
    """Return the test's system on machines that the backend has provisioned or will provision. ``passcode`` is its
    clients'."""
    system = SYSTEMS.load(test.system)
    deployment = Deployment(test, demands_of(test), backend, topology_of(test), passcode, system.leading_roles,
                            system.joined_roles)
    return system.cluster(deployment)


def leave_connections(cluster: Cluster) -> Apart:
    """From now on, run the connections of a cluster's clients where a blocked call can be left behind, and return that
    place."""
    apart = Apart(together=isinstance(cluster, ShellCluster) and cluster.system.one_loop)
    make = cluster.queue_connection
    cluster.queue_connection = lambda: apart.connection(make)  # type: ignore[method-assign]
    return apart
