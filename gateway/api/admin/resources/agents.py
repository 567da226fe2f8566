"""Join tokens, which let GPU hosts become agents, and the agents that joined with them."""

from typing import TYPE_CHECKING, Annotated

from annotated_types import MaxLen

from gateway.api.admin.resources.resource import (
    REQUIRED,
    AdminRequest,
    BadInput,
    Field,
    Json,
    Resource,
    ResourceCommand,
    Table,
)
from gateway.api.admin.resources.text import (
    duration_field,
    format_labels,
    format_time,
    labels_field,
    names_field,
)
from gateway.domain.scopes import AdminRole

if TYPE_CHECKING:
    from gateway.storage import AgentRecord, Store, TokenRecord

ID_CHARS = 4
"""Fewest characters of an id that name a token."""

MOST_USES = 100_000
"""As :data:`gateway.storage.rules.USES`, which takes the database to import."""

TOKENS = Resource(
    "token",
    "/admin/tokens",
    "Join tokens: what lets a GPU host become an agent.",
    example="trunkline token create --uses 8 --expires 7d",
    argument=("token", "Its id, the beginning of its id, or the token itself."),
)
AGENTS = Resource(
    "agents",
    "/admin/agents",
    "The agents that joined. Without a command: list them.",
    example="trunkline agents --json",
    argument=("name", "The agent's name."),
    default="list",
)


def _created_text(facts: Json) -> str:
    uses = facts["record"]["uses_allowed"]  # gateways of earlier versions tell it there only
    agents = "one agent" if uses == 1 else f"{uses} agents"
    until = format_time(facts["expires_s"])
    return (
        f"Join token {facts['id']}, for {agents}, until {until}. On the GPU host run:\n"
        "  trunkline agent --gateway URL --join TOKEN"
    )


_NEW_TOKEN = (
    duration_field("life_s", "--expires", "How long it can be used: 30m, 24h, 7d …", "24h"),
    Field("uses", int, "How many agents may join with it.", default=1, least=1, most=MOST_USES),
    names_field(
        "models",
        "Models its agents may serve, shell patterns. Repeatable. [default: every model]",
        "--models --model",
        default=["*"],
    ),
    labels_field("A label for its agents, k=v. Repeatable; one that is repeated has all the values.", {}),
)
_CREATE = ResourceCommand("create", _created_text, last_line="token")


@TOKENS.operation("POST", "", _CREATE, fields=_NEW_TOKEN, makes_state=True)
def create_token(store: "Store", request: AdminRequest) -> Json:
    """Make a join token and print it as the last line.

    Example: trunkline token create --uses 8 --expires 7d --models 'llama-*' --label region=eu
    """
    life_s, uses, models, labels = (request.body[each.name] for each in _NEW_TOKEN)
    token, text = store.tokens.create(life_s, uses, models, labels, request.wall_s)
    record = store.tokens.get(token.id_text)
    assert record is not None
    facts = token_facts(record, request.wall_s)
    return {"token": text, "record": facts, **facts}  # commands of earlier versions read the record


_TOKEN_TABLE = Table(
    "tokens",
    {
        "ID": "id",
        "STATE": "state",
        "USES": lambda facts: f"{facts['uses']}/{facts['uses_allowed']}",
        "EXPIRES": "expires_s",
        "MODELS": "models",
        "LABELS": "labels",
    },
    "no join tokens",
)


@TOKENS.operation("GET", "", ResourceCommand("list", table=_TOKEN_TABLE))
def list_tokens(store: "Store", request: AdminRequest) -> Json:
    """List join tokens. Their secrets are not kept, so they cannot be shown.

    Example: trunkline token list --json
    """
    return {"tokens": [token_facts(record, request.wall_s) for record in store.tokens.list()]}


def _read_id(text: str) -> str:
    """The id in a token, whose secret goes no further. Raises BadInput, and JoinTokenInvalid."""
    if text.startswith("tlj_"):
        from shared.identity import JoinToken

        return JoinToken.decode(text).id_text
    if len(text) < ID_CHARS:
        raise BadInput(f"{text!r} is too short: give at least {ID_CHARS} characters of the id")
    return text


def _revoked_text(facts: Json) -> str:
    joined = "1 agent" if facts["uses"] == 1 else f"{facts['uses']} agents"
    used = f"{joined} had joined with it and can still connect; see: trunkline agents list"
    return f"Join token {facts['id']} is revoked. {used if facts['uses'] else 'No agent had joined with it.'}"


@TOKENS.operation("DELETE", "/{token}", ResourceCommand("revoke", _revoked_text, read_name=_read_id))
def revoke_token(store: "Store", request: AdminRequest) -> Json:
    """Revoke a join token. Agents that joined with it stay.

    Example: trunkline token revoke 3fa9
    """
    if request.name.startswith("tlj_"):
        raise BadInput("name the token by its id: the token itself is a secret")
    record = store.tokens.revoke(request.name, request.wall_s)
    return {"id": record.id, "revoked": True, "uses": record.uses}


