"""Reads what an answer of the engine says."""

from agent.engines.torch.answers import PreparedTexts, TextAnswer
from agent.engines.torch.generation import Prompt, TextGenerator


def begin(texts: TextGenerator, prompt: Prompt) -> TextAnswer:
    """The answer to one prompt."""
    return TextAnswer(texts, PreparedTexts((prompt,)))


async def next_text(answer: TextAnswer) -> str | None:
    """What was added to the answer, whichever choice it is; None at its end."""
    chunks = await answer.next()
    return "".join(chunk.text for chunk in chunks) if chunks else None


async def rest_of(answer: TextAnswer) -> str:
    said = ""
    while (text := await next_text(answer)) is not None:
        said += text
    return said
