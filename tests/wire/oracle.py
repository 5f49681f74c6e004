#!/usr/bin/env python3
"""Computes what an observer must report about each recorded exchange.

For every line of */index.jsonl in this folder it reads NAME.http (the
response, byte for byte) and writes NAME.expected.json next to it. It shares no
code with the observer and is simple enough to verify by reading: whole files in
memory, the WHATWG event stream rules one by one, json.loads.

    python3 oracle.py            write the expected files
    python3 oracle.py --check    write nothing, exit 1 if a file differs
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

APIS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/inference/v1/generate": "completions",  # tokens instead of text
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/embeddings": "embeddings",
}
RESPONSES_LAST = (
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.cancelled",
    "error",
)
MESSAGES_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


# ---- values that may be absent or of another type ----


def as_dict(value):
    return value if isinstance(value, dict) else {}


def as_list(value):
    return value if isinstance(value, list) else []


def str_or_none(value):
    return value if isinstance(value, str) else None


def bool_or_none(value):
    return value if isinstance(value, bool) else None


def int_or_none(value):
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def first_int(*values):
    return next((v for v in values if int_or_none(v) is not None), None)


def parse_json(text):
    """The JSON object in `text`, or {} when there is none."""
    try:
        return as_dict(json.loads(text))
    except ValueError:
        return {}


# ---- HTTP/1.1 ----


def parse_http(raw):
    """(status, headers, body, whether it is complete) of the final response in `raw`."""
    head, separator, rest = raw.partition(b"\r\n\r\n")
    if not separator:
        return None, {}, b"", False
    first, *lines = head.decode("latin-1").split("\r\n")
    status = int(first.split(" ")[1])
    if 100 <= status < 200:  # an interim response precedes the final one
        return parse_http(rest)
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body, complete = dechunk(rest)
    elif "content-length" in headers:
        length = int(headers["content-length"])
        body, complete = rest[:length], len(rest) >= length
    else:  # the body ends where the connection ends
        body, complete = rest, True
    return status, headers, body, complete


def dechunk(data):
    """(body without chunked framing, whether the last chunk was seen). The bytes of a cut chunk belong to the body."""
    body = b""
    while True:
        line, separator, data = data.partition(b"\r\n")
        if not separator:
            return body, False
        size = int(line.split(b";")[0], 16)
        if size == 0:
            return body, data.endswith(b"\r\n")
        body += data[:size]
        if len(data) < size + 2:
            return body, False
        data = data[size + 2 :]


# ---- server-sent events (WHATWG HTML, 9.2.6) ----


def parse_events(body):
    """([(type, data)], number of comment lines). An event without its blank line is dropped."""
    text = body.decode("utf-8", errors="replace").removeprefix("\ufeff")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")[:-1]  # text after the last line end is not a line
    events, comments = [], 0
    event_type, data = "", []
    for line in lines:
        if line == "":
            if data:
                events.append((event_type or "message", "\n".join(data)))
            event_type, data = "", []
        elif line.startswith(":"):
            comments += 1
        else:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                event_type = value
            elif field == "data":
                data.append(value)
    return events, comments


# ---- generated output of one event ----


def event_output(api, kind, doc):
    """The kind of output of an event: None, "answer", "reasoning", or "unspecified" (tokens of unknown kind)."""
    if api == "chat":
        kinds = [chat_output(as_dict(c)) for c in as_list(doc.get("choices"))]
    elif api == "completions":
        kinds = [completion_output(as_dict(c)) for c in as_list(doc.get("choices"))]
    elif api == "responses":
        kinds = [responses_output(kind)]
    elif api == "messages":
        kinds = [messages_output(kind, doc)]
    else:
        kinds = []
    ranked = ("answer", "reasoning", "unspecified")
    return next((kind for kind in ranked if kind in kinds), None)


def chat_output(choice):
    delta = as_dict(choice.get("delta"))
    if delta.get("content") or delta.get("refusal"):
        return "answer"
    if delta.get("tool_calls") or isinstance(delta.get("function_call"), dict):
        return "answer"
    if delta.get("reasoning") or delta.get("reasoning_content"):
        return "reasoning"
    if choice.get("token_ids") or as_dict(choice.get("logprobs")).get("content"):
        return "unspecified"
    held_back = delta.get("content") == "" and "role" not in delta
    if held_back and choice.get("finish_reason") is None:
        return "unspecified"
    return None


def completion_output(choice):
    if choice.get("text"):
        return "answer"
    if choice.get("token_ids") or as_dict(choice.get("logprobs")).get("tokens"):
        return "unspecified"
    if choice.get("text") == "" and choice.get("finish_reason") is None:
        return "unspecified"
    return None


def responses_output(kind):
    if not (kind.startswith("response.") and kind.endswith(".delta")):
        return None
    return "reasoning" if "reasoning" in kind else "answer"


def messages_output(kind, doc):
    if kind != "content_block_delta":
        return None
    delta_type = as_dict(doc.get("delta")).get("type")
    return "reasoning" if delta_type in ("thinking_delta", "signature_delta") else "answer"


def tokens_of_event(doc, seen):
    """Exact number of tokens in this event or None.

    `seen` has the last completion_tokens of each choice index (continuous
    usage). The function must be called for every event, with output or not.
    """
    choices = [as_dict(c) for c in as_list(doc.get("choices"))]
    total = int_or_none(as_dict(doc.get("usage")).get("completion_tokens"))
    counts = []
    for choice in choices:
        logprobs = as_dict(choice.get("logprobs"))
        by_logprobs = logprobs.get("content", logprobs.get("tokens"))
        increase = None
        if total is not None:
            increase = total - seen.get(choice.get("index"), 0)
            seen[choice.get("index")] = total
        if isinstance(choice.get("token_ids"), list):
            counts.append(len(choice["token_ids"]))
        elif isinstance(by_logprobs, list):
            counts.append(len(by_logprobs))
        else:
            counts.append(increase)
    if not counts or None in counts:
        return None
    return sum(counts)


# ---- facts of the whole exchange ----


def is_last_event(api, kind, data):
    if api == "responses":
        return kind in RESPONSES_LAST
    if api == "messages":
        return kind in ("message_stop", "error")
    return data == "[DONE]"


def error_of(doc):
    """{"code", "type"} of an error event or an error body, or None."""
    error = doc.get("error")
    if doc.get("type") == "response.failed":
        error = as_dict(doc.get("response")).get("error")
    elif doc.get("type") == "error" and error is None:
        error = {"code": doc.get("code")}
    if error is None:
        return None
    error = as_dict(error)
    code = error.get("code")
    return {"code": None if code is None else str(code), "type": str_or_none(error.get("type"))}


def finish_reasons(api, docs):
    """The finish reasons: one raw reason per choice index; one mapped reason for responses and messages."""
    if api in ("chat", "completions"):
        found = {}
        for choice in (as_dict(c) for d in docs for c in as_list(d.get("choices"))):
            index = choice.get("index", 0)
            found[index] = str_or_none(choice.get("finish_reason")) or found.get(index)
        return [found.get(i) for i in range(max(found) + 1)] if found else None
    if api == "responses":
        answers = [r for r in map(response_of, docs) if r]
        return [responses_reason(answers[-1])] if answers else None
    if api == "messages":
        answers = [m for m in map(message_of, docs) if "stop_reason" in m]
        if not answers:
            return None
        reason = answers[-1]["stop_reason"]
        return [MESSAGES_REASONS.get(reason, reason)]
    return None


def responses_reason(response):
    if response.get("status") == "completed":
        return "stop"
    if response.get("status") == "incomplete":
        reason = as_dict(response.get("incomplete_details")).get("reason")
        return "length" if reason == "max_output_tokens" else reason
    return None


def response_of(doc):
    """The response object: inside an event, or the whole body."""
    if doc.get("object") == "response":
        return doc
    return as_dict(doc.get("response"))


def message_of(doc):
    """The message, or its part in this event."""
    if doc.get("type") == "message_start":
        return as_dict(doc.get("message"))
    if doc.get("type") == "message_delta":
        return as_dict(doc.get("delta"))
    return doc if doc.get("type") == "message" else {}


def usage_of(api, docs):
    """The token counts in the last usage of the exchange."""
    if api == "responses":
        usages = [as_dict(response_of(d).get("usage")) for d in docs]
    elif api == "messages":
        # The output_tokens of message_start are a placeholder, not a count.
        usages = [as_dict(d.get("usage")) for d in docs]
        started = [as_dict(as_dict(d.get("message")).get("usage")) for d in docs]
        usages = [{**u, "output_tokens": None} for u in started if u] + usages
    else:
        usages = [as_dict(d.get("usage")) for d in docs]
    usages = [u for u in usages if u]
    if not usages:
        return None
    last = usages[-1]
    if api == "messages":
        return messages_usage(usages)
    if api == "responses":
        names = "input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details"
    else:
        names = "prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"
    return {
        "input": int_or_none(last.get(names[0])),
        "output": int_or_none(last.get(names[1])),
        "cached": int_or_none(as_dict(last.get(names[2])).get("cached_tokens")),
        "reasoning": int_or_none(as_dict(last.get(names[3])).get("reasoning_tokens")),
    }


def messages_usage(usages):
    """Anthropic's input_tokens does not include cached tokens; the total does."""
    prompt = [u for u in usages if int_or_none(u.get("input_tokens")) is not None]
    outputs = [u["output_tokens"] for u in usages if int_or_none(u.get("output_tokens")) is not None]
    total, cached = None, None
    if prompt:
        cached = int_or_none(prompt[-1].get("cache_read_input_tokens"))
        created = int_or_none(prompt[-1].get("cache_creation_input_tokens"))
        total = prompt[-1]["input_tokens"] + (cached or 0) + (created or 0)
    output = outputs[-1] if outputs else None
    return {"input": total, "output": output, "cached": cached, "reasoning": None}


