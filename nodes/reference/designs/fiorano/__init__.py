"""The design ``fiorano``: two servers that look like one, a lock on a third machine, a replicated or a shared store."""
