"""Runs the tables in this terminal, until the user ends them."""

from gateway.cli_support.gateway_client import GatewayClient
from gateway.tools.top.app import TopApp
from gateway.tools.top.options import TopOptions
from gateway.tools.top.source import FleetSource


def run_top(client: GatewayClient, options: TopOptions) -> None:
    """Raises GatewayFailed where the gateway cannot be followed at first: nothing is drawn then."""
    source = FleetSource(client)
    news = source.news()
    first = next(news)
    app = TopApp(source, news, options, name_of(options.url))
    app.first = first
    try:
        app.run()
    finally:
        source.stop()


def name_of(url: str) -> str:
    """The gateway's address as the head line has it."""
    return url.rstrip("/").removesuffix("/v1").split("://", 1)[-1]
