// The conversation: sends prompts, shows answers and keeps the history for the next message. Text to continue is not
// part of the history.

import { answer } from "./api.js";
import { Answer, looksLikeCode } from "./answer.js";
import { el } from "./dom.js";
import { exampleCards } from "./examples.js";

const NEAR_END_PX = 90;

export class Chat {
  constructor(place, scroller, settings, { onExample, onBusy, onEnd }) {
    Object.assign(this, { place, scroller, settings, onExample, onBusy, onEnd });
    this.abort = null;
    this.clear();
  }

  get busy() {
    return this.abort !== null;
  }

  clear() {
    this.stop();
    this.history = [];
    this.answers = [];
    this.place.replaceChildren(this.#welcome());
  }

  stop() {
    this.abort?.abort();
  }

  redraw() {
    for (const one of this.answers) one.drawRibbon();
  }

  async send(prompt) {
    const request = this.settings.request();
    const chat = this.settings.kind === "chat";
    const shown = this.#begin(prompt, chat, request);
    const messages = [...this.history, { role: "user", content: prompt }];
    const body = chat ? { ...request, messages } : { ...request, prompt };
    const state = await this.#follow(body, shown);
    // After "New chat" an interrupted answer belongs to no conversation.
    if (!this.answers.includes(shown)) return;
    if (state === "failed") this.#offerRetry(shown, prompt);
    else if (chat && shown.content) this.history = [...messages, { role: "assistant", content: shown.content }];
  }

  #begin(prompt, chat, request) {
    this.place.querySelector(".welcome")?.remove();
    const budget = request.thinking?.budget_tokens ?? null;
    const promptText = chat ? "" : prompt;
    const mono = !chat && looksLikeCode(prompt);
    const shown = new Answer({ label: "Answer", budget, promptText, mono, explain: !this.answers.length });
    if (chat) this.place.append(el("div", { class: "user-message" }, prompt));
    this.place.append(shown.node);
    this.answers.push(shown);
    this.scroller.scrollTop = this.scroller.scrollHeight;
    return shown;
  }

  // Runs one request to its end and returns how it ended.
  async #follow(body, shown) {
    const abort = (this.abort = new AbortController());
    this.onBusy(true);
    let [state, sentence] = ["done", ""];
    shown.start();
    try {
      for await (const chunk of answer(body, abort.signal)) this.#keepingEndInView(() => shown.feed(chunk));
    } catch (error) {
      [state, sentence] = abort.signal.aborted ? ["stopped", ""] : ["failed", error.message];
    }
    this.abort = null;
    this.#keepingEndInView(() => shown.end(state, sentence));
    this.onBusy(false);
    this.onEnd(`Answer ${state}: ${shown.tokens.length} tokens.`);
    return state;
  }

  #offerRetry(shown, prompt) {
    const again = () => {
      const message = shown.node.previousElementSibling;
      if (message?.classList.contains("user-message")) message.remove();
      shown.node.remove();
      this.answers = this.answers.filter((one) => one !== shown);
      if (!this.busy) this.send(prompt);
    };
    shown.problem.append(el("button", { type: "button", class: "quiet small", onclick: again }, "Try again"));
  }

  #keepingEndInView(change) {
    const { scroller } = this;
    const near = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END_PX;
    change();
    if (near) scroller.scrollTop = scroller.scrollHeight;
  }

  #welcome() {
    return el(
      "div",
      { class: "welcome" },
      el("h2", {}, "Watch speculative decoding."),
      el(
        "p",
        {},
        "A small drafter guesses the next tokens. The target checks all guesses in one pass and keeps those that it " +
          "would have written itself. Wager decides at every step how much to guess. The text stays the same, but it " +
          "arrives sooner.",
      ),
      exampleCards(this.onExample),
      el("p", { class: "model-note", hidden: true }, ""),
    );
  }
}
