"""Connections through Paramiko, and their byte streams for asyncio.

Paramiko uses threads and has calls without a time limit. It therefore never runs on the event loop, and no caller waits
for it longer than its limit. A connection is opened in a separate thread. Two pumping threads and a pair of sockets
connect a channel to the loop (which provides the loop's own flow control). Closing its socket abandons a connection.
Every shell has a separate connection: one that stalls is discarded as a whole and affects no other shell.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import shlex
import socket
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import paramiko

from harness.backends.disk_store import TAKE_NAME
from harness.backends.ssh.hosts import SshHost, own_key
from nodes.timeouts import within
from stormproof.errors import BackendError
from stormproof.timeout_scale import TIMEOUT_FACTOR

CONNECT_LIMIT = 10.0 * TIMEOUT_FACTOR
"""Seconds that a connection may take, from the first packet to an open shell."""
SILENCE_LIMIT_MS = round(10_000 * TIMEOUT_FACTOR)
"""Milliseconds of unacknowledged data after which the kernel ends a connection (tcp(7), TCP_USER_TIMEOUT)."""

_CHUNK = 1 << 16

P = ParamSpec("P")
T = TypeVar("T")

# Paramiko logs every connection's events, some as errors with tracebacks; all that matters is raised.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


class UnknownHostKey(BackendError):
    """The host's key is in no known-hosts file; ``key`` is the key that it presented."""

    def __init__(self, message: str, key: paramiko.PKey) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True)
class ShellProcess:
    """A shell on a host.

    ``pid`` is also that of its process group; the start time ``born`` distinguishes it from a later process with the
    same pid (proc(5)); ``source`` is the address that the connection comes from, as seen on the host.
    """

    pid: int
    born: int
    source: str


def dial(host: SshHost, known_hosts: Path, limit: float = CONNECT_LIMIT) -> paramiko.Transport:
    """Connect, check the host's key, and log in. Blocks for at most some multiples of ``limit``.

    Raises:
        UnknownHostKey: ``known_hosts`` does not contain the host.
        BackendError: the host is down, presents another key than the known one, or accepts none of the offered keys;
            this machine does not run Linux.
    """
    if sys.platform != "linux":
        raise BackendError("backend ssh must be driven from Linux, whose way of giving up a connection and of adding "
                           "addresses it uses; run it there, or use --backend sim here")
    transport = _greet(host, limit, known_keys(host, known_hosts))
    try:
        _check_key(host, known_hosts, transport.get_remote_server_key())
        _log_in(host, transport)
        return transport
    except BaseException:
        hang_up(transport)
        raise


def _greet(host: SshHost, limit: float, known: Collection[paramiko.PKey]) -> paramiko.Transport:
    try:
        sock = socket.create_connection((host.address, host.port), timeout=limit)
    except (OSError, UnicodeError) as error:
        why = f"no answer within {limit:g} s" if isinstance(error, TimeoutError) else _reason(error)
        raise BackendError(f"{host.label} can't be reached: {why}; is it running, and is the address right?") from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_LIMIT_MS)
    transport = None
    try:
        transport = paramiko.Transport(sock)
        transport.banner_timeout = transport.handshake_timeout = limit
        transport.auth_timeout = transport.channel_timeout = limit
        transport.clear_to_send_timeout = limit
        _prefer(transport, known)
        transport.start_client(timeout=limit)
        if not transport.initial_kex_done:
            raise paramiko.SSHException(f"no answer within {limit:g} s")
        return transport
    except (paramiko.SSHException, OSError, EOFError) as error:
        if transport is not None:
            hang_up(transport)
        sock.close()
        raise BackendError(f"{host.label} does not speak SSH: {one_line(error)}") from None


def _prefer(transport: paramiko.Transport, known: Collection[paramiko.PKey]) -> None:
    """Prefer key types that are known for the host, so that it does not present another of its keys."""
    names = [key.get_name() for key in known]
    wanted = [name for name in transport.get_security_options().key_types
              if name in names or (name.startswith("rsa-") and "ssh-rsa" in names)]
    if wanted:
        others = [name for name in transport.get_security_options().key_types if name not in wanted]
        transport.get_security_options().key_types = [*wanted, *others]


def _reason(error: OSError | UnicodeError) -> str:
    return getattr(error, "strerror", None) or str(error)


def known_keys(host: SshHost, known_hosts: Path, marker: str = "") -> list[paramiko.PKey]:
    """Return a host's keys in a known-hosts file, from lines with that marker (sshd(8): ``@revoked``).

    Paramiko's own reader is not used, because it returns one key of each type and ignores markers. Names may be hashed;
    patterns and certificate authorities are ignored.

    Raises:
        BackendError: the file cannot be read, or a line of this host is damaged.
    """
    try:
        lines = known_hosts.read_text(encoding="utf-8", errors="replace").splitlines() if known_hosts.exists() else []
    except OSError as error:
        raise BackendError(f"can't read the known hosts in {known_hosts}: {error.strerror}") from None
    keys = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        found = words.pop(0) if line.lstrip().startswith("@") else ""
        if found != marker or len(words) < 3 or not any(_names(word, host) for word in words[0].split(",")):
            continue
        try:
            entry = paramiko.hostkeys.HostKeyEntry.from_line(" ".join(words[:3]), number)
        except (ValueError, paramiko.SSHException, paramiko.hostkeys.InvalidHostKey):
            raise BackendError(f"{known_hosts}:{number}: not a host key; correct or remove the line") from None
        if entry is not None:  # None is a type that cannot be used here.
            keys.append(entry.key)
    return keys


