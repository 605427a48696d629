"""``python -m nodes.reference.storage.postmaster CONFIG.json`` runs PostgreSQL for a storage service on this machine.

CONFIG.json is that of the service, with ``"store": "postgres"``. The database is created if it does not exist.
PostgreSQL refuses to run as root: started by root, it runs as ``postgres`` (or ``nobody``). In a user namespace without
such a user, it runs as a user of a nested namespace. It listens at a loopback address, and requires a password
(SCRAM-SHA-256) that is in a file next to its data. This process becomes the server, so whatever watches or kills this
process affects the server itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

from nodes.reference.api import ConfigError
from nodes.reference.server.process import EXIT_CONFIG
from nodes.reference.storage.config import POSTGRES, StorageConfig, read_storage_config
from nodes.reference.storage.postgres_store import USER

_OWN_ACCOUNTS = ("postgres", "nobody")
"""Users that the server may run as when root starts it."""
_PLACES = ("/usr/lib/postgresql",)
"""The folder where Debian has a subfolder for each version."""
_CHILDREN_SECONDS = 20.0
"""Seconds that processes of a killed server may take to end."""
_SETTINGS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "shared_buffers": "32MB", "jit": "off",
             "max_connections": "50", "logging_collector": "off", "log_line_prefix": ""}  # fmt: skip


CAPABILITIES = ("CHOWN", "KILL", "SETGID", "SETUID")
"""Root's capabilities that a container needs, to start the server as another user, and to end it."""


def programs() -> Path:
    """Return the folder of PostgreSQL's server programs, the newest if there are several.

    Raises:
        ConfigError: they are not installed.
    """
    found = [path.parent for place in _PLACES for path in Path(place).glob("*/bin/postgres")
             if path.with_name("initdb").exists()]
    if found:
        return max(found, key=lambda path: [int(part) for part in path.parent.name.split(".") if part.isdigit()])
    on_path = shutil.which("postgres")
    if on_path is None or shutil.which("initdb") is None:
        raise ConfigError("store: PostgreSQL's server programs are not installed; install Debian's package "
                          "`postgresql`, or say \"store\": \"sqlite\"")
    return Path(on_path).resolve().parent


def password_file(config: StorageConfig) -> Path:
    """Return the path of the file with the password of the service's role."""
    return Path(config.data) / "postgres.password"


class Postmaster:
    """PostgreSQL for one storage service."""

    def __init__(self, config: StorageConfig) -> None:
        """Raise ConfigError when the configuration does not use PostgreSQL, or it is not installed."""
        if config.store != POSTGRES:
            raise ConfigError(f'store: is {config.store!r}; a database server is for "postgres" only')
        self._config, self._bin = config, programs()
        self._folder = Path(config.data) / "postgres"
        self._cluster = self._folder / "cluster"
        self._prefix: list[str] = []

    def run(self) -> None:
        """Become the server; does not return.

        Raises:
            ConfigError: the database can't be created, or another server uses it.
            OSError: the folder can't be used.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not password_file(self._config).exists():
            self._write_password()
        self._become_somebody()
        self._lock()
        if not self._cluster.exists():
            self._make()
        # Only this process has the lock, so the process that left this file is dead, even if its number is in use
        # again.
        with contextlib.suppress(FileNotFoundError):
            (self._cluster / "postmaster.pid").unlink()
        settings = {**_SETTINGS, "port": str(self._config.database_port)}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [*self._prefix, str(self._bin / "postgres"), "-D", str(self._cluster), *words]
        os.execvpe(command[0], command, {**os.environ, "LC_ALL": "C"})

    def _become_somebody(self) -> None:
        """Give up root's rights.

        If no such user exists, as in an ordinary user's namespace, or if it can't access the folder, the server's user
        is one of a nested namespace: it is not called root, and has no rights except to these files.
        """
        if os.geteuid() != 0:
            return
        owner = next((found for name in _OWN_ACCOUNTS if (found := _user(name)) is not None), None)
        try:
            if owner is None or not _reachable(self._folder.resolve().parent, owner):
                raise OSError("there is no such user here")
            if self._folder.stat().st_uid != owner.pw_uid:
                # The password remains the service's own; only the server's group may read it in addition.
                os.chown(password_file(self._config), -1, owner.pw_gid)
                password_file(self._config).chmod(0o640)
                _give(self._folder, owner)
            os.setgroups([])
            os.setgid(owner.pw_gid)
            os.setuid(owner.pw_uid)
        except OSError:
            self._prefix = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--"]

    def _write_password(self) -> None:
        """Create a password for the service's role."""
        path = password_file(self._config)
        fresh = path.with_suffix(".new")
        with open(fresh, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(secrets.token_hex(24))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    def _lock(self) -> None:
        """Allow one server and its processes only; wait for the processes of a killed one, which are about to end.

        The server and its child processes inherit the lock, since the file stays open.
        """
        file = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        os.set_inheritable(file, True)
        deadline = time.monotonic() + _CHILDREN_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(f"data: another database server uses {self._folder}") from None
                time.sleep(0.02)

    def _make(self) -> None:
        """Create a new database; it gets its final name when it is complete."""
        password, fresh = password_file(self._config), self._folder / "cluster.new"
        shutil.rmtree(fresh, ignore_errors=True)
        command = [*self._prefix, str(self._bin / "initdb"), "-D", str(fresh), "-U", USER, "-A", "scram-sha-256",
                   f"--pwfile={password}", "-E", "UTF8", "--locale=C", "--no-instructions", "--wal-segsize=1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              env={**os.environ, "LC_ALL": "C"})
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
            raise ConfigError(f"data: no database can be made in {self._folder}: {said}")
        fresh.rename(self._cluster)


def _user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _reachable(folder: Path, owner: pwd.struct_passwd) -> bool:
    """Return whether a user may pass through a folder and its parents."""
    for each in (folder, *folder.parents):
        found = each.stat()
        if not found.st_mode & 0o001 and not (found.st_uid == owner.pw_uid and found.st_mode & 0o100):
            return False
    return True


def _give(folder: Path, owner: pwd.struct_passwd) -> None:
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    for path in folder.rglob("*"):
        os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def main(arguments: list[str]) -> int:
    """Run PostgreSQL for the service that the JSON file describes; returns only on failure."""
    try:
        if len(arguments) != 1:
            raise ConfigError("usage: python -m nodes.reference.storage.postmaster CONFIG.json")
        Postmaster(read_storage_config(arguments[0])).run()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: data: {error}", file=sys.stderr)
    return EXIT_CONFIG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
