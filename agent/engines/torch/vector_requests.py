"""Request bodies of the routes that read texts and write none. Pure."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictStr

from agent.engines.torch.parsing import EngineRequest, Tokens

_EMBEDDING_INPUTS = 2048
"""OpenAI's own limit."""


def _several(value: Any) -> Any:
    return value if isinstance(value, list) and not (value and isinstance(value[0], int)) else [value]


class EmbeddingRequest(EngineRequest):
    input: Annotated[
        list[Annotated[StrictStr, Field(min_length=1)] | Tokens],
        Field(min_length=1, max_length=_EMBEDDING_INPUTS),
        BeforeValidator(_several),
    ] = Field(
        repr=False,
        description=f"1 to {_EMBEDDING_INPUTS} strings or lists of token ids, and none of them empty",
    )
    encoding_format: Literal["float", "base64"] = "float"
