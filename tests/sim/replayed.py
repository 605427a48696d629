"""A program: simulates seeds and prints a digest of everything that must repeat. Arguments: folder, first, count."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from simulated import simulated, small_test, stormy_test, traces


def main() -> None:
    folder, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for seed in range(first, first + count):
        test = stormy_test(seed) if seed % 2 else small_test(seed)
        found = traces(simulated(test, folder))
        digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in found.items()}
        print(json.dumps({"seed": seed, **digests}), flush=True)


if __name__ == "__main__":
    main()
