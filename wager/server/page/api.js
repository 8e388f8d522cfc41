// Sends requests to the server of this page and to no other. It turns answers into plain objects and every failure into
// a Problem with a message for the user. It does not know the page.

import { events } from "./sse.js";

export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

let apiKey = "";

export function setKey(value) {
  apiKey = value.trim();
}

const headers = (extra = {}) => (apiKey ? { Authorization: `Bearer ${apiKey}`, ...extra } : extra);

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(options.headers) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function problemOf(response) {
  let message = "";
  try {
    const body = await response.json();
    message = body?.error?.message ?? body?.message ?? body?.detail ?? "";
  } catch {
    // Some error answers are not JSON, such as a proxy's page: the status is shown instead.
  }
  const wait = response.headers.get("retry-after");
  const parts = [typeof message === "string" && message ? sentence(message) : `The server answered ${response.status}.`];
  if (response.status === 401) parts.push("Enter an API key under More.");
  if (response.status === 429 && wait) parts.push(`Try again in ${wait} s.`);
  return new Problem(parts.join(" "), response.status);
}

// The message as a sentence with a capital letter and a full stop.
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

export const getJson = async (path, signal) => (await ask(path, { signal })).json();

export async function postJson(path, body, signal) {
  const response = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  return response;
}

export const setPolicy = async (policy) => (await postJson("wager/policy", { policy })).json();

// The state of the server, twice a second.
export async function* liveFigures(signal) {
  const response = await ask("wager/live", { signal });
  for await (const data of events(response)) yield JSON.parse(data);
}

// The chunks of one streamed answer, in the same form for both endpoints:
// {reasoning, content, tokens, stepMs, finish, close, usage, speculation}.
export async function* answer(request, signal) {
  const path = "messages" in request ? "v1/chat/completions" : "v1/completions";
  const response = await postJson(path, { ...request, stream: true, stream_options: { include_usage: true } }, signal);
  let finished = false;
  try {
    for await (const data of events(response)) {
      if (data === "[DONE]") return;
      const chunk = readChunk(JSON.parse(data));
      finished ||= chunk.finish !== null;
      yield chunk;
    }
  } catch (error) {
    if (error instanceof Problem || error.name === "AbortError") throw error;
    throw new Problem("The answer was interrupted: the connection was lost.");
  }
  if (!finished) throw new Problem("The answer was interrupted: the server closed the connection.");
}

export function readChunk(body) {
  if (body.error) throw new Problem(body.error.message ? sentence(body.error.message) : "The server failed while answering.");
  const choice = body.choices?.[0] ?? {};
  const delta = choice.delta ?? {};
  return {
    reasoning: delta.reasoning_content ?? "",
    content: delta.content ?? choice.text ?? "",
    tokens: body.wager?.tokens ?? [],
    stepMs: body.wager?.step_ms ?? null,
    finish: choice.finish_reason ?? null,
    close: choice.finish_details ?? body.finish_details ?? null,
    usage: body.usage ?? null,
    speculation: body.metrics?.speculative_decoding ?? null,
  };
}
