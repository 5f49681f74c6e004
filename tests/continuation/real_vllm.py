"""Continuation of broken streams between two vLLM servers: cuts the connection of the first backend at
random offsets, and compares what the client gets with the unbroken answer.

real_vllm.py GATEWAY URL URL [--mode exact] [--seconds 240] [--seed 1] [--sampled]
"""
import argparse, asyncio, collections, json, pathlib, random, socket, struct, sys, time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "common"))
from servers import free_ports, gateway, post

options = argparse.ArgumentParser()
options.add_argument("gateway")
options.add_argument("engines", nargs=2)
options.add_argument("--mode", default="exact")
options.add_argument("--seconds", type=float, default=240)
options.add_argument("--seed", type=int, default=1)
options.add_argument("--sampled", action="store_true")
options = options.parse_args()
chance = random.Random(options.seed)
WORDS = "river stone emoji count apple letters sky 数字 ocean poem list seven color größe train logic".split()


class Cutter:
    """Forwards connections to an engine. The next response to a POST is cut after `left` bytes, once."""

    left = None

    def __init__(self, url):
        self.host, port = url.removeprefix("http://").split(":")
        self.engine, (self.port,) = int(port), free_ports(1)

    async def start(self):
        await asyncio.start_server(self.serve, "127.0.0.1", self.port)

    async def serve(self, client_in, client_out):
        engine_in, engine_out = await asyncio.open_connection(self.host, self.engine)
        state = {"post": False}

        async def up():
            while data := await client_in.read(1 << 16):
                state["post"] |= b"POST /v1/" in data
                engine_out.write(data)
                await engine_out.drain()

        async def down():
            while data := await engine_in.read(1 << 16):
                if state["post"] and Cutter.left is not None:
                    if len(data) > Cutter.left:
                        client_out.write(data[: Cutter.left])
                        await client_out.drain()
                        await asyncio.sleep(0.01)
                        Cutter.left = None
                        linger = struct.pack("ii", 1, 0)
                        client_out.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                        client_out.transport.abort()
                        return
                    Cutter.left -= len(data)
                client_out.write(data)
                await client_out.drain()

        tasks = [asyncio.ensure_future(up()), asyncio.ensure_future(down())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for writer in (engine_out, client_out):
            writer.close()


async def answer(port, path, body):
    """The events of a stream, its bytes, its longest pause in seconds, and whether its body came to its regular end."""
    reader, writer = await post(port, path, json.dumps(body).encode())
    await reader.readuntil(b"\r\n\r\n")
    raw, last, pause, whole = b"", None, 0.0, False
    try:
        while True:
            size = int(await reader.readline(), 16)
            now = time.monotonic()
            pause, last = max(pause, now - last) if last else 0.0, now
            data = await reader.readexactly(size + 2)
            if size == 0:
                whole = True
                break
            raw += data[:-2]
    except (asyncio.IncompleteReadError, ValueError, ConnectionError):
        pass
    writer.close()
    events = [event[6:] for event in raw.decode("utf-8", "replace").split("\n\n") if event.startswith("data: ")]
    return events, len(raw), pause, whole


def read(events):
    """What a client reads in events: text, finish reasons, usage, ids, roles, end markers, whether token ids are shown."""
    text, reasoning, finish, usage, ids, roles, shows_ids = "", "", [], None, set(), 0, False
    for event in events:
        if event == "[DONE]":
            continue
        event = json.loads(event)
        ids.add((event["id"], event["created"]))
        usage = event.get("usage") or usage
        shows_ids |= bool(event.get("prompt_token_ids"))
        for choice in event["choices"]:
            delta = choice.get("delta") or {"content": choice.get("text")}
            text += delta.get("content") or ""
            reasoning += delta.get("reasoning") or ""
            roles += "role" in delta
            shows_ids |= bool(choice.get("token_ids") or choice.get("prompt_token_ids"))
            finish += [choice["finish_reason"]] if choice["finish_reason"] else []
    counts = usage and (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
    return dict(text=text, reasoning=reasoning, finish=finish, usage=counts, ids=len(ids), roles=roles, done=events.count("[DONE]"), shows_ids=shows_ids)


def request(number):
    prompt = " ".join(chance.choices(WORDS, k=chance.randint(3, 40)))
    body = {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": chance.choice([40, 60, 90])}
    body |= {"temperature": 1.0} if options.sampled else {"temperature": 0}
    if number % 3 == 2:
        return "/v1/completions", body | {"prompt": prompt}
    if number % 3 == 1:
        body |= {"messages": [{"role": "system", "content": "Answer with emoji."}, {"role": "user", "content": prompt}]}
    else:
        body |= {"messages": [{"role": "user", "content": prompt}]}
    if number % 6 == 3 and options.mode == "exact":
        body |= {"chat_template_kwargs": {"enable_thinking": True}}
    return "/v1/chat/completions", body


async def main():
    cutters = [Cutter(url) for url in options.engines]
    for cutter in cutters:
        await cutter.start()
    port, admin = free_ports(2)
    backends = "".join(f"\n  - {{ name: e{i}, url: 'http://127.0.0.1:{cutter.port}' }}" for i, cutter in enumerate(cutters))
    config = f"backends: {backends}\nstreams: {{ continuation: {options.mode} }}\n"
    counts, pauses, ttfts = collections.Counter(), [], []
    async with gateway(options.gateway, port, admin, config):
        ends, number = time.monotonic() + options.seconds, 0
        while time.monotonic() < ends:
            path, body = request(number)
            number += 1
            engine = int(options.engines[0].rsplit(":", 1)[1])
            whole, length, _, _ = await answer(engine, path, body)
            whole = read(whole)
            # The stream from the engine to the gateway has token ids, so it is longer than the client's.
            Cutter.left = chance.randint(300, int(length * 1.15))
            events, _, pause, is_whole = await answer(port, path, body)
            was_cut = Cutter.left is None
            Cutter.left = None
            got = read(events if is_whole else [])
            fixed = lambda answer: {name: answer[name] for name in ("finish", "usage", "ids", "roles", "done", "shows_ids")}
            if not was_cut:
                counts["not cut"] += 1
            elif not is_whole:
                counts["cut short"] += 1
            elif options.sampled:
                counts["whole" if got["done"] == 1 and got["ids"] == 1 else "WRONG"] += 1
            elif fixed(got) == fixed(whole) and (got["text"], got["reasoning"]) == (whole["text"], whole["reasoning"]):
                counts["equal"] += 1
                pauses.append(pause)
            else:
                unbroken, _, _, _ = await answer(int(options.engines[1].rsplit(":", 1)[1]), path, body)
                same = read(unbroken)["text"] == whole["text"]
                counts["text differs" if got["text"] != whole["text"] else "other value differs"] += 1
                print(json.dumps({"path": path, "engines agree": same, "got": got, "whole": whole}, ensure_ascii=False), flush=True)
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics").read().decode()
        lines = [line for line in metrics.splitlines() if line.startswith("tokenweir_stream_continuation") and not line.endswith(" 0")]
        print("\n".join(lines))
    pauses.sort()
    share = lambda p: round(1e3 * pauses[int(p * (len(pauses) - 1))]) if pauses else None
    print(f"{options.mode}: n = {number}, {dict(counts)}, longest pause p50 {share(0.5)} ms, p99 {share(0.99)} ms")


asyncio.run(main())
