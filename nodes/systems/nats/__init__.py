"""NATS JetStream under test: streams on one server, or replicated on three."""
