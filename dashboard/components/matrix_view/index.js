// One matrix of weights as a heatmap: queries down, keys across. Drawn on two canvases, cells below and the pointer's
// marks above, so that a hover redraws a few lines and never the cells. Indices in `zoom` and `selected` are those of
// the whole matrix; inside, a cell of a pooled matrix stands for `factor` × `factor` weights. Of a matrix that came
// pooled or quantised, Python answers a zoom with the zoomed part: two grids of cells, of which the part is drawn while
// it covers the window.

const SMALLEST_LABEL_ROW = 13; // px a row label needs
const SMALLEST_LABEL_COLUMN = 14; // px a rotated column label needs
const TILT = Math.PI / 3; // column labels lean by 60°
const AXIS = 20; // px for "key →" above the column labels
const TICKS = 50; // px beside the cells when only indices fit
const SIDE_WIDTH = 232;
const LISTED = 8; // strongest keys beside the matrix
const views = new WeakMap();

class MatrixView {
  constructor(parent) {
    this.parent = parent;
    this.root = make("section", "view-root matrix-view", { parent });
    this.buildToolbar();
    const body = make("div", "matrix-body", { parent: this.root });
    this.stage = make("div", "matrix-stage", { parent: body });
    this.cells = make("canvas", "matrix-cells", { parent: this.stage, "aria-hidden": "true" });
    this.marks = make("canvas", "matrix-marks", { parent: this.stage, tabindex: "0", role: "application" });
    this.side = make("aside", "view-side matrix-side", { parent: body, "aria-label": "Details" });
    const foot = make("div", "matrix-foot", { parent: this.root });
    this.bar = makeScaleBar(foot);
    this.note = make("div", "view-note matrix-note", { parent: foot });
    this.live = make("div", "view-live", { parent: this.root, role: "status", "aria-live": "polite" });
    this.tooltip = makeTooltip(this.root);
    this.sending = makeDelayed(180);
    this.speaking = makeDelayed(120);
    this.hovered = null;
    this.drag = null;
    this.listen();
    this.observer = new ResizeObserver(() => this.layOut());
    this.observer.observe(this.root);
    this.observer.observe(parent.host ?? parent);
  }

  buildToolbar() {
    const toolbar = make("div", "view-toolbar", { parent: this.root, role: "toolbar", "aria-label": "Matrix" });
    this.title = make("div", "view-title", { parent: toolbar });
    this.range = make("div", "view-note", { parent: toolbar });
    const controls = make("div", "view-controls", { parent: toolbar });
    this.scaleChoice = makeChoice(
      controls,
      "Colour scale",
      [
        ["linear", "Linear", "Colour in proportion to the value"],
        ["sqrt", "√", "Colour by the square root: tells small values apart"],
      ],
      (scale) => this.chooseScale(scale),
    );
    const buttons = make("div", "view-buttons", { parent: controls });
    this.zoomOut = makeButton(buttons, "−", "Zoom out", () => this.zoomBy(1.5));
    this.zoomIn = makeButton(buttons, "+", "Zoom in", () => this.zoomBy(1 / 1.5));
    this.reset = makeButton(buttons, "Reset", "Show the whole matrix", () => this.zoomTo(null));
  }

  update({ header, arrays }) {
    const first = !this.header;
    const changedInput = !first && this.header.input !== header.input;
    this.header = header;
    this.lut = arrays.lut;
    [this.queries, this.keys] = header.size;
    const { weights, part } = header.arrays;
    const exact = weights.dtype === "float32";
    const values = exact ? arrays.weights : weightsOfLevels(arrays.weights);
    this.whole = makeGrid(values, weights.shape, header.factor, [0, 0], exact);
    this.part = part ? makeGrid(arrays.part, part.shape, header.part.factor, header.part.start, true) : null;
    this.columnTokens = header.columns ?? header.rows;
    this.rowTokens = header.rows;
    const { zoom, selected, scale } = header.state;
    if (first || changedInput) {
      this.shared = { zoom: makeShared(zoom), selected: makeShared(selected), scale: makeShared(scale) };
      this.zoom = zoom;
      this.selected = selected;
      this.scale = scale;
      this.hovered = null;
    } else {
      if (this.shared.zoom.isNews(zoom)) this.zoom = zoom;
      if (this.shared.selected.isNews(selected)) this.selected = selected;
      if (this.shared.scale.isNews(scale)) this.scale = scale;
    }
    this.zoom = this.fitted(this.zoom);
    if (this.selected && !this.isCell(this.selected)) this.selected = null;
    this.title.textContent = header.title;
    this.recolour();
    this.layOut();
    if (this.hovered) this.hover(this.hovered, this.pointer); // the tooltip tells the new value
    else this.tooltip.hide();
  }

