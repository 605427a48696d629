"""Time limits in tasks that are being cancelled, which Python before 3.11.4 gets wrong."""

from __future__ import annotations

import asyncio

import pytest

from nodes.timeouts import within


async def test_a_limit_holds_while_a_cancelled_task_cleans_up():
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            with pytest.raises(TimeoutError):
                async with within(0.01):
                    await asyncio.sleep(10)
            cleaned.append("all of it")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == ["all of it"]


async def test_what_is_cancelled_inside_a_limit_is_cancelled():
    async def work() -> None:
        async with within(10):
            await asyncio.sleep(10)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_cancelled_as_its_limit_expires_is_cancelled():
    async def work() -> None:
        async with within(0.01):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                await asyncio.sleep(10)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("seconds", [0, 0.01])
async def test_a_limit_raises_when_the_time_is_over(seconds: float):
    with pytest.raises(TimeoutError):
        async with within(seconds):
            await asyncio.sleep(10)


async def test_no_limit_never_expires():
    async with within(None) as limit:
        await asyncio.sleep(0)
    assert not limit.expired()
