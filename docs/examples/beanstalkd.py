"""beanstalkd under test: stormproof test --system docs/examples/beanstalkd.py:Beanstalkd --nemesis kill"""

import asyncio

import stormproof

TIME_TO_RUN = 5  # seconds after which the server gives a silent consumer's job to another one


class Beanstalkd(stormproof.ShellSystem):
    """beanstalkd, a work queue on one node, with a log on disk or without."""

    packages = ("beanstalkd",)
    max_nodes = 1
    port = 11300
    options = (stormproof.Option("durability", "always", "when a job is on disk: before it is confirmed, or never",
                                 ("always", "never")),)  # fmt: skip

    def stores_nothing(self, machine):
        return "durability=never" if machine.option("durability") == "never" else ""

    def command(self, machine, program):
        log = [] if self.stores_nothing(machine) else ["-b", machine.data, "-f", "0"]
        return ["beanstalkd", "-l", machine.address, "-p", str(self.port), *log]

    def connection(self, cluster):
        return Connection()


class Connection:
    """One client's connection; a queue is a tube. An unexpected answer raises: the operation may have happened."""

    writer = None

    async def connect(self, host, port, local):
        self.reader, self.writer = await asyncio.open_connection(host, port, local_addr=(local, 0))

    async def send(self, queue, body):
        await self.ask(f"use {queue}", "USING")
        await self.ask(f"put 0 0 {TIME_TO_RUN} {len(body)}\r\n{body.decode()}", "INSERTED")

    async def take(self, queue, timeout):
        await self.ask(f"watch {queue}", "WATCHING")
        wait = f"reserve-with-timeout {max(1, round(timeout))}"
        if rest := await self.ask(wait, "RESERVED", "TIMED_OUT", "DEADLINE_SOON"):
            job, body = rest[0], await self.block(rest[1])
            return stormproof.Delivery(body, lambda: self.ask(f"delete {job}", "DELETED"),
                                       lambda: self.ask(f"release {job} 0 0", "RELEASED"))  # fmt: skip

    async def depth(self, queue):
        rest = await self.ask(f"stats-tube {queue}", "OK", "NOT_FOUND")
        lines = (await self.block(rest[0])).decode().splitlines() if rest else []
        return sum(int(line.split()[1]) for line in lines if line.startswith("current-jobs-re"))  # ready, reserved

    async def close(self):
        if self.writer is not None:
            self.writer.close()

    async def ask(self, command, *expected):
        self.writer.write(f"{command}\r\n".encode())
        word, *rest = (await self.reader.readuntil(b"\r\n")).decode().split()
        if command[:3] == "put" and word in ("DRAINING", "JOB_TOO_BIG", "OUT_OF_MEMORY"):  # it stores nothing then
            raise stormproof.NotDone(word)
        if word not in expected:  # BURIED, for example: the job is stored, but the server ran out of memory
            raise RuntimeError(word)
        return rest

    async def block(self, size):
        return (await self.reader.readexactly(int(size) + 2))[:-2]
