"""The machines and the cluster that a test needs."""

from __future__ import annotations

from dataclasses import replace

from nemesis.partition import CLIENTS, CLIENTS_OUTSIDE
from nodes.systems.catalog import SYSTEMS
from stormproof.apart import Apart
from stormproof.contracts.backend import LINKS, Backend
from stormproof.contracts.client_places import ClientPlaces
from stormproof.contracts.cluster import Cluster, Deployment
from stormproof.contracts.topology import Topology
from stormproof.contracts.workload_requirements import Demands
from stormproof.errors import UsageError
from stormproof.fetch.systems import FetchingSystem
from stormproof.shell_system import ShellCluster
from stormproof.test import Test
from workloads.catalog import WORKLOADS


def demands_of(test: Test) -> Demands:
    """Return the demands of a test's workload on the setup of its system."""
    return WORKLOADS.load(test.workload).demands(test.options)


def topology_of(test: Test) -> Topology:
    """Return the machines and networks of a test."""
    system = SYSTEMS.load(test.system)
    topology = system.topology(test, demands_of(test))
    if isinstance(system, FetchingSystem):
        topology = replace(topology, folders=tuple(sorted(system.folders(test).items())))
    return replace(topology, client_places=True) if system.clients_in_places(test) else topology


def demand_places(test: Test, backend: type[Backend]) -> None:
    """Raise UsageError if clients would stand outside the faults of links on this backend, and the test does not say
    so (``clients=outside``)."""
    if lacks_places(test, backend) and test.options.get(CLIENTS.name) != CLIENTS_OUTSIDE:
        raise UsageError(f"--backend {test.backend}: clients of {test.system} can't bind to an address, so they need "
                         f"separate networks; choose local or docker, or --set {CLIENTS.name}={CLIENTS_OUTSIDE}")


def lacks_places(test: Test, backend: type[Backend]) -> bool:
    """Return whether a test's clients need separate networks, which this backend's client hosts lack."""
    return topology_of(test).client_places and LINKS in backend.abilities and not issubclass(backend, ClientPlaces)


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
    together = isinstance(cluster, ShellCluster) and cluster.system.one_loop
    if together and cluster.topology.client_places:
        raise UsageError(f"{cluster.test.system}: its connections share one thread (one_loop), so they can't be in the "
                         "networks of different client hosts")
    places = cluster.backend if cluster.topology.client_places and isinstance(cluster.backend, ClientPlaces) else None
    apart = Apart(together=together, enter=places.enter_place if places else None)
    make = cluster.queue_connection
    cluster.queue_connection = lambda: apart.connection(make)  # type: ignore[method-assign]
    return apart
