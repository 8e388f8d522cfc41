// The settings below the prompt: reads them, keeps them consistent and turns them into requests. The policy belongs to
// the server and is changed there at once; all other settings apply to the next request.

import { getJson, setKey, setPolicy } from "./api.js";
import { byId, el } from "./dom.js";

const USUAL = ["auto", "ar", "fixed:4", "fixed:8", "tree:16", "bod"];
// Numbers for policy names that the server lists with a letter as placeholder.
const NUMBERS = { fixed: [2, 4, 8], tree: [8, 16, 32] };
const WORDS = { ar: "ar (plain)" };

export function expandPolicies(names) {
  return names.flatMap((name) => {
    const [kind, argument] = name.split(":");
    return /^[A-Z]$/.test(argument ?? "") ? (NUMBERS[kind] ?? [4]).map((count) => `${kind}:${count}`) : [name];
  });
}

function wholeNumber(id) {
  const field = byId(id);
  const value = Math.round(Number(field.value));
  const clamped = Math.min(Math.max(Number.isFinite(value) ? value : 0, Number(field.min)), Number(field.max));
  field.value = String(clamped);
  return clamped;
}

export class Settings {
  constructor(notify) {
    this.notify = notify;
    this.model = null;
    this.policy = null;
    this.pendingChanges = 0;
    this.#restoreKey();
    byId("temperature").addEventListener("input", () => this.#sync());
    byId("thinking").addEventListener("change", () => this.#sync());
    byId("mode").addEventListener("change", () => this.#sync());
    byId("kind").addEventListener("change", () => this.#sync());
    byId("policy").addEventListener("change", (event) => this.#changePolicy(event.target.value));
    byId("key").addEventListener("change", (event) => this.#keepKey(event.target.value));
    this.#listPolicies(USUAL);
    this.#sync();
  }

  // Reads the model name and the policies of the server. Throws Problem.
  async readServer() {
    const [models, props] = await Promise.all([getJson("v1/models"), getJson("props")]);
    this.model = models.data?.[0]?.id ?? null;
    byId("policy").disabled = props.policy_may_change === false;
    if (Array.isArray(props.policies) && props.policies.length) this.#listPolicies(expandPolicies(props.policies));
  }

  // Shows the current policy of the server, which another client may have changed.
  follow(policy) {
    if (!policy || this.pendingChanges || policy === this.policy) return;
    this.policy = policy;
    this.#listPolicies([]);
    byId("policy").value = policy;
  }

  use({ kind, thinking }) {
    byId("kind").value = kind;
    byId("thinking").value = thinking ? "on" : "usual";
    if (thinking) byId("budget").value = String(thinking);
    this.#sync();
  }

  get kind() {
    return byId("kind").value;
  }

  // The speculation mode of the Wager lane in a race.
  get raceMode() {
    return byId("mode").value === "fixed" ? "fixed" : "auto";
  }

  // A request without its prompt. `mode` overrides the speculation setting.
  request(mode = null) {
    return {
      ...(this.model ? { model: this.model } : {}),
      temperature: Number(byId("temperature").value),
      max_tokens: wholeNumber("length"),
      seed: wholeNumber("seed"),
      speculation: { ...this.#speculation(mode ?? byId("mode").value), report: "tokens" },
      ...(this.kind === "chat" ? this.#thinking() : {}),
    };
  }

  #speculation(mode) {
    return mode === "fixed" ? { mode, nodes: wholeNumber("nodes") } : { mode };
  }

  // With the model default the chat template decides.
  #thinking() {
    const how = byId("thinking").value;
    if (how === "usual") return {};
    if (how === "off") return { thinking: { type: "disabled" } };
    return { thinking: { type: "enabled", budget_tokens: wholeNumber("budget") } };
  }

  #sync() {
    const chat = this.kind === "chat";
    byId("temperature-shown").value = Number(byId("temperature").value).toFixed(1);
    byId("thinking").disabled = !chat;
    byId("budget-setting").hidden = !chat || byId("thinking").value !== "on";
    byId("nodes").hidden = byId("mode").value !== "fixed";
  }

  async #changePolicy(name) {
    const before = this.policy;
    this.pendingChanges += 1;
    try {
      this.policy = (await setPolicy(name)).policy ?? name;
      this.notify(null);
    } catch (problem) {
      this.notify(`The policy was not changed. ${problem.message}`);
      this.policy = before;
    } finally {
      this.pendingChanges -= 1;
    }
    if (this.policy) byId("policy").value = this.policy;
  }

  #listPolicies(names) {
    const select = byId("policy");
    const listed = [...select.options].map((option) => option.value);
    const wanted = [...new Set([...(names.length ? names : listed), ...(this.policy ? [this.policy] : [])])];
    if (wanted.join() === listed.join()) return;
    select.replaceChildren(...wanted.map((name) => el("option", { value: name }, WORDS[name] ?? name)));
    if (this.policy) select.value = this.policy;
  }

  #restoreKey() {
    try {
      byId("key").value = sessionStorage.getItem("wager-key") ?? "";
    } catch {
      // Without storage the key is lost when the page is closed.
    }
    setKey(byId("key").value);
  }

  #keepKey(value) {
    setKey(value);
    try {
      sessionStorage.setItem("wager-key", value.trim());
    } catch {
      // Storage can be blocked: see above.
    }
  }
}
