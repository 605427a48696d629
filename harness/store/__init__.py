"""A store of runs: histories imported and exported, copies, rechecks, queries, data frames, retention."""
