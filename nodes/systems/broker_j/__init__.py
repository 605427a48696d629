"""Apache Qpid Broker-J under test: one broker, or a group that replicates by Berkeley DB JE."""
