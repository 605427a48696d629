"""Brokers that share a database, which the storage service keeps on a machine of its own, behind a second network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import shared_store_programs as programs
from two_tier import BEHIND, STORE, Connection, request

import stormproof
from nodes.reference.storage.config import POSTGRES, SQLITE, STORES, parse_storage_config
from nodes.reference.storage.postmaster import CAPABILITIES
from nodes.reference.storage.process import StorageProcess
from nodes.systems.reference.code import code_folder, install_code
from stormproof.contracts.backend import Shells
from stormproof.contracts.cluster import Deployment
from stormproof.contracts.launch import Launch
from stormproof.contracts.system import RoleChange

DATABASE = "postgres"
"""The program beside the service that keeps its rows, where it is PostgreSQL."""


class SharedStore(stormproof.ShellSystem):
    """Brokers without a disk, in front of a storage service."""

    name = "shared-store"
    port = programs.CLIENT_PORT
    min_nodes = 2
    max_nodes = 3
    leading_roles = ("active",)
    simulated = True
    options = (stormproof.Option("database", SQLITE, "what the service keeps its rows in", STORES),)

    def topology(self, test: stormproof.Test, demands: stormproof.Demands) -> stormproof.Topology:
        store = stormproof.Helper("vault", STORE, networks=(BEHIND,))
        packages, capabilities = (("postgresql",), CAPABILITIES) if test.options["database"] == POSTGRES else ((), ())
        return stormproof.Topology(test.node_names, test.client_hosts, (store,), networks=(BEHIND,),
                                   packages=packages, capabilities=capabilities)

    def programs(self, machine: stormproof.Machine) -> tuple[str, ...]:
        return (DATABASE, "broker") if machine.role == STORE and machine.option("database") == POSTGRES else ("broker",)

    def cluster(self, deployment: Deployment) -> stormproof.ShellCluster:
        return Cluster(self, deployment)

    def files(self, machine: stormproof.Machine) -> Mapping[str, str]:
        if machine.role == STORE:
            return {"storage.json": json.dumps(self._storage(machine))}
        return {"programs.py": Path(programs.__file__).read_text()}

    def environment(self, machine: stormproof.Machine, program: str) -> Mapping[str, str]:
        backend = machine.cluster.backend
        assert isinstance(backend, Shells)
        return {"PYTHONPATH": code_folder(backend, machine.name)}

    def command(self, machine: stormproof.Machine, program: str) -> list[str]:
        assert isinstance(machine.cluster.backend, Shells)
        python = machine.cluster.backend.python(machine.name)
        if program == DATABASE:
            return [python, "-m", "nodes.reference.storage.postmaster", "storage.json"]
        if machine.role == STORE:
            return [python, "-m", "nodes.reference.storage", "storage.json"]
        return [python, "programs.py", machine.name, machine.address, machine.address_of("vault", BEHIND)]

    def simulated_program(self, machine: stormproof.Machine, program: str) -> Launch:
        if machine.role == STORE:
            return partial(StorageProcess, parse_storage_config(self._storage(machine)))
        store = machine.address_of("vault", BEHIND)
        return lambda runtime: programs.BrokerProgram(runtime, machine.name, machine.address, store)

    def _storage(self, machine: stormproof.Machine) -> dict[str, Any]:
        return {"data": "data", "host": machine.address_of("vault", BEHIND), "port": programs.STORE_PORT,
                "clients": list(machine.replicas), "secret": programs.SECRET, "store": machine.option("database")}

    async def status(self, machine: stormproof.Machine) -> stormproof.NodeStatus:
        serving = bool(await request(machine.address, self.port, "DEPTH q0"))
        return stormproof.NodeStatus(machine.name, True, "active" if serving else "passive", serving=serving)

    def healthy(self, statuses: Any) -> bool:
        return sum(status.serving for status in statuses) == 1

    def connection(self, cluster: stormproof.ShellCluster) -> Connection:
        return Connection()

    def role_change(self, text: str) -> RoleChange | None:
        word, _, role = text.partition(" ")
        return RoleChange(role.split()[0], "the store's", serving=role.startswith("active")) if word == "role" else None


class Cluster(stormproof.ShellCluster):
    """Its machines have the code of the reference broker as well."""

    async def install(self) -> None:
        await super().install()
        if isinstance(self.backend, Shells):
            await asyncio.gather(install_code(self.backend, self.topology.machines))
