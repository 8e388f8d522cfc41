// Compares plain decoding with Wager on one prompt: the same request runs twice, without speculation and with it. The
// prompt is processed once before, so that neither run gains from the pages of the other. The order alternates from
// race to race. The recorded runs can be replayed side by side at their real speed.

import { answer } from "./api.js";
import { Answer, looksLikeCode } from "./answer.js";
import { el } from "./dom.js";
import { exampleCards } from "./examples.js";

const LANES = [
  { name: "plain", title: "Plain", about: "one token per pass", mode: "off" },
  { name: "wager", title: "Wager", about: "guesses and verifies", mode: null },
];

// Two runs of the same request differ by about this much.
const TIE = 0.03;

const inSeconds = (ms) => `${(ms / 1000).toFixed(2)} s`;

class Lane {
  constructor({ name, title, about, mode }) {
    Object.assign(this, { name, mode, title, record: [], shown: null });
    this.clock = el("output", { class: "clock" }, "–");
    this.track = el("i", {});
    this.body = el("div", { class: "lane-body" });
    this.node = el(
      "section",
      { class: `lane ${name}`, "aria-label": title },
      el("header", {}, el("h3", {}, title), el("span", {}, about), this.clock),
      el("div", { class: "track", "aria-hidden": "true" }, this.track),
      this.body,
    );
  }

  fresh(options) {
    this.shown = new Answer(options);
    this.body.replaceChildren(this.shown.node);
    this.clock.value = "–";
    this.track.style.width = "0";
  }

  progress(most, elapsedMs) {
    this.track.style.width = `${Math.min(100, (100 * this.shown.tokens.length) / most)}%`;
    this.clock.value = inSeconds(elapsedMs);
    this.toEnd();
  }

  done() {
    this.shown.end("done");
    this.track.style.width = "100%";
    this.toEnd();
  }

  toEnd() {
    this.body.scrollTop = this.body.scrollHeight;
  }

  // Runs the request; shows each chunk and records it with its time.
  async run(body, most, signal) {
    this.record = [];
    const begun = performance.now();
    this.shown.start(begun);
    for await (const chunk of answer(body, signal)) {
      const now = performance.now();
      this.record.push({ at: now - begun, chunk });
      this.shown.feed(chunk, now);
      this.progress(most, this.shown.elapsedMs);
    }
    this.done();
    this.elapsedMs = this.shown.elapsedMs;
  }
}

export class Race {
  constructor(place, settings, { onBusy, onExample }) {
    Object.assign(this, { place, settings, onBusy });
    this.lanes = LANES.map((lane) => new Lane(lane));
    this.abort = null;
    this.races = 0;
    this.most = 1;
    this.maxRunning = 0;
    this.verdict = el("div", { class: "verdict", role: "status" });
    this.again = el("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.replay() }, "Watch side by side");
    place.append(
      el("header", { class: "race-head" }, this.verdict, this.again),
      exampleCards(onExample),
      el("div", { class: "lanes" }, ...this.lanes.map((lane) => lane.node)),
    );
    this.#say("One prompt, two ways.", "Plain decoding against Wager with the same seed. Choose an example, or write a prompt and press Race.");
  }

  get busy() {
    return this.abort !== null;
  }

  stop() {
    this.abort?.abort();
  }

  // Called with each state of the server: other requests may run during the race.
  countOthers({ running }) {
    if (this.busy) this.maxRunning = Math.max(this.maxRunning, running ?? 0);
  }

  async run(prompt, together) {
    const abort = (this.abort = new AbortController());
    this.onBusy(true);
    this.again.hidden = true;
    this.place.querySelector(".examples")?.remove();
    this.maxRunning = 0;
    const bodies = this.#prepare(prompt);
    const order = this.races % 2 ? [...this.lanes].reverse() : this.lanes;
    try {
      this.#say("Preparing.", "The prompt is processed once without timing.");
      await drain(answer({ ...bodies.get(this.lanes[0]), max_tokens: 1 }, abort.signal));
      await this.#start(order, bodies, together, abort.signal);
      this.races += 1;
      this.#judge(order, together);
    } catch (error) {
      this.#broken(abort.signal.aborted, error);
    }
    this.abort = null;
    this.onBusy(false);
  }

  #prepare(prompt) {
    const chat = this.settings.kind === "chat";
    const mono = !chat && looksLikeCode(prompt);
    const bodies = new Map();
    for (const lane of this.lanes) {
      const request = this.settings.request(lane.mode ?? this.settings.raceMode);
      this.most = request.max_tokens;
      bodies.set(lane, chat ? { ...request, messages: [{ role: "user", content: prompt }] } : { ...request, prompt });
      lane.options = { label: lane.title, budget: request.thinking?.budget_tokens ?? null, mono };
      lane.fresh(lane.options);
    }
    return bodies;
  }

