"""The examples in docs/generators.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.tools.bench.interpreter import operations_per_second

GUIDE = Path(__file__).parents[2] / "docs" / "generators.md"


def test_the_guide_s_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec("from __future__ import annotations\nfrom dataclasses import dataclass", names)
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) > 100
    assert "Drain" in names


def test_the_guide_names_every_combinator() -> None:
    from stormproof import generator

    text = GUIDE.read_text(encoding="utf-8")
    functions = [name for name in generator.__all__ if name[0].islower() and name != "lift"]
    assert [name for name in functions if f"`{name}(" not in text and f"gen.{name}(" not in text] == []


def test_the_bench_carries_out_what_it_measures() -> None:
    assert operations_per_second(operations=500, concurrency=3) > 0
