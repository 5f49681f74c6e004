"""Measures how long a drain with `migrate` takes to empty a backend. Checks that no stream fails.

drain.py GATEWAY [--streams 200] [--rounds 20]

Two backends write a token every 100 ms on each stream. All streams begin at one backend, which is then
drained. Each stream must have every token once.
"""
import argparse, asyncio, json, pathlib, sys, time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "common"))
from servers import free_ports, gateway, post

options = argparse.ArgumentParser()
options.add_argument("gateway")
options.add_argument("--streams", type=int, default=200)
options.add_argument("--rounds", type=int, default=20)
options = options.parse_args()
TOKENS, PROMPT, GAP = 60, [7, 8, 9], 0.1
USAGE = {"prompt_tokens": 3, "completion_tokens": TOKENS, "total_tokens": 3 + TOKENS}


async def read_message(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length: ")[1].split("\r\n")[0]) if "content-length: " in head else 0
    return head, await reader.readexactly(length)


class Backend:
    """A minimal vLLM server, with what the gateway needs. Token `n` is the word `wN`."""

    def __init__(self, name, port):
        self.name, self.port, self.left = name, port, []

    async def start(self):
        await asyncio.start_server(self.serve, "127.0.0.1", self.port, backlog=1024)

    async def serve(self, reader, writer):
        try:
            while True:
                head, body = await read_message(reader)
                if "/v1/chat" in head:
                    await self.stream(json.loads(body), reader, writer)
                    continue
                answer = json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model"}]}).encode()
                answer = b"vllm:num_requests_running{engine=\"0\"} 1.0\n" if "/metrics" in head else answer
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            writer.close()

    async def stream(self, request, reader, writer):
        prompt = request.get("kv_transfer_params", {}).get("prompt_token_ids", PROMPT)
        begun = len(prompt) - len(PROMPT)

        def event(data=None, **members):
            data = data or json.dumps({"id": self.name, "created": 1, "model": "tiny", **members})
            data = f"data: {data}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))

        choice = lambda delta, ids=None, finish=None: [{"index": 0, "delta": delta, "finish_reason": finish, "token_ids": ids}]
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        event(choices=choice({"role": "assistant", "content": ""}), prompt_token_ids=prompt)
        closed = asyncio.ensure_future(reader.read(1))
        for word in range(begun, TOKENS):
            await asyncio.wait([closed], timeout=GAP)
            if closed.done():
                closed.exception()
                self.left.append(time.monotonic())
                raise ConnectionError
            finish = "length" if word == TOKENS - 1 else None
            event(choices=choice({"content": f"w{word} "}, [100 + word], finish))
        counts = {"prompt_tokens": len(prompt), "completion_tokens": TOKENS - begun, "total_tokens": len(PROMPT) + TOKENS}
        event(choices=[], usage=counts)
        event(data="[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        closed.cancel()
        raise ConnectionError


async def client(port, begun):
    """Reads one stream. Returns whether it was whole, and its longest pause in seconds."""
    body = {"model": "tiny", "stream": True, "temperature": 0, "max_tokens": TOKENS, "stream_options": {"include_usage": True}}
    body = json.dumps(body | {"messages": [{"role": "user", "content": "hi"}]}).encode()
    reader, writer = await post(port, "/v1/chat/completions", body)
    text, usage, done, pause, last = "", None, 0, 0.0, None
    while line := await reader.readline():
        if not line.startswith(b"data: "):
            continue
        now = time.monotonic()
        pause, last = max(pause, now - (last or now)), now
        if line.strip() == b"data: [DONE]":
            done += 1
            continue
        data = json.loads(line[6:])
        usage = data.get("usage") or usage
        for choice in data["choices"]:
            text += choice["delta"].get("content") or ""
            begun.release() if choice["delta"].get("content") == "w2 " else None
    writer.close()
    return (text, usage, done) == ("".join(f"w{word} " for word in range(TOKENS)), USAGE, 1), pause


async def operate(admin, action):
    reader, _ = await post(admin, f"/-/{action}")
    answer = await reader.read()
    assert b" 200 " in answer.split(b"\r\n")[0], answer


async def main():
    port, admin, *ports = free_ports(4)
    backends = [Backend(name, port) for name, port in zip("ab", ports)]
    for backend in backends:
        await backend.start()
    urls = "".join(f"\n  - {{ name: {backend.name}, url: 'http://127.0.0.1:{backend.port}' }}" for backend in backends)
    config = f"admission: {{ enabled: false }}\nbackends: {urls}\nstreams: {{ continuation: exact }}\n"
    times, pauses, failed = [], [], 0
    async with gateway(options.gateway, port, admin, config):
        for number in range(options.rounds):
            source, target = backends[number % 2], backends[1 - number % 2]
            await operate(admin, f"drain?backend={target.name}")
            begun = asyncio.Semaphore(0)
            clients = [asyncio.ensure_future(client(port, begun)) for _ in range(options.streams)]
            for _ in clients:
                await begun.acquire()
            await operate(admin, f"undrain?backend={target.name}")
            source.left = []
            began = time.monotonic()
            await operate(admin, f"drain?backend={source.name}&migrate=true")
            results = await asyncio.gather(*clients)
            failed += sum(not whole for whole, _ in results)
            failed += options.streams - len(source.left)
            times.append(max(source.left, default=began) - began)
            pauses += [pause for _, pause in results]
            await operate(admin, f"undrain?backend={source.name}")
    share = lambda values, p: round(1e3 * sorted(values)[int(p * (len(values) - 1))])
    print(f"{options.rounds} drains of {options.streams} streams: empty after p50 {share(times, 0.5)} ms, longest {share(times, 1)} ms; "
          f"longest pause of a stream p50 {share(pauses, 0.5)} ms, p99 {share(pauses, 0.99)} ms; failed or not moved: {failed}")


asyncio.run(main())
