"""One Spark context for all tests of the checkers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from checkers.spark.session import start_spark, stop_spark


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    yield start_spark("local[2]")
    stop_spark()
