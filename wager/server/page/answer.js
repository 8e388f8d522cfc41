// One answer while it arrives: thinking, text, step chart and statistics. The conversation and both lanes of a race use
// it. It receives chunks and draws them; it sends no requests.

import { Aligner } from "./align.js";
import { el } from "./dom.js";
import { saved } from "./live.js";
import { ribbon, stepsOf } from "./ribbon.js";
import { TokenText } from "./tokens.js";

const EXPLANATION_PX = 190;

const CLOSED = {
  natural: "closed by the model",
  soft: "closed softly",
  hard: "closed by the budget",
  none: "not closed",
};

export const looksLikeCode = (text) => /^(# file:|def |class |import |from \w+ import |#!)/m.test(text);

export class Answer {
  constructor({ label, budget = null, mono = false, promptText = "", explain = false }) {
    this.budget = budget;
    this.explain = explain;
    this.thinking = null;
    this.text = new TokenText(label, mono);
    if (promptText) this.text.plain(promptText);
    this.figures = el("p", { class: "figures" });
    this.strip = el("div", { class: "strip" });
    this.problem = el("div", { class: "problem", role: "alert", hidden: true });
    this.node = el("div", { class: "answer", "data-state": "waiting" }, this.text.node, this.problem, this.strip, this.figures);
    this.aligner = new Aligner();
    Object.assign(this, { tokens: [], engineMs: 0, content: "", reasoning: "", code: false, tail: "" });
    Object.assign(this, { begun: null, first: null, last: null, finish: null, speculation: null, close: null });
  }

  start(now = performance.now()) {
    this.begun = now;
    this.state = "waiting";
  }

  set state(value) {
    this.node.dataset.state = value;
  }

  feed(chunk, now = performance.now()) {
    if (chunk.tokens.length || chunk.content || chunk.reasoning) this.#arrived(now);
    this.tokens.push(...chunk.tokens);
    this.engineMs += chunk.stepMs ?? 0;
    // A chunk can contain several steps if the reader was slow: its time is divided evenly among them.
    const stepMs = chunk.stepMs === null ? null : chunk.stepMs / Math.max(1, stepsOf(chunk.tokens).length);
    this.aligner.add(chunk.tokens);
    if (chunk.reasoning) this.#think(chunk.reasoning, stepMs);
    if (chunk.content) this.#write(chunk.content, stepMs);
    this.finish = chunk.finish ?? this.finish;
    this.close = chunk.close ?? this.close;
    this.speculation = chunk.speculation ?? this.speculation;
    this.#headThinking(false);
    this.figures.textContent = this.#running();
  }

  // `state` is "done", "stopped" (by the user) or "failed" (with an error message).
  end(state, sentence = "") {
    this.state = state;
    for (const piece of this.aligner.flush()) this.#mark(piece, null);
    this.#headThinking(true);
    this.figures.textContent = this.tokens.length || state !== "failed" ? this.#total(state) : "";
    if (sentence) {
      this.problem.replaceChildren(el("p", {}, sentence));
      this.problem.hidden = false;
    }
    this.drawRibbon();
  }

  drawRibbon() {
    if (!this.tokens.length) return;
    const width = this.node.clientWidth || EXPLANATION_PX;
    const explain = this.explain && width > 3 * EXPLANATION_PX;
    const words = "one column per step: the outline is the bet, the filled part the accepted guesses";
    this.strip.replaceChildren(
      ribbon(this.tokens, explain ? width - EXPLANATION_PX : width),
      ...(explain ? [el("span", {}, words)] : []),
    );
  }

  get elapsedMs() {
    return this.last === null ? 0 : this.last - this.begun;
  }

  #arrived(now) {
    this.first ??= now;
    this.last = now;
    this.state = "running";
  }

  #think(text, stepMs) {
    if (!this.thinking) this.#openThinking();
    for (const piece of this.aligner.take(text)) {
      if (piece.hidden) this.#mark(piece, stepMs);
      else this.thinking.text.add(piece, stepMs);
    }
    this.reasoning += text;
  }

  #write(text, stepMs) {
    for (const piece of this.aligner.take(text)) {
      if (piece.hidden) this.#mark(piece, stepMs);
      else this.#prose(piece, stepMs);
    }
    if (this.thinking && !this.content) this.thinking.node.dataset.over = "";
    this.content += text;
  }

  // Code between ``` is shown in a monospace font.
  #prose(piece, stepMs) {
    const fences = (this.tail + piece.text).split("```").length - 1;
    this.tail = /`{1,2}$/.exec((this.tail + piece.text).replaceAll("```", ""))?.[0] ?? "";
    this.text.add(piece, stepMs);
    if (this.code || fences) this.text.node.lastChild.classList.add("code");
    if (fences % 2) this.code = !this.code;
  }

  // Marks are tokens without visible text. The marks around thinking are shown; an end mark is not.
  #mark(piece, stepMs) {
    const { origin, text } = piece.token;
    if (origin === "forced" && !this.thinking) this.#openThinking();
    if (this.thinking && !this.content && (origin === "forced" || /think/.test(text ?? ""))) {
      this.thinking.text.add(piece, stepMs, true);
    }
  }

  #openThinking() {
    const text = new TokenText("Thinking");
    const summary = el("summary", {}, "Thinking");
    this.thinking = { text, summary, node: el("details", { class: "thinking", open: true }, summary, text.node) };
    this.text.node.before(this.thinking.node);
  }

  #headThinking(over) {
    if (!this.thinking) return;
    const count = this.close?.thinking_tokens ?? this.thinking.text.node.querySelectorAll(".tok:not(.mark)").length;
    const of = this.budget === null ? "" : ` of ${this.budget}`;
    const how = CLOSED[this.close?.close_kind ?? this.close?.kind];
    const words = over && how ? `Thought for ${count}${of} tokens, ${how}` : `Thinking: ${count}${of} tokens`;
    if (this.thinking.summary.textContent !== words) this.thinking.summary.textContent = words;
  }

  #running() {
    const rate = this.rate();
    return `${this.tokens.length} tokens${rate ? ` · ${rate.toFixed(0)} tokens/s` : ""}`;
  }

  // Tokens per second, measured from the first chunk.
  rate() {
    const span = this.last - this.first;
    return this.tokens.length > 1 && span > 0 ? (this.tokens.length / span) * 1000 : null;
  }

  #total(state) {
    const stats = this.speculation;
    const parts = [`${this.tokens.length} tokens`];
    if (this.rate()) parts.push(`${this.rate().toFixed(0)} tokens/s`);
    if (stats?.tokens_per_step) parts.push(`${stats.tokens_per_step.toFixed(2)} per step`);
    if (stats?.num_draft_tokens) parts.push(`${Math.round(stats.draft_acceptance_rate * 100)} % of guesses accepted`);
    if (stats?.speedup && stats.mode !== "off") parts.push(`${stats.speedup.toFixed(2)}× plain speed, ${saved(stats.ledger_ms)}`);
    if (state === "stopped") parts.push("stopped by you");
    else if (this.finish === "length") parts.push("token limit reached");
    return parts.join(" · ");
  }
}
