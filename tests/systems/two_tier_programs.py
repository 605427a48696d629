"""The programs of a toy system: a store of queues, brokers that pass clients' requests on to it, and watchers.

Standard library only: on real machines this file is copied there and run. Each request is a line, each answer too:
``DECLARE q``, ``PUT q BODY``, ``TAKE q`` (``MSG ID BODY`` or ``EMPTY``), ``ACK q ID``, ``DEPTH q``, ``RELEASE`` (what
was taken and not acknowledged is put back: the operator's command).
"""

from __future__ import annotations

import asyncio
import sys
import time

STORE_PORT, CLIENT_PORT, ANSWER_SECONDS = 7100, 7000, 1.0


class Program:
    """A program on an outside world (``Runtime``) that is real or simulated."""

    def __init__(self, runtime, address):
        self.runtime, self.address, self.ended = runtime, address, asyncio.Event()

    def stop(self):
        self.ended.set()

    async def run(self):
        server = await self.runtime.serve(self.handle, *self.address)
        self.say("up")
        await self.ended.wait()
        server.close()
        return 0

    def say(self, text):
        self.runtime.write_log(f"{time.time():.3f} | {text}")

    async def handle(self, reader, writer):
        try:
            while line := await reader.readline():
                writer.write(f"{await self.answer(line.decode().split())}\n".encode())
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def answer(self, words):
        raise NotImplementedError


class Store(Program):
    """Queues in memory: what is taken stays reserved until it is acknowledged, whoever has lost it."""

    def __init__(self, runtime, address):
        super().__init__(runtime, address)
        self.queues, self.taken, self.number = {}, {}, 0

    async def answer(self, words):
        match words:
            case ["DECLARE", queue]:
                self.queues.setdefault(queue, [])
                return "OK"
            case ["RELEASE"]:
                count = len(self.taken)
                for queue, body in self.taken.values():
                    self.queues[queue].insert(0, body)
                self.taken.clear()
                return f"OK {count}"
            case [_, queue, *_] if queue not in self.queues:
                return "ERROR undeclared"
            case ["PUT", queue, body]:
                self.queues[queue].append(body)
                return "OK"
            case ["TAKE", queue]:
                if not self.queues[queue]:
                    return "EMPTY"
                self.number += 1
                self.taken[self.number] = (queue, self.queues[queue].pop(0))
                return f"MSG {self.number} {self.taken[self.number][1]}"
            case ["ACK", queue, number]:
                return "OK" if self.taken.pop(int(number), None) else "ERROR unknown"
            case ["DEPTH", queue]:
                reserved = sum(each == queue for each, _ in self.taken.values())
                return f"OK {len(self.queues[queue]) + reserved}"
        return "ERROR what?"


class Broker(Program):
    """Passes requests on to the store, over the network behind."""

    def __init__(self, runtime, address, store):
        super().__init__(runtime, address)
        self.store = store

    async def handle(self, reader, writer):
        self.behind = {}
        try:
            behind = await asyncio.wait_for(self.runtime.connect(*self.store), ANSWER_SECONDS)
        except (OSError, TimeoutError):
            writer.close()
            return
        try:
            while line := await reader.readline():
                if line == b"PING\n":
                    writer.write(b"OK\n")
                    continue
                behind[1].write(line)
                writer.write(await asyncio.wait_for(behind[0].readline(), ANSWER_SECONDS))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client learns from the end of its connection that nobody knows
        finally:
            behind[1].close()
            writer.close()


class Watcher(Program):
    """Says in its log whether the broker beside it reaches the store."""

    def __init__(self, runtime, address, broker):
        super().__init__(runtime, address)
        self.broker = broker

    async def run(self):
        role = None
        while not self.ended.is_set():
            found = await self.look()
            if found != role:
                role = found
                self.say(f"role={role}")
            try:
                await asyncio.wait_for(self.ended.wait(), 0.2)
            except TimeoutError:
                continue
        return 0

    async def look(self):
        try:
            reader, writer = await asyncio.wait_for(self.runtime.connect(*self.broker), ANSWER_SECONDS)
        except (OSError, TimeoutError):
            return "gone"
        try:
            writer.write(b"DEPTH none\n")
            return "active" if await asyncio.wait_for(reader.readline(), ANSWER_SECONDS) else "cut-off"
        except (OSError, TimeoutError):
            return "cut-off"
        finally:
            writer.close()


def make(program, runtime, host, other):
    """The program of that name; ``other`` is whom it needs."""
    if program == "store":
        return Store(runtime, (host, STORE_PORT))
    if program == "broker":
        return Broker(runtime, (host, CLIENT_PORT), (other, STORE_PORT))
    return Watcher(runtime, None, (host, CLIENT_PORT))


class RealRuntime:
    """Sockets and standard output."""

    async def connect(self, host, port):
        return await asyncio.open_connection(host, port)

    async def serve(self, handler, host, port):
        return await asyncio.start_server(handler, host, port)

    def write_log(self, line):
        print(line, flush=True)


async def main(program, host, other):
    await make(program, RealRuntime(), host, other).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
