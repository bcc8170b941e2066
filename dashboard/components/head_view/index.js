// Lines between two columns of tokens: how strongly each query attends to each key, for the heads of one layer.
// Runs after kit.js. Weights come as levels 0 to 255 with weight = (level / 255)²; a level's line has the opacity
// level / 255. Which lines are drawn is the rule of analysis.visible.visible_lines, on the same levels.

const views = new WeakMap();

const OPACITY_CLASSES = 16;
const ROW_HEIGHT = 22;
const TALLEST_ROW = 34;
const LEAST_HEIGHT = 320; // px of the whole view, however short the text
const ANSWER_LIMIT = 20000; // milliseconds to wait for a layer before saying that it did not come
const FILTERS = {
  all: ["All", "Every query, every key", null],
  aa: ["A→A", "Sentence A attends to sentence A", [0, 0]],
  ab: ["A→B", "Sentence A attends to sentence B", [0, 1]],
  ba: ["B→A", "Sentence B attends to sentence A", [1, 0]],
  bb: ["B→B", "Sentence B attends to sentence B", [1, 1]],
};
const COLUMN_NAMES = {
  encoder: ["Query", "Key"],
  decoder: ["Query", "Key"],
  cross: ["Decoder (query)", "Encoder (key)"],
  learned: ["Learned query", "Key"],
};
const LEGEND_TICKS = [0, 0.01, 0.1, 0.25, 0.5, 1];

const weightOf = (level) => (level / 255) ** 2;
const levelOf = (weight) => Math.round(255 * Math.sqrt(clamp(weight, 0, 1)));
const counted = (number) => number.toLocaleString("en-US");
const other = (side) => (side === "left" ? "right" : "left");
const samePlace = (a, b) => a === b || (a && b && a.side === b.side && a.index === b.index);

/** A weight as a percentage with as many digits as one byte can vouch for. */
function percentText(weight) {
  const percent = 100 * weight;
  if (percent > 0 && percent < 0.1) return "<0.1\u202f%";
  return `${percent < 9.95 && percent > 0 ? percent.toFixed(1) : percent.toFixed(0)}\u202f%`;
}

/** Smallest level that at most `cap` of the counted levels reach, and never below `floor`. */
function strongestCutoff(counts, cap, floor) {
  let reached = 0;
  let cutoff = 256;
  for (let level = 255; level >= 0 && reached + counts[level] <= cap; level -= 1) {
    reached += counts[level];
    cutoff = level;
  }
  return Math.max(cutoff, floor);
}

/**
 * The lines to draw. `rows` and `columns` are the token indices that take part (all in view order, or the one token
 * that is looked at); the result has token indices too.
 */
function chooseLines({ levels, shape, heads, rows, columns, floor, cap }) {
  const [, queries, keys] = shape;
  const counts = new Uint32Array(256);
  const whole = columns.length === keys; // then the columns are 0, 1, 2 …
  for (const head of heads) {
    for (let r = 0; r < rows.length; r += 1) {
      const start = (head * queries + rows[r]) * keys;
      if (whole) for (let c = start; c < start + keys; c += 1) counts[levels[c]] += 1;
      else for (let c = 0; c < columns.length; c += 1) counts[levels[start + columns[c]]] += 1;
    }
  }
  const cutoff = strongestCutoff(counts, cap, floor);
  let candidates = 0;
  let drawn = 0;
  for (let level = floor; level < 256; level += 1) candidates += counts[level];
  for (let level = cutoff; level < 256; level += 1) drawn += counts[level];
  const lines = { head: [], query: [], key: [], level: [], candidates, drawn, cutoff };
  if (!drawn) return lines;
  for (const head of heads) {
    for (let r = 0; r < rows.length; r += 1) {
      const start = (head * queries + rows[r]) * keys;
      for (let c = 0; c < columns.length; c += 1) {
        const level = levels[start + columns[c]];
        if (level < cutoff) continue;
        lines.head.push(head);
        lines.query.push(rows[r]);
        lines.key.push(columns[c]);
        lines.level.push(level);
      }
    }
  }
  return lines;
}

/** A row of a column without its token: name, index, bar and share. */
function rowTemplate() {
  if (rowTemplate.row) return rowTemplate.row;
  const row = (rowTemplate.row = make("div", "lines-row"));
  make("bdi", "lines-token", { parent: make("span", "lines-slot", { parent: row }) });
  for (const part of ["index", "strip", "share"]) make("span", `lines-${part}`, { parent: row });
  return row;
}

/** Context of an empty canvas; the canvas is made anew only when its size changed. */
function cleared(canvas, width, height) {
  const size = `${width}|${height}|${window.devicePixelRatio}`;
  const context = canvas.size === size ? canvas.getContext("2d") : sizeCanvas(canvas, width, height);
  canvas.size = size;
  context.clearRect(0, 0, width, height);
  return context;
}

