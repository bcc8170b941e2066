// What every head is for: layers down, heads across. A cell has the colour of its head's class, a short mark that says
// the same in letters, a bar for how well the class fits, and the head's map where there is one.
// Runs after kit.js. Weights come as levels 0 to 255 with weight = (level / 255)².

const views = new WeakMap();

const LEFT = 58; // px for the names of layers
const TOP = 20; // px for the numbers of heads
const SMALLEST = 26;
const LARGEST = 100;
const BESIDE = 66; // a cell this wide has its words beside the map, else below
const FRAME = 2;
const BAR = 3;
const WORDS = 12; // height of a line with a mark
const KINDS = {
  encoder: "self-attention",
  decoder: "decoder self-attention",
  cross: "cross-attention (decoder queries, encoder keys)",
};
const HINT =
  "Colour and letters: class. Bar: how well it fits, 0 to 1. Click or Enter opens a head; Space or Shift+click marks it.";

const samePlace = (a, b) => a === b || Boolean(a && b && a[0] === b[0] && a[1] === b[1]);
const countOf = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
const percent = (share) => `${Math.round(100 * share)} %`;

class HeadGrid {
  constructor(parentElement) {
    this.parentElement = parentElement;
    this.pointed = null; // [layer, head] under the pointer or the keyboard
    this.speakSoon = makeDelayed(200);
    this.telling = makeDelayed(250); // a double-click is two clicks before it is one
    this.build();
  }

  build() {
    const root = (this.root = make("section", "view-root roles", { "aria-label": "What the heads are for" }));
    const bar = make("div", "view-toolbar", { parent: root });
    this.title = make("div", "roles-title", { parent: bar });
    this.legend = make("div", "roles-legend", { parent: root, role: "group", "aria-label": "Classes shown" });
    this.stage = make("div", "roles-stage", {
      parent: root,
      tabindex: "0",
      role: "application",
      "aria-label": "All heads. Arrow keys: another head. Enter: open it. Space: mark it.",
    });
    this.sheet = make("div", "roles-sheet", { parent: this.stage });
    this.top = make("div", "roles-top", { parent: this.sheet, "aria-hidden": "true" });
    this.sides = make("div", "roles-sides", { parent: this.sheet, "aria-hidden": "true" });
    this.grid = make("div", "roles-grid", { parent: this.sheet });
    this.canvas = make("canvas", "roles-canvas", { parent: this.grid, "aria-hidden": "true" });
    this.chosen = make("div", "roles-ring roles-marked", { parent: this.grid });
    this.ring = make("div", "roles-ring roles-pointed", { parent: this.grid });
    const foot = make("div", "roles-foot", { parent: root });
    const said = make("div", "roles-said", { parent: foot });
    this.notes = make("div", "roles-notes", { parent: said });
    make("div", "view-note", { parent: said, text: HINT });
    this.scale = makeScaleBar(foot);
    this.tooltip = makeTooltip(root);
    this.live = make("div", "view-live", { parent: root, role: "status", "aria-live": "polite" });
    this.listen();
    this.parentElement.append(root);
  }

