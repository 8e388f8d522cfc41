// Connects the parts of the page: views, prompt, keyboard and callbacks. Read this file first, then chat.js and race.js
// (which send requests), answer.js and tokens.js (which show answers) and live.js (the charts).

import { Chat } from "./chat.js";
import { byId, touches } from "./dom.js";
import { Live } from "./live.js";
import { Race } from "./race.js";
import { Settings } from "./settings.js";
import { hide, watchTokens } from "./tokens.js";

const THEMES = ["system", "light", "dark"];
const VIEWS = ["chat", "race", "live"];

const prompt = byId("prompt");

function notify(sentence) {
  byId("notice").textContent = sentence ?? "";
  byId("notice").hidden = !sentence;
}

const settings = new Settings(notify);
const chat = new Chat(byId("conversation"), byId("view-chat"), settings, {
  onExample: useExample,
  onBusy: setBusy,
  onEnd: (words) => (byId("spoken").textContent = words),
});
const race = new Race(byId("race"), settings, { onBusy: setBusy, onExample: useExample });
const live = new Live(byId("live"), {
  onFigure: (figure) => {
    settings.follow(figure.policy);
    race.countOthers(figure);
  },
  onState: showState,
});

const view = () => document.body.dataset.view;
const worker = () => [chat, race].find((one) => one.busy) ?? null;

function setBusy() {
  const busy = worker() !== null;
  const button = byId("send");
  button.textContent = busy ? "Stop" : view() === "race" ? "Race" : "Send";
  button.classList.toggle("stop", busy);
  document.body.toggleAttribute("data-busy", busy);
}

function showView(name, focus = false) {
  document.body.dataset.view = name;
  for (const one of VIEWS) {
    const tab = byId(`tab-${one}`);
    tab.setAttribute("aria-selected", String(one === name));
    tab.tabIndex = one === name ? 0 : -1;
    if (one === name && focus) tab.focus();
    if (one !== "live") byId(`view-${one}`).hidden = one !== name && !(name === "live" && one === "chat");
  }
  if (name === "live") dispatchEvent(new Event("resize"));
  setBusy();
}

function showState(state, sentence = "") {
  const words = { idle: "idle", busy: "running", lost: "no connection", locked: "needs a key" };
  const place = byId("status");
  if (place.dataset.state === state) return;
  if (place.dataset.state === "lost") readServer();
  place.dataset.state = state;
  place.title = sentence;
  place.lastElementChild.textContent = words[state] ?? state;
}

async function readServer() {
  try {
    await settings.readServer();
    notify(null);
    byId("model").textContent = settings.model ?? "";
    const note = document.querySelector(".welcome .model-note");
    if (note && settings.model === "demo") {
      note.textContent = "The demo pair is a very small model: its text has the right form but no knowledge.";
      note.hidden = false;
    }
  } catch (problem) {
    notify(problem.message);
  }
}

function send() {
  if (worker()) return worker().stop();
  const text = prompt.value.trim() ? prompt.value : "";
  if (!text) return prompt.focus();
  notify(null);
  closeSheets();
  if (view() === "race") return race.run(text, byId("race-order").value === "together");
  if (view() === "live") showView("chat");
  prompt.value = "";
  fit();
  chat.send(settings.kind === "chat" ? text.trim() : text);
}

function useExample(example) {
  settings.use(example);
  prompt.value = example.prompt;
  fit();
  send();
}

// The prompt field grows with its text, up to the limit in the style sheet.
function fit() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

function closeSheets() {
  byId("more").open = false;
  byId("settings-toggle").setAttribute("aria-expanded", "false");
}

function nextTheme() {
  const root = document.documentElement;
  const now = THEMES.indexOf(root.dataset.theme ?? "system");
  const next = THEMES[(now + 1) % THEMES.length];
  if (next === "system") delete root.dataset.theme;
  else root.dataset.theme = next;
  try {
    localStorage.setItem("wager-theme", next);
  } catch {
    // Without storage the choice is lost when the page is closed.
  }
  nameTheme();
}

function nameTheme() {
  const now = document.documentElement.dataset.theme;
  const words = `Colours: ${now ?? "system"}`;
  byId("theme").setAttribute("aria-label", words);
  byId("theme").title = words;
}

function onKey(event) {
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "Escape") {
    hide();
    if (byId("more").open) closeSheets();
    else worker()?.stop();
  } else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    prompt.focus();
  }
}

function onPromptKey(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!worker()) send();
}

function onTabKey(event) {
  const shown = VIEWS.filter((name) => byId(`tab-${name}`).offsetParent !== null);
  const at = shown.indexOf(view());
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: shown.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  showView(shown[(to + shown.length) % shown.length], true);
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
prompt.addEventListener("keydown", onPromptKey);
prompt.addEventListener("input", fit);
document.addEventListener("keydown", onKey);
for (const name of VIEWS) byId(`tab-${name}`).addEventListener("click", () => showView(name));
document.querySelector(".tabs").addEventListener("keydown", onTabKey);
byId("theme").addEventListener("click", nextTheme);
byId("new-chat").addEventListener("click", () => {
  chat.clear();
  readServer();
  showView("chat");
  prompt.focus();
});
byId("settings-toggle").addEventListener("click", (event) => {
  const open = event.target.getAttribute("aria-expanded") !== "true";
  event.target.setAttribute("aria-expanded", String(open));
});
document.addEventListener("click", (event) => {
  if (!byId("more").contains(event.target)) byId("more").open = false;
});
byId("key").addEventListener("change", () => {
  notify(null);
  readServer();
  live.listen();
});
addEventListener("resize", () => chat.redraw());
// On wide screens the live column is always visible and is not a separate view.
matchMedia("(min-width: 1080px)").addEventListener("change", (wide) => wide.matches && view() === "live" && showView("chat"));

if (touches()) prompt.placeholder = "Write something";
nameTheme();
watchTokens();
showView("chat");
readServer();
live.listen();
