"""Keys that the harness creates."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from stormproof.errors import StormproofError


def make_key(path: Path) -> str:
    """Create an Ed25519 key in OpenSSH's format, readable for this user only; returns the public key's line.

    The public key is written next to it (``.pub``).

    Raises:
        StormproofError: the file exists already, or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() + " stormproof\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(private)
        path.with_name(f"{path.name}.pub").write_text(public)
    except OSError as error:
        raise StormproofError(f"can't make the key {path}: {error.strerror}") from None
    return public