  end() {
    this.observer.disconnect();
    this.sending.cancel();
    this.speaking.cancel();
    this.root.remove();
  }

  // Cells and window --------------------------------------------------------------------------------------------

  /** The part that Python sent, while it covers the window; else the whole. */
  chooseGrid() {
    const { part } = this;
    const [top, bottom, left, right] = this.zoom ?? [0, this.queries, 0, this.keys];
    const covers = (start, count, from, to) =>
      start * part.factor <= from && to <= (start + count) * part.factor;
    const inside = part && covers(part.top, part.height, top, bottom) && covers(part.left, part.width, left, right);
    this.grid = inside ? part : this.whole;
  }

  get factor() {
    return this.grid.factor;
  }

  isCell([row, column]) {
    return row >= 0 && row < this.queries && column >= 0 && column < this.keys;
  }

  /** A zoom in whole-matrix indices, cut to the matrix; null when it shows everything or nothing. */
  fitted(zoom) {
    if (!zoom) return null;
    const top = clamp(zoom[0], 0, this.queries - 1);
    const bottom = clamp(zoom[1], top + 1, this.queries);
    const left = clamp(zoom[2], 0, this.keys - 1);
    const right = clamp(zoom[3], left + 1, this.keys);
    return bottom - top === this.queries && right - left === this.keys ? null : [top, bottom, left, right];
  }

  /** Visible cells [top, bottom, left, right] of the (possibly pooled) matrix. */
  visible() {
    if (!this.zoom) return [0, this.whole.height, 0, this.whole.width];
    const [top, bottom, left, right] = this.zoom;
    const { factor } = this;
    return [Math.floor(top / factor), Math.ceil(bottom / factor), Math.floor(left / factor), Math.ceil(right / factor)];
  }

  value(row, column) {
    return this.grid.weights[placeIn(this.grid, row, column)];
  }

  recolour() {
    const [low, high] = this.header.limits;
    for (const grid of [this.whole, this.part].filter(Boolean)) {
      grid.levels = levelsOf(grid.weights, low, high, this.scale);
      paintLevels(grid.colours, grid.levels, grid.width, grid.height, this.lut);
    }
    this.bar.update({ lut: this.lut, low, high, scale: this.scale, text: this.header.unit, over: this.header.over });
    this.scaleChoice.update(this.scale);
  }

  // Layout ------------------------------------------------------------------------------------------------------

  layOut() {
    if (!this.header || !this.root.isConnected || this.root.clientWidth === 0) return;
    this.root.style.height = `${frameHeight(this.parent, 560)}px`;
    this.theme = readTheme(this.root);
    this.side.hidden = this.root.clientWidth < 720;
    this.side.style.width = `${SIDE_WIDTH}px`;
    const width = this.stage.clientWidth;
    const height = this.stage.clientHeight;
    const context = sizeCanvas(this.cells, width, height);
    sizeCanvas(this.marks, width, height);
    const before = this.grid;
    this.chooseGrid();
    this.measure(context, width, height);
    if (this.hovered && (before?.factor !== this.factor || !this.isVisible(this.hovered))) {
      this.hovered = this.pointer ? this.cellAt(this.pointer) : null;
    }
    this.drawCells(context);
    this.drawMarks();
    this.showDetails();
    this.describe();
  }

