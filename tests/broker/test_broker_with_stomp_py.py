"""Every STOMP command, proved with the client of PyPI's stomp.py against a broker process."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import stomp
from broker_process import PATIENCE, BrokerProcess


class Events(stomp.ConnectionListener):
    """What the client's thread is told, in order."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.receipts: queue.Queue[str] = queue.Queue()
        self.errors: queue.Queue[Any] = queue.Queue()
        self.ended: queue.Queue[bool] = queue.Queue()
        self.beats: queue.Queue[bool] = queue.Queue()
        self.connected: Any = None

    def on_connected(self, frame: Any) -> None:
        self.connected = frame

    def on_message(self, frame: Any) -> None:
        self.messages.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        self.errors.put(frame)

    def on_heartbeat(self) -> None:
        self.beats.put(True)

    def on_disconnected(self) -> None:
        self.ended.put(True)


class Client:
    def __init__(self, port: int, passcode: str = "secret-word", **options: Any) -> None:
        self.events = Events()
        self.connection = stomp.Connection12([("127.0.0.1", port)], reconnect_attempts_max=1, **options)
        self.connection.set_listener("", self.events)
        self.connection.connect("guest", passcode, wait=True)

    def confirm(self, receipt: str) -> None:
        """Wait for a receipt; earlier ones may come first."""
        while self.events.receipts.get(timeout=PATIENCE) != receipt:
            pass

    def send(self, destination: str, body: str, **headers: str) -> None:
        self.connection.send(destination, body, headers={"receipt": f"sent {body}", **headers})
        self.confirm(f"sent {body}")

    def subscribe(self, destination: str, ack: str, **headers: str) -> None:
        self.connection.subscribe(destination, id="s", ack=ack, headers={"receipt": "subscribed", **headers})

    def message(self) -> Any:
        return self.events.messages.get(timeout=PATIENCE)

    def bodies(self, count: int) -> list[str]:
        return [self.message().body for _ in range(count)]

    def close(self) -> None:
        self.connection.disconnect(receipt="bye")
        self.confirm("bye")
        assert self.events.ended.get(timeout=PATIENCE)


@pytest.fixture
def destination() -> str:
    return f"/queue/{uuid.uuid4().hex}"


@pytest.fixture
def client(shared_broker: BrokerProcess) -> Iterator[Client]:
    made = Client(shared_broker.port)
    yield made
    if made.connection.is_connected():
        made.close()


@pytest.fixture
def other(shared_broker: BrokerProcess) -> Iterator[Client]:
    made = Client(shared_broker.port)
    yield made
    if made.connection.is_connected():
        made.close()


def test_connect_logs_in_and_disconnect_gets_its_receipt(client: Client) -> None:
    assert client.events.connected.headers["version"] == "1.2"
    client.close()


def test_a_wrong_password_is_an_error(shared_broker: BrokerProcess) -> None:
    with pytest.raises(stomp.exception.ConnectFailedException):
        Client(shared_broker.port, passcode="guessed")


def test_heart_beats_go_both_ways(shared_broker: BrokerProcess) -> None:
    client = Client(shared_broker.port, heartbeats=(400, 400), heart_beat_receive_scale=10)
    assert client.events.connected.headers["heart-beat"] == "100,100"
    for _ in range(5):  # the broker drops a connection after three intervals without
        client.events.beats.get(timeout=PATIENCE)
    assert client.events.ended.empty()
    client.close()


def test_send_with_receipt_and_auto_subscription(client: Client, other: Client, destination: str) -> None:
    client.send(destination, "one", priority="9", odd=r"a:b\n")
    other.subscribe(destination, "auto")
    message = other.message()
    assert message.body == "one"
    assert (message.headers["priority"], message.headers["odd"]) == ("9", r"a:b\n")
    assert "ack" not in message.headers
    other.close()
    client.send(destination, "two")
    client.subscribe(destination, "auto")
    assert client.bodies(1) == ["two"]


def test_client_acknowledgement_covers_all_before(client: Client, other: Client, destination: str) -> None:
    for body in "abc":
        client.send(destination, body)
    other.subscribe(destination, "client")
    messages = [other.message() for _ in range(3)]
    other.connection.ack(messages[1].headers["ack"], receipt="acked")
    other.confirm("acked")
    other.close()
    client.subscribe(destination, "client-individual")
    again = client.message()
    assert (again.body, again.headers["redelivered"], again.headers["x-redeliveries"]) == ("c", "true", "1")


def test_individual_acknowledgement_covers_one(client: Client, other: Client, destination: str) -> None:
    for body in "abc":
        client.send(destination, body)
    other.subscribe(destination, "client-individual")
    messages = [other.message() for _ in range(3)]
    other.connection.ack(messages[1].headers["ack"], receipt="acked")
    other.confirm("acked")
    other.close()
    client.subscribe(destination, "client-individual")
    assert client.bodies(2) == ["a", "c"]


def test_nack_gives_the_message_back(client: Client, destination: str) -> None:
    client.send(destination, "a")
    client.subscribe(destination, "client-individual")
    client.connection.nack(client.message().headers["ack"])
    again = client.message()
    assert (again.body, again.headers["redelivered"]) == ("a", "true")


def test_a_window_limits_what_is_delivered(client: Client, destination: str) -> None:
    for body in "abc":
        client.send(destination, body)
    client.subscribe(destination, "client-individual", **{"x-prefetch": "2"})
    first, second = client.message(), client.message()
    client.confirm("subscribed")
    client.send("/queue/somewhere-else", "fence")
    assert client.events.messages.empty()
    client.connection.ack(second.headers["ack"])
    assert (first.body, client.message().body) == ("a", "c")


def test_commit_makes_sends_and_acks_take_effect_and_abort_undoes_them(
        client: Client, other: Client, destination: str) -> None:
    client.send(destination, "in")
    client.subscribe(destination, "client-individual")
    message = client.message()
    client.confirm("subscribed")

    aborted = client.connection.begin()
    client.connection.ack(message.headers["ack"], transaction=aborted)
    client.send(destination, "never", transaction=aborted)
    client.connection.abort(aborted, headers={"receipt": "aborted"})
    client.confirm("aborted")

    committed = client.connection.begin()
    client.connection.ack(message.headers["ack"], transaction=committed)
    client.send(destination, "out", transaction=committed)
    assert client.events.messages.empty()
    client.connection.commit(committed, headers={"receipt": "committed"})
    client.confirm("committed")
    assert client.bodies(1) == ["out"]
    client.close()
    other.subscribe(destination, "client-individual")
    assert other.bodies(1) == ["out"]


def test_unsubscribe_ends_delivery_and_returns_what_was_not_acknowledged(
        client: Client, other: Client, destination: str) -> None:
    client.subscribe(destination, "client-individual")
    client.confirm("subscribed")
    client.send(destination, "a")
    assert client.bodies(1) == ["a"]
    client.connection.unsubscribe("s", headers={"receipt": "unsubscribed"})
    client.confirm("unsubscribed")
    client.send(destination, "b")
    assert client.events.messages.empty()
    other.subscribe(destination, "client-individual")
    assert other.bodies(2) == ["a", "b"]


def test_error_has_a_reason_and_ends_the_connection(client: Client) -> None:
    client.connection.ack("unheard-of", receipt="never")
    error = client.events.errors.get(timeout=PATIENCE)
    assert "unheard-of" in error.headers["message"]
    assert error.headers["receipt-id"] == "never"
    assert client.events.ended.get(timeout=PATIENCE)
