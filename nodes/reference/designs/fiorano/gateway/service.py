"""The gateway itself: executes the two servers' requests one after the other."""

from __future__ import annotations

import asyncio
from typing import Any

from nodes.reference.api import ConfigError, Runtime
from nodes.reference.designs.fiorano.gateway.config import GatewayConfig
from nodes.reference.designs.fiorano.gateway.grants import Grants, LockRecord, Take
from nodes.reference.designs.fiorano.gateway.lockfile import MAX_EPOCH, LockFileAccess, decoded, encoded, holder_in
from nodes.reference.designs.fiorano.gateway.protocol import (
    GRANTED,
    HELD,
    LOST,
    MAX_FRAME,
    OPEN,
    OPENED,
    PROTOCOL,
    REFUSED,
    RELEASE,
    RELEASED,
    RENEW,
    SERVICE,
    STALE,
    TAKE,
)
from nodes.reference.replication.handshake import ComplaintLog, FrameParser, Handshake, LinkError, encode_frame
from nodes.timeouts import within

MAX_CONNECTIONS = 64
_HANDSHAKE_SECONDS = 2.0
_READ_BYTES = 1 << 16
_FILE_CHECKS_PER_LEASE = 5
"""The number of checks per lease that the lock file still exists."""


class LockGateway:
    """Grants the lock to the servers that its configuration names."""

    def __init__(self, config: GatewayConfig, runtime: Runtime, file: LockFileAccess) -> None:
        self.config, self.runtime, self._file = config, runtime, file
        self._handshake = Handshake(PROTOCOL, config.cluster, SERVICE, config.secret, runtime.random)
        self._complaints = ComplaintLog(runtime, "connection refused")
        self.grants = Grants(LockRecord(), config.lease, runtime.now())
        self.written: bytes | None = None
        """The expected content of the lock file; None: nothing."""
        self._leased: dict[str, float] = {}
        """Server -> the time until which it may consider itself the holder, by its last answers; for the log."""
        self._turn = asyncio.Lock()
        self._writers: dict[asyncio.StreamWriter, None] = {}
        self._of: dict[str, asyncio.StreamWriter] = {}
        """The newest connection of each server."""
        self.told = ("", "", 0)
        self.file_checks = 0
        runtime.expose("fiorano/0", SERVICE, self)

    async def run(self) -> None:
        """Serve until the task is cancelled.

        Raises:
            ConfigError: the lock file can't be read or written. OSError: the gateway can't listen.
        """
        await self._begin()
        server = await self.runtime.serve(self._serve, self.config.host, self.config.port)
        record = self.grants.record
        self.runtime.log("listening", epoch=record.epoch, holder=record.holder or "-")
        try:
            while True:
                await asyncio.sleep(self.config.lease / _FILE_CHECKS_PER_LEASE)
                async with self._turn:
                    await self._look()
                    await self._tell_free()
                self.file_checks += 1
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()

    async def _begin(self) -> None:
        name = self.config.lockfile
        try:
            content = await self._file.read()
            record = decoded(content) if content is not None else None
            if content is not None and record is None:
                self.runtime.log("lock file damaged: treated as new", level="error", file=name)
            elif content is None:
                self.runtime.log("lock file is new", file=name)
            record = record or LockRecord()
            self.grants = Grants(record, self.config.lease, self.runtime.now())
            self.written = encoded(record)
            await self._file.write(self.written)
        except OSError as error:
            raise ConfigError(f"Lockfile: {name} can't be used ({error.strerror or error}); choose a file that can be "
                              "read and written") from error

    async def _look(self) -> None:
        """Check that the lock file is unchanged: a lock on a file that is gone is void."""
        try:
            found = await self._file.read()
        except OSError:
            return  # it can't be read now, but may still exist
        if found == self.written or self.written is None:
            return
        self.runtime.log("lock file is gone" if not found else "lock file was changed by somebody else",
                          level="error", epoch=self.grants.record.epoch, holder=self.grants.record.holder or "-")
        self.written = None
        self.grants.lose(self.runtime.now())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._writers[writer] = None
        try:
            async with within(_HANDSHAKE_SECONDS):
                server = await self._handshake.accept(reader, writer, self.config.servers)
            self._replace(server, writer)
            parser = FrameParser(MAX_FRAME)
            opened = False
            while data := await reader.read(_READ_BYTES):
                asked = self.runtime.now()
                for request in parser.feed(data):
                    if not opened:
                        answer = self._open(server, request)
                        opened = answer[0] == OPENED
                        writer.write(encode_frame(answer))
                        continue
                    async with self._turn:
                        answer = await self._answer(server, request)
                        self._note_lease(server, answer[0], asked)
                        self.told = answer[0], server, request[2]
                    writer.write(encode_frame(answer))
        except LinkError as error:
            self._complaints.tell("", str(error))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the server will ask again
        finally:
            del self._writers[writer]
            writer.transport.abort()

    def _replace(self, server: str, writer: asyncio.StreamWriter) -> None:
        """Replace a server's earlier connection: it has only one, and a power loss leaves the old one open without
        notice.
        """
        former, self._of[server] = self._of.get(server), writer
        if former is not None:
            former.transport.abort()

    def _open(self, server: str, request: Any) -> list[Any]:
        """Answer a server's first request; the server must be configured for this gateway's lock file."""
        match request:
            case ["open", int(number), str(lockfile)] if not isinstance(number, bool):
                if lockfile == self.config.lockfile:
                    self._complaints.forget(server)
                    return [OPENED, number]
                reason = f"{server} is configured for the Lockfile {lockfile!r}, and this gateway has " \
                         f"{self.config.lockfile!r}"
                self._complaints.tell(server, reason, level="error")
                return [REFUSED, number, reason]
        raise LinkError(f"the first request is not {OPEN}")

    async def _answer(self, server: str, request: Any) -> list[Any]:
        now = self.runtime.now()
        if not isinstance(request, list) or any(isinstance(part, bool) for part in request):
            raise LinkError("a request is malformed")
        match request:
            case ["take", int(number), int(low), int(own), int(other), int(new)] if 0 < new <= MAX_EPOCH:
                await self._look()
                return await self._take(server, number, Take(low, own, other, new))
            case ["renew", int(number), int(epoch)]:
                await self._look()
                held = self.grants.record == (epoch, server)  # the file may have said in the meantime that it was free
                if held and (reason := await self._unwritten(server, epoch)):
                    return [REFUSED, number, reason]
                renewed = self.grants.renew(server, epoch, now)
                return [GRANTED, number, epoch] if renewed else [LOST, number, self.grants.record.epoch]
            case ["release", int(number), int(epoch)]:
                if self.grants.record == (epoch, server):
                    self.runtime.log("lock released", epoch=epoch, holder=server)
                self.grants.release(server, epoch, now)
                await self._tell_free()
                return [RELEASED, number]
        raise LinkError(f"a request is none of {TAKE}, {RENEW}, {RELEASE}")

    def _note_lease(self, server: str, answer: str, asked: float) -> None:
        if answer == GRANTED:
            # Not before the end of the holder's own lease, which it counts from before it sent the request.
            self._leased[server] = asked + self.config.lease
        elif answer in (LOST, RELEASED):
            self._leased.pop(server, None)

    async def _take(self, server: str, number: int, take: Take) -> list[Any]:
        grants, now = self.grants, self.runtime.now()
        if grants.is_taken(server, now):
            return [HELD, number, grants.record.epoch]
        if not grants.fits(server, take):
            self._complaints.tell(server, "the lock was held since its repository was up to date", level="info",
                                  epoch=grants.record.epoch, repository=take.low)
            return [STALE, number, grants.record.epoch]
        is_new = grants.record != (take.new, server)  # otherwise the last answer was lost
        if reason := await self._unwritten(server, take.new):
            return [REFUSED, number, reason]
        if is_new:
            last = grants.last
            leased = [name for name, until in self._leased.items() if name != server and until > now]
            self.runtime.log("lock granted", epoch=take.new, holder=server, repository=take.low, own=take.own,
                              other=take.other, before=last.epoch, last=last.holder or "-",
                              leased=",".join(leased) or "-")
        # Counted from now, which is later than when the holder sent its request.
        grants.grant(server, take.new, self.runtime.now())
        return [GRANTED, number, take.new]

    async def _unwritten(self, server: str, epoch: int) -> str:
        """Write to the lock file that a server holds the lock; return why that failed, or an empty text."""
        content = encoded(LockRecord(epoch, server))
        if content != self.written:
            try:
                await self._file.write(content)
            except OSError as error:
                reason = f"the lock file can't be written ({error.strerror or error})"
                self._complaints.tell(server, reason, level="error")
                return reason
            self._complaints.forget(server)
            self.written = content
        return ""

    async def _tell_free(self) -> None:
        """Write to the lock file that the lock is free, once its last holder's lease has ended."""
        grants = self.grants
        if self.written is None or not holder_in(self.written) or self.runtime.now() < grants.holder_until:
            return
        content = encoded(grants.record, free=True)
        try:
            await self._file.write(content)
        except OSError as error:
            reason = f"the lock file can't be written ({error.strerror or error})"
            self._complaints.tell(grants.record.holder, reason, level="error")  # the next check tries again
        else:
            self.written = content
