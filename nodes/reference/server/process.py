"""A broker, or another program of a node, as an operating-system process or as a task in a caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from nodes.reference.api import Config, ConfigError, Runtime
from nodes.reference.server.broker import ReferenceBroker
from nodes.reference.server.runtime import LoopRuntime, RealRuntime
from nodes.reference.server.services import SERVICES, ServiceFactory

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 3
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_SEPARATE_PIECE_BYTES = 8 << 20
"""Size from which on the C library maps a piece of memory separately: more than a body with its surroundings."""
_HEAP_SLACK_BYTES = 64 << 20
"""Free bytes at the end of the heap beyond which they are given back."""


async def run_broker(config: Config, runtime: Runtime,
                     started: Callable[[ReferenceBroker], None] | None = None,
                     service_classes: Mapping[str, ServiceFactory] = SERVICES) -> None:
    """Run a broker until the task is cancelled, which is its orderly stop.

    ``started`` is called once clients can connect; ``service_classes`` are those that the configuration may name.

    Raises:
        ConfigError: the configuration can't be used.
    """
    broker = ReferenceBroker(config, runtime, service_classes)
    await broker.start()
    try:
        if started is not None:
            started(broker)
        await asyncio.get_running_loop().create_future()
    finally:
        await broker.stop()


def serve(config: Config) -> int:
    """Run a broker in this process until SIGTERM or SIGINT; return the exit status.

    It is 0 after an orderly stop, 3 when the configuration can't be used (one line on standard error gives the reason),
    1 when the broker failed (its log gives the reason).
    """
    return serve_process(lambda: BrokerProcess(config, RealRuntime(config)))


def serve_process(make: Callable[[], NodeProcess]) -> int:
    """Run a program in this process as ``serve`` runs a broker; ``make`` is called in the event loop."""
    try:
        return asyncio.run(_serve(make))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return EXIT_CONFIG


def _allow_many_files() -> None:
    """Raise the limit of open files: every client takes a file descriptor; the usual soft limit suits interactive
    shells."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _reuse_memory() -> None:
    """Have the C library keep the memory of large bodies for later ones, and give back the excess.

    Otherwise it would request each large piece from the system again. On a system that first fills each page with
    zeros, this can take longer than the database takes for everything else.
    """
    with contextlib.suppress(OSError, AttributeError):  # a C library other than GNU's
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _SEPARATE_PIECE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _HEAP_SLACK_BYTES)


async def _serve(make: Callable[[], NodeProcess]) -> int:
    _allow_many_files()
    _reuse_memory()
    process = make()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stop)
    return await process.run()


class NodeProcess:
    """A program from its start to its exit status, in a running event loop; ``stop`` ends it in order.

    ``main`` runs until it is cancelled; ``name`` is the program's name in the log.
    """

    def __init__(self, main: Coroutine[Any, Any, None], runtime: LoopRuntime, name: str) -> None:
        self._runtime, self._name = runtime, name
        self._main = asyncio.ensure_future(main)
        self._stopping = False

    def stop(self) -> None:
        """Stop in order, as on SIGTERM."""
        self._stopping = True
        self._main.cancel()

    async def run(self) -> int:
        """Wait for the end; return the exit status.

        Raises:
            ConfigError: the configuration can't be used.
        """
        try:
            await self._runtime.supervise(self._main)
        except asyncio.CancelledError:
            return EXIT_OK if self._stopping else EXIT_FAILED
        except ConfigError:
            raise
        except Exception as error:
            self._runtime.log(f"{self._name} failed", level="error", error=repr(error))
            return EXIT_FAILED
        return EXIT_OK


class BrokerProcess(NodeProcess):
    """A broker from its start to its exit status."""

    def __init__(self, config: Config, runtime: LoopRuntime) -> None:
        super().__init__(run_broker(config, runtime), runtime, "broker")
