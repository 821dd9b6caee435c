// What waits for a person: questions, and tool calls with everything that would run.

import { UNSEEN, parse, path, post } from "../api.js";
import { h, say } from "../dom.js";
import { span } from "../format.js";
import { model } from "../model.js";
import { View, ago, empty, input, json, toast } from "../parts.js";

const SETTLE_MS = 500; // after things moved: what is under the pointer or chosen may be another thing
const GONE_MS = 2500;

const keyOf = (item) => `${item.run_id} ${item.message_id || item.call_id}`;

export class WaitingView extends View {
  constructor() {
    super("Waiting", h("p.keys", ...["j", "k", " move  ", "a", " approve or answer  ", "e", " edit  ", "r", " reject"].map((part) =>
      part.length === 1 ? h("kbd", part) : part)));
    this.list = h("div.cards", { role: "list", "aria-label": "What waits" });
    this.cards = new Map();
    this.chosen = "";
    this.movedAt = 0;
    this.append(this.list);
  }

  connectedCallback() {
    this.update(new Set(["waiting"]));
  }

  update(topics) {
    if (!topics.has("waiting") || !model.waitingKnown) return;
    const open = new Set(model.waiting.map(keyOf));
    for (const [key, card] of this.cards) if (!open.has(key)) this.#gone(key, card);
    for (const item of model.waiting) {
      const key = keyOf(item);
      if (this.cards.has(key)) continue;
      const card = new Card(item, this);
      this.cards.set(key, card);
      this.list.append(card.element);
    }
    if (!this.cards.size) {
      this.nothing ||= empty("Nothing waits for you.", h("p", "A question, or a tool call that an agent’s file says to ask about, appears here as soon as it is asked."));
      this.append(this.nothing);
    } else this.nothing?.remove();
    if (!this.cards.has(this.chosen)) this.choose([...this.cards.keys()][0] || "");
    this.tick();
  }

  #gone(key, card) {
    this.cards.delete(key);
    card.end();
    setTimeout(() => {
      this.movedAt = performance.now();
      for (const each of this.cards.values()) each.movedAt = this.movedAt;
      card.element.remove();
    }, this.isConnected ? GONE_MS : 0);
  }

  /** `pointed`: by a person, who sees which it is. */
  choose(key, focus = false, pointed = false) {
    if (key === this.chosen) return;
    this.cards.get(this.chosen)?.element.classList.remove("chosen");
    this.chosen = key;
    if (!pointed) this.movedAt = performance.now();
    const card = this.cards.get(key);
    card?.element.classList.add("chosen");
    if (focus) {
      card?.element.focus({ preventScroll: true });
      card?.element.scrollIntoView({ block: "nearest" });
    }
  }

  /** Whether what is chosen has been so for long enough to be meant. */
  get settled() {
    return performance.now() - this.movedAt > SETTLE_MS;
  }

  press(event) {
    const keys = [...this.cards.keys()];
    const at = keys.indexOf(this.chosen);
    if (event.key === "j") this.choose(keys[Math.min(keys.length - 1, at + 1)] || "", true);
    else if (event.key === "k") this.choose(keys[Math.max(0, at - 1)] || "", true);
    else if ("are".includes(event.key) && event.key.length === 1) {
      event.preventDefault();
      if (!event.repeat && this.settled) this.cards.get(this.chosen)?.press(event.key);
    }
  }

  tick() {
    for (const card of this.cards.values()) card.tick();
  }
}

customElements.define("waiting-view", WaitingView);

