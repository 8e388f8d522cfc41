// Shows text as coloured tokens: one span per token, a tooltip on hover, focus or touch, and arrow keys that move from
// token to token.

import { byId, el, touches } from "./dom.js";

const ORIGINS = { target: "Target’s own token", guess: "Accepted guess", forced: "Forced close" };
const known = new WeakMap();

// An element for tokens. `label` is its name for screen readers.
export class TokenText {
  constructor(label, mono = false) {
    this.node = el("div", {
      class: mono ? "tokens mono" : "tokens",
      tabindex: 0,
      role: "group",
      "aria-label": `${label}. The left and right arrow keys move through its tokens.`,
      onkeydown: (event) => walk(event, this.node),
    });
    this.length = 0;
  }

  plain(text) {
    this.node.append(el("span", { class: "prompt-text" }, text));
  }

  // Appends a piece of text; `mark` shows it as a symbol.
  add(piece, stepMs, mark = false) {
    const { token, text } = piece;
    const origin = token && token.origin in ORIGINS ? token.origin : "unknown";
    const span = el("span", { class: mark ? `tok mark ${origin}` : `tok ${origin}` }, mark ? signOf(text) : text);
    if (token) {
      span.tabIndex = -1;
      known.set(span, { ...token, shown: text, stepMs });
    }
    this.node.append(span);
    this.length += text.length;
  }

  text() {
    return this.node.textContent;
  }
}

const signOf = (text) => text.trim() || (text ? "↵" : "close");

function walk(event, node) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const spans = [...node.querySelectorAll(".tok[tabindex]")];
  if (!spans.length) return;
  const now = spans.indexOf(document.activeElement);
  const next = now < 0 ? (step > 0 ? 0 : spans.length - 1) : Math.min(Math.max(now + step, 0), spans.length - 1);
  spans[next].focus({ preventScroll: false });
  event.preventDefault();
}

// The content of the tooltip: a title and pairs of name and value.
export function describe(token) {
  const facts = [["token", JSON.stringify(token.text ?? token.shown)]];
  if (token.origin !== "forced") facts.push(["bet", `${token.bet} ${token.bet === 1 ? "guess" : "guesses"}`]);
  if (token.origin === "guess") facts.push(["depth", String(token.depth)]);
  if (typeof token.confidence === "number") facts.push(["confidence", `${Math.round(token.confidence * 100)} %`]);
  if (typeof token.stepMs === "number") facts.push(["step time", `${token.stepMs.toFixed(1)} ms`]);
  return { title: ORIGINS[token.origin] ?? "Token", facts };
}

function show(span) {
  const tip = byId("tip");
  const token = known.get(span);
  if (!token) return hide();
  const { title, facts } = describe(token);
  tip.replaceChildren(
    el("b", { class: token.origin }, title),
    el("dl", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
  );
  tip.hidden = false;
  place(tip, span.getClientRects()[0] ?? span.getBoundingClientRect());
}

function place(tip, box) {
  const gap = 8;
  const width = tip.offsetWidth;
  const above = box.top - tip.offsetHeight - gap;
  const left = Math.min(Math.max(box.left + box.width / 2 - width / 2, gap), innerWidth - width - gap);
  tip.style.left = `${left}px`;
  tip.style.top = `${above > gap ? above : box.bottom + gap}px`;
}

export function hide() {
  byId("tip").hidden = true;
}

// All tokens of the page share these listeners.
export function watchTokens() {
  const tokenOf = (event) => event.target.closest?.(".tok[tabindex]");
  document.addEventListener("pointerover", (event) => {
    if (touches()) return;
    const span = tokenOf(event);
    if (span) show(span);
    else if (!document.activeElement?.matches?.(".tok")) hide();
  });
  document.addEventListener("focusin", (event) => (tokenOf(event) ? show(tokenOf(event)) : hide()));
  document.addEventListener("click", (event) => (tokenOf(event) ? show(tokenOf(event)) : hide()));
  document.addEventListener("scroll", hide, { capture: true, passive: true });
}
