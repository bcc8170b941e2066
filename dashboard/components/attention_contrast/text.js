// The stage of a contrast over a text: two sentences one above the other, and mirrored bars, which can be dragged.

const NARROWEST_COLUMN = 26; // px of a bar
const ENOUGH_COLUMN = 46; // px of a bar that shows most of a word
const WIDEST_COLUMN = 84;

class TextStage {
  constructor(view) {
    this.view = view;
    this.measured = 0; // every position counts for the end of the scale
    this.hint = "Drag a lower bar. Keys: ← → walk, ↑ ↓ ±0.01, with Shift ±0.1, Home 0, End 1.";
    this.pointed = null;
    const { header, frame } = view;
    this.lines = [0, 1].map((order) => this.makeLine(frame, order));
    this.legend = make("div", "contrast-legend", { parent: frame });
    this.plot = make("div", "contrast-plot", { parent: frame });
    this.plot.dir = header.direction;
    this.axis = make("div", "contrast-axis", { parent: this.plot, "aria-hidden": "true" });
    this.scroller = make("div", "contrast-scroller", { parent: this.plot });
    this.columns = make("div", "contrast-columns", { parent: this.scroller, role: "group" });
    this.bars = header.tokens.map((token, index) => this.makeColumn(token, index));
    this.stopAt(0);
    this.listen();
  }

  makeLine(parent, order) {
    const { header } = this.view;
    const element = make("div", `contrast-line ${order ? "is-shown" : "is-observed"}`, { parent });
    const names = make("div", "contrast-names", { parent: element });
    const name = make("div", "contrast-name", { parent: names });
    const remark = make("div", "view-note", { parent: names });
    const text = make("div", "contrast-text", { parent: element, role: "img" });
    text.dir = header.direction;
    const words = header.tokens.map((token, index) => {
      const word = make("span", "contrast-word", { parent: text, text: labelText(token) });
      word.dir = "auto";
      word.dataset.index = String(index);
      word.classList.toggle("continues", Boolean(token.continues));
      word.classList.toggle("is-continued", Boolean(header.tokens[index + 1]?.continues));
      return word;
    });
    const outputs = make("ul", "contrast-outputs", { parent: element });
    return { element, name, remark, text, words, outputs };
  }

  makeColumn(token, index) {
    const element = make("div", "contrast-column", { parent: this.columns });
    element.dataset.index = String(index);
    element.tabIndex = -1;
    const up = make("div", "contrast-up", { parent: element });
    const label = make("div", "contrast-label", { parent: element, text: labelText(token) });
    label.dir = "auto";
    label.classList.toggle("is-special", Boolean(token.special));
    const down = make("div", "contrast-down", { parent: element });
    const [above, below] = [up, down].map((half) => make("div", "contrast-fill", { parent: half }));
    return { element, label, down, above, below };
  }

  /** Gives all bars one width: as many px as fit, or as the widest word needs where the bars have to be scrolled. */
  layOut() {
    const room = this.scroller.clientWidth;
    if (!room) return;
    this.widest ??= Math.max(...this.bars.map(({ label }) => label.scrollWidth)) + 8;
    const share = room / this.bars.length;
    const width = clamp(share >= ENOUGH_COLUMN ? share : this.widest, NARROWEST_COLUMN, WIDEST_COLUMN);
    this.columns.style.setProperty("--contrast-column", `${Math.floor(width)}px`);
    this.columns.classList.add("is-sized");
  }

  ground() {
    return groundOf(this.view.root);
  }

  paint({ observed, shown, told, top, ground, shades }) {
    const { view } = this;
    const { scale, editing } = view;
    const end = editing ? 1 : top;
    this.lines.forEach((line, order) => {
      const entry = order ? shown : observed;
      line.element.hidden = !entry;
      if (entry) this.paintLine(line, entry, { observed, told, top, ground, shades, order });
    });
    this.plot.classList.toggle("is-alone", !shown);
    this.plot.classList.toggle("is-editing", Boolean(editing));
    this.paintLegend(shown);
    this.paintAxis(end);
    this.bars.forEach(({ element, above, below }, index) => {
      above.style.height = barHeight(observed.weights[index], end, scale);
      below.style.height = barHeight(shown ? shown.weights[index] : 0, end, scale);
      element.setAttribute("role", editing ? "slider" : "img");
      element.setAttribute("aria-label", editing ? view.told(index, null) : view.told(index, shown));
      if (!editing) return;
      element.setAttribute("aria-orientation", "vertical");
      element.setAttribute("aria-valuemin", "0");
      element.setAttribute("aria-valuemax", "1");
      element.setAttribute("aria-valuenow", String(Number(shown.weights[index].toFixed(4))));
    });
    if (!editing) {
      for (const { element } of this.bars) {
        for (const name of ["orientation", "valuemin", "valuemax", "valuenow"]) element.removeAttribute(`aria-${name}`);
      }
    }
    this.columns.setAttribute("aria-label", editing ? `Weights by token. ${this.hint}` : "Weights by token");
  }

  paintLine(line, entry, { observed, told, top, ground, shades, order }) {
    const { view } = this;
    line.name.textContent = entry.name;
    line.name.title = entry.name;
    line.remark.textContent = order ? view.sameText(entry, false) : "";
    line.words.forEach((word, index) => {
      paintShade(word, position(entry.weights[index], 0, top, view.scale), shades, ground);
    });
    line.text.setAttribute("aria-label", view.summary(entry));
    const before = order ? observed.outputs : null;
    fillOutputs(line.outputs, { header: view.header, outputs: entry.outputs, told, before, wait: view.waitText() });
  }

