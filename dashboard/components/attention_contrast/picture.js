// The stage of a contrast over a picture: two maps, whose patches can be dragged, and the largest differences.

const TOLD_DIFFERENCES = 12;
const DRAG_HEIGHT = 240; // px of dragging over a picture between the roots of 0 and 1
const WIDEST_MAP = 400;
const MAP_GAP = 24;
const DIFFERENCES = 300; // px of the list beside two maps

class PictureStage {
  constructor(view) {
    this.view = view;
    const { header, arrays, frame } = view;
    this.measured = header.prefix.length; // what falls on CLS does not stretch the scale of the patches
    const keys = "arrows mark a patch, + and − change it by 0.01, Page ↑ ↓ by 0.1, Home 0, End 1";
    this.hint = `Drag a patch up or down. Keys: ${keys}.`;
    this.pointed = null;
    this.marked = null;
    this.picture = canvasOf(pictureImage(arrays.picture, header.arrays.picture.shape));
    const body = make("div", "contrast-pictures", { parent: frame });
    this.maps = [0, 1].map((order) => this.makeMap(body, order));
    this.side = make("div", "contrast-differences", { parent: body });
    make("h3", "contrast-heading", { parent: this.side, text: "Largest differences" });
    this.list = make("ul", "", { parent: this.side });
    this.list.addEventListener("pointermove", (event) => {
      const item = event.target.closest("li");
      view.point(item ? Number(item.dataset.index) : null);
    });
    this.list.addEventListener("pointerleave", () => view.point(null));
  }

  makeMap(parent, order) {
    const { view } = this;
    const element = make("figure", `contrast-map ${order ? "is-shown" : "is-observed"}`, { parent });
    const head = make("figcaption", "contrast-names", { parent: element });
    const name = make("div", "contrast-name", { parent: head });
    const remark = make("div", "view-note", { parent: head });
    const parts = makeSurface(element, "contrast", () => view.header.grid, {
      hover: (patch, event) => this.hover(patch, event),
      choose: () => {},
      key: (event) => this.onKey(event),
      leave: () => view.dragged || view.point(null),
    });
    parts.surface.tabIndex = 0;
    parts.surface.setAttribute("aria-roledescription", "attention over a picture");
    const cells = make("div", "contrast-cells", { parent: element });
    const prefix = view.header.prefix.map((text, index) => this.makeCell(cells, text, index, order));
    const outputs = make("ul", "contrast-outputs", { parent: element });
    if (order) this.makeDraggable(parts.surface, (event) => this.indexAt(event));
    return { element, name, remark, ...parts, prefix, outputs };
  }

  makeCell(parent, text, index, order) {
    const { view } = this;
    const element = make("div", "contrast-cell", { parent });
    element.tabIndex = order ? 0 : -1;
    make("span", "", { parent: element, text });
    const value = make("b", "", { parent: element });
    element.addEventListener("pointermove", (event) => {
      if (!view.dragged) view.point(index, [event.clientX, event.clientY]);
    });
    element.addEventListener("pointerleave", () => view.dragged || view.point(null));
    if (order) {
      this.makeDraggable(element, () => index);
      const ways = { ArrowUp: 0.01, ArrowDown: -0.01 };
      element.addEventListener("keydown", (event) => this.changeByKey(event, index, ways));
    }
    return { element, value };
  }

  /** Dragging up and down over an element changes the weight of the position that it began at. */
  makeDraggable(element, indexOf) {
    const { view } = this;
    element.addEventListener("pointerdown", (event) => {
      if (!view.editing || view.dragged || event.button !== 0) return;
      view.grab(indexOf(event));
      this.from = event.clientY;
      element.setPointerCapture(event.pointerId);
      element.focus({ preventScroll: true });
      event.preventDefault();
    });
    element.addEventListener("pointermove", (event) => {
      if (!view.dragged) return;
      const { from, index } = view.dragged;
      const root = clamp(Math.sqrt(from[index]) + (this.from - event.clientY) / DRAG_HEIGHT, 0, 1);
      view.moveTo(root * root, [event.clientX, event.clientY]);
    });
    element.addEventListener("pointerup", () => view.dragged && view.release(true));
    element.addEventListener("pointercancel", () => view.dragged && view.release(false));
  }

  layOut() {
    const room = this.view.frame.clientWidth;
    if (!room) return;
    const [height, width] = this.view.header.picture_size;
    const aspect = width / height;
    const beside = room >= 2 * 260 + DIFFERENCES + 2 * MAP_GAP;
    const each = (room - MAP_GAP * (beside ? 2 : 1) - (beside ? DIFFERENCES : 0)) / 2;
    const size = Math.max(Math.floor(Math.min(each, WIDEST_MAP, WIDEST_MAP * aspect)), 8);
    this.size = { width: size, height: Math.max(Math.round(size / aspect), 8) };
    for (const map of this.maps) {
      map.element.style.width = `${Math.max(size, Math.min(each, 240))}px`;
      drawPicture(map, this.picture, this.size);
    }
  }

  /** Maps lie on a pale picture in either theme, and so do the colours beside them. */
  ground() {
    return [255, 255, 255];
  }

  paint({ observed, shown, told, top, ground, shades }) {
    const { view } = this;
    this.maps.forEach((map, order) => {
      const entry = order ? shown : observed;
      map.element.hidden = !entry;
      if (entry) this.paintMap(map, entry, { observed, told, top, ground, shades, order });
    });
    this.side.hidden = !shown;
    this.maps[1].surface.classList.toggle("is-editing", Boolean(view.editing));
    if (shown) this.paintDifferences(observed, shown);
    this.drawMarks();
  }

