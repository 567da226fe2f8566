"""An agent whose only way out is a company's HTTP proxy, and a gateway behind somebody else's TLS."""

import asyncio
from pathlib import Path

from tests.integration.conftest import MODEL, Site
from tests.support.http_connect_proxy import ConnectProxy
from tests.support.processes import answer_to, fetch, until
from tests.support.tls import TlsTerminator, make_certificate

_NO_OTHER_WAY = {"NO_PROXY": "", "no_proxy": "", "HTTP_PROXY": "", "http_proxy": ""}


def _ask(site: Site, model: str) -> str:
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": model, "messages": messages, "max_tokens": 3}
    answer = fetch(f"{site.base_url}/chat/completions", body=body, key=site.key)
    return str(answer["choices"][0]["message"]["content"])


async def test_an_agent_dials_out_through_the_proxy_of_https_proxy(site: Site, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    house = site.house
    engine = await asyncio.to_thread(house.engine, "--model", "proxied", name="proxied-engine")
    async with (
        TlsTerminator(site.gateway.port, certificate, key) as tls,
        ConnectProxy(("user", "pass word"), names={"gateway.test:443": tls.port}) as proxy,
    ):
        login = f"http://user:pass%20word@127.0.0.1:{proxy.port}"
        environment = {"HTTPS_PROXY": login, "https_proxy": login, "SSL_CERT_FILE": str(certificate)}
        agent = house.agent(
            site.gateway,
            engine.url,
            name="proxied",
            dial="https://gateway.test",
            environment=environment | _NO_OTHER_WAY,
        )
        await asyncio.to_thread(house.wait_for_model, site.gateway, site.key, "proxied")
        assert proxy.tunnels == ["gateway.test:443"]
        assert await asyncio.to_thread(_ask, site, "proxied") == answer_to("hi", 3)
        await asyncio.to_thread(house.children.stop, agent)
        await asyncio.to_thread(house.children.stop, engine.child)


async def test_an_agent_does_not_dial_a_gateway_whose_certificate_it_cannot_verify(
    site: Site, tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path)
    async with TlsTerminator(site.gateway.port, certificate, key) as tls:
        agent = site.house.agent(site.gateway, site.engine.url, name="wary", dial=tls.url)
        await asyncio.to_thread(until, "it says why", lambda: "certificate" in agent.log.read_text(), 30.0)
        await asyncio.to_thread(site.house.children.stop, agent)


async def test_plain_http_is_refused_for_a_gateway_that_is_not_on_loopback(site: Site) -> None:
    agent = site.house.agent(site.gateway, site.engine.url, name="plain", dial="http://192.0.2.1:8080")
    assert await asyncio.to_thread(agent.ended, 30.0) in (1, 2), agent.tail()
    assert "https" in agent.tail()
    site.house.children.stop(agent)
    assert MODEL in site.gateway.models(site.key)
