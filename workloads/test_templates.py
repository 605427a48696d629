"""Test templates: folders of commands whose names say when each may run.

The names are Antithesis's (https://antithesis.com/docs/test_templates/test_composer_reference/): TEMPLATE/PREFIX_NAME.
Files whose names begin with ``helper_`` are not commands. docs/compose-commands.md says what each prefix means here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stormproof.contracts.commands import ListedFile
from stormproof.errors import UsageError

FIRST, PARALLEL, SERIAL, SINGLETON, ANYTIME, EVENTUALLY, FINALLY = KINDS = (
    "first", "parallel_driver", "serial_driver", "singleton_driver", "anytime", "eventually", "finally")
"""The kinds of commands: prefixes without the underscore, and functions in histories."""
DRIVERS = (PARALLEL, SERIAL, SINGLETON)
ENDINGS = (EVENTUALLY, FINALLY)
_LOAD = (*DRIVERS, ANYTIME)
_HELPER = "helper_"


@dataclass(frozen=True, order=True)
class Command:
    """A command: its template, the name of its file, its machine, its kind, and the file's path there."""

    template: str
    name: str
    machine: str
    kind: str
    path: str

    @property
    def label(self) -> str:
        """The command's name for people."""
        return f"{self.template}/{self.name} in {self.machine}"


def templates_in(found: Iterable[tuple[str, str, Sequence[ListedFile]]]) -> dict[str, tuple[Command, ...]]:
    """Return the commands of each template, in order, from machines, their folders, and the files there. Templates of
    one name in several machines are one.

    Raises:
        UsageError: a command can't be executed, or an executable file is none of the known kinds.
    """
    templates: dict[str, list[Command]] = {}
    for machine, folder, files in found:
        for file in files:
            template, _, name = file.path.partition("/")
            if template.startswith((_HELPER, ".")) or name.startswith((_HELPER, ".")):
                continue
            where = f"{machine}: {folder}/{file.path}"
            kind = next((kind for kind in KINDS if name.startswith(f"{kind}_")), None)
            if kind is None:
                if file.executable:
                    prefixes = ", ".join(f"{kind}_" for kind in (*KINDS, "helper"))
                    raise UsageError(f"{where}: an executable file must begin with one of {prefixes}")
                continue
            if not file.executable:
                raise UsageError(f"{where}: it can't be executed; run chmod +x when the image is built")
            command = Command(template, name, machine, kind, f"{folder.rstrip('/')}/{file.path}")
            templates.setdefault(template, []).append(command)
    return {name: tuple(sorted(commands)) for name, commands in sorted(templates.items())}


def demand_runnable(template: str, commands: Sequence[Command]) -> None:
    """Raise UsageError if a template has nothing that runs under faults."""
    if not any(command.kind in _LOAD for command in commands):
        prefixes = ", ".join(f"{kind}_" for kind in _LOAD)
        raise UsageError(f"test template {template} has no command to run under faults; it needs one of {prefixes}")


def chosen_template(templates: Mapping[str, tuple[Command, ...]], named: str, draw: int, where: str = ""
                    ) -> tuple[Command, ...]:
    """Return the commands of the template with a name; of number ``draw`` modulo their number if no name is given.

    ``where`` names the folders in which they were searched for.

    Raises:
        UsageError: there is none, or not that one; or it has nothing to run.
    """
    if not templates:
        raise UsageError(f"--test-commands: there is no test template with a command in {where}; put commands into "
                         "FOLDER/TEMPLATE/, and give another folder as SERVICE:FOLDER")
    name = named or list(templates)[draw % len(templates)]
    if name not in templates:
        raise UsageError(f"--set template={named}: no such test template (there are: {', '.join(templates)})")
    demand_runnable(name, templates[name])
    return templates[name]
