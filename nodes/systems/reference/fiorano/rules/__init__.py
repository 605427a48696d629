"""Rules of fiorano: invariants, deadlines, bounds, resting states, draws, state coverage."""