def _names(word: str, host: SshHost) -> bool:
    if not word.startswith("|1|"):
        return word == host.known_as
    try:
        return bool(paramiko.HostKeys.hash_host(host.known_as, word) == word)
    except (ValueError, AssertionError):
        return False  # It is not a hash.


def _check_key(host: SshHost, known_hosts: Path, key: paramiko.PKey) -> None:
    if key in known_keys(host, known_hosts, "@revoked"):
        raise BackendError(f"{host.label}: its host key {fingerprint(key)} is marked as revoked in {known_hosts}")
    known = known_keys(host, known_hosts)
    if not known:
        raise UnknownHostKey(
            f"{host.label}: its host key {fingerprint(key)} is not in {known_hosts}; compare it with the host's own "
            "and run: stormproof prepare", key)
    if key not in known:
        forget = shlex.join(["ssh-keygen", "-f", str(known_hosts), "-R", host.known_as])
        raise BackendError(
            f"{host.label}: its host key has changed: it shows {fingerprint(key)}, but {known_hosts} has "
            f"{' and '.join(map(fingerprint, known))}; if the host was reinstalled, run: {forget}, "
            "then: stormproof prepare")


def fingerprint(key: paramiko.PKey) -> str:
    """Return a public key's type and hash, as ssh-keygen(1) prints it."""
    digest = b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


def _log_in(host: SshHost, transport: paramiko.Transport) -> None:
    tried: list[str] = []
    for name, key in _identities(host, tried):
        try:
            transport.auth_publickey(host.user, key)
            return
        except paramiko.AuthenticationException:
            if not transport.is_active():  # The library raises the same error for a refused key.
                raise BackendError(f"{host.label} ended the log-in: the connection was closed") from None
            tried.append(name)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise BackendError(f"{host.label} ended the log-in: {one_line(error)}") from None
    ours = ", ".join(tried) or "there is none"
    raise BackendError(f"{host.label} accepts none of our keys ({ours}); put the public key into "
                       f"~{host.user}/.ssh/authorized_keys there, or name the right key")


