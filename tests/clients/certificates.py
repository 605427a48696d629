"""A certificate authority, and a certificate that it signed, for servers that are called ``broker``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from stormproof.contracts.protocol_client import Tls


def certificates(folder: Path) -> Tls:
    """The files ``ca.pem``, ``cert.pem`` and ``key.pem``; the certificate serves both sides."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    authority, broker = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("authority", "broker"))
    now = datetime.now(UTC)
    for subject, key, file in ((authority, keys[0], "ca.pem"), (broker, keys[1], "cert.pem")):
        own = x509.BasicConstraints(ca=subject is authority, path_length=None)
        signed = (
            x509.CertificateBuilder().subject_name(subject).issuer_name(authority).public_key(key.public_key())
            .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1)).add_extension(own, critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("broker")]), critical=False)
            .sign(keys[0], hashes.SHA256())
        )  # fmt: skip
        (folder / file).write_bytes(signed.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return Tls(str(folder / "ca.pem"), str(folder / "cert.pem"), str(folder / "key.pem"), "broker")
