"""Redis under test: stormproof test --system docs/examples/redis_values.py:Redis --workload register --nemesis kill"""

import asyncio

import stormproof

SWAP = "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('set', KEYS[1], ARGV[2]) return 1 end return 0"


class Redis(stormproof.ShellSystem):
    """One Redis, with every write on disk before it is confirmed, or with nothing on disk."""

    name = "redis-values"
    packages = ("redis-server",)
    provides = frozenset({"registers"})
    max_nodes = 1
    port = 6379
    options = (
        stormproof.Option("durability", "always", "when a value is on disk: before it is confirmed, or never",
                          ("always", "never")),
    )

    def stores_nothing(self, machine):
        return "durability=never" if machine.option("durability") == "never" else ""

    def command(self, machine, program):
        keeps = "no" if self.stores_nothing(machine) else "yes"
        return ["redis-server", "--bind", machine.address, "--port", str(self.port), "--dir", machine.data,
                "--save", "", "--appendonly", keeps, "--appendfsync", "always", "--protected-mode", "no"]

    def connection(self, cluster):
        return Connection()


class Connection:
    """One client's connection; what Redis answers with an error certainly did not happen."""

    writer = None

    async def connect(self, host, port, local):
        self.reader, self.writer = await asyncio.open_connection(host, port, local_addr=(local, 0))

    async def read(self, name):
        return await self.ask("GET", name)

    async def write(self, name, value):
        await self.ask("SET", name, value)

    async def cas(self, name, expected, value):
        if expected is None:
            return await self.ask("SET", name, value, "NX") is not None
        return await self.ask("EVAL", SWAP, "1", name, expected, value) == 1

    async def close(self):
        if self.writer is not None:
            self.writer.close()

    async def ask(self, *words):
        words = [word if isinstance(word, bytes) else word.encode() for word in words]
        self.writer.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
        line = (await self.reader.readuntil(b"\r\n"))[:-2]
        if line.startswith(b"-"):
            raise stormproof.NotDone(line[1:].decode())
        if line.startswith(b":"):
            return int(line[1:])
        if not line.startswith(b"$"):
            return line[1:]
        size = int(line[1:])
        return None if size < 0 else (await self.reader.readexactly(size + 2))[:-2]
