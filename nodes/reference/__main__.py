"""``python -m nodes.reference CONFIG.json`` runs one node."""

from __future__ import annotations

import sys

from nodes.reference.api import ConfigError
from nodes.reference.config import read_config
from nodes.reference.process import EXIT_CONFIG, serve


def main(arguments: list[str]) -> int:
    """Run the broker that the configuration file describes; returns the exit status."""
    if len(arguments) != 1:
        print("usage: python -m nodes.reference CONFIG.json", file=sys.stderr)
        return EXIT_CONFIG
    try:
        config = read_config(arguments[0])
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CONFIG
    return serve(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
