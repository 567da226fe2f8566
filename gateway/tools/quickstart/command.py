"""The command ``trunkline quickstart``: starts a gateway, an agent and a model, and shows an answer."""

import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from gateway.domain.scopes import AdminRole
from gateway.tools.quickstart.client import QUESTION, Client, Streamed, Verdict, chat_body, run_checks
from gateway.tools.quickstart.processes import Children, QuickstartFailed
from shared.process.ports import free_port

PREFERRED_PORT = 8787
DEMO = "demo"
_PACKAGES = ("accelerate", "jinja2", "psutil", "safetensors", "tokenizers", "torch", "transformers")
_GATEWAY_START_S = 60.0
_AGENT_START_S = 180.0
"""Importing torch and loading a model from a cold disk."""
_TOKEN_LIFE_S = 600.0
_LOOK_AFTER_S = 0.5
_SETTINGS = "TRUNKLINE_"
_OF_ANY = ("TRUNKLINE_NATIVE",)
"""Variables of the program itself and of no gateway or agent."""


def register(app: typer.Typer) -> None:
    """Add ``trunkline quickstart``."""
    app.command("quickstart")(quickstart)


def quickstart(
    check: Annotated[
        bool, typer.Option("--check", help="Ask, verify the answers, stop everything; exit 0 or 1.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help=f"The gateway's port. Default: {PREFERRED_PORT} or a free one."),
    ] = None,
    model: Annotated[str, typer.Option(help=f"A local Hugging Face directory, or {DEMO}.")] = DEMO,
) -> None:
    """Run a gateway, an agent and a small model on this machine, and show an answer.

    Everything it makes is in a temporary directory and goes when it ends.

    Example: trunkline quickstart --model /models/SmolLM2-135M-Instruct --port 9000
    """
    if not all(find_spec(package) is not None for package in _PACKAGES):
        _say("error: the model needs PyTorch and transformers: pip install 'trunkline[torch]'")
        raise typer.Exit(2)
    if model != DEMO and not _is_model(Path(model)):
        raise typer.BadParameter(f"{model!r} is no Hugging Face model directory", param_hint="--model")
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="trunkline-") as directory:
            _run(Path(directory), port if port is not None else free_port(PREFERRED_PORT), model, check)
    except QuickstartFailed as failure:
        _say(f"quickstart failed: {failure}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        _say("\nstopped")
        raise typer.Exit(1 if check else 0) from None


def _run(directory: Path, port: int, model: str, check: bool) -> None:
    with Children(directory) as children:
        client, key = _start(children, directory, port, model)
        served = client.models()[0]
        if check:
            _report(run_checks(client, served))
            return
        _show_answer(client, served)
        typer.echo(how_to_go_on(f"http://127.0.0.1:{port}/v1", key, served))
        _say("Running until Ctrl-C.")
        while True:
            children.check()
            time.sleep(_LOOK_AFTER_S)


def _is_model(directory: Path) -> bool:
    try:
        return (directory / "config.json").is_file()
    except (OSError, ValueError):  # a name too long, or with a zero byte
        return False


def _start(children: Children, directory: Path, port: int, model: str) -> tuple[Client, str]:
    """Start a gateway, and an agent with ``model``. Returns once it is on offer, with an API key."""
    state = directory / "gateway"
    from gateway.storage import Store  # which the help does without

    with Store.open(state) as store:
        key = store.keys.create("quickstart", "quickstart", time.time(), role=AdminRole.VIEWER)
        _, token = store.tokens.create(_TOKEN_LIFE_S, 1, ["*"], {}, time.time())
    client = Client(port, key)
    began_s = time.monotonic()
    _say(f"starting the gateway on http://127.0.0.1:{port}")
    unset = _settings_elsewhere(os.environ)
    listen = ["--listen", f"127.0.0.1:{port}", "--state", str(state)]
    children.start("gateway", "gateway", *listen, environment=unset)
    children.wait_until(
        client.ready, "the gateway is ready", _GATEWAY_START_S, lambda: _say("  the gateway starts")
    )
    _say(f"starting an agent with the model {model}")
    dial = ["--gateway", f"http://127.0.0.1:{port}", "--name", "quickstart"]
    serve = ["--torch", model, "--state", str(directory / "agent")]
    environment = {"TRUNKLINE_AGENT_JOIN": token, "TRUNKLINE_AGENT_LOG_FORMAT": "text"}
    children.start("agent", "agent", *dial, *serve, environment=unset | environment)
    children.wait_until(
        lambda: bool(client.models()),
        "a model is on offer",
        _AGENT_START_S,
        lambda: _say(f"  {client.loading() or 'the agent starts'}"),
    )
    _say(f"ready after {time.monotonic() - began_s:.1f} s\n")
    return client, key


def _settings_elsewhere(environ: Iterable[str]) -> dict[str, str | None]:
    """The variables that are for another gateway or agent, each to be unset: with them those started here
    would use its store, its certificate or its file of settings."""
    return dict.fromkeys(
        name for name in environ if name.upper().startswith(_SETTINGS) and name not in _OF_ANY
    )


def _show_answer(client: Client, model: str) -> None:
    _say(f"> {QUESTION}")
    facts = Streamed()
    for piece in client.stream_chat(chat_body(model), facts):
        sys.stdout.write(piece)
        sys.stdout.flush()
    _say(f"\n\n(first token after {facts.first_token_s * 1000:.0f} ms)")


def how_to_go_on(base_url: str, key: str, model: str) -> str:
    """Base URL, key, a curl line and a Python snippet, ready to be copied."""
    body = shlex.quote(json.dumps(chat_body(model) | {"stream": True}))
    return f"""
base URL  {base_url}
API key   {key}
model     {model}

Who serves what:

  TRUNKLINE_KEY={key} trunkline status --gateway {base_url.removesuffix("/v1")}

With curl:

  curl -N {base_url}/chat/completions -H 'authorization: Bearer {key}' \\
    -H 'content-type: application/json' -d {body}

With Python (pip install openai):

  from openai import OpenAI

  client = OpenAI(base_url="{base_url}", api_key="{key}")
  question = [{{"role": "user", "content": "{QUESTION}"}}]
  for chunk in client.chat.completions.create(model={json.dumps(model)}, messages=question, stream=True):
      print(chunk.choices[0].delta.content or "", end="", flush=True)
"""


def _report(verdict: Verdict) -> None:
    typer.echo(f"streamed chat  ok: {verdict.answer.strip()}")
    typer.echo(f"plain chat     ok: the same text, {verdict.completion_tokens} tokens counted")
    typer.echo(f"embeddings     ok: {verdict.dimensions} dimensions")
    typer.echo(f"time to first token: {verdict.first_token_s * 1000:.0f} ms")
    typer.echo("everything works")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
