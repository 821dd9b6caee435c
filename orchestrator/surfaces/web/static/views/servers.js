// Servers of tools: what they offer, and whether that is what somebody has read.

import { get } from "../api.js";
import { h } from "../dom.js";
import { plural } from "../format.js";
import { View, empty, exact, facts, json } from "../parts.js";

export class ServersView extends View {
  constructor() {
    super("Servers");
    this.place = h("div.agents");
    this.append(this.place);
  }

  connectedCallback() {
    this.load(this.place, () => get("/v1/servers"), ({ items, broken }) => items.length || broken.length
      ? [broken.map((each) => h("article.card.broken", h("header", h("b.agent", each.name), h("span.tag.bad", "cannot be used")),
          h("ul.problems", each.problems.map((problem) => h("li.exact", problem))))), items.map((server) => this.#card(server))]
      : empty("No servers of tools here.", h("p", "A folder ", h("code", "agents/servers/NAME"), " with a ", h("code", "server.yaml"), " makes one; an agent names it under ", h("code", "mcp_servers"), ".")));
  }

  #card(server) {
    const pinned = server.pinned_tools !== null;
    return h("article.card", h("header", h("b.agent", server.name),
      h("span.tag", { data: { tag: pinned ? "good" : "bad" } }, pinned ? `pinned, ${plural(server.pinned_tools, "tool")}` : "not pinned")),
      server.description && h("p.said", server.description),
      facts([["used by", server.used_by.join(", ") || "no agent"], ["where", server.url || server.image || [].concat(server.command || []).join(" ")]]),
      !pinned && h("p.faint", "No agent gets a tool of it before a person has read them: ", h("code", `orchestrator servers pin ${server.name}`)),
      server.tools?.length > 0 && h("details", h("summary", plural(server.tools.length, "tool")), h("ul.calls", server.tools.map((tool) => h("li", h("code.tool", tool))))),
      h("details", h("summary", "All of its settings"), exact(json(server))));
  }
}

customElements.define("servers-view", ServersView);
