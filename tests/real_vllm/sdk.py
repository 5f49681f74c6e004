"""The official OpenAI client, and what it saw of each answer."""

import time
from dataclasses import dataclass, field
from itertools import count

import openai

MODEL = "tiny"


@dataclass(frozen=True)
class Ask:
    """One request."""

    api: str
    prompt: str
    stream: bool
    body: dict = field(default_factory=dict)
    wants_usage: bool = True

    @property
    def is_known(self) -> bool:
        """Whether the model answers it the same every time."""
        return self.body.get("temperature") == 0 and "n" not in self.body


@dataclass
class Seen:
    """What the client saw of one answer. Times are of its own clock."""

    request_id: str
    ask: Ask
    called: float | None = None
    sent: float | None = None
    first_output: float | None = None
    text: str = ""
    finish: dict[int, str] = field(default_factory=dict)
    input: int | None = None
    output: int | None = None
    cached: int | None = None

    def ttft_ms(self, begin: float) -> float:
        """From a moment to the first output."""
        return (self.first_output - begin) * 1e3

    def on_output(self, text: str | None) -> None:
        """Some output came, in whatever channel."""
        if text:
            if self.first_output is None and self.ask.stream:
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
            # A new connection is there by now.
            if name.endswith("send_request_headers.started"):
                self._sent[request.headers["x-request-id"]] = time.perf_counter()

        request.extensions["trace"] = on_step

    def begin(self, ask: Ask) -> Seen:
        """A request that is about to be made."""
        return Seen(next(self._ids), ask)

    async def ask(self, ask: Ask) -> Seen:
        """Makes a request and reads the whole answer."""
        seen = self.begin(ask)
        await self.read(seen)
        return seen

    async def read(self, seen: Seen) -> None:
        """Makes the request and reads until it is over or somebody cancels it."""
        send, on_whole, on_event = SHAPES[seen.ask.api]
        headers = {"x-request-id": seen.request_id}
        seen.called = time.perf_counter()
        answer = await send(self.client, seen.ask, headers)
        seen.sent = self._sent.pop(seen.request_id)
        if not seen.ask.stream:
            on_whole(seen, answer)
            return
        async with answer:
            async for event in answer:
                on_event(seen, event)


def _chat(client, ask, headers):
    return client.chat.completions.create(
        messages=[{"role": "user", "content": ask.prompt}], **_common(ask, headers)
    )


def _completion(client, ask, headers):
    return client.completions.create(prompt=ask.prompt, **_common(ask, headers))


def _response(client, ask, headers):
    body = dict(ask.body)
    if "max_tokens" in body:
        body["max_output_tokens"] = body.pop("max_tokens")
    body.pop("ignore_eos", None)
    extra = {"model": MODEL, "stream": ask.stream, "extra_headers": headers}
    return client.responses.create(input=ask.prompt, **extra, **body)


def _common(ask, headers):
    body, more = dict(ask.body), {}
    for name in ("ignore_eos", "chat_template_kwargs"):
        if name in body:
            more[name] = body.pop(name)
    if ask.stream and ask.wants_usage:
        body["stream_options"] = {"include_usage": True}
    body |= {"model": MODEL, "stream": ask.stream, "extra_headers": headers, "extra_body": more}
    return body


def _on_chat(seen, answer):
    for choice in answer.choices:
        part = choice.delta if seen.ask.stream else choice.message
        seen.on_output(getattr(part, "reasoning", None))
        seen.on_output(part.content)
        for call in part.tool_calls or ():
            seen.on_output(call.function.name)
            seen.on_output(call.function.arguments)
        _on_finish(seen, choice)
    _on_usage(seen, answer.usage)


def _on_completion(seen, answer):
    for choice in answer.choices:
        seen.on_output(choice.text)
        _on_finish(seen, choice)
    _on_usage(seen, answer.usage)


def _on_finish(seen, choice):
    if choice.finish_reason:
        seen.finish[choice.index] = choice.finish_reason


def _on_usage(seen, usage):
    if usage:
        seen.input, seen.output = usage.prompt_tokens, usage.completion_tokens
        seen.cached = usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens


def _on_response_event(seen, event):
    if event.type.endswith(".delta"):
        seen.on_output(event.delta)
    elif event.type in ("response.completed", "response.incomplete"):
        _on_response_end(seen, event.response)


def _on_response(seen, response):
    seen.on_output(response.output_text)
    _on_response_end(seen, response)


def _on_response_end(seen, response):
    is_cut = response.status == "incomplete"
    reason = response.incomplete_details.reason if is_cut else response.status
    seen.finish[0] = {"completed": "stop", "max_output_tokens": "length"}.get(reason, reason)
    seen.input, seen.output = response.usage.input_tokens, response.usage.output_tokens
    seen.cached = response.usage.input_tokens_details.cached_tokens


SHAPES = {
    "chat": (_chat, _on_chat, _on_chat),
    "completions": (_completion, _on_completion, _on_completion),
    "responses": (_response, _on_response, _on_response_event),
}
