"""``python -m nodes.reference CONFIG.json`` runs one node; with ``--descriptor`` one of an XML descriptor's servers."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from nodes.reference.api import ConfigError
from nodes.reference.config import read_config
from nodes.reference.server.process import EXIT_CONFIG, serve
from nodes.reference.server.start import start_config


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"usage: {message} (see --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m nodes.reference", usage=(
        "%(prog)s CONFIG.json | --descriptor a3servers.xml [--nb-cluster-expected N] [--join] [--secret-file FILE] "
        "SERVER STORAGE [REPLICA]"))
    parser.add_argument("--descriptor", metavar="FILE", help="XML descriptor of all servers (HA Joram, 4.6.3)")
    parser.add_argument("--nb-cluster-expected", metavar="N", type=int,
                        help="replicas that must have joined before the cluster starts (all of them by default)")
    parser.add_argument("--join", action="store_true", help="the replica is added to a cluster that runs already")
    parser.add_argument("--secret-file", metavar="FILE", help="file with the secret that all servers share")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT",
                        help="the JSON file; or id of the server, folder for its data, id of the replica")
    return parser


def main(arguments: list[str]) -> int:
    """Run the broker that the arguments describe; return the exit status."""
    try:
        given = _parser().parse_args(arguments)
        if given.descriptor is not None:
            return serve(start_config(given.descriptor, given.arguments, given.nb_cluster_expected, given.join,
                                      given.secret_file))
        if len(given.arguments) != 1 or given.nb_cluster_expected is not None or given.join or given.secret_file:
            raise ConfigError("usage: name one JSON file, or a --descriptor (see --help)")
        return serve(read_config(given.arguments[0]))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CONFIG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
