"""Commands of the user's in machines of the user's: listing a folder, running a file, reading the SDK's output.

The names and rules are those of Antithesis test templates
(https://antithesis.com/docs/test_templates/test_composer_reference/, page *Test commands*).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

TEST_COMMANDS = "test_commands"
"""The option of the backend with the services whose containers have test commands: ``SERVICE`` or ``SERVICE:FOLDER``,
joined by commas."""
TEMPLATE_FOLDER = "/opt/antithesis/test/v1"
"""The folder of test templates, unless a service names another."""


@dataclass(frozen=True)
class ListedFile:
    """A file below a listed folder: its path relative to that folder, and whether it may be executed. A symbolic link
    counts as executable: its target is known to the machine alone."""

    path: str
    executable: bool


@dataclass(frozen=True)
class CommandEnd:
    """The end of a command: its exit status (128 + N after signal N), and the end of its output, errors included.

    ``machine_ended``: its machine's own program ended, or began again, while the command ran.
    """

    status: int
    output: str
    machine_ended: bool = False


class NotStarted(Exception):
    """A command was certainly not started; the text says why."""


@runtime_checkable
class RunsCommands(Protocol):
    """Machines in which files are listed and executed, whether or not the machines have a shell."""

    def command_folders(self) -> Sequence[tuple[str, str]]:
        """Return the machines that have test commands, each with the folder of its test templates."""
        ...

    async def list_files(self, machine: str, folder: str) -> Sequence[ListedFile]:
        """Return the files in a folder's subfolders, one level deep; nothing if the folder does not exist."""
        ...

    async def execute(self, machine: str, path: str, environment: Mapping[str, str]) -> CommandEnd:
        """Execute a file of a machine, without a shell, until it ends. If the caller is cancelled, end its processes.

        Raises:
            NotStarted: it certainly did not start. BackendError: its end is unknown.
        """
        ...

    def sdk_output(self) -> Sequence[tuple[str, str]]:
        """Return what the SDK has written in the machines since the last call: pairs of a service and a JSON line."""
        ...
