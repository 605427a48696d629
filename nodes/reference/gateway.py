"""``python -m nodes.reference.gateway CONFIG.json`` runs the gateway that hosts the lock file (design ``fiorano``)."""

from __future__ import annotations

import sys

from nodes.reference.api import ConfigError
from nodes.reference.bugs import edits as bug_edits
from nodes.reference.bugs import switched_on
from nodes.reference.designs.fiorano.gateway.config import GatewayConfig, read_gateway_config
from nodes.reference.designs.fiorano.gateway.lockfile import LockFileAccess, RealLockFile
from nodes.reference.designs.fiorano.gateway.service import LockGateway
from nodes.reference.server.process import EXIT_CONFIG, NodeProcess, serve_process
from nodes.reference.server.runtime import LoopRuntime, RealRuntime
from nodes.reference.trust import NO_SECRET


class GatewayProcess(NodeProcess):
    """A gateway from its start to its exit status."""

    def __init__(self, config: GatewayConfig, file: LockFileAccess, runtime: LoopRuntime) -> None:
        if not config.secret:
            runtime.log(NO_SECRET, level="warning")
        bug_edits.switch(switched_on(config.options))
        super().__init__(LockGateway(config, runtime, file).run(), runtime, "gateway")


def serve_gateway(config: GatewayConfig) -> int:
    """Run the gateway in this process until SIGTERM or SIGINT; return the exit status, as ``process.serve`` does."""
    return serve_process(lambda: GatewayProcess(config, RealLockFile(config.lockfile), RealRuntime(config)))


def main(arguments: list[str]) -> int:
    """Run the gateway that the JSON file describes; return the exit status."""
    try:
        if len(arguments) != 1:
            raise ConfigError("usage: python -m nodes.reference.gateway CONFIG.json")
        return serve_gateway(read_gateway_config(arguments[0]))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CONFIG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
