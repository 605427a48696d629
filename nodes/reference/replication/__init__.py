"""The common parts of replicated designs: links between nodes, the state transfer, feeding a log, the lease."""
