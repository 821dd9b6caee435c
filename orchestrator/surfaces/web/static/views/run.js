// One run: where its time went, every event, what came of it.

import { get, path, post, query } from "../api.js";
import { fileDiff, files } from "../diff.js";
import { fill, h, say } from "../dom.js";
import { bytes, dollars, firstLine, plural, span, tokens, when } from "../format.js";
import { model, tokensIn } from "../model.js";
import { View, confirm, copy, empty, exact, facts, input, isOpen, json, label, status, toast } from "../parts.js";
import { Timeline, TimelineStrip } from "../timeline.js";
import { planDocument } from "./plan.js";
import "../virtual-list.js";

const PAGE_EVENTS = 1000;
const ROW_PIXELS = 30;
const TABS = ["events", "answer", "changes", "network", "tools", "cost", "plan"];
const KINDS = {
  all: null,
  says: new Set(["text", "status", "asked", "answered", "steered", "schema_failed"]),
  tools: new Set(["tool_call", "tool_result", "server_call", "server_denied", "approval_asked", "approval_decided", "mcp_failed"]),
  network: new Set(["egress", "egress_denied", "secret_used"]),
  model: new Set(["model_request", "api_retry", "fallback"]),
};

export class RunView extends View {
  constructor(runId, tab = "") {
    super("");
    this.runId = runId;
    this.wanted = tab;
    this.events = [];
    this.seen = new Set();
    this.line = new Timeline();
    this.known = 0; // the id of the newest event that was read
    this.held = []; // events that came while older ones were being read
    this.kinds = "all";
    this.run = null;
  }

  connectedCallback() {
    if (this.strip) return;
    model.watchers.set(this.runId, (event) => this.#come(event));
    this.aside = h("div.about");
    this.strip = new TimelineStrip();
    this.strip.onseek = (at) => this.#seek(at);
    this.tabs = h("div.tabs", { role: "tablist", "aria-label": "About this run" }, TABS.map((name) =>
      h("button", { role: "tab", type: "button", id: `tab-${name}`, "aria-controls": "panel", data: { tab: name }, onclick: () => { location.hash = `#/run/${encodeURIComponent(this.runId)}/${name}`; } }, name[0].toUpperCase() + name.slice(1), h("span.count"))));
    this.panel = h("section.panel", { role: "tabpanel", id: "panel", tabindex: "0" });
    this.append(this.aside, this.strip, this.tabs, this.panel);
    this.#start();
  }

  disconnectedCallback() {
    model.watchers.delete(this.runId);
    this.gone = true;
  }

  async #start() {
    try {
      this.run = await model.read(this.runId);
    } catch (error) {
      fill(this.panel, h("p.problem", { role: "alert" }, error.message));
      return;
    }
    this.#head();
    this.open(this.wanted || (isOpen(this.run) ? "events" : "answer"));
    try {
      await this.#readEvents();
    } catch (error) {
      toast(error.message, "bad");
    }
  }

  // ---- Events

