"""What failures mean: the server's status and words decide, one row for each way that servers say it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.agent.classify import MESSAGE_LIMIT, Facts, classify, message_in, seconds
from hub.agent.model import ErrorKind


def openai(message: str, code: object = None, type: str = "invalid_request_error") -> dict[str, object]:
    return {"message": message, "type": type, "param": None, "code": code}


ROWS: list[tuple[int | None, object, ErrorKind]] = [
    (400, openai("This model's maximum context length is 8192 tokens.", "context_length_exceeded"), "overflow"),
    (400, {"type": "error", "error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}, "overflow"),
    (400, openai("the request exceeds the available context size. try increasing it", 400, "x"), "overflow"),
    (400, "input length exceeds maximum context length", "overflow"),
    (400, '{"error": "{\\"message\\": \\"Please reduce the length of the messages.\\"}"}', "overflow"),
    (422, openai("too many tokens: 9000"), "overflow"),
    (400, openai("The input token count (40000) exceeds the maximum number of tokens allowed"), "overflow"),
    (413, openai("Request too large"), "overflow"),
    (None, openai("maximum context length is 10", "context_length_exceeded"), "overflow"),
    (429, openai("Request too large for gpt-x on tokens per min (TPM): Limit 30000", "rate_limit_exceeded"), "retry"),
    (429, openai("Rate limit reached: context window per minute"), "retry"),
    (429, openai("You exceeded your current quota, please check your plan", "insufficient_quota"), "quota"),
    (400, openai("Your credit balance is too low to access the API."), "quota"),
    (402, openai("pay first"), "quota"),
    (403, openai("Billing hard limit has been reached", "billing_hard_limit_reached"), "quota"),
    (401, openai("Incorrect API key provided"), "auth"),
    (403, openai("no access to this model"), "auth"),
    (400, openai("API key not valid. Invalid API key"), "auth"),
    (404, openai("The model does not exist", "model_not_found"), "invalid"),
    (400, "model does not support tools", "invalid"),
    (422, openai("messages: field required"), "invalid"),
    (501, None, "invalid"),
    (408, None, "retry"),
    (409, None, "retry"),
    (429, None, "retry"),
    (500, "<html>oops</html>", "retry"),
    (502, None, "retry"),
    (503, openai("overloaded"), "retry"),
    (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "retry"),
    (None, openai("boom", 500, "server_error"), "retry"),
    (None, openai("Overloaded", type="overloaded_error"), "retry"),
    (None, openai("odd"), "unknown"),
    (302, None, "unknown"),
]


@pytest.mark.parametrize(("status", "body", "kind"), ROWS)
def test_what_a_failure_means(status: int | None, body: object, kind: ErrorKind) -> None:
    assert classify(Facts("library text", status, body)).kind == kind


@pytest.mark.parametrize(("status", "body", "kind"), ROWS)
def test_once_an_answer_has_begun_what_would_pass_is_incomplete(
    status: int | None, body: object, kind: ErrorKind
) -> None:
    expected = "incomplete" if kind in ("retry", "unknown") else kind
    assert classify(Facts("library text", status, body, began=True)).kind == expected


def test_a_failed_connection_passes_whatever_number_a_library_gave_it() -> None:
    assert classify(Facts("Connection error.", 500, connection=True)).kind == "retry"


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (Facts("x", 400, openai("as it stands")), "as it stands"),
        (Facts("x", 400, "a bare text"), "a bare text"),
        (Facts("x", 400, {"error": "a text"}), "a text"),
        (Facts("x", 422, {"detail": [{"loc": ["body"], "msg": "field required"}]}), "field required"),
        (Facts("x", 400, '{"error": {"message": "{\\"detail\\": \\"deep\\"}"}}'), "deep"),
        (Facts("x", 502, "<html><h1>Bad\n gateway</h1></html>"), "Bad gateway"),
        (Facts("litellm.BadRequestError: OpenAIException - Error code: 400", 400), "Error code: 400"),
        (
            Facts("""litellm.InternalServerError: AnthropicError - b'{"error": {"message": "it\\'s busy"}}'""", 529),
            "it's busy",
        ),
        (Facts('litellm.BadRequestError: OpenAIException - {"error": "inner"}', 400), "inner"),
        (Facts("", 400), "The model gave no reason."),
        (Facts("x" * 9000, 400), "x" * MESSAGE_LIMIT),
    ],
)
def test_the_text_is_the_servers_own(facts: Facts, message: str) -> None:
    assert classify(facts).message == message


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7.0), ("0.5", 0.5), (None, None), ("Wed, 21 Oct 2026", None), ("-1", None), ("nan", None)]
)
def test_retry_after(text: str | None, value: float | None) -> None:
    assert seconds(text) == value


def test_only_what_may_pass_has_a_time_to_wait() -> None:
    assert classify(Facts("x", 429, retry_after="7")).retry_after_s == 7
    assert classify(Facts("x", 401, retry_after="7")).retry_after_s is None


def test_a_body_that_contains_itself_is_read_to_the_limit() -> None:
    body: dict[str, object] = {"error": []}
    body["error"] = body
    assert classify(Facts("told", 400, body)).message == "told"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["error", "message", "code", "x"]), inner),
)


@settings(deadline=None)
@given(st.none() | st.integers(300, 599), json_values, st.booleans())
def test_every_failure_means_something(status: int | None, body: object, began: bool) -> None:
    fault = classify(Facts("told", status, body, began=began))
    assert fault.message
    assert len(message_in(body)) >= 0
