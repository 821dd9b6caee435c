// Elements and text. Whatever an agent wrote reaches the page through `h` or `shown`, as text nodes:
// nothing here or elsewhere parses HTML, and the page's policy (Trusted Types) would refuse it.

// Characters that a reader would not see, or that change how their neighbours are read: controls
// (terminal escapes begin with one), directions, joiners, blanks without width, tags, private use.
const ODD =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]|[\ud800-\udfff]/u;
const PARTS = new RegExp(`(${ODD.source})`, "u");
const EMOJI_PARTS = /\p{Extended_Pictographic}\ufe0f?(?:\u200d\p{Extended_Pictographic}\ufe0f?)*/gu;

const name = (char) => `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

const mark = (char) => (char === "\u001b" ? "␛" : char === "\r" ? "␍" : `⟨${name(char)}⟩`);

/** Text for places that take no elements, such as titles: odd characters by their names. */
export const plain = (value) => {
  const text = String(value ?? "");
  if (!ODD.test(text)) return text;
  return text.split(PARTS).map((part) => (ODD.test(part) ? mark(part) : part)).join("");
};

/** Text as nodes, odd characters as marks that can be seen; a joined emoji stays one. */
export const shown = (value) => {
  const text = String(value ?? "");
  if (!ODD.test(text)) return document.createTextNode(text);
  const nodes = document.createDocumentFragment();
  let at = 0;
  const add = (piece) => {
    for (const part of piece.split(PARTS)) {
      if (part === "") continue;
      if (!ODD.test(part)) nodes.append(part);
      else {
        const odd = document.createElement("span");
        odd.className = "odd";
        odd.title = name(part);
        odd.textContent = mark(part);
        nodes.append(odd);
      }
    }
  };
  for (const emoji of text.matchAll(EMOJI_PARTS)) {
    add(text.slice(at, emoji.index));
    nodes.append(emoji[0]);
    at = emoji.index + emoji[0].length;
  }
  add(text.slice(at));
  return nodes;
};

/** An element: `h("p.note", {title: "x", onclick: f}, "text", child, [more])`; null is left out. */
export const h = (what, ...rest) => {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  const first = rest[0];
  if (first && typeof first === "object" && !(first instanceof Node) && !Array.isArray(first))
    set(element, rest.shift());
  put(element, rest);
  return element;
};

const set = (element, props) => {
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "value" || key === "checked" || key === "disabled") element[key] = value;
    else element.setAttribute(key, value === true ? "" : plain(value));
  }
};

const put = (element, children) => {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) put(element, child);
    else element.append(child instanceof Node ? child : shown(child));
  }
};

/** The same element with other children. */
export const fill = (element, ...children) => {
  element.replaceChildren();
  put(element, children);
  return element;
};

/** Change a text only if it is another one: screen readers and selections are left alone. */
export const say = (element, value) => {
  const text = String(value ?? "");
  if (element.dataset.said === text) return;
  element.dataset.said = text;
  element.replaceChildren(shown(text));
};

const SVG = "http://www.w3.org/2000/svg";

/** A picture of ours: paths in a 16 by 16 box. */
export const icon = (paths) => {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "icon");
  for (const d of [].concat(paths)) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
};

export const typing = () => {
  const at = document.activeElement;
  return Boolean(at && (at.matches("input:not([type=checkbox]), textarea, select") || at.isContentEditable));
};
