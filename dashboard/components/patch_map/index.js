// Maps over a picture, one panel each: a picture below, the colours of a map above, marks on top. The opacity is the
// overlay's CSS opacity, so its slider costs nothing; the pointer's marks are boxes placed in percent of what is seen.
// All panels are zoomed together. A large picture comes twice: as pixels, fewer than it has, and as a JPEG of all.

const GAP = 12; // px between panels
const HEAD = 24; // px for a panel's title
const SMALLEST_PANEL = 104; // px of the longer side; below that the panels scroll instead
const SCROLL_BAR = 14; // px
const SMALLEST_BOX = 76; // px a panel keeps for its title, however thin the picture
const SMOOTH_SIDE = 420; // most pixels along a side of an interpolated map
const SIDE_WIDTH = 232;
const SIDE_GAP = 18;
const BESIDE = 330; // px of height that the list beside a single panel needs
const LISTED = 6; // strongest patches beside a single panel
const views = new WeakMap();

class PatchMap {
  constructor(parent) {
    this.parent = parent;
    this.root = make("section", "view-root patch-map", { parent });
    this.buildToolbar();
    const body = make("div", "patch-body", { parent: this.root });
    this.stage = make("div", "patch-stage", { parent: body });
    this.side = make("aside", "view-side patch-side", { parent: body, "aria-label": "Details" });
    const foot = make("div", "patch-foot", { parent: this.root });
    this.bar = makeScaleBar(foot);
    this.note = make("div", "view-note", { parent: foot });
    this.live = make("div", "view-live", { parent: this.root, role: "status", "aria-live": "polite" });
    this.tooltip = makeTooltip(this.root);
    this.panels = [];
    this.hovered = null;
    this.sharp = null; // the picture at all its pixels, as soon as it is decoded
    this.sending = makeDelayed(120);
    this.speaking = makeDelayed(120);
    this.observer = new ResizeObserver(() => this.layOut());
    this.observer.observe(this.root);
    this.observer.observe(parent.host ?? parent);
  }

  buildToolbar() {
    const toolbar = make("div", "view-toolbar", { parent: this.root, role: "toolbar", "aria-label": "Picture" });
    this.source = make("div", "view-title", { parent: toolbar });
    this.cls = makeButton(toolbar, "Back to CLS", "Show the attention of CLS", () => this.choose(null));
    const controls = make("div", "view-controls", { parent: toolbar });
    this.zoom = makeZoom(() => this.zoomed());
    this.zooming = makeZoomButtons(controls, this.zoom, () => placeInSight(this.zoom, this.marked, this.grid));
    this.drawing = makeDrawingChoice(controls, (smooth) => this.change({ smooth }));
    this.scaling = makeChoice(
      controls,
      "Colour scale of the panels",
      [
        [true, "One scale", "The same colours mean the same values in all panels"],
        [false, "Own scale", "Each panel reaches its own maximum"],
      ],
      (sharedScale) => this.change({ shared_scale: sharedScale }),
    );
    const label = make("label", "patch-opacity", { parent: controls, text: "Opacity" });
    this.opacity = make("input", "", { parent: label, type: "range", min: "0", max: "100", step: "1" });
    this.opacityText = make("span", "patch-opacity-text", { parent: label });
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
    this.lut = arrays.lut;
    this.grid = header.grid;
    [this.rows, this.columns] = header.grid;
    const count = this.rows * this.columns;
    this.maps = header.titles.map((_, index) => arrays.maps.subarray(index * count, (index + 1) * count));
    const { marked, opacity, smooth, shared_scale: sharedScale } = header.state;
    const settings = { opacity, smooth, shared_scale: sharedScale };
    if (first || changedInput) {
      this.shared = { marked: makeShared(marked), settings: makeShared(settings) };
      this.marked = marked;
      this.settings = settings;
      this.hovered = null;
    } else {
      if (this.shared.marked.isNews(marked)) this.marked = marked;
      if (this.shared.settings.isNews(settings)) this.settings = settings;
    }
    if (first || changedInput) {
      this.picture = canvasOf(pictureImage(arrays.picture, header.arrays.picture.shape));
      this.sharpen(arrays.sharp);
    }
    this.zoom.fit(header.grid, first || changedInput);
    this.buildPanels();
    this.layOut();
    const stays = this.hovered && this.pointed < this.maps.length;
    this.hover(stays ? this.hovered : null, this.pointed, this.pointer); // the tooltip tells the new value
  }

