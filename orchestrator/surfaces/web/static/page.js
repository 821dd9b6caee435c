// The page: who looks at it, where they are, what is told wherever they are.

import { get, onSignedOut, signIn, signOut } from "./api.js";
import { fill, h, icon, say, typing } from "./dom.js";
import { model } from "./model.js";
import { AgentsView } from "./views/agents.js";
import { MachineView } from "./views/machine.js";
import { RunView } from "./views/run.js";
import { RunsView } from "./views/runs.js";
import { ServersView } from "./views/servers.js";
import { WaitingView } from "./views/waiting.js";

const PLACES = [
  { name: "waiting", title: "Waiting", key: "1", view: WaitingView, icon: "M8 2v6l4 2M8 14.5A6.5 6.5 0 1 1 8 1.5a6.5 6.5 0 0 1 0 13Z" },
  { name: "runs", title: "Runs", key: "2", view: RunsView, icon: "M2 3.5h12M5 8h9M8 12.5h6M2 8h.5M2 12.5h.5M5 12.5h.5" },
  { name: "agents", title: "Agents", key: "3", view: AgentsView, icon: "M8 7.5a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM2 14.5c0-3 2.5-5 6-5s6 2 6 5" },
  { name: "servers", title: "Servers", key: "4", view: ServersView, icon: "M2 2.5h12v4H2zM2 9.5h12v4H2zM4.5 4.5h.5M4.5 11.5h.5" },
  { name: "machine", title: "Machine", key: "5", view: MachineView, icon: "M3.5 3.5h9v9h-9zM6 1v2.5M10 1v2.5M6 12.5V15M10 12.5V15M1 6h2.5M1 10h2.5M12.5 6H15M12.5 10H15" },
];
const THEMES = ["auto", "light", "dark"];
const PAGE = document.querySelector("meta[name=page]").content;

let view = null;
let shell = null;

// ---- Where one is

const place = () => {
  const [, name = "waiting", ...rest] = location.hash.split("/");
  return { name, rest: rest.map((part) => decodeURIComponent(part)) };
};

const go = () => {
  const { name, rest } = place();
  if (name === "run" && view instanceof RunView && view.runId === rest[0]) {
    view.open(rest[1]);
    return;
  }
  const known = PLACES.find((each) => each.name === name) || PLACES[0];
  view?.remove();
  view = name === "run" && rest[0] ? new RunView(rest[0], rest[1]) : new known.view();
  fill(shell.main, view);
  const under = name === "run" ? "runs" : known.name;
  for (const link of shell.links)
    if (link.dataset.name === under) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  title();
};

const title = () => {
  const count = model.waiting.length;
  const where = place().name === "run" ? `${place().rest[0]}` : PLACES.find((p) => p.name === place().name)?.title || "Waiting";
  document.title = `${count ? `(${count}) ` : ""}${where} · ${model.me?.project_name || "orchestrator"}`;
  const assets = document.querySelector("link[rel=stylesheet]").getAttribute("href").replace("/page.css", "");
  const wanted = `${assets}/favicon${count ? "-waiting" : ""}.svg`;
  const link = document.querySelector("link[rel=icon]");
  if (link.getAttribute("href") !== wanted) link.href = wanted;
};

// ---- The frame around the views

const theme = (name) => {
  localStorage.setItem("orchestrator.theme", name);
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
};

const build = () => {
  const links = PLACES.map((each) =>
    h("a.place", { href: `#/${each.name}`, data: { name: each.name }, title: `${each.title} (${each.key})` },
      icon(each.icon), h("span.name", each.title), h("span.count", { data: { of: each.name } })));
  const main = h("main", { id: "main", tabindex: "-1" });
  const connection = h("span.connection", { role: "status" });
  const button = h("button.quiet.theme", { type: "button", onclick: () => {
    const now = localStorage.getItem("orchestrator.theme") || "auto";
    theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
    label();
  } });
  const label = () => {
    const now = localStorage.getItem("orchestrator.theme") || "auto";
    fill(button, icon("M8 11.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7ZM8 1v1M8 14v1M1 8h1M14 8h1M3 3l.7.7M12.3 12.3l.7.7M13 3l-.7.7M3.7 12.3l-.7.7"), h("span.name", now));
    button.setAttribute("aria-label", `colours: ${now}; choose another`);
  };
  label();
  const bell = window.Notification && Notification.permission !== "denied" && h("button.quiet.bell", {
    type: "button",
    "aria-pressed": String(notifies()),
    title: "Tell me on the desktop when something waits",
    onclick: async () => {
      const on = !notifies() && (await Notification.requestPermission()) === "granted";
      localStorage.setItem("orchestrator.notify", on ? "1" : "");
      bell.setAttribute("aria-pressed", String(on));
    },
  }, icon("M8 1.5a4 4 0 0 0-4 4c0 4-2 5-2 6h12c0-1-2-2-2-6a4 4 0 0 0-4-4ZM6.5 14h3"), h("span.name", "notify"));
  const out = h("button.quiet", { type: "button", title: "End this page's session", onclick: async () => {
    await signOut();
    location.reload();
  } }, icon("M6 2H2.5v12H6M10.5 4.5 14 8l-3.5 3.5M14 8H6"), h("span.name", "sign out"));
  const alert = h("div.visually-hidden", { role: "status", "aria-live": "polite" });
  fill(document.body,
    h("a.skip", { href: "#main", onclick: (event) => { event.preventDefault(); main.focus(); } }, "Skip to the content"),
    h("div.frame",
      h("nav.rail", { "aria-label": "Views" },
        h("div.brand", h("img", { src: document.querySelector("link[rel=icon]").href, alt: "", width: 22, height: 22 }),
          h("span.name", h("b", model.me.project_name || "orchestrator"), h("small", `operator · ${model.me.version}`))),
        h("div.places", links),
        h("div.foot", connection, bell, button, out)),
      main),
    h("div.toasts", { id: "toasts", role: "status", "aria-live": "polite" }),
    alert);
  return { main, links, connection, alert };
};

