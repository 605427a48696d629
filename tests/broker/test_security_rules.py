"""Principals, rights and administered objects as the engine keeps them, and what passcodes become."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.reference.api import Command, Config, ConfigError, Deliver, Done, Opened, Refused
from nodes.reference.engine.engine import StoreEngine
from nodes.reference.engine.row_schema import ShapeError, check_command, check_row
from nodes.reference.engine.security import ANY_QUEUE, DENIED, MAX_ROWS, Security, covers
from nodes.reference.server.guard import MAX_CHECKS_A_SECOND, Guard, TooManyPasscodes, hashed

pytestmark = pytest.mark.requirement("F8", part=True)

ADMIN = "root"


class Broker:
    """An engine with security, and the guard before it."""

    def __init__(self, path: Path | str = ":memory:", **options: Any) -> None:
        self.database = sqlite3.connect(path, isolation_level=None)
        options = {"security": True, "passcode_cost": 2, **options}
        config = Config("n1", "standalone", "", login=ADMIN, options=options)
        self.engine = StoreEngine(self.database, config=config)
        self.now = 0.0
        self.guard = Guard(self.engine.security, options, random.Random(1), lambda: self.now)
        self._receipts = 0
        self.apply("open", "root", login=ADMIN, reliable=False)

    def apply(self, kind: str, conn: str, **args: Any) -> list[Any]:
        self._receipts += 1
        command = self.guard.sealed(Command(kind, conn, 0, {"receipt": f"r{self._receipts}", **args}))
        check_command(*command)
        self.database.execute("BEGIN")
        effects = self.engine.apply(command)
        self.engine.flush()
        self.database.execute("COMMIT")
        return effects

    def ask(self, request: str, conn: str = "root", **said: str) -> str:
        """What is wrong with a request; empty when it was carried out."""
        return self.answer(request, conn, **said).get("x-error", "")

    def answer(self, request: str, conn: str = "root", **said: str) -> dict[str, str]:
        (done,) = [e for e in self.apply("security", conn, request=request, said=said)
                   if isinstance(e, Done) and e.conn == conn]
        return dict(done.headers)

    def log_in(self, login: str, passcode: str = "pass", conn: str = "") -> list[Any]:
        identity = self.guard.identify(login, passcode)
        return self.apply("open", conn or login, login=login, reliable=False, principal=identity)

    def member(self, login: str, *grants: tuple[str, str]) -> None:
        """Somebody who is logged in, with these rights."""
        assert self.ask("create-principal", login=login, passcode="pass") == ""
        for right, destination in grants:
            assert self.ask("grant", login=login, right=right, destination=destination) == ""
        assert isinstance(self.log_in(login)[0], Opened)

    def send(self, conn: str, destination: str, **more: Any) -> Any:
        return self.apply("send", conn, destination=destination, headers={}, body=b"", **more)[0]

    def subscribe(self, conn: str, destination: str) -> Any:
        return self.apply("subscribe", conn, id=destination, destination=destination, ack="auto", prefetch=5)[0]


@pytest.mark.parametrize(("granted", "asked", "covered"), [
    ("/queue/a", "/queue/a", True), ("/queue/a", "/queue/b", False), (ANY_QUEUE, "/queue/b", True),
    (ANY_QUEUE, "/topic/b", False), ("/topic/>", "/topic/a.b", True), ("/topic/>", "/queue/a", False),
    ("/topic/a.*", "/topic/a.b", True), ("/topic/a.*", "/topic/a.b.c", False), ("/topic/a.*", "/topic/a.>", False),
    ("/topic/a.*", "/topic/a.*", True), ("/topic/a.>", "/topic/a.*", True), ("/topic/a.>", "/topic/>", False),
    ("/topic/>", "/topic/>", True), ("/topic/a.b", "/topic/a.*", False), ("/security", "/security", True),
    (ANY_QUEUE, "/server/1/queue/a", False), ("/topic/*", "/topic/>", False), ("/topic/>", "/topic/a.>", True),
])  # fmt: skip
def test_which_rights_cover_which_destinations(granted: str, asked: str, covered: bool) -> None:
    assert covers(granted, asked) is covered


def test_rights_are_needed_for_each_use_and_by_nobody_but_principals() -> None:
    broker = Broker()
    broker.member("ann", ("produce", "/queue/a"), ("consume", "/topic/news.>"))
    assert isinstance(broker.send("ann", "/queue/a"), Done)
    assert isinstance(broker.subscribe("ann", "/topic/news.eu"), Done)
    assert isinstance(broker.send("root", "/queue/b"), Done)
    for use in (lambda: broker.send("ann", "/queue/b"), lambda: broker.subscribe("ann", "/queue/a"),
                lambda: broker.subscribe("ann", "/topic/>"), lambda: broker.send("ann", "/topic/news.eu")):
        refused = use()
        assert isinstance(refused, Refused) and refused.reason.startswith(DENIED)
        broker.log_in("ann")
    assert broker.engine.depths() == {"a": 1, "b": 1}, "what was refused had no effect"


def test_a_right_that_is_taken_away_is_gone_at_once_for_consumers_too() -> None:
    broker = Broker()
    broker.member("ann", ("consume", "/queue/a"), ("produce", "/queue/a"))
    broker.member("bob", ("consume", "/queue/a"))
    broker.subscribe("ann", "/queue/a")
    broker.subscribe("bob", "/queue/a")
    effects = broker.apply("security", "root", request="revoke",
                           said={"login": "ann", "right": "consume", "destination": "/queue/a"})
    assert [type(effect) for effect in effects] == [Done, Refused] and effects[1].conn == "ann"
    found = [e for _ in range(4) for e in broker.apply("send", "root", destination="/queue/a", headers={}, body=b"")]
    assert {e.conn for e in found if isinstance(e, Deliver)} == {"bob"}
    broker.log_in("ann")
    assert isinstance(broker.send("ann", "/queue/a"), Done), "the other right is still there"


def test_who_is_deleted_is_gone_with_connections_and_rights() -> None:
    broker = Broker()
    broker.member("ann", ("produce", "/queue/a"))
    effects = broker.apply("security", "root", request="delete-principal", said={"login": "ann"})
    assert [type(effect) for effect in effects] == [Done, Refused]
    assert broker.guard.identify("ann", "pass") == 0
    broker.member("ann")
    assert isinstance(broker.send("ann", "/queue/a"), Refused), "the new one has none of the old one's rights"


def test_transactions_need_the_right_when_they_take_effect() -> None:
    broker = Broker()
    broker.member("ann", ("produce", "/queue/a"))
    for end in ("commit", "prepare"):
        broker.apply("begin", "ann", tx="t", **({"xid": "x"} if end == "prepare" else {}))
        assert isinstance(broker.send("ann", "/queue/a", tx="t"), Done)
        assert broker.ask("revoke", login="ann", right="produce", destination="/queue/a") == ""
        refused = broker.apply(end, "ann", tx="t")[0]
        assert isinstance(refused, Refused) and refused.reason.startswith(DENIED)
        broker.log_in("ann")
        assert broker.ask("grant", login="ann", right="produce", destination="/queue/a") == ""
    broker.apply("begin", "ann", tx="t", xid="y")
    broker.send("ann", "/queue/a", tx="t")
    broker.apply("prepare", "ann", tx="t")
    broker.ask("revoke", login="ann", right="produce", destination="/queue/a")
    assert isinstance(broker.apply("commit", "ann", xid="y")[0], Done), "what is prepared is never refused"
    assert broker.engine.depths() == {"a": 1}


def test_a_passcode_that_was_changed_while_somebody_logged_in_lets_nobody_in() -> None:
    broker = Broker()
    broker.member("ann")
    identity = broker.guard.identify("ann", "pass")
    assert broker.ask("change-passcode", login="ann", passcode="new") == ""
    (refused,) = broker.apply("open", "again", login="ann", reliable=False, principal=identity)
    assert isinstance(refused, Refused) and refused.reason == DENIED
    assert broker.guard.identify("ann", "pass") == 0
    assert isinstance(broker.log_in("ann", "new", "third")[0], Opened)
    (refused,) = broker.apply("open", "fourth", login="nobody", reliable=False)
    assert isinstance(refused, Refused)


def test_who_may_administer_what() -> None:
    broker = Broker()
    broker.member("ann", ("manage", "/queue/a"))
    broker.member("bob")
    mine = {"login": "bob", "right": "produce", "destination": "/queue/a"}
    assert broker.ask("grant", "ann", **mine) == ""
    assert broker.ask("grant", "ann", **mine) == "granted-already"
    assert broker.ask("revoke", "ann", **mine) == ""
    assert broker.ask("revoke", "ann", **mine) == "not-granted"
    assert broker.ask("grant", "ann", **{**mine, "destination": "/queue/b"}) == f"{DENIED}: manage /queue/b"
    for request in ("create-principal", "delete-principal", "create-object", "delete-object", "list"):
        assert broker.ask(request, "ann", login="eve", passcode="x", name="o").startswith(DENIED)
    assert broker.ask("change-passcode", "ann", login="bob", passcode="x").startswith(DENIED)
    assert broker.ask("change-passcode", "bob", login="bob", passcode="x") == ""
    assert broker.ask("grant", login="bob", right="manage", destination="/security") == ""
    assert broker.ask("create-principal", "bob", login="eve", passcode="x") == ""


def test_administered_objects_are_found_by_everybody() -> None:
    broker = Broker()
    broker.member("ann")
    assert broker.ask("create-object", name="factory", type="connection-factory", first="10.0.0.1:61613") == ""
    assert broker.ask("create-object", name="factory") == "object-exists"
    answer = broker.answer("look-up", "ann", name="factory")
    assert answer == {"x-answer": '{"type": "connection-factory", "first": "10.0.0.1:61613"}'}
    assert broker.ask("delete-object", name="factory") == ""
    assert broker.ask("look-up", "ann", name="factory") == "no-such-object"


@pytest.mark.parametrize(("request_name", "said", "error"), [
    ("explode", {}, "there is no request 'explode'"), ("create-principal", {"login": "a b", "passcode": "x"}, "login:"),
    ("create-principal", {"login": "ann"}, "passcode: is missing"), ("create-principal", {}, "login:"),
    ("create-principal", {"login": ADMIN, "passcode": "x"}, "principal-exists"),
    ("create-principal", {"login": "a:b", "passcode": "x"}, "login:"),
    ("delete-principal", {"login": "nobody"}, "no-such-principal"),
    ("change-passcode", {"login": "nobody", "passcode": "x"}, "no-such-principal"),
    ("grant", {"login": "nobody", "right": "produce", "destination": "/queue/a"}, "no-such-principal"),
    ("grant", {"login": "ann", "right": "fly", "destination": "/queue/a"}, "right: is none of"),
    ("grant", {"login": "ann", "right": "produce", "destination": "a"}, "destination: is none of"),
    ("grant", {"login": "ann", "right": "produce", "destination": "/queue/a b"}, "destination: is none of"),
    ("create-object", {"name": "n", "text": "x" * 3000}, "an object holds at most"),
    ("create-object", {"name": ""}, "name:"), ("look-up", {}, "name:"),
])  # fmt: skip
def test_bad_requests_change_nothing_and_say_what_is_wrong(
    request_name: str, said: dict[str, str], error: str
) -> None:
    broker = Broker()
    before = list(broker.engine.dump())
    found = broker.ask(request_name, **said)
    assert found.startswith(error) and "\n" not in found
    assert [row for row in broker.engine.dump() if row[0] == "security"] == [
        row for row in before if row[0] == "security"]


def test_it_is_stored_replicated_and_loaded_like_all_else(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a.db")
    broker.member("ann", ("produce", "/queue/a"))
    broker.ask("create-object", name="factory", type="x")
    rows = list(broker.engine.dump())
    kinds = [row[2] for row in rows if row[0] == "security"]
    assert kinds == ["principal", "grant", "object"]
    for row in rows:
        check_row(row)
    other = Broker()
    other.database.execute("BEGIN")
    other.engine.load(rows)
    other.database.execute("COMMIT")
    broker.database.close()
    for again in (other, Broker(tmp_path / "a.db")):
        assert again.guard.identify("ann", "pass") and not again.guard.identify("ann", "wrong")
        again.log_in("ann", conn="new")
        assert isinstance(again.send("new", "/queue/a"), Done)
        assert isinstance(again.send("new", "/queue/b"), Refused)
        assert again.answer("look-up", name="factory")["x-answer"] == '{"type": "x"}'


def test_no_passcode_is_in_a_command_or_the_store(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "a.db")
    sealed = broker.guard.sealed(Command("security", "root", 0, {
        "request": "create-principal", "said": {"login": "ann", "passcode": "s3cret"}}))
    assert "s3cret" not in repr(sealed)
    twice = broker.guard.sealed(Command("security", "root", 0, {
        "request": "look-up", "said": {"name": "x", "passcode": "s3cret"}}))
    assert "s3cret" not in repr(twice)
    broker.ask("create-principal", login="ann", passcode="s3cret")
    broker.ask("create-principal", login="bob", passcode="s3cret")
    first, second = (broker.engine.security.principal(name) for name in ("ann", "bob"))
    assert first is not None and second is not None
    assert first.salt != second.salt and first.verifier != second.verifier
    assert first.verifier == hashed("s3cret", first.salt, first.cost)
    broker.database.close()
    assert b"s3cret" not in (tmp_path / "a.db").read_bytes()


def test_a_store_of_an_older_version_has_no_principals_yet(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    StoreEngine(old)
    old.execute("DROP TABLE security")
    old.close()
    broker = Broker(tmp_path / "a.db")
    broker.member("ann")
    assert broker.engine.security.principal("ann")


def test_without_the_option_nobody_needs_a_right() -> None:
    engine = StoreEngine(sqlite3.connect(":memory:", isolation_level=None))
    engine.apply(Command("open", "c", 0, {"login": "anybody", "reliable": False}))
    (done,) = engine.apply(Command("send", "c", 0, {"destination": "/queue/a", "headers": {}, "body": b"",
                                                   "receipt": "r"}))
    assert isinstance(done, Done)
    assert not [row for row in engine.dump() if row[0] == "security"]


def test_a_reliable_connection_can_not_administer() -> None:
    broker = Broker()
    broker.apply("open", "r", login=ADMIN, reliable=True)
    effects = broker.engine.apply(Command("security", "r", 1, {"request": "list", "said": {}, "receipt": "x"}))
    assert isinstance(effects[0], Refused)


def test_guesses_are_hashed_so_many_times_a_second_and_who_is_known_needs_no_hash() -> None:
    broker = Broker()
    broker.member("ann")
    broker.now = 10.0
    for _ in range(MAX_CHECKS_A_SECOND):
        assert broker.guard.identify("ann", "guess") == 0
    with pytest.raises(TooManyPasscodes):
        broker.guard.identify("nobody", "guess")
    assert broker.guard.identify("ann", "pass") > 0
    broker.now = 11.0
    assert broker.guard.identify("ann", "guess") == 0


@pytest.mark.parametrize("options", [{"passcode_cost": 3}, {"passcode_cost": 1 << 15}, {"passcode_cost": "2"},
                                     {"security": "yes"}])  # fmt: skip
def test_bad_options_are_told(options: dict[str, Any]) -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)
    security = StoreEngine(database).security
    with pytest.raises(ConfigError, match=next(iter(options))):
        Guard(security, options, random.Random(1), lambda: 0.0)


def test_there_is_a_bound() -> None:
    broker = Broker()
    security = broker.engine.security
    for number in range(MAX_ROWS):
        security.request(ADMIN, "create-object", {"name": f"o{number}"})
    assert broker.ask("create-object", name="more").startswith(f"there are {MAX_ROWS}")
    pages, after = 0, ""
    names = 0
    while after is not None:
        answer = broker.answer("list", after=after)
        names += answer["x-answer"].count('"object"')
        after = answer.get("x-more")  # type: ignore[assignment]
        pages += 1
    assert names == MAX_ROWS and pages > 1


TEXTS = st.one_of(st.sampled_from(("ann", "produce", "/queue/a", "/security", ADMIN, "x" * 300, "")), st.text())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(
    st.sampled_from(("create-principal", "change-passcode", "delete-principal", "grant", "revoke", "create-object",
                     "delete-object", "look-up", "list", "none")),
    st.dictionaries(st.sampled_from(("login", "right", "destination", "name", "after", "kind", "salt", "cost")),
                    st.one_of(TEXTS, st.integers(-5, 5), st.binary(max_size=3)))), max_size=12))  # fmt: skip
def test_whatever_a_peer_says_leaves_a_state_that_can_be_stored_and_loaded(
    requests: list[tuple[str, dict[str, Any]]]
) -> None:
    broker = Broker()
    broker.member("ann", ("produce", "/queue/a"))
    for request, said in requests:
        broker.apply("security", "root", request=request, said=said)
    rows = [row for row in broker.engine.dump() if row[0] == "security"]
    for row in rows:
        check_row(row)
    database = sqlite3.connect(":memory:", isolation_level=None)
    copy = StoreEngine(database, config=broker_config())
    copy.load(broker.engine.dump())
    assert [row for row in copy.dump() if row[0] == "security"] == rows
    assert isinstance(copy.security, Security)


def broker_config() -> Config:
    return Config("n2", "standalone", "", login=ADMIN, options={"security": True})


@pytest.mark.parametrize("row", [
    ["security", 5, "principal", "ann", b"\x00"], ["security", 5, "grant", "ann produce", b"\x00"],
    ["security", 5, "grant", "ann fly /queue/a", b"\x00"], ["security", 5, "other", "x", b"\x00"],
    ["security", 5, "object", "x", b"\x00"], ["security", 5, "object", "x", b"\xff"],
])  # fmt: skip
def test_rows_that_are_none_are_refused(row: list[Any]) -> None:
    with pytest.raises(ShapeError):
        check_row(row)