  listen() {
    this.grid.addEventListener("pointermove", (event) => {
      if (event.pointerType === "touch" || (this.byKeys && !event.movementX && !event.movementY)) return; // the page moved, not the hand
      this.byKeys = false;
      this.point(this.headAt(event), event);
    });
    this.grid.addEventListener("pointerleave", () => this.byKeys || this.point(null));
    this.grid.addEventListener("click", (event) => {
      const place = this.headAt(event);
      if (place && event.shiftKey) this.mark(place);
      else if (place) this.open(place);
    });
    this.stage.addEventListener("keydown", (event) => this.key(event));
    this.stage.addEventListener("scroll", () => this.byKeys && this.pointed && this.tell());
    this.stage.addEventListener("focus", () => {
      if (!this.stage.matches(":focus-visible") || this.pointed) return;
      this.byKeys = true;
      this.point(this.marked ?? [0, 0]);
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
    this.telling.cancel();
    this.resizes.disconnect();
    this.root.remove();
  }

  update({ header, arrays }) {
    const other = !this.header || this.header.input !== header.input;
    this.header = header;
    this.arrays = arrays;
    const { shown, marked } = header.state;
    if (other) {
      this.shared = { shown: makeShared(shown), marked: makeShared(marked) };
      Object.assign(this, { shown, marked, pointed: null });
      this.tooltip.hide();
    } else {
      if (this.shared.shown.isNews(shown)) this.shown = shown;
      if (this.shared.marked.isNews(marked)) this.marked = marked;
    }
    const { layers, heads } = header;
    this.title.replaceChildren(
      make("strong", "", { text: `${countOf(layers, "layer")} × ${countOf(heads, "head")}` }),
      ` ${KINDS[header.attention]}${header.title ? `, ${header.title}` : ""}`,
    );
    this.notes.replaceChildren(...header.notes.map((text) => make("div", "roles-note", { text })));
    this.scale.element.hidden = !arrays.weights;
    if (arrays.weights) {
      const words = ["0", "each head's maximum"];
      this.scale.update({ lut: arrays.lut, low: 0, high: 1, text: "attention weight (rows sum to 1)", words });
    }
    this.buildLegend();
    this.size = null;
    this.fit();
    this.describe();
  }

  // Classes ----------------------------------------------------------------------------------------------------

  isShown(index) {
    return this.shown === null || this.shown.includes(index);
  }

  buildLegend() {
    const held = [...this.legend.children].indexOf(this.parentElement.getRootNode().activeElement);
    this.chips = this.header.classes.map(({ title, colour, count, mark }, index) => {
      const chip = make("button", "roles-chip", { type: "button" });
      const hint = "Click: show or hide. Double-click or Shift+Enter: show it alone.";
      chip.title = `${title} (${mark}): ${countOf(count, "head")}. ${hint}`;
      const swatch = make("span", "roles-swatch", { parent: chip, "aria-hidden": "true" });
      swatch.style.background = colour;
      make("span", "", { parent: chip, text: title });
      make("span", "roles-count", { parent: chip, text: String(count) });
      chip.addEventListener("click", () => this.toggle(index));
      chip.addEventListener("dblclick", () => this.show([index]));
      chip.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || !event.shiftKey) return;
        event.preventDefault();
        this.show([index]);
      });
      return chip;
    });
    this.all = makeButton(null, "All", "Show all classes", () => this.show(null));
    this.all.classList.add("roles-all");
    this.legend.replaceChildren(...this.chips, this.all);
    this.legend.children[held]?.focus({ preventScroll: true });
    this.drawLegend();
  }

  drawLegend() {
    this.chips.forEach((chip, index) => chip.setAttribute("aria-pressed", String(this.isShown(index))));
    this.all.disabled = this.shown === null;
  }

  toggle(index) {
    const every = this.header.classes.map((_, each) => each);
    const shown = every.filter((each) => (each === index ? !this.isShown(each) : this.isShown(each)));
    this.show(shown.length === every.length ? null : shown);
  }

  show(shown) {
    if (this.all.matches(":focus") && shown === null) this.chips[0]?.focus(); // a disabled button loses the focus
    this.shown = shown;
    this.drawLegend();
    this.paint();
    const names = (shown ?? []).map((index) => this.header.classes[index].title);
    const words = shown === null ? "All classes shown" : names.length ? `Shown: ${names.join(", ")}` : "No class shown";
    this.speakSoon.request(() => (this.live.textContent = words));
    this.say();
  }

  /** Tells Python what is marked and shown, once the hand rests. */
  say() {
    this.telling.request(() => {
      this.shared.shown.tell(this.shown);
      this.shared.marked.tell(this.marked);
      this.setState("view", { input: this.header.input, shown: this.shown, marked: this.marked });
    });
  }

  // Layout -----------------------------------------------------------------------------------------------------

  fit() {
    if (!this.header) return;
    const frame = frameHeight(this.parentElement, 640);
    this.root.style.height = `${frame}px`;
    const { layers, heads } = this.header;
    const room = [(this.stage.clientWidth - LEFT - 4) / heads, (this.stage.clientHeight - TOP - 4) / layers];
    const wide = Math.floor(clamp(room[0], SMALLEST, LARGEST));
    const gap = wide > 60 ? 5 : wide > 36 ? 3 : 2;
    const cell = this.arrays.weights ? this.withMap(wide, room[1], gap) : { tall: Math.floor(clamp(room[1], 22, 44)) };
    this.cell = { wide, gap, map: null, ...cell };
    const spare = this.stage.clientHeight - (TOP + this.cell.tall * layers + 4);
    if (spare > 0) this.root.style.height = `${frame - spare}px`;
    const key = JSON.stringify([this.cell, layers, heads]);
    if (key === this.size) return;
    this.size = key;
    this.sheet.style.gridTemplateColumns = `${LEFT}px ${wide * heads}px`;
    this.sheet.style.gridTemplateRows = `${TOP}px ${this.cell.tall * layers}px`;
    this.label();
    this.paint();
    this.place();
  }

  /** Height of a cell with a map, and where in it the map and the words are. */
  withMap(wide, room, gap) {
    const [, , rows, columns] = this.header.arrays.weights.shape;
    const inner = wide - gap - 2 * FRAME;
    if (wide >= BESIDE) {
      const tall = Math.floor(clamp(room, 42, 66));
      const high = tall - gap - 2 * FRAME;
      const broad = Math.round(clamp((high * columns) / rows, 8, inner - 40));
      return { tall, map: { x: FRAME, y: FRAME, width: broad, height: high }, words: { x: FRAME + broad, y: FRAME } };
    }
    const high = Math.round(clamp((inner * rows) / columns, 8, 2 * inner));
    const tall = high + WORDS + BAR + 1 + gap + 2 * FRAME;
    return { tall, map: { x: FRAME, y: FRAME, width: inner, height: high }, words: { x: FRAME, y: FRAME + high } };
  }

  label() {
    const { layers, heads } = this.header;
    const { wide, tall } = this.cell;
    this.sides.replaceChildren(
      ...Array.from({ length: layers }, (_, layer) => {
        const label = make("div", "roles-layer", { text: `layer ${layer}` });
        label.style.height = `${tall}px`;
        return label;
      }),
    );
    this.top.replaceChildren(
      ...Array.from({ length: heads }, (_, head) => {
        const label = make("div", "roles-head", { text: head === 0 && wide > 44 ? "head 0" : String(head) });
        Object.assign(label.style, { left: `${head * wide}px`, width: `${wide - this.cell.gap}px` });
        return label;
      }),
    );
  }

  headAt(event) {
    const frame = this.grid.getBoundingClientRect();
    const layer = Math.floor((event.clientY - frame.top) / this.cell.tall);
    const head = Math.floor((event.clientX - frame.left) / this.cell.wide);
    const inside = layer >= 0 && head >= 0 && layer < this.header.layers && head < this.header.heads;
    return inside ? [layer, head] : null;
  }

  // Drawing ----------------------------------------------------------------------------------------------------

  mapsOf(layer) {
    const { weights, lut, limits } = this.arrays;
    const shape = this.header.arrays.weights.shape;
    const heads = [...Array(shape[1]).keys()];
    const limitOf = (head) => limits[layer * heads.length + head];
    const side = Math.max(this.cell.map.width, this.cell.map.height);
    return headMaps({ weights, lut, shape, layer, heads, size: shape.slice(2), limitOf, side });
  }

  paint() {
    if (!this.cell) return;
    const { layers, heads } = this.header;
    this.theme = readTheme(this.root);
    const context = sizeCanvas(this.canvas, heads * this.cell.wide, layers * this.cell.tall);
    let drawn = 0;
    for (let layer = 0; layer < layers; layer += 1) {
      const maps = this.cell.map && this.mapsOf(layer);
      for (let head = 0; head < heads; head += 1) {
        this.paintCell(context, layer, head, maps);
        drawn += this.isShown(this.arrays.best[layer * heads + head]) ? 1 : 0;
      }
    }
    this.root.dataset.painted = String(layers * heads);
    this.root.dataset.drawn = String(drawn);
  }

  paintCell(context, layer, head, maps) {
    const at = layer * this.header.heads + head;
    const { wide, tall, gap, map, words } = this.cell;
    const index = this.arrays.best[at];
    const { colour } = this.header.classes[index];
    const shown = this.isShown(index);
    const [width, height] = [wide - gap, tall - gap];
    context.save();
    context.translate(head * wide, layer * tall);
    const full = shown ? 1 : this.header.pale;
    context.fillStyle = colour;
    context.globalAlpha = map ? 0.2 * full : full;
    context.fillRect(0, 0, width, height);
    context.globalAlpha = full;
    if (map) {
      context.strokeStyle = colour;
      context.lineWidth = FRAME;
      context.strokeRect(FRAME / 2, FRAME / 2, width - FRAME, height - FRAME);
      this.paintMap(context, maps, head);
    }
    const ink = map || !shown ? this.theme.text : inkOn(channelsOf(colour), 0);
    context.globalAlpha = shown ? 1 : 0.45;
    context.fillStyle = ink;
    const box = map
      ? { x: words.x, y: words.y, width: width - FRAME - words.x, height: height - FRAME - BAR - 2 - words.y }
      : { x: 1, y: 1, width: width - 2, height: height - BAR - 4 };
    this.paintWords(context, this.header.marks[layer][head], this.arrays.scores[at], box);
    context.globalAlpha = full;
    this.paintBar(context, this.arrays.scores[at], {
      x: map ? words.x + 2 : 3,
      y: height - BAR - (map ? FRAME + 1 : 2),
      width: map ? width - FRAME - words.x - 4 : width - 6,
      colour: map ? colour : ink,
    });
    context.restore();
  }

  paintMap(context, { canvas, width, height, rows, columns }, head) {
    const box = this.cell.map;
    const scale = Math.min(box.width / columns, box.height / rows);
    const [wide, tall] = [columns * scale, rows * scale];
    const [x, y] = [box.x + (box.width - wide) / 2, box.y + (box.height - tall) / 2];
    context.imageSmoothingEnabled = Math.max(width, height) > Math.max(wide, tall) * (window.devicePixelRatio || 1);
    context.imageSmoothingQuality = "high";
    context.drawImage(canvas, head * width, 0, width, height, x, y, wide, tall);
  }

  /** The mark, as large as it fits, and below it the score where there is room for two lines. */
  paintWords(context, mark, score, box) {
    const two = box.height >= 26 && box.width >= 30 && Number.isFinite(score);
    context.textAlign = "center";
    context.textBaseline = "middle";
    let size = clamp(Math.min(box.width / 2.9, box.height * (two ? 0.4 : 0.95)), 8, 12);
    context.font = `600 ${size}px ${this.theme.font}`;
    const needed = context.measureText(mark).width;
    if (needed > box.width - 2) {
      size = Math.max((size * (box.width - 2)) / needed, 7);
      context.font = `600 ${size}px ${this.theme.font}`;
    }
    const x = box.x + box.width / 2;
    const middle = box.y + box.height / 2 + 0.5;
    context.fillText(mark, x, two ? middle - 6.5 : middle, box.width);
    if (!two) return;
    context.font = `400 10.5px ${this.theme.font}`;
    context.fillText(score.toFixed(2), x, middle + 7, box.width);
  }

  paintBar(context, score, { x, y, width, colour }) {
    const alpha = context.globalAlpha;
    context.fillStyle = colour;
    context.globalAlpha = 0.25 * alpha;
    context.fillRect(x, y, width, BAR);
    context.globalAlpha = alpha;
    if (Number.isFinite(score)) context.fillRect(x, y, width * clamp(score, 0, 1), BAR);
  }

  place() {
    const { wide, tall, gap } = this.cell;
    for (const [ring, place] of [[this.chosen, this.marked], [this.ring, this.pointed]]) {
      ring.hidden = !place;
      if (!place) continue;
      const style = { left: place[1] * wide, top: place[0] * tall, width: wide - gap, height: tall - gap };
      for (const [name, value] of Object.entries(style)) ring.style[name] = `${value}px`;
    }
  }

  // Choices ----------------------------------------------------------------------------------------------------

  point(place, event) {
    this.pointer = event ? [event.clientX, event.clientY] : null;
    if (samePlace(place, this.pointed)) {
      if (place) this.tell();
      return;
    }
    this.pointed = place;
    this.describe();
  }

  mark(place) {
    if (samePlace(place, this.marked)) return;
    this.marked = place;
    this.describe();
    this.say();
  }

  open(place) {
    this.mark(place);
    this.setTrigger("open", { input: this.header.input, at: place });
  }

  key(event) {
    const { layers, heads } = this.header;
    const [layer, head] = this.pointed ?? this.marked ?? [0, 0];
    const to = {
      ArrowUp: [layer - 1, head],
      ArrowDown: [layer + 1, head],
      ArrowLeft: [layer, head - 1],
      ArrowRight: [layer, head + 1],
      Home: [layer, 0],
      End: [layer, heads - 1],
      PageUp: [0, head],
      PageDown: [layers - 1, head],
    }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (to) {
      this.byKeys = true;
      this.point([clamp(to[0], 0, layers - 1), clamp(to[1], 0, heads - 1)]);
      this.ring.scrollIntoView({ block: "nearest", inline: "nearest" });
      this.tell();
    } else if (event.key === "Enter") this.open([layer, head]);
    else if (event.key === " ") this.mark([layer, head]);
    else if (event.key === "Escape" && this.pointed) this.point(null);
    else if (event.key === "Escape" && this.marked) this.mark(null);
    else return;
    event.preventDefault();
  }

  /** The rings, the names of layer and head in bold, the tooltip and the live line. */
  describe() {
    this.place();
    const place = this.pointed ?? this.marked;
    for (const label of this.root.querySelectorAll(".roles-named")) label.classList.remove("roles-named");
    if (place) {
      this.sides.children[place[0]]?.classList.add("roles-named");
      this.top.children[place[1]]?.classList.add("roles-named");
    }
    if (this.pointed) this.tell();
    else this.tooltip.hide();
    if (!place) {
      this.speakSoon.cancel();
      this.live.textContent = "";
      return;
    }
    const [, ...lines] = this.linesOf(place);
    const marked = samePlace(place, this.marked) ? ", marked" : "";
    const sentence = `Layer ${place[0]}, head ${place[1]}${marked}: ${lines.slice(0, 5).join(", ")}`;
    this.speakSoon.request(() => (this.live.textContent = sentence));
  }

  /** The tooltip at the pointer, or beside the cell that the keys have reached. */
  tell() {
    let at = this.pointer;
    if (!at) {
      const frame = this.ring.getBoundingClientRect();
      at = [frame.right - 10, frame.bottom - 10];
    }
    this.tooltip.show(this.linesOf(this.pointed), ...at);
  }

  linesOf([layer, head]) {
    const { header, arrays } = this;
    const at = layer * header.heads + head;
    const variant = header.variants[layer][head];
    const title = header.classes[arrays.best[at]].title;
    const lines = [`layer ${layer} · head ${head}`, variant ? `${title} (${variant})` : title];
    const fit = [`score ${shortText(arrays.scores[at])}`, `margin ${shortText(arrays.margins[at])}`];
    if (arrays.stable) {
      const share = arrays.stable[at];
      fit.push(`same class in ${Number.isFinite(share) ? percent(share) : "no value"}${Number.isFinite(share) ? " of samples" : ""}`);
    }
    lines.push(fit.join(" · "));
    const size = header.layers * header.heads;
    header.numbers.forEach(({ title: name, unit }, index) => {
      const place = index * size + at;
      const [value, low, high] = [arrays.values[place], arrays.low[place], arrays.high[place]];
      const interval = Number.isFinite(low) && Number.isFinite(high) ? ` (95 %: ${shortText(low)} to ${shortText(high)})` : "";
      lines.push(`${name}: ${shortText(value)}${unit && Number.isFinite(value) ? ` ${unit}` : ""}${interval}`);
    });
    if (header.more) lines.push(`${countOf(header.more, "further statistic")} in the exported files`);
    return lines;
  }
}

/** Red, green and blue of "#rrggbb". */
const channelsOf = (colour) => [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));

export default function (mount) {
  return mountView(views, HeadGrid, mount);
}