const counts = () => {
  const count = model.waiting.length;
  const open = [...model.runs.values()].filter((run) => run.status === "running").length;
  const waiting = document.querySelector(".count[data-of=waiting]");
  say(waiting, count || "");
  waiting.classList.toggle("calls", count > 0);
  say(document.querySelector(".count[data-of=runs]"), open || "");
  say(shell.connection, model.connection === "live" ? "live" : "reconnecting …");
  shell.connection.dataset.state = model.connection;
};

// ---- Told wherever one is

const notifies = () =>
  window.Notification?.permission === "granted" && localStorage.getItem("orchestrator.notify") === "1";

let told = null;

const tellWaiting = () => {
  const keys = model.waiting.map((item) => `${item.run_id} ${item.message_id || item.call_id}`);
  const fresh = told && model.waiting.filter((_, n) => !told.has(keys[n]));
  told = new Set(keys);
  title();
  if (!fresh?.length) return;
  const first = fresh[0];
  const words = first.kind === "question" ? `${first.agent} asks something` : `${first.agent} wants to use ${first.tool}`;
  say(shell.alert, `${words}; ${keys.length} waiting`);
  if (notifies() && document.hidden && model.stream.leads) {
    const note = new Notification(words.slice(0, 120), { tag: "orchestrator", body: `${keys.length} waiting` });
    note.onclick = () => { window.focus(); location.hash = "#/waiting"; };
  }
};

// ---- Another version of the server has another page

const sameVersion = async () => {
  const found = await get("/assets/current", { quiet: true }).catch(() => null);
  if (!found || found.page === PAGE || sessionStorage.getItem("orchestrator.reloaded") === found.page) return;
  sessionStorage.setItem("orchestrator.reloaded", found.page);
  location.reload();
};

// ---- Who looks

const signedOut = (why = "") => {
  model.stream.stop();
  view?.remove();
  view = null;
  document.title = "Sign in · orchestrator";
  fill(document.body, h("main.sign-in", { id: "main" },
    h("img", { src: document.querySelector("link[rel=icon]").href, alt: "", width: 40, height: 40 }),
    h("h1", "This page does not know you"),
    why && h("p.problem", { role: "alert" }, why),
    h("p", "In a terminal on the machine that the server runs on, in the same project:"),
    h("pre.command", { tabindex: "0" }, "orchestrator dashboard"),
    h("p.faint", "It opens this page with a link that works once.")));
};

const begin = async () => {
  theme(localStorage.getItem("orchestrator.theme") || "auto");
  const code = location.hash.match(/^#code=([\w-]+)$/)?.[1];
  if (code) {
    history.replaceState(null, "", "#/waiting");
    try {
      await signIn({ code });
    } catch (error) {
      if (error.status) {
        signedOut(error.message);
        return;
      }
    }
  }
  onSignedOut(() => signedOut("the session has ended"));
  try {
    if (!(await model.open())) {
      signedOut();
      return;
    }
  } catch (error) {
    if (error.status === 401 || error.status === 403) {
      signedOut();
      return;
    }
    fill(document.body, h("main.sign-in", h("h1", "The server does not answer"), h("p", error.message)));
    setTimeout(() => location.reload(), 3000);
    return;
  }
  shell = build();
  addEventListener("hashchange", go);
  model.addEventListener("reconnected", sameVersion);
  model.addEventListener("change", ({ detail }) => {
    counts();
    if (detail.has("waiting")) tellWaiting();
    view?.update?.(detail);
  });
  setInterval(() => view?.tick?.(), 1000);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && typing()) document.activeElement.blur();
    else if (typing() || document.querySelector("dialog[open]")) return;
    else if (PLACES.some((each) => each.key === event.key)) location.hash = `#/${PLACES.find((each) => each.key === event.key).name}`;
    else view?.press?.(event);
  });
  counts();
  tellWaiting();
  go();
};

begin();
