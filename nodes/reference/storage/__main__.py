"""``python -m nodes.reference.storage CONFIG.json`` runs the storage service."""

from __future__ import annotations

import sys

from nodes.reference.api import ConfigError
from nodes.reference.server.process import EXIT_CONFIG
from nodes.reference.storage.config import read_storage_config
from nodes.reference.storage.process import serve_storage


def main(arguments: list[str]) -> int:
    """Run the service that the JSON file describes; return the exit status."""
    try:
        if len(arguments) != 1:
            raise ConfigError("usage: python -m nodes.reference.storage CONFIG.json")
        return serve_storage(read_storage_config(arguments[0]))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_CONFIG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
