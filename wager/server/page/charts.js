// Two small SVG charts: lines over the last minute, and bars. Each has a title, its latest value and a sentence for
// screen readers. The charts do not know what they measure.

import { el, svg } from "./dom.js";

const HEIGHT = 78;
const LEFT = 42;
const RIGHT = 4;
const BOTTOM = 15;
const TOP = 6;
const CLEAR = 11;
const NOTHING = Array(8).fill(0);
export const WINDOW_S = 60;

// The top of an axis: 1, 2, 2.5 or 5 times a power of ten, and at least the value.
export function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].find((step) => step * power >= value * 0.999) * power;
}

class Chart {
  constructor(title, hint) {
    this.figure = el("output", {});
    this.note = el("p", { class: "chart-note" });
    this.drawing = svg("svg", { height: HEIGHT, role: "img" });
    this.node = el(
      "figure",
      { class: "chart" },
      el("figcaption", {}, el("h3", { title: hint }, title), this.figure),
      this.drawing,
      this.note,
    );
    this.title = title;
    this.drawing.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.drawing.addEventListener("pointerleave", () => this.point(null));
    this.at = null;
  }

  point(x) {
    this.at = x;
    this.draw();
  }

  say(figure, sentence) {
    if (this.figure.textContent !== figure) this.figure.textContent = figure;
    this.drawing.setAttribute("aria-label", `${this.title}: ${sentence}`);
  }

  tick(x, y, side, words) {
    return svg("text", { x, y, class: `tick ${side}` }, words);
  }

  // Horizontal rules with their values. Returns the mapping from values to the drawing.
  frame(low, high, format) {
    const width = Math.max(this.drawing.clientWidth, 120);
    const height = HEIGHT - BOTTOM - TOP;
    const y = (value) => TOP + height * (1 - (value - low) / (high - low || 1));
    // An axis with negative values shows zero and both ends; others also show the middle. Labels do not overlap.
    const values = low < 0 ? [0, high, low] : [0, high, high / 2];
    const rules = values.flatMap((value) => [
      svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: "rule" }),
      value && Math.abs(y(value) - y(0)) < CLEAR ? null : this.tick(LEFT - 6, y(value) + 3.5, "end", format(value)),
    ]);
    return { width, y, rules: rules.filter(Boolean), plot: width - LEFT - RIGHT };
  }
}

// series: [{name, tone}]. The area of the first series is filled, and its value is shown.
export class LineChart extends Chart {
  constructor({ title, hint = "", series, format, ceiling = null, signed = false }) {
    super(title, hint);
    Object.assign(this, { series, format, ceiling, signed, points: [] });
  }

  push(time, values) {
    this.points.push({ time, values });
    const oldest = time - WINDOW_S - 2;
    while (this.points.length && this.points[0].time < oldest) this.points.shift();
    this.draw();
  }

  draw() {
    if (!this.points.length) return;
    const now = this.points.at(-1).time;
    const all = this.points.flatMap(({ values }) => values.filter(isNumber));
    const most = Math.max(...all, 0);
    const high = this.ceiling ? Math.max(this.ceiling, most) : niceTop(most);
    const least = this.signed ? Math.min(...all, 0) : 0;
    const low = least < 0 ? -niceTop(-least) : 0;
    const frame = this.frame(low, high, this.format.tick ?? this.format.figure);
    const x = (time) => LEFT + frame.plot * (1 - (now - time) / WINDOW_S);
    const shown = this.points.filter(({ time }) => now - time <= WINDOW_S);
    this.drawing.replaceChildren(
      ...frame.rules,
      this.tick(LEFT, HEIGHT - 2, "start", `${WINDOW_S} s ago`),
      this.tick(frame.width - RIGHT, HEIGHT - 2, "end", "now"),
      ...this.series.flatMap((one, index) => this.trace(shown, index, one, x, frame.y)),
      ...this.pointer(shown, x, frame),
    );
  }

