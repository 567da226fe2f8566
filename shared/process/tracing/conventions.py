"""The names of OpenTelemetry's semantic conventions for generative AI that Trunkline uses, and only here.

They are those of the schema :data:`SCHEMA_URL`. All ``gen_ai`` names are still of status Development, so a
later schema may rename them: then this file changes, and the changelog says so. Names that the conventions do
not have begin with ``trunkline.``.
"""

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

# --- Generative AI

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"

OPERATIONS = {"chat": "chat", "completions": "text_completion", "embeddings": "embeddings"}
"""The operations that the conventions name, by route. Messages and responses are chats in other dialects."""
OPERATIONS |= {"messages": "chat", "responses": "chat"}

PROVIDER = "trunkline"
"""What provides models to the gateway's clients. Of an engine it is its kind, such as ``vllm``."""

SERVER_METRICS = {
    "gen_ai.server.request.duration": "trunkline_request_seconds",
    "gen_ai.server.time_to_first_token": "trunkline_time_to_first_token_seconds",
    "gen_ai.server.time_per_output_token": "trunkline_time_per_output_token_seconds",
}
"""The conventions' metrics of model servers, and the gateway's histograms that measure the same."""

# --- HTTP and errors

HTTP_METHOD = "http.request.method"
HTTP_STATUS = "http.response.status_code"
URL_PATH = "url.path"
ERROR_TYPE = "error.type"

# --- Trunkline's own

REQUEST_ID = "trunkline.request.id"
ROUTE = "trunkline.route"
TIER = "trunkline.tier"
TENANT = "trunkline.tenant"
JOB_ID = "trunkline.job.id"
JOB_STATE = "trunkline.job.state"
JOB_GROUP = "trunkline.job.group"
"""The batch that a job belongs to."""
AGENT = "trunkline.agent"
DEPLOYMENT = "trunkline.deployment"
ATTEMPTS = "trunkline.attempts"
ATTEMPT = "trunkline.attempt"
"""Its number in the request: 1 is the first."""
TROUBLE = "trunkline.trouble"
"""Why an attempt did not bring the request to its end."""
RETRY_REASON = "trunkline.retry.reason"
"""The trouble of the attempt before."""
QUEUE_S = "trunkline.queue.seconds"
GPU_S = "trunkline.gpu.seconds"
FIRST_BYTE_S = "trunkline.engine.first_byte.seconds"
ENGINE_S = "trunkline.engine.seconds"
"""Times that the agent measured, from the arrival of the request there."""


def operation_of(route: str) -> str:
    """The conventions' name of what is asked for, or the route's where they have none."""
    return OPERATIONS.get(route, route)