class Card {
  constructor(item, view) {
    this.item = item;
    this.view = view;
    this.movedAt = performance.now();
    const question = item.kind === "question";
    this.left = h("span.left");
    this.age = ago(item.asked);
    this.answer = question ? h("textarea", { rows: 2, "aria-label": `Answer ${item.agent}`, placeholder: "Your answer" }) : null;
    this.reason = h("input", { type: "text", "aria-label": "Why it is rejected, for the agent", placeholder: "Why not (the agent is told)" });
    this.editor = h("textarea.exact", { rows: 6, spellcheck: "false", "aria-label": "The input to run instead, as JSON" });
    this.more = h("div.more", { hidden: true });
    this.said = h("p.problem", { role: "alert", hidden: true });
    this.buttons = question
      ? [this.#button("Answer", "a", "main", () => this.#reply())]
      : [
          this.#button("Approve", "a", "main.good", () => this.#decide("approve")),
          this.#button("Edit", "e", "", () => this.#edit()),
          this.#button("Reject", "r", "bad", () => this.#reject()),
        ];
    this.element = h(`div.card.${question ? "question" : "approval"}`, {
      role: "listitem", tabindex: "-1", "aria-label": question ? `${item.agent} asks` : `${item.agent} wants to use ${item.tool}`,
      onfocusin: () => view.choose(keyOf(item), false, true),
    },
      h("header", h("b.agent", item.agent), question ? " asks" : [" wants to use ", h("code.tool", item.tool)],
        h("span.about", h("a", { href: `#/run/${encodeURIComponent(item.run_id)}` }, item.run_id), ` for ${item.caller} · asked `, this.age, " ago"),
        this.left),
      question ? h("p.said", item.question) : input(item.input),
      question && item.default_answer && h("p.faint", "Without an answer it goes by: ", h("q.said", item.default_answer)),
      !question && item.approval_by === "user" && h("p.faint", "Only a person may allow this (approval_by: user)."),
      this.answer, this.more, this.said,
      item.may_decide === false ? h("p.faint", "Not yours to decide.") : h("div.buttons", this.buttons));
    if (this.answer) {
      this.#remember(this.answer);
      this.answer.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#reply();
      });
    }
    this.reason.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.#decide("reject");
    });
  }

  press(key) {
    if (this.over || this.item.may_decide === false) return;
    if (this.item.kind === "question") {
      if (key === "a") this.answer.focus();
    } else if (key === "a") this.#decide("approve");
    else if (key === "e") this.#edit();
    else if (key === "r") this.#reject();
  }

  tick() {
    const { asked, deadline } = this.item;
    const left = deadline - model.now();
    say(this.age, span(model.now() - asked));
    say(this.left, !deadline ? "waits for its orchestrator" : left > 0 ? `${span(left)} left` : "time is up");
    this.left.classList.toggle("soon", Boolean(deadline) && left < 120);
  }

  end() {
    this.over = true;
    this.element.classList.add("over");
    for (const each of this.element.querySelectorAll("button, textarea, input")) each.disabled = true;
    say(this.left, this.done || "decided elsewhere");
    if (this.answer) sessionStorage.removeItem(this.#draft);
  }

  #button(text, key, classes, act) {
    return h(`button${classes ? `.${classes}` : ""}`, { type: "button", onclick: () => {
      // A card above may have gone a moment ago, and this button come under the pointer.
      if (performance.now() - this.movedAt > SETTLE_MS) act();
    } }, text, key && h("kbd", { "aria-hidden": "true" }, key));
  }

  get #draft() {
    return `orchestrator.draft ${keyOf(this.item)}`;
  }

  #remember(field) {
    field.value = sessionStorage.getItem(this.#draft) || "";
    field.addEventListener("input", () => sessionStorage.setItem(this.#draft, field.value));
  }

  #edit() {
    if (this.editing) return this.editor.focus();
    this.editing = true;
    this.editor.value = json(this.item.input);
    this.editor.rows = Math.min(16, this.editor.value.split("\n").length + 1);
    this.more.hidden = false;
    this.more.replaceChildren(h("label", "Runs instead of what was asked for", this.editor),
      this.#button("Approve as edited", "", "main.good", () => this.#decide("approve", this.editor.value)));
    this.editor.focus();
  }

  #reject() {
    this.editing = false;
    this.more.hidden = false;
    this.more.replaceChildren(h("label", "Reject", this.reason),
      this.#button("Reject", "", "main.bad", () => this.#decide("reject")));
    this.reason.focus();
  }

  #decide(action, edited) {
    const decision = { action };
    if (action === "reject" && this.reason.value.trim()) decision.why = this.reason.value.trim();
    if (edited !== undefined) {
      try {
        decision.input = parse(edited);
        if (JSON.stringify(decision.input).includes(UNSEEN)) throw new Error(`it holds ${UNSEEN}`);
        if (decision.input === null || typeof decision.input !== "object" || Array.isArray(decision.input)) throw new Error("it is no JSON object");
      } catch (error) {
        return this.#fail(`The edited input cannot be used: ${error.message}`);
      }
    }
    return this.#send(path("runs", this.item.run_id, "approvals"), { decisions: { [this.item.call_id]: decision } },
      action === "approve" ? (edited === undefined ? "approved" : "approved, edited") : "rejected");
  }

  #reply() {
    if (!this.answer.value.trim()) return this.#fail("The answer is empty; say something, if only that you do not know.");
    return this.#send(path("runs", this.item.run_id, "questions", this.item.message_id), { answer: this.answer.value }, "answered");
  }

  async #send(where, body, done) {
    if (this.over || this.sending) return;
    this.sending = true;
    this.said.hidden = true;
    this.element.setAttribute("aria-busy", "true");
    try {
      await post(where, body);
      this.done = done;
      toast(`${this.item.agent}: ${done}`);
    } catch (error) {
      if (error.status === 409 || error.status === 404) {
        this.done = "decided elsewhere";
        toast(error.message, "bad");
      } else this.#fail(error.message);
    }
    this.element.removeAttribute("aria-busy");
    this.sending = false;
    await model.readInbox().catch(() => null);
  }

  #fail(text) {
    this.said.hidden = false;
    say(this.said, text);
  }
}