  measure(context, width, height) {
    const [top, bottom, left, right] = this.visible();
    const rows = bottom - top;
    const columns = right - left;
    context.font = this.font();
    const widest = (tokens, start, stop) => {
      let most = 0;
      for (let index = start; index < stop; index += 1) {
        most = Math.max(most, context.measureText(this.axisLabel(tokens, index)).width);
      }
      return Math.ceil(most) + 14;
    };
    const rowRoom = rows * SMALLEST_LABEL_ROW <= height ? widest(this.rowTokens, top, bottom) : 0;
    const columnText = columns * SMALLEST_LABEL_COLUMN <= width ? widest(this.columnTokens, left, right) : 0;
    const least = Math.max(Math.ceil(context.measureText(`${this.header.axes[0]} ↓`).width) + 8, TICKS);
    const plan = (rowLabels, columnLabels) => {
      const x = rowLabels ? Math.max(rowRoom, least) : least;
      const tilted = Math.ceil(columnText * Math.sin(TILT)) + 6;
      let y = AXIS + (columnLabels ? tilted : 18);
      let margin = columnLabels ? Math.ceil(columnText * Math.cos(TILT)) : 14;
      let [cellWidth, cellHeight] = cellSize(width - x - margin, height - y - 2, rows, columns);
      const level = columnLabels && columnText <= cellWidth;
      if (level) {
        y = AXIS + 22;
        margin = 2;
        [cellWidth, cellHeight] = cellSize(width - x - margin, height - y - 2, rows, columns);
      }
      return { x, y, cellWidth, cellHeight, rowLabels, columnLabels, level };
    };
    let frame = plan(rowRoom > 0, columnText > 0);
    const rowsFit = frame.cellHeight >= SMALLEST_LABEL_ROW - 1;
    const columnsFit = frame.cellWidth >= SMALLEST_LABEL_COLUMN - 1;
    if ((frame.rowLabels && !rowsFit) || (frame.columnLabels && !columnsFit)) {
      frame = plan(frame.rowLabels && rowsFit, frame.columnLabels && columnsFit);
    }
    this.frame = { ...frame, top, left, rows, columns };
    this.frame.right = frame.x + columns * frame.cellWidth;
    this.frame.bottom = frame.y + rows * frame.cellHeight;
    const plot = [frame.x, frame.y, this.frame.right - frame.x, this.frame.bottom - frame.y];
    this.marks.dataset.plot = plot.map(Math.round).join(" "); // where the cells are, for whoever drives this page
  }

  font(weight = 400) {
    return `${weight} 12px ${this.theme.font}`;
  }

  /** What an axis says at a cell: its token, or the range of positions that a pooled cell stands for. */
  axisLabel(tokens, index) {
    if (this.factor === 1) return tokens[index] ? labelText(tokens[index]) : String(index);
    const start = index * this.factor;
    const end = Math.min(start + this.factor, tokens === this.rowTokens ? this.queries : this.keys) - 1;
    return start === end ? String(start) : `${start}–${end}`;
  }

  // Drawing -----------------------------------------------------------------------------------------------------

  drawCells(context) {
    const { frame, theme } = this;
    context.clearRect(0, 0, this.cells.width, this.cells.height);
    context.imageSmoothingEnabled = false;
    const ratio = window.devicePixelRatio || 1;
    const across = Math.ceil(1 / (frame.cellWidth * ratio) - 1e-6);
    const down = Math.ceil(1 / (frame.cellHeight * ratio) - 1e-6);
    this.perPixel = [Math.max(down, 1), Math.max(across, 1)];
    const target = [frame.x, frame.y, frame.right - frame.x, frame.bottom - frame.y];
    if (this.perPixel[0] === 1 && this.perPixel[1] === 1) {
      const { colours, left, top } = this.grid;
      context.drawImage(colours, frame.left - left, frame.top - top, frame.columns, frame.rows, ...target);
    } else {
      context.drawImage(this.pooledPicture(), ...target);
    }
    this.drawNumbers(context);
    context.strokeStyle = theme.border;
    context.lineWidth = 1;
    context.strokeRect(target[0] - 0.5, target[1] - 0.5, target[2] + 1, target[3] + 1);
    context.fillStyle = theme.text;
    context.font = this.font();
    context.textBaseline = "middle";
    this.drawRowAxis(context);
    this.drawColumnAxis(context);
    context.globalAlpha = 0.66;
    context.textAlign = "left";
    context.font = `400 11px ${theme.font}`;
    context.fillText(`${this.header.axes[1]} →`, frame.x, AXIS / 2 - 2);
    context.textAlign = "right";
    context.fillText(`${this.header.axes[0]} ↓`, frame.x - 7, frame.y - 10);
    context.globalAlpha = 1;
  }

  /** The visible cells where a screen pixel holds several of them: each pixel is the largest. */
  pooledPicture() {
    const { top, left, rows, columns } = this.frame;
    const [down, across] = this.perPixel;
    const height = Math.ceil(rows / down);
    const width = Math.ceil(columns / across);
    const levels = new Int16Array(height * width).fill(-1);
    for (let row = 0; row < rows; row += 1) {
      const target = Math.floor(row / down) * width;
      const source = placeIn(this.grid, top + row, left);
      for (let column = 0; column < columns; column += 1) {
        const place = target + Math.floor(column / across);
        const level = this.grid.levels[source + column];
        if (level > levels[place]) levels[place] = level;
      }
    }
    const canvas = document.createElement("canvas");
    paintLevels(canvas, levels, width, height, this.lut);
    return canvas;
  }

