// Events of a run -> what its time went into, and a strip that shows it.

import { h } from "./dom.js";
import { span } from "./format.js";

export const PHASES = ["queued", "starting", "model", "tools", "waiting"];

const ASKS = { asked: "message_id", approval_asked: "call_id" };
const TOLD = { answered: "message_id", approval_decided: "call_id" };

/** Adds up events as they come; `pieces` are [phase, from, to], those of one phase in their order. */
export class Timeline {
  pieces = [];
  ticks = []; // [at, denied]
  from = 0;
  to = 0;
  ended = false;
  #queued = 0;
  #starting = 0;
  #tools = new Map();
  #waits = new Map();

  add(event) {
    const { at, kind, data } = event;
    this.from ||= at;
    this.to = Math.max(this.to, at);
    if (kind === "queued") this.#queued = at;
    else if (kind === "starting" || kind === "started") {
      if (this.#queued) this.#piece("queued", this.#queued, at);
      this.#queued = 0;
      this.#starting ||= at;
    } else if (kind === "ready") {
      if (this.#starting) this.#piece("starting", this.#starting, at);
      this.#starting = 0;
    } else if (kind === "model_request") this.#piece("model", at - (data.duration_ms || 0) / 1000, at);
    else if (kind === "tool_call") this.#tools.set(data.id, at);
    else if (kind === "tool_result") {
      if (this.#tools.has(data.id)) this.#piece("tools", this.#tools.get(data.id), at);
      this.#tools.delete(data.id);
    } else if (ASKS[kind]) this.#waits.set(data[ASKS[kind]], at);
    else if (TOLD[kind]) {
      if (this.#waits.has(data[TOLD[kind]])) this.#piece("waiting", this.#waits.get(data[TOLD[kind]]), at);
      this.#waits.delete(data[TOLD[kind]]);
    } else if (kind === "egress" || kind === "egress_denied") this.ticks.push([at, kind === "egress_denied"]);
    else if (kind === "ended") {
      for (const open of this.open(at)) this.pieces.push(open);
      this.#tools.clear();
      this.#waits.clear();
      this.#queued = this.#starting = 0;
      this.ended = true;
    }
  }

  #piece(phase, from, to) {
    this.pieces.push([phase, Math.max(this.from, from), to]);
  }

  /** What is under way, until now. */
  open(now) {
    if (this.ended) return [];
    return [
      ...(this.#queued ? [["queued", this.#queued, now]] : []),
      ...(this.#starting ? [["starting", this.#starting, now]] : []),
      ...[...this.#tools.values()].map((from) => ["tools", from, now]),
      ...[...this.#waits.values()].map((from) => ["waiting", from, now]),
    ];
  }

  /** Seconds of each phase, time that two share counted once. */
  sums(now) {
    const sums = {};
    for (const phase of PHASES) {
      let total = 0;
      let end = 0;
      const of = [...this.pieces, ...this.open(now)].filter(([name]) => name === phase).sort((a, b) => a[1] - b[1]);
      for (const [, from, to] of of) {
        total += Math.max(0, to - Math.max(from, end));
        end = Math.max(end, to);
      }
      if (total) sums[phase] = total;
    }
    return sums;
  }
}

/** The strip: a picture of any number of pieces, and the same in words. */
export class TimelineStrip extends HTMLElement {
  constructor() {
    super();
    this.className = "strip";
    this.canvas = h("canvas", { role: "img", "aria-label": "Where the time of this run went" });
    this.legend = h("ul.legend");
    this.append(this.canvas, this.legend);
    this.onseek = null;
    this.canvas.addEventListener("click", (event) => {
      const part = event.offsetX / this.canvas.clientWidth;
      this.onseek?.(this.line.from + part * (this.until - this.line.from));
    });
    this.sizes = new ResizeObserver(() => this.line && this.paint(this.line, this.until));
  }

  connectedCallback() {
    this.sizes.observe(this.canvas);
  }

  disconnectedCallback() {
    this.sizes.disconnect();
  }

  paint(line, now) {
    this.line = line;
    this.until = Math.max(line.ended ? line.to : now, line.from + 0.001);
    const scale = devicePixelRatio || 1;
    const width = Math.max(1, Math.round(this.canvas.clientWidth * scale));
    const height = Math.round(this.canvas.clientHeight * scale);
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    const context = this.canvas.getContext("2d");
    const style = getComputedStyle(this);
    const colour = (name) => style.getPropertyValue(`--phase-${name}`).trim();
    const x = (at) => ((at - line.from) / (this.until - line.from)) * width;
    const lane = height - Math.round(8 * scale);
    context.clearRect(0, 0, width, height);
    context.fillStyle = colour("ground");
    context.fillRect(0, 0, width, lane);
    const all = [...line.pieces, ...line.open(this.until)];
    for (const phase of PHASES) {
      context.fillStyle = colour(phase);
      let drawn = -1;
      for (const [name, from, to] of all) {
        if (name !== phase) continue;
        const left = Math.floor(x(from));
        const right = Math.max(left + Math.ceil(scale * 1.5), Math.round(x(to)));
        if (right <= drawn) continue; // of thousands, most share a pixel
        context.fillRect(left, 0, right - left, lane);
        drawn = right;
      }
    }
    for (const denied of [false, true]) {
      context.fillStyle = colour(denied ? "denied" : "egress");
      let drawn = -1;
      for (const [at, refused] of line.ticks) {
        const left = Math.round(x(at));
        if (refused !== denied || left <= drawn) continue;
        context.fillRect(Math.min(left, width - Math.ceil(2 * scale)), lane + Math.round(2 * scale), Math.ceil(2 * scale), height);
        drawn = left;
      }
    }
    this.#words(line);
  }

  #words(line) {
    const sums = line.sums(this.until);
    const denied = line.ticks.filter(([, refused]) => refused).length;
    const items = Object.entries(sums).map(([phase, seconds]) => [phase, span(seconds)]);
    if (line.ticks.length - denied) items.push(["network", String(line.ticks.length - denied)]);
    if (denied) items.push(["refused", String(denied)]);
    const words = items.map((pair) => pair.join(" ")).join(", ");
    if (words === this.words) return;
    this.words = words;
    this.canvas.setAttribute("aria-label", `${span(this.until - line.from)} in all: ${words}`);
    this.legend.replaceChildren(...items.map(([phase, amount]) => h("li", { data: { phase } }, h("i", { "aria-hidden": "true" }), `${phase} `, h("b", amount))));
  }
}

customElements.define("timeline-strip", TimelineStrip);