def _identities(host: SshHost, trouble: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
    """Yield (name, key) of everything to log in with; unusable keys are added to ``trouble`` with the reason."""
    paths = [Path(path) for path in host.keys] or [path for path in (own_key(),) if path.exists()]
    for path in paths:
        try:
            yield str(path), paramiko.PKey.from_path(path)
        except OSError as error:
            trouble.append(f"{path}: {error.strerror}")
        except TypeError:  # The library raises this for a key with a passphrase.
            trouble.append(f"{path}: it is encrypted, add it to ssh-agent")
        except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
            trouble.append(f"{path}: {one_line(error)}")
    if host.agent:
        agent = paramiko.Agent()
        try:
            for key in agent.get_keys():
                yield f"ssh-agent's {fingerprint(key)}", key
        finally:
            agent.close()


def hang_up(transport: paramiko.Transport) -> None:
    """End a connection without waiting, in a separate thread, because its ``close`` waits for its thread."""
    threading.Thread(target=transport.close, daemon=True, name="ssh-close").start()


def one_line(error: BaseException) -> str:
    """Return an error's message on one line."""
    return " ".join(str(error).split()) or (
        "the connection was closed" if isinstance(error, EOFError) else type(error).__name__)


async def in_thread(
    discard: Callable[[T], object], function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a blocking call in a daemon thread; if the caller gives up, the result is passed to ``discard``.

    The loop's own pool is not used, because it has few threads, and waits for all of them at the end.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            if error is None:
                discard(result)  # type: ignore[arg-type]
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = function(*args, **kwargs)
        except BaseException as failure:
            error = failure
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # The loop is closed.
            if error is None:
                discard(result)  # type: ignore[arg-type]

    threading.Thread(target=work, daemon=True, name=f"ssh-{getattr(function, '__name__', 'call')}").start()
    return await future


# Prints the source address of the connection, which sudo hides, and becomes root.
_BECOME = ('echo "$2 from ${SSH_CONNECTION%% *}"; PATH="$PATH:/usr/sbin:/sbin"; '
           'if [ "$(id -u)" = 0 ]; then exec setsid -w sh -c "$1" sh "$2" "$3"; '
           'else exec sudo -n setsid -w sh -c "$1" sh "$2" "$3"; fi')
# Leads a new session, so that it can be ended with all its commands; kills the remains of earlier shells.
_BEGIN = ('PATH="$PATH:/usr/sbin:/sbin"; cd /; for old in $2; do '
          '[ "$(cut -d" " -f22 "/proc/${old%:*}/stat" 2>/dev/null)" != "${old#*:}" ] || kill -s KILL -- "-${old%:*}"; '
          'done; echo "$1 shell $$ $(cut -d" " -f22 "/proc/$$/stat")"; exec sh')


class RootShell:
    """A ``Channel`` (``harness.backends.shell``): a root shell at the end of a separate connection."""

    def __init__(self, transport: paramiko.Transport, process: ShellProcess,
                 reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ended: Callable[[ShellProcess], None]
                 ) -> None:
        self._transport: paramiko.Transport | None = transport
        self.process = process
        self._reader, self._writer = reader, writer
        self._ended = ended

    async def read(self) -> bytes:
        """Return the next bytes of output; ``b""`` when the shell has ended."""
        return await self._reader.read(_CHUNK)

    async def write(self, data: bytes) -> None:
        """Send to the shell's input; raises OSError when it has ended."""
        self._writer.write(data)
        await self._writer.drain()

    async def destroy(self) -> None:
        """End the connection; the next shell on the host kills what this one runs."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self._writer.close()
            hang_up(transport)
            self._ended(self.process)


async def open_root_shell(
    host: SshHost, known_hosts: Path, orphans: Collection[ShellProcess], ended: Callable[[ShellProcess], None]
) -> RootShell:
    """Connect and start a root shell that first kills the ``orphans``; ``ended`` is called with a discarded shell.

    Raises:
        BackendError: the connection, or becoming root, failed or took longer than ``CONNECT_LIMIT``.
    """
    nonce = secrets.token_hex(8)
    old = " ".join(f"{orphan.pid}:{orphan.born}" for orphan in orphans)
    become = shlex.join(["sh", "-c", f"exec 2>&1; {_BECOME}", "sh", _BEGIN, nonce, old])
    try:
        async with within(CONNECT_LIMIT):
            transport = await in_thread(hang_up, dial, host, known_hosts)
            try:
                channel = await in_thread(paramiko.Channel.close, _start, transport, become)
                reader, writer = await _join(channel)
                process = await _greeting(reader, nonce, host)
                writer.write(f"{TAKE_NAME}\n".encode())
            except BaseException:
                hang_up(transport)
                raise
    except TimeoutError:
        raise BackendError(f"{host.label} does not answer within {CONNECT_LIMIT:g} s") from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise BackendError(f"{host.label} opens no shell: {one_line(error)}") from None
    return RootShell(transport, process, reader, writer, ended)


def _start(transport: paramiko.Transport, command: str) -> paramiko.Channel:
    channel = transport.open_session(timeout=CONNECT_LIMIT)
    channel.settimeout(None)
    channel.exec_command(command)
    return channel


async def _join(channel: paramiko.Channel) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return streams of the loop that carry the channel's bytes."""
    near, far = socket.socketpair()
    for pump in (_pump_out, _pump_in):
        threading.Thread(target=pump, args=(channel, far), daemon=True, name=f"ssh{pump.__name__}").start()
    near.setblocking(False)
    return await asyncio.open_connection(sock=near)


def _pump_out(channel: paramiko.Channel, far: socket.socket) -> None:
    """Copy from the channel to the loop until either ends; data that was read last must still arrive there."""
    try:
        while data := channel.recv(_CHUNK):
            far.sendall(data)
    except (OSError, EOFError, paramiko.SSHException):
        pass  # The loop has closed its end, or the connection broke: both mean the end of output.
    finally:
        try:
            far.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def _pump_in(channel: paramiko.Channel, far: socket.socket) -> None:
    """Copy from the loop to the channel until the loop ends.

    Data for a shell that has ended is dropped. Closing the socket instead would reset the pair, and the loop would lose
    the shell's last output.
    """
    taking = True
    try:
        while data := far.recv(_CHUNK):
            try:
                if taking:
                    channel.sendall(data)
            except (OSError, EOFError, paramiko.SSHException):
                taking = False
    except OSError:
        pass
    finally:
        far.close()


async def _greeting(reader: asyncio.StreamReader, nonce: str, host: SshHost) -> ShellProcess:
    """Read until the shell has identified itself; earlier output (of a profile, of sudo) explains a failure."""
    source, said = "", []
    while line := await reader.readline():
        words = line.decode(errors="replace").split()
        if words[:2] == [nonce, "from"]:
            source = "".join(words[2:])
        elif words[:2] == [nonce, "shell"]:
            return ShellProcess(int(words[2]), int(words[3]), source)
        else:
            said += words
    why = " ".join(said)[-300:]
    if "sudo" in why:
        raise BackendError(f"{host.label}: {host.user} can't become root without a password ({why}); "
                           f"allow it: {host.user} ALL=(ALL) NOPASSWD: ALL in /etc/sudoers.d/stormproof")
    raise BackendError(f"{host.label} opens no root shell: {why or 'it closed the connection'}")
