#!/usr/bin/env bash
# Opens WebSockets through a running gateway with a real client and a real server, Python's `websockets`:
# subprotocol, text and binary messages, large messages, ping, and closes by either side. Installs the library
# from the Python package index if it is missing. `PYTHON` is an interpreter that has it.
#
#   TOKENWEIR  the gateway's binary   (default: built in debug mode)
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python=${PYTHON:-python3}
if ! "$python" -c 'import websockets.asyncio' 2>/dev/null; then
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet websockets==15.0.1
  python="$work/venv/bin/python"
fi
binary=${TOKENWEIR:-}
if [[ -z $binary ]]; then
  cargo build --locked --quiet --bin tokenweir
  binary=${CARGO_TARGET_DIR:-target}/debug/tokenweir
fi
PYTHONPATH=tests/common "$python" - "$binary" "$work" <<'PY'
import asyncio, http, json, subprocess, sys
from servers import free_ports, wait_until_ready
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Response

binary, work = sys.argv[1:]
PAGES = {
    "/health": "", "/version": '{"version":"0.32.0"}', "/metrics": 'vllm:num_requests_running{engine="0"} 0.0\n',
    "/v1/models": json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "vllm"}]}),
}

def answer(_, request):
    page = PAGES.get(request.path.split("?")[0])
    if page is not None:
        headers = Headers({"content-length": str(len(page)), "content-type": "application/json"})
        return Response(200, "OK", headers, page.encode())

async def echo(connection):
    try:
        async for message in connection:
            if message == "close":
                await connection.close(4000, "asked")
            await connection.send(message)
    except ConnectionClosed:
        pass

async def main():
    async with serve(echo, "127.0.0.1", 0, process_request=answer, subprotocols=["realtime"], max_size=None) as server:
        port = server.sockets[0].getsockname()[1]
        listen, admin = free_ports(2)
        gateway = subprocess.Popen(
            [binary, "serve", "--backend", f"http://127.0.0.1:{port}", "--listen", f"127.0.0.1:{listen}",
             "--admin", f"127.0.0.1:{admin}"], stdout=open(f"{work}/log", "w"), stderr=subprocess.STDOUT)
        try:
            await asyncio.to_thread(wait_until_ready, f"http://127.0.0.1:{admin}/readyz")
            await exchange(f"ws://127.0.0.1:{listen}/v1/realtime?model=tiny", listen, gateway)
        except BaseException:
            print(open(f"{work}/log").read()[-3000:], file=sys.stderr)
            raise
        finally:
            gateway.terminate()
            gateway.wait(timeout=30)

async def exchange(url, listen, gateway):
    async with connect(url, subprotocols=["realtime"], max_size=None) as client:
        assert client.subprotocol == "realtime", client.subprotocol
        for message in ("text", b"binary", "x" * 3_000_000, bytes(range(256)) * 8_000):
            await client.send(message)
            assert await asyncio.wait_for(client.recv(), 30) == message
        await asyncio.wait_for(await client.ping(), 30)
    assert client.close_code == 1000, client.close_code
    async with connect(url, subprotocols=["realtime"]) as client:
        await client.send("close")
        try:
            await asyncio.wait_for(client.recv(), 30)
            raise AssertionError("the server closed")
        except ConnectionClosed as closed:
            assert (closed.rcvd.code, closed.rcvd.reason) == (4000, "asked"), closed
    clients = await asyncio.gather(*(connect(url, subprotocols=["realtime"]) for _ in range(100)))
    for number, client in enumerate(clients):
        await client.send(str(number))
    for number, client in enumerate(clients):
        assert await asyncio.wait_for(client.recv(), 30) == str(number)
    try:
        await connect(f"ws://127.0.0.1:{listen}/v1/chat/completions")
        raise AssertionError("an upgrade on another path")
    except InvalidStatus as refused:
        assert refused.response.status_code == http.HTTPStatus.METHOD_NOT_ALLOWED, refused
    gateway.terminate()
    for client in clients:
        await asyncio.wait_for(client.wait_closed(), 30)
        assert client.close_code == 1006, client.close_code
    print("messages in both directions, 100 connections at once, closes by each side and by a shutdown: ok")

asyncio.run(main())
PY
