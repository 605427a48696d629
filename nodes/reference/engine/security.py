"""Access control: principals, access control lists and administered objects, as part of the engine's state.

They are changed by commands like all other state, so every mechanism that keeps the state of queues also keeps them,
and a revoked right is gone for every later command. The broker's own login (``Config.login``) belongs to no principal:
it may do everything.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodes.reference import wire
from nodes.reference.engine.model import QUEUE_PREFIX
from nodes.reference.engine.store import Changes, Table, read_rows
from nodes.reference.engine.topics import SECURITY, TOPIC_PREFIX, matches

PRODUCE, CONSUME, MANAGE = "produce", "consume", "manage"
RIGHTS = (PRODUCE, CONSUME, MANAGE)
ANY_QUEUE, ANY_TOPIC = f"{QUEUE_PREFIX}*", f"{TOPIC_PREFIX}>"
PRINCIPAL, GRANT, OBJECT = "principal", "grant", "object"
KINDS = (PRINCIPAL, GRANT, OBJECT)
CREATE_PRINCIPAL, CHANGE_PASSCODE, DELETE_PRINCIPAL = "create-principal", "change-passcode", "delete-principal"
GRANT_RIGHT, REVOKE_RIGHT = "grant", "revoke"
CREATE_OBJECT, DELETE_OBJECT, LOOK_UP, LIST = "create-object", "delete-object", "look-up", "list"
REQUESTS = (CREATE_PRINCIPAL, CHANGE_PASSCODE, DELETE_PRINCIPAL, GRANT_RIGHT, REVOKE_RIGHT, CREATE_OBJECT,
            DELETE_OBJECT, LOOK_UP, LIST)  # fmt: skip
WITH_PASSCODE = (CREATE_PRINCIPAL, CHANGE_PASSCODE)
"""Requests whose passcode is replaced by its hash before they become commands."""
DENIED = "access denied"
SALT_BYTES, HASH_BYTES, MOST_COST = 16, 32, 1 << 14
MAX_ROWS = 10_000
"""Limit of principals, grants and objects together."""
_MAX_OBJECT_TEXT = 2_000
_LOGIN = re.compile(r"[^\s:/,\x00-\x1f]{1,64}")
_OBJECT = re.compile(r"[^\s\x00-\x1f]{1,200}")


class Denied(Exception):
    """A request is refused without any change; the text is sent as ``x-error``."""


@dataclass(frozen=True)
class Principal:
    """An account that may log in. ``id`` changes with the passcode; ``verifier`` is the passcode's salted hash, and
    ``cost`` the cost of computing it."""

    id: int
    login: str
    salt: bytes
    verifier: bytes
    cost: int


@dataclass(frozen=True)
class _Row:
    """A stored principal, grant or object."""

    id: int
    kind: str
    name: str
    content: Any = None


@dataclass
class RequestOutcome:
    """The result of a request: headers of its receipt, and the login whose rights were reduced, if any."""

    headers: dict[str, str] = field(default_factory=dict)
    reduced: str | None = None


def covers(granted: str, asked: str) -> bool:
    """Return whether a right for one destination includes another, which may be a pattern of topics."""
    if granted == asked:
        return True
    if granted == ANY_QUEUE:
        return asked.startswith(QUEUE_PREFIX)
    if not (granted.startswith(TOPIC_PREFIX) and asked.startswith(TOPIC_PREFIX)):
        return False
    pattern, topic = granted.removeprefix(TOPIC_PREFIX), asked.removeprefix(TOPIC_PREFIX)
    return matches(pattern, topic) and (not topic.endswith(">") or pattern.endswith(">"))


class Security:
    """The current access rules. Without ``enabled`` there are none, and every client that has logged in may do
    everything.

    A list is answered in pages of about ``page`` characters, because a header has to have room for them.
    """

    def __init__(self, database: sqlite3.Connection, enabled: bool, administrator: str,
                 new_id: Callable[[], int], page: int) -> None:
        self.enabled = enabled
        self._page = page
        self._database, self._administrator, self._new_id = database, administrator, new_id
        self.table: Table[_Row] = Table("security", lambda r: (r.id, r.kind, r.name, wire.encode(r.content)))
        self.restore()

    # Queries.

    def principal(self, login: str) -> Principal | None:
        """Return the principal with that login."""
        return self.principals.get(login)

    def may_open(self, login: str, identity: int) -> bool:
        """Return whether a connection may be opened with the identity that its passcode proved at login."""
        found = self.principals.get(login)
        return not self.enabled or login == self._administrator or (found is not None and found.id == identity)

    def permits(self, login: str, right: str, destination: str) -> bool:
        """Return whether a login has a right to a destination."""
        if not self.enabled or login == self._administrator:
            return True
        return any(held == right and covers(granted, destination) for granted, held in self.grants.get(login, ()))

    # Requests.

    def request(self, login: str, name: str, said: Mapping[str, Any]) -> RequestOutcome:
        """Carry out a request of a login; a refused one changes nothing, and the outcome gives the reason."""
        try:
            handler = _HANDLERS.get(name)
            if handler is None:
                raise Denied(f"there is no request {name[:40]!r} (there are: {', '.join(REQUESTS)})")
            if name not in WITH_PASSCODE and not all(isinstance(each, str) for each in said.values()):
                raise Denied("the body is not an object of texts")
            return handler(self, login, said)
        except Denied as refusal:
            return RequestOutcome({"x-error": str(refusal)})

    def _demand(self, login: str, destination: str = SECURITY) -> None:
        if not self.permits(login, MANAGE, destination):
            raise Denied(f"{DENIED}: {MANAGE} {destination}")

    def _create_principal(self, login: str, said: Mapping[str, Any]) -> RequestOutcome:
        self._demand(login)
        name = _named(said, "login", _LOGIN)
        if name in self.principals or name == self._administrator:
            raise Denied("principal-exists")
        self._add_principal(name, said)
        return RequestOutcome()

    def _change_passcode(self, login: str, said: Mapping[str, Any]) -> RequestOutcome:
        name = _named(said, "login", _LOGIN)
        if name != login:
            self._demand(login)
        self._existing(name)
        self._remove(PRINCIPAL, name)
        self._add_principal(name, said)
        return RequestOutcome()

    def _add_principal(self, name: str, said: Mapping[str, Any]) -> None:
        content = [said.get("salt"), said.get("verifier"), said.get("cost")]
        if not is_hash(*content):
            raise Denied("passcode: is missing")
        self._add(PRINCIPAL, name, content)

    def _delete_principal(self, login: str, said: Mapping[str, Any]) -> RequestOutcome:
        self._demand(login)
        name = _named(said, "login", _LOGIN)
        self._existing(name)
        for granted, right in list(self.grants.get(name, ())):
            self._remove(GRANT, f"{name} {right} {granted}")
        self._remove(PRINCIPAL, name)
        return RequestOutcome(reduced=name)

    def _grant(self, login: str, said: Mapping[str, Any]) -> RequestOutcome:
        key = self._right(login, said)
        if (GRANT, key) in self.rows:
            raise Denied("granted-already")
        self._existing(_named(said, "login", _LOGIN))
        self._add(GRANT, key, None)
        return RequestOutcome()

    def _revoke(self, login: str, said: Mapping[str, Any]) -> RequestOutcome:
        key = self._right(login, said)
        if (GRANT, key) not in self.rows:
            raise Denied("not-granted")
        self._remove(GRANT, key)
        return RequestOutcome(reduced=_named(said, "login", _LOGIN))

    def _right(self, login: str, said: Mapping[str, Any]) -> str:
        """Return the name of a grant, after checking that the requester may manage it."""
        name, right, destination = _named(said, "login", _LOGIN), said.get("right"), said.get("destination")
        if right not in RIGHTS:
            raise Denied(f"right: is none of {', '.join(RIGHTS)}")
        if not isinstance(destination, str) or not _is_destination(destination):
            raise Denied(f"destination: is none of {QUEUE_PREFIX}NAME, {ANY_QUEUE}, {TOPIC_PREFIX}PATTERN, {SECURITY}")
        self._demand(login, destination)
        return f"{name} {right} {destination}"

    def _create_object(self, login: str, said: Mapping[str, Any]) -> RequestOutcome:
        self._demand(login)
        name = _named(said, "name", _OBJECT)
        if (OBJECT, name) in self.rows:
            raise Denied("object-exists")
        content = {key: value for key, value in said.items() if key != "name"}
        if sum(len(key) + len(value) for key, value in content.items()) > _MAX_OBJECT_TEXT:
            raise Denied(f"an object holds at most {_MAX_OBJECT_TEXT} characters")
        self._add(OBJECT, name, content)
        return RequestOutcome()

    def _delete_object(self, login: str, said: Mapping[str, Any]) -> RequestOutcome:
        self._demand(login)
        name = _named(said, "name", _OBJECT)
        if (OBJECT, name) not in self.rows:
            raise Denied("no-such-object")
        self._remove(OBJECT, name)
        return RequestOutcome()

    def _look_up(self, login: str, said: Mapping[str, Any]) -> RequestOutcome:
        """Look up an object; every login may, because an application finds its destinations and connections by name."""
        row = self.rows.get((OBJECT, _named(said, "name", _OBJECT)))
        if row is None:
            raise Denied("no-such-object")
        return RequestOutcome({"x-answer": json.dumps(row.content)})

    def _list(self, login: str, said: Mapping[str, Any]) -> RequestOutcome:
        self._demand(login)
        found: list[str] = []
        size, last = 0, ""
        for kind, name in sorted(self.rows):
            place = f"{kind} {name}"
            if place <= said.get("after", "") or said.get("kind", kind) != kind or said.get("name", name) != name:
                continue
            one = json.dumps([kind, name])
            size += len(one)
            if found and size > self._page:
                return RequestOutcome({"x-answer": f"[{', '.join(found)}]", "x-more": last})
            found.append(one)
            last = place
        return RequestOutcome({"x-answer": f"[{', '.join(found)}]"})

    def _existing(self, login: str) -> None:
        if login not in self.principals:
            raise Denied("no-such-principal")

    # Rows.

    def _add(self, kind: str, name: str, content: Any) -> None:
        if len(self.rows) >= MAX_ROWS:
            raise Denied(f"there are {MAX_ROWS} principals, grants and objects: delete some first")
        row = _Row(self._new_id(), kind, name, content)
        self.table.insert(row.id, row)
        self._take(row)

    def _take(self, row: _Row) -> None:
        self.rows[row.kind, row.name] = row
        if row.kind == PRINCIPAL:
            self.principals[row.name] = Principal(row.id, row.name, *row.content)
        elif row.kind == GRANT:
            login, right, destination = row.name.split(" ", 2)
            self.grants.setdefault(login, {})[destination, right] = None

    def _remove(self, kind: str, name: str) -> None:
        row = self.rows.pop((kind, name))
        self.table.remove(row.id)
        if kind == PRINCIPAL:
            del self.principals[name]
        elif kind == GRANT:
            login, right, destination = name.split(" ", 2)
            del self.grants[login][destination, right]
            if not self.grants[login]:
                del self.grants[login]

    def flush(self, changes: Changes | None) -> None:
        """Write the changes."""
        self.table.flush(self._database, changes)

    def restore(self) -> None:
        """Load the contents of the store; changes that were not written are dropped."""
        self.table.forget()
        self.rows: dict[tuple[str, str], _Row] = {}
        self.principals: dict[str, Principal] = {}
        self.grants: dict[str, dict[tuple[str, str], None]] = {}
        for identity, kind, name, content in read_rows(self._database, "security"):
            self._take(_Row(identity, kind, name, wire.decode(content)))


def is_hash(salt: Any, verifier: Any, cost: Any) -> bool:
    """Return whether these can be a passcode's salt, its salted hash, and the cost of computing it."""
    if type(salt) is not bytes or type(verifier) is not bytes or type(cost) is not int:
        return False
    return len(salt) == SALT_BYTES and len(verifier) == HASH_BYTES and is_cost(cost)


