// What the page knows: who looks, the runs, what waits. Kept up to date by events; told to views once
// per frame.

import { get, path, query } from "./api.js";
import { Stream } from "./stream.js";

const PAGE_ROWS = 100;
const ASK_AGAIN_MS = 150;
const STALLED_SECONDS = 60;

export const FINAL = new Set(["completed", "failed", "cancelled", "timed_out"]);
export const WAITS = new Set(["paused", "waiting_parent_reply"]);

const STEPS = new Set([
  "queued", "starting", "started", "ready", "text", "tool_call", "tool_result", "api_retry",
  "schema_failed", "fallback", "nudged", "workspace", "asked", "answered", "approval_asked",
  "approval_decided", "delegated", "status", "steered", "ended",
]);
const CHANGES_WAITING = new Set(["asked", "answered", "approval_asked", "approval_decided", "ended"]);

class Model extends EventTarget {
  me = null;
  runs = new Map();
  waiting = [];
  waitingKnown = false;
  connection = "lost";
  filter = {};
  more = null; // the cursor of the next page of runs; undefined while none was read
  watchers = new Map(); // run id -> what is called with its events
  #topics = new Set();
  #frame = 0;
  #dirty = new Set();
  #dirtyTimer = 0;
  #inboxTimer = 0;
  #generation = 0;

  constructor() {
    super();
    this.stream = new Stream({
      onevents: (events) => this.#apply(events),
      ongap: () => this.refresh(),
      onstate: (state) => {
        this.connection = state;
        this.changed("connection");
        if (state === "live") this.dispatchEvent(new Event("reconnected"));
      },
    });
  }

  now() {
    return Date.now() / 1000;
  }

