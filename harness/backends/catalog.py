"""All backends by name. A new backend needs one module in this package and one line here."""

from __future__ import annotations

from typing import TypeGuard

from stormproof.contracts.backend import Backend
from stormproof.registry import Entry, Registry


def _is_backend(found: object) -> TypeGuard[type[Backend]]:
    return isinstance(found, type) and issubclass(found, Backend)


BACKENDS: Registry[type[Backend]] = Registry(
    "backend",
    _is_backend,
    Entry("docker", "containers through Docker Engine", "harness.backends.docker:DockerBackend"),
    Entry("local", "Linux namespaces on this machine; no daemon, root or ordinary user",
          "harness.backends.local:LocalBackend"),
    Entry("sim", "simulated nodes, network, disks and time in one process; repeats exactly from the seed",
          "harness.sim.backend:SimBackend"),
    Entry("ssh", "hosts over SSH that permit faults: virtual machines, computers of a lab",
          "harness.backends.ssh.backend:SshBackend"),
    Entry("compose", "the services of a Compose file, as containers of this machine; needs root",
          "harness.backends.compose.backend:ComposeBackend"),
    Entry("attach", "a running system, reached by clients only",
          "harness.backends.attach:AttachBackend"),
    Entry("attach-ssh", "a running system, whose hosts are reached over SSH for faults",
          "harness.backends.ssh.attach:AttachSshBackend"),
)  # fmt: skip
"""The strongest first: where no backend is named, the first usable one of those allowed by default is chosen."""
