"""``trunkline why`` against a server that says what a gateway says."""

import json

import typer
from typer.testing import CliRunner, Result

from gateway.cli.why import register
from tests.gateway.cli.test_live import KEY, Server, server

__all__ = ["server"]

FOUND = {"id": "a/b", "words": ["It did not wait.", "It went to \x1b[1mgpu-1."], "missing": ["h-2"]}


def run(server: Server, *arguments: str) -> Result:
    app = typer.Typer()
    register(app)
    environment = {"TRUNKLINE_URL": server.url, "TRUNKLINE_KEY": KEY, "TERM": "dumb"}
    return CliRunner().invoke(app, list(arguments), env=environment)


def test_the_words_are_printed_and_who_does_not_answer_is_named(server: Server) -> None:
    server.answers["GET", "/admin/requests/a%2Fb"] = [(200, FOUND)]
    result = run(server, "a/b")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["It did not wait.", "It went to ?[1mgpu-1."]
    assert result.stderr == "These processes do not answer: h-2\n"
    assert json.loads(run(server, "a/b", "--json").stdout) == FOUND


def test_an_id_of_which_nothing_is_known_is_said_so(server: Server) -> None:
    server.answers["GET", "/admin/requests/r1"] = [(404, {"error": {"message": "No record is kept."}})]
    result = run(server, "r1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "No record is kept." in result.stderr
