"""Debian's ZooKeeper (3.8) under test, as a queue, a lock or registers, with the hooks and the client of the built-in
system, which fetches 3.9: stormproof test --nemesis kill --system docs/examples/zookeeper.py:ZooKeeper, and for the
lock --workload lease --set guard=service --set stall=5"""

from nodes.systems.zookeeper.system import ZooKeeper as Fetched


class ZooKeeper(Fetched):
    """One server or several, of Debian's package ``zookeeper``."""

    name, fetched, packages = "debian-zookeeper", "", ("zookeeper",)
    options = tuple(option for option in Fetched.options if option.name not in ("program", "version"))

    def jars(self, machine):
        return "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar"
