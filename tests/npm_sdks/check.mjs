// Compares the SDKs' view of a gateway with their view of its backends. ../npm_sdks.sh calls this script.

import { spawn } from "node:child_process";
import { createWriteStream, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { recordings, start as startReplay } from "./replay.mjs";
import { Sdks } from "./sdks.mjs";

const { BACKEND, GATEWAY, WORK } = process.env;
const MODEL = BACKEND ? (await (await fetch(`${BACKEND}/v1/models`)).json()).data[0].id : "sim-model";
const READY_MS = 20_000;
// A busy server divides the same text into other events. So each request to a live engine is repeated.
const ATTEMPTS = 8;
// Values that differ between two requests to a live engine.
const VOLATILE = /\\?"(id|item_id|call_id|created|created_at|completed_at)\\?":(\\?"[^"\\]*\\?"|\d+)/g;

const messages = [{ role: "user", content: "hello" }];
const request = (path, defaults) => (body) => ({ path, body: { model: MODEL, temperature: 0, ...defaults, ...body } });
const chat = request("/v1/chat/completions", { seed: 1, messages, max_tokens: 24 });
const completion = request("/v1/completions", { seed: 1, prompt: "The router", max_tokens: 16 });
const response = request("/v1/responses", { input: "hello", max_output_tokens: 16 });
const message = request("/v1/messages", { messages, max_tokens: 16 });
const both = (api, body = {}) => [api(body), api({ ...body, stream: true })];
const usage = { stream: true, stream_options: { include_usage: true } };
const LIVE = [
  ...both(chat), chat(usage), ...both(chat, { n: 2 }), ...both(chat, { max_tokens: 1 }),
  chat({ stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } }),
  ...both(completion), completion(usage), ...both(completion, { prompt: ["The router", "A cache"] }),
  ...both(response), ...both(message),
  { path: "/v1/messages/count_tokens", body: { model: MODEL, messages } },
  { path: "/v1/embeddings", body: { model: MODEL, input: ["hello", "count"] } },
  { path: "/v1/embeddings", body: { model: MODEL, input: "hello", encoding_format: "float" } },
  ...both(chat, { n: 0 }), ...both(chat, { max_tokens: 1_000_000 }), chat({ messages: undefined }),
  completion({ max_tokens: -1 }), message({ max_tokens: 1_000_000 }), chat({ stream_options: { include_usage: true } }),
];
const UNKNOWN = { model: "nope" };
const UNKNOWN_MODEL = [...both(chat, UNKNOWN), completion(UNKNOWN), response(UNKNOWN), message(UNKNOWN)];

