"""Publishes KV events as vLLM does, with pyzmq and msgspec, for crates/kv_events/tests/pyzmq.rs.

    publisher.py PORT REPLAY_PORT arrays|maps

A line on standard input is a JSON object: `events`, and `is_lost` if no subscriber gets the batch. A port of 0
means any. The first line on standard output has both ports.
"""

import json
import os
import struct
import sys
from collections import deque
from typing import Any

import msgspec
import zmq

ENCODING = sys.argv[3]
OPTIONS = {"array_like": True} if ENCODING == "arrays" else {}


class Event(msgspec.Struct, omit_defaults=True, gc=False, tag=True, **OPTIONS):
    pass


class BlockStored(Event):
    block_hashes: list[Any]
    parent_block_hash: Any
    token_ids: list[int]
    block_size: int
    lora_id: Any = None
    medium: Any = "GPU"
    lora_name: Any = None
    extra_keys: Any = None
    group_idx: Any = 0
    kv_cache_spec_kind: Any = "full_attention"
    kv_cache_spec_sliding_window: Any = None
    session_id: Any = None


class BlockRemoved(Event):
    block_hashes: list[Any]
    medium: Any = "GPU"
    group_idx: Any = 0


class AllBlocksCleared(Event):
    pass


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: Any = None


TYPES = {"stored": BlockStored, "removed": BlockRemoved, "cleared": AllBlocksCleared}


def main():
    context = zmq.Context()
    live, replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    ports = []
    for socket, port in ((live, sys.argv[1]), (replay, sys.argv[2])):
        socket.linger = 0
        socket.bind(f"tcp://127.0.0.1:{port if port != '0' else '*'}")
        ports.append(socket.last_endpoint.decode().rsplit(":", 1)[1])
    print(*ports, flush=True)
    buffer, number, lines = deque(maxlen=10_000), 0, b""
    encoder = msgspec.msgpack.Encoder()
    poller = zmq.Poller()
    poller.register(replay, zmq.POLLIN)
    poller.register(0, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if replay in ready:
            client, _, start = replay.recv_multipart()
            for sequence, payload in buffer:
                if sequence >= struct.unpack(">Q", start)[0]:
                    send_replay(replay, client, struct.pack(">Q", sequence), payload)
            send_replay(replay, client, b"\xff" * 8, b"")
        if 0 in ready:
            read = os.read(0, 1 << 16)
            if not read:
                return
            *complete, lines = (lines + read).split(b"\n")
            for line in complete:
                request = json.loads(line)
                events = [TYPES[event.pop("type")](**event) for event in request["events"]]
                payload = encoder.encode(EventBatch(float(number), events, 0))
                buffer.append((number, payload))
                if not request.get("is_lost"):
                    live.send_multipart([b"kv@test", struct.pack(">Q", number), payload])
                number += 1


def send_replay(replay, client, sequence, payload):
    """Sends a batch again. vLLM up to 0.22, which has the array encoding, sends no topic with it."""
    topic = [] if ENCODING == "arrays" else [b"kv@test" if payload else b""]
    replay.send_multipart([client, b"", *topic, sequence, payload])


main()
