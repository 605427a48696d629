"""Which figures are measured."""

from __future__ import annotations

import pytest

from harness.bench import __main__ as bench
from stormproof.errors import UsageError


def test_groups_of_figures_are_measured_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {name: lambda name=name: iter([(name, "1", "")]) for name in ("sending", "qpid", "check")}
    monkeypatch.setattr(bench, "GROUPS", groups)
    assert [row[0] for row in bench.figures()] == ["sending", "qpid", "check"]
    assert [row[0] for row in bench.figures(["check", "sending"])] == ["check", "sending"]
    with pytest.raises(UsageError, match="there are no figures 'nothing'"):
        list(bench.figures(["qpid", "nothing"]))


def test_a_group_by_name_goes_to_no_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "GROUPS", {"qpid": lambda: iter([("takeover", "1.5 s", "")])})
    monkeypatch.setattr(bench, "PAGE", None)
    bench.main(["qpid"])
    assert capsys.readouterr().out.split() == ["takeover", "1.5", "s"]
