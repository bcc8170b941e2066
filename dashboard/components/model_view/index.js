// All heads of a model as thumbnails: layers down, heads across; each shows queries down and keys across.
// Runs after kit.js. Weights come as levels 0 to 255 with weight = (level / 255)².

const views = new WeakMap();

const SMALLEST_CELL = 22;
const LARGEST_CELL = 168;
const BESIDE = 330; // px that the named head's picture and figures need beside the grid
const LOW_CELL = 40; // rows are squeezed down to this to fit the frame; below it they are roomy and scroll
const ROOMY_CELL = 58;
const PREVIEW = 216;
const PART_NAMES = {
  encoder: "self-attention",
  decoder: "decoder self-attention",
  cross: "cross-attention (decoder queries, encoder keys)",
};

const HINTS = {
  tokens: "Queries down, keys across. Click a head, or press Enter, to open it.",
  patches: "Each thumbnail is the picture, patch by patch. Click a head, or press Enter, to open it.",
};

const headsInWords = (count) => `${count} ${count === 1 ? "head" : "heads"}`;
const sameCell = (a, b) => a === b || Boolean(a && b && a[0] === b[0] && a[1] === b[1]);

class ModelView {
  constructor(parentElement) {
    this.parentElement = parentElement;
    this.pointed = null; // [layer, head] under the pointer or the keyboard
    this.speakSoon = makeDelayed(200);
    this.build();
  }

  build() {
    const root = (this.root = make("section", "view-root heads", { "aria-label": "Model view" }));
    const bar = make("div", "view-toolbar heads-toolbar", { parent: root });
    this.title = make("div", "heads-title", { parent: bar });
    make("div", "view-gap", { parent: bar });
    const scale = make("div", "heads-choice", { parent: bar });
    make("span", "view-note", { parent: scale, text: "Colour scale" });
    this.scaleChoice = makeChoice(
      scale,
      "Colour scale",
      [
        [false, "each head", "Every thumbnail runs from 0 to its own maximum"],
        [true, "shared", "All thumbnails run from 0 to the largest weight of all"],
      ],
      (shared) => this.setScale(shared),
    );
    const body = make("div", "heads-body", { parent: root });
    this.stage = make("div", "heads-stage", {
      parent: body,
      tabindex: "0",
      role: "application",
      "aria-label": "All heads. Arrow keys: another head. Enter: open it.",
    });
    this.sheet = make("div", "heads-sheet", { parent: this.stage });
    this.top = make("div", "heads-top", { parent: this.sheet, "aria-hidden": "true" });
    this.sides = make("div", "heads-sides", { parent: this.sheet, "aria-hidden": "true" });
    this.grid = make("div", "heads-grid", { parent: this.sheet });
    this.canvas = make("canvas", "heads-canvas", { parent: this.grid, "aria-hidden": "true" });
    this.chosen = make("div", "heads-ring heads-chosen", { parent: this.grid });
    this.ring = make("div", "heads-ring heads-pointed", { parent: this.grid });
    this.side = make("aside", "heads-side view-side", { parent: body, "aria-label": "Head" });
    this.preview = make("canvas", "heads-preview", { parent: this.side, "aria-hidden": "true" });
    this.facts = make("div", "heads-facts", { parent: this.side });
    const foot = make("div", "heads-foot", { parent: root });
    this.scale = makeScaleBar(foot);
    this.hint = make("div", "view-note", { parent: foot });
    this.live = make("div", "view-live", { parent: root, role: "status", "aria-live": "polite" });
    this.listen();
    this.parentElement.append(root);
  }

