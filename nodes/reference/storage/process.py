"""The storage service as a program."""

from __future__ import annotations

from nodes.reference.server.process import NodeProcess, serve_process
from nodes.reference.server.runtime import LoopRuntime, RealRuntime
from nodes.reference.storage.config import POSTGRES, StorageConfig
from nodes.reference.storage.postgres_store import PostgresStore
from nodes.reference.storage.postmaster import password_file
from nodes.reference.storage.service import StorageService
from nodes.reference.trust import NO_SECRET


class StorageProcess(NodeProcess):
    """A storage service from its start to its exit status."""

    def __init__(self, config: StorageConfig, runtime: LoopRuntime) -> None:
        if not config.secret:
            runtime.log(NO_SECRET, level="warning")
        store = None
        if config.store == POSTGRES:
            path = password_file(config)
            store = PostgresStore(runtime, config.database_port, lambda: path.read_text(encoding="ascii"))
        super().__init__(StorageService(config, runtime, store).run(), runtime, "storage service")


def serve_storage(config: StorageConfig) -> int:
    """Run the service in this process until SIGTERM or SIGINT; return the exit status, as ``process.serve`` does."""
    return serve_process(lambda: StorageProcess(config, RealRuntime(config)))
