"""Names of models: long ones, and ones that look like patterns."""

import pytest

from gateway.domain.scopes import NamePatterns, matches
from shared.protocol.limits import MODEL_NAME_CHARS
from shared.protocol.messages import DeploymentState
from tests.gateway.fleet.fleet import Fleet, deployment

ODD = ("llama[1]", "a*b", "what?", "[x", "m" * MODEL_NAME_CHARS)


@pytest.mark.parametrize("name", ODD)
def test_a_name_is_matched_by_itself_whatever_it_looks_like(name: str) -> None:
    assert name in NamePatterns((name,))
    assert name in NamePatterns(("other*", name))
    assert matches(name, name)
    fleet = Fleet()
    fleet.connect("a", deployment(name, id="d"), models=(name,))
    assert fleet.submit(fleet.request(name)).exchange is not None


def test_patterns_go_on_matching_as_patterns() -> None:
    assert "llama1" in NamePatterns(("llama[1]",))
    assert "llama1" not in NamePatterns(("llama[[]1]",))
    assert "llama[1]" in NamePatterns(("llama[[]1]",))


@pytest.mark.parametrize("name", ["a\u00a0b", "a\u200bb", "\u202eevil"])
def test_a_name_that_no_client_can_ask_for_is_left_out_and_logged(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet()
    fleet.connect("a", DeploymentState("d", name, slots=1))
    assert fleet.registry.model(name) is None
    assert "unusable_name" in capsys.readouterr().out