_AGENT_TABLE = Table(
    "agents",
    {
        "NAME": "name",
        "STATE": lambda facts: f"{facts['state']}{', draining' if facts.get('held_s') else ''}",
        "MODELS": "models",
        "LABELS": "labels",
        "JOINED": "joined_s",
        "LAST SEEN": "last_seen_s",
    },
    "no agents have joined",
)


@AGENTS.operation(
    "GET", "", ResourceCommand("list", table=_AGENT_TABLE), path="/admin/enrolments", role=AdminRole.VIEWER
)
def list_enrolments(store: "Store", request: AdminRequest) -> Json:
    """List the agents that joined, what they may serve and when they were last seen.

    Example: trunkline agents list --json
    """
    return {"agents": [agent_facts(record) for record in store.agents.list()]}


def _agent_revoked_text(facts: Json) -> str:
    said = f"Agent {facts['agent']!r} is revoked."
    if facts["token_uses_left"]:
        said += (
            f"\nThe join token it used still lets {facts['token_uses_left']} in. If that host must stay out: "
            f"trunkline token revoke {facts['token']}"
        )
    return said


_REASON = Field(
    "reason", Annotated[str, MaxLen(500)], "Why: the agent is told, and the list keeps it.", default=""
)


@AGENTS.operation(
    "DELETE",
    "/{agent}",
    ResourceCommand("revoke", _agent_revoked_text),
    fields=(_REASON,),
    takes_unknown=True,
)
def revoke_agent(store: "Store", request: AdminRequest) -> Json:
    """Revoke an agent: its tunnel ends at once, its key never comes back. Its name is free again.

    Example: trunkline agents revoke gpu-7 --reason 'host sold'
    """
    record = store.agents.revoke(request.name, request.body["reason"], request.wall_s)
    token = store.tokens.get(record.token_id)
    active = token is not None and token.state(request.wall_s) == "active"
    left = token.uses_allowed - token.uses if token is not None and active else 0
    return {"agent": record.name, "revoked": True, "token": record.token_id, "token_uses_left": left}


_RENAME = ResourceCommand(
    "rename",
    "Agent {named!r} is called {name!r} now.",
    help="""Rename an agent. It stays connected and keeps its key; a running gateway tells it its name.

    Example: trunkline agents rename gpu-7 berlin-7
    """,
    fields=(Field("new", str, "What it is called from now on.", option="", default=REQUIRED),),
    body=lambda given: {"name": given["new"]},
)
_RIGHTS = (
    names_field(
        "models",
        "The models it may serve from now on, shell patterns. Repeatable, or separated by commas.",
        "--models --model",
    ),
    labels_field("The labels it has from now on, k=v. Repeatable."),
)


def _rights_body(given: Json) -> Json:
    no_labels = given.pop("no_labels")
    if "labels" in given and no_labels:
        raise BadInput("give either --label or --no-labels", "--no-labels")
    if not given and not no_labels:
        raise BadInput("nothing to set: give --models or --label")
    return given | ({"labels": {}} if no_labels else {})


def _rights_text(facts: Json) -> str:
    labels = format_labels(facts["labels"]) or "none"
    return f"Agent {facts['named']!r} may serve {' '.join(facts['models'])}; labels: {labels}."


_SET = ResourceCommand(
    "set",
    _rights_text,
    help="""Change what an agent may serve, or its labels. What is not named stays as it is.

    A running gateway takes it up at once; requests that run go on.

    Example: trunkline agents set gpu-7 --models 'llama-*,qwen-*' --label region=eu
    """,
    fields=(*_RIGHTS, Field("no_labels", bool, "It has no labels from now on.", default=False)),
    body=_rights_body,
)


@AGENTS.operation("PATCH", "/{agent}", _RENAME, _SET, fields=(Field("name", str), *_RIGHTS))
def set_agent(store: "Store", request: AdminRequest) -> Json:
    """Rename it, or change what it may serve, or its labels. What is not named stays."""
    models, labels, new = (request.body.get(name) for name in ("models", "labels", "name"))
    if (new is None) == (models is None and labels is None):
        raise BadInput("give either another name, or models or labels")
    if new is not None:
        return agent_facts(store.agents.rename(request.name, new))
    return agent_facts(store.agents.allow(request.name, models, labels))


def token_facts(record: "TokenRecord", wall_s: float) -> Json:
    """The facts of a join token that may be shown: not its secret."""
    return {
        "id": record.id,
        "state": record.state(wall_s).value,
        "uses": record.uses,
        "uses_allowed": record.uses_allowed,
        "created_s": record.created_s,
        "expires_s": record.expires_s,
        "revoked_s": record.revoked_s,
        "models": list(record.models),
        "labels": dict(record.labels),
    }


def agent_facts(record: "AgentRecord") -> Json:
    """The stored facts of an agent that joined, whether it is connected or not."""
    return {
        "name": record.name,
        "state": "active" if record.revoked_s is None else "revoked",
        "models": list(record.models),
        "labels": dict(record.labels),
        "token": record.token_id,
        "joined_s": record.joined_s,
        "last_seen_s": record.last_seen_s,
        "certificate_expires_s": max(record.certificates.values(), default=None),
        "revoked_s": record.revoked_s,
        "revoked_reason": record.revoked_reason,
        "held_s": record.held_s,
        "held_by": record.held_by,
    }
