"""Operations on join tokens and on the agents that joined with them."""

from typing import Any

from gateway.api.admin.resources.request import AdminRequest, Json
from gateway.storage import AgentRecord, Store, TokenRecord, TokenState
from gateway.storage.errors import BadValue

TOKEN_LIFE_S = 86_400.0
"""Unless something else is said."""


def list_tokens(store: Store, asked: AdminRequest) -> Json:
    """Every join token; their secrets are not kept."""
    return {"tokens": [_token_facts(record, asked.wall_s) for record in store.tokens.list()]}


def create_token(store: Store, asked: AdminRequest) -> Json:
    """Make a join token. Its text is in the answer, this once."""
    body, life_s, uses = asked.body, asked.body.get("life_s", TOKEN_LIFE_S), asked.body.get("uses", 1)
    models, labels = body.get("models", ["*"]), body.get("labels", {})
    token, text = store.tokens.create(life_s, uses, models, labels, asked.wall_s)
    record = store.tokens.get(token.id_text)
    assert record is not None
    facts = _token_facts(record, asked.wall_s)
    return {"token": text, "id": record.id, "expires_s": record.expires_s, "uses": uses, "record": facts}


def revoke_token(store: Store, asked: AdminRequest) -> Json:
    """By its id, or the beginning of it. Agents that joined with it stay."""
    if asked.name.startswith("tlj_"):
        raise BadValue("name the token by its id: the token itself is a secret")
    record = store.tokens.revoke(asked.name, asked.wall_s)
    return {"id": record.id, "revoked": True, "uses": record.uses}


def list_enrolments(store: Store, asked: AdminRequest) -> Json:
    """Every agent that joined, revoked ones too, and what it may serve."""
    return {"agents": [_agent_facts(record) for record in store.agents.list()]}


def set_agent(store: Store, asked: AdminRequest) -> Json:
    """Rename it, or change what it may serve, or its labels. What is not named stays."""
    body = asked.body
    models, labels, new = (body.get(name) for name in ("models", "labels", "name"))
    if (new is None) == (models is None and labels is None):
        raise BadValue("give either another name, or models or labels")
    if new is not None:
        return _agent_facts(store.agents.rename(asked.name, new))
    return _agent_facts(store.agents.allow(asked.name, models, labels))


def revoke_agent(store: Store, asked: AdminRequest) -> Json:
    """Its tunnel ends within a second, its key never comes back."""
    record = store.agents.revoke(asked.name, asked.body.get("reason", ""), asked.wall_s)
    token = store.tokens.get(record.token_id)
    active = token is not None and token.state(asked.wall_s) is TokenState.ACTIVE
    left = token.uses_allowed - token.uses if token is not None and active else 0
    return {"agent": record.name, "revoked": True, "token": record.token_id, "token_uses_left": left}


def _token_facts(record: TokenRecord, wall_s: float) -> dict[str, Any]:
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


def _agent_facts(record: AgentRecord) -> dict[str, Any]:
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
    }
