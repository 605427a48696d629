"""Tools of this checkout that no wheel contains: benchmarks, the demo, the table of faults, Vagrant."""
