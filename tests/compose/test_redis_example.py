"""The examples with Redis: Sentinel under a partition, and TLS with a password under a power cut."""

from __future__ import annotations

import datetime
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from examples import Ran, assert_invalid, command_of, copy, demand_twins, image, run, until_invalid

pytestmark = [pytest.mark.docker, pytest.mark.skipif(os.geteuid() != 0, reason="faults of a Compose project need root")]

PASSWORD = "uhu-und-kauz-4711"


def test_a_cut_off_master_loses_what_it_confirms(tmp_path: Path) -> None:
    """Two runs side by side: clients that don't wait for replicas, and clients that wait for both."""
    server = {"REDIS_IMAGE": image("redis-server", "redis-sentinel")}
    demand_twins("redis-sentinel.yml", tmp_path, server, {**server, "WAIT": "2"})


def test_tls_a_password_and_a_power_cut(tmp_path: Path) -> None:
    """Clients get in by TLS and a password, which appears nowhere in the run's folder."""
    redis = image("redis-server", "redis-sentinel")
    (tmp_path / "project").mkdir()
    file = copy("redis-tls.yml", tmp_path / "project")
    write_certificates(file.parent / "tls", "redis")
    (file.parent / "password").write_text(f"{PASSWORD}\n")
    (file.parent / ".env").write_text(f"UNUSED={PASSWORD}-in-env-file\n")
    (file.parent / "more.env").write_text(f"MORE={PASSWORD}\n")
    secrets = (f"    environment: {{SECRET: {PASSWORD}, OTHER: $UNUSED, URL: 'redis://me:{PASSWORD}@redis/'}}\n"
               "    env_file: [more.env]\n    volumes: [")  # wherever teams have them
    text = file.read_text().replace("    volumes: [", secrets)
    assert text.count("$$(cat /password)") == 1
    file.write_text(text.replace("$$(cat /password)", PASSWORD))
    key = (file.parent / "tls" / "broker.key").read_text().splitlines()[1]

    def of(sync: str) -> Ran:
        return run(file, tmp_path / sync, *command_of(file.name), "--set", "min_ok=20", REDIS_IMAGE=redis,
                   APPENDFSYNC=sync)  # fmt: skip

    with ThreadPoolExecutor() as pool:
        losing, keeping = pool.submit(until_invalid, lambda: of("everysec")), pool.submit(of, "always")
    lost, kept = losing.result(), keeping.result()
    assert_invalid(lost, "lost")
    assert kept.status == 0, kept.said
    assert kept.verdict()["verdict"] == "valid"
    for ran in (lost, kept):
        for secret in (PASSWORD, key):
            told = [path for path in ran.run.parent.rglob("*")
                    if path.is_file() and secret.encode() in path.read_bytes()]  # fmt: skip
            assert not told and secret not in ran.said
        assert (ran.run / "compose-override.yml").exists() and (ran.run / "report.html").exists()


def write_certificates(folder: Path, name: str) -> None:
    """Write an authority's certificate, and a broker's certificate and key."""
    folder.mkdir()
    now = datetime.datetime.now(datetime.UTC)

    def certificate(subject: str, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        authority = by is key
        return (
            x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named("authority"))
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(subject)]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
            .sign(by, hashes.SHA256())
        )  # fmt: skip

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    authority, broker = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(certificate("authority", authority, authority).public_bytes(pem))
    (folder / "broker.crt").write_bytes(certificate(name, broker, authority).public_bytes(pem))
    (folder / "broker.key").write_bytes(broker.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))  # fmt: skip
