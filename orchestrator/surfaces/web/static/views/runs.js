// All runs as a tree: who works for whom, what each does now, what it has cost.

import { h, say } from "../dom.js";
import { age, dollars, firstLine, plural, tokens } from "../format.js";
import { FINAL, WAITS, model } from "../model.js";
import { View, ago, empty, label, status, toast } from "../parts.js";
import "../virtual-list.js";

const ROW_PIXELS = 46;
const STATUSES = ["open", "pending", "running", "paused", "waiting_parent_reply", "parent_replied", "completed", "failed", "cancelled", "timed_out"];

/** `agent:x status:failed caller:me some words` -> what the server is asked for, and words to look for. */
export const parsed = (text) => {
  const found = { words: [], wanted: {} };
  for (const word of text.trim().split(/\s+/).filter(Boolean)) {
    const [, key, value] = word.match(/^(agent|status|caller|is):(.+)$/) || [];
    if (!key) found.words.push(word.toLowerCase());
    else if (key === "is" || key === "status") found.wanted.status = value === "waiting" ? ["paused", "waiting_parent_reply"] : [value];
    else found.wanted[key] = value;
  }
  return found;
};

const fits = (run, { words, wanted }) =>
  (!wanted.agent || run.agent === wanted.agent) &&
  (!wanted.caller || run.caller === wanted.caller) &&
  (!wanted.status || wanted.status.includes(run.status) || (wanted.status.includes("open") && !FINAL.has(run.status))) &&
  words.every((word) => `${run.run_id} ${run.agent} ${run.caller} ${run.prompt} ${run.reason}`.toLowerCase().includes(word));