  // A line is interrupted where no value was measured.
  trace(points, index, { tone, step }, x, y) {
    const all = points.map(({ time, values }) => ({ time, value: values[index] }));
    // A second series of zeros would only cover the axis.
    if (index && all.every(({ value }) => !value)) return [];
    const marks = runsOf(all).flatMap((run) => {
      const [first, end] = [run[0], run.at(-1)].map(({ time }) => x(time).toFixed(1));
      const line = pathOf(run, step, x, y);
      const below = svg("path", { d: `${line}V${y(0).toFixed(1)}H${first}Z`, class: `area ${tone}` });
      const dot = run.length === 1 || run.at(-1) === all.at(-1);
      return [
        ...(index ? [] : [below]),
        svg("path", { d: line, class: `line ${tone}` }),
        ...(dot ? [svg("circle", { cx: end, cy: y(run.at(-1).value), r: 2.5, class: `dot ${tone}` })] : []),
      ];
    });
    return marks;
  }

  pointer(points, x, frame) {
    const now = points.at(-1);
    const near = this.at === null ? now : nearest(points, (point) => x(point.time), this.at);
    const ago = Math.round(now.time - near.time);
    const figure = this.format.figure(near.values[0], near.values);
    this.say(ago ? `${figure}, ${ago} s ago` : figure, `now ${this.format.figure(now.values[0], now.values)}`);
    if (this.at === null) return [];
    const at = x(near.time);
    return [svg("line", { x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM, class: "pointer" })];
  }
}

// Bars over whole numbers, beginning with `first`.
export class BarChart extends Chart {
  constructor({ title, hint = "", first, tone, format, ceiling = null, axis }) {
    super(title, hint);
    Object.assign(this, { first, tone, format, ceiling, axis, values: [] });
  }

  // Without new values the last drawing stays.
  set(values) {
    if (values.length) this.values = values;
    this.draw();
  }

  draw() {
    const values = this.values.length ? this.values : NOTHING;
    const high = this.ceiling ?? niceTop(Math.max(...values.map((value) => value ?? 0)));
    const frame = this.frame(0, high, this.format.tick);
    const pitch = frame.plot / Math.max(values.length, 8);
    const label = Math.ceil(18 / pitch);
    const marks = values.flatMap((value, index) => this.bar(value, index, pitch, frame, label));
    this.drawing.replaceChildren(...frame.rules, ...marks);
    const chosen = this.at === null ? -1 : Math.floor((this.at - LEFT) / pitch);
    const pointed = chosen >= 0 && chosen < values.length;
    const figure = pointed ? this.format.one(chosen + this.first, values[chosen]) : this.format.figure(values);
    this.say(figure, this.format.figure(values));
  }

  bar(value, index, pitch, frame, every) {
    const x = LEFT + index * pitch;
    const height = Math.max(0, frame.y(0) - frame.y(value ?? 0));
    const number = index + this.first;
    const centre = x + pitch / 2;
    const body = { x: x + pitch * 0.14, y: frame.y(0) - height, width: pitch * 0.72, height, rx: Math.min(2, pitch / 5) };
    return [
      svg("rect", { ...body, class: `bar ${this.tone}` }),
      ...(number % every ? [] : [this.tick(centre, HEIGHT - 2, "middle", String(number))]),
    ];
  }
}

const isNumber = (value) => typeof value === "number";

function runsOf(points) {
  const runs = [];
  let open = false;
  for (const point of points) {
    if (!isNumber(point.value)) open = false;
    else if (open) runs.at(-1).push(point);
    else open = Boolean(runs.push([point]));
  }
  return runs;
}

function pathOf(run, step, x, y) {
  const at = ({ time, value }) => `${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
  return run.map((point, place) => (place ? (step ? `H${x(point.time).toFixed(1)}L` : "L") : "M") + at(point)).join("");
}

function nearest(points, at, x) {
  return points.reduce((best, point) => (Math.abs(at(point) - x) < Math.abs(at(best) - x) ? point : best));
}
