"""``trunkline status``, ``models``, ``drain``, ``load``, ``evict``: a running gateway, by its admin API."""

import time
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli.options import CaOption, JsonOption, KeyOption, UrlOption
from gateway.cli_support.asked_gateway import DEFAULT_URL, gateway_client
from gateway.cli_support.console import note, print_json, print_table
from shared.process.excerpt import printable

if TYPE_CHECKING:
    from gateway.cli_support.gateway_client import GatewayClient

ModelArgument = Annotated[str, typer.Argument(help="The model's name.")]

POLL_S = 1.0
"""Time between two looks at whether an agent's requests are over."""


def register(app: typer.Typer) -> None:
    """Add the commands to a command line."""
    app.command("status")(status)
    app.command("models")(models)
    app.command("drain")(drain)
    app.command("load")(load)
    app.command("evict")(evict)


def status(
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show who is connected to a running gateway, what runs and what waits. Takes the role viewer.

    Example: trunkline status --url https://gateway.example.com
    """
    with gateway_client(url, key, ca_file) as client:
        found, queue = client.get("agents", "agents"), client.get("queue", "waiting")
        processes = _processes(client)
    agents = found["agents"]
    if as_json:
        print_json({"agents": agents, "queue": queue, "processes": processes})
        return
    if len(processes) > 1:
        columns = ["PROCESS", "HOST", "STATE", "PID", "REQUESTS", "AGENTS", "OTHERS KNOWN"]
        print_table(columns, [_process_row(each) for each in processes], "")
        typer.echo()
    for text in _limits_lines(processes):
        note(text)
    _tell_missing({*found.get("missing", ()), *queue.get("missing", ())})
    connected = [each for each in agents if each["connected"]]
    running = sum(each["streams"] for each in connected)
    note(
        f"{len(connected)} of {len(agents)} agents connected, {running} requests run, {queue['waiting']} wait"
    )
    columns = ["AGENT", "STATE", "RUNNING", "RTT", "MODELS"]
    print_table(columns, [_agent_row(each) for each in agents], "no agents have joined")
    if engines := [row for each in connected for row in _engine_rows(each)]:
        typer.echo()
        print_table(["AGENT", "ENGINE", "KIND", "STATE", "MODELS", "WHY"], engines, "")


def models(
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the models of a running gateway: where they are served, how full they are. Takes the role viewer.

    Example: trunkline models --json
    """
    with gateway_client(url, key, ca_file) as client:
        answer = client.get("models", "models")
    found = answer["models"]
    if as_json:
        print_json(found)
        return
    _tell_missing(answer.get("missing", ()))
    rows = [
        [
            each["id"],
            "ready" if each["ready"] else "loadable" if each["loadable"] else "not served",
            f"{each['in_flight']}/{each['slots']}",
            str(each["waiting"]),
            " ".join(sorted({deployment["agent"] for deployment in each["deployments"]})),
        ]
        for each in found
    ]
    print_table(["MODEL", "STATE", "SLOTS USED", "WAITING", "AGENTS"], rows, "no model was ever served")


def drain(
    agent: Annotated[str, typer.Argument(help="The agent's name.")],
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    undo: Annotated[bool, typer.Option("--undo", help="Let it have work again.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until what runs there is over.")] = True,
    move: Annotated[bool, typer.Option("--move", help="Have streams go on at other agents.")] = False,
) -> None:
    """Give an agent no new work, and wait until what runs there is over. Takes the role operator.

    It lasts until --undo: at every process of the gateway, when they are started again, and when the agent
    connects again or for the first time.

    With --move streams go on at other agents from where they are, as far as these have slots free.

    Example: trunkline drain gpu-7
    """
    with gateway_client(url, key, ca_file) as client:
        path = f"agents/{quote(agent, safe='', errors='surrogateescape')}"
        act = f"{path}/move" if move and not undo else f"{path}/drain"
        found = client.ask("DELETE" if undo else "POST", act, "streams")
        if undo:
            note(f"Agent {agent!r} gets work again.")
            return
        note(f"Agent {agent!r} gets no new work; {found['streams']} requests run there.")
        silent: list[str] = []
        while wait:
            streams, missing = _streams(client, agent)
            if missing and missing != silent:
                note(f"What runs there of these processes is unknown, they do not answer: {_named(missing)}")
            silent = missing
            if not (streams or missing):
                break
            time.sleep(POLL_S)
            if move:
                client.ask("POST", act, "streams")
    if wait:
        note("Nothing runs there any more.")


def load(
    model: ModelArgument,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    agent: Annotated[str | None, typer.Option(help="At this agent; else where it fits best.")] = None,
    version: Annotated[str | None, typer.Option(help="In this version.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Have a model loaded at one more agent, as if requests waited for it. Takes the role operator.

    What is idle is unloaded for it. The command does not wait for the load: see trunkline status.

    Example: trunkline load llama-3.1-8b --agent gpu-7
    """
    given = {"agent": agent, "version": version}
    body = {name: value for name, value in given.items() if value is not None}
    with gateway_client(url, key, ca_file) as client:
        found = client.ask("POST", f"models/{_path(model)}/load", "begun", "loaded", "places", body=body)
    if as_json:
        print_json(found)
    elif not found["begun"]:
        note(f"It is loaded, or is being loaded, at all {found['places']} places that would load it.")
    else:
        expected_s = found.get("expected_s")
        when = "" if expected_s is None else f", in about {expected_s:.0f} s"
        note(f"{model} is to be loaded{when}; {found['loaded']} of {found['places']} places had it.")


def evict(
    model: ModelArgument,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
    ca_file: CaOption = None,
    agent: Annotated[str | None, typer.Option(help="At this agent; else at all.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Have a model unloaded: it gets nothing new and goes when what runs is over. Takes the role operator.

    Requests that ask for it have it loaded again. To keep work from a host: trunkline drain.

    Example: trunkline evict llama-3.1-8b --agent gpu-7
    """
    with gateway_client(url, key, ca_file) as client:
        body = {} if agent is None else {"agent": agent}
        found = client.ask("POST", f"models/{_path(model)}/evict", "deployments", "waiting", body=body)
    if as_json:
        print_json(found)
        return
    for each in found["deployments"]:
        runs = f", when its {each['running']} requests are over" if each["running"] else ""
        note(f"{model} is unloaded at {printable(each['agent'])}{runs}.")
    if found["waiting"]:
        note(f"{found['waiting']} requests wait for it: it is loaded again for them.")
    if found.get("kept"):
        note(f"These gateways decide themselves: {', '.join(map(printable, found['kept']))}.")


def _path(model: str) -> str:
    return quote(model, safe="/", errors="surrogateescape")


def _streams(client: "GatewayClient", agent: str) -> tuple[int, list[str]]:
    """How many requests run on an agent, 0 on one that is not connected; and the processes of the gateway
    that did not say how many of theirs do."""
    found = client.get("agents", "agents")
    streams = next((int(each.get("streams", 0)) for each in found["agents"] if each["name"] == agent), 0)
    return streams, sorted(map(str, found.get("missing", ())))


def _tell_missing(processes: Iterable[str]) -> None:
    """What a table lacks."""
    if missing := sorted(processes):
        note(f"What these processes have is missing below, they do not answer: {_named(missing)}")


def _named(processes: Iterable[str]) -> str:
    return ", ".join(map(printable, processes))


def _processes(client: "GatewayClient") -> list[dict[str, Any]]:
    """Those of the gateway; none that an earlier version can tell of."""
    from gateway.cli_support.gateway_client import GatewayFailed

    try:
        found: list[dict[str, Any]] = client.get("processes", "processes")["processes"]
    except GatewayFailed as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return []
    return found


def _process_row(facts: dict[str, Any]) -> list[str]:
    name = printable(str(facts["process"]))
    if not facts["up"]:
        why = printable(str(facts.get("why", "")))
        return [name, "", f"away: {why}" if why else "away", "", "", "", ""]
    host = printable(str(facts.get("host", "")))  # gateways of earlier versions do not tell it
    shown = (printable(str(facts[each])) for each in ("state", "pid", "requests", "agents"))
    return [name, host, *shown, _known(facts)]


def _known(facts: dict[str, Any]) -> str:
    """How old is what a process knows of the others; workers without a store on a server do not tell it, and
    gateways of earlier versions."""
    others = facts.get("others")
    return "" if others is None else f"{float(others['known_s']):.1f} s ago"


def _limits_lines(processes: list[dict[str, Any]]) -> Iterator[str]:
    """Where limits are kept together, and who cannot reach that."""
    known = [each for each in processes if each["up"] and "shared_limits" in each]
    kept = {each["shared_limits"]["store"] for each in known if each["shared_limits"] is not None}
    for place in sorted(map(str, kept)):
        away = [
            str(each["process"])
            for each in known
            if each["shared_limits"] == {"store": place, "reachable": False}
        ]
        state = f"does not answer {', '.join(map(printable, away))}" if away else "answers"
        yield f"limits are kept together in {printable(place)}, which {state}"
    alone = [str(each["process"]) for each in known if each["shared_limits"] is None]
    if len(processes) > 1 and alone:
        named = ", ".join(map(printable, alone))
        yield f"these processes have every limit for themselves (see --shared): {named}"


def _agent_row(facts: dict[str, Any]) -> list[str]:
    if not facts["connected"]:
        return [facts["name"], "away, draining" if facts.get("draining") else "away", "", "", ""]
    rtt = "" if facts["rtt_s"] is None else f"{facts['rtt_s'] * 1000:.1f} ms"
    state = "draining" if facts["draining"] else _working_state(facts)
    served = sorted({each["model"] for each in facts["deployments"]})
    return [facts["name"], state, str(facts["streams"]), rtt, " ".join(served)]


def _working_state(facts: dict[str, Any]) -> str:
    """The state of an agent, which is not ready as long as none of its engines can take work."""
    status = str(facts["status"]).lower()
    if status not in ("ready", "failed"):
        return status
    if not facts.get("engines"):  # it has none, or is of an earlier version
        return status if facts["deployments"] else "no engine" if facts.get("reason") else "no models"
    said = {str(each["status"]) for each in facts["engines"]}
    if said & {"loaded", "loadable"}:
        return status
    return "loading" if "loading" in said else "failed"


def _engine_rows(facts: dict[str, Any]) -> list[list[str]]:
    """A line for each engine, and one for an agent that has none; none for agents of earlier versions."""
    engines = facts.get("engines", ())
    if not engines and facts.get("reason"):
        return [[facts["name"], "", "", "none", "", printable(facts["reason"])]]
    return [
        [
            facts["name"],
            printable(each["name"]),
            printable(each["kind"]),
            each["status"],
            str(len(each["models"])),
            printable(", ".join(filter(None, (each["reason"], each["loading"])))),
        ]
        for each in engines
    ]