  async #readEvents() {
    for (;;) {
      const found = await get(`${path("runs", this.runId, "events")}${query({ after: this.known, limit: PAGE_EVENTS })}`);
      if (this.gone) return;
      for (const event of found.items) this.#add(event);
      this.known = Math.max(this.known, found.next_after ?? 0);
      this.#fresh();
      if (found.items.length < PAGE_EVENTS) break;
      await new Promise((resume) => setTimeout(resume)); // let the page breathe
    }
    this.complete = true;
    for (const event of this.held) this.#add(event);
    this.held = [];
    this.#fresh();
  }

  #come(event) {
    if (!this.complete) {
      this.held.push(event);
      return;
    }
    this.#add(event);
    this.#later();
  }

  #add(event) {
    if (this.seen.has(event.seq)) return;
    this.seen.add(event.seq);
    this.line.add(event);
    const last = this.events[this.events.length - 1];
    // Pieces of what the agent is saying are one row, until it has said it.
    if (event.kind === "saying" && last?.kind === "saying" && !event.data.begins) {
      last.text += event.text;
      last.version = (last.version || 0) + 1;
      return;
    }
    if (event.kind === "text" && last?.kind === "saying") this.events.pop();
    this.events.push(event.kind === "saying" ? { ...event } : event);
  }

  #later() {
    if (this.planned) return;
    this.planned = true;
    requestAnimationFrame(() => {
      this.planned = false;
      this.#fresh();
    });
  }

  #fresh() {
    this.strip.paint(this.line, model.now());
    this.#counts();
    if (this.tab === "events") this.#list();
    else if (["network", "tools", "cost"].includes(this.tab) || (this.tab === "answer" && this.complete)) this.#draw();
  }

  update(topics) {
    if (!topics.has("runs") || !this.run) return;
    const row = model.runs.get(this.runId);
    if (!row) return;
    if (row.status !== this.run.status) this.#again();
    else this.#figures();
  }

  /** The whole of it once more: it has ended, or waits. */
  async #again() {
    if (this.asking) return;
    this.asking = true;
    try {
      this.run = await get(path("runs", this.runId));
      this.#head();
      if (this.tab !== "events" && this.tab !== "plan") this.#draw();
    } catch {
      // told by the connection
    } finally {
      this.asking = false;
    }
  }

  tick() {
    if (!this.run) return;
    this.#figures();
    if (!this.line.ended) this.strip.paint(this.line, model.now());
  }

  // ---- Head

  #head() {
    const run = this.run;
    const cancel = isOpen(run) && h("button.bad", { type: "button", onclick: async () => {
      if (!(await confirm(`End ${run.run_id} of ${run.agent}? What it has done so far is kept.`, "End it"))) return;
      await post(path("runs", run.run_id, "cancel")).catch((error) => toast(error.message, "bad"));
    } }, "Cancel run");
    fill(this.bar,
      h("a.back", { href: "#/runs", "aria-label": "All runs" }, "←"),
      this.heading = h("h1", h("span.agent", run.agent), h("small", run.run_id)),
      status(run), cancel);
    this.numbers = h("dl.numbers");
    const waiting = run.questions.length + run.pending_tool_calls.length;
    fill(this.aside,
      waiting > 0 && h("p.waits", h("a", { href: "#/waiting" }, `${plural(waiting, "thing")} of it ${waiting === 1 ? "waits" : "wait"} for you`)),
      run.message && h("p.problem", run.message),
      h("details.task", h("summary", h("span.faint", `${run.caller} asked: `), h("span.said", firstLine(run.prompt, 160))),
        h("p.said", run.prompt), run.context && h("div", h("h2.minor", "Context"), h("p.said", run.context)),
        facts([["workspace", run.workspace], ["session", run.session], ["asked from", run.window],
          ["works for", run.parent_run_id && h("a", { href: `#/run/${encodeURIComponent(run.parent_run_id)}` }, run.parent_run_id)], ["begun", when(run.created)], ["ended", when(run.ended)]])),
      this.numbers);
    this.#figures();
    this.#counts();
  }

  #figures() {
    const row = { ...this.run, ...model.runs.get(this.runId) };
    const now = model.now();
    const cells = [
      ["time", span((row.ended || now) - row.created)],
      ["turns", row.requests ?? this.run.usage.requests],
      ["tokens", `${tokens(row.input_tokens)} in, ${tokens(row.output_tokens)} out`],
      ["cost", row.scripted ? "$0, scripted" : dollars(row.cost_usd) + (row.estimated_usd ? ` + about ${dollars(row.estimated_usd)}` : "")],
      model.family(row) > row.cost_usd + 1e-9 && ["with others", dollars(model.family(row))],
      ["model", row.model || this.run.model || "–"],
    ].filter(Boolean);
    if (this.numbers.childElementCount !== cells.length)
      fill(this.numbers, cells.map(([name]) => h("div", h("dt", name), h("dd"))));
    cells.forEach(([, value], n) => say(this.numbers.children[n].lastChild, value));
  }

  #counts() {
    const counts = { events: this.events.length, changes: this.run?.changed_files.length, network: this.line.ticks.length,
      tools: this.events.reduce((sum, event) => sum + (event.kind === "tool_call"), 0) };
    for (const tab of this.tabs.children) say(tab.lastChild, counts[tab.dataset.tab] ? counts[tab.dataset.tab].toLocaleString() : "");
  }

  // ---- Tabs

  open(name) {
    this.tab = TABS.includes(name) ? name : "events";
    for (const tab of this.tabs.children) {
      const chosen = tab.dataset.tab === this.tab;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    }
    this.panel.setAttribute("aria-labelledby", `tab-${this.tab}`);
    this.panel.dataset.tab = this.tab;
    if (this.run) this.#draw();
  }

  press(event) {
    const at = TABS.indexOf(this.tab);
    if (event.key === "ArrowRight" || event.key === "l") this.#go(TABS[(at + 1) % TABS.length]);
    else if (event.key === "ArrowLeft" || event.key === "h") this.#go(TABS[(at + TABS.length - 1) % TABS.length]);
    else if (this.tab === "events" && (event.key === "j" || event.key === "ArrowDown")) this.#choose((this.chosen ?? -1) + 1, event);
    else if (this.tab === "events" && (event.key === "k" || event.key === "ArrowUp")) this.#choose((this.chosen ?? 1) - 1, event);
  }

  #go(tab) {
    location.hash = `#/run/${encodeURIComponent(this.runId)}/${tab}`;
    this.tabs.querySelector(`[data-tab=${tab}]`).focus();
  }

  #draw() {
    if (this.tab === "events") {
      if (!this.list) this.#makeList();
      if (!this.list.isConnected) fill(this.panel, this.eventsPart);
      this.#list();
    } else if (this.tab === "plan") this.load(this.panel, () => get(path("agents", this.run.agent, "plan")), (plan) => [
      h("p.faint", "As agent.md says now; this run may have had an earlier one."), planDocument(plan)]);
    else fill(this.panel, this[`_${this.tab}`]());
  }

  #makeList() {
    const choices = h("div.chips", { role: "group", "aria-label": "Which events" }, Object.keys(KINDS).map((name) =>
      h("button", { type: "button", "aria-pressed": String(name === this.kinds), onclick: (event) => {
        this.kinds = name;
        for (const chip of choices.children) chip.setAttribute("aria-pressed", String(chip === event.currentTarget));
        this.chosen = null;
        this.#list();
      } }, name)));
    this.detail = h("section.detail", { "aria-label": "The chosen event", "aria-live": "polite" });
    this.shown = [];
    this.list = document.createElement("virtual-list").setup({
      draw: (index) => this.#eventRow(this.shown[index], index),
      version: (index) => `${this.shown[index].seq} ${this.shown[index].version || 0} ${index === this.chosen}`,
      label: "Events of this run, in their order",
      height: ROW_PIXELS,
    });
    this.list.classList.add("events");
    this.follow = isOpen(this.run);
    this.list.onmoved = () => { this.follow = this.list.atEnd && !this.line.ended; };
    this.eventsPart = h("div.events-part", choices, h("div.beside", this.list, this.detail));
  }

  #list() {
    const kinds = KINDS[this.kinds];
    this.shown = kinds ? this.events.filter((event) => kinds.has(event.kind)) : this.events;
    const follow = this.follow;
    this.list.count = this.shown.length;
    if (follow) this.list.toEnd();
  }

  #eventRow(event, index) {
    return h("div", h(`button.event${index === this.chosen ? ".chosen" : ""}`, { type: "button", data: { kind: event.kind, status: event.data.status || "" }, "aria-pressed": String(index === this.chosen), onclick: () => this.#choose(index) },
      h("span.at", { title: when(event.at) }, `${(event.at - this.line.from).toFixed(1)} s`),
      h("span.label", label(event.kind)),
      h("span.said", firstLine(event.text.replaceAll("\n", " ⏎ "), 400))));
  }

  #choose(index, key) {
    key?.preventDefault();
    if (!this.shown[index]) return;
    this.chosen = index;
    this.follow = false;
    this.list.show(index);
    const event = this.shown[index];
    fill(this.detail,
      h("h2.minor", label(event.kind), h("small", ` ${event.seq} · ${when(event.at)}`)),
      event.text && h("p.said.whole", event.text),
      event.kind === "tool_call" || event.kind === "approval_asked" ? input(event.data.input) : Object.keys(event.data).length > 0 && exact(json(event.data)));
  }

  #seek(at) {
    if (this.tab !== "events") this.open("events");
    let index = this.shown.findIndex((event) => event.at >= at);
    if (index < 0) index = this.shown.length - 1;
    this.#choose(index);
  }

  _answer() {
    const run = this.run;
    if (isOpen(run)) return [empty("No answer yet."), run.partial_text && h("div", h("h2.minor", "Said last"), h("p.said.whole", run.partial_text))];
    const failed = this.events.filter((event) => event.kind === "schema_failed");
    const verdict = run.schema_errors.length
      ? h("p.problem", `The answer breaks its schema after ${plural(run.attempts, "attempt")}:`, h("ul", run.schema_errors.map((error) => h("li.said", error))))
      : run.status === "completed" && typeof run.result === "object" && run.result !== null
        ? h("p.verdict.good", `Fits its schema after ${plural(run.attempts, "attempt")}.`)
        : h("p.verdict", `${plural(run.attempts, "attempt")}; ${run.reason}`);
    return [
      verdict,
      run.result !== null && run.result !== undefined && (typeof run.result === "string" ? h("div.answer.said", run.result) : exact(json(run.result), ".answer")),
      (run.result === null || run.result === undefined) && run.partial_text && h("div", h("h2.minor", "Said last"), h("p.said.whole", run.partial_text)),
      failed.length > 0 && h("div", h("h2.minor", "Sent back"), h("ol", failed.map((event) => h("li.said", event.text)))),
      run.warnings.length > 0 && h("div", h("h2.minor", "Warnings"), h("ul", run.warnings.map((warning) => h("li.said", warning)))),
      run.asked_before?.length > 0 && h("div", h("h2.minor", "Questions"), run.asked_before.map((question) => h("div.exchange", h("p.said", question.question), h("p.said.reply", question.answer ?? "no answer")))),
      run.log_tail.length > 0 && h("div", h("h2.minor", "Last things that happened"), exact(run.log_tail.join("\n"))),
    ];
  }

  _changes() {
    const run = this.run;
    if (!run.changed_files.length) return empty(isOpen(run) ? "Nothing is told of changes before the end." : "It changed nothing.");
    const acts = new Map(run.changed_files.filter((file) => file.acts).map((file) => [file.path, file.acts]));
    const place = h("div.files");
    const said = h("p", { role: "status" });
    const acting = acts.size > 0 && h("input", { type: "checkbox", id: "acting" });
    const act = async (dryRun) => {
      try {
        const done = await post(path("runs", run.run_id, "apply"), { dry_run: dryRun, allow_acting: Boolean(acting && acting.checked) });
        said.className = "verdict good";
        say(said, done.already ? "These changes are in the workspace already." : `${dryRun ? "Would change" : "Changed"} ${plural(done.files.length, "file")}.`);
      } catch (error) {
        said.className = "problem";
        say(said, error.message);
      }
    };
    const shownPatch = (patch) => files(patch).map((file) => fileDiff(file, { acts: acts.get(file.name || file.old) }));
    if (run.patch && !run.patch_cut) fill(place, shownPatch(run.patch));
    else this.load(place, () => get(path("runs", run.run_id, "patch"), { accept: "text/x-diff" }), shownPatch);
    return [
      h("div.apply", h("span", plural(run.changed_files.length, "file"), run.workspace && [" of ", h("code", run.workspace)]),
        acting && h("label.warn", { for: "acting" }, acting, ` also the ${acts.size} that act on this machine`),
        h("button", { type: "button", onclick: () => act(true) }, "Try"),
        h("button.main.good", { type: "button", onclick: async () => { if (await confirm(`Write ${plural(run.changed_files.length, "changed file")} into ${run.workspace || "the workspace"}?`, "Apply")) act(false); } }, "Apply"), said),
      h("ul.changed", run.changed_files.map((file) => h("li", { data: { change: file.change } }, h("span.tag", file.change), h("span.exact.name", file.old_path ? `${file.old_path} → ${file.path}` : file.path), file.acts && h("span.warn", ` ${file.acts}`)))),
      place,
    ];
  }

  _network() {
    const hosts = new Map();
    for (const event of this.events) {
      if (!KINDS.network.has(event.kind)) continue;
      const host = `${event.data.host ?? "?"}${event.data.port && event.data.port !== 443 ? `:${event.data.port}` : ""}`;
      const denied = event.kind === "egress_denied";
      const key = `${denied} ${host}`;
      const row = hosts.get(key) || { host, denied, count: 0, sent: 0, received: 0, why: "", rule: "", secrets: new Set(), name: event.data.host, port: event.data.port };
      row.count++;
      row.sent += event.data.sent_bytes || event.data.bytes_up || 0;
      row.received += event.data.received_bytes || event.data.bytes_down || event.data.bytes || 0;
      row.why = event.data.why || (denied ? event.text : row.why);
      row.rule = event.data.rule || row.rule;
      if (event.data.secret) row.secrets.add(event.data.secret);
      hosts.set(key, row);
    }
    if (!hosts.size) return empty("It connected to nothing.", h("p", "Its only connection is the wire; the model is asked through it, by the orchestrator."));
    const rows = [...hosts.values()].sort((a, b) => Number(b.denied) - Number(a.denied) || b.count - a.count);
    return h("ul.hosts", rows.map((row) => {
      const line = `network: {allow: [${/^[\w.:-]+$/.test(row.host) ? row.host : JSON.stringify(row.host)}]}`;
      return h("li", { data: { denied: String(row.denied) } },
        h("span.tag", { data: { tag: row.denied ? "bad" : "good" } }, row.denied ? "denied" : "allowed"),
        h("span.exact.name", row.host),
        h("span.number", plural(row.count, "time")),
        h("span.faint.said", row.denied ? row.why : [row.rule && `by ${row.rule}`, row.received && `${bytes(row.received)} received`, row.sent && `${bytes(row.sent)} sent`, row.secrets.size && `with ${[...row.secrets].join(", ")}`].filter(Boolean).join(" · ")),
        row.denied && row.name && h("div.missing", h("span.faint", "Missing in agent.md, if it should be allowed:"), h("code.exact", line), copy(line)));
    }));
  }

  _tools() {
    const calls = [];
    const open = new Map();
    const decisions = new Map();
    for (const event of this.events) {
      if (event.kind === "tool_call") {
        const call = { event, result: null };
        calls.push(call);
        open.set(event.data.id, call);
      } else if (event.kind === "tool_result" && open.has(event.data.id)) open.get(event.data.id).result = event;
      else if (event.kind === "approval_decided") decisions.set(event.data.call_id, event.text);
      else if (event.kind === "server_call" || event.kind === "server_denied") calls.push({ event, result: null });
    }
    if (!calls.length) return empty("It used no tool.");
    const summed = new Map();
    for (const { event } of calls) {
      const tool = event.data.tool || event.text.split(" ", 1)[0];
      summed.set(tool, (summed.get(tool) || 0) + 1);
    }
    return [
      h("ul.legend", [...summed].sort((a, b) => b[1] - a[1]).slice(0, 12).map(([tool, count]) => h("li", h("code", tool), " ", h("b", String(count))))),
      calls.length > 200 && h("p.faint", `The last 200 of ${calls.length.toLocaleString()}; all of them are among the events.`),
      h("ul.calls", calls.slice(-200).map(({ event, result }) => {
        const refused = event.kind === "server_denied";
        const failed = result?.data.is_error || event.data.is_error;
        const decided = decisions.get(event.data.id);
        return h("li", h("details",
          h("summary", h("code.tool", event.data.server ? `${event.data.server}.${event.data.tool}` : event.data.tool || ""), h("span.said.exact", firstLine(event.text, 200)),
            refused && h("span.tag.bad", "refused"), failed && h("span.tag.bad", "failed"), decided && h("span.tag", decided), result && h("span.faint", span(result.at - event.at))),
          event.data.input ? input(event.data.input) : exact(json(event.data)),
          result && h("div", h("h2.minor", "Result"), exact(result.text))));
      })),
    ];
  }

  _cost() {
    const models = new Map();
    for (const event of this.events) {
      if (event.kind !== "model_request") continue;
      const row = models.get(event.data.model) || { requests: 0, in: 0, read: 0, out: 0, cost: 0, estimated: 0, ms: 0 };
      row.requests++;
      row.in += tokensIn(event.data);
      row.read += event.data.cache_read_tokens || 0;
      row.out += event.data.output_tokens || 0;
      row.cost += event.data.cost_usd || 0;
      row.estimated += event.data.estimated_usd || 0;
      row.ms += event.data.duration_ms || 0;
      models.set(event.data.model, row);
    }
    if (!models.size) return empty("It has not asked a model.");
    const run = { ...this.run, ...model.runs.get(this.runId) };
    return [
      run.scripted && h("p.faint", "A script played the model: nothing was paid, whatever its tokens would have cost."),
      h("table", h("thead", h("tr", ["Model", "Requests", "Tokens in", "of them cached", "Tokens out", "Cost", "Time"].map((name, n) => h("th", { scope: "col", class: n ? "number" : null }, name)))),
        h("tbody", [...models].map(([name, row]) => h("tr", h("th", { scope: "row" }, name || "?"), [row.requests, tokens(row.in), tokens(row.read), tokens(row.out), `${dollars(row.cost)}${row.estimated ? ` + about ${dollars(row.estimated)}` : ""}`, span(row.ms / 1000)].map((value) => h("td.number", String(value))))))),
      facts([["this run", dollars(run.cost_usd)], ["this run and all that it had others do", dollars(model.family(run))]]),
    ];
  }
}

customElements.define("run-view", RunView);