def is_cost(cost: int) -> bool:
    """Return whether this can be a cost of scrypt: a power of 2 that keeps logins fast."""
    return 2 <= cost <= MOST_COST and cost.bit_count() == 1


def is_row(kind: str, name: str, content: Any) -> bool:
    """Return whether a row from another replica can be one of these."""
    if kind == PRINCIPAL:
        return bool(_LOGIN.fullmatch(name)) and isinstance(content, list) and len(content) == 3 and is_hash(*content)
    if kind == GRANT:
        login, right, destination = (*name.split(" ", 2), "", "")[:3]
        return content is None and bool(_LOGIN.fullmatch(login)) and right in RIGHTS and _is_destination(destination)
    texts = isinstance(content, dict) and all(isinstance(each, str) for each in content.values())
    return kind == OBJECT and bool(_OBJECT.fullmatch(name)) and texts


def _is_destination(text: str) -> bool:
    prefixed = text.startswith((QUEUE_PREFIX, TOPIC_PREFIX)) and len(text) > len(QUEUE_PREFIX)
    return text == SECURITY or (prefixed and len(text) <= 200 and bool(_OBJECT.fullmatch(text)))


def _named(said: Mapping[str, Any], what: str, pattern: re.Pattern[str]) -> str:
    name = said.get(what)
    if not isinstance(name, str) or not pattern.fullmatch(name):
        most = 64 if pattern is _LOGIN else 200
        raise Denied(f"{what}: a name without blanks, of 1 to {most} characters, is missing")
    return name


_Handler = Callable[[Security, str, Mapping[str, Any]], RequestOutcome]
_HANDLERS: Mapping[str, _Handler] = {
    CREATE_PRINCIPAL: Security._create_principal, CHANGE_PASSCODE: Security._change_passcode,
    DELETE_PRINCIPAL: Security._delete_principal, GRANT_RIGHT: Security._grant, REVOKE_RIGHT: Security._revoke,
    CREATE_OBJECT: Security._create_object, DELETE_OBJECT: Security._delete_object, LOOK_UP: Security._look_up,
    LIST: Security._list,
}  # fmt: skip
