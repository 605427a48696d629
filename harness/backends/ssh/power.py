"""How a machine's power is cut and given back: by whoever runs the machine, not by the machine."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.backends.ssh.hosts import Host
from stormproof.errors import BackendError, UsageError
from stormproof.timeout_scale import SLOW

POWER_LIMIT = 300.0
"""Seconds that a provider's command may take: emulated machines boot slowly."""

ANSWER_LIMIT = 3.0 * SLOW
"""Seconds within which a machine that has power answers."""

# What takes the power, and what gives it: `{machine}` is the machine's name there.
_PROVIDERS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "vagrant": (("vagrant", "halt", "--force", "{machine}"), ("vagrant", "up", "--no-provision", "{machine}")),
    "virsh": (("virsh", "destroy", "{machine}"), ("virsh", "start", "{machine}")),
    "docker": (("docker", "kill", "{machine}"), ("docker", "start", "{machine}")),
    "command": (("{argument}", "off", "{machine}"), ("{argument}", "on", "{machine}")),
}
HELP = "what cuts a machine's power: vagrant[=FOLDER], virsh[=NAME], docker[=NAME] or command=PROGRAM"


@dataclass(frozen=True)
class Power:
    """A provider of power, and its argument: the folder of the Vagrantfile; the machine's name there, in which
    ``{host}`` stands for the host's; or the program, which is called with ``off`` or ``on`` and the host's name."""

    provider: str
    argument: str = ""

    def switch(self, host: str, on: bool) -> None:
        """Cut or give power. Blocks. Raises BackendError when the provider fails or takes too long."""
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


def takes_connections(host: Host) -> bool:
    """Whether something answers at the host's port within ``ANSWER_LIMIT``. Blocks."""
    try:
        socket.create_connection((host.address, host.port), timeout=ANSWER_LIMIT).close()
    except (OSError, UnicodeError):
        return False
    return True


def _libvirt_domain(folder: str, host: str) -> str | None:
    """The domain that vagrant-libvirt made, None for another provider's machine.

    Its `vagrant halt --force` asks the machine to shut down in order first, which is no loss of power.
    """
    note = Path(folder, ".vagrant", "machines", host, "libvirt", "id")
    return note.read_text(encoding="utf-8").strip() if note.exists() else None


def parse_power(text: str) -> Power | None:
    """The provider that the option ``power`` names; None for none.

    Raises:
        UsageError: there is no such provider, or its argument is missing.
    """
    if not text:
        return None
    provider, _, argument = text.partition("=")
    if provider not in _PROVIDERS or (provider == "command" and not argument):
        raise UsageError(f"power={text}: {HELP}")
    return Power(provider, argument)
