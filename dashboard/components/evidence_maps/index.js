// Evidence over a picture: a card for each method, with one map for each target. Colours are clear at 0, so the
// picture shows where there is no evidence. A patch that is pointed at or marked is shown in every map, and all maps are
// zoomed together. A large picture comes twice: as pixels, fewer than it has, and as a JPEG of all.

const WIDEST = 440; // px of a map
const LOWEST = 140; // px of height that a map much wider than high may have, however wide that makes it
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
    this.zoom = makeZoom(() => this.zoomed());
    this.zooming = makeZoomButtons(controls, this.zoom, () => placeInSight(this.zoom, this.marked, this.grid));
    this.signs = makeSignChoice(controls, (positive) => this.change({ positive }));
    this.ground = makeChoice(
      controls,
      "Picture",
      [
        [true, "Grey", "The picture pale and grey: colours are evidence alone"],
        [false, "Colour", "The picture as it is"],
      ],
      (grey) => this.change({ grey }),
    );
    this.drawing = makeDrawingChoice(controls, (smooth) => this.change({ smooth }));
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
    this.grid = header.grid;
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
    if (first || changedInput) {
      this.small = this.inBothColours(pictureImage(arrays.picture, header.arrays.picture.shape));
      this.sharpen(arrays.sharp);
    }
    this.zoom.fit(header.grid, first || changedInput);
    this.build();
    this.layOut();
  }

  /** Decodes the picture's own pixels where it has more than the copy that is drawn at once. */
  async sharpen(bytes) {
    const input = this.header.input;
    this.sharp = null;
    const decoded = await decodedPicture(bytes);
    if (!decoded) return;
    if (this.header.input === input && this.root.isConnected) {
      const canvas = make("canvas", "", { width: decoded.width, height: decoded.height });
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(decoded, 0, 0);
      this.sharp = this.inBothColours(context.getImageData(0, 0, decoded.width, decoded.height));
      this.zoomed();
    }
    decoded.close();
  }

  /** The picture in colour and pale grey. */
  inBothColours(image) {
    return { coloured: canvasOf(image), faded: canvasOf(paleGrey(image, this.header.pale)) };
  }

  end() {
    this.observer.disconnect();
    this.zoom.end();
    this.sending.cancel();
    this.speaking.cancel();
    this.root.remove();
  }

  // Cards -------------------------------------------------------------------------------------------------------

  build() {
    const held = this.panels.find(({ surface }) => surface.matches(":focus"));
    this.panels = [];
    this.title.textContent = this.header.title;
    const stacked = Math.max(...this.header.cards.map((card) => card.panels.length));
    this.cards.replaceChildren(...this.header.cards.map((card) => this.makeCard(card, stacked)));
    const again = held && this.panels.find(({ panel }) => panelName(panel) === panelName(held.panel));
    again?.surface.focus({ preventScroll: true });
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
      const save = makeButton(line, "PNG", `Save ${panelName(panel)} as PNG, ${this.sizeText()}`, () => this.save(panel));
      save.classList.add("evidence-save");
      const value = make("span", "evidence-value", { parent: line, title: "Where the colours end: the largest |score|" });
      const facts = make("div", "evidence-facts", { parent: element, id: `evidence-facts-${panel.index}` });
      fillFacts(facts, panel);
      this.panels.push({ ...this.makeMap(body, panel, facts), panel, value });
    }
    fillClaims(make("div", "evidence-claims", { parent: element }), card.panels[0]);
    element.style.gridRow = `span ${2 + 2 * stacked}`; // rows of all cards line up
    return element;
  }

  makeMap(parent, panel, facts) {
    const acts = {
      hover: (patch, event) => this.hover(patch, panel, event),
      choose: (patch) => this.toggle(patch, panel),
      key: (event) => this.onKey(event, panel),
      leave: () => this.tooltip.hide(),
    };
    const parts = makeSurface(parent, "evidence", () => this.grid, acts, this.zoom);
    const { surface } = parts;
    surface.classList.add("is-zoomable");
    watchZoom(surface, this.zoom, () => false);
    surface.tabIndex = 0;
    surface.setAttribute("aria-roledescription", "evidence over a picture");
    const keys = "Arrow keys mark a patch, Enter the strongest, Escape none.";
    surface.setAttribute("aria-label", `${panelName(panel)}. ${this.extremes(panel)} ${keys}`);
    surface.setAttribute("aria-describedby", facts.id);
    surface.addEventListener("focus", () => {
      if (this.marked) this.speak(this.spoken(panel, this.marked));
    });
    return { ...parts, minimap: makeMinimap(surface, this.zoom) };
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
    this.size = { width: Math.max(size, 6), height: Math.max(Math.round(size / aspect), 6) };
    this.settle();
    for (const panel of this.panels) this.draw(panel);
    this.drawMarks();
  }

  /** Cards side by side, width of a card and of a map: the largest maps that fit the window, else it is scrolled. */
  arrange(count, width, room, aspect, stacked) {
    const widest = Math.max(WIDEST, LOWEST * aspect);
    const cardOf = (across) => Math.floor(Math.min((width - (across - 1) * GAP) / across, widest));
    const longer = (size) => Math.max(size, size / aspect);
    let best = null;
    for (let across = 1; across <= count && cardOf(across) >= NARROWEST; across += 1) {
      const tall = (room / Math.ceil(count / across) - TEXT - (stacked - 1) * 52) / stacked;
      const size = Math.floor(Math.min(cardOf(across), tall * aspect));
      if (longer(size) >= NARROWEST && (!best || size > best[2])) best = [across, Math.max(size, NARROWEST), size];
    }
    if (best) return best;
    const across = clamp(Math.floor((width + GAP) / (COMFORTABLE + GAP)), 1, count);
    const card = cardOf(across);
    return [across, card, Math.floor(Math.min(card, (room - TEXT) * aspect))]; // no map is taller than the window
  }

  settle() {
    const { settings } = this;
    this.signs.update(settings.positive);
    this.ground.update(settings.grey);
    this.drawing.update(settings.smooth);
    this.zooming.update();
    this.signs.element.hidden = !this.panels.some(({ panel }) => panel.signed);
    this.bars.update({ panels: this.panels.map(({ panel }) => panel), positive: settings.positive, luts: this.luts });
    this.note.textContent = `${this.grid.join(" × ")} patches · colours end at the largest |score| of each method`;
    this.showOpacity();
  }

  draw(parts) {
    this.drawSeen(parts);
    parts.overlay.classList.toggle("is-smooth", this.settings.smooth);
    this.paint(parts.overlay, parts.panel, this.size, SMOOTH_SIDE, this.zoom);
  }

  /** What is seen of the picture, and where the map lies on it. */
  drawSeen({ surface, base, overlay, minimap, panel }) {
    const needed = this.size.width * this.zoom.scale * (window.devicePixelRatio || 1);
    drawPicture({ surface, base }, this.shownPicture(needed), this.size, this.zoom);
    placeOverlay(overlay, this.settings.smooth, this.zoom);
    surface.classList.toggle("is-zoomed", !this.zoom.isWhole);
    minimap.update(panel === this.panels[0].panel ? this.small.coloured : null, this.size, this.grid);
  }

  /** Draws what another zoom, or a sharper picture, changes. */
  zoomed() {
    if (!this.header || !this.size) return;
    for (const parts of this.panels) {
      if (this.settings.smooth) this.draw(parts);
      else this.drawSeen(parts);
    }
    this.drawMarks();
    this.zooming.update();
    this.tooltip.hide();
  }

  /** The picture with at least so many pixels across, if it has them. */
  shownPicture(needed) {
    const { coloured, faded } = this.sharp && needed > this.small.coloured.width ? this.sharp : this.small;
    return this.settings.grey ? faded : coloured;
  }

  /** Paints a map's colours into a canvas: a pixel a patch, or interpolated for a size and what is seen of it. */
  paint(canvas, panel, size, most, seen = WHOLE) {
    const { smooth, positive } = this.settings;
    const { values, width, height } = overlayValues(this.mapOf(panel), this.grid, smooth, size, most, seen);
    const shares = Float32Array.from(values, (value) => shareOf(value, panel, positive));
    paintShares(canvas, shares, width, height, { signed: panel.signed, lut: this.luts[panel.signed] });
  }

  mapOf(panel) {
    const count = this.grid[0] * this.grid[1];
    return this.scores.subarray(panel.index * count, (panel.index + 1) * count);
  }

  showOpacity() {
    this.opacity.value = String(Math.round(100 * this.settings.opacity));
    this.opacity.title = `${this.opacity.value} %`;
    for (const { overlay } of this.panels) overlay.style.opacity = String(this.settings.opacity);
  }

  // The pointer's marks -----------------------------------------------------------------------------------------

  drawMarks() {
    const shown = this.hovered ?? this.marked;
    for (const { panel, mark, pointer, value } of this.panels) {
      placeBox(mark, this.marked, this.grid, this.zoom);
      placeBox(pointer, this.hovered, this.grid, this.zoom);
      value.textContent = shown ? shortText(this.valueAt(panel, shown)) : limitText(panel);
      value.classList.toggle("is-live", Boolean(shown));
    }
  }

  valueAt(panel, [row, column]) {
    return this.mapOf(panel)[row * this.grid[1] + column];
  }

  hover(patch, panel = null, event = null) {
    if (!this.header) return;
    this.hovered = patch;
    this.drawMarks();
    if (patch && event) this.tooltip.show(this.lines(panel, patch), event.clientX, event.clientY);
    else this.tooltip.hide();
  }

  lines(panel, patch) {
    const pixels = pixelsText(patch, this.grid, this.header.picture_size);
    return [...scoreLines(this.valueAt(panel, patch), panel), patchText(patch), pixels];
  }

  spoken(panel, patch) {
    return `${patchText(patch)}: ${spokenScore(this.valueAt(panel, patch), panel)}`;
  }

  /** Where a map is strongest, in words for who does not see it. */
  extremes(panel) {
    const map = this.mapOf(panel);
    const told = (index) => `${patchText(this.patchOf(index))}, score ${shortText(map[index])}`;
    const [highest] = strongest(map, 1);
    const [lowest] = strongest(map.map((value) => -value), 1);
    const found = [];
    if (map[highest] > 0) found.push(`Strongest${panel.signed ? " for" : ""}: ${told(highest)}.`);
    if (map[lowest] < 0) found.push(`Strongest against: ${told(lowest)}.`);
    return found.join(" ") || "Every score is 0.";
  }

  patchOf(index) {
    return [Math.floor(index / this.grid[1]), index % this.grid[1]];
  }

  // Acting ------------------------------------------------------------------------------------------------------

  change(settings) {
    Object.assign(this.settings, settings);
    this.shared.settings.tell(this.settings);
    this.layOut();
    this.setState("view", { ...this.settings, input: this.header.input });
  }

  toggle(patch, panel) {
    const same = this.marked && patch[0] === this.marked[0] && patch[1] === this.marked[1];
    this.choose(same ? null : patch, panel);
  }

  /** Marks a patch in all maps and tells its score in one of them; null unmarks. */
  choose(patch, panel) {
    this.marked = patch;
    this.shared.marked.tell(patch);
    this.drawMarks();
    this.speak(patch ? this.spoken(panel, patch) : "No patch is marked");
    this.sending.request(() => this.setState("patch", { at: patch, input: this.header.input }));
  }

  onKey(event, panel) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (zoomKey(event, this.zoom, placeInSight(this.zoom, this.marked, this.grid))) {
      this.speak(zoomText(this.zoom, this.grid) || "The whole picture");
      event.preventDefault();
      event.stopPropagation();
      return;
    }
    const patch = event.key === "Enter" ? this.strongestPatch(panel) : steppedPatch(event, this.marked, this.grid);
    if (!patch && event.key !== "Escape") return;
    this.hover(null);
    this.zoom.follow(patch, this.grid);
    this.choose(patch, panel);
    event.preventDefault();
    event.stopPropagation();
  }

  strongestPatch(panel) {
    const { positive } = this.settings;
    const drawn = this.mapOf(panel).map((value) => Math.abs(shareOf(value, panel, positive)));
    return this.patchOf(strongest(drawn, 1)[0] ?? 0);
  }

  speak(text) {
    this.speaking.request(() => {
      this.live.textContent = text;
    });
  }

  // A map as a file -----------------------------------------------------------------------------------------------

  /** Saves a map as it is drawn, at the picture's own resolution. */
  save(panel) {
    const [height, width] = this.header.picture_size;
    const canvas = make("canvas", "", { width, height });
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(this.shownPicture(width), 0, 0, width, height);
    const overlay = make("canvas", "");
    this.paint(overlay, panel, { width, height }, Infinity);
    context.globalAlpha = this.settings.opacity;
    context.imageSmoothingEnabled = false;
    context.drawImage(overlay, 0, 0, width, height);
    context.globalAlpha = 1;
    if (this.marked) strokeBox(context, this.marked, this.grid, { width, height }, width / this.size.width);
    savePng(canvas, `${panel.file}.png`);
  }

  sizeText() {
    const [height, width] = this.header.picture_size;
    return `${width} × ${height} pixels`;
  }
}

const patchText = ([row, column]) => `patch row ${row}, column ${column}`;

/** The brightness of a picture (Rec. 601), faded to white. */
function paleGrey({ data, width, height }, pale) {
  const faded = new ImageData(width, height);
  for (let index = 0; index < data.length; index += 4) {
    const grey = 0.299 * data[index] + 0.587 * data[index + 1] + 0.114 * data[index + 2];
    faded.data.fill(Math.round(255 * pale + (1 - pale) * grey), index, index + 3);
    faded.data[index + 3] = 255;
  }
  return faded;
}

export default function (component) {
  return mountView(views, EvidenceMaps, component);
}
