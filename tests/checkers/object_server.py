"""An S3 server on loopback for tests: moto's, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType

KEY, SECRET = "stormproof-test-key", "stormproof-test-secret"


@contextlib.contextmanager
def object_server(host: str = "127.0.0.1", variables: Mapping[str, str] = MappingProxyType({})
                  ) -> Iterator[Mapping[str, str]]:  # fmt: skip
    """A server, with ``variables`` in its environment, that has the bucket ``bucket``; the environment in which
    programs find it."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    found = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1",
             "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env={**os.environ, **found, **variables})  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection((host, port), 1).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, "moto's server does not start"
                time.sleep(0.05)
        make_bucket(found)
        yield found
    finally:
        server.kill()
        server.wait()


def make_bucket(variables: Mapping[str, str]) -> None:
    from pyarrow.fs import S3FileSystem

    S3FileSystem(access_key=KEY, secret_key=SECRET, region="us-east-1", allow_bucket_creation=True,
                 endpoint_override=variables["AWS_ENDPOINT_URL"].removeprefix("http://"),
                 scheme="http").create_dir("bucket")  # fmt: skip
