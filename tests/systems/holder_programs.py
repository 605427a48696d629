"""The program of a toy system with queues, locks and heartbeats; each mistake of ``holders.py`` is a word of its own.

A line is a request, and so is its answer: ``BEAT`` (no answer), ``PUT q BODY``, ``TAKE q``, ``ACK q ID``, ``DEPTH q``,
``LOCK name``, ``FREE name``, ``ROLE``. What a connection holds is free again when it is closed or silent for a second.
"""

import asyncio
import sys
import time
from pathlib import Path

SILENCE_SECONDS = 1.0
JOINS_SECONDS = 2.0


class Server:
    def __init__(self, folder, leads, ways):
        self.file = Path(folder) / "state"
        self.journal = Path("journal")  # in the machine's folder
        self.sessions = {}
        self.leads, self.ways = leads, ways
        self.since = time.monotonic()
        self.queues, self.locks = {}, {}
        self.next = int(self.file.read_text()) if self.file.exists() else 0

    def number(self):
        """The next number; the file holds it before anybody has it."""
        self.next += 0 if "repeat" in self.ways and self.next else 1
        if "forget" not in self.ways or not self.file.exists():
            self.file.write_text(str(self.next))
        return self.next

    def token(self, held):
        """The token of a connection, which ``held`` stands for."""
        number = self.number()
        if "session" in self.ways:
            return self.sessions.setdefault(id(held), number)
        return 1000 - number if "backwards" in self.ways else number

    def role(self):
        if time.monotonic() - self.since < JOINS_SECONDS * (5 if "late" in self.ways and not self.leads else 1):
            return "starting"
        return "leader" if self.leads else "follower"

    async def handle(self, reader, writer):
        held, heard = [], [time.monotonic()]

        async def watch():
            while True:
                await asyncio.sleep(0.1)
                if "deaf" not in self.ways and time.monotonic() - heard[0] > SILENCE_SECONDS:
                    break
            writer.close()
            self.give_up(held)

        beats = asyncio.ensure_future(watch())
        try:
            while line := await reader.readline():
                heard[0] = time.monotonic()
                words = line.decode().split()
                if words != ["BEAT"]:
                    writer.write(f"{self.answer(words, held)}\n".encode())
        except OSError:
            pass
        finally:
            beats.cancel()
            writer.close()
            self.give_up(held)

    def give_up(self, held):
        while held:
            kind, name, what = held.pop()
            if kind == "lock" and self.locks.get(name) == what:
                del self.locks[name]
            elif kind == "message":
                self.queues[name].append(what)

    def answer(self, words, held):
        match words:
            case ["ROLE"]:
                return self.role()
            case ["PUT", queue, body]:
                self.queues.setdefault(queue, []).append((self.number(), body))
                if "beside" in self.ways:
                    self.journal.write_text(f"{body}\n")
                return "OK"
            case ["TAKE", queue]:
                waiting = self.queues.get(queue) or []
                if not waiting:
                    return "EMPTY"
                held.append(("message", queue, message := waiting.pop(0)))
                return f"MSG {message[0]} {message[1]}"
            case ["ACK", queue, number]:
                held[:] = [each for each in held if each[:2] != ("message", queue) or str(each[2][0]) != number]
                return "OK"
            case ["DEPTH", _]:
                return "OK"
            case ["LOCK", name]:
                if name in self.locks:
                    return "HELD"
                self.locks[name] = token = self.token(held)
                held.append(("lock", name, token))
                return f"OK {token}"
            case ["FREE", name]:
                mine = [each for each in held if each[:2] == ("lock", name)]
                held[:] = [each for each in held if each not in mine]
                freed = [self.locks.pop(name) for each in mine if self.locks.get(name) == each[2]]
                return "OK" if freed else "GONE"
        return "ERROR what?"


async def main(address, port, folder, leads, ways):
    server = Server(folder, leads == "leads", ways.split("+"))
    listening = await asyncio.start_server(server.handle, address, int(port))
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
