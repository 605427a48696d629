"""What replicated designs share: links between nodes, the state transfer, feeding a log, the lease."""
