"""Aliases among the models that clients list."""

from gateway.domain.aliases import Alias, AliasTarget
from gateway.pipeline.aliases import AliasCatalog
from tests.gateway.pipeline.aliases.support import Desk, served


def catalog(desk: Desk) -> AliasCatalog:
    return AliasCatalog(desk.fleet.registry, desk.book, "me")


def test_an_alias_is_a_model_among_others() -> None:
    desk = Desk(Alias("prod", (AliasTarget("m", "v1"), AliasTarget("n"))))
    desk.serve(served("m", "v1"), served("n", routes=("embeddings",)))
    found = catalog(desk)
    assert [info.id for info in found.each_model()] == ["m", "n", "prod"]
    alias = found.model("prod")
    assert alias is not None
    assert (alias.created_s, alias.owned_by, alias.ready, alias.deployments) == (7, "me", True, 2)
    assert alias.routes == ("chat", "embeddings")
    assert found.model("nothing") is None
    assert found.agents_connected == 2


def test_an_alias_is_ready_when_a_target_is_that_gets_requests() -> None:
    desk = Desk(Alias("prod", (AliasTarget("m", "v1"), AliasTarget("m", "v2", 0.0))))
    desk.serve(served("m", "v2"))
    alias = catalog(desk).model("prod")
    assert alias is not None
    assert not alias.ready


def test_an_alias_whose_model_would_be_loaded_for_it_is_listed_as_such() -> None:
    desk = Desk(Alias("prod", (AliasTarget("m", "v2"),)))
    desk.load_on_demand()
    desk.serve(served("m", "v1"), served("m", "v2", loadable=True))
    alias = catalog(desk).model("prod")
    assert alias is not None
    assert (alias.ready, alias.deployments, alias.loadable, alias.routes) == (False, 0, 1, ("chat",))


def test_an_alias_takes_the_place_of_the_model_it_is_called_like() -> None:
    desk = Desk(Alias("m", (AliasTarget("m", "v9"),)))
    desk.serve(served("m", "v1"))
    found = catalog(desk)
    assert [(info.id, info.ready) for info in found.each_model()] == [("m", False)]


def test_a_name_that_has_only_fallbacks_is_no_model_of_its_own() -> None:
    desk = Desk(Alias("ghost", fallback=(AliasTarget("m"),)), Alias("m", fallback=(AliasTarget("n"),)))
    desk.serve(served("m", "v1"))
    found = catalog(desk)
    assert [(info.id, info.owned_by) for info in found.each_model()] == [("m", "trunkline")]
    assert found.model("ghost") is None
