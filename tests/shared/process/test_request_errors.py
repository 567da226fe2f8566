"""The errors of the HTTP surface that gateway and built-in engine have in common."""

import pytest

from shared.process import request_errors
from shared.process.request_errors import BadRequest, MethodNotAllowed, ModelNotFound, RequestError

COMMON = [
    kind
    for kind in vars(request_errors).values()
    if isinstance(kind, type) and issubclass(kind, RequestError) and kind is not RequestError
]


def test_the_body_has_message_type_param_and_code() -> None:
    assert ModelNotFound("no", param="model").openai_body() == {
        "error": {
            "message": "no",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


def test_a_code_and_a_wait_that_are_given_are_those_of_this_error_alone() -> None:
    error = BadRequest("no", code="invalid_json", retry_after_s=2.0)
    assert (error.code, error.retry_after_s) == ("invalid_json", 2.0)
    assert (BadRequest("no").code, BadRequest("no").retry_after_s) == ("bad_request", None)


def test_a_wrong_method_may_be_told_the_right_ones() -> None:
    assert MethodNotAllowed("no", ("GET",)).allowed == ("GET",)
    assert MethodNotAllowed("no").allowed == ()


@pytest.mark.parametrize("kind", COMMON)
def test_each_has_a_code_of_its_own_and_the_type_of_its_status(kind: type[RequestError]) -> None:
    kinds = {401: "authentication_error", 429: "overloaded_error"}
    assert kind.type == kinds.get(kind.status, "invalid_request_error")
    assert [other for other in COMMON if other.code == kind.code] == [kind]
