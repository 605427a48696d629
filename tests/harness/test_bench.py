"""Which figures are measured."""

from __future__ import annotations

import pytest

from harness.tools.bench import __main__ as bench
from stormproof.errors import UsageError


def test_groups_of_figures_are_measured_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {name: lambda name=name: iter([(name, "1", "")]) for name in ("sending", "qpid", "check")}
    monkeypatch.setattr(bench, "GROUPS", groups)
    assert [row[0] for row in bench.figures()] == ["sending", "qpid", "check"]
    assert [row[0] for row in bench.figures(["check", "sending"])] == ["check", "sending"]
    with pytest.raises(UsageError, match="unknown figures 'nothing'"):
        list(bench.figures(["qpid", "nothing"]))


def test_a_group_by_name_goes_to_no_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "GROUPS", {"qpid": lambda: iter([("takeover", "1.5 s", "")])})
    monkeypatch.setattr(bench, "PAGE", None)
    bench.main(["qpid"])
    assert capsys.readouterr().out.split() == ["takeover", "1.5", "s"]


@pytest.mark.parametrize(("figure", "aim", "there"), [
    ("1,000 /s", "", "2,000 /s"), ("350 a minute", "at least 1,000", "700 a minute"), ("10.0 s", "under 10 s", "5.0 s"),
    ("16,454 / 1,780 /s", "", "32,908 / 3,560 /s"), ("1.09 s", "detection_timeout is 1 s", ""), ("0.48", "", ""),
    ("113.3 million/s", "", ""), ("2.50 ms, 1.10 million turns", "under 1.1 million turns", ""),
])  # fmt: skip
def test_speeds_are_scaled_by_how_fast_python_is(figure: str, aim: str, there: str) -> None:
    assert bench.scaled(figure, aim, bench.REFERENCE / 2) == there
