// Evidence over a picture: a card for each method, with one map for each target. Colours are clear at 0, so the
// picture shows where there is no evidence. A patch that is pointed at or marked is shown in every map.

const WIDEST = 440; // px of a map
const NARROWEST = 210; // px of a card: its sentences need as much
const COMFORTABLE = 250; // px of a card where the window is scrolled
const GAP = 20; // px between cards, as in the styles
const TEXT = 152; // px that head, facts and claims of a card with one map take
const SMOOTH_SIDE = 320; // most pixels along a side of an interpolated map
const views = new WeakMap();

class EvidenceMaps {
  constructor(parent) {
    this.parent = parent;
    this.root = make("section", "view-root evidence-maps", { parent, "aria-label": "Evidence" });
    this.buildToolbar();
    this.cards = make("div", "evidence-cards", { parent: this.root });
    const foot = make("div", "evidence-foot", { parent: this.root });
    this.bars = makeSignBars(foot);
    this.note = make("div", "view-note", { parent: foot });
    this.live = make("div", "view-live", { parent: this.root, role: "status", "aria-live": "polite" });
    this.tooltip = makeTooltip(this.root);
    this.coloured = document.createElement("canvas");
    this.faded = document.createElement("canvas");
    this.panels = [];
    this.hovered = null;
    this.sending = makeDelayed(120);
    this.speaking = makeDelayed(120);
    this.observer = new ResizeObserver(() => this.layOut());
    this.observer.observe(this.root);
  }

  buildToolbar() {
    const toolbar = make("div", "view-toolbar", { parent: this.root, role: "toolbar", "aria-label": "Drawing" });
    this.title = make("div", "view-title", { parent: toolbar });
    const controls = make("div", "view-controls", { parent: toolbar });
    this.signs = makeChoice(
      controls,
      "Evidence",
      [
        [false, "Signed", "Evidence for (red) and against (blue)"],
        [true, "Positive only", "Evidence against is not drawn"],
      ],
      (positive) => this.change({ positive }),
    );
    this.ground = makeChoice(
      controls,
      "Picture",
      [
        [true, "Grey", "The picture pale and grey: colours are evidence alone"],
        [false, "Colour", "The picture as it is"],
      ],
      (grey) => this.change({ grey }),
    );
    this.drawing = makeChoice(
      controls,
      "Drawing",
      [
        [false, "Squares", "One square a patch, as computed"],
        [true, "Smooth", "Interpolated between patches"],
      ],
      (smooth) => this.change({ smooth }),
    );
    const label = make("label", "evidence-opacity", { parent: controls, text: "Opacity" });
    this.opacity = make("input", "", { parent: label, type: "range", min: "0", max: "100", step: "1" });
    this.opacity.addEventListener("input", () => {
      this.settings.opacity = Number(this.opacity.value) / 100;
      this.showOpacity();
    });
    this.opacity.addEventListener("change", () => this.change({}));
  }

  update({ header, arrays }) {
    const first = !this.header;
    const changedInput = !first && this.header.input !== header.input;
    this.header = header;
    this.luts = { true: arrays.signed, false: arrays.unsigned };
    this.scores = arrays.scores;
    [this.rows, this.columns] = header.grid;
    const { marked, ...settings } = header.state;
    if (first || changedInput) {
      this.shared = { marked: makeShared(marked), settings: makeShared(settings) };
      this.marked = marked;
      this.settings = { ...settings };
      this.hovered = null;
    } else {
      if (this.shared.marked.isNews(marked)) this.marked = marked;
      if (this.shared.settings.isNews(settings)) this.settings = { ...settings };
    }
    this.readPicture(arrays.picture);
    this.build();
    this.layOut();
  }

  end() {
    this.observer.disconnect();
    this.sending.cancel();
    this.speaking.cancel();
    this.root.remove();
  }

  readPicture(pixels) {
    const [height, width] = this.header.arrays.picture.shape;
    const { pale } = this.header;
    const [plain, faded] = [new ImageData(width, height), new ImageData(width, height)];
    for (let from = 0, to = 0; from < pixels.length; from += 3, to += 4) {
      const grey = 0.299 * pixels[from] + 0.587 * pixels[from + 1] + 0.114 * pixels[from + 2];
      for (let part = 0; part < 3; part += 1) {
        plain.data[to + part] = pixels[from + part];
        faded.data[to + part] = Math.round(255 * pale + (1 - pale) * grey);
      }
      plain.data[to + 3] = faded.data[to + 3] = 255;
    }
    for (const [canvas, image] of [
      [this.coloured, plain],
      [this.faded, faded],
    ]) {
      canvas.width = width;
      canvas.height = height;
      canvas.getContext("2d").putImageData(image, 0, 0);
    }
  }

  // Cards -------------------------------------------------------------------------------------------------------

  build() {
    this.panels = [];
    this.title.textContent = this.header.title;
    const stacked = Math.max(...this.header.cards.map((card) => card.panels.length));
    this.cards.replaceChildren(...this.header.cards.map((card) => this.makeCard(card, stacked)));
  }

