"""Parses request bodies as a Python server does: with FastAPI, and with Starlette alone.

Each line of the input is a case: `json` or `form`, the Content-Type, and the body. The last two are in
hexadecimal, or `-` if empty. Each line of the output has the results of FastAPI and of Starlette: `-` for a
rejected body, `n` for a body without a model, or `m` and the model in hexadecimal.
"""

import asyncio
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
    if model is None or model == "":
        return "n"
    if not isinstance(model, str):
        return "-"
    return "m" + model.encode("utf-8", "surrogatepass").hex()


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
        return "-"
    return b"".join(message.get("body", b"") for message in sent[1:]).decode().strip('"')


async def by_starlette(kind, content_type, body):
    request = Request(scope_of(kind, content_type), receive_of(body))
    if kind == "form":
        async with request.form() as form:
            return encode(form.get("model"))
    body = await request.json()
    return encode(body.get("model")) if isinstance(body, dict) else "-"


async def read(line):
    kind, content_type, body = line.split()
    content_type, body = (bytes.fromhex(text.strip("-")) for text in (content_type, body))
    results = []
    for reader in by_fastapi, by_starlette:
        try:
            results.append(await reader(kind, content_type, body))
        # Any exception of the parser means that the server rejects the body.
        except Exception:
            results.append("-")
    return " ".join(results)


async def main():
    for line in sys.stdin:
        print(await read(line))


asyncio.run(main())
