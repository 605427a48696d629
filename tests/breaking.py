"""How tests make code of the nodes wrong, for as long as one test lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest


def later(patch: pytest.MonkeyPatch, owner: type, name: str, wrong: Callable[..., Any], seconds: float = 6.0) -> None:
    """Put ``wrong`` in the place of a method from some simulated second on, when the cluster has come up."""
    right = getattr(owner, name)

    def either(self: Any, *args: Any, **more: Any) -> Any:
        loop: Any = asyncio.get_running_loop()
        return (wrong if loop.now > seconds else right)(self, *args, **more)

    patch.setattr(owner, name, either)