  /** Tell views about a topic with the next frame. */
  changed(topic) {
    this.#topics.add(topic);
    if (this.#frame) return;
    const tell = () => {
      this.#frame = 0;
      const topics = this.#topics;
      this.#topics = new Set();
      this.dispatchEvent(new CustomEvent("change", { detail: topics }));
    };
    // A tab in the background has no frames, but its title has to be true.
    this.#frame = document.hidden ? setTimeout(tell, 200) : requestAnimationFrame(tell);
  }

  /** False if who looks is not a person that the server knows. */
  async open() {
    this.me = await get("/v1/me", { quiet: true });
    if (!this.me.person) return false;
    this.stream.listen();
    await Promise.all([this.readRuns(), this.readInbox()]);
    return true;
  }

  /** Everything anew: events were lost, or other runs are wanted. */
  async refresh() {
    this.runs.clear();
    this.changed("runs");
    this.dispatchEvent(new Event("refresh"));
    await Promise.all([this.readRuns(), this.readInbox()]).catch(() => null);
  }

  async choose(filter) {
    this.filter = filter;
    this.runs.clear();
    await this.readRuns();
  }

  async readRuns(cursor = null) {
    const generation = cursor === null ? ++this.#generation : this.#generation;
    const found = await get(`/v1/runs${query({ ...this.filter, limit: PAGE_ROWS, cursor })}`);
    if (generation !== this.#generation) return; // another filter was chosen meanwhile
    for (const row of found.items) this.#keep(row, found.newest_event_id);
    this.more = found.next_cursor;
    this.changed("runs");
    this.stream.start(found.newest_event_id);
  }

  async readMore() {
    if (!this.more || this.reading) return;
    this.reading = true;
    try {
      await this.readRuns(this.more);
    } finally {
      this.reading = false;
    }
  }

  async readInbox() {
    const found = await get("/v1/inbox");
    this.waiting = found.items;
    this.waitingKnown = true;
    this.changed("waiting");
    this.stream.start(found.newest_event_id);
  }

  /** One run with everything; the list has it too, from then on. */
  async read(runId) {
    const run = await get(path("runs", runId));
    this.#keep(rowOf(run), run.newest_event_id);
    this.changed("runs");
    return run;
  }

  /** What a run and all below it cost, each counted once; of one under way, as far as it is known. */
  family(run, below = this.tree()) {
    if (FINAL.has(run.status)) return run.family_usd;
    return (below.get(run.run_id) || []).reduce((sum, child) => sum + this.family(child, below), run.cost_usd);
  }

  /** Run id -> the runs that work for it. */
  tree() {
    const below = new Map();
    for (const run of this.runs.values()) {
      if (!run.parent_run_id || run.parent_run_id === run.run_id) continue;
      if (!below.has(run.parent_run_id)) below.set(run.parent_run_id, []);
      below.get(run.parent_run_id).push(run);
    }
    return below;
  }

  stalled(run) {
    return run.status === "running" && this.now() - (run.lastAt || run.created) > STALLED_SECONDS;
  }

  #keep(row, asOf) {
    const known = this.runs.get(row.run_id);
    if (known && known.asOf > asOf) return;
    const step = row.step ? { kind: row.step_kind, text: row.step, at: row.step_at } : known?.step || null;
    const at = step?.at || row.ended || row.created;
    this.runs.set(row.run_id, {
      ...row,
      step,
      asOf,
      lastAt: Math.max(at, known?.lastAt || 0),
      version: (known?.version || 0) + 1,
    });
  }

  #apply(events) {
    let waits = false;
    for (const event of events) {
      const run = this.runs.get(event.run_id);
      if (CHANGES_WAITING.has(event.kind)) {
        waits = true;
        this.#stale(event.run_id);
      }
      if (!run) this.#stale(event.run_id);
      else if (event.id > run.asOf) this.#advance(run, event);
      this.watchers.get(event.run_id)?.(event);
    }
    if (waits && !this.#inboxTimer)
      this.#inboxTimer = setTimeout(() => {
        this.#inboxTimer = 0;
        this.readInbox().catch(() => null);
      }, ASK_AGAIN_MS);
    this.changed("runs");
  }

  #advance(run, event) {
    run.asOf = event.id;
    run.version++;
    run.lastAt = Math.max(run.lastAt, event.at);
    if (STEPS.has(event.kind)) run.step = { kind: event.kind, text: event.text, at: event.at };
    if (event.kind === "starting" && run.status === "pending") run.status = "running";
    if (event.kind === "ready") run.model = event.data.model || run.model;
    if (event.kind === "queued" && event.data.scripted) run.scripted = true;
    if (event.kind !== "model_request") return;
    run.requests = (run.requests || 0) + 1;
    run.input_tokens += tokensIn(event.data);
    run.output_tokens += event.data.output_tokens || 0;
    if (run.scripted) return;
    run.cost_usd += event.data.cost_usd || 0;
    for (let above = this.runs.get(run.parent_run_id); above; above = this.runs.get(above.parent_run_id)) above.version++;
  }

  /** Ask the server about a run soon, and about those that it works for. */
  #stale(runId) {
    for (let id = runId; id; id = this.runs.get(id)?.parent_run_id) this.#dirty.add(id);
    if (this.#dirtyTimer) return;
    this.#dirtyTimer = setTimeout(async () => {
      this.#dirtyTimer = 0;
      const ids = [...this.#dirty];
      this.#dirty.clear();
      try {
        if (ids.length > 8) await this.#readNewest(ids);
        else await Promise.all(ids.map((id) => this.read(id).then(() => this.#above(id), () => null)));
      } catch {
        // the stream tells that the server is gone, and all is read again
      }
    }, ASK_AGAIN_MS);
  }

  async #above(runId) {
    const parent = this.runs.get(runId)?.parent_run_id;
    if (parent && !this.runs.has(parent)) this.#stale(parent);
  }

  /** Many at once: pages of the list until all of them were seen. */
  async #readNewest(ids) {
    const wanted = new Set(ids);
    let cursor = null;
    for (let pages = 0; wanted.size && pages < 5; pages++) {
      const found = await get(`/v1/runs${query({ ...this.filter, limit: 200, cursor })}`);
      for (const row of found.items) {
        if (wanted.delete(row.run_id) || !this.runs.has(row.run_id)) this.#keep(row, found.newest_event_id);
      }
      cursor = found.next_cursor;
      if (!cursor) break;
    }
    this.changed("runs");
  }
}

export const tokensIn = (used) =>
  (used.input_tokens || 0) + (used.cache_read_tokens || 0) + (used.cache_write_tokens || 0);

/** What the list shows of a run of which all is known. */
const rowOf = (run) => ({
  ...run,
  result: undefined,
  patch: undefined,
  context: undefined,
  prompt: run.prompt.slice(0, 200),
  input_tokens: run.usage ? tokensIn(run.usage) : run.input_tokens,
  output_tokens: run.usage ? run.usage.output_tokens : run.output_tokens,
  requests: run.usage ? run.usage.requests : run.requests,
  waiting: run.questions.length + run.pending_tool_calls.length,
});

export const model = new Model();
