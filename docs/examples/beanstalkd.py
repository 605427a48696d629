"""beanstalkd under test: stormproof test --system docs/examples/beanstalkd.py:Beanstalkd --nemesis kill"""

import asyncio

import stormproof

TIME_TO_RUN = 5  # seconds after which the server gives a silent consumer's job to another one


class Beanstalkd(stormproof.ShellSystem):
    """beanstalkd, a work queue on one node, with a log on disk or without."""

    packages = ("beanstalkd",)
    max_nodes = 1
    port = 11300
    options = (
        stormproof.Option("durability", "always", "when a job is on disk: before it is confirmed, or never",
                          ("always", "never")),
    )

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
        await self.ask(f"use {queue}")
        word, *_ = await self.ask(f"put 0 0 {TIME_TO_RUN} {len(body)}\r\n{body.decode()}")
        if word in ("DRAINING", "JOB_TOO_BIG", "OUT_OF_MEMORY"):
            raise stormproof.NotDone(word)
        if word != "INSERTED":  # BURIED: the job is stored, but the server ran out of memory
            raise RuntimeError(word)

    async def take(self, queue, timeout):
        await self.ask(f"watch {queue}")
        word, *rest = await self.ask(f"reserve-with-timeout {max(1, round(timeout))}")
        if word in ("TIMED_OUT", "DEADLINE_SOON"):
            return None
        job, size = rest
        body = await self.reader.readexactly(int(size))
        await self.reader.readexactly(2)

        async def ack():
            (word,) = await self.ask(f"delete {job}")
            if word != "DELETED":
                raise RuntimeError(word)

        async def give_back():
            (word,) = await self.ask(f"release {job} 0 0")
            if word != "RELEASED":
                raise RuntimeError(word)

        return stormproof.Delivery(body, ack, give_back)

    async def depth(self, queue):
        word, *rest = await self.ask(f"stats-tube {queue}")
        if word == "NOT_FOUND":
            return 0
        text = (await self.reader.readexactly(int(rest[0]) + 2)).decode()
        figures = dict(line.split(": ") for line in text.splitlines() if ": " in line)
        return int(figures["current-jobs-ready"]) + int(figures["current-jobs-reserved"])

    async def close(self):
        if self.writer is not None:
            self.writer.close()

    async def ask(self, command):
        self.writer.write(f"{command}\r\n".encode())
        line = await self.reader.readuntil(b"\r\n")
        return line.decode().split()
