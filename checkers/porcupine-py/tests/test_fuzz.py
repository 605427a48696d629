import fuzz
import pytest


@pytest.mark.parametrize("name", fuzz.MODELS)
def test_every_checker_agrees_with_exhaustive_search(name):
    ok, illegal, by_monitor = fuzz.compare(name, seed=1, count=300)
    assert ok > 60 and illegal > 40
    assert by_monitor > 100 or name not in fuzz.MONITORED


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", fuzz.MODELS)
def test_every_checker_agrees_with_exhaustive_search_at_length(name):
    ok, illegal, _ = fuzz.compare(name, seed=2, count=6_500, most=11)
    assert ok > 1000 and illegal > 1000
