"""The agent's spans: in traces that the gateway began, and nowhere else."""

from agent.engines.backend import BackendError, BackendTimeout
from agent.requests.tracing import EngineTracing
from shared.process.tracing.context import read_traceparent
from shared.process.tracing.spans import SpanData, SpanRole
from tests.agent.support.requests_in import TOKEN, agent_with, played
from tests.support.kept_spans import KeptSpans

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
USED = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'


async def ask(trace: str | None, error: BackendError | None = None) -> tuple[list[SpanData], str | None]:
    """The spans of one request, and the traceparent that its engine got."""
    kept, backend = KeptSpans(), played()
    async with agent_with(backend) as here:
        here.runner._tracing = EngineTracing(kept, lambda: 1_000)
        headers = () if trace is None else (("traceparent", trace),)
        _, answer = here.ask(b"{}", trace=trace, headers=headers, path="/v1/chat/completions", usage="keep")
        await backend.begun.wait()
        here.clock.advance(0.5)
        if error is None:
            backend.response.pieces.put_nowait(TOKEN)
            await answer.until("data")
            here.clock.advance(1.5)
            backend.response.pieces.put_nowait(USED)
            backend.response.pieces.put_nowait(None)
            await answer.until("end")
        else:
            backend.response.pieces.put_nowait(error)
            await answer.until("reset")
    return kept.spans, dict(backend.heads[0].headers).get("traceparent")


async def test_a_sampled_trace_goes_on_to_the_engine_with_a_span_of_the_agents_between() -> None:
    [span], passed_on = await ask(GIVEN)
    parent, below = read_traceparent(GIVEN), read_traceparent(passed_on)
    assert parent is not None
    assert below is not None
    assert (span.trace_id, span.parent_id, span.role) == (parent.trace_id, parent.span_id, SpanRole.CLIENT)
    assert (below.trace_id, below.span_id, below.sampled) == (span.trace_id, span.span_id, True)
    assert (span.start_ns, span.end_ns - span.start_ns, span.error) == (1_000, 2_000_000_000, None)
    assert span.name == f"chat {span.attributes['gen_ai.request.model']}"
    assert span.attributes["trunkline.engine.first_byte.seconds"] == 0.5
    assert span.attributes["gen_ai.usage.input_tokens"] == 7
    assert span.attributes["http.response.status_code"] == 200


async def test_the_agent_begins_no_trace_of_its_own_and_keeps_what_is_not_sampled_as_it_is() -> None:
    assert await ask(None) == ([], None)
    unsampled = GIVEN[:-2] + "00"
    assert await ask(unsampled) == ([], unsampled)


async def test_an_engine_that_fails_makes_the_span_one_of_an_error() -> None:
    [span], _ = await ask(GIVEN, BackendTimeout("silent"))
    assert span.error == "engine_timeout"
