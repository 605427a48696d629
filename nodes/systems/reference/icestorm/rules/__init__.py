"""Rules of icestorm: invariants, deadlines, bounds, resting states, draws, state coverage."""
