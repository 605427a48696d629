"""Write the checksums of brokers that `stormproof fetch` brings: ``lock_brokers.py [NAME[==VERSION]...]``.

Each is fetched into a temporary cache, and its checksums go into stormproof/fetch/lock. Without names, all brokers at
the versions of recipes.toml.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from stormproof.errors import StormproofError
from stormproof.fetch.fetched import Fetched
from stormproof.fetch.fetching import fetch
from stormproof.fetch.recipes import MVN, recipes

LOCK = Path(__file__).resolve().parents[1] / "stormproof/fetch/lock"


def lock(wanted: Fetched) -> None:
    """Fetch a version without regard to its present checksums, and write the present ones."""
    for path in LOCK.glob(f"{wanted.name}-{wanted.version}.*"):
        path.unlink()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"], before = cache, os.environ.get("XDG_CACHE_HOME", "")
        os.environ["GOCACHE"] = os.environ.get("GOCACHE", str(Path.home() / ".cache/go-build"))
        try:
            found = fetch(wanted, print, lambda line: None)
        finally:
            os.environ["XDG_CACHE_HOME"] = before
    if wanted.recipe.client == MVN:
        found = {"sha256": "".join(f"{digest}  {name}\n" for name, digest in sorted(found.items()))}
    for ending, text in found.items():
        (LOCK / f"{wanted.name}-{wanted.version}.{ending}").write_text(text)
    print(f"{wanted}: locked")


def main() -> int:
    """Lock what the command line names."""
    for word in sys.argv[1:] or list(recipes()):
        name, _, version = word.partition("==")
        try:
            lock(Fetched(name, version))
        except StormproofError as error:
            print(error, file=sys.stderr)
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