  /** Decodes the picture's own pixels where it has more than the copy that is drawn at once. */
  async sharpen(bytes) {
    const input = this.header.input;
    this.sharp?.close();
    this.sharp = null;
    const decoded = await decodedPicture(bytes);
    if (!decoded) return;
    if (this.header.input !== input || !this.root.isConnected) {
      decoded.close();
      return;
    }
    this.sharp = decoded;
    this.drawPictures();
  }

  end() {
    this.observer.disconnect();
    this.zoom.end();
    this.sharp?.close();
    this.sending.cancel();
    this.speaking.cancel();
    this.root.remove();
  }

  // Panels ------------------------------------------------------------------------------------------------------

  buildPanels() {
    while (this.panels.length > this.maps.length) this.panels.pop().element.remove();
    while (this.panels.length < this.maps.length) this.panels.push(this.makePanel(this.panels.length));
    const several = this.maps.length > 1;
    const opens = several && !this.alone;
    this.panels.forEach((panel, index) => {
      panel.button.textContent = this.header.titles[index];
      panel.button.disabled = !opens;
      panel.button.title = opens ? `Open ${this.header.titles[index]} alone` : "";
      panel.element.classList.toggle("is-selected", several && index === this.header.selected);
    });
    this.scaling.element.hidden = !several || this.header.fixed_limits;
  }

  makePanel(index) {
    const element = make("figure", "patch-panel", { parent: this.stage });
    const head = make("figcaption", "patch-head", { parent: element });
    const button = make("button", "patch-title", { parent: head, type: "button" });
    button.addEventListener("click", () => this.setTrigger("panel", index));
    const value = make("span", "patch-value", { parent: head });
    const acts = {
      hover: (patch, event) => this.hover(patch, index, event),
      choose: (patch) => this.choose(patch),
      key: (event) => this.onKey(event, index),
      leave: () => this.tooltip.hide(),
    };
    const parts = makeSurface(element, "patch", () => this.grid, acts, this.zoom);
    parts.surface.classList.add("is-zoomable");
    watchZoom(parts.surface, this.zoom, () => this.size?.scrolls);
    return { element, button, value, ...parts, minimap: makeMinimap(parts.surface, this.zoom) };
  }

  layOut() {
    if (!this.header || !this.root.isConnected || this.root.clientWidth === 0) return;
    const frame = frameHeight(this.parent, 560);
    this.root.style.height = `${frame}px`;
    this.side.hidden = this.maps.length > 1 || this.root.clientWidth < 640;
    this.side.style.width = `${SIDE_WIDTH}px`;
    this.settle();
    const side = this.side.hidden ? 0 : SIDE_WIDTH + SIDE_GAP;
    const width = this.stage.parentElement.clientWidth - side - 4;
    const height = this.stage.clientHeight - 4;
    const [pictureHeight, pictureWidth] = this.header.picture_size; // the blob may hold a smaller copy
    this.size = panelSize(this.maps.length, width, height, pictureWidth / pictureHeight);
    this.stage.style.gridTemplateColumns = `repeat(${this.size.across}, ${this.size.box}px)`;
    this.stage.classList.toggle("is-scrolling", this.size.scrolls);
    const down = Math.ceil(this.maps.length / this.size.across);
    const needed = Math.max(down * (this.size.height + HEAD + GAP) - GAP, this.side.hidden ? 0 : BESIDE);
    if (needed < height) this.root.style.height = `${frame - (height - needed)}px`;
    for (const panel of this.panels) panel.element.style.width = `${this.size.box}px`;
    this.drawPictures();
    this.drawOverlays();
    this.drawMarks();
    this.showDetails();
  }

  drawPictures() {
    if (!this.size) return;
    const needed = this.size.width * this.zoom.scale * (window.devicePixelRatio || 1);
    const picture = this.sharp && needed > this.picture.width ? this.sharp : this.picture;
    this.panels.forEach((panel, index) => {
      drawPicture(panel, picture, this.size, this.zoom);
      panel.surface.classList.toggle("is-zoomed", !this.zoom.isWhole);
      panel.minimap.update(index ? null : this.picture, this.size, this.grid); // all show the same part
    });
  }

  /** Draws what another zoom changes. */
  zoomed() {
    if (!this.header) return;
    this.drawPictures();
    this.panels.forEach((panel, index) => {
      if (this.settings.smooth) this.drawOverlay(panel, index);
      else placeOverlay(panel.overlay, false, this.zoom);
    });
    this.drawMarks();
    this.zooming.update();
    this.tooltip.hide();
    this.speak(zoomText(this.zoom, this.grid) || "The whole picture");
  }

