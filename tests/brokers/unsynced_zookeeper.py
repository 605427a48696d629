"""docs/examples/zookeeper.py with reads that a server answers alone, however far it is behind the leader."""

import importlib.util
from pathlib import Path

import stormproof

FILE = Path(__file__).parents[2] / "docs" / "examples" / "zookeeper.py"
specification = importlib.util.spec_from_file_location("zookeeper_example", FILE)
example = importlib.util.module_from_spec(specification)
specification.loader.exec_module(example)


class Unsynced(example.ZooKeeper):
    name = "unsynced"

    def connection(self, cluster):
        return stormproof.blocking.connection(Connection(**cluster.test.options))


class Connection(example.Connection):
    def read(self, name):
        return self.client.get(f"/{name}")[0] if self.client.exists(f"/{name}") else None
