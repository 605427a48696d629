"""Requests of administrators, managers and service scripts to a broker, which it accepts in every state."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from nodes.reference.api import Broker, ConfigError
from nodes.reference.designs.qpid.copies import StoreCopies
from nodes.reference.designs.qpid.lease_client import ManagerPermission
from nodes.reference.designs.qpid.management import listing
from nodes.reference.designs.qpid.manager.note import is_list_of_names
from nodes.reference.designs.qpid.messages import Shutdown
from nodes.reference.designs.qpid.options import LC2B, QpidOptions
from nodes.reference.designs.qpid.pushed_urls import PushedUrls
from nodes.reference.designs.qpid.roles import Roles
from nodes.reference.designs.qpid.states import CATCHUP, CONNECTING, READY, STOPPED
from nodes.reference.designs.qpid.store_status import CLEAN, EMPTY
from nodes.reference.designs.qpid.urls import Urls
from nodes.reference.replication.links import Links

_POLL = 0.05
"""Seconds between checks whether a shutdown can proceed."""
_WORD = re.compile(r"[!-~]{1,200}")
_MAX_ADDRESSES = 64
Request = Mapping[str, Any]


class Administration:
    """Carries out requests: JSON objects whose ``op`` names the operation."""

    def __init__(self, broker: Broker, options: QpidOptions, roles: Roles, urls: Urls, pushed: PushedUrls,
                 links: Links, permission: ManagerPermission | None) -> None:
        self._broker, self._options, self._roles, self._urls = broker, options, roles, urls
        self._pushed, self._links, self._permission = pushed, links, permission
        self._name = roles.name
        self._shutting_down = 0
        """The number of requests for an orderly shutdown that are not answered yet."""
        copies = StoreCopies(broker, roles)
        self._operations: dict[str, Callable[[Request], Any]] = {
            "status": lambda request: self.description(), "promote": self._promote, "shutdown": self._shutdown,
            "list": self._list, "accept-store": self._accept_store, "erase-store": self._erase_store,
            "set-broker-url": self._set_broker_url, "set-client-url": self._set_client_url, **copies.operations,
        }  # fmt: skip

    async def carry_out(self, request: Request) -> Request:
        """Carry out a request; raises ConfigError with the reason when it is refused."""
        operation = self._operations.get(str(request.get("op")))
        if operation is None:
            known = ", ".join(self._operations)
            raise ConfigError(f"unknown operation {request.get('op')!r:.60} (known: {known})")
        answer = operation(request)
        return dict(await answer if asyncio.iscoroutine(answer) else answer)

    def description(self) -> dict[str, Any]:
        """Return the broker's status."""
        roles, primary = self._roles, self._roles.primary
        return {
            "state": roles.state,
            "eligible": roles.eligible,
            "copying": roles.held,
            "shutting_down": self._shutting_down > 0,
            "disaster": self._name in self._options.disaster,
            "forced": roles.forced and roles.state == CONNECTING,
            "generation": roles.generation,
            "store": {**roles.store.now.describe(), "error": roles.store_error},
            "started_from": roles.started_from.describe(),
            "primary": self._name if primary is not None else roles.serves_at,
            "configuration": None if LC2B in self._options.as_documented else roles.configuration.number,
            "held_for": round(primary.held_for, 3) if primary is not None else 0.0,
            "backups": {name: browser.state for name, browser in primary.browsers.items()} if primary else {},
            "clients": dict(self._urls.clients),
            "brokers": {name: list(address) for name, address in self._urls.brokers.items()},
        }

    def _list(self, request: Request) -> dict[str, Any]:
        """List the objects that exist here, as for clients of the primary; on a backup, these are the propagated ones
        [LC2].
        """
        said = {key: value for key, value in request.items() if key in ("kind", "name", "after")}
        if not all(isinstance(value, str) for value in said.values()):
            raise ConfigError("kind, name, after: are texts")
        answer = listing(self._roles.configuration, said, self._options.answer_page)
        return {"objects": json.loads(answer["x-answer"]), "more": answer.get("x-more", "")}

    # Promotion and shutdown.

    def _promote(self, request: Request) -> dict[str, Any]:
        """Take over as primary [Failover]."""
        roles, permission = self._roles, self._permission
        term = _read_term(request)
        if permission is not None and term is not None and term < permission.term:
            raise ConfigError(f"term {term} is over: this broker is primary of term {permission.term}")
        if roles.primary is not None:
            if permission is not None and term is not None:
                permission.lead(term)
            return {}
        if permission is not None and term is None:
            return self._vouch(request)
        ended = _read_ended(request)
        bootstrap = bool(request.get("bootstrap")) and roles.state == CONNECTING
        if not (roles.eligible or (bootstrap and roles.store.now.state in (EMPTY, CLEAN)) or request.get("force")):
            raise ConfigError(f"{self._name} is not eligible as primary: {self._why_not()}")
        roles.check_free()
        if roles.state == STOPPED:
            raise ConfigError("the cluster has been shut down: start the brokers again")
        if permission is not None:
            if not permission.holds():
                raise ConfigError(f"{self._name} has no quorum")
            permission.lead(term or 0)
        roles.become_primary(ended)
        return {}

    def _vouch(self, request: Request) -> dict[str, Any]:
        """Note an administrator's approval of this broker's data where managers exist: its manager then promotes this
        broker if no other one is primary.
        """
        if not request.get("force"):
            raise ConfigError(f"{self._name} has a manager, which promotes it when it may; --force says that its data "
                              "are good enough")
        if self._roles.state != CONNECTING:
            raise ConfigError(f"{self._name} is {self._roles.state}: only the data of a broker that is connecting can "
                              "be vouched for")
        self._roles.check_free()
        self._roles.vouch()
        return {}

    def _why_not(self) -> str:
        if self._roles.state == CATCHUP:
            return "it is catching up"
        if self._roles.led_from_afar:
            return ("its last primary is one for disaster recovery: a person ends that by an orderly shutdown, or "
                    "gives it up by --force")
        if self._roles.store_error:
            return f"its store fails ({self._roles.store_error})"
        if self._roles.backup.discard:
            return "it was started from a dirty store"
        return "it has not been ready since it was started"

    async def _shutdown(self, request: Request) -> dict[str, Any]:
        """Shut the whole cluster down in order: all stores are left clean, with one identifier. Managers notice that,
        and end with their brokers."""
        self._shutting_down += 1
        try:
            return await self._come_to_rest()
        finally:
            self._shutting_down -= 1

    async def _come_to_rest(self) -> dict[str, Any]:
        roles = self._roles
        if roles.state == STOPPED:
            return {"uuid": roles.store.now.uuid}
        primary = roles.primary
        if primary is None:
            address = self._urls.clients.get(roles.serves_at or "", "that")
            raise ConfigError(f"{self._name} is not primary; ask {address}")
        primary.accepting = False
        self._broker.drop_clients("the cluster is being shut down")
        while not primary.idle():
            await asyncio.sleep(_POLL)
            if roles.primary is not primary:
                raise ConfigError("this broker is primary no longer; ask the new one")
        uuid = new_uuid(self._broker)
        caught_up = [name for name, browser in primary.browsers.items() if browser.state == READY]
        for name in caught_up:
            roles.send(name, Shutdown(uuid))
        roles.come_to_rest(uuid)
        now = self._broker.runtime.now
        deadline = now() + self._options.silence
        clean: set[str] = set()
        while len(clean) < len(caught_up) and now() < deadline:
            await asyncio.sleep(_POLL)
            clean.update(name for name in caught_up if roles.at_rest(name, uuid))
        return {"uuid": uuid, "clean": sorted([self._name, *clean])}

    # Stores.

    def _accept_store(self, request: Request) -> dict[str, Any]:
        self._roles.accept_store()
        return {"generation": self._roles.generation}

    def _erase_store(self, request: Request) -> dict[str, Any]:
        self._roles.erase_store()
        return {}

    # Addresses.

    def _set_broker_url(self, request: Request) -> dict[str, Any]:
        """Replace the addresses of all brokers [Failback]."""
        addresses = _read_addresses(request)
        if self._name not in addresses:
            raise ConfigError(f"addresses: {self._name!r}, this broker, is missing")
        for name, (host, _) in addresses.items():
            if host == self._options.virtual_address:
                raise ConfigError(f"addresses: {name} is at the virtual address {host}; brokers need real addresses")
        self._urls.push(addresses)
        self._keep_urls()
        own_rank = self._urls.rank(self._name)
        for place, (name, address) in enumerate(addresses.items()):
            if name != self._name:
                self._links.add(name, address, dial=place > own_rank)
                self._links.move(name, address)
        self._links.retain(self._urls.others(self._name))
        return {}

    def _set_client_url(self, request: Request) -> dict[str, Any]:
        """Replace the addresses at which clients find brokers."""
        self._urls.clients = {name: f"{host}:{port}" for name, (host, port) in _read_addresses(request).items()}
        self._keep_urls()
        return {}

    def _keep_urls(self) -> None:
        """Store the pushed URLs, so that a restarted broker uses them."""
        with self._roles.change_of_no_queue():
            self._pushed.keep()


