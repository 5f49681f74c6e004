// A server that answers with the recordings of tests/wire/python. A request names its recording in a header.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";

const FOLDER = new URL("../wire/python/", import.meta.url);
const HEADER = "x-recording";
const PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"];
const MODEL = "tiny";
const MODELS = JSON.stringify({ object: "list", data: [{ id: MODEL, object: "model", owned_by: "vllm" }] });
const PAGES = { "/health": "", "/version": '{"version":"0.32.0"}', "/v1/models": MODELS };
const METRICS = 'vllm:num_requests_running{engine="0"} 0.0\n';

/** The recordings of complete responses to JSON bodies with the served model, as requests of an SDK. `isComplete` false:
    those of truncated streams. */
export function recordings(isComplete = true) {
  const lines = readFileSync(new URL("index.jsonl", FOLDER), "utf8").trim().split("\n").map(JSON.parse);
  return lines.flatMap(({ name, set, path, body }) => {
    const expected = JSON.parse(readFileSync(new URL(`${name}.expected.json`, FOLDER), "utf8"));
    const isSelected = isComplete ? expected.complete_http : expected.outcome === "truncated";
    const parsed = isSelected && PATHS.includes(path) && parse(body);
    // The server of the set `limits` writes usage into each event without a request for it. The gateway asks such a
    // server for no usage once it has seen one of its streams, but here one server answers for all sets.
    const hasForcedUsage = set === "limits" && expected.stream;
    // The SDKs do not read the interim response 100.
    if (parsed?.model !== MODEL || hasForcedUsage || name === "error-expect") return [];
    return [{ name, path, body: parsed, headers: { [HEADER]: name } }];
  });
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Starts the server at a free port. */
export function start() {
  const server = createServer((request, response) => {
    request.resume().on("end", () => {
      const name = request.headers[HEADER];
      if (name) {
        request.socket.end(readFileSync(new URL(`${name}.http`, FOLDER)));
      } else {
        const page = request.url === "/metrics" ? METRICS : PAGES[request.url];
        response.writeHead(page === undefined ? 404 : 200).end(page);
      }
    });
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server)));
}
