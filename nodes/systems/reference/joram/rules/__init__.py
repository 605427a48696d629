"""Rules of joram: invariants, deadlines, bounds, resting states, draws, state coverage."""