  makeCard(card, stacked) {
    const several = stacked > 1;
    const element = make("figure", "evidence-card");
    const head = make("figcaption", "evidence-head", { parent: element });
    make("span", "evidence-method", { parent: head, text: card.method, title: card.method });
    for (const panel of card.panels) {
      const body = make("div", "evidence-panel", { parent: element });
      const line = several ? make("div", "evidence-target", { parent: body }) : head;
      const name = panel.target ? `for ${panel.target}` : "the same for every class";
      if (several) make("span", "", { parent: line, text: name, title: name });
      const value = make("span", "evidence-value", { parent: line, title: "Where the colours end: the largest |score|" });
      this.panels.push({ ...this.makeSurface(body, panel), panel, value });
      fillFacts(make("div", "evidence-facts", { parent: element }), panel);
    }
    fillClaims(make("div", "evidence-claims", { parent: element }), card.panels[0]);
    element.style.gridRow = `span ${2 + 2 * stacked}`; // rows of all cards line up
    return element;
  }

  makeSurface(parent, panel) {
    const surface = make("div", "evidence-surface", { parent, role: "application" });
    surface.tabIndex = this.panels.length ? -1 : 0;
    const base = make("canvas", "", { parent: surface, "aria-hidden": "true" });
    const over = make("canvas", "evidence-over", { parent: surface, "aria-hidden": "true" });
    const mark = make("div", "evidence-mark", { parent: surface });
    const pointer = make("div", "evidence-pointer", { parent: surface });
    surface.setAttribute("aria-roledescription", "evidence over a picture");
    const what = panel.target ? `${panel.method} for ${panel.target}` : panel.method;
    surface.setAttribute("aria-label", `${what}. Arrow keys mark a patch, Escape unmarks it.`);
    surface.addEventListener("pointermove", (event) => this.hover(this.patchAt(surface, event), panel, event));
    surface.addEventListener("pointerleave", () => this.hover(null));
    surface.addEventListener("click", (event) => this.toggle(this.patchAt(surface, event)));
    surface.addEventListener("keydown", (event) => this.onKey(event, panel));
    surface.addEventListener("blur", () => this.tooltip.hide());
    return { surface, base, over, mark, pointer };
  }

  layOut() {
    if (!this.header || !this.root.isConnected || this.root.clientWidth === 0) return;
    const width = this.root.clientWidth - 4;
    const [pictureHeight, pictureWidth] = this.header.picture_size;
    const aspect = pictureWidth / pictureHeight;
    const count = this.header.cards.length;
    const stacked = Math.max(...this.header.cards.map((card) => card.panels.length));
    const room = frameHeight(this.parent, 640) - 76; // without toolbar and scale
    const [across, card, size] = this.arrange(count, width, room, aspect, stacked);
    this.cards.style.gridTemplateColumns = `repeat(${across}, ${card}px)`;
    this.size = { width: size, height: Math.max(Math.round(size / aspect), 6) };
    this.settle();
    for (const panel of this.panels) this.draw(panel);
    this.drawMarks();
  }

  /** Cards side by side, width of a card and of a map: the largest maps that fit the window, else it is scrolled. */
  arrange(count, width, room, aspect, stacked) {
    const cardOf = (across) => Math.min(Math.floor((width - (across - 1) * GAP) / across), WIDEST);
    let best = null;
    for (let across = 1; across <= count && cardOf(across) >= NARROWEST; across += 1) {
      const tall = (room / Math.ceil(count / across) - TEXT - (stacked - 1) * 52) / stacked;
      const size = Math.floor(Math.min(cardOf(across), tall * aspect));
      if (size >= NARROWEST && (!best || size > best[2])) best = [across, Math.max(size, NARROWEST), size];
    }
    if (best) return best;
    const across = clamp(Math.floor((width + GAP) / (COMFORTABLE + GAP)), 1, count);
    return [across, cardOf(across), cardOf(across)];
  }

  settle() {
    const { settings } = this;
    this.signs.update(settings.positive);
    this.ground.update(settings.grey);
    this.drawing.update(settings.smooth);
    this.signs.element.hidden = !this.panels.some(({ panel }) => panel.signed);
    this.bars.update({ panels: this.panels.map(({ panel }) => panel), positive: settings.positive, luts: this.luts });
    this.note.textContent = `${this.rows} × ${this.columns} patches · colours end at the largest |score| of each method`;
    this.showOpacity();
  }

