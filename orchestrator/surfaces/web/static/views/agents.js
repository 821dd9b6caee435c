// The agents of the project: what each may do, what is wrong, what it has cost.

import { get, path, query } from "../api.js";
import { h } from "../dom.js";
import { dollars, plural } from "../format.js";
import { View, empty, facts } from "../parts.js";
import { planDocument } from "./plan.js";

export class AgentsView extends View {
  constructor() {
    super("Agents");
    this.place = h("div.agents");
    this.append(this.place);
  }

  connectedCallback() {
    this.load(this.place, async () => {
      const none = () => null;
      const [agents, cost, machine] = await Promise.all([
        get("/v1/agents"), get(`/v1/cost${query({ by: "agent" })}`).catch(none), get("/v1/machine").catch(none)]);
      return { agents, cost, machine };
    }, (found) => this.#draw(found));
  }

  #draw({ agents, cost, machine }) {
    if (!agents.items.length && !agents.broken.length)
      return empty("No agents here yet.", h("p", h("code", "orchestrator new NAME"), " writes one."));
    const spent = new Map((cost?.rows || []).map((row) => [row.name, row]));
    const spares = (name) => machine?.spares[name] || 0;
    return [
      agents.broken.map((each) => h("article.card.broken", h("header", h("b.agent", each.name), h("span.tag.bad", "cannot run")),
        h("ul.problems", each.problems.map((problem) => h("li.exact", problem))))),
      agents.items.map((agent) => this.#card(agent, spent.get(agent.name), spares(agent.name))),
    ];
  }

  #card(agent, cost, spares) {
    const plan = h("div.plan-place");
    return h("article.card", h("header", h("b.agent", agent.name), h("span.about", [agent.runner, agent.model].filter(Boolean).join(" · ")),
      cost && h("span.left", `${plural(cost.runs, "run")} · ${dollars(cost.cost_usd)}`)),
      h("p.said", agent.description),
      facts([["tools", agent.tools?.join(", ") || "none"], ["hosts", agent.hosts?.join(", ") || "none"], ["secrets", agent.secrets?.join(", ")], ["servers", agent.servers?.join(", ")],
        ["workspace", agent.workspace], ["budget", agent.max_budget_usd && `$${agent.max_budget_usd}`], ["callers", agent.allowed_callers?.join(", ")], ["spares", spares || ""]]),
      agent.warnings?.length > 0 && h("ul.problems", agent.warnings.map((warning) => h("li.exact", warning))),
      h("details", { ontoggle: (event) => {
        if (event.target.open && !plan.childElementCount) this.load(plan, () => get(path("agents", agent.name, "plan")), planDocument);
      } }, h("summary", "Plan: what a run would be launched with"), plan),
      h("div.buttons", h("a.button", { href: "#/runs", onclick: () => sessionStorage.setItem("orchestrator.filter", `agent:${agent.name}`) }, "Its runs")));
  }
}

customElements.define("agents-view", AgentsView);

