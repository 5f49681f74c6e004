"""The official OpenAI client and its observations of each response."""

import time
from dataclasses import dataclass, field
from itertools import count

import openai

MODEL = "tiny"


@dataclass(frozen=True)
class Request:
    """One request."""

    api: str
    prompt: str
    stream: bool
    body: dict = field(default_factory=dict)
    wants_usage: bool = True

    @property
    def is_known(self) -> bool:
        """Whether the response has the same text every time."""
        return self.body.get("temperature") == 0 and "n" not in self.body


@dataclass
class Response:
    """The client's observations of one response. Times are of the client's clock."""

    request_id: str
    request: Request
    called: float | None = None
    sent: float | None = None
    first_output: float | None = None
    text: str = ""
    finish: dict[int, str] = field(default_factory=dict)
    input: int | None = None
    output: int | None = None
    cached: int | None = None

    def ttft_ms(self, begin: float) -> float:
        """Milliseconds from a moment to the first output."""
        return (self.first_output - begin) * 1e3

    def on_output(self, text: str | None) -> None:
        """Adds output text of any kind, and records the time of the first text of a stream. No effect without text."""
        if text:
            if self.first_output is None and self.request.stream:
                self.first_output = time.perf_counter()
            self.text += text


class Sdk:
    """A client of one server."""

    def __init__(self, base: str, name: str):
        hooks = {"request": [self._on_request]}
        http = openai.DefaultAsyncHttpxClient(event_hooks=hooks)
        self.client = openai.AsyncOpenAI(
            base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=60, http_client=http
        )
        self._ids = (f"{name}-{number}" for number in count())
        self._sent = {}

    async def _on_request(self, request) -> None:
        async def on_step(name: str, _about: dict) -> None:
            # When httpx reports this step, a new connection is already established, so its setup is not
            # measured.
            if name.endswith("send_request_headers.started"):
                self._sent[request.headers["x-request-id"]] = time.perf_counter()

        request.extensions["trace"] = on_step

    def begin(self, request: Request) -> Response:
        """An empty response for a request, which `read` then sends."""
        return Response(next(self._ids), request)

    async def send(self, request: Request) -> Response:
        """Sends a request and reads the whole response."""
        response = self.begin(request)
        await self.read(response)
        return response

    async def read(self, response: Response) -> None:
        """Sends the request of a response from `begin`, and reads the response to its end."""
        send, on_body, on_event = APIS[response.request.api]
        headers = {"x-request-id": response.request_id}
        response.called = time.perf_counter()
        result = await send(self.client, response.request, headers)
        response.sent = self._sent.pop(response.request_id)
        if not response.request.stream:
            on_body(response, result)
            return
        async with result:
            async for event in result:
                on_event(response, event)


def _chat(client, request, headers):
    return client.chat.completions.create(
        messages=[{"role": "user", "content": request.prompt}], **_common(request, headers)
    )


def _completion(client, request, headers):
    return client.completions.create(prompt=request.prompt, **_common(request, headers))


def _response(client, request, headers):
    body = dict(request.body)
    if "max_tokens" in body:
        body["max_output_tokens"] = body.pop("max_tokens")
    body.pop("ignore_eos", None)
    extra = {"model": MODEL, "stream": request.stream, "extra_headers": headers}
    return client.responses.create(input=request.prompt, **extra, **body)


def _common(request, headers):
    body, extra = dict(request.body), {}
    for name in ("ignore_eos", "chat_template_kwargs"):
        if name in body:
            extra[name] = body.pop(name)
    if request.stream and request.wants_usage:
        body["stream_options"] = {"include_usage": True}
    body |= {"model": MODEL, "stream": request.stream, "extra_headers": headers, "extra_body": extra}
    return body


def _on_chat(response, data):
    for choice in data.choices:
        part = choice.delta if response.request.stream else choice.message
        response.on_output(getattr(part, "reasoning", None))
        response.on_output(part.content)
        for call in part.tool_calls or ():
            response.on_output(call.function.name)
            response.on_output(call.function.arguments)
        _on_finish(response, choice)
    _on_usage(response, data.usage)


def _on_completion(response, data):
    for choice in data.choices:
        response.on_output(choice.text)
        _on_finish(response, choice)
    _on_usage(response, data.usage)


def _on_finish(response, choice):
    if choice.finish_reason:
        response.finish[choice.index] = choice.finish_reason


def _on_usage(response, usage):
    if usage:
        response.input, response.output = usage.prompt_tokens, usage.completion_tokens
        response.cached = usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens


def _on_response_event(response, event):
    if event.type.endswith(".delta"):
        response.on_output(event.delta)
    elif event.type in ("response.completed", "response.incomplete"):
        _on_response_end(response, event.response)


def _on_response(response, data):
    response.on_output(data.output_text)
    _on_response_end(response, data)


def _on_response_end(response, data):
    is_incomplete = data.status == "incomplete"
    reason = data.incomplete_details.reason if is_incomplete else data.status
    response.finish[0] = {"completed": "stop", "max_output_tokens": "length"}.get(reason, reason)
    response.input, response.output = data.usage.input_tokens, data.usage.output_tokens
    response.cached = data.usage.input_tokens_details.cached_tokens


APIS = {
    "chat": (_chat, _on_chat, _on_chat),
    "completions": (_completion, _on_completion, _on_completion),
    "responses": (_response, _on_response, _on_response_event),
}
