// This machine: containers, spares, the queue, the disk, and whether the guarantees hold.

import { get, post } from "../api.js";
import { fill, h } from "../dom.js";
import { age, bytes } from "../format.js";
import { model } from "../model.js";
import { View, facts } from "../parts.js";

const EVERY_SECONDS = 5;

const table = (label, columns, rows) =>
  rows.length
    ? h("div.wide", { tabindex: "0", role: "region", "aria-label": label }, h("table",
        h("thead", h("tr", columns.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", rows.map((row) => h("tr", row.map((value) => h("td", value)))))))
    : h("p.faint", "none");

const runLink = (runId) => (runId ? h("a", { href: `#/run/${encodeURIComponent(runId)}` }, runId) : "");

export class MachineView extends View {
  constructor() {
    const button = h("button.main", { type: "button", onclick: () => this.#doctor() }, "Check the guarantees");
    super("Machine", button);
    this.button = button;
    this.checks = h("div.checks", { role: "status" });
    this.place = h("div.machine");
    this.append(this.checks, this.place);
    this.ticks = 0;
  }

  connectedCallback() {
    this.#read();
  }

  tick() {
    if (++this.ticks % EVERY_SECONDS === 0 && !this.place.contains(document.activeElement)) this.#read();
  }

  #read() {
    this.load(this.place, () => get("/v1/machine"), (machine) => this.#draw(machine));
  }

  #draw({ engine, engine_error: broken, containers, spares, queue, disk, event_readers: readers }) {
    const role = (each) => each.server ? `server ${each.server}` : each.spare ? "spare" : each.session ? `session ${each.session}` : "run";
    return [
      h("div.grid",
        h("section.card", h("h2", "Engine"), engine ? facts([["version", engine.version], ["API", engine.api_version], ["address", engine.address]]) : h("p.problem", broken || "No engine answers.")),
        h("section.card", h("h2", "Queue"), facts([["under way", `${queue.under_way} of ${queue.max_runs} at most`], ["waiting for a slot", queue.waiting], ["of one agent", `${queue.max_runs_per_agent} at most`], ["readers of events", readers]])),
        h("section.card", h("h2", "Disk"), facts([["used by us", bytes(disk.used_bytes)], ["free", bytes(disk.free_bytes)], ["state directory", disk.path]])),
        h("section.card", h("h2", "Spares"), Object.keys(spares).length ? facts(Object.entries(spares)) : h("p.faint", "No agent keeps any (`warm` in agent.md)."))),
      h("section.card", h("h2", "Containers ", h("small", String(containers.length))),
        table("Containers", ["name", "agent", "for", "run", "status", "age"], containers.map((each) =>
          [h("code", each.name), each.agent, role(each), runLink(each.run_id), each.status, age(model.now() - each.created)]))),
    ];
  }

  async #doctor() {
    this.button.disabled = true;
    fill(this.checks, h("p.faint", "Checking every guarantee with containers on the engine; this takes a while …"));
    try {
      const found = await post("/v1/doctor");
      fill(this.checks, h("p.verdict", { class: found.ok ? "verdict good" : "verdict bad" }, found.error || (found.ok ? "Every guarantee holds here." : "Some do not hold:")),
        h("ul.doctor", found.checks.map((check) => h("li", { data: { ok: String(check.ok) } }, h("span.tag", { data: { tag: check.ok ? "good" : "bad" } }, check.ok ? "holds" : check.warning ? "warning" : "fails"), h("b", check.promise || check.name), " ", h("span.faint", [check.detail, !check.ok && check.advice].filter(Boolean).join("; "))))));
    } catch (error) {
      fill(this.checks, h("p.problem", { role: "alert" }, error.message));
    }
    this.button.disabled = false;
  }
}

customElements.define("machine-view", MachineView);

