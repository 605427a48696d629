"""TLS of the clients for AMQP, both versions, and STOMP: certificates of both sides are checked."""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from amqp_script import AmqpScript
from certificates import certificates
from cut_server import FAIL, OK, Cut, outcome, serving
from test_stomp_outcomes import StompScript

from stormproof.clients import PROTOCOLS
from stormproof.contracts.protocol_client import Access, BrokerSetup, Tls


def amqp1_script(**settings: Any) -> Any:
    from amqp1_script import Amqp1Script

    return Amqp1Script(**settings)


AMQP1 = pytest.param("amqp1", amqp1_script, marks=pytest.mark.skipif(
    importlib.util.find_spec("proton") is None, reason="pip install 'stormproof[amqp1]'"))  # fmt: skip
CLIENTS = [("amqp", AmqpScript), ("stomp", StompScript), AMQP1]


def demanding(tls: Tls) -> ssl.SSLContext:
    """The server's side: it demands a certificate of the client."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tls.cert, tls.key)
    return context


@pytest.mark.parametrize(("name", "script"), CLIENTS)
async def test_certificates(name: str, script: Callable[[], Any], tmp_path: Path) -> None:
    tls = certificates(tmp_path)
    (tmp_path / "other").mkdir()
    strange = certificates(tmp_path / "other")
    for used, ends in ((tls, OK), (replace(tls, name="another"), FAIL), (replace(tls, ca=strange.ca), FAIL),
                       (replace(tls, cert=strange.cert, key=strange.key), FAIL), (None, FAIL)):  # fmt: skip
        async with serving(script(), Cut(), demanding(tls)) as cutter:
            connection = PROTOCOLS.load(name).connection(BrokerSetup([], Access(tls=used)))
            assert await outcome(connection, cutter.port, lambda client: client.send("q0", b"1/2")) == ends
