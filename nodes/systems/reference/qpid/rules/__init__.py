"""Rules of qpid: invariants, deadlines, bounds, resting states, draws, state coverage."""
