// A list of any length: only the rows in sight are elements. All rows are equally high.

import { h } from "./dom.js";

const SPARE_ROWS = 12;

/** `draw(index)` makes a row, `version(index)` changes when it has to be made again. */
export class VirtualList extends HTMLElement {
  #count = 0;
  #draw = null;
  #version = null;
  #rows = new Map();
  #space = null;
  #planned = 0;
  onend = null; // called when the last rows come into sight
  onmoved = null; // called when the reader scrolls

  setup({ draw, version, label, height = 34 }) {
    this.#draw = draw;
    this.#version = version;
    this.rowHeight = height;
    this.tabIndex = 0;
    this.setAttribute("role", "list");
    this.setAttribute("aria-label", label);
    this.#space = h("div.rows", { role: "presentation" });
    this.append(this.#space);
    this.addEventListener("scroll", () => {
      this.onmoved?.();
      this.plan();
    }, { passive: true });
    this.sizes = new ResizeObserver(() => this.plan());
    this.sizes.observe(this);
    return this;
  }

  get count() {
    return this.#count;
  }

  set count(count) {
    this.#count = count;
    this.#space.style.height = `${count * this.rowHeight}px`;
    this.plan();
  }

  /** Whether the last row is in sight, or nearly. */
  get atEnd() {
    return this.scrollTop + this.clientHeight >= this.#count * this.rowHeight - this.rowHeight * 1.5;
  }

  toEnd() {
    this.scrollTop = this.#count * this.rowHeight;
  }

  show(index) {
    const top = index * this.rowHeight;
    if (top < this.scrollTop) this.scrollTop = top;
    else if (top + this.rowHeight > this.scrollTop + this.clientHeight)
      this.scrollTop = top + this.rowHeight - this.clientHeight;
    this.paint();
  }

  rowAt(index) {
    return this.#rows.get(index)?.element ?? null;
  }

  /** Paint with the next frame, once. */
  plan() {
    if (this.#planned) return;
    this.#planned = requestAnimationFrame(() => {
      this.#planned = 0;
      this.paint();
    });
  }

  paint() {
    if (!this.isConnected || !this.#draw) return;
    const first = Math.max(0, Math.floor(this.scrollTop / this.rowHeight) - SPARE_ROWS);
    const last = Math.min(
      this.#count,
      Math.ceil((this.scrollTop + this.clientHeight) / this.rowHeight) + SPARE_ROWS,
    );
    for (const [index, row] of this.#rows) {
      if (index < first || index >= last) {
        row.element.remove();
        this.#rows.delete(index);
      }
    }
    let before = null;
    for (let index = first; index < last; index++) {
      const version = this.#version(index);
      let row = this.#rows.get(index);
      if (!row || row.version !== version) {
        const element = this.#draw(index);
        element.classList.add("row");
        element.setAttribute("role", "listitem");
        element.setAttribute("aria-setsize", this.#count);
        element.setAttribute("aria-posinset", index + 1);
        element.style.top = `${index * this.rowHeight}px`;
        const focused = row?.element.contains(document.activeElement);
        if (row) row.element.replaceWith(element);
        else if (before) before.after(element);
        else this.#space.prepend(element);
        if (focused) (element.querySelector("a, button") ?? element).focus({ preventScroll: true });
        row = { element, version };
        this.#rows.set(index, row);
      }
      before = row.element;
    }
    if (last >= this.#count && this.onend) this.onend();
  }

  disconnectedCallback() {
    this.sizes?.disconnect();
    cancelAnimationFrame(this.#planned);
    this.#planned = 0;
  }
}

customElements.define("virtual-list", VirtualList);
