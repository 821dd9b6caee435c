// Requests to /v1. The cookie says who asks; the key, which only pages of this origin can read, says
// that this page does: a cookie reaches every port of a host, and links elsewhere can carry it.

const KEY = "orchestrator.key";

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.error || body.title || `the server answered ${status}`);
    this.status = status;
    this.code = body.code || "";
  }
}

/** In place of a whole number that this browser would round, and whose digits it does not tell. */
export const UNSEEN = "a number that this browser cannot show exactly";

const reader = (keep) => (text) =>
  JSON.parse(text, (_, value, seen) =>
    !Number.isInteger(value) || Number.isSafeInteger(value) ? value : seen?.source ? keep(seen.source) : UNSEEN);

/** JSON whose whole numbers above 2^53 keep their digits: what runs is shown, and sent, as it is. */
export const parse = reader((digits) => JSON.rawJSON(digits));

/** The same to be read only: such numbers are texts, which other tabs can be told. */
export const legible = reader(String);

const listeners = new Set();

/** Called when the server does not know this page any more. */
export const onSignedOut = (listener) => listeners.add(listener);

export const headers = (more = {}) => ({ "X-Orchestrator": localStorage.getItem(KEY) || "page", ...more });

export const request = async (method, path, body, options = {}) => {
  const sent = body === undefined ? {} : { "Content-Type": "application/json" };
  let answer;
  try {
    answer = await fetch(path, {
      method,
      credentials: "same-origin",
      cache: "no-store",
      headers: headers({ Accept: options.accept || "application/json", ...sent }),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: options.signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "the server does not answer; is it running?" });
  }
  if (!answer.ok) {
    const problem = await answer.json().catch(() => ({}));
    if (answer.status === 401 && !options.quiet) listeners.forEach((listener) => listener());
    throw new Problem(answer.status, problem);
  }
  if (answer.status === 204) return null;
  return options.accept ? answer.text() : parse(await answer.text());
};

export const get = (path, options) => request("GET", path, undefined, options);
export const post = (path, body = {}, options) => request("POST", path, body, options);

/** Exchange a one-time code for a cookie and a key. */
export const signIn = async (proof) => {
  const given = await post("/v1/login", proof, { quiet: true });
  if (given?.key) localStorage.setItem(KEY, given.key);
};

export const signOut = async () => {
  await post("/v1/logout").catch(() => null);
  localStorage.removeItem(KEY);
};

export const path = (...parts) => `/v1/${parts.map((part) => encodeURIComponent(part)).join("/")}`;

export const query = (values) => {
  const found = new URLSearchParams();
  for (const [key, value] of Object.entries(values))
    for (const each of [].concat(value)) if (each !== "" && each !== null && each !== undefined) found.append(key, each);
  const text = found.toString();
  return text ? `?${text}` : "";
};
