// The official SDKs of OpenAI and Anthropic, connected to one server, and the values that they return for its
// responses.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.SDKS}/node_modules/`);
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")));
const { default: Anthropic } = await import(pathToFileURL(require.resolve("@anthropic-ai/sdk")));

const TIMEOUT_MS = 60_000;
const ERROR_FIELDS = ["status", "message", "code", "param", "type", "error"];

/** Clients that keep the bytes of the last response body. */
export class Sdks {
  constructor(base) {
    const options = { apiKey: "none", maxRetries: 0, timeout: TIMEOUT_MS, fetch: (...call) => this.#fetch(...call) };
    this.openai = new OpenAI({ ...options, baseURL: `${base}/v1` });
    this.anthropic = new Anthropic({ ...options, baseURL: base });
    const { openai, anthropic } = this;
    this.resources = {
      "/v1/chat/completions": openai.chat.completions,
      "/v1/completions": openai.completions,
      "/v1/responses": openai.responses,
      "/v1/messages": anthropic.messages,
      "/v1/messages/count_tokens": { create: (...call) => anthropic.messages.countTokens(...call) },
      "/v1/embeddings": openai.embeddings,
    };
  }

  async #fetch(...call) {
    const response = await fetch(...call);
    this.bytes = [];
    const keep = new TransformStream({
      transform: (chunk, controller) => {
        this.bytes.push(chunk);
        controller.enqueue(chunk);
      },
    });
    return new Response(response.body?.pipeThrough(keep), response);
  }

  /** Sends a request with the method `create`. Returns the bytes of the response and the values of the SDK as text. */
  async create({ path, body, headers }) {
    const call = () => this.resources[path].create(body, { headers });
    return this.#outcome(call, async (response, events) => {
      if (!body.stream) return response;
      for await (const event of response) events.push(event);
    });
  }

  /** Reads a stream with the helper of the SDK that puts its events together. `null`: the API has no helper. */
  async accumulate({ path, body, headers }) {
    const { stream: _, ...rest } = body;
    const resource = this.resources[path];
    if (!body.stream || !resource.stream) return null;
    return this.#outcome(
      () => resource.stream(rest, { headers }),
      (runner) => (runner.finalMessage ?? runner.finalChatCompletion ?? runner.finalResponse).call(runner),
    );
  }

  async #outcome(call, read) {
    const events = [];
    const outcome = { events };
    this.bytes = [];
    try {
      outcome.value = await read(await call(), events);
    } catch (error) {
      const fields = ERROR_FIELDS.map((name) => [name, error[name]]);
      outcome.error = { class: error.constructor.name, ...Object.fromEntries(fields) };
    }
    return { bytes: Buffer.concat(this.bytes).toString(), values: JSON.stringify(outcome), error: outcome.error };
  }
}