  draw({ surface, base, over, panel }) {
    const { width, height } = this.size;
    surface.style.width = `${width}px`;
    surface.style.height = `${height}px`;
    const context = sizeCanvas(base, width, height);
    context.imageSmoothingQuality = "high";
    context.drawImage(this.settings.grey ? this.faded : this.coloured, 0, 0, width, height);
    const { smooth, positive } = this.settings;
    over.classList.toggle("is-smooth", smooth);
    const scale = Math.min(SMOOTH_SIDE / Math.max(width, height), 1);
    const across = smooth ? Math.max(Math.round(width * scale), 1) : this.columns;
    const down = smooth ? Math.max(Math.round(height * scale), 1) : this.rows;
    const map = this.mapOf(panel);
    const values = smooth ? between(map, this.rows, this.columns, down, across) : map;
    const shares = Float32Array.from(values, (value) => shareOf(value, panel, positive));
    paintShares(over, shares, across, down, { signed: panel.signed, lut: this.luts[panel.signed] });
  }

  mapOf(panel) {
    const count = this.rows * this.columns;
    return this.scores.subarray(panel.index * count, (panel.index + 1) * count);
  }

  showOpacity() {
    this.opacity.value = String(Math.round(100 * this.settings.opacity));
    this.opacity.title = `${this.opacity.value} %`;
    for (const { over } of this.panels) over.style.opacity = String(this.settings.opacity);
  }

  // The pointer's marks -----------------------------------------------------------------------------------------

  drawMarks() {
    const shown = this.hovered ?? this.marked;
    for (const { panel, mark, pointer, value } of this.panels) {
      place(mark, this.marked, this.rows, this.columns);
      place(pointer, this.hovered, this.rows, this.columns);
      const told = shown ? shortText(this.valueAt(panel, shown)) : limitText(panel);
      value.textContent = told;
      value.classList.toggle("is-live", Boolean(shown));
    }
  }

  valueAt(panel, [row, column]) {
    return this.mapOf(panel)[row * this.columns + column];
  }

  patchAt(surface, event) {
    const box = surface.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * this.columns);
    return [clamp(row, 0, this.rows - 1), clamp(column, 0, this.columns - 1)];
  }

  hover(patch, panel = null, event = null) {
    if (!this.header) return;
    this.hovered = patch;
    this.drawMarks();
    if (patch && event) this.tooltip.show(this.lines(panel, patch), event.clientX, event.clientY);
    else this.tooltip.hide();
  }

  lines(panel, patch) {
    return [...scoreLines(this.valueAt(panel, patch), panel), `patch row ${patch[0]}, column ${patch[1]}`];
  }

  // Acting ------------------------------------------------------------------------------------------------------

  change(settings) {
    Object.assign(this.settings, settings);
    this.shared.settings.tell(this.settings);
    this.layOut();
    this.setState("view", { ...this.settings, input: this.header.input });
  }

  toggle(patch) {
    const same = this.marked && patch[0] === this.marked[0] && patch[1] === this.marked[1];
    this.choose(same ? null : patch);
  }

  /** Marks a patch in all maps; null unmarks. */
  choose(patch) {
    this.marked = patch;
    this.shared.marked.tell(patch);
    this.drawMarks();
    this.sending.request(() => this.setState("patch", { at: patch, input: this.header.input }));
  }

  onKey(event, panel) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey ? 5 : 1;
    const moves = { ArrowUp: [-step, 0], ArrowDown: [step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step] };
    const move = moves[event.key];
    if (move) {
      const middle = [Math.floor((this.rows - 1) / 2), Math.floor((this.columns - 1) / 2)];
      const patch = this.marked
        ? [clamp(this.marked[0] + move[0], 0, this.rows - 1), clamp(this.marked[1] + move[1], 0, this.columns - 1)]
        : middle;
      this.hover(null);
      this.choose(patch);
      this.speak(this.lines(panel, patch).join(", "));
    } else if (event.key === "Escape") {
      this.choose(null);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  speak(text) {
    this.speaking.request(() => {
      this.live.textContent = text;
    });
  }
}

/** A map at more pixels, bilinear between the centres of its patches; beyond the outer centres it stays constant. */
function between(map, rows, columns, height, width) {
  const places = (size, count) =>
    Array.from({ length: size }, (_, index) => {
      const centre = clamp(((index + 0.5) / size) * count - 0.5, 0, count - 1);
      const start = Math.floor(centre);
      return [start, Math.min(start + 1, count - 1), centre - start];
    });
  const across = places(width, columns);
  const values = new Float32Array(height * width);
  places(height, rows).forEach(([top, bottom, down], row) => {
    for (let column = 0; column < width; column += 1) {
      const [left, right, share] = across[column];
      const above = map[top * columns + left] * (1 - share) + map[top * columns + right] * share;
      const below = map[bottom * columns + left] * (1 - share) + map[bottom * columns + right] * share;
      values[row * width + column] = above * (1 - down) + below * down;
    }
  });
  return values;
}

/** Puts a box round a patch of a picture, or hides it. */
function place(box, patch, rows, columns) {
  box.hidden = !patch;
  if (!patch) return;
  box.style.left = `${(100 * patch[1]) / columns}%`;
  box.style.top = `${(100 * patch[0]) / rows}%`;
  box.style.width = `${100 / columns}%`;
  box.style.height = `${100 / rows}%`;
}

export default function (component) {
  return mountView(views, EvidenceMaps, component);
}
