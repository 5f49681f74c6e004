"""Parses request bodies as a Python server does: with FastAPI, and with Starlette alone.

Each line of the input is a case as a JSON array: `json` or `form`, the bytes of the Content-Type, and those of
the body. Each line of the output is an array with the results of FastAPI and of Starlette: `null` for a
rejected body, or the bytes of the model, of which a body without a model has none.
"""

import asyncio
import json
import sys
from typing import Annotated

from fastapi import FastAPI, Form, UploadFile
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request


class Generation(BaseModel):
    """A request of vLLM with the one field of this test. Like vLLM it allows unknown fields."""

    model_config = ConfigDict(extra="allow")
    model: str | None = None


class Speech(BaseModel):
    """The request as a form. The file is optional, so that more forms are accepted."""

    model_config = ConfigDict(extra="allow")
    model: str | None = None
    stream: bool | None = False
    file: UploadFile | None = None


app = FastAPI()


@app.post("/json")
async def generate(body: Generation):
    return encode(body.model)


@app.post("/form")
async def transcribe(body: Annotated[Speech, Form()]):
    return encode(body.model)


def encode(model):
    if model is None:
        return []
    return list(model.encode("utf-8", "surrogatepass")) if isinstance(model, str) else None


def scope_of(kind, content_type):
    headers = [(b"content-type", content_type)] if content_type else []
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": f"/{kind}",
        "raw_path": f"/{kind}".encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


def receive_of(body):
    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def by_fastapi(kind, content_type, body):
    sent = []

    async def send(message):
        sent.append(message)

    await app(scope_of(kind, content_type), receive_of(body), send)
    if sent[0]["status"] != 200:
        return None
    return json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


async def by_starlette(kind, content_type, body):
    request = Request(scope_of(kind, content_type), receive_of(body))
    if kind == "form":
        async with request.form() as form:
            return encode(form.get("model"))
    body = await request.json()
    return encode(body.get("model")) if isinstance(body, dict) else None


async def read(line):
    kind, content_type, body = json.loads(line)
    content_type, body = bytes(content_type), bytes(body)
    results = []
    for reader in by_fastapi, by_starlette:
        try:
            results.append(await reader(kind, content_type, body))
        # Any exception of the parser means that the server rejects the body.
        except Exception:
            results.append(None)
    return json.dumps(results)


async def main():
    for line in sys.stdin:
        print(await read(line))


asyncio.run(main())
