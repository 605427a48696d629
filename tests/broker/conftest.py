from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_process import BrokerProcess
from postgres_server import PostgresServer, demand_postgres


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Start a broker with options; it is killed at the end of the test."""
    brokers: list[BrokerProcess] = []

    def start(**options: object) -> BrokerProcess:
        folder = tmp_path / f"broker{len(brokers)}"
        folder.mkdir()
        broker = BrokerProcess(folder, **options)
        brokers.append(broker)
        return broker.start()

    yield start
    for broker in brokers:
        if broker.alive():
            broker.kill()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests of this process, which empty it first."""
    demand_postgres()
    server = PostgresServer(tmp_path_factory.mktemp("postgres")).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for a module's tests, which use queues of their own."""
    broker = BrokerProcess(tmp_path_factory.mktemp("broker")).start()
    yield broker
    assert broker.stop() == 0, broker.log.read_text()
    assert "ERROR" not in broker.log.read_text()
    assert "secret-word" not in broker.log.read_text()
