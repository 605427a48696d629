"""``python -m nodes.reference.manager CONFIG.json`` runs the cluster resource manager of one node (design ``qpid``)."""

from __future__ import annotations

import sys

from nodes.reference.api import ConfigError
from nodes.reference.bugs import edits as bug_edits
from nodes.reference.bugs import switched_on
from nodes.reference.designs.qpid.manager.addresses import Addresses, LinuxAddresses
from nodes.reference.designs.qpid.manager.config import ManagerConfig, read_manager_config
from nodes.reference.designs.qpid.manager.manager import ClusterManager
from nodes.reference.designs.qpid.manager.processes import Processes, ProgramCommand
from nodes.reference.designs.qpid.manager.programs import BROKER, Programs
from nodes.reference.server.process import EXIT_CONFIG, NodeProcess, serve_process
from nodes.reference.server.runtime import LoopRuntime, RealRuntime
from nodes.reference.trust import NO_SECRET


class ManagerProcess(NodeProcess):
    """A manager from its start to its exit status."""

    def __init__(self, config: ManagerConfig, runtime: LoopRuntime, programs: Programs,
                 addresses: Addresses | None = None) -> None:
        if not config.secret:
            runtime.log(NO_SECRET, level="warning")
        bug_edits.switch(switched_on(config.options))
        super().__init__(ClusterManager(config, runtime, programs, addresses).run(), runtime, "manager")


def serve_manager(config: ManagerConfig) -> int:
    """Run a manager in this process until SIGTERM or SIGINT; return the exit status, as ``process.serve`` does."""
    return serve_process(lambda: ManagerProcess(config, RealRuntime(config), real_programs(config),
                                                real_addresses(config)))  # fmt: skip


def real_programs(config: ManagerConfig) -> Programs:
    """Return the broker as a process of this machine.

    Raises:
        ConfigError: the configuration does not say how it is started.
    """
    for name in ("command", "pid_file", "log"):
        if not getattr(config, name):
            raise ConfigError(f"{name}: is missing")
    return Processes({BROKER: ProgramCommand(tuple(config.command), config.pid_file, config.log)})


def real_addresses(config: ManagerConfig) -> Addresses | None:
    """Return this machine's virtual address, on the interface where clients reach its broker; None if there is none."""
    return LinuxAddresses(config.virtual_address, config.broker[0]) if config.virtual_address else None


def main(arguments: list[str]) -> int:
    """Run the manager that the JSON file describes; return the exit status."""
    try:
        if len(arguments) != 1:
            raise ConfigError("usage: python -m nodes.reference.manager CONFIG.json")
        return serve_manager(read_manager_config(arguments[0]))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CONFIG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