export class RunsView extends View {
  constructor() {
    const filter = h("input.filter", { type: "search", id: "filter", placeholder: "agent:NAME  status:open  words", "aria-label": "Filter runs", list: "filters", spellcheck: "false" });
    super("Runs", filter, h("datalist", { id: "filters" }, STATUSES.map((name) => h("option", { value: `status:${name}` }))), h("span.total"));
    this.filter = filter;
    this.filter.value = sessionStorage.getItem("orchestrator.filter") || "";
    this.closed = new Set();
    this.rows = [];
    this.selected = "";
    const draw = (index) => this.#row(this.rows[index]);
    const version = (index) => {
      const { run, depth, folded, family } = this.rows[index];
      return `${run.run_id} ${run.version} ${family} ${depth} ${folded} ${this.selected === run.run_id} ${model.stalled(run)}`;
    };
    this.list = document.createElement("virtual-list").setup({ draw, version, label: "Runs, the newest first", height: ROW_PIXELS });
    this.list.classList.add("runs");
    this.list.onend = () => model.readMore().catch((error) => toast(error.message, "bad"));
    this.append(h("div.columns", { "aria-hidden": "true" }, ["Run", "State", "Now", "Age", "Turns", "Tokens", "Cost", "With others"].map((name) => h("span", name))), this.list);
    let timer = 0;
    this.filter.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.#choose(), 200);
    });
  }

  connectedCallback() {
    if (this.filter.value) this.#choose();
    this.update(new Set(["runs"]));
  }

  disconnectedCallback() {
    if (JSON.stringify(model.filter) !== "{}") model.choose({}).catch(() => null);
  }

  #choose() {
    sessionStorage.setItem("orchestrator.filter", this.filter.value);
    const { wanted } = parsed(this.filter.value);
    const unknown = wanted.status?.find((name) => !STATUSES.includes(name));
    if (unknown) {
      if (STATUSES.some((name) => name.startsWith(unknown))) return; // it is being typed
      toast(`there is no status '${unknown}'; there are ${STATUSES.join(", ")}, waiting`, "bad");
      return;
    }
    if (JSON.stringify(wanted) !== JSON.stringify(model.filter))
      model.choose(wanted).catch((error) => toast(error.message, "bad"));
    this.update(new Set(["runs"]));
  }

  update(topics) {
    if (!topics.has("runs")) return;
    const chosen = parsed(this.filter.value);
    const filtered = chosen.words.length || Object.keys(chosen.wanted).length;
    const below = model.tree();
    const roots = [];
    for (const run of model.runs.values()) {
      if (filtered) {
        if (fits(run, chosen)) roots.push(run);
      } else if (!model.runs.has(run.parent_run_id)) roots.push(run);
    }
    roots.sort((a, b) => b.created - a.created);
    this.rows = [];
    const add = (run, depth) => {
      const children = (!filtered && below.get(run.run_id)) || [];
      const folded = children.length ? this.closed.has(run.run_id) : null;
      this.rows.push({ run, depth, folded, family: model.family(run, below) });
      if (folded) return;
      children.sort((a, b) => a.created - b.created);
      for (const child of children) add(child, depth + 1);
    };
    for (const run of roots) add(run, 0);
    say(this.querySelector(".total"), this.rows.length ? `${plural(this.rows.length, "run")}${model.more ? " so far" : ""}` : "");
    this.list.count = this.rows.length;
    this.nothing ||= empty("No run here.", h("p", "Start one from your MCP client, or with ", h("code", "orchestrator run AGENT 'task'"), "."));
    if (this.rows.length || model.reading) this.nothing.remove();
    else this.append(this.nothing);
    this.tick();
  }

  tick() {
    const now = model.now();
    for (const time of this.list.querySelectorAll("time")) say(time, age(now - Number(time.dataset.at)));
    this.list.plan(); // some may have stalled
  }

  press(event) {
    const at = this.rows.findIndex(({ run }) => run.run_id === this.selected);
    const row = this.rows[at];
    if (event.key === "/") {
      event.preventDefault();
      this.filter.focus();
    } else if (event.key === "j" || event.key === "ArrowDown") this.#select(at + 1, event);
    else if (event.key === "k" || event.key === "ArrowUp") this.#select(at - 1, event);
    else if (event.key === "Enter" && row && !document.activeElement.matches("a, button")) location.hash = `#/run/${row.run.run_id}`;
    else if (row && row.folded !== null && (event.key === "ArrowLeft" || event.key === "ArrowRight")) this.#fold(row.run.run_id, event.key === "ArrowLeft");
  }

  #select(index, event) {
    event.preventDefault();
    const to = Math.max(0, Math.min(this.rows.length - 1, index));
    if (!this.rows[to]) return;
    this.selected = this.rows[to].run.run_id;
    this.list.show(to);
    this.list.rowAt(to)?.querySelector("a")?.focus({ preventScroll: true });
  }

  #fold(runId, closed) {
    if (closed) this.closed.add(runId);
    else this.closed.delete(runId);
    this.update(new Set(["runs"]));
  }

  #row({ run, depth, folded, family }) {
    const stalled = model.stalled(run);
    const now = FINAL.has(run.status) ? firstLine(run.prompt) : run.step ? firstLine(run.step.text) : firstLine(run.prompt);
    const doing = FINAL.has(run.status) ? "" : run.step ? label(run.step.kind) : "";
    const row = h(`div.run${this.selected === run.run_id ? ".selected" : ""}${FINAL.has(run.status) ? ".ended" : ""}`,
      h("span.who",
        folded === null ? h("span.twig", { "aria-hidden": "true" }, depth ? "└" : "") : h("button.fold", { type: "button", "aria-expanded": String(!folded), "aria-label": `${folded ? "Show" : "Hide"} what ${run.run_id} had others do`, onclick: () => this.#fold(run.run_id, !folded) }, folded ? "▸" : "▾"),
        h("a", { href: `#/run/${encodeURIComponent(run.run_id)}` }, h("b", run.agent), h("small", `${run.run_id} · ${run.caller}`))),
      h("span.state", status(run, stalled), WAITS.has(run.status) && run.waiting > 1 && h("small", ` ${run.waiting}`)),
      h("span.now", { title: now }, doing && h("em", doing), h("span.said", now)),
      h("span.age", ago(run.created)),
      h("span.number.turns", run.requests ? String(run.requests) : "–"),
      h("span.number.tokens", { title: `${run.input_tokens.toLocaleString()} in, ${run.output_tokens.toLocaleString()} out` }, tokens(run.input_tokens + run.output_tokens)),
      h("span.number.cost", { title: run.estimated_usd ? `and about ${dollars(run.estimated_usd)} besides` : "" }, dollars(run.cost_usd), run.estimated_usd ? "+" : ""),
      h("span.number.family", family > run.cost_usd + 1e-9 ? dollars(family) : ""));
    row.style.setProperty("--depth", Math.min(depth, 6));
    say(row.querySelector("time"), age(model.now() - run.created));
    return row;
  }
}

customElements.define("runs-view", RunsView);
