"""Background responses with OpenAI's SDK on a running gateway."""

from typing import Any

from openai import OpenAI

from tests.integration.conftest import MODEL, Site
from tests.support.processes import answer_to, fetch, until

TOKENS = 12


def test_a_response_is_streamed_left_taken_up_again_and_another_one_cancelled(site: Site) -> None:
    engine, before = site.engine, site.engine.stats()
    sent = before["sent_tokens"]
    asked: dict[str, Any] = {"model": MODEL, "background": True, "max_output_tokens": TOKENS}
    stepped = {"script": {"stepped": True}}

    with OpenAI(base_url=site.base_url, api_key=site.key, max_retries=0, timeout=60) as client:
        stream = client.responses.create(**asked, input="one", stream=True, extra_body=stepped)
        opening = [next(stream) for _ in range(2)]
        assert [each.type for each in opening] == ["response.created", "response.queued"]
        engine.write_until(sent + 5)
        seen = opening + [next(stream) for _ in range(6)]
        stream.close()
        (response_id,) = {each.response.id for each in seen if hasattr(each, "response")}
        assert client.responses.retrieve(response_id).status == "in_progress"

        engine.write_until(sent + TOKENS)
        fetch(f"{engine.url}/_step", body={})  # to its end
        last = seen[-1].sequence_number
        seen += client.responses.retrieve(response_id, stream=True, starting_after=last)
        assert [each.sequence_number for each in seen] == list(range(len(seen)))
        assert {each.response.id for each in seen if hasattr(each, "response")} == {response_id}
        text = "".join(each.delta for each in seen if each.type == "response.output_text.delta")
        assert text == answer_to("one", TOKENS)
        found = client.responses.retrieve(response_id)
        assert (found.status, found.output_text) == (seen[-1].type.removeprefix("response."), text)

        other = client.responses.create(**asked, input="other", extra_body=stepped)
        until("it runs", lambda: client.responses.retrieve(other.id).status == "in_progress", 60.0)
        assert client.responses.cancel(other.id).status == "cancelled"
        assert client.responses.cancel(other.id).status == "cancelled"
        until("its engine has nothing to do", lambda: engine.stats()["cancelled"] > before["cancelled"], 60.0)
