// The chart below an answer: one column per step; the outline is the bet, the filled part the accepted guesses.

import { svg } from "./dom.js";

const HEIGHT = 26;
const WIDEST = 7;

// Groups emitted tokens into steps: guesses of increasing depth, followed by the target's own token. If a stop string or
// the token limit removed the last token of a step, the step ends where the depth decreases.
export function stepsOf(tokens) {
  const steps = [];
  let step = null;
  for (const token of tokens) {
    if (token.origin === "forced") {
      steps.push({ bet: 0, accepted: 0, forced: true });
      step = null;
      continue;
    }
    if (!step || (token.origin === "guess" && token.depth <= step.accepted)) {
      step = { bet: token.bet, accepted: 0, forced: false };
      steps.push(step);
    }
    if (token.origin === "guess") step.accepted = token.depth;
    else step = null;
  }
  return steps;
}

export function ribbon(tokens, width) {
  const steps = stepsOf(tokens);
  const most = Math.max(1, ...steps.map((step) => step.bet));
  const pitch = Math.min(WIDEST, width / Math.max(1, steps.length));
  const bar = Math.max(0.6, pitch - (pitch > 3 ? 1.5 : 0.4));
  const unit = (HEIGHT - 4) / most;
  const marks = steps.flatMap((step, index) => columnOf(step, index * pitch, bar, unit));
  const label = `${steps.length} steps; largest bet ${most}`;
  return svg(
    "svg",
    { class: "ribbon", width: Math.ceil(steps.length * pitch), height: HEIGHT, role: "img", "aria-label": label },
    svg("title", {}, `${label}. Each column is a step: the outline is the bet, the filled part the accepted guesses.`),
    ...marks,
  );
}

function columnOf(step, x, width, unit) {
  const column = (height, name) =>
    svg("rect", { x, y: HEIGHT - 2 - height, width, height, rx: Math.min(1, width / 2), class: name });
  if (step.forced) return [column(HEIGHT - 4, "forced")];
  return [
    svg("rect", { x, y: HEIGHT - 1.5, width, height: 1.5, class: "base" }),
    ...(step.bet ? [column(step.bet * unit, "bet")] : []),
    ...(step.accepted ? [column(step.accepted * unit, "accepted")] : []),
  ];
}