  /** Values written into the cells when these are large enough. */
  drawNumbers(context) {
    const { frame } = this;
    if (frame.cellWidth < 40 || frame.cellHeight < 20) return;
    context.font = `400 11px ${this.theme.font}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let row = 0; row < frame.rows; row += 1) {
      for (let column = 0; column < frame.columns; column += 1) {
        const value = this.value(frame.top + row, frame.left + column);
        const level = this.grid.levels[placeIn(this.grid, frame.top + row, frame.left + column)];
        context.fillStyle = level < 0 ? this.theme.text : inkOn(this.lut, level);
        const [x, y] = [frame.x + (column + 0.5) * frame.cellWidth, frame.y + (row + 0.5) * frame.cellHeight];
        context.fillText(cellText(value), x, y);
      }
    }
  }

  drawRowAxis(context) {
    const { frame } = this;
    context.textAlign = "right";
    const middle = (row) => frame.y + (row + 0.5) * frame.cellHeight;
    if (!frame.rowLabels) {
      for (const { index, offset } of tickPlaces(frame.top, frame.rows, frame.cellHeight, 26, this.factor)) {
        context.fillRect(frame.x - 5, frame.y + offset, 4, 1);
        context.fillText(countText(index), frame.x - 8, frame.y + offset);
      }
      return;
    }
    for (let row = 0; row < frame.rows; row += 1) this.drawRowLabel(context, row, middle(row));
  }

  drawRowLabel(context, row, y) {
    const { frame } = this;
    const index = frame.top + row;
    const token = this.factor === 1 ? this.rowTokens[index] : undefined;
    const text = this.axisLabel(this.rowTokens, index);
    drawChip(context, this.theme, token, text, frame.x - 8, y, "right", frame.cellHeight);
    if (token?.continues && row > 0) {
      context.fillRect(frame.x - 4, y - frame.cellHeight, 1.5, frame.cellHeight); // one word
    }
  }

  drawColumnAxis(context) {
    const { frame } = this;
    const middle = (column) => frame.x + (column + 0.5) * frame.cellWidth;
    if (!frame.columnLabels) {
      context.textAlign = "center";
      for (const { index, offset } of tickPlaces(frame.left, frame.columns, frame.cellWidth, 44, this.factor)) {
        context.fillRect(frame.x + offset, frame.y - 5, 1, 4);
        context.fillText(countText(index), frame.x + offset, frame.y - 13);
      }
      return;
    }
    for (let column = 0; column < frame.columns; column += 1) {
      const token = this.factor === 1 ? this.columnTokens[frame.left + column] : undefined;
      this.drawColumnLabel(context, column, token);
      if (token?.continues && column > 0) {
        context.fillRect(middle(column - 1), frame.y - 4, frame.cellWidth, 1.5); // one word
      }
    }
  }

  drawColumnLabel(context, column, token) {
    const { frame } = this;
    const text = this.axisLabel(this.columnTokens, frame.left + column);
    const x = frame.x + (column + 0.5) * frame.cellWidth;
    if (frame.level) {
      drawChip(context, this.theme, token, text, x, frame.y - 14, "center", 18);
      return;
    }
    context.save();
    context.translate(x, frame.y - 8);
    context.rotate(-TILT);
    drawChip(context, this.theme, token, text, 0, 0, "left", Math.max(frame.cellWidth, 14));
    context.restore();
  }

  // The pointer's marks -----------------------------------------------------------------------------------------

  drawMarks() {
    const { frame, theme } = this;
    const context = this.marks.getContext("2d");
    context.clearRect(0, 0, this.marks.width, this.marks.height);
    const cell = this.hovered;
    if (cell && this.isVisible(cell)) {
      const [x, y, width, height] = this.cellBox(cell);
      this.drawBand(context, frame.x, y, frame.right - frame.x, height, frame.cellHeight < 6);
      this.drawBand(context, x, frame.y, width, frame.bottom - frame.y, frame.cellWidth < 6);
      this.highlightLabels(context, cell);
      outline(context, x, y, width, height);
    }
    if (this.selected) {
      const chosen = this.selected.map((index) => Math.floor(index / this.factor));
      if (this.isVisible(chosen)) outline(context, ...this.cellBox(chosen), theme.primary);
    }
    if (this.drag?.box) {
      const [x, y, width, height] = this.drag.box;
      context.fillStyle = theme.primary;
      context.globalAlpha = 0.18;
      context.fillRect(x, y, width, height);
      context.globalAlpha = 1;
      outline(context, x, y, width, height);
    }
  }

  /** Marks a whole row or column: a frame round it, or a line through it where the frame would hide its neighbours. */
  drawBand(context, x, y, width, height, thin) {
    const across = width > height;
    const box = thin
      ? [across ? x : x + width / 2, across ? y + height / 2 : y, across ? width : 0, across ? 0 : height]
      : [x - 0.5, y - 0.5, width + 1, height + 1];
    for (const [colour, line, alpha] of [["#000000", 3, 0.35], ["#ffffff", 1, 0.75]]) {
      context.strokeStyle = colour;
      context.globalAlpha = alpha;
      context.lineWidth = line;
      context.strokeRect(...box);
    }
    context.globalAlpha = 1;
  }

  isVisible([row, column]) {
    const { top, left, rows, columns } = this.frame;
    return row >= top && row < top + rows && column >= left && column < left + columns;
  }

  cellBox([row, column]) {
    const { frame } = this;
    const x = Math.round(frame.x + (column - frame.left) * frame.cellWidth);
    const y = Math.round(frame.y + (row - frame.top) * frame.cellHeight);
    return [x, y, Math.max(Math.round(frame.cellWidth), 2), Math.max(Math.round(frame.cellHeight), 2)];
  }

  highlightLabels(context, [row, column]) {
    const { frame, theme } = this;
    context.font = this.font(600);
    context.textBaseline = "middle";
    const y = frame.y + (row - frame.top + 0.5) * frame.cellHeight;
    const x = frame.x + (column - frame.left + 0.5) * frame.cellWidth;
    const rowText = frame.rowLabels ? this.axisLabel(this.rowTokens, row) : String(row * this.factor);
    this.drawBadge(context, rowText, frame.x - 8, y, "right");
    const columnText = frame.columnLabels ? this.axisLabel(this.columnTokens, column) : String(column * this.factor);
    if (!frame.columnLabels || frame.level) {
      this.drawBadge(context, columnText, x, frame.y - (frame.level ? 14 : 13), "center");
      return;
    }
    context.save();
    context.translate(x, frame.y - 8);
    context.rotate(-TILT);
    this.drawBadge(context, columnText, 0, 0, "left");
    context.restore();
    context.fillStyle = theme.text;
  }

  drawBadge(context, text, x, y, align) {
    const width = context.measureText(text).width;
    const left = align === "right" ? x - width : align === "center" ? x - width / 2 : x;
    context.fillStyle = this.theme.text;
    context.beginPath();
    context.roundRect(left - 4, y - 8, width + 8, 16, 3);
    context.fill();
    context.fillStyle = this.theme.background;
    context.textAlign = "left";
    context.fillText(text, left, y + 0.5);
  }

  // Words -------------------------------------------------------------------------------------------------------

  /** "3 “the”" or, for a pooled cell, "12–15". */
  place(tokens, index) {
    if (this.factor > 1) return this.axisLabel(tokens, index);
    const token = tokens[index];
    return token ? `${index} “${token.text}”` : String(index);
  }

  valueText(value) {
    return this.grid.exact ? exactText(value) : `≈ ${shortText(value)}`;
  }

  lines([row, column]) {
    const [query, key] = this.header.axes;
    const value = this.value(row, column);
    const lines = [this.valueText(value)];
    if (this.factor > 1) lines.push(`largest of ${this.factor} × ${this.factor} weights`);
    lines.push(`${query} ${this.place(this.rowTokens, row)}`, `${key} ${this.place(this.columnTokens, column)}`);
    if (this.factor === 1) {
      const [from, to] = [this.rowTokens[row], this.columnTokens[column]];
      lines.push(...new Set([from, to].filter(Boolean).flatMap(tokenRemarks)));
    }
    return lines;
  }

  describe() {
    const { frame, header } = this;
    const [query, key] = header.axes;
    const size = `${countText(this.queries)} × ${countText(this.keys)}`;
    if (this.zoom) {
      const [top, bottom, left, right] = this.zoom;
      this.range.textContent = `${query} ${top}–${bottom - 1}, ${key} ${left}–${right - 1} of ${size}`;
    } else {
      this.range.textContent = size;
    }
    const notes = [];
    const [down, across] = this.perPixel.map((cells) => cells * this.factor);
    if (down > 1 || across > 1) {
      const each = this.factor > 1 && !this.connected ? `blocks of ${this.factor} × ${this.factor}` : "each of them";
      const more = Math.max(...this.perPixel) > 1 || (this.factor > 1 && this.connected);
      const finer = more ? `; zoom in for ${each}` : "";
      notes.push(`Each pixel is the largest of ${down} × ${across} weights${finer}.`);
    }
    if (!this.grid.exact) {
      notes.push(`Values are quantised to 256 levels (≈)${this.connected ? "; zoom in for exact ones" : ""}.`);
    }
    this.note.textContent = notes.join(" ");
    this.reset.disabled = !this.zoom;
    this.zoomOut.disabled = !this.zoom;
    this.zoomIn.disabled = frame.rows <= 1 && frame.columns <= 1;
    this.marks.setAttribute(
      "aria-label",
      `Heatmap of ${header.title || "weights"}, ${size}, ${query} down, ${key} across. ` +
        "Arrow keys move the cell, plus and minus zoom, Escape shows everything.",
    );
  }

  showDetails() {
    if (this.side.hidden) return;
    const chosen = this.selected?.map((index) => Math.floor(index / this.factor));
    const cell = this.hovered ?? chosen;
    if (!cell) {
      this.side.replaceChildren(
        make("h3", "", { text: "Details" }),
        make("div", "view-side-hint", {
          text: "Point at a cell for its value; click to keep it. Drag a box to zoom in, double-click to see everything.",
        }),
      );
      return;
    }
    const [row, column] = cell;
    const [query, key] = this.header.axes;
    const { grid } = this;
    const start = placeIn(grid, row, grid.left);
    const values = grid.weights.subarray(start, start + grid.width);
    const value = values[column - grid.left];
    const where = grid === this.part ? "in view" : "in its row";
    const rank = 1 + values.reduce((count, other) => count + (other > value ? 1 : 0), 0);
    const line = (text) => make("div", "view-side-line", { text, title: text });
    const list = make("ol", "view-bars");
    const [low, high] = this.header.limits;
    const entries = strongest(values, LISTED).map((index) => ({
      name: this.place(this.columnTokens, grid.left + index),
      title: this.place(this.columnTokens, grid.left + index),
      value: values[index],
    }));
    fillBars(list, entries, { low, high });
    this.side.replaceChildren(
      make("h3", "", { text: this.hovered ? "Cell" : "Selected cell" }),
      make("div", "view-side-value", { text: this.valueText(value) }),
      line(`${query} ${this.place(this.rowTokens, row)}`),
      line(`${key} ${this.place(this.columnTokens, column)}`),
      make("div", "view-note", { text: `rank ${rank} of ${values.length} ${where}` }),
      make("h3", "", { text: `Strongest ${key}s of this ${query}${grid === this.part ? " in view" : ""}` }),
      list,
    );
  }

  // Acting ------------------------------------------------------------------------------------------------------

  send() {
    for (const name of ["zoom", "selected", "scale"]) this.shared[name].tell(this[name]);
    const { zoom, selected, scale } = this;
    this.sending.request(() => this.setState("view", { zoom, selected, scale, input: this.header.input }));
  }

  chooseScale(scale) {
    if (scale === this.scale) return;
    this.scale = scale;
    this.recolour();
    this.layOut();
    this.send();
  }

  zoomTo(zoom) {
    this.zoom = this.fitted(zoom);
    this.hovered = null;
    this.tooltip.hide();
    this.layOut();
    this.speak(this.zoom ? `Showing ${this.range.textContent}` : "Showing the whole matrix");
    this.send();
  }

  /** Zooms by a factor (below 1 = in), keeping a cell of the window at its place. */
  zoomBy(factor, cell = null) {
    const [top, bottom, left, right] = this.zoom ?? [0, this.queries, 0, this.keys];
    const chosen = this.selected && this.isVisible(this.selected.map((index) => Math.floor(index / this.factor)));
    const centre = cell ?? (chosen ? this.selected : [(top + bottom) / 2, (left + right) / 2]);
    const range = (start, stop, size, middle) => {
      const span = stop - start;
      const wanted = factor < 1 ? Math.max(Math.floor(span * factor), 1) : Math.min(Math.ceil(span * factor), size);
      const share = clamp((middle + 0.5 - start) / span, 0, 1);
      const from = clamp(Math.round(middle + 0.5 - share * wanted), 0, size - wanted);
      return [from, from + wanted];
    };
    const rows = range(top, bottom, this.queries, centre[0]);
    this.zoomTo([...rows, ...range(left, right, this.keys, centre[1])]);
  }

  select(cell) {
    this.selected = cell;
    if (cell) this.bringIntoView(cell);
    this.layOut();
    this.send();
  }

  bringIntoView([row, column]) {
    if (!this.zoom) return;
    const [top, bottom, left, right] = this.zoom;
    const shift = (start, stop, index) => (index < start ? index - start : index >= stop ? index - stop + 1 : 0);
    const down = shift(top, bottom, row);
    const across = shift(left, right, column);
    this.zoom = this.fitted([top + down, bottom + down, left + across, right + across]);
  }

  speak(text) {
    this.speaking.request(() => {
      this.live.textContent = text;
    });
  }

  cellAt(event) {
    const { frame } = this;
    const box = this.marks.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (x < frame.x || x >= frame.right || y < frame.y || y >= frame.bottom) return null;
    const row = frame.top + Math.min(Math.floor((y - frame.y) / frame.cellHeight), frame.rows - 1);
    return [row, frame.left + Math.min(Math.floor((x - frame.x) / frame.cellWidth), frame.columns - 1)];
  }

  listen() {
    const canvas = this.marks;
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    canvas.addEventListener("pointerleave", () => this.hover(null));
    canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    canvas.addEventListener("pointerup", (event) => this.onUp(event));
    canvas.addEventListener("pointercancel", () => this.endDrag());
    canvas.addEventListener("dblclick", () => this.zoomTo(null));
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  hover(cell, event) {
    this.hovered = cell;
    this.pointer = event;
    if (cell) this.tooltip.show(this.lines(cell), event.clientX, event.clientY);
    else this.tooltip.hide();
    this.drawMarks();
    this.showDetails();
  }

  onMove(event) {
    if (!this.header) return;
    if (this.drag) {
      this.dragTo(event);
      return;
    }
    this.hover(this.cellAt(event), event);
  }

  onDown(event) {
    const cell = event.button === 0 && this.header ? this.cellAt(event) : null;
    if (!cell) return;
    this.drag = { cell, x: event.clientX, y: event.clientY, pan: event.shiftKey ? this.zoom : null, box: null };
    this.marks.setPointerCapture(event.pointerId);
  }

  dragTo(event) {
    const { drag, frame } = this;
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (Math.hypot(dx, dy) < 5 && !drag.box && !drag.moved) return;
    this.tooltip.hide();
    if (drag.pan) {
      drag.moved = true;
      const [top, bottom, left, right] = drag.pan;
      const down = clamp(-Math.round((dy / frame.cellHeight) * this.factor), -top, this.queries - bottom);
      const across = clamp(-Math.round((dx / frame.cellWidth) * this.factor), -left, this.keys - right);
      this.zoom = [top + down, bottom + down, left + across, right + across];
      this.layOut();
      return;
    }
    const area = this.marks.getBoundingClientRect();
    const x = [drag.x - area.left, event.clientX - area.left].map((value) => clamp(value, frame.x, frame.right));
    const y = [drag.y - area.top, event.clientY - area.top].map((value) => clamp(value, frame.y, frame.bottom));
    drag.box = [Math.min(...x), Math.min(...y), Math.abs(x[1] - x[0]), Math.abs(y[1] - y[0])];
    this.hovered = null;
    this.drawMarks();
  }

  onUp(event) {
    const { drag, frame } = this;
    if (!drag) return;
    this.endDrag();
    if (drag.box) {
      const [x, y, width, height] = drag.box;
      const first = (offset, size, start) => (start + Math.floor(offset / size)) * this.factor;
      const last = (offset, size, start) => (start + Math.ceil(offset / size)) * this.factor;
      this.zoomTo([
        first(y - frame.y, frame.cellHeight, frame.top),
        last(y - frame.y + height, frame.cellHeight, frame.top),
        first(x - frame.x, frame.cellWidth, frame.left),
        last(x - frame.x + width, frame.cellWidth, frame.left),
      ]);
    } else if (drag.moved) {
      this.send();
    } else if (event.detail < 2) {
      const cell = drag.cell.map((index) => index * this.factor);
      const again = this.selected && this.selected[0] === cell[0] && this.selected[1] === cell[1];
      this.select(again ? null : cell);
    }
  }

  endDrag() {
    this.drag = null;
    if (this.header) this.drawMarks();
  }

  /** The wheel zooms over a focused matrix or with Ctrl; else it scrolls the page as everywhere. */
  onWheel(event) {
    const focused = this.marks.getRootNode().activeElement === this.marks;
    if (!this.header || !(focused || event.ctrlKey || event.metaKey)) return;
    if (event.deltaY > 0 && !this.zoom) return;
    event.preventDefault();
    const cell = this.cellAt(event);
    this.zoomBy(event.deltaY > 0 ? 1.25 : 0.8, cell?.map((index) => index * this.factor) ?? null);
  }

  onKey(event) {
    if (!this.header || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = (event.shiftKey ? 10 : 1) * this.factor;
    const moves = {
      ArrowUp: [-step, 0],
      ArrowDown: [step, 0],
      ArrowLeft: [0, -step],
      ArrowRight: [0, step],
      Home: [0, -Infinity],
      End: [0, Infinity],
      PageUp: [-Infinity, 0],
      PageDown: [Infinity, 0],
    };
    const acts = {
      "+": () => this.zoomBy(1 / 1.5),
      "=": () => this.zoomBy(1 / 1.5),
      "-": () => this.zoom && this.zoomBy(1.5),
      0: () => this.zoomTo(null),
      Escape: () => (this.zoom ? this.zoomTo(null) : this.select(null)),
    };
    if (moves[event.key]) this.moveBy(moves[event.key]);
    else if (acts[event.key]) acts[event.key]();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  moveBy([down, across]) {
    const { factor } = this;
    const last = (size) => (Math.ceil(size / factor) - 1) * factor;
    const [top, , left] = this.zoom ?? [0, 0, 0];
    const start = this.selected ?? [top, left].map((index) => Math.floor(index / factor) * factor);
    const cell = this.selected
      ? [clamp(start[0] + down, 0, last(this.queries)), clamp(start[1] + across, 0, last(this.keys))]
      : start;
    this.hovered = null;
    this.tooltip.hide();
    this.select(cell);
    this.speak(this.lines(cell.map((index) => Math.floor(index / factor))).join(", "));
  }
}

/** Width and height of a cell: at most 1.7 times as wide as high or the other way round, whole pixels where large. */
function cellSize(width, height, rows, columns) {
  const free = [Math.max(width, 40) / columns, Math.max(height, 40) / rows];
  let across = Math.min(free[0], Math.max(free[1] * 1.7, 26), 92);
  const down = Math.min(free[1], Math.max(across * 1.2, 26), 56);
  across = Math.min(across, Math.max(down * 1.7, 26));
  return [across, down].map((size) => (size >= 4 ? Math.floor(size) : size));
}

/**
 * Round positions of the whole matrix, at least `room` px apart, and where each lies beside the cells: in the middle of
 * its own weight, which is a part of a cell that stands for several.
 */
function tickPlaces(start, count, size, room, factor) {
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
  const step = steps.find((value) => value >= factor && (value / factor) * size >= room) ?? 100000;
  const places = [];
  for (let index = Math.ceil((start * factor) / step) * step; index < (start + count) * factor; index += step) {
    places.push({ index, offset: ((index + 0.5) / factor - start) * size });
  }
  return places;
}

/** Cells of a matrix, or of a part of it: each stands for `factor` × `factor` weights, `start` is the first. */
function makeGrid(weights, [height, width], factor, [top, left], exact) {
  return { weights, height, width, factor, top, left, exact, colours: document.createElement("canvas") };
}

/** Where a grid keeps the cell at a row and a column of the whole matrix (in cells of its size). */
const placeIn = (grid, row, column) => (row - grid.top) * grid.width + column - grid.left;

/** Weights of levels, the inverse of analysis.figure_data.weight_levels. */
function weightsOfLevels(levels) {
  const weights = new Float32Array(levels.length);
  for (let index = 0; index < levels.length; index += 1) weights[index] = (levels[index] / 255) ** 2;
  return weights;
}

/** A value at the width of a cell: ".42" for 0.42. */
function cellText(value) {
  if (!Number.isFinite(value)) return exactText(value);
  if (value === 0) return "0";
  if (Math.abs(value) < 0.005) return value < 0 ? "−.00" : ".00";
  if (Math.abs(value) >= 100) return shortText(value);
  return value.toFixed(2).replace(/^(-?)0\./, "$1.").replace("-", "−");
}

/** A box that shows on every colour: a light line between two dark ones, or a coloured one between light ones. */
function outline(context, x, y, width, height, colour = "#ffffff") {
  context.lineWidth = 4;
  context.strokeStyle = colour === "#ffffff" ? "#000000" : "#ffffff";
  context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
  context.lineWidth = 2;
  context.strokeStyle = colour;
  context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
}

/** A token's label; special tokens lie on a grey chip, unknown ones have a dotted line below. */
function drawChip(context, theme, token, text, x, y, align, room) {
  const width = context.measureText(text).width;
  const left = align === "right" ? x - width : align === "center" ? x - width / 2 : x;
  if (token?.special) {
    const height = Math.min(16, room - 1);
    context.save();
    context.globalAlpha = 0.14;
    context.beginPath();
    context.roundRect(left - 3, y - height / 2, width + 6, height, 3);
    context.fill();
    context.restore();
  }
  context.textAlign = "left";
  context.fillText(text, left, y + 0.5);
  if (token?.unknown) {
    context.save();
    context.strokeStyle = theme.text;
    context.lineWidth = 1;
    context.setLineDash([1.5, 2]);
    context.beginPath();
    context.moveTo(left, y + 7);
    context.lineTo(left + width, y + 7);
    context.stroke();
    context.restore();
  }
}

export default function (component) {
  return mountView(views, MatrixView, component);
}