  paintMap(map, entry, { observed, told, top, ground, shades, order }) {
    const { view } = this;
    const { header, scale } = view;
    const [rows, columns] = header.grid;
    map.name.textContent = entry.name;
    map.name.title = entry.name;
    map.remark.textContent = order ? view.sameText(entry, false) : "";
    const patches = entry.weights.subarray(header.prefix.length);
    const shares = Array.from(patches, (weight) => position(weight, 0, top, scale));
    paintShares(map.overlay, shares, columns, rows, { signed: false, lut: shades });
    const keys = order && view.editing ? ` ${this.hint}` : " Arrow keys mark a patch, Escape none.";
    map.surface.setAttribute("aria-label", `${view.summary(entry)}.${keys}`);
    map.prefix.forEach(({ element, value }, index) => {
      paintShade(element, position(entry.weights[index], 0, top, scale), shades, ground);
      value.textContent = shortText(entry.weights[index]);
      const editing = Boolean(order && view.editing);
      element.setAttribute("role", editing ? "slider" : "img");
      element.setAttribute("aria-label", view.told(index, order ? entry : null));
      if (editing) element.setAttribute("aria-valuenow", String(Number(entry.weights[index].toFixed(4))));
      else element.removeAttribute("aria-valuenow");
    });
    const before = order ? observed.outputs : null;
    fillOutputs(map.outputs, { header, outputs: entry.outputs, told, before, wait: view.waitText() });
  }

  paintDifferences(observed, shown) {
    const differences = Float64Array.from(shown.weights, (weight, index) => Math.abs(weight - observed.weights[index]));
    const best = strongest(differences, TOLD_DIFFERENCES).filter((index) => differences[index] > 0);
    const most = best.reduce((high, index) => Math.max(high, observed.weights[index], shown.weights[index]), 0);
    this.list.replaceChildren(
      ...best.map((index) => {
        const item = make("li", "contrast-difference");
        item.dataset.index = String(index);
        make("span", "contrast-place", { parent: item, text: this.nameOf(index).replace(/^patch /, "") });
        const bars = make("span", "contrast-pair", { parent: item });
        for (const [kind, { weights }] of Object.entries({ observed, shown })) {
          const fill = make("span", `contrast-thin is-${kind}`, { parent: bars });
          fill.style.width = barHeight(weights[index], most, this.view.scale);
        }
        const difference = shown.weights[index] - observed.weights[index];
        make("span", "contrast-value", { parent: item, text: `${difference > 0 ? "+" : ""}${shortText(difference)}` });
        item.setAttribute("aria-label", this.view.told(index, shown));
        return item;
      }),
    );
    if (!best.length) this.list.replaceChildren(make("li", "view-note", { text: "none: the same weights" }));
  }

  // Patches ---------------------------------------------------------------------------------------------------------

  indexAt(event) {
    const [rows, columns] = this.view.header.grid;
    const box = this.maps[1].surface.getBoundingClientRect();
    const row = clamp(Math.floor(((event.clientY - box.top) / box.height) * rows), 0, rows - 1);
    const column = clamp(Math.floor(((event.clientX - box.left) / box.width) * columns), 0, columns - 1);
    return this.indexOf([row, column]);
  }

  indexOf([row, column]) {
    return this.measured + row * this.view.header.grid[1] + column;
  }

  /** [row, column] of a position; null for one that is no patch. */
  patchOf(index) {
    const place = index === null ? -1 : index - this.measured;
    const columns = this.view.header.grid[1];
    return place < 0 ? null : [Math.floor(place / columns), place % columns];
  }

  nameOf(index) {
    const patch = this.patchOf(index);
    return patch ? `patch row ${patch[0]}, column ${patch[1]}` : this.view.header.prefix[index];
  }

  remarks(index) {
    return [`position ${index}`];
  }

  hover(patch, event) {
    if (this.view.dragged) return;
    this.view.point(patch && this.indexOf(patch), event && [event.clientX, event.clientY]);
  }

  point(index) {
    this.pointed = index;
    this.drawMarks();
  }

  drawMarks() {
    const { grid } = this.view.header;
    for (const { mark, pointer, prefix } of this.maps) {
      placeBox(pointer, this.patchOf(this.pointed), grid);
      placeBox(mark, this.marked, grid);
      prefix.forEach(({ element }, index) => element.classList.toggle("is-pointed", index === this.pointed));
    }
    for (const item of this.list.children) {
      item.classList.toggle("is-pointed", Number(item.dataset.index) === this.pointed);
    }
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { view } = this;
    if (view.editing && this.marked) {
      const ways = { "+": 0.01, "=": 0.01, "-": -0.01, PageUp: 0.1, PageDown: -0.1 };
      if (this.changeByKey(event, this.indexOf(this.marked), ways)) return;
    }
    const patch = steppedPatch(event, this.marked, view.header.grid);
    if (!patch) {
      if (event.key === "Escape" && this.marked && !view.editing) this.mark(null);
      return;
    }
    this.mark(patch);
    event.preventDefault();
    event.stopPropagation();
  }

  mark(patch) {
    this.marked = patch;
    this.drawMarks();
    this.view.speak(patch ? this.view.told(this.indexOf(patch), this.view.current()) : "No patch is marked");
  }

  /** Whether a key changed a weight. */
  changeByKey(event, index, ways) {
    const weight = this.view.editing ? this.view.keyedWeight(event, index, ways) : null;
    if (weight === null) return false;
    this.view.nudge(index, weight);
    event.preventDefault();
    event.stopPropagation();
    return true;
  }
}
