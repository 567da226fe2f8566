"""What engines say of their models beside their names: what they can do, and how much they take. Pure.

What a model can do is told in the engine's own words: ``tools``, ``vision``, … Three shapes are known: a list
of words (Ollama's ``/api/show``, llama.cpp's ``/v1/models``), an object of word → true (LM Studio's
``/api/v1/models``) and an object of word → ``{"supported": true}`` (Anthropic's ``/v1/models``). Engines that
say it in members of their own are read by a function for each. Its words are Ollama's.
"""

import re
from collections.abc import Mapping
from typing import Any

from shared.process.frozen import frozen
from shared.protocol.capabilities import usable_capabilities

LISTED = 2048
"""How many entries of a list are looked at."""

TOKENS_MAX = 2**31
"""No context is as long."""

_LISTS = ("data", "models")
_NAMES = ("id", "key", "model", "name")
_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)


@frozen
class ModelDescription:
    """What an engine says of a model. Empty or None: it does not say."""

    capabilities: tuple[str, ...] = ()
    context_tokens: int | None = None
    """The most tokens of one request, prompt and answer together."""

    def joined(self, other: "ModelDescription") -> "ModelDescription":
        """What both say: each word once, and the shorter context, as neither takes more than it says."""
        words = usable_capabilities([*self.capabilities, *other.capabilities])
        contexts = [each for each in (self.context_tokens, other.context_tokens) if each is not None]
        return ModelDescription(words, min(contexts, default=None))


NOTHING_SAID = ModelDescription()


def capabilities_of(description: Any) -> tuple[str, ...]:
    """Those in an object with the member ``capabilities``; empty where it says none."""
    said = description.get("capabilities") if isinstance(description, dict) else None
    if isinstance(said, dict):
        said = [word for word, value in said.items() if value is True or _is_supported(value)]
    return usable_capabilities(said) if isinstance(said, list) else ()


def capabilities_in(document: Any) -> dict[str, tuple[str, ...]]:
    """Those in a list of models, by each name that an entry has; models that say none are left out."""
    found: dict[str, tuple[str, ...]] = {}
    for names, entry in _entries(document):
        if said := capabilities_of(entry):
            found |= dict.fromkeys(names, said)
    return found


def contexts_in(document: Any) -> dict[str, int]:
    """The contexts in a list of models that are loaded (Ollama's ``/api/ps``), by each name of an entry."""
    found: dict[str, int] = {}
    for names, entry in _entries(document):
        if (tokens := _tokens(entry.get("context_length"))) is not None:
            found |= dict.fromkeys(names, tokens)
    return found


def facts_of_ollama(shown: Any) -> ModelDescription:
    """Of a model, by ``/api/show``. The context there is what the model was made for; how much Ollama gives
    it is a setting, which is told only where the model's own file has it."""
    parameters = shown.get("parameters") if isinstance(shown, dict) else None
    found = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    return ModelDescription(capabilities_of(shown), _tokens(int(found[1])) if found else None)


def facts_of_kserve(metadata: Any) -> ModelDescription:
    """Of a model, by its metadata (``/v2/models/{model}``): the platform that runs it."""
    platform = metadata.get("platform") if isinstance(metadata, dict) else None
    return ModelDescription(usable_capabilities([platform]))


def facts_of_llama_cpp(props: Mapping[str, Any]) -> ModelDescription:
    """Of the one model of an engine, by ``/props``: ``modalities``, ``chat_template_caps`` and the context of
    a slot."""
    settings, modalities = _object(props, "default_generation_settings"), _object(props, "modalities")
    words = [word for word in ("vision", "audio") if modalities.get(word) is True]
    if _object(props, "chat_template_caps").get("supports_tools") is True:
        words.append("tools")
    return ModelDescription(tuple(words), _tokens(settings.get("n_ctx")))


def facts_of_sglang(said: Mapping[str, Any]) -> ModelDescription:
    """Of the one model of an engine, by ``/get_model_info`` and its settings in ``/get_server_info``."""
    meanings = {
        "completion": said.get("is_generation") is True,
        "embedding": said.get("is_generation") is False,
        "vision": said.get("has_image_understanding") is True,
        "audio": said.get("has_audio_understanding") is True,
        "tools": bool(said.get("tool_call_parser")),
        "thinking": bool(said.get("reasoning_parser")),
    }
    words = tuple(word for word, there in meanings.items() if there)
    return ModelDescription(words, _tokens(said.get("context_length")))


def facts_of_tgi(info: Mapping[str, Any]) -> ModelDescription:
    """Of the one model of an engine, by ``/info``."""
    return ModelDescription(context_tokens=_tokens(info.get("max_total_tokens")))


def _entries(document: Any) -> list[tuple[list[str], dict[str, Any]]]:
    """The first entries of a list of models, each with all its names."""
    found = []
    for entries in [document.get(name) for name in _LISTS] if isinstance(document, dict) else ():
        for entry in entries[:LISTED] if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                found.append(([entry[name] for name in _NAMES if isinstance(entry.get(name), str)], entry))
    return found


def _object(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _tokens(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < TOKENS_MAX else None


def _is_supported(value: Any) -> bool:
    return isinstance(value, dict) and value.get("supported") is True
