"""When it is asked, and of whom."""

import itertools
import statistics

import pytest

from gateway.tools.bench.plan import Arrivals, BadPlan, starts_s, target_of
from gateway.tools.bench.prompts import made_prompts


def test_constant_arrivals_are_at_equal_distances() -> None:
    assert list(itertools.islice(starts_s(Arrivals.CONSTANT, 4.0, 0), 4)) == [0.0, 0.25, 0.5, 0.75]


def test_poisson_arrivals_have_their_rate_and_the_spread_of_chance() -> None:
    starts = list(itertools.islice(starts_s(Arrivals.POISSON, 50.0, 1), 5001))
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert starts[0] == 0.0
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.1)


def test_the_same_seed_gives_the_same_load() -> None:
    def some(seed: int) -> tuple[list[float], list[object]]:
        starts = itertools.islice(starts_s(Arrivals.POISSON, 50.0, seed), 20)
        return list(starts), list(itertools.islice(made_prompts(20, seed), 3))

    assert some(1) == some(1)
    assert some(1) != some(2)


@pytest.mark.parametrize(
    ("url", "authority", "prefix"),
    [
        ("http://host:8700/v1", "host:8700", "/v1"),
        ("http://host", "host:80", "/v1"),
        ("http://host/", "host:80", "/v1"),
        ("https://host/openai/v1/", "host:443", "/openai/v1"),
        ("http://[::1]:9/v1", "[::1]:9", "/v1"),
    ],
)
def test_a_base_url_is_what_openai_clients_are_given(url: str, authority: str, prefix: str) -> None:
    target = target_of(url, "k")
    assert (target.authority, target.prefix) == (authority, prefix)
    assert (target.tls is not None) == url.startswith("https")


@pytest.mark.parametrize(
    "url", ["", "host:80", "ftp://host", "http://", "http://host:x", "http://u@host", "http://h?a=1"]
)
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(BadPlan):
        target_of(url, "k")


@pytest.mark.parametrize("url", ["http://host:0", "http://host/v 1", "http://ho st/v1"])
def test_a_url_that_no_request_can_be_sent_to_is_named_as_what_is_wrong(url: str) -> None:
    with pytest.raises(BadPlan) as caught:
        target_of(url, "k")
    assert caught.value.option == "URL"


def test_a_key_with_a_line_break_is_refused_and_not_shown() -> None:
    with pytest.raises(BadPlan) as caught:
        target_of("http://host", "secret\n")
    assert caught.value.option == "--key"
    assert "secret" not in str(caught.value)
