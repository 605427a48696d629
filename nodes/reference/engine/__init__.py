"""The message store: queues, topics, contexts, transactions; deterministic, without a clock or a socket."""