  /** Everything that says how the maps are drawn, before sizes are taken: the scale bar may need a line more. */
  settle() {
    this.limits = this.panelLimits();
    const { settings, header } = this;
    const own = this.ownScale();
    const [low, high] = this.limits[0] ?? [0, 1];
    const lowest = this.limits.some((limits) => limits[0] < 0) ? "each panel’s minimum" : "0";
    const words = own ? [lowest, "each panel’s maximum"] : null;
    this.bar.update({ lut: this.lut, low: own ? 0 : low, high: own ? 1 : high, text: header.unit, words });
    const notes = [`${this.rows} × ${this.columns} patches`];
    if (this.maps.length > 1) notes.push(own ? "each panel scaled to its own maximum" : "one scale for all panels");
    if (header.note) notes.push(header.note);
    this.note.textContent = notes.join(" · ");
    this.zooming.update();
    this.drawing.update(settings.smooth);
    this.scaling.update(settings.shared_scale);
    this.showOpacity();
    const patch = this.marked ? `patch row ${this.marked[0]}, column ${this.marked[1]}` : header.source;
    this.source.textContent = `From ${patch}`;
    this.cls.hidden = !header.back || !this.marked || this.alone;
    this.cls.textContent = `Back to ${header.back}`;
    this.cls.setAttribute("aria-label", `Show the attention of ${header.back}`);
    this.cls.title = `Show the attention of ${header.back}`;
  }

  ownScale() {
    return this.maps.length > 1 && !this.settings.shared_scale && !this.header.fixed_limits;
  }

  /** Colour limits [low, high] of each panel. */
  panelLimits() {
    const { limits, shared_limits: shared, fixed_limits: fixed } = this.header;
    return this.settings.shared_scale || fixed ? limits.map(() => shared) : limits;
  }

  drawOverlays() {
    this.panels.forEach((panel, index) => this.drawOverlay(panel, index));
  }

  drawOverlay({ overlay }, index) {
    const [low, high] = this.limits[index];
    const { smooth } = this.settings;
    overlay.classList.toggle("is-smooth", smooth);
    placeOverlay(overlay, smooth, this.zoom);
    const made = overlayValues(this.maps[index], this.grid, smooth, this.size, SMOOTH_SIDE, this.zoom);
    paintLevels(overlay, levelsOf(made.values, low, high, "linear"), made.width, made.height, this.lut);
  }

  showOpacity() {
    const percent = Math.round(100 * this.settings.opacity);
    this.opacity.value = String(percent);
    this.opacityText.textContent = `${percent} %`;
    for (const panel of this.panels) panel.overlay.style.opacity = String(this.settings.opacity);
  }

  // The pointer's marks -----------------------------------------------------------------------------------------

  drawMarks() {
    this.panels.forEach((panel, index) => {
      placeBox(panel.mark, this.marked, this.grid, this.zoom);
      placeBox(panel.pointer, this.hovered, this.grid, this.zoom);
      const value = this.hovered ? shortText(this.valueAt(index, this.hovered)) : "";
      const highest = this.ownScale() ? `max ${shortText(this.limits[index][1])}` : "";
      panel.value.textContent = this.maps.length > 1 ? value || highest : "";
      panel.value.classList.toggle("is-live", Boolean(value));
      const name = this.header.titles[index] || "Map";
      panel.surface.setAttribute("aria-roledescription", "map over a picture");
      panel.surface.setAttribute("aria-label", `${name}. ${this.source.textContent}. Arrow keys choose another patch, plus and minus zoom.`);
      panel.surface.tabIndex = index === (this.header.selected ?? 0) ? 0 : -1;
    });
  }

  valueAt(index, [row, column]) {
    return this.maps[index][row * this.columns + column];
  }

  hover(patch, index = 0, event = null) {
    if (!this.header) return;
    Object.assign(this, { hovered: patch, pointed: index, pointer: event });
    this.drawMarks();
    this.showDetails();
    if (patch && event) this.tooltip.show(this.lines(index, patch), event.clientX, event.clientY);
    else this.tooltip.hide();
  }

  lines(index, patch) {
    const lines = [exactText(this.valueAt(index, patch)), `patch row ${patch[0]}, column ${patch[1]}`];
    if (this.maps.length > 1) lines.push(this.header.titles[index]);
    return [...lines, pixelsText(patch, this.grid, this.header.picture_size)];
  }