class HeadView {
  constructor(parentElement) {
    this.parentElement = parentElement;
    this.hover = null; // {side, index} under the pointer or the keyboard
    this.cursor = null; // where the keyboard is; it outlives the hover
    this.lastHeads = [];
    this.sent = [];
    this.overview = document.createElement("canvas");
    this.overviewKey = null;
    this.sendSoon = makeDelayed(150);
    this.speakSoon = makeDelayed(250);
    this.leaveSoon = makeDelayed(70);
    this.answer = makeDelayed(ANSWER_LIMIT);
    this.build();
  }

  // Page parts -------------------------------------------------------------------------------------------------

  build() {
    const root = (this.root = make("section", "view-root lines", { "aria-label": "Head view" }));
    this.bar = make("div", "view-toolbar lines-toolbar", { parent: root });
    const head = make("div", "lines-head", { parent: root });
    this.names = { left: make("div", "lines-name", { parent: head }) };
    this.note = make("div", "lines-note", { parent: head });
    this.names.right = make("div", "lines-name", { parent: head });
    this.stage = make("div", "lines-stage", {
      parent: root,
      tabindex: "0",
      role: "application",
      "aria-label":
        "Attention lines. Up and down: token. Left and right: layer. Shift with left or right: column. Enter: pin. Escape: clear.",
    });
    const sheet = (this.sheet = make("div", "lines-sheet", { parent: this.stage }));
    this.columns = { left: make("div", "lines-column lines-left", { parent: sheet }) };
    this.middle = make("div", "lines-middle", { parent: sheet });
    this.canvas = make("canvas", "lines-canvas", { parent: this.middle, "aria-hidden": "true" });
    this.columns.right = make("div", "lines-column lines-right", { parent: sheet });
    this.message = make("div", "lines-message", { parent: root });
    const foot = make("div", "lines-foot", { parent: root });
    this.readout = make("div", "lines-readout", { parent: foot });
    this.legend = make("div", "lines-legend", { parent: foot });
    this.legendText = make("div", "lines-legend-text", { parent: this.legend });
    this.legendBar = make("canvas", "lines-legend-bar", { parent: this.legend, role: "img" });
    this.live = make("div", "view-live", { parent: root, role: "status", "aria-live": "polite" });
    this.listen();
    this.parentElement.append(root);
  }

