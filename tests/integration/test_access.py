"""Keys and join tokens from the command line take effect at once, while the gateway runs."""

import subprocess
import urllib.error

import pytest

from tests.integration.conftest import MODEL, Site
from tests.support import forks
from tests.support.processes import command, fetch, until


def trunkline(site: Site, *arguments: str) -> str:
    """Standard output of ``trunkline ARGUMENTS --state DIR``, which must succeed."""
    done = forks.trunkline(*arguments, "--state", str(site.gateway.state))
    assert done.returncode == 0, done.stderr
    return done.stdout


def status_with(site: Site, key: str) -> int:
    try:
        fetch(f"{site.base_url}/models", key=key)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    return 200


def test_a_key_works_from_the_moment_it_is_printed_until_it_is_revoked(site: Site) -> None:
    key = trunkline(site, "key", "create", "--name", "cli-made").splitlines()[-1]
    assert key.startswith("sk-tl-")
    assert status_with(site, key) == 200
    assert "cli-made" in trunkline(site, "key", "list")
    assert key not in trunkline(site, "key", "list")
    trunkline(site, "key", "revoke", "cli-made")
    assert status_with(site, key) == 401


def test_a_join_token_lets_in_as_many_agents_as_it_says(site: Site) -> None:
    token = trunkline(site, "token", "create", "--uses", "1").splitlines()[-1]
    assert token.startswith("tlj_")
    house = site.house
    first = house.agent(site.gateway, site.engine.url, name="first-in", token=token)
    until("it joined", lambda: "first-in" in trunkline(site, "agents"), 60)
    second = house.agent(site.gateway, site.engine.url, name="second-in", token=token)
    code = second.ended(30)
    assert code == 1, second.tail()
    assert "second-in" not in trunkline(site, "agents")
    house.children.stop(second)
    house.children.stop(first)


def test_a_revoked_token_lets_nobody_in(site: Site) -> None:
    token = trunkline(site, "token", "create").splitlines()[-1]
    trunkline(site, "token", "revoke", token)
    agent = site.house.agent(site.gateway, site.engine.url, name="too-late", token=token)
    assert agent.ended(30) == 1, agent.tail()
    site.house.children.stop(agent)


def test_revoking_an_agent_ends_its_tunnel(site: Site) -> None:
    house = site.house
    engine = house.engine("--model", "revocable", name="revocable-engine")
    agent = house.agent(site.gateway, engine.url, name="revocable-agent")
    house.wait_for_model(site.gateway, site.key, "revocable")
    trunkline(site, "agents", "revoke", "revocable-agent")
    until("it is gone", lambda: "revocable" not in site.gateway.models(site.key))
    house.children.stop(agent)
    house.children.stop(engine.child)


def test_an_agent_comes_back_without_its_token(site: Site) -> None:
    house = site.house
    engine = house.engine("--model", "returning", name="returning-engine")
    token = site.gateway.token()
    agent = house.agent(site.gateway, engine.url, name="returning-agent", token=token)
    house.wait_for_model(site.gateway, site.key, "returning")
    house.children.stop(agent)
    until("it is gone", lambda: "returning" not in site.gateway.models(site.key), 60)
    again = house.agent(site.gateway, engine.url, name="returning-agent", token=None)
    house.wait_for_model(site.gateway, site.key, "returning")
    house.children.stop(again)
    house.children.stop(engine.child)


@pytest.mark.parametrize("arguments", [("key", "create"), ("nonsense",), ("token", "create", "--uses", "x")])
def test_wrong_usage_exits_with_2(site: Site, arguments: tuple[str, ...]) -> None:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert MODEL not in done.stderr