def new_uuid(broker: Broker) -> str:
    """Return a new identifier for stores that are clean together."""
    return f"{broker.runtime.random.getrandbits(128):032x}"


def _read_term(request: Request) -> int | None:
    """Return the managers' term in which they promote; None for an administrator's request. Raises ConfigError if it is
    not a number.
    """
    term = request.get("term")
    if term is not None and (type(term) is not int or term < 0):
        raise ConfigError("term: is not a whole number from 0")
    return term


def _read_ended(request: Request) -> list[str]:
    """Return the brokers that do not run, as reported by a manager. Raises ConfigError if it is not a list of names."""
    ended = request.get("ended", [])
    if not is_list_of_names(ended):
        raise ConfigError("ended: is not a list of names")
    return list(ended)


def _read_addresses(request: Request) -> dict[str, tuple[str, int]]:
    """Return name -> (host, port); raises ConfigError for anything else."""
    found = request.get("addresses")
    if not isinstance(found, dict) or not found or not all(
        isinstance(address, list) and list(map(type, address)) == [str, int] and 0 < address[1] < 65536
        for address in found.values()
    ):
        raise ConfigError('addresses: is not {"NAME": ["HOST", PORT], ...}')
    if len(found) > _MAX_ADDRESSES:
        raise ConfigError(f"addresses: there are {len(found)}, more than {_MAX_ADDRESSES}")
    names: dict[tuple[str, int], str] = {}
    for name, (host, port) in found.items():
        if not (_WORD.fullmatch(name) and _WORD.fullmatch(host)):
            raise ConfigError(f"addresses: {name!r:.60}: name and host are 1 to 200 visible characters")
        if names.setdefault((host, port), name) != name:
            raise ConfigError(f"addresses: {names[host, port]} and {name} are both at {host}:{port}")
    return {name: (host, port) for name, (host, port) in found.items()}