  paintLegend(shown) {
    const { header, scale } = this.view;
    const unit = header.rows > 1 ? "mean share of the rows" : "share of the row";
    const parts = [["observed", "observed, upward"], ...(shown ? [["shown", `${shown.name}, downward`]] : [])];
    this.legend.replaceChildren(
      ...parts.map(([kind, text]) => make("span", `contrast-key is-${kind}`, { text })),
      make("span", "view-note", { text: `${unit}, ${scale === "sqrt" ? "square-root" : "linear"} scale` }),
    );
  }

  paintAxis(end) {
    const half = shortText(valueAt(0.5, 0, end, this.view.scale));
    const marks = [shortText(end), half, "0", half, shortText(end)];
    this.axis.replaceChildren(...marks.map((text, place) => make("span", `is-mark-${place}`, { text })));
  }

  point(index) {
    if (index === this.pointed) return;
    const parts = (place) => [this.bars[place]?.element, ...this.lines.map(({ words }) => words[place])];
    if (this.pointed !== null) for (const part of parts(this.pointed)) part?.classList.remove("is-pointed");
    if (index !== null) for (const part of parts(index)) part?.classList.add("is-pointed");
    this.pointed = index;
  }

  nameOf(index) {
    return `“${this.view.header.tokens[index].text}”`;
  }

  remarks(index) {
    return [`token ${index}`, ...tokenRemarks(this.view.header.tokens[index])];
  }

  /** Makes a bar the one that the Tab key leads to. */
  stopAt(index) {
    if (this.stop !== undefined) this.bars[this.stop].element.tabIndex = -1;
    this.stop = index;
    this.bars[index].element.tabIndex = 0;
  }

  /** Scrolls a bar into its frame, without moving the page. */
  reveal(index) {
    const box = this.bars[index].element.getBoundingClientRect();
    const frame = this.scroller.getBoundingClientRect();
    if (box.left >= frame.left && box.right <= frame.right) return;
    this.scroller.scrollLeft += (box.left + box.right - frame.left - frame.right) / 2;
  }

  listen() {
    const { view } = this;
    const indexOf = (event, name) => {
      const found = event.target.closest?.(name);
      return found ? Number(found.dataset.index) : null;
    };
    for (const { text } of this.lines) {
      text.addEventListener("pointermove", (event) => {
        view.point(indexOf(event, ".contrast-word"), [event.clientX, event.clientY]);
      });
      text.addEventListener("pointerleave", () => view.point(null));
      text.addEventListener("click", (event) => {
        const index = indexOf(event, ".contrast-word");
        if (index !== null) this.reveal(index);
      });
      const follow = () => this.lines.forEach((line) => (line.text.scrollTop = text.scrollTop));
      text.addEventListener("scroll", follow); // both lines show the same part of a long text
    }
    this.columns.addEventListener("pointermove", (event) => {
      const at = [event.clientX, event.clientY];
      if (view.dragged) view.moveTo(this.weightAt(event), at);
      else view.point(indexOf(event, ".contrast-column"), at);
    });
    this.columns.addEventListener("pointerleave", () => view.dragged || view.point(null));
    this.columns.addEventListener("pointerdown", (event) => {
      const index = event.target.closest?.(".contrast-down") ? indexOf(event, ".contrast-column") : null;
      if (!view.editing || view.dragged || index === null || event.button !== 0) return;
      view.grab(index);
      this.columns.setPointerCapture(event.pointerId);
      this.bars[index].element.focus({ preventScroll: true });
      view.moveTo(this.weightAt(event), [event.clientX, event.clientY]);
      event.preventDefault();
    });
    this.columns.addEventListener("pointerup", () => view.dragged && view.release(true));
    this.columns.addEventListener("pointercancel", () => view.dragged && view.release(false));
    this.columns.addEventListener("focusin", (event) => {
      const index = indexOf(event, ".contrast-column");
      if (index === null) return;
      this.stopAt(index);
      if (event.target.matches(":focus-visible") && !view.dragged) this.tell(index);
    });
    this.columns.addEventListener("focusout", () => view.dragged || view.point(null));
    this.columns.addEventListener("keydown", (event) => this.onKey(event, indexOf(event, ".contrast-column")));
  }

  /** The weight at the pointer's height in the lower half. */
  weightAt(event) {
    const box = this.bars[this.view.dragged.index].down.getBoundingClientRect();
    return valueAt(clamp((event.clientY - box.top) / box.height, 0, 1), 0, 1, this.view.scale);
  }

  tell(index) {
    this.reveal(index);
    const box = this.bars[index].label.getBoundingClientRect();
    this.view.point(index, [box.right, box.top]);
  }

  onKey(event, index) {
    if (index === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const { view } = this;
    const forward = view.header.direction === "rtl" ? -1 : 1;
    const steps = { ArrowRight: forward, ArrowLeft: -forward };
    if (!view.editing) Object.assign(steps, { Home: -this.bars.length, End: this.bars.length });
    const ways = { ArrowUp: 0.01, ArrowDown: -0.01, PageUp: 0.1, PageDown: -0.1 };
    const weight = view.editing ? view.keyedWeight(event, index, ways) : null;
    if (weight !== null) {
      view.nudge(index, weight);
      this.tell(index);
    } else if (event.key in steps) {
      const next = clamp(index + steps[event.key], 0, this.bars.length - 1);
      this.bars[next].element.focus({ preventScroll: true });
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}
