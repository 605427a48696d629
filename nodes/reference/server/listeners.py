"""The listeners for a broker's clients: at its own address, and at one that its machine has only at times, if any."""

from __future__ import annotations

from nodes import stomp
from nodes.reference.api import Config, ConfigError, Entrance, Handler, Listener, Runtime
from nodes.reference.engine.limits import Limits
from nodes.reference.server import frames
from nodes.reference.server.login import login_limits


class Listeners:
    """The listeners for clients; only these accept clients."""

    def __init__(self, runtime: Runtime, config: Config, limits: Limits) -> None:
        self._runtime, self._config, self._limits = runtime, config, limits
        self._listeners: list[Listener] = []

    async def open(self, handler: Handler) -> int:
        """Listen; ``handler`` runs for each connection. Return the port (0 takes a free one).

        Raises:
            ConfigError: an address can't be listened on.
        """
        port = await self._listen(handler, "port", self._config.host, self._config.port)
        if virtual := str(self._config.options.get("virtual_address", "")):
            await self._listen(handler, "options.virtual_address", virtual, port, movable=True)
        return port

    def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.close()

    async def _listen(self, handler: Handler, setting: str, host: str, port: int, movable: bool = False) -> int:
        try:
            listener = await self._runtime.serve_strangers(handler, host, port, self._entrance(), movable)
        except OSError as error:
            self.close()
            raise ConfigError(f"{setting}: can't listen on {host}:{port} ({error.strerror or error}); "
                              "choose another with `host` and `port`") from error
        self._listeners.append(listener)
        return port or listener.port

    def _entrance(self) -> Entrance:
        limits = self._limits
        return Entrance(limits.max_logins, limits.max_login_bytes, limits.connect_timeout,
                        lambda: stomp.first_frame(login_limits(limits)), lambda reason: frames.error(reason, {}))
