"""Request bodies of the routes that read texts and write none. Pure.

Those of reranking are Jina's and Cohere's, those of scores and classes vLLM's.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictStr, model_validator

from agent.engines.torch.errors import InvalidRequest
from agent.engines.torch.parsing import EngineRequest, TokenCount, Tokens

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


Text = Annotated[StrictStr, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=_EMBEDDING_INPUTS), BeforeValidator(_several)]
_WANTED = f"a string, or 1 to {_EMBEDDING_INPUTS} of them, and none of them empty"


class ClassifyRequest(EngineRequest):
    input: Texts = Field(repr=False, description=_WANTED)


class ScoreRequest(EngineRequest):
    text_1: Texts = Field(repr=False, description=_WANTED)
    text_2: Texts = Field(repr=False, description=_WANTED)

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len(self.text_1) not in (1, len(self.text_2)):
            raise InvalidRequest("text_1 must be one text, or as many as text_2.", param="text_1")
        return self


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    text: Text


class RerankRequest(EngineRequest):
    """``top_n`` None: all documents are returned, best first."""

    query: Text = Field(repr=False, description="a string that is not empty")
    documents: Annotated[list[Text | Document], Field(min_length=1, max_length=_EMBEDDING_INPUTS)] = Field(
        repr=False,
        description=f"1 to {_EMBEDDING_INPUTS} strings or objects with a text, and none of them empty",
    )
    top_n: TokenCount | None = None
    return_documents: StrictBool = True

    @property
    def texts(self) -> list[str]:
        return [each if isinstance(each, str) else each.text for each in self.documents]
