// What a run of an agent would be launched with, for people.

import { h } from "../dom.js";
import { bytes, span } from "../format.js";
import { exact, facts, json } from "../parts.js";

const list = (values) => (values?.length ? values.join(", ") : "none");

export const planDocument = (plan) => {
  const network = plan.network || {};
  const egress = network.egress || {};
  const limits = plan.limits || {};
  return h("div.plan",
    plan.trust?.needed && plan.trust.missing?.length > 0 && h("p.warn", "Not trusted yet: ", list(plan.trust.missing), plan.trust.command && [" · ", h("code", plan.trust.command)]),
    h("div.grid",
      h("section", h("h2.minor", "Reach"), facts([
        ["network interfaces", list(network.interfaces)],
        ["through the wire", list(network.through_the_wire)],
        ["hosts", egress.mode === "none" ? "none" : list(egress.allow)],
        ["secrets that enter", list(plan.secrets?.enter_the_container)],
        ["secrets added outside", list((plan.secrets?.added_outside || []).map((each) => (typeof each === "string" ? each : each.secret || json(each))))],
        ["workspace", plan.workspace?.mode],
        ["subagents", list(plan.subagents)]])),
      h("section", h("h2.minor", "Tools"), facts([
        ["allowed", list(plan.tools?.allow)],
        ["denied", list(plan.tools?.deny)],
        ["asks before", list(Object.keys(plan.approval || {}))],
        ["who may allow", plan.approval_by],
        ["servers", list((plan.servers || []).map((each) => each.name || each))],
        ["may ask", plan.ask?.whom]])),
      h("section", h("h2.minor", "Limits"), facts([
        ["memory", limits.memory_bytes && bytes(limits.memory_bytes)],
        ["processors", limits.cpus], ["processes", limits.pids],
        ["disk", limits.disk_bytes && bytes(limits.disk_bytes)],
        ["time", plan.timeout_seconds && span(plan.timeout_seconds)],
        ["turns", plan.max_turns], ["budget", plan.max_budget_usd && `$${plan.max_budget_usd}`],
        ["attempts", plan.retries !== undefined && plan.retries + 1]])),
      h("section", h("h2.minor", "Runs on"), facts([
        ["runner", list((plan.runners || []).map((each) => `${each.runner} with ${each.model}`))],
        ["image", plan.image], ["user", plan.user && `${plan.user.uid}:${plan.user.gid}`],
        ["seccomp", plan.seccomp], ["spares", plan.warm]]))),
    h("details", h("summary", "The whole plan"), exact(json(plan))));
};
