// Parts that several views are made of.

import { fill, h, say, shown } from "./dom.js";
import { FINAL } from "./model.js";
import { span, when } from "./format.js";

export const LABELS = {
  text: "says", saying: "says …", tool_call: "uses", tool_result: "result", mcp_failed: "no server",
  model_request: "model", api_retry: "retrying", schema_failed: "sent back", fallback: "goes on",
  nudged: "hurry", interrupted: "stopped", asked: "asks", answered: "is told",
  approval_asked: "approve?", approval_decided: "decided", egress: "connects",
  egress_denied: "blocked", secret_used: "secret", server_call: "tool", server_denied: "refused",
  server: "server", workspace: "files", delegated: "delegates", steered: "is steered",
};

export const label = (kind) => LABELS[kind] || String(kind).replaceAll("_", " ");

export const STATUS = {
  pending: "queued", running: "running", paused: "approval", waiting_parent_reply: "question",
  parent_replied: "answered", completed: "completed", failed: "failed", cancelled: "cancelled",
  timed_out: "timed out",
};

export const status = (run, stalled = false) =>
  h("span.status", { data: { status: stalled ? "stalled" : run.status }, title: run.reason || run.status },
    h("i", { "aria-hidden": "true" }), STATUS[run.status] || run.status, stalled && h("em", "stalled"));

/** A moment as its age, with the time itself on hover. */
export const ago = (at) => h("time", { datetime: new Date(at * 1000).toISOString(), title: when(at), data: { at } });

export const lasted = (run, now) => span((run.ended || now) - run.created);

/** Code or other text that is to be read to the letter: in its order, whatever its direction. */
export const exact = (text, extra = "") => h(`pre.exact${extra}`, { tabindex: "0" }, text);

export const json = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** What a tool is to be given, whole: a command as it is, anything else field by field. */
export const input = (value) => {
  const entries = Object.entries(value || {});
  if (!entries.length) return h("p.faint", "nothing");
  return h("dl.input", entries.map(([key, each]) => [h("dt", key), h("dd", exact(json(each)))]));
};

export const empty = (title, ...more) => h("div.empty", h("p.big", title), ...more);

export const toast = (text, kind = "") => {
  const place = document.getElementById("toasts");
  const shownToast = h(`div.toast${kind ? `.${kind}` : ""}`, text);
  place?.append(shownToast);
  setTimeout(() => shownToast.remove(), kind === "bad" ? 9000 : 4000);
};

/** Ask before something that cannot be taken back. */
export const confirm = (question, yes) =>
  new Promise((answer) => {
    const dialog = h("dialog", { "aria-label": question },
      h("p", question),
      h("div.buttons",
        h("button", { type: "button", onclick: () => dialog.close("") }, "No"),
        h("button.main.bad", { type: "button", onclick: () => dialog.close("yes") }, yes)));
    dialog.addEventListener("close", () => {
      dialog.remove();
      answer(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });

export const copy = (text) =>
  h("button.quiet.small", { type: "button", onclick: async (event) => {
    await navigator.clipboard.writeText(text).catch(() => null);
    say(event.target, "copied");
  } }, "copy");

/** A view: an element that is told what has changed. */
export class View extends HTMLElement {
  constructor(title, ...more) {
    super();
    this.className = "view";
    this.heading = h("h1", title);
    this.bar = h("header.bar", this.heading, ...more);
    this.append(this.bar);
  }

  /** Read something and show it; what goes wrong is shown in its place. */
  async load(place, read, draw) {
    place.setAttribute("aria-busy", "true");
    try {
      const found = await read();
      if (this.isConnected) fill(place, draw(found));
    } catch (error) {
      if (this.isConnected) fill(place, h("p.problem", { role: "alert" }, error.message));
    } finally {
      place.removeAttribute("aria-busy");
    }
  }
}

export const isOpen = (run) => !FINAL.has(run.status);

export const facts = (pairs) =>
  h("dl.facts", pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) =>
    [h("dt", name), h("dd", value instanceof Node ? value : Array.isArray(value) ? value : shown(value))]));
