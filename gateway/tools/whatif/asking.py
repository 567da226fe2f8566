"""Has a what-if carried out, here or by a gateway, and shows the answer."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import typer

from gateway.api.admin.whatif_body import WhatIfBody
from gateway.cli_support.asked_gateway import gateway_client
from gateway.cli_support.console import StatusLine, fail, note, print_json
from gateway.tools.simulate.inputs import BadSpec
from gateway.tools.whatif.body import body_of, option_of
from gateway.tools.whatif.options import WhatIfOptions
from gateway.tools.whatif.recording import merged, read_facts, write_facts
from gateway.tools.whatif.report import print_answer
from gateway.tools.whatif.run import NothingToReplay, run_whatif

Json = dict[str, Any]

TIMEOUT_S = 330.0
"""For an answer: longer than a gateway lets it take."""


def carry_out(options: WhatIfOptions) -> None:
    """Print the answer, or write the facts. Raises typer.BadParameter and typer.Exit."""
    body = body_of(options)
    if options.export is not None:
        _export(options, options.export)
        return
    answer = _here(options.facts, body) if options.facts else _there(options, body)
    if options.as_json:
        print_json(answer)
    else:
        print_answer(answer)


def _export(options: WhatIfOptions, path: Path) -> None:
    with gateway_client(options.url, options.key, options.ca_file) as client:
        asked = f"whatif/facts?minutes={options.minutes:g}"
        exported = client.ask("GET", asked, "header", "facts", timeout_s=TIMEOUT_S)
    try:
        write_facts(path, exported)
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    note(f"{path} has the facts of {len(exported['facts']):,} requests, and no content")


def _here(paths: Sequence[Path], body: WhatIfBody) -> Json:
    """The answer from files, in this process."""
    progress = _Progress()
    try:
        read = [read_facts(path) for path in paths]
        return run_whatif(merged([recording for recording, _ in read]), read[0][1], body, progress.show)
    except NothingToReplay as error:
        fail(str(error))
    except BadSpec as error:
        raise typer.BadParameter(str(error), param_hint=option_of(error.option)) from None
    except KeyboardInterrupt:
        raise typer.Exit(1) from None
    finally:
        progress.end()


def _there(options: WhatIfOptions, body: WhatIfBody) -> Json:
    """The answer of a gateway; it stops when this command is interrupted."""
    asked = body.model_dump(exclude_unset=True)
    progress = _Progress()
    events = {"accept": "text/event-stream"}
    with gateway_client(options.url, options.key, options.ca_file) as client:
        try:
            with client.open(
                "POST", "/admin/whatif", body=asked, timeout_s=TIMEOUT_S, more=events
            ) as response:
                event = ""
                for raw in response:
                    name, _, value = raw.decode().rstrip("\r\n").partition(": ")
                    if name == "event":
                        event = value
                    elif name == "data" and event == "progress":
                        progress.show(**orjson.loads(value))
                    elif name == "data" and event == "result":
                        result: Json = orjson.loads(value)
                        return result
                    elif name == "data" and event == "failed":
                        fail(str(orjson.loads(value)["error"]["message"]))
        except KeyboardInterrupt:
            raise typer.Exit(1) from None
        finally:
            progress.end()
    fail("the gateway's answer broke off")


class _Progress:
    """How far a replay is, on standard error of a terminal."""

    def __init__(self) -> None:
        self._line = StatusLine(sys.stderr)

    def show(self, done: int, of: int) -> None:
        if self._line.in_place:
            self._line.show(f"{done:,} of {of:,} requests replayed")

    def end(self) -> None:
        self._line.clear()
