"""A program: simulates seeds and prints a digest of everything that must repeat.

Arguments: folder, first seed, number of seeds, simulated seconds of load and faults.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

from simulated import simulated, small_test, stormy_test, traces

ASYNCHRONOUS = {"propagation": "asynchronous"}
HASTY = {"master_timeout": 0.4, "election_timeout": 0.4, "response_timeout": 0.2}
KINDS = (
    ("joram", "queue", {}), ("joram", "queue", ASYNCHRONOUS), ("joram", "topic", ASYNCHRONOUS),
    ("joram", "transaction", {"transactions": "xa"}), ("joram", "processing", {}),
    ("fiorano", "topic", {"mode": "shared"}), ("icestorm", "subscriptions", HASTY), ("icestorm", "events", HASTY),
)  # fmt: skip


def main() -> None:
    folder, first, count, seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    faults = {"fault_duration": min(1.5, seconds / 4), "fault_gap": min(1.0, seconds / 10)}
    for seed in range(first, first + count):
        # Every second one in a storm of all faults, whose lengths are what fits.
        if seed % 2:
            test = stormy_test(seed, time_limit=seconds)
        else:
            system, workload, mode = KINDS[seed // 2 % len(KINDS)]
            more = {"nodes": 2, "nemesis": "reboot,kill"} if system == "fiorano" else {}
            test = small_test(seed, time_limit=seconds, system=system, workload=workload,
                              settings={**faults, **mode}, **more)  # fmt: skip
        run_dir = simulated(test, folder)
        found = traces(run_dir)
        shutil.rmtree(run_dir)
        digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in found.items()}
        print(json.dumps({"seed": seed, **digests}), flush=True)


if __name__ == "__main__":
    main()
