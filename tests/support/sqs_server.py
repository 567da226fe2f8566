"""Amazon SQS for tests: moto's server, which speaks SQS's own protocol over HTTP on loopback."""

import contextlib
import logging
from collections.abc import Iterator

import pytest
from moto import settings
from moto.server import ThreadedMotoServer

REGION = "eu-central-1"


@contextlib.contextmanager
def sqs_server() -> Iterator[str]:
    """Its URL, as the settings have it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.get_host_and_port()[1]}?region={REGION}"
    finally:
        server.stop()
        assert server._server is not None
        server._server.server_close()


def set_credentials(monkeypatch: pytest.MonkeyPatch, key: str = "testing", secret: str = "testing") -> None:
    """What AWS's own libraries find in the environment, and nothing else."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@contextlib.contextmanager
def checked_permissions() -> Iterator[None]:
    """Requests need permissions from now on, as they do not otherwise."""
    before = settings.INITIAL_NO_AUTH_ACTION_COUNT
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0.0
    try:
        yield
    finally:
        settings.INITIAL_NO_AUTH_ACTION_COUNT = before
