"""Small JSON bodies of OpenAI's surface, read into what they are to be."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gateway.api.exchange.exchange import HttpExchange
from gateway.domain.errors import BadRequest, BodyTooLarge, UnsupportedEncoding

BODY_BYTES = 256 * 1024

Body = TypeVar("Body", bound=BaseModel)


async def read_json(exchange: HttpExchange, model: type[Body], most_bytes: int = BODY_BYTES) -> Body:
    """The JSON object sent; an empty one when nothing was. Raises RequestError."""
    fields, inbound = exchange.fields, exchange.inbound

    def enough(chunk: bytes) -> bool:
        if inbound.received_bytes > most_bytes:
            raise BodyTooLarge(f"The body may be {most_bytes} bytes long here at most.")
        return False

    if fields.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
        raise UnsupportedEncoding("Compressed bodies are not accepted here.", param="content-encoding")
    raw = await inbound.read(enough)
    if raw and b"json" not in fields.get(b"content-type", b"").lower():
        raise BadRequest("Send JSON, with content-type application/json.", param="content-type")
    try:
        return model.model_validate_json(raw or b"{}")
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> BadRequest:
    """Of the first thing that is wrong."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid" or not first["loc"]:
        return BadRequest("The request body must be a JSON object.", code="invalid_json")
    param = ".".join(str(each) for each in first["loc"])
    if first["type"] == "missing":
        return BadRequest(
            f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
        )
    return BadRequest(f"Invalid value for '{param}': {first['msg']}.", param=param, code="invalid_value")