  listen() {
    this.grid.addEventListener("pointermove", (event) => {
      if (event.pointerType === "touch" || (this.byKeys && !event.movementX && !event.movementY)) return; // the page moved, not the hand
      this.byKeys = false;
      this.point(this.cellAt(event));
    });
    this.grid.addEventListener("pointerleave", () => this.byKeys || this.point(null));
    this.grid.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) this.open(cell);
    });
    this.stage.addEventListener("keydown", (event) => this.key(event));
    this.stage.addEventListener("focus", () => {
      if (this.stage.matches(":focus-visible") && !this.pointed) this.point(this.state.selected ?? [0, 0]);
    });
    this.stage.addEventListener("blur", () => {
      this.byKeys = false;
      this.point(null);
    });
    this.resizes = new ResizeObserver(() => this.fit());
    this.resizes.observe(this.stage);
    this.resizes.observe(this.root);
  }

  end() {
    this.speakSoon.cancel();
    this.resizes.disconnect();
    this.root.remove();
  }

  update({ header, arrays }) {
    const before = this.header;
    this.header = header;
    this.arrays = arrays;
    const { state } = header;
    this.shared ??= makeShared(state.shared_scale);
    if (!this.state || this.shared.isNews(state.shared_scale)) this.state = { ...state };
    this.state.selected = state.selected;
    const same = before && JSON.stringify(before.shapes) === JSON.stringify(header.shapes);
    if (!same) this.pointed = null;
    const what = PART_NAMES[header.attention];
    const fewest = Math.min(...header.shapes.map(([heads]) => heads));
    const heads = fewest === header.heads ? headsInWords(header.heads) : `${fewest} to ${headsInWords(header.heads)}`;
    const sizes = [...new Set(header.tokens.map((size) => size.map((n) => n.toLocaleString("en-US")).join(" × ")))];
    this.title.replaceChildren(
      make("strong", "", { text: `${header.layers} ${header.layers === 1 ? "layer" : "layers"} × ${heads}` }),
      ` ${what}, ${sizes.join(", ")} ${header.cells}`,
    );
    this.hint.textContent = HINTS[header.cells];
    this.refresh();
  }

  setScale(shared) {
    if (shared === this.state.shared_scale) return;
    this.state.shared_scale = shared;
    this.shared.tell(shared);
    this.setState("view", { shared_scale: shared });
    this.refresh();
  }

  refresh() {
    this.scaleChoice.update(this.state.shared_scale);
    const { shared_limit: limit } = this.header;
    this.scale.update({
      lut: this.arrays.lut,
      low: 0,
      high: limit,
      text: "attention weight (rows sum to 1)",
      words: this.state.shared_scale ? null : ["0", "each head's maximum"],
    });
    this.size = null;
    this.fit();
    this.describe();
  }

  // Layout -----------------------------------------------------------------------------------------------------

  fit() {
    if (!this.header) return;
    const narrow = this.root.clientWidth < 760;
    this.root.classList.toggle("heads-narrow", narrow);
    const frame = frameHeight(this.parentElement, 560);
    this.root.style.height = `${frame}px`;
    const { layers, heads, groups } = this.header;
    const left = 34;
    const top = groups ? 36 : 20;
    const [, , rows, columns] = this.header.arrays.weights.shape;
    const [across, down] = [columns, rows].map((length) => length / Math.max(rows, columns)); // share of a square
    const wide = (this.stage.clientWidth - left - 6) / heads / across;
    const tall = (this.stage.clientHeight - top - 6) / layers / down;
    const cell = Math.floor(clamp(Math.min(wide, tall < LOW_CELL ? ROOMY_CELL : tall), SMALLEST_CELL, LARGEST_CELL));
    this.gap = cell > 40 ? 4 : cell > 28 ? 3 : 2;
    this.side = cell - this.gap; // of the longer side of a thumbnail
    this.wide = Math.max(Math.round(this.side * across), 8) + this.gap;
    this.tall = Math.max(Math.round(this.side * down), 8) + this.gap;
    const needed = Math.max(top + this.tall * layers + 6, narrow ? 0 : BESIDE);
    const spare = this.stage.clientHeight - needed;
    if (spare > 0) this.root.style.height = `${frame - spare}px`;
    const key = `${cell}|${layers}|${heads}|${groups}|${rows}|${columns}`;
    if (key === this.size) return;
    this.size = key;
    this.sheet.style.gridTemplateColumns = `${left}px ${this.wide * heads}px`;
    this.sheet.style.gridTemplateRows = `${top}px ${this.tall * layers}px`;
    this.labelSides();
    this.labelTop();
    this.paint();
    this.place();
  }

  /** Layer numbers on the left. */
  labelSides() {
    const every = this.tall < 18 ? 2 : 1;
    this.sides.replaceChildren(
      ...Array.from({ length: this.header.layers }, (_, layer) => {
        const label = make("div", "heads-layer", { text: layer % every ? "" : layer === 0 ? "L 0" : String(layer) });
        label.style.height = `${this.tall}px`;
        return label;
      }),
    );
  }

  /** Head numbers above, and a bracket over heads that share a key and value head. */
  labelTop() {
    const { heads, groups } = this.header;
    const labels = Array.from({ length: heads }, (_, head) => {
      const label = make("div", "heads-head", { text: head === 0 ? (this.wide > 30 ? "H 0" : "0") : String(head) });
      Object.assign(label.style, { left: `${head * this.wide}px`, width: `${this.wide}px` });
      return label;
    });
    const brackets = [];
    for (let head = 0; groups && head < heads; ) {
      let end = head;
      while (end < heads && groups[end] === groups[head]) end += 1;
      const bracket = make("div", "heads-group", { text: `kv ${groups[head]}` });
      bracket.title = `Heads ${head} to ${end - 1} share key and value head ${groups[head]}`;
      Object.assign(bracket.style, { left: `${head * this.wide + 2}px`, width: `${(end - head) * this.wide - 4}px` });
      brackets.push(bracket);
      head = end;
    }
    this.top.replaceChildren(...brackets, ...labels);
  }

  cellAt(event) {
    const frame = this.grid.getBoundingClientRect();
    const layer = Math.floor((event.clientY - frame.top) / this.tall);
    const head = Math.floor((event.clientX - frame.left) / this.wide);
    const inside = layer >= 0 && head >= 0 && layer < this.header.layers && head < this.header.shapes[layer][0];
    return inside ? [layer, head] : null;
  }

  // Drawing ----------------------------------------------------------------------------------------------------

  limitOf(layer, head) {
    const { shared_limit: shared, heads } = this.header;
    return this.state.shared_scale ? shared : this.arrays.limits[layer * heads + head];
  }

  mapsOf(layer, heads, side) {
    const { weights, lut } = this.arrays;
    const shape = this.header.arrays.weights.shape;
    const size = this.header.shapes[layer].slice(1); // a layer fills the start of its array
    return headMaps({ weights, lut, shape, layer, heads, size, limitOf: (head) => this.limitOf(layer, head), side });
  }

  /** Draws one of the maps of `mapsOf` into a box, in its own proportions. */
  drawMap(context, { canvas, width, height, rows, columns }, place, x, y, box) {
    const side = Math.max(...box);
    const scale = Math.min(box[0] / columns, box[1] / rows);
    const [wide, tall] = [columns * scale, rows * scale];
    context.imageSmoothingEnabled = Math.max(width, height) > side * (window.devicePixelRatio || 1);
    context.imageSmoothingQuality = "high";
    context.drawImage(canvas, place * width, 0, width, height, x + (box[0] - wide) / 2, y + (box[1] - tall) / 2, wide, tall);
  }

  paint() {
    const { layers, heads } = this.header;
    const context = sizeCanvas(this.canvas, heads * this.wide, layers * this.tall);
    const box = [this.wide - this.gap, this.tall - this.gap];
    let painted = 0;
    for (let layer = 0; layer < layers; layer += 1) {
      const every = [...Array(this.header.shapes[layer][0]).keys()];
      painted += every.length;
      const maps = this.mapsOf(layer, every, this.side);
      const y = layer * this.tall + this.gap / 2;
      for (const head of every) this.drawMap(context, maps, head, head * this.wide + this.gap / 2, y, box);
    }
    this.root.dataset.painted = String(painted);
  }

  place() {
    for (const [ring, cell] of [[this.chosen, this.state.selected], [this.ring, this.pointed]]) {
      ring.hidden = !cell;
      if (!cell) continue;
      const style = { left: cell[1] * this.wide, top: cell[0] * this.tall, width: this.wide, height: this.tall };
      for (const [name, value] of Object.entries(style)) ring.style[name] = `${value}px`;
    }
  }

  // Choices ----------------------------------------------------------------------------------------------------

  point(cell) {
    if (sameCell(cell, this.pointed)) return;
    this.pointed = cell;
    this.describe();
  }

  open(cell) {
    this.state.selected = cell;
    this.describe();
    this.setTrigger("open", { layer: cell[0], head: cell[1] });
  }

  key(event) {
    const { layers, shapes } = this.header;
    const [layer, head] = this.pointed ?? this.state.selected ?? [0, 0];
    const to = {
      ArrowUp: [layer - 1, head],
      ArrowDown: [layer + 1, head],
      ArrowLeft: [layer, head - 1],
      ArrowRight: [layer, head + 1],
      Home: [layer, 0],
      End: [layer, shapes[layer][0] - 1],
      PageUp: [0, head],
      PageDown: [layers - 1, head],
    }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (to) {
      const down = clamp(to[0], 0, layers - 1);
      const cell = [down, clamp(to[1], 0, shapes[down][0] - 1)];
      this.byKeys = true;
      this.point(cell);
      this.ring.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else if (event.key === "Enter" || event.key === " ") this.open([layer, head]);
    else if (event.key === "Escape") this.point(null);
    else return;
    event.preventDefault();
  }

  /** The head under the pointer, else the open one, large and in words. */
  describe() {
    this.place();
    const cell = this.pointed ?? this.state.selected;
    for (const label of this.root.querySelectorAll(".heads-named")) label.classList.remove("heads-named");
    if (cell) {
      this.sides.children[cell[0]]?.classList.add("heads-named");
      this.top.querySelectorAll(".heads-head")[cell[1]]?.classList.add("heads-named");
    }
    this.preview.hidden = !cell;
    if (!cell) {
      this.facts.replaceChildren(make("p", "view-side-hint", { text: "Point at a head to see it larger." }));
      this.live.textContent = "";
      return;
    }
    const [layer, head] = cell;
    const at = layer * this.header.heads + head;
    const [, rows, columns] = this.header.shapes[layer];
    const [queries, keys] = this.header.tokens[layer];
    const map = this.mapsOf(layer, [head], PREVIEW);
    const box = [columns, rows].map((length) => (PREVIEW * length) / Math.max(rows, columns));
    this.drawMap(sizeCanvas(this.preview, ...box), map, 0, 0, 0, box);
    const facts = [["largest weight", shortText(this.arrays.maximum[at])]];
    if (this.arrays.entropy) facts.push(["mean entropy", `${this.arrays.entropy[at].toFixed(2)} nats`]);
    if (this.header.groups) facts.push(["key/value head", String(this.header.groups[head])]);
    if (queries > rows || keys > columns) facts.push(["drawn as", `${rows} × ${columns} cells, each the maximum of its block`]);
    const list = make("dl", "heads-list");
    for (const [name, value] of facts) {
      make("dt", "", { parent: list, text: name });
      make("dd", "", { parent: list, text: value });
    }
    const name = `Layer ${layer} · head ${head}`;
    this.facts.replaceChildren(make("div", "heads-name", { text: name }), list);
    const open = sameCell(cell, this.state.selected) ? ", open" : "";
    const sentence = `Layer ${layer}, head ${head}${open}: ${facts.map((fact) => fact.join(" ")).join(", ")}`;
    this.speakSoon.request(() => (this.live.textContent = sentence));
  }
}

export default function (mount) {
  return mountView(views, ModelView, mount);
}
