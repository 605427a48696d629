"""Apache ZooKeeper under test: one server or an ensemble."""
