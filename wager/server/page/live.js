// The live column: tiles and charts of the server's state, updated twice a second. It listens while the page is visible
// and reconnects after an interruption. It calls `onFigure` with each state and `onState` with that of the connection.

import { liveFigures } from "./api.js";
import { BarChart, LineChart } from "./charts.js";
import { el } from "./dom.js";

const MOST_BARS = 33;
const LONGEST_WAIT_MS = 8000;

const number = (value, digits = 1) => (typeof value === "number" ? value.toFixed(digits) : "–");
const times = (value) => (typeof value === "number" ? `${value.toFixed(2)}×` : "–");
const whole = (value) => (typeof value === "number" ? String(Math.round(value * 100) / 100) : "");
const percent = (value) => (typeof value === "number" ? `${Math.round(value * 100)} %` : "–");

export function seconds(ms) {
  if (typeof ms !== "number") return "–";
  const sign = ms < 0 ? "−" : "";
  const size = Math.abs(ms);
  if (size < 1000) return `${sign}${Math.round(size)} ms`;
  if (size < 120_000) return `${sign}${(size / 1000).toFixed(1)} s`;
  return size < 7_200_000 ? `${sign}${Math.round(size / 60_000)} min` : `${sign}${(size / 3_600_000).toFixed(1)} h`;
}

// A balance of the ledger as text.
export const saved = (ms) => (ms < 0 ? `${seconds(-ms)} lost` : `${seconds(ms)} saved`);

function charts() {
  return {
    bet: new LineChart({
      title: "Bet size",
      hint: "Verified guesses per row and step; zero is plain decoding",
      series: [{ tone: "guess" }],
      format: { figure: (value) => (typeof value === "number" ? `${number(value)} guesses` : "–"), tick: whole },
    }),
    bets: new BarChart({
      title: "Bets by size",
      hint: "Share of the latest bets with this number of guesses",
      first: 0,
      tone: "guess",
      format: {
        tick: percent,
        one: (bet, share) => `${percent(share)} bet ${bet}`,
        figure: (shares) => (shares.some(Boolean) ? `most often ${shares.indexOf(Math.max(...shares))}` : "none yet"),
      },
    }),
    perStep: new LineChart({
      title: "Tokens per step",
      hint: "Tokens that one request gets from one pass of the target; 1 is plain decoding",
      series: [{ tone: "guess" }],
      format: { figure: (value) => number(value, 2), tick: whole },
    }),
    acceptance: new BarChart({
      title: "Acceptance by depth",
      hint: "Share of the latest drafted steps in which at least this many guesses were accepted",
      first: 1,
      tone: "guess",
      ceiling: 1,
      format: {
        tick: percent,
        one: (depth, share) => `${percent(share)} at depth ${depth}`,
        figure: (shares) => (shares.some(Boolean) ? `${percent(shares[0])} at depth 1` : "none yet"),
      },
    }),
    ledger: new LineChart({
      title: "Ledger",
      hint: "Time that plain decoding would have needed, minus the time spent",
      series: [{ tone: "guess" }],
      signed: true,
      format: { figure: saved, tick: (value) => `${whole(value / 1000)} s` },
    }),
    rows: new LineChart({
      title: "Batch",
      hint: "Running and waiting requests",
      series: [
        { tone: "ink", step: true },
        { tone: "forced", step: true },
      ],
      format: {
        figure: (running, values) => (values[1] ? `${running} running, ${values[1]} waiting` : `${running} running`),
        tick: whole,
      },
    }),
  };
}

export class Live {
  constructor(place, { onFigure, onState }) {
    this.charts = charts();
    this.onFigure = onFigure;
    this.onState = onState;
    this.tiles = Object.fromEntries(["speed", "step", "speedup", "saved"].map((name) => [name, el("b", {}, "–")]));
    this.pages = el("i", {});
    this.pagesText = el("span", {}, "–");
    this.policy = el("span", { class: "policy" }, "–");
    place.append(...this.#build());
    this.abort = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.abort?.abort() : this.listen()));
    addEventListener("resize", () => Object.values(this.charts).forEach((chart) => chart.draw()));
  }

  #build() {
    const tile = (name, label) => el("div", {}, this.tiles[name], el("span", {}, label));
    const meter = el("div", { class: "meter", "aria-hidden": "true" }, this.pages);
    this.charts.rows.node.append(el("p", { class: "pages" }, meter, this.pagesText));
    return [
      el("p", { class: "live-head" }, el("span", {}, "This server, live"), el("span", {}, "policy ", this.policy)),
      el(
        "div",
        { class: "tiles" },
        tile("speed", "tokens/s"),
        tile("step", "tokens per step"),
        tile("speedup", "of plain speed"),
        tile("saved", "saved so far"),
      ),
      ...Object.values(this.charts).map((chart) => chart.node),
    ];
  }

  // Follows the server until the page is hidden. After an interruption it reconnects with growing delays.
  async listen() {
    if (this.abort && !this.abort.signal.aborted) return;
    const abort = (this.abort = new AbortController());
    let wait = 500;
    while (!abort.signal.aborted) {
      try {
        for await (const figure of liveFigures(abort.signal)) {
          wait = 500;
          this.show(figure);
        }
      } catch (error) {
        if (abort.signal.aborted) return;
        if (error.status === 401 || error.status === 403) {
          // Without a key another attempt would fail too.
          this.abort = null;
          return this.onState("locked", error.message);
        }
        this.onState("lost", error.message);
      }
      await pause(wait, abort.signal);
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
    }
  }

  show(figure) {
    const time = performance.now() / 1000;
    const { charts } = this;
    this.tiles.speed.textContent = number(figure.tokens_per_s, figure.tokens_per_s < 100 ? 1 : 0);
    this.tiles.step.textContent = number(figure.tokens_per_step, 2);
    this.tiles.speedup.textContent = times(figure.speedup);
    this.tiles.saved.textContent = seconds(figure.ledger_ms);
    this.policy.textContent = figure.policy ?? "–";
    charts.bet.push(time, [figure.bet_mean ?? null]);
    charts.bets.set(shares(figure.bet_histogram ?? []));
    charts.perStep.push(time, [figure.tokens_per_step ?? null]);
    charts.acceptance.set((figure.acceptance_by_depth ?? []).slice(0, MOST_BARS));
    charts.ledger.push(time, [figure.ledger_ms ?? null]);
    charts.rows.ceiling = figure.max_rows || null;
    charts.rows.push(time, [figure.running ?? 0, figure.waiting ?? 0]);
    this.#showPages(figure);
    this.onFigure(figure);
    this.onState(figure.running ? "busy" : "idle");
  }

  #showPages({ pages_used: used, pages_total: total, max_rows: rows }) {
    const share = total ? used / total : 0;
    this.pages.style.width = `${Math.round(share * 100)}%`;
    this.pagesText.textContent = total ? `${used} of ${total} pages in use, at most ${rows} rows` : "";
  }
}

// The histogram as shares; larger bets are added to the last bar.
export function shares(histogram) {
  const counts = histogram.slice(0, MOST_BARS);
  for (const count of histogram.slice(MOST_BARS)) counts[MOST_BARS - 1] += count;
  const all = counts.reduce((sum, count) => sum + count, 0);
  return all ? counts.map((count) => count / all) : [];
}

function pause(ms, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });
}