  showDetails() {
    if (this.side.hidden) return;
    const map = this.maps[0];
    const [low, high] = this.limits[0];
    const list = make("ol", "view-bars");
    const entries = strongest(map, LISTED).map((index) => {
      const patch = [Math.floor(index / this.columns), index % this.columns];
      const name = `row ${patch[0]}, column ${patch[1]}`;
      return { name, title: `Show the attention of the patch at ${name}`, value: map[index], key: patch };
    });
    fillBars(list, entries, { low, high, onChoose: this.alone ? null : (patch) => this.choose(patch) });
    const patch = this.hovered ?? this.marked;
    const parts = [make("h3", "", { text: this.hovered ? "Patch" : this.marked ? "Chosen patch" : "Patch" })];
    if (patch) {
      const value = this.valueAt(0, patch);
      const rank = 1 + map.reduce((count, other) => count + (other > value ? 1 : 0), 0);
      parts.push(
        make("div", "view-side-value", { text: exactText(value) }),
        make("div", "view-side-line", { text: `row ${patch[0]}, column ${patch[1]}` }),
        make("div", "view-note", { text: pixelsText(patch, this.grid, this.header.picture_size) }),
        make("div", "view-note", { text: `rank ${countText(rank)} of ${countText(map.length)} patches` }),
      );
    } else {
      const hint = "Point at the picture for the value of a patch";
      const more = this.alone ? "." : "; click to see what that patch attends to.";
      parts.push(make("div", "view-side-hint", { text: hint + more }));
    }
    parts.push(make("h3", "", { text: "Strongest patches" }), list);
    this.side.replaceChildren(...parts);
  }

  // Acting ------------------------------------------------------------------------------------------------------

  change(settings) {
    Object.assign(this.settings, settings);
    this.shared.settings.tell(this.settings);
    this.layOut();
    this.setState("view", { ...this.settings, input: this.header.input });
  }

  /** Chooses the patch whose attention is shown; null is CLS, or the mean of all patches. */
  choose(patch) {
    if (!this.header || this.alone || (patch === null && !this.header.back)) return;
    this.marked = patch;
    this.shared.marked.tell(patch);
    this.settle();
    this.drawMarks();
    this.showDetails();
    this.sending.request(() => this.setState("patch", { at: patch, input: this.header.input }));
  }

  onKey(event, index) {
    if (!this.header || event.ctrlKey || event.metaKey || event.altKey) return;
    const patch = steppedPatch(event, this.marked, this.grid);
    if (zoomKey(event, this.zoom, placeInSight(this.zoom, this.marked, this.grid))) {
      // drawn with the next frame
    } else if (patch) {
      this.hover(null);
      this.zoom.follow(patch, this.grid);
      this.choose(patch);
      this.speak(this.lines(index, patch).join(", "));
    } else if (event.key === "Escape" && this.header.back) {
      this.choose(null);
      this.speak(this.header.back);
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

/** How many panels lie side by side and how large they are; they scroll rather than shrink below a useful size. */
function panelSize(count, width, height, aspect) {
  const most = Math.max(Math.floor((width + GAP) / (SMALLEST_BOX + GAP)), 1); // as many titles fit side by side
  let best = null;
  for (let across = 1; across <= Math.min(count, most); across += 1) {
    const down = Math.ceil(count / across);
    const wide = (width - (across - 1) * GAP) / across;
    const tall = (height - (down - 1) * GAP) / down - HEAD;
    const panel = fitted(wide, tall, aspect);
    if (!best || panel.width > best.width) best = { ...panel, across, scrolls: false };
  }
  if (count > 1 && Math.max(best.width, best.height) < SMALLEST_PANEL) {
    const room = width - SCROLL_BAR;
    const box = Math.max(SMALLEST_PANEL * Math.min(aspect, 1), SMALLEST_BOX);
    const across = clamp(Math.floor((room + GAP) / (box + GAP)), 1, Math.min(count, most));
    const wide = Math.min((room - (across - 1) * GAP) / across, 2 * SMALLEST_PANEL);
    best = { ...fitted(wide, 2 * SMALLEST_PANEL, aspect), across, scrolls: true };
  }
  return { ...best, box: Math.max(best.width, SMALLEST_BOX) };
}

/** Largest whole-pixel size of the picture's aspect ratio within a box. */
function fitted(width, height, aspect) {
  const across = Math.min(width, Math.max(height, 24) * aspect);
  return { width: Math.max(Math.floor(across), 6), height: Math.max(Math.floor(across / aspect), 6) };
}

export default function (component) {
  return mountView(views, PatchMap, component);
}
