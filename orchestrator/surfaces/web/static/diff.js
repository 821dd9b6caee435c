// A patch as text -> files and lines that can be read. Nothing in it is believed: its names are shown,
// never used.

import { h, plain } from "./dom.js";
import { plural } from "./format.js";

const FIRST_LINES = 400; // of one file; the others on demand

/** The files of a git patch: {name, old, lines, added, removed, binary}. */
export const files = (patch) => {
  const found = [];
  let file = null;
  let inHunk = false;
  for (const line of patch.split("\n")) {
    if (line.startsWith("diff --git ")) {
      file = { head: line.slice(11), name: "", old: "", lines: [], added: 0, removed: 0, binary: false };
      found.push(file);
      inHunk = false;
    } else if (!file) continue;
    else if (line.startsWith("@@")) {
      inHunk = true;
      file.lines.push(["hunk", line]);
    } else if (!inHunk) {
      if (line.startsWith("+++ ")) file.name = named(line.slice(4));
      else if (line.startsWith("--- ")) file.old = named(line.slice(4));
      else if (line.startsWith("rename from ")) file.old = line.slice(12);
      else if (line.startsWith("rename to ")) file.name = line.slice(10);
      else if (line.startsWith("GIT binary patch") || line.startsWith("Binary files")) file.binary = true;
      else if (line.startsWith("new file mode") || line.startsWith("deleted file mode") || line.startsWith("old mode") || line.startsWith("new mode")) file.lines.push(["note", line]);
    } else if (line.startsWith("+")) {
      file.added++;
      file.lines.push(["add", line]);
    } else if (line.startsWith("-")) {
      file.removed++;
      file.lines.push(["del", line]);
    } else if (line !== "" || file.lines.length) file.lines.push([line.startsWith("\\") ? "note" : "same", line]);
  }
  for (const each of found) if (each.lines.at(-1)?.[1] === "") each.lines.pop();
  return found;
};

const named = (text) => (text === "/dev/null" ? "" : text.replace(/^"?[ab]\//, "").replace(/"$/, "").replace(/\t$/, ""));

const lines = (file, from, to) =>
  file.lines.slice(from, to).map(([kind, text]) =>
    h(`span.${kind}`, kind === "add" || kind === "del" ? h("span.visually-hidden", kind === "add" ? "added: " : "removed: ") : null, text, "\n"));

/** One file: folded away if it is long, with the rest of it on demand. */
export const fileDiff = (file, about = {}) => {
  const name = file.name || file.old || plain(file.head);
  const code = h("code", lines(file, 0, FIRST_LINES));
  const body = h("pre.exact.diff", { tabindex: "0", "aria-label": `Changes of ${plain(name)}` }, code);
  const rest = file.lines.length - FIRST_LINES;
  return h("details.file", { open: file.lines.length < FIRST_LINES },
    h("summary", h("span.exact.name", file.old && file.name && file.old !== file.name ? `${file.old} → ${name}` : name),
      !file.name && h("span.tag.bad", "deleted"), !file.old && !file.binary && h("span.tag.good", "new"), file.binary && h("span.tag", "binary"),
      h("span.plus", `+${file.added}`), h("span.minus", `−${file.removed}`)),
    about.acts && h("p.warn", "This file acts on your machine: ", about.acts),
    body,
    rest > 0 && h("button.quiet", { type: "button", onclick: (event) => {
      code.append(...lines(file, FIRST_LINES));
      event.target.remove();
    } }, `Show ${plural(rest, "more line")}`));
};