  listen() {
    for (const side of ["left", "right"]) {
      const column = this.columns[side];
      const placeOf = (event) => {
        const row = event.target.closest?.(".lines-row");
        return row ? { side, index: Number(row.dataset.index) } : null;
      };
      column.addEventListener("pointerover", (event) => {
        const place = event.pointerType === "touch" ? null : placeOf(event);
        if (place) this.look(place);
      });
      column.addEventListener("pointerleave", () => this.leaveSoon.request(() => this.look(null)));
      column.addEventListener("click", (event) => {
        const place = placeOf(event);
        if (place) this.pin(samePlace(place, this.pinnedPlace()) ? null : place);
      });
    }
    this.stage.addEventListener("keydown", (event) => this.key(event));
    this.stage.addEventListener("scroll", () => this.redraw());
    this.stage.addEventListener("blur", () => this.hover && this.look(null));
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && (this.state.pinned || this.hover)) this.clear();
    });
    this.resizes = new ResizeObserver(() => this.fit());
    this.resizes.observe(this.stage);
    this.resizes.observe(this.root);
  }

  end() {
    for (const waiting of [this.sendSoon, this.speakSoon, this.leaveSoon, this.answer]) waiting.cancel();
    cancelAnimationFrame(this.frame);
    this.resizes.disconnect();
    this.root.remove();
  }

  // Data -------------------------------------------------------------------------------------------------------

  update({ header, arrays }) {
    const before = this.header;
    this.header = header;
    this.weights = arrays.weights;
    const tokens = { left: header.left, right: header.right ?? header.left };
    const changed = (name) => JSON.stringify(header[name]) !== JSON.stringify(before?.[name]);
    const newInput = !before || changed("input") || changed("attention");
    this.tokens = tokens;
    const pinnedBefore = JSON.stringify(this.state?.pinned ?? null);
    const news = this.adopt(header.state, newInput);
    const stuck = !this.filters && this.state.filter !== "all"; // a filter must be there to be taken off
    if (!before || stuck || ["layers", "heads", "groups", "present", "colours"].some(changed) || newInput || changed("merged")) {
      this.buildControls();
    }
    if (newInput || changed("left") || changed("right")) this.buildTokens();
    this.overviewKey = null;
    this.checkLayer();
    this.refresh();
    const pinned = this.pinnedPlace();
    if (news && pinned && JSON.stringify(this.state.pinned) !== pinnedBefore) {
      requestAnimationFrame(() => this.bringIntoView(pinned)); // when it has its room
    }
  }

  /** Scrolls a token that was pinned from outside, by a link or a search, to the upper part of the view. */
  bringIntoView({ side, index }) {
    const row = this.rowsOf[side][index];
    if (!row?.offsetParent) return;
    const { top, bottom } = row.getBoundingClientRect();
    const room = this.stage.getBoundingClientRect();
    if (top >= room.top && bottom <= room.bottom) return;
    this.stage.scrollTop += top - room.top - this.stage.clientHeight / 3;
  }

  /** Takes over Python's choices where they are news and not an echo of what was chosen here; returns whether. */
  adopt(state, newInput) {
    const text = this.canonical(state);
    const echo = this.sent.indexOf(text);
    if (echo >= 0) this.sent.splice(0, echo); // older ones can no longer come back as echoes
    const news = !this.state || (echo < 0 && text !== this.heard);
    this.heard = text;
    if (news) {
      this.state = { ...state, heads: [...state.heads], pinned: state.pinned && [...state.pinned] };
      this.state.floor = levelOf(state.threshold);
      this.sent = [];
    } else if (newInput) this.state.pinned = null;
    if (newInput) this.hover = this.cursor = null;
    if (this.state.heads.length) this.lastHeads = this.state.heads;
    const place = this.pinnedPlace();
    if (place && place.index >= this.tokens[place.side].length) this.state.pinned = null;
    return news;
  }

  /** State as text, so that two states can be compared. */
  canonical({ layer, heads, pinned, threshold, filter, hide_special, merge_words }) {
    return JSON.stringify([layer, heads, pinned, levelOf(threshold), filter, hide_special, merge_words]);
  }

  /** Tells Python what is chosen, at once or when the user has paused. With no head on, the last heads stay said. */
  send({ now = false } = {}) {
    const act = () => {
      const { layer, heads, pinned, filter, hide_special, merge_words, floor } = this.state;
      const said = {
        layer,
        heads: heads.length ? heads : this.lastHeads,
        pinned,
        threshold: weightOf(floor),
        filter,
        hide_special,
        merge_words,
        input: this.header.input,
      };
      this.sent.push(this.canonical(said));
      if (this.sent.length > 64) this.sent.shift();
      this.setState("view", said);
    };
    this.sendSoon.cancel();
    if (now) act();
    else this.sendSoon.request(act);
  }

  /** Waits for a layer that is not here yet; says so after a while. */
  checkLayer() {
    const { present } = this.header;
    this.shown = present.includes(this.state.layer) ? this.state.layer : present[0];
    this.loading = this.shown !== this.state.layer;
    if (!this.loading) {
      this.answer.cancel();
      this.failure = null;
      return;
    }
    this.failure = null;
    this.answer.request(() => {
      this.failure = `Layer ${this.state.layer} did not arrive; layer ${this.shown} is shown.`;
      this.state.layer = this.shown;
      this.loading = false;
      this.send({ now: true });
      this.refresh();
    });
  }

  /** Levels (H, Q, K) of the layer that is drawn. */
  levels() {
    const size = this.header.heads * this.tokens.left.length * this.tokens.right.length;
    const start = this.header.present.indexOf(this.shown) * size;
    return this.weights.subarray(start, start + size);
  }

  // Controls ---------------------------------------------------------------------------------------------------

  buildControls() {
    const focused = this.root.getRootNode().activeElement?.dataset?.name;
    this.bar.replaceChildren();
    this.buildLayers();
    this.buildHeads();
    this.buildThreshold();
    this.buildFilters();
    if (focused) this.bar.querySelector(`[data-name="${focused}"]`)?.focus();
  }

  /** A labelled part of the toolbar. */
  part(label, className = "") {
    const part = make("div", `lines-part ${className}`, { parent: this.bar });
    if (label) make("span", "lines-label", { parent: part, text: label });
    return part;
  }

  buildLayers() {
    const { layers, present } = this.header;
    const part = this.part("Layer");
    this.previous = makeButton(part, "‹", "Previous layer", () => this.step(-1));
    this.select = make("select", "lines-select", { parent: part, "aria-label": "Layer", "data-name": "layer" });
    for (let layer = 0; layer < layers; layer += 1) {
      const option = make("option", "", { parent: this.select, text: String(layer), value: String(layer) });
      option.disabled = !this.connected && !present.includes(layer);
    }
    this.select.addEventListener("change", () => this.setLayer(Number(this.select.value)));
    this.next = makeButton(part, "›", "Next layer", () => this.step(1));
    this.spinner = make("span", "lines-spinner", { parent: part, role: "img", "aria-label": "loading" });
  }

  buildHeads() {
    const { heads, groups, colours } = this.header;
    const part = this.part("Heads", "lines-heads");
    this.chips = [];
    let group = null;
    let host = part;
    for (let head = 0; head < heads; head += 1) {
      if (groups && groups[head] !== group) {
        group = groups[head];
        const name = `Heads that share key and value head ${group}`;
        host = make("span", "lines-group", { parent: part, role: "group", "aria-label": name, title: name });
        make("span", "lines-group-name", { parent: host, text: `kv ${group}`, "aria-hidden": "true" });
      }
      this.chips.push(this.buildChip(host, head, colours[head % colours.length]));
    }
    const every = make("span", "lines-every", { parent: part });
    makeButton(every, "all", "All heads on", () => this.setHeads([...Array(heads).keys()]));
    makeButton(every, "none", "All heads off", () => this.setHeads([]));
  }

  buildChip(host, head, colour) {
    const chip = make("button", "lines-chip", { parent: host, text: String(head), type: "button" });
    chip.setAttribute("aria-label", `Head ${head}`);
    chip.title = `Head ${head}: click to switch on or off, double-click (or s) for this head alone`;
    chip.style.setProperty("--head", colour);
    chip.dataset.name = `head-${head}`;
    chip.addEventListener("click", () => {
      const on = this.state.heads;
      this.setHeads(on.includes(head) ? on.filter((one) => one !== head) : [...on, head].sort((a, b) => a - b));
    });
    chip.addEventListener("dblclick", () => this.setHeads([head]));
    chip.addEventListener("keydown", (event) => {
      if (event.key === "s") this.setHeads([head]);
    });
    return chip;
  }

  buildThreshold() {
    const part = this.part("Threshold");
    this.slider = make("input", "lines-slider", {
      parent: part,
      type: "range",
      min: "0",
      max: "255",
      step: "1",
      "aria-label": "Smallest weight that is drawn",
      "data-name": "threshold",
    });
    this.thresholdText = make("span", "lines-threshold", { parent: part });
    this.slider.addEventListener("input", () => {
      this.state.floor = Number(this.slider.value);
      this.refresh();
    });
    this.slider.addEventListener("change", () => this.send());
  }

  buildFilters() {
    const { attention, merged } = this.header;
    const every = [...this.tokens.left, ...this.tokens.right];
    const segments = new Set(every.map((token) => token.segment ?? 0));
    this.filters = null;
    if ((attention !== "cross" && segments.size > 1) || this.state.filter !== "all") {
      const options = Object.entries(FILTERS).map(([value, [text, title]]) => [value, text, title]);
      this.filters = makeChoice(this.part("Pair"), "Part of the sentence pair", options, (value) => {
        this.state.filter = value;
        this.filtered();
      });
    }
    this.special = this.merge = null;
    if (every.some((token) => token.special)) {
      this.special = this.buildSwitch("Special tokens", "Show special tokens and their lines", () => {
        this.state.hide_special = !this.special.checked;
        this.filtered();
      });
    }
    if (merged !== null && this.connected) {
      this.merge = this.buildSwitch("Whole words", "Merge the pieces of a word into one row", () => {
        this.state.merge_words = this.merge.checked;
        this.state.pinned = null;
        this.send({ now: true });
        this.refresh();
      });
    }
  }

  buildSwitch(text, title, act) {
    const label = make("label", "lines-part lines-switch", { parent: this.bar, title });
    const box = make("input", "", { parent: label, type: "checkbox", "data-name": text });
    make("span", "", { parent: label, text });
    box.addEventListener("change", act);
    return box;
  }

  buildTokens() {
    for (const side of ["left", "right"]) {
      const tokens = this.tokens[side];
      const pair = !["cross", "learned"].includes(this.header.attention) && tokens.some((token) => token.segment);
      const first = this.header.starts[side === "left" ? 0 : 1]; // a window of a long text counts on
      const rows = tokens.map((token, index) => this.buildRow(tokens, index, pair, first));
      this.columns[side].replaceChildren(...rows);
      const name = COLUMN_NAMES[this.header.attention][side === "left" ? 0 : 1];
      this.names[side].replaceChildren(make("strong", "", { text: name }), ` · ${counted(tokens.length)} ${tokens.length === 1 ? "token" : "tokens"}`);
      this.rowsOf = { ...this.rowsOf, [side]: rows };
    }
    this.marked = [];
    this.stage.scrollTop = 0;
    this.alignLabels();
  }

  /** All labels of a column take the width of its longest, so that numbers and bars stand in columns. */
  alignLabels() {
    const context = this.canvas.getContext("2d");
    context.font = `600 13.5px ${readTheme(this.root).font}`; // a token in focus is bold
    for (const side of ["left", "right"]) {
      const labels = new Set(this.tokens[side].map(labelText));
      let widest = 28;
      for (const label of labels) widest = Math.max(widest, context.measureText(label).width);
      this.columns[side].style.setProperty("--label", `${Math.min(Math.ceil(widest) + 13, 170)}px`);
    }
  }

  buildRow(tokens, index, pair, first) {
    const token = tokens[index];
    const row = rowTemplate().cloneNode(true);
    const [slot, number, strip, share] = row.children;
    Object.assign(row, { label: slot.firstChild, strip, share });
    row.dataset.index = String(index);
    number.textContent = String(first + index);
    row.label.textContent = labelText(token) || "∅";
    if (token.special) row.label.classList.add("lines-special");
    if (token.unknown) row.label.classList.add("lines-unknown");
    row.title = [`${first + index}: ${token.text}`, ...tokenRemarks(token)].join("\n");
    const segment = token.segment ?? 0;
    if (pair) {
      row.classList.add(segment ? "lines-b" : "lines-a");
      if (!index || (tokens[index - 1].segment ?? 0) !== segment) make("span", "lines-segment", { parent: row, text: segment ? "B" : "A" });
    }
    if (token.continues) row.classList.add("lines-joins");
    if (tokens[index + 1]?.continues) row.classList.add("lines-joined");
    return row;
  }

  // Choices ----------------------------------------------------------------------------------------------------

  step(by) {
    const { layers, present } = this.header;
    let layer = this.state.layer + by;
    while (!this.connected && layer >= 0 && layer < layers && !present.includes(layer)) layer += by;
    if (layer >= 0 && layer < layers) this.setLayer(layer);
  }

  setLayer(layer) {
    this.state.layer = layer;
    this.checkLayer();
    this.send({ now: this.loading });
    this.refresh();
  }

  setHeads(heads) {
    this.state.heads = heads;
    if (heads.length) this.lastHeads = heads;
    this.send();
    this.refresh();
  }

  /** After a change of what takes part: a pinned token that went away is no longer pinned. */
  filtered() {
    this.layout();
    const place = this.pinnedPlace();
    if (place && this.rowAt[place.side][place.index] < 0) this.state.pinned = null;
    this.hover = this.cursor = null;
    this.send();
    this.refresh();
  }

  pinnedPlace() {
    const pinned = this.state?.pinned;
    return pinned ? { side: pinned[0], index: pinned[1] } : null;
  }

  pin(place) {
    this.state.pinned = place && [place.side, place.index];
    if (place) this.cursor = place;
    this.send({ now: true });
    this.refresh();
  }

  clear() {
    this.hover = this.cursor = null;
    if (this.state.pinned) this.pin(null);
    else this.refresh();
  }

  look(place) {
    this.leaveSoon.cancel();
    if (samePlace(place, this.hover)) return;
    this.hover = place;
    if (place) this.cursor = place;
    this.redraw();
  }

  key(event) {
    const act = {
      ArrowDown: () => this.move(1),
      ArrowUp: () => this.move(-1),
      PageDown: () => this.move(10),
      PageUp: () => this.move(-10),
      Home: () => this.move(-Infinity),
      End: () => this.move(Infinity),
      ArrowLeft: () => (event.shiftKey ? this.cross("left") : this.step(-1)),
      ArrowRight: () => (event.shiftKey ? this.cross("right") : this.step(1)),
      Enter: () => this.hover && this.pin(samePlace(this.hover, this.pinnedPlace()) ? null : this.hover),
    }[event.key === " " ? "Enter" : event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  /** Moves the keyboard's token by rows. */
  move(by) {
    const start = this.hover ?? this.cursor ?? this.pinnedPlace();
    const side = start?.side ?? "left";
    const rows = this.rows[side];
    if (!rows.length) return;
    const row = start ? this.rowAt[side][start.index] : -1;
    const to = row < 0 ? 0 : clamp(row + by, 0, rows.length - 1);
    this.look({ side, index: rows[to] });
    this.reveal();
  }

  /** Moves the keyboard to the other column, on the same row. */
  cross(side) {
    const start = this.hover ?? this.cursor ?? this.pinnedPlace() ?? { side: other(side), index: 0 };
    const rows = this.rows[side];
    if (!rows.length) return;
    const row = clamp(this.rowAt[start.side][start.index], 0, rows.length - 1);
    this.look({ side, index: rows[row] });
    this.reveal();
  }

  reveal() {
    this.rowsOf[this.hover.side][this.hover.index].scrollIntoView({ block: "nearest" });
  }

  // Layout and drawing -----------------------------------------------------------------------------------------

  /** Which tokens take part, and on which row each stands. */
  layout() {
    const segments = FILTERS[this.state.filter][2];
    this.rows = {};
    this.rowAt = {};
    ["left", "right"].forEach((side, at) => {
      const tokens = this.tokens[side];
      const rows = [];
      const rowAt = new Int32Array(tokens.length).fill(-1);
      tokens.forEach((token, index) => {
        const hidden =
          (this.state.hide_special && token.special) || (segments && (token.segment ?? 0) !== segments[at]);
        this.rowsOf[side][index].hidden = Boolean(hidden);
        if (!hidden) rowAt[index] = rows.push(index) - 1;
      });
      this.rows[side] = rows;
      this.rowAt[side] = rowAt;
    });
  }

  fit() {
    if (!this.header || !this.rows) return;
    const frame = frameHeight(this.parentElement, 560);
    this.root.style.height = `${frame}px`;
    // A short text leaves a high frame empty; all its tokens count, so that hiding some moves nothing.
    const tokens = Math.max(this.tokens.left.length, this.tokens.right.length);
    const spare = this.stage.clientHeight - tokens * TALLEST_ROW;
    if (spare > 0) this.root.style.height = `${Math.max(frame - spare, LEAST_HEIGHT)}px`;
    const { clientHeight } = this.stage;
    const count = Math.max(this.rows.left.length, this.rows.right.length, 1);
    this.rowHeight = clamp(Math.floor(clientHeight / count), ROW_HEIGHT, TALLEST_ROW);
    this.root.classList.toggle("lines-narrow", this.root.clientWidth < 700);
    this.sheet.style.setProperty("--row", `${this.rowHeight}px`);
    this.sheet.style.height = `${count * this.rowHeight}px`;
    this.overviewKey = null;
    this.drawSize = [this.middle.clientWidth, Math.min(clientHeight, count * this.rowHeight)];
    this.drawLegend();
    this.redraw();
  }

  /** Everything that depends on the choices. */
  refresh() {
    this.theme = readTheme(this.root);
    const { state, header } = this;
    this.layout();
    this.select.value = String(state.layer);
    this.previous.disabled = state.layer <= 0;
    this.next.disabled = state.layer >= header.layers - 1;
    this.spinner.hidden = !this.loading;
    this.chips.forEach((chip, head) => chip.setAttribute("aria-pressed", String(state.heads.includes(head))));
    this.slider.value = String(state.floor);
    this.thresholdText.textContent = state.floor ? `≥ ${shortText(weightOf(state.floor))}` : "off";
    this.slider.setAttribute("aria-valuetext", this.thresholdText.textContent);
    this.filters?.update(state.filter);
    if (this.special) this.special.checked = !state.hide_special;
    if (this.merge) this.merge.checked = state.merge_words;
    this.root.classList.toggle("lines-loading", this.loading);
    this.choiceKey = JSON.stringify([this.shown, state.heads, state.floor, state.filter, state.hide_special]);
    this.overviewLines = null;
    this.fit();
  }

  /** The token whose lines alone are drawn: the one looked at, else the pinned one. */
  focus() {
    const place = this.hover ?? this.pinnedPlace();
    return place && this.rowAt[place.side][place.index] >= 0 ? place : null;
  }

  redraw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    if (!this.drawSize) return;
    const [width, height] = this.drawSize;
    const context = cleared(this.canvas, width, height);
    const focus = this.focus();
    const lines = focus ? this.linesOf(focus) : (this.overviewLines ??= this.linesOf(null));
    if (focus) this.strokeLines(context, lines, width, height, 1.8);
    else this.paintOverview(context, lines, width, height);
    this.shade(focus);
    this.tell(focus, lines);
  }

  linesOf(focus) {
    const shape = [this.header.heads, this.tokens.left.length, this.tokens.right.length];
    return chooseLines({
      levels: this.levels(),
      shape,
      heads: this.state.heads,
      rows: focus?.side === "left" ? [focus.index] : this.rows.left,
      columns: focus?.side === "right" ? [focus.index] : this.rows.right,
      floor: Math.max(this.state.floor, 1),
      cap: this.header.cap,
    });
  }

  /** The picture without a token in focus is kept, so that leaving a token costs a copy and not 2,000 lines. */
  paintOverview(context, lines, width, height) {
    const key = `${this.choiceKey}|${width}|${height}|${this.stage.scrollTop}|${this.rowHeight}|${devicePixelRatio}`;
    if (key !== this.overviewKey) {
      this.strokeLines(cleared(this.overview, width, height), lines, width, height, 1);
      this.overviewKey = key;
    }
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(this.overview, 0, 0);
    context.restore();
  }

  /** How far each head's lines end above or below the middle of a row: side by side, so that none hides another. */
  lanes() {
    const on = this.state.heads;
    const lanes = new Float64Array(this.header.heads);
    const spread = Math.min(0.62 * this.rowHeight, 2.5 * (on.length - 1));
    on.forEach((head, at) => (lanes[head] = on.length > 1 ? spread * (at / (on.length - 1) - 0.5) : 0));
    return lanes;
  }

  /** Strokes the lines that cross the visible rows, one path for each head and class of opacity, weakest first. */
  strokeLines(context, lines, width, height, thickness) {
    const { heads, colours } = this.header;
    const paths = new Array(OPACITY_CLASSES * heads);
    const lanes = this.lanes();
    const top = this.stage.scrollTop;
    for (let line = 0; line < lines.level.length; line += 1) {
      const head = lines.head[line];
      const from = (this.rowAt.left[lines.query[line]] + 0.5) * this.rowHeight - top + lanes[head];
      const to = (this.rowAt.right[lines.key[line]] + 0.5) * this.rowHeight - top + lanes[head];
      if (Math.max(from, to) < 0 || Math.min(from, to) > height) continue;
      const rank = Math.min(Math.floor((lines.level[line] * OPACITY_CLASSES) / 256), OPACITY_CLASSES - 1);
      const path = (paths[rank * heads + head] ??= new Path2D());
      path.moveTo(0, from);
      path.bezierCurveTo(width * 0.4, from, width * 0.6, to, width, to);
    }
    paths.forEach((path, at) => {
      const rank = Math.floor(at / heads);
      context.lineWidth = rank < OPACITY_CLASSES / 3 ? 1 : thickness; // one pixel is drawn five times as fast as more
      context.globalAlpha = (rank + 0.5) / OPACITY_CLASSES;
      context.strokeStyle = colours[(at % heads) % colours.length];
      context.stroke(path);
    });
    context.globalAlpha = 1;
  }

  /** Weights between the token in focus and each token of the other column, by head and their mean. */
  sharesOf(focus) {
    const { heads } = this.state;
    const keys = this.tokens.right.length;
    const queries = this.tokens.left.length;
    const levels = this.levels();
    const count = focus.side === "left" ? keys : queries;
    const byHead = heads.map((head) => {
      const shares = new Float64Array(count);
      const base = head * queries * keys + (focus.side === "left" ? focus.index * keys : focus.index);
      const stride = focus.side === "left" ? 1 : keys;
      for (let index = 0; index < count; index += 1) shares[index] = weightOf(levels[base + index * stride]);
      return shares;
    });
    const mean = new Float64Array(count);
    for (const shares of byHead) shares.forEach((share, index) => (mean[index] += share / heads.length));
    return { byHead, mean };
  }

  /** Marks the token in focus and shades the visible tokens of the other column. */
  shade(focus) {
    for (const row of this.marked) {
      row.classList.remove("lines-focus", "lines-lit");
      row.share.textContent = "";
      row.strip.style.background = "";
      row.label.style.backgroundColor = "";
    }
    this.marked = [];
    const pinned = this.pinnedPlace();
    if (!samePlace(pinned, this.markedPin)) {
      this.pinnedRow?.classList.remove("lines-pinned");
      this.pinnedRow = pinned && this.rowsOf[pinned.side][pinned.index];
      this.pinnedRow?.classList.add("lines-pinned");
      this.markedPin = pinned;
    }
    if (!focus) return;
    const own = this.rowsOf[focus.side][focus.index];
    own.classList.add("lines-focus");
    this.marked.push(own);
    if (!this.state.heads.length) return;
    const { byHead, mean } = this.sharesOf(focus);
    const side = other(focus.side);
    const rows = this.rows[side];
    const largest = rows.reduce((most, index) => Math.max(most, mean[index]), 0) || 1;
    const first = Math.max(Math.floor(this.stage.scrollTop / this.rowHeight), 0);
    const last = Math.min(Math.ceil((this.stage.scrollTop + this.stage.clientHeight) / this.rowHeight), rows.length);
    for (let row = first; row < last; row += 1) {
      const index = rows[row];
      const element = this.rowsOf[side][index];
      this.marked.push(element);
      element.classList.add("lines-lit");
      element.share.textContent = percentText(mean[index]);
      element.strip.style.background = this.stripOf(byHead, index, largest, side);
      const tint = Math.round(55 * Math.sqrt(mean[index]));
      element.label.style.backgroundColor = `color-mix(in srgb, var(--view-primary) ${tint}%, transparent)`;
    }
  }

  /** A bar for one token: as long as its mean weight, made of the parts of the heads in their colours. */
  stripOf(byHead, index, largest, side) {
    const { heads } = this.state;
    const { colours } = this.header;
    const stops = [];
    let end = 0;
    heads.forEach((head, at) => {
      const start = end;
      end += (100 * byHead[at][index]) / heads.length / largest;
      if (end - start > 0.2) stops.push(`${colours[head % colours.length]} ${start.toFixed(1)}% ${end.toFixed(1)}%`);
      else end = start;
    });
    return `linear-gradient(to ${side}, ${[...stops, `transparent ${end.toFixed(1)}% 100%`].join(", ")})`;
  }

  // Words ------------------------------------------------------------------------------------------------------

  tell(focus, lines) {
    const { state, header } = this;
    const { drawn, candidates, cutoff } = lines;
    Object.assign(this.root.dataset, { drawn, candidates, cutoff, layer: this.shown });
    const parts = [
      drawn < candidates
        ? `showing the strongest ${counted(drawn)} of ${counted(candidates)} lines`
        : `${counted(drawn)} ${drawn === 1 ? "line" : "lines"}`,
    ];
    if (state.hide_special) parts.push("weights not renormalised");
    if (header.direction === "rtl") parts.push("right-to-left text in the model's order");
    this.note.textContent = this.failure ?? parts.join(" · ");
    this.note.classList.toggle("lines-failed", Boolean(this.failure));
    let message = "";
    if (this.loading) message = `Loading layer ${state.layer} …`;
    else if (!state.heads.length) message = "No head is switched on. Choose one above.";
    else if (!drawn) message = "No line reaches the threshold.";
    if (this.message.textContent !== message) this.message.textContent = message;
    this.message.hidden = !message;
    this.drawCutoff(drawn < candidates || state.floor ? cutoff : 0);
    this.read(focus);
  }

  /** The strongest five of the token in focus, to the eye at once and to the ear after a pause. */
  read(focus) {
    const pinned = this.pinnedPlace();
    this.readout.classList.toggle("lines-hint", !focus);
    if (!focus) {
      this.readout.textContent = "Point at a token to see its lines, click to pin it. Keys: ↑ ↓ token, ← → layer, Enter pin, Esc clear.";
      this.speakSoon.request(() => (this.live.textContent = ""));
      return;
    }
    const { mean } = this.sharesOf(focus);
    const side = other(focus.side);
    const rows = this.rows[side];
    const best = strongest(rows.map((index) => mean[index]), 5).filter((row) => mean[rows[row]] > 0);
    const name = (at, index) => `“${labelText(this.tokens[at][index])}”`;
    const verb = focus.side === "left" ? "attends to" : "is attended to by";
    const heads = this.state.heads;
    const of = heads.length === 1 ? `head ${heads[0]}` : `mean of ${heads.length} heads`;
    const mark = samePlace(focus, pinned) ? "Pinned: " : "";
    const subject = name(focus.side, focus.index);
    const list = best.map((row) => [name(side, rows[row]), percentText(mean[rows[row]])]);
    const lead = make("span", "lines-lead");
    lead.append(mark, make("bdi", "", { text: subject }), ` ${verb}`);
    this.readout.replaceChildren(lead);
    for (const [label, share] of list) {
      const item = make("span", "lines-item", { parent: this.readout });
      make("bdi", "", { parent: item, text: label });
      make("b", "", { parent: item, text: share });
    }
    make("span", "lines-of", { parent: this.readout, text: heads.length ? of : "no head is on" });
    const targets = list.map((pair) => pair.join(" ")).join(", ") || "nothing";
    const sentence = `${mark}${subject} ${verb} ${targets} (${of}, layer ${this.shown})`;
    this.speakSoon.request(() => (this.live.textContent = sentence));
  }

  drawLegend() {
    const width = 190;
    const context = sizeCanvas(this.legendBar, width, 30);
    const { heads } = this.state;
    const { colours } = this.header;
    const ink = heads.length === 1 ? colours[heads[0] % colours.length] : this.theme.text;
    const left = 6;
    const span = width - 2 * left;
    context.fillStyle = ink;
    for (let x = 0; x < span; x += 1) {
      context.globalAlpha = x / span;
      context.fillRect(left + x, 5, 1, 9);
    }
    context.globalAlpha = 1;
    context.strokeStyle = this.theme.border;
    context.strokeRect(left - 0.5, 4.5, span + 1, 10);
    context.fillStyle = this.theme.text;
    context.font = `10.5px ${this.theme.font}`;
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const tick of LEGEND_TICKS) {
      const x = left + span * Math.sqrt(tick);
      context.fillRect(Math.round(x), 15, 1, 3);
      context.fillText(String(tick).replace(/^0\./, "."), x, 19);
    }
    this.legendText.textContent = "attention weight (rows sum to 1)";
    this.legendBar.setAttribute("aria-label", "Opacity of a line by attention weight, from 0 to 1");
    this.legendCutoff = null;
  }

  /** Marks on the scale from where on lines are drawn. */
  drawCutoff(cutoff) {
    if (cutoff === this.legendCutoff) return;
    if (this.legendCutoff) this.drawLegend();
    this.legendCutoff = cutoff;
    if (!cutoff || cutoff > 255) return;
    const context = this.legendBar.getContext("2d");
    const x = 6 + 178 * (cutoff / 255);
    context.fillStyle = this.theme.primary;
    context.beginPath();
    context.moveTo(x - 4, 0);
    context.lineTo(x + 4, 0);
    context.lineTo(x, 5);
    context.fill();
    context.fillRect(x - 0.5, 4, 1.5, 11);
    this.legendBar.title = `Lines from ${shortText(weightOf(cutoff))} on are drawn`;
  }
}

export default function (mount) {
  return mountView(views, HeadView, mount);
}