  async #start(order, bodies, together, signal) {
    const [first, second] = order;
    if (together) {
      this.#say("Both are running.", "They share the machine, so each one is slower than alone.");
      await Promise.all(order.map((lane) => lane.run(bodies.get(lane), this.most, signal)));
      return;
    }
    this.#say(`${first.title} is running.`, `${second.title} comes next; each one runs alone.`);
    await first.run(bodies.get(first), this.most, signal);
    this.#say(`${second.title} is running.`, `${first.title} took ${inSeconds(first.elapsedMs)}.`);
    await second.run(bodies.get(second), this.most, signal);
  }

  #judge(order, together) {
    const [plain, wager] = this.lanes;
    const ratio = plain.elapsedMs / wager.elapsedMs;
    this.#say(verdict(ratio), sameness(plain.shown, wager.shown), this.#howMeasured(order, together));
    this.again.hidden = false;
    for (const lane of this.lanes) lane.toEnd();
  }

  #howMeasured(order, together) {
    const [plain, wager] = this.lanes;
    const times = `${inSeconds(plain.elapsedMs)} against ${inSeconds(wager.elapsedMs)}, measured in this page`;
    const engine = `engine steps only: ${inSeconds(plain.shown.engineMs)} against ${inSeconds(wager.shown.engineMs)}`;
    const how = together ? "both at the same time, sharing the machine" : `${order[0].title} first, then ${order[1].title}, each alone`;
    const others = this.maxRunning > (together ? 2 : 1) ? " Other requests ran at the same time, so the times are less reliable." : "";
    return `${times}; ${engine}. Run ${how}; the prompt was processed once before.${others}`;
  }

  #broken(stopped, error) {
    for (const lane of this.lanes) {
      if (lane.shown?.node.dataset.state !== "done") lane.shown?.end(stopped ? "stopped" : "failed");
    }
    if (stopped) this.#say("Stopped.", "Press Race to start again.");
    else this.#say("The race failed.", error.message);
  }

  #say(title, sentence, detail = "") {
    this.verdict.replaceChildren(
      el("h2", {}, title),
      el("p", {}, sentence),
      ...(detail ? [el("p", { class: "how" }, detail)] : []),
    );
  }

  // Replays both recorded runs together, each at its real speed.
  async replay() {
    if (this.busy) return;
    const abort = (this.abort = new AbortController());
    this.onBusy(true);
    this.again.hidden = true;
    const begun = performance.now();
    await Promise.all(this.lanes.map((lane) => this.#replayLane(lane, begun, abort.signal)));
    this.again.hidden = false;
    this.abort = null;
    this.onBusy(false);
  }

  async #replayLane(lane, begun, signal) {
    lane.fresh(lane.options);
    lane.shown.start(begun);
    for (const { at, chunk } of lane.record) {
      if (!signal.aborted) await until(begun + at);
      lane.shown.feed(chunk, begun + at);
      lane.progress(this.most, lane.shown.elapsedMs);
    }
    lane.done();
  }
}

export function verdict(ratio) {
  if (Math.abs(ratio - 1) < TIE) return "Neither was faster.";
  return ratio > 1 ? `Wager was ${ratio.toFixed(2)}× as fast.` : `Wager took ${(1 / ratio).toFixed(2)}× as long.`;
}

// Says whether both texts are identical, or where they differ.
export function sameness(one, other) {
  const [a, b] = [one, other].map((shown) => shown.tokens.map((token) => token.text));
  const at = a.findIndex((text, index) => text !== b[index]);
  if (at < 0 && a.length === b.length) return `The same ${a.length} tokens, token for token.`;
  const where = at < 0 ? a.length : at;
  return `The texts differ after ${where} tokens: two scores there are closer than the rounding error.`;
}

async function drain(chunks) {
  for await (const chunk of chunks);
}

async function until(time) {
  while (performance.now() < time) await new Promise(requestAnimationFrame);
}
