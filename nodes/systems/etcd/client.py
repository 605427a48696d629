"""A client of etcd: keys as registers, and its lock service, by the JSON gateway of its gRPC interface.

(etcd's documentation: "API reference", KV, Lease and Lock; "Why gRPC gateway".)
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
from typing import Any

from stormproof.contracts.backend import Credentials
from stormproof.contracts.client import LogEntry, NotDone, Progress

CLIENT_PORT, PEER_PORT = 2379, 2380
CONNECT_SECONDS, ANSWER_SECONDS = 2.0, 10.0
NOBODY = Credentials()
_NOT_DONE = ("no leader", "not capable", "too many requests")
"""etcd's messages for requests that it has not proposed; others may have been carried out (etcd's server/etcdserver
/errors.go)."""


class EtcdConnection:
    """One client's connection to one member; it never switches to another."""

    heartbeat = 0.0
    """No keep-alives are sent: a lock ends with its lease."""

    def __init__(self, credentials: Credentials = NOBODY, serializable: bool = False) -> None:
        self._credentials = credentials
        self._serializable = serializable
        self._client: Any = None
        self._locks: dict[str, tuple[str, str, int]] = {}
        self._told: asyncio.Queue[LogEntry | Progress | Exception] = asyncio.Queue()
        self._watching: asyncio.Task[None] | None = None

    async def connect(self, host: str, port: int, local: str) -> None:
        """Connect from the address ``local``, log in if required, and ask for the member's status."""
        self._client = http_client(host, port, local)
        await log_in(self._client, self._credentials)
        await ask(self._client, "maintenance/status", {})

    async def read(self, name: str) -> bytes | None:
        """Return the value of a key, by a linearizable read, or from what this member has."""
        request = {"key": _packed(name), "serializable": self._serializable}
        found = (await ask(self._client, "kv/range", request)).get("kvs")
        return base64.b64decode(found[0].get("value", "")) if found else None

    async def write(self, name: str, value: bytes) -> None:
        """Put a value."""
        await ask(self._client, "kv/put", {"key": _packed(name), "value": _packed(value)})

    async def cas(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """Compare and set by a transaction; ``expected`` None means that the key must not exist."""
        key = _packed(name)
        held = ({"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"} if expected is None else
                {"key": key, "target": "VALUE", "result": "EQUAL", "value": _packed(expected)})  # fmt: skip
        put = {"request_put": {"key": key, "value": _packed(value)}}
        return bool((await ask(self._client, "kv/txn", {"compare": [held], "success": [put]})).get("succeeded"))

    async def put(self, name: str, body: bytes) -> int:
        """Put a value; return the revision of the change."""
        told = await ask(self._client, "kv/put", {"key": _packed(name), "value": _packed(body)})
        return int(told["header"]["revision"])

    async def head(self, name: str) -> int:
        """Return the revision of a key's last change, by a linearizable read."""
        found = (await ask(self._client, "kv/range", {"key": _packed(name)})).get("kvs")
        return int(found[0]["mod_revision"]) if found else 0

    async def watch(self, name: str, after: int) -> None:
        """Watch a key on a separate stream, which reports its progress, too. (etcd's documentation: "API reference",
        Watch streams.)"""
        await self._end_watch()
        self._told = asyncio.Queue()
        request = {"key": _packed(name), "start_revision": str(after + 1), "progress_notify": True}
        self._watching = asyncio.get_running_loop().create_task(self._follow(request))

    async def event(self, timeout: float) -> LogEntry | Progress | None:
        """Return the next event or progress report; None if there is none in time."""
        try:
            told = await asyncio.wait_for(self._told.get(), timeout)
        except TimeoutError:
            return None
        if isinstance(told, Exception):
            self._told.put_nowait(told)
            raise told
        return told

    async def _follow(self, request: dict[str, Any]) -> None:
        """Queue the member's reports on a watch, line by line, until it ends."""
        import httpx

        limits = httpx.Timeout(ANSWER_SECONDS, read=None)
        try:
            async with self._client.stream("POST", "watch", json={"create_request": request}, timeout=limits) as answer:
                async for line in answer.aiter_lines():
                    self._take_in(json.loads(line))
            raise ConnectionError("the member ended the watch")
        except Exception as error:
            self._told.put_nowait(error)

    def _take_in(self, told: dict[str, Any]) -> None:
        result = told.get("result")
        if result is None or result.get("canceled"):
            raise ConnectionError(f"the watch was ended: {json.dumps(told.get('error') or result)[:200]}")
        for event in result.get("events", ()):
            kv = event["kv"]
            self._told.put_nowait(LogEntry(int(kv["mod_revision"]), base64.b64decode(kv.get("value", ""))))
        if not result.get("events") and not result.get("created"):
            self._told.put_nowait(Progress(int(result["header"]["revision"])))

    async def _end_watch(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await watching

    async def acquire(self, name: str, seconds: float) -> int:
        """Acquire the lock, under a lease of whole seconds; waits for it, and renews the lease meanwhile. The
        token is the revision at which the lock's key was created, which grows from holder to holder."""
        lease = (await ask(self._client, "lease/grant", {"TTL": math.ceil(seconds)}))["ID"]
        self._locks[name] = (lease, "", 0)
        # The holder before may have gone without a release: its lease, of as many seconds, then ends first.
        waiting = asyncio.get_running_loop().create_task(self._renew(lease, seconds / 3))
        try:
            wanted = {"name": _packed(name), "lease": lease}
            key = (await ask(self._client, "lock/lock", wanted, seconds + ANSWER_SECONDS))["key"]
        finally:
            waiting.cancel()
        (found,) = (await ask(self._client, "kv/range", {"key": key}))["kvs"]
        token = int(found["create_revision"])
        self._locks[name] = (lease, key, token)
        return token

    async def _renew(self, lease: str, pause: float) -> None:
        """Renew a lease until cancelled, as etcd's own sessions do; only while its client waits."""
        while True:
            await asyncio.sleep(pause)
            with contextlib.suppress(Exception):  # it then ends in time, which the member tells the waiting request
                await ask(self._client, "lease/keepalive", {"ID": lease})

    async def give_up(self, name: str) -> None:
        """End the lease of a lock that is no longer waited for."""
        lease, _, _ = self._locks.pop(name)
        await ask(self._client, "lease/revoke", {"ID": lease})

    async def release(self, name: str) -> bool:
        """Release the lock; return whether it was still held."""
        lease, key, token = self._locks.pop(name)
        mine = {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": str(token)}
        gone = {"request_delete_range": {"key": key}}
        done = bool((await ask(self._client, "kv/txn", {"compare": [mine], "success": [gone]})).get("succeeded"))
        if done:
            await ask(self._client, "lease/revoke", {"ID": lease})
        return done

    async def remove(self, name: str) -> None:
        """Delete a key."""
        await ask(self._client, "kv/deleterange", {"key": _packed(name)})

    async def close(self) -> None:
        """Disconnect."""
        await self._end_watch()
        if self._client is not None:
            await self._client.aclose()


def http_client(host: str, port: int, local: str = "") -> Any:
    """Return an HTTP client for one member that never repeats a request by itself."""
    import httpx

    # No TLS is used: loading the certificates of all authorities would take longer than everything that clients do.
    transport = httpx.AsyncHTTPTransport(verify=False, local_address=local or None, retries=0)
    return httpx.AsyncClient(base_url=f"http://{host}:{port}/v3/", transport=transport, trust_env=False,
                             timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS))  # fmt: skip


async def log_in(client: Any, credentials: Credentials) -> None:
    """Add the member's token to all further requests (etcd's documentation: "gRPC gateway", *Authentication*).

    Raises:
        NotDone: the member rejects these credentials.
    """
    if not credentials.login:
        return
    request = {"name": credentials.login, "password": credentials.passcode}
    try:
        told = await ask(client, "auth/authenticate", request)
    except RuntimeError as error:
        raise NotDone(f"it does not let us in: {error}") from error
    client.headers["Authorization"] = told["token"]


async def ask(client: Any, method: str, request: dict[str, Any], seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
    """Send a request and return the member's answer, which may take some seconds.

    Raises:
        NotDone: it certainly was not carried out. RuntimeError, httpx.HTTPError: it may have been.
    """
    import httpx

    try:
        answer = await client.post(method, json=request, timeout=httpx.Timeout(seconds, connect=CONNECT_SECONDS))
    except httpx.ConnectError as error:
        raise NotDone(f"no connection: {error}") from error
    if answer.status_code == httpx.codes.OK:
        return dict(answer.json())
    if any(text in answer.text for text in _NOT_DONE):
        raise NotDone(answer.text)
    raise RuntimeError(f"{answer.status_code}: {answer.text[:200]}")


def _packed(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