let failures = 0;
function check(what, defects, count) {
  failures += defects.length;
  console.log(`${defects.length ? "FAILED" : "ok"}: ${what}: ${count - defects.length} of ${count}`);
  for (const defect of defects.slice(0, 5)) console.log(`  ${defect}`);
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

async function until(condition, milliseconds = 10_000) {
  for (const deadline = Date.now() + milliseconds; Date.now() < deadline; ) {
    if (await condition()) return true;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return false;
}

const children = [];
process.on("exit", () => children.forEach((child) => child.kill()));
async function start(name, argumentsOf, ready) {
  const log = createWriteStream(`${WORK}/${name}.log`);
  const lines = createWriteStream(`${WORK}/${name}.jsonl`);
  const child = spawn(GATEWAY, argumentsOf, { stdio: ["ignore", "pipe", "pipe"] });
  child.stdout.pipe(lines);
  child.stderr.pipe(log);
  children.push(child);
  const isReady = () => fetch(ready).then((answer) => answer.ok, () => false);
  if (await until(isReady, READY_MS)) return;
  throw new Error(`${name} is not ready: ${readFileSync(`${WORK}/${name}.log`, "utf8").slice(-2000)}`);
}

/** The first difference of two texts, with its surroundings. */
function difference(direct, through) {
  let index = 0;
  while (index < direct.length && direct[index] === through[index]) index += 1;
  const around = (text) => JSON.stringify(text.slice(Math.max(0, index - 60), index + 60));
  return `direct ${around(direct)}, through the gateway ${around(through)}`;
}

const canonical = (text) => text.replace(VOLATILE, '"$1":0');
/** Class, status and fields of an error. The gateway has a text of its own. For the Anthropic API it writes the type of
    Anthropic, `not_found_error`, and vLLM writes `NotFoundError`. For the other APIs it writes the code of OpenAI for an
    unknown model, and vLLM writes the status. */
function errorFields({ error: { class: name, status, code: written, param } }) {
  const code = written === 404 ? "model_not_found" : written;
  return JSON.stringify({ name, status, code, param });
}
const whole = ({ bytes, values }) => `${bytes}\n${values}`;

/** Compares the responses to requests of one method of `Sdks`. */
async function compare(what, requests, method, direct, through, { attempts = 1, view = whole } = {}) {
  const defects = [];
  let count = 0;
  for (const request of requests) {
    const [seen, expected] = [new Set(), new Set()];
    let [actual, wanted] = ["", ""];
    for (let attempt = 0; attempt < attempts && !seen.has(wanted) && !expected.has(actual); attempt += 1) {
      const results = [await direct[method](request), await through[method](request)];
      if (results[0] === null) break;
      [wanted, actual] = results.map(view).map(attempts > 1 ? canonical : String);
      expected.add(wanted);
      seen.add(actual);
    }
    if (!wanted) continue;
    count += 1;
    if (!seen.has(wanted) && !expected.has(actual)) {
      const name = request.name ?? `${request.path} ${JSON.stringify(request.body)}`;
      defects.push(`${name}: ${difference(wanted, actual)}`);
    }
  }
  check(what, defects, count);
}

/** With `on_truncation: error_event` an SDK raises the error of a truncated stream after the events. */
async function checkTruncations(sdks) {
  const requests = recordings(false);
  const results = await Promise.all(requests.map((request) => sdks.create(request)));
  const wrong = results.filter(({ error }) => error?.type !== "BadGatewayError");
  check("errors of truncated streams", wrong.map(({ values }) => values.slice(-400)), results.length);
}

/** Series with the open requests of the gateway and of the engine. */
const OPEN_REQUESTS = /^(?:tokenweir_requests_in_flight|vllm:num_requests_(?:running|waiting))(?:{.*})? (.*)$/gm;

/** Four ways to stop a stream early. Each must end the request in the engine. */
const STOPS = {
  "abort by a signal": async (create, controller) => {
    const stream = await create({ signal: controller.signal });
    for await (const _ of stream) controller.abort();
  },
  "abort of the stream": async (create) => {
    const stream = await create({});
    for await (const _ of stream) stream.controller.abort();
  },
  "end of the loop": async (create) => {
    for await (const _ of await create({})) break;
  },
  "timeout before the response": (create) => create({ timeout: 1 }),
};

async function checkAborts(sdks, admin, backend) {
  // The responses must last longer than the client needs to stop them. The Messages API has no `ignore_eos`; the small
  // model of the tests with a real vLLM counts for 62 tokens.
  const long = { max_tokens: 1500, ignore_eos: true, messages: [{ role: "user", content: "count" }] };
  const requests = { openai: chat({ ...long, stream: true }), anthropic: message({ ...long, stream: true }) };
  const isIdle = async () => {
    const pages = await Promise.all([admin, backend].map(async (url) => (await fetch(`${url}/metrics`)).text()));
    return [...pages.join("\n").matchAll(OPEN_REQUESTS)].every(([, value]) => Number(value) === 0);
  };
  const defects = [];
  for (const [sdk, { path, body }] of Object.entries(requests)) {
    for (const [name, stop] of Object.entries(STOPS)) {
      const id = `${sdk}-${name.replaceAll(" ", "-")}`;
      const create = (options) => sdks.resources[path].create(body, { ...options, headers: { "x-request-id": id } });
      await stop(create, new AbortController()).catch((error) => error);
      if (!(await until(isIdle))) defects.push(`${id}: the request did not end`);
      if (name.startsWith("timeout")) continue;
      const lines = () => readFileSync(`${WORK}/gateway.jsonl`, "utf8").split("\n");
      const isCancelled = (line) => line.includes(`"${id}"`) && line.includes('"outcome":"cancelled"');
      if (!(await until(() => lines().some(isCancelled)))) defects.push(`${id}: no access-log line with cancelled`);
    }
  }
  check("streams that the client stops end in the engine", defects, 8);
}

const [sim, listen, admin] = await Promise.all([freePort(), freePort(), freePort()]);
const backend = BACKEND || `http://127.0.0.1:${sim}`;
const backends = [{ url: backend }];
if (!BACKEND) await start("sim", ["sim", "--backends", "1", "--listen", `127.0.0.1:${sim}`], `${backend}/health`);
// A real vLLM can have the model name of the recordings. The gateway would then send their requests to it.
const replay = BACKEND ? null : await startReplay();
const replayed = replay && `http://127.0.0.1:${replay.address().port}`;
if (replay) backends.push({ url: replayed });
writeFileSync(`${WORK}/gateway.yaml`, JSON.stringify({
  listen: `127.0.0.1:${listen}`, admin: `127.0.0.1:${admin}`, backends,
  // The gateway then asks for usage in every stream and removes it from the response.
  continuous_usage: 1,
  // A recording has this field.
  access: { allow: ["priority"] },
  streams: { on_truncation: "error_event" },
}));
const adminUrl = `http://127.0.0.1:${admin}`;
await start("gateway", ["serve", "--config", `${WORK}/gateway.yaml`, "--log-format", "json"], `${adminUrl}/readyz`);

const through = new Sdks(`http://127.0.0.1:${listen}`);
const live = new Sdks(backend);
await compare("responses of the engine", LIVE, "create", live, through, { attempts: ATTEMPTS });
await compare("accumulated streams of the engine", LIVE, "accumulate", live, through, { attempts: ATTEMPTS });
await compare("errors for an unknown model", UNKNOWN_MODEL, "create", live, through, { view: errorFields });
if (replay) {
  const recorded = new Sdks(replayed);
  await compare("recorded responses", recordings(), "create", recorded, through);
  await compare("accumulated recorded streams", recordings(), "accumulate", recorded, through);
  await checkTruncations(through);
}
const models = (await through.openai.models.list()).data.map(({ id }) => id).sort().join();
check("list of models", [MODEL, ...(replay ? ["tiny"] : [])].join() === models ? [] : [models], 1);
await checkAborts(through, adminUrl, backend);
replay?.close();
process.exit(failures ? 1 : 0);
