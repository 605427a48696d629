"""Power cuts and their end, carried out by the machine's provider, not by the machine."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.backends.ssh.hosts import SshHost
from stormproof.errors import BackendError, UsageError
from stormproof.timeout_scale import TIMEOUT_FACTOR

POWER_LIMIT = 300.0
"""Seconds that a provider's command may take: emulated machines boot slowly."""

ANSWER_LIMIT = 3.0 * TIMEOUT_FACTOR
"""Seconds within which a machine that has power answers."""

# The commands that cut and restore power: `{machine}` is the machine's name at the provider.
_PROVIDERS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "vagrant": (("vagrant", "halt", "--force", "{machine}"), ("vagrant", "up", "--no-provision", "{machine}")),
    "virsh": (("virsh", "destroy", "{machine}"), ("virsh", "start", "{machine}")),
    "docker": (("docker", "kill", "{machine}"), ("docker", "start", "{machine}")),
    "command": (("{argument}", "off", "{machine}"), ("{argument}", "on", "{machine}")),
}
HELP = "what cuts a machine's power: vagrant[=FOLDER], virsh[=NAME], docker[=NAME] or command=PROGRAM"


@dataclass(frozen=True)
class PowerSwitch:
    """A provider of power, and its argument.

    The argument is the folder of the Vagrantfile; or the machine's name at the provider, in which ``{host}`` stands for
    the host's name; or the program, which is called with ``off`` or ``on`` and the host's name.
    """

    provider: str
    argument: str = ""

    def switch(self, host: str, on: bool) -> None:
        """Cut or restore power. Blocks. Raises BackendError when the provider fails or takes too long."""
        named = self.provider in ("virsh", "docker") and self.argument
        machine = self.argument.replace("{host}", host) if named else host
        domain = _libvirt_domain(self.argument, host) if self.provider == "vagrant" else None
        template = _PROVIDERS["virsh" if domain else self.provider][on]
        machine = domain or machine
        command = [word.replace("{machine}", machine).replace("{argument}", self.argument) for word in template]
        environment = {**os.environ, **({"VAGRANT_CWD": self.argument} if self.provider == "vagrant" and self.argument
                                        else {})}
        what = f"`{' '.join(command)}`"
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                                  env=environment, timeout=POWER_LIMIT, check=False)
        except subprocess.TimeoutExpired:
            raise BackendError(f"{what} took more than {POWER_LIMIT:g} s") from None
        except OSError as error:
            raise BackendError(f"{what} can't be run: {error.strerror}") from None
        if done.returncode:
            why = " ".join((done.stderr or done.stdout).split())[-300:]
            raise BackendError(f"{what} failed: {why or f'status {done.returncode}'}")


def takes_connections(host: SshHost) -> bool:
    """Return whether the host's port accepts connections within ``ANSWER_LIMIT``. Blocks."""
    try:
        socket.create_connection((host.address, host.port), timeout=ANSWER_LIMIT).close()
    except (OSError, UnicodeError):
        return False
    return True


def _libvirt_domain(folder: str, host: str) -> str | None:
    """Return the domain that vagrant-libvirt created, None for another provider's machine.

    `vagrant halt --force` of vagrant-libvirt first asks the machine to shut down in order, which is not a power loss.
    The domain is therefore switched directly.
    """
    note = Path(folder, ".vagrant", "machines", host, "libvirt", "id")
    return note.read_text(encoding="utf-8").strip() if note.exists() else None


def parse_power(text: str) -> PowerSwitch | None:
    """Return the provider that the option ``power`` names; None for an empty option.

    Raises:
        UsageError: the provider is unknown, or its argument is missing.
    """
    if not text:
        return None
    provider, _, argument = text.partition("=")
    if provider not in _PROVIDERS or (provider == "command" and not argument):
        raise UsageError(f"power={text}: {HELP}")
    return PowerSwitch(provider, argument)