def identity(docs, field):
    """The member `field` (`model` or `id`) of the first event or body that has it. None if no event or body has it."""
    for doc in docs:
        for holder in (doc, as_dict(doc.get("response")), as_dict(doc.get("message"))):
            if str_or_none(holder.get(field)):
                return holder[field]
    return None


def outcome(facts):
    status = facts["status"]
    if status is not None and 400 <= status < 500:
        return "client_error"
    if status is not None and status >= 500:
        return "upstream_error"
    if facts["stream"] and facts["error"] is not None:
        return "stream_error"
    if not facts["terminal"] or not facts["complete_http"]:
        return "truncated"
    if "abort" in (facts["finish_reasons"] or []):
        return "aborted"
    return "ok"


def request_facts(body):
    request = parse_json(body or "")
    return {
        "model": str_or_none(request.get("model")),
        "stream": bool_or_none(request.get("stream")),
        "n": int_or_none(request.get("n")),
        "max_tokens": first_int(
            request.get("max_completion_tokens"),
            request.get("max_tokens"),
            request.get("max_output_tokens"),
        ),
        "include_usage": bool_or_none(as_dict(request.get("stream_options")).get("include_usage")),
    }


def expected(entry, raw):
    api = APIS.get(entry["path"], "other")
    status, headers, body, complete = parse_http(raw)
    media_type = headers.get("content-type", "").split(";")[0].strip().lower()
    stream = media_type == "text/event-stream"

    events, comments = parse_events(body) if stream else ([], 0)
    outputs, tokens, seen = [], [], {}
    for i, (kind, data) in enumerate(events):
        doc = parse_json(data)
        count = tokens_of_event(doc, seen)
        output = event_output(api, kind, doc)
        if output:
            outputs.append((i, output))
            tokens.append(count)

    if stream:
        docs = [parse_json(data) for _, data in events]
        terminal = any(is_last_event(api, kind, data) for kind, data in events)
    else:
        docs = [parse_json(body.decode("utf-8", errors="replace"))]
        terminal = complete
    facts = {
        "api": api,
        "status": status,
        "stream": stream,
        "request": request_facts(entry["body"]),
        "complete_http": complete,
        "terminal": terminal,
        "finish_reasons": finish_reasons(api, docs),
        "usage": usage_of(api, docs),
        "events": len(events),
        "comments": comments,
        "output_events": len(outputs),
        "first_output_event": outputs[0][0] if outputs else None,
        "first_answer_event": next((i for i, output in outputs if output == "answer"), None),
        "tokens_in_events": tokens,
        "error": next(filter(None, map(error_of, docs)), None),
        "response_model": identity(docs, "model"),
        "response_id": identity(docs, "id"),
    }
    facts["outcome"] = outcome(facts)
    return facts


def render(facts):
    """One field per line, so that diffs are readable."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit("usage: oracle.py [--check]")
    wanted, different = set(), []
    for index in sorted(HERE.glob("*/index.jsonl")):
        for line in index.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            recording = index.parent / f"{entry['name']}.http"
            target = index.parent / f"{entry['name']}.expected.json"
            wanted.add(target)
            text = render(expected(entry, recording.read_bytes()))
            if check:
                if not target.is_file() or target.read_text(encoding="utf-8") != text:
                    different.append(target)
            else:
                target.write_text(text, encoding="utf-8")
    different += sorted(set(HERE.glob("*/*.expected.json")) - wanted)
    for path in different:
        print(f"differs: {path.relative_to(HERE)}", file=sys.stderr)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
