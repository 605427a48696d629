"""The broker URL and the client URL that an administrator has pushed, kept in the broker's database [Failback]."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, NamedTuple

from nodes.reference import wire
from nodes.reference.designs.qpid.records import KeyedRows, rows_of
from nodes.reference.designs.qpid.urls import Urls

_COLUMNS = ("id", "configured", "brokers", "clients", "named")


class _Pushed(NamedTuple):
    """One row, encoded by ``wire``: brokers as ``[name, host, port]``, clients as ``[name, address]``."""

    configured: bytes
    brokers: bytes
    clients: bytes
    named: bytes


class PushedUrls:
    """Keeps the URLs of a broker over its restarts, from the first push on.

    A pushed URL applies until the addresses in the broker's configuration are changed; then the configuration's
    addresses apply again. ``records`` are written at the end of a transaction.
    """

    def __init__(self, database: sqlite3.Connection, urls: Urls) -> None:
        """Replace the configured ``urls`` by the pushed ones; raises ConfigError when a row is malformed."""
        self._urls, self._database = urls, database
        self._configured = wire.encode([_brokers(urls.brokers), _clients(urls.clients)])
        database.execute("CREATE TABLE IF NOT EXISTS qpid_urls (id INTEGER PRIMARY KEY, configured BLOB NOT NULL, "
                         "brokers BLOB NOT NULL, clients BLOB NOT NULL, named BLOB NOT NULL)")
        self.records: KeyedRows[tuple[int]] = KeyedRows(
            database, "DELETE FROM qpid_urls WHERE id = ?", "INSERT INTO qpid_urls VALUES (?, ?, ?, ?, ?)",
            lambda key: [(*key, *self._now())],
        )
        for _, *row in rows_of(database, "qpid_urls", _COLUMNS, _is_row):
            pushed = _Pushed(*row)
            if pushed.configured == self._configured:
                urls.name(wire.decode(pushed.named))
                urls.push({name: (host, port) for name, host, port in wire.decode(pushed.brokers)})
                urls.clients = dict(wire.decode(pushed.clients))

    def keep(self) -> None:
        """Store the present URLs; needs an open transaction."""
        self.records.changed((0,))

    def _now(self) -> _Pushed:
        urls = self._urls
        return _Pushed(self._configured, wire.encode(_brokers(urls.brokers)), wire.encode(_clients(urls.clients)),
                       wire.encode(urls.names))


def _brokers(addresses: Mapping[str, tuple[str, int]]) -> list[list[Any]]:
    return [[name, host, port] for name, (host, port) in addresses.items()]


def _clients(addresses: Mapping[str, str]) -> list[list[str]]:
    return [[name, address] for name, address in addresses.items()]


def _is_row(number: Any, configured: Any, brokers: Any, clients: Any, named: Any) -> bool:
    try:
        return number == 0 and isinstance(configured, bytes) and _are(brokers, [str, str, int]) and _are(
            clients, [str, str]) and all(isinstance(name, str) for name in wire.decode(named))
    except (wire.WireError, TypeError):
        return False


def _are(encoded: Any, types: list[type]) -> bool:
    return all(isinstance(each, list) and list(map(type, each)) == types for each in wire.decode(encoded))
