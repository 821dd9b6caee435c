// One stream of events for all tabs of a browser: the tab that holds the lock reads it and tells the
// others, since a browser opens six connections to a server and no more. Where there are no locks
// (a page that did not come from this machine or by HTTPS), each tab has a stream of its own.

import { headers, legible } from "./api.js";

const NAME = "orchestrator.events";
const SILENCE_MS = 45_000; // the server says something every 15 s
const FIRST_RETRY_MS = 400;
const LONGEST_RETRY_MS = 5_000;

/** Server-sent events out of text in pieces: calls `on(event, id, data)`. */
export class Frames {
  #rest = "";
  #event = "";
  #id = "";
  #data = [];

  constructor(on) {
    this.on = on;
  }

  read(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    for (let line of lines) {
      if (line.endsWith("\r")) line = line.slice(0, -1);
      if (line === "") this.#end();
      else if (!line.startsWith(":")) {
        const colon = line.indexOf(":");
        const field = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "event") this.#event = value;
        else if (field === "id") this.#id = value;
        else if (field === "data") this.#data.push(value);
      }
    }
  }

  #end() {
    if (this.#data.length) this.on(this.#event || "message", this.#id, this.#data.join("\n"));
    this.#event = "";
    this.#id = "";
    this.#data = [];
  }
}

/** Tells `onevents(events)`, `ongap()` and `onstate("live" | "lost")`; `after` is the last event known. */
export class Stream {
  constructor({ onevents, ongap, onstate }) {
    Object.assign(this, { onevents, ongap, onstate });
    this.after = 0;
    this.leads = false;
    this.state = "lost";
    this.queue = [];
    this.ended = new AbortController();
    this.channel = null;
  }

  /** Begin after an event that the page knows everything up to. */
  start(after) {
    this.after = Math.max(this.after, after);
    if (this.started) return;
    this.started = true;
    if (!navigator.locks || !window.BroadcastChannel) {
      this.#lead();
      return;
    }
    this.listen();
    navigator.locks
      .request(NAME, { signal: this.ended.signal }, () => this.#lead())
      .catch(() => null);
  }

  /** Hear what the leading tab says, before the page asks for anything that it tells changes of. */
  listen() {
    if (this.channel || !window.BroadcastChannel) return;
    this.channel = new BroadcastChannel(NAME);
    this.channel.onmessage = ({ data }) => {
      if (data.who && this.leads) this.channel.postMessage({ state: this.state });
      if (data.state && !this.leads) this.#is(data.state);
      if (data.gap && !this.leads) this.ongap();
      if (data.events && !this.leads) this.#hear(data.events);
    };
    this.channel.postMessage({ who: true });
  }

  stop() {
    this.ended.abort();
    this.channel?.close();
  }

  #is(state) {
    if (this.leads) this.channel?.postMessage({ state });
    if (this.state === state) return;
    this.state = state;
    this.onstate(state);
  }

  #hear(events) {
    const fresh = events.filter((event) => event.id > this.after);
    if (!fresh.length) return;
    this.after = fresh[fresh.length - 1].id;
    this.onevents(fresh);
  }

  async #lead() {
    this.leads = true;
    let wait = FIRST_RETRY_MS;
    while (!this.ended.signal.aborted) {
      const before = this.after;
      try {
        await this.#read();
      } catch {
        // told by the state; tried again below
      }
      if (this.ended.signal.aborted) return;
      this.#is("lost");
      wait = this.after > before ? FIRST_RETRY_MS : Math.min(LONGEST_RETRY_MS, wait * 1.6);
      await new Promise((resume) => setTimeout(resume, wait * (0.8 + Math.random() * 0.4)));
    }
  }

  async #read() {
    const cut = new AbortController();
    const abort = () => cut.abort();
    this.ended.signal.addEventListener("abort", abort);
    let silence = 0;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(abort, SILENCE_MS);
    };
    heard();
    try {
      const answer = await fetch("/v1/events", {
        credentials: "same-origin",
        cache: "no-store",
        headers: headers({ Accept: "text/event-stream", "Last-Event-ID": String(this.after) }),
        signal: cut.signal,
      });
      if (!answer.ok || !answer.body) throw new Error(String(answer.status));
      this.#is("live");
      const frames = new Frames((event, id, data) => this.#frame(event, id, data));
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        heard();
        frames.read(value);
        this.#pass();
      }
    } finally {
      clearTimeout(silence);
      this.ended.signal.removeEventListener("abort", abort);
    }
  }

  #frame(event, id, data) {
    if (id) this.queue.push(legible(data));
    else if (event === "gap_detected") {
      this.#pass();
      this.after = JSON.parse(data).newest_available_id;
      this.channel?.postMessage({ gap: true });
      this.ongap();
    }
  }

  #pass() {
    const events = this.queue;
    if (!events.length) return;
    this.queue = [];
    this.channel?.postMessage({ events });
    this.#hear(events);
  }
}
