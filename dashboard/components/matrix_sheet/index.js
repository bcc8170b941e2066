// Small matrices as heat maps side by side. A cell that is pointed at lights its row and its column in every matrix
// whose rows or columns count the same things; a click or Enter chooses it. Each matrix is drawn on two canvases, cells
// below and the pointer's marks above, so that a hover redraws a few lines and never the cells.

const LEAST_ROW = 12; // px a row label needs
const LEAST_COLUMN = 13; // px a leaning column label needs
const LABEL_ROOM = 116; // px that the longest label may take; a longer one is cut
const NUMBER_ROW = 28; // px of a cell with a number
const PLAIN_CELLS = [24, 20, 16]; // px of a cell of a small matrix without numbers, smaller where many would be tall
const MAP_SIDE = 248; // px along the longer side of a larger matrix, at least a pixel a cell
const LEAST_ROOM = 190; // px a matrix gets before fewer stand in a row than the page says
const TILED = 9; // px from which cells stand apart
const TALLEST = 900; // px; a sheet that is taller with numbers is drawn without them
const LISTED = 5; // matrices of the same rows and columns whose values the tooltip tells too
const views = new WeakMap();

class MatrixSheet {
  constructor(parent) {
    this.root = make("section", "view-root matrix-sheet", { parent, "aria-label": "Matrices" });
    this.title = make("div", "view-title sheet-title", { parent: this.root });
    this.stage = make("div", "sheet-stage", { parent: this.root });
    this.foot = make("div", "sheet-foot", { parent: this.root });
    this.bar = makeRamp(this.foot);
    this.key = makeMaskKey(this.foot);
    this.notes = make("div", "view-note sheet-notes", { parent: this.root });
    this.live = make("div", "view-live", { parent: this.root, role: "status", "aria-live": "polite" });
    this.tooltip = makeTooltip(this.root);
    this.speaking = makeDelayed(120);
    this.pen = document.createElement("canvas").getContext("2d"); // measures text
    this.pointed = null; // {index, row, column}, by the pointer or the keyboard
    this.observer = new ResizeObserver(() => this.layOut());
    this.observer.observe(this.root);
  }

  update({ header, arrays }) {
    const other = this.header?.input !== header.input;
    this.header = header;
    this.arrays = arrays;
    const { cell } = header.state;
    if (other) {
      this.shared = makeShared(cell);
      this.cell = cell;
      this.point(null);
      this.makeFigures();
    } else if (this.shared.isNews(cell)) {
      this.cell = cell;
    }
    this.readValues();
    this.title.textContent = header.title;
    this.title.hidden = !header.title;
    this.notes.replaceChildren(...header.notes.map((text) => make("p", "", { text })));
    this.notes.hidden = !header.notes.length;
    this.figures.forEach((figure, index) => this.fillFigure(figure, index));
    this.layOut();
    if (this.pointed) this.point(this.pointed, this.pointer); // the tooltip tells the new value
  }

  end() {
    this.observer.disconnect();
    this.speaking.cancel();
    this.root.remove();
  }

  makeFigures() {
    this.frames = null; // those of other matrices
    this.figures = this.header.matrices.map((_, index) => {
      const element = make("figure", "sheet-matrix");
      const caption = make("figcaption", "sheet-caption", { parent: element });
      const name = make("span", "sheet-name", { parent: caption });
      const shape = make("span", "sheet-shape", { parent: caption });
      const stage = make("div", "sheet-map", { parent: element });
      const cells = make("canvas", "sheet-cells", { parent: stage, "aria-hidden": "true" });
      const marks = make("canvas", "sheet-marks", { parent: stage, tabindex: "0", role: "application" });
      const bar = makeRamp(element);
      const note = make("div", "view-note sheet-note", { parent: element });
      this.listen(marks, index);
      return { element, caption, name, shape, stage, cells, marks, bar, note };
    });
    this.stage.replaceChildren(...this.figures.map((figure) => figure.element));
  }

  readValues() {
    let start = 0;
    this.matrices = this.header.matrices.map((matrix) => {
      const [rows, columns] = matrix.shape;
      const values = this.arrays.values.subarray(start, start + rows * columns);
      start += rows * columns;
      const known = values.map((value) => (Number.isFinite(value) ? value : NaN));
      const low = matrix.scale === "signed" ? -matrix.limit : 0;
      const levels = levelsOf(known, low, matrix.limit, "linear");
      return { ...matrix, rows, columns, values, levels, low, sides: matrix.axes.map((place) => this.header.axes[place]) };
    });
  }

  fillFigure(figure, index) {
    const matrix = this.matrices[index];
    figure.name.replaceChildren(...nameParts(matrix.parts));
    figure.name.title = matrix.name;
    figure.shape.textContent = `(${matrix.rows} × ${matrix.columns})`;
    figure.note.textContent = matrix.note;
    figure.note.hidden = !matrix.note;
    figure.element.classList.toggle("is-selected", index === this.header.state.selected);
    const named = matrix.sides.map((side, at) => side.name || ["rows", "columns"][at]);
    figure.marks.setAttribute(
      "aria-label",
      `${matrix.name}, ${matrix.rows} × ${matrix.columns}, ${named[0]} down, ${named[1]} across. ` +
        "Arrow keys move the cell, Enter chooses it, Escape clears the choice.",
    );
  }

  // Layout ------------------------------------------------------------------------------------------------------

  layOut() {
    if (!this.header || !this.root.isConnected || this.root.clientWidth === 0) return;
    this.theme = readTheme(this.root);
    this.ground = groundOf(this.root);
    this.luts = { weights: this.arrays.weights, signed: mixedTable(this.arrays.signed, this.ground) };
    this.luts.mask = maskTable(this.theme, this.ground);
    const plan = this.choosePlan();
    this.frames = plan.frames;
    this.place(plan);
    this.drawScales();
    this.figures.forEach((_, index) => {
      this.drawCells(index);
      this.drawMarks(index);
    });
  }

  /** Numbers in the cells unless the sheet would be tall with them; then the largest cells with which it is not. */
  choosePlan() {
    const number = this.matrices.some((matrix) => matrix.numbers) ? this.numberWidth() : 0;
    const sizes = PLAIN_CELLS.map((size) => [0, [size, size]]);
    if (number) sizes.unshift([number, [Math.max(number + 12, 38), NUMBER_ROW]]);
    let best = null;
    for (const [width, small] of sizes) {
      const plan = this.plan(width, small);
      if (!best || plan.height < best.height) best = plan;
      if (best.height <= TALLEST) break;
    }
    return best;
  }

  /** Where everything is, in px: a frame for each matrix, and the height of all. */
  plan(number, small) {
    let { across } = this.header;
    const width = this.stage.clientWidth;
    while (across > 1 && (width - GAP[0] * (across - 1)) / across < LEAST_ROOM) across = Math.ceil(across / 2);
    const budget = across ? (width - GAP[0] * (across - 1)) / across : width;
    const frames = this.matrices.map((matrix) => this.frame(matrix, number, small, Math.max(budget, 60)));
    const rows = [];
    let row = null;
    frames.forEach((frame, index) => {
      const fits = row && row.width + GAP[0] + frame.width <= width + 0.5 && !(across && row.members.length >= across);
      if (!fits) {
        row = { members: [], width: -GAP[0] };
        rows.push(row);
      }
      frame.left = row.width + GAP[0];
      row.width += GAP[0] + frame.width;
      row.members.push(index);
    });
    if (across) alignColumns(rows, frames, width);
    let top = 0;
    for (const { members } of rows) {
      const above = Math.max(...members.map((index) => frames[index].y));
      let height = 0;
      for (const index of members) {
        const frame = frames[index];
        frame.top = top + above - frame.y;
        height = Math.max(height, above - frame.y + this.heightOf(frame, index));
      }
      top += height + GAP[1];
    }
    return { frames, height: top - GAP[1] };
  }

  /** Height of a figure: caption, map, and what stands below. */
  heightOf(frame, index) {
    const { element } = this.figures[index];
    element.style.width = `${frame.width}px`;
    const { note, bar } = this.figures[index];
    const below = this.hasBar(index) ? 26 : 0;
    bar.element.hidden = !below;
    return 24 + frame.y + frame.rows * frame.cell[1] + 2 + below + (note.hidden ? 0 : note.offsetHeight + 4);
  }

  hasBar(index) {
    return !this.header.shared && this.matrices[index].scale !== "mask";
  }

  numberWidth() {
    this.pen.font = `400 12px ${this.theme.font}`;
    let widest = 0;
    for (const { numbers, values, decimals } of this.matrices) {
      if (!numbers) continue;
      for (const value of values) {
        if (Number.isFinite(value)) widest = Math.max(widest, this.pen.measureText(cellText(value, decimals)).width);
      }
    }
    return Math.ceil(widest);
  }

  /** Size of the cells of a matrix and room for its labels, within a width; `number` is the room of a number, 0 for none. */
  frame(matrix, number, small, budget) {
    const { rows, columns, sides } = matrix;
    const shorts = sides.map((side) => side.shorts ?? side.labels);
    const widths = shorts.map((texts) => texts.map((text) => Math.min(this.measure(text, 12), LABEL_ROOM)));
    const most = widths.map((each) => Math.ceil(Math.max(...each, 0)));
    const side = clamp(Math.floor(MAP_SIDE / Math.max(rows, columns)), 1, PLAIN_CELLS[0]);
    const cell = matrix.small ? small : [side, side];
    const ticked = sides.map(({ name, labels }, at) => labels.length > 0 || (name && matrix.shape[at] > 16));
    const named = sides.map(({ name }, at) => (name ? Math.ceil(this.measure(`${name} ${"↓→"[at]}`, 11)) + 8 : 0));
    const fitted = (rowLabels) => {
      const x = Math.max(rowLabels ? most[0] + 13 : ticked[0] ? 30 : 0, ...named);
      let across = Math.min(cell[0], Math.max(Math.floor((budget - x) / columns), 1));
      for (; across > 1; across -= 1) {
        const leans = most[1] > across - 6 && across >= LEAST_COLUMN;
        if (x + columns * across + (leans ? overhang(widths[1], across) : 0) <= budget) break;
      }
      const numbered = number > 0 && across >= number + 4;
      return { x, across, down: numbered || across === cell[0] ? cell[1] : Math.min(cell[1], across) };
    };
    let rowLabels = shorts[0].length > 0 && cell[1] >= LEAST_ROW;
    let { x, across, down } = fitted(rowLabels);
    if (rowLabels && down < LEAST_ROW) {
      rowLabels = false;
      ({ x, across, down } = fitted(false));
    }
    const columnLabels = shorts[1].length > 0 && across >= LEAST_COLUMN;
    const level = columnLabels && most[1] <= across - 6;
    const leaning = columnLabels && !level;
    const above = level ? 18 : leaning ? most[1] * Math.sin(TILT) + 12 : ticked[1] && !columnLabels ? 17 : 2;
    const names = named.filter(Boolean).length;
    const lift = ticked[0] && !rowLabels ? 8 : 0; // the name of the rows stays clear of their first tick
    const y = Math.ceil(Math.max(above, names ? 14 * names + 2 + lift : 0));
    const caption = Math.ceil(this.measure(`${matrix.name}  (${rows} × ${columns})`, 13, 600)) + 14;
    const mapped = x + across * columns + (leaning ? overhang(widths[1], across) : 1);
    const width = Math.ceil(Math.max(mapped, Math.min(caption, 280), matrix.note ? Math.min(150, budget) : 0));
    const numbers = matrix.numbers && number > 0 && across >= number + 4 && down >= 15;
    return { x, y, lift, cell: [across, down], rows, columns, rowLabels, columnLabels, level, numbers, width, shorts };
  }

  measure(text, size, weight = 400) {
    this.pen.font = `${weight} ${size}px ${this.theme.font}`;
    return this.pen.measureText(text).width;
  }

  place({ frames, height }) {
    this.stage.style.height = `${Math.ceil(height)}px`;
    frames.forEach((frame, index) => {
      const { element, cells, marks, stage } = this.figures[index];
      element.style.left = `${Math.round(frame.left)}px`;
      element.style.top = `${Math.round(frame.top)}px`;
      frame.right = frame.x + frame.columns * frame.cell[0];
      frame.bottom = frame.y + frame.rows * frame.cell[1];
      const size = [frame.width, frame.bottom + 2];
      stage.style.height = `${size[1]}px`;
      sizeCanvas(cells, ...size);
      sizeCanvas(marks, ...size);
      // Where the cells are, for whoever drives this page.
      marks.dataset.plot = [frame.x, frame.y, frame.right - frame.x, frame.bottom - frame.y].map(Math.round).join(" ");
      marks.dataset.numbers = String(frame.numbers);
    });
  }

  drawScales() {
    const { matrices, header, luts } = this;
    const first = matrices.find((matrix) => matrix.scale !== "mask");
    this.bar.element.hidden = !header.shared;
    if (header.shared) this.bar.update(first, luts[first.scale], matrices.some((matrix) => matrix.over), 168);
    matrices.forEach((matrix, index) => {
      if (!this.hasBar(index)) return;
      const { right, x } = this.frames[index];
      const { bar } = this.figures[index];
      bar.element.style.marginLeft = `${x}px`;
      bar.update(matrix, luts[matrix.scale], matrix.over, clamp(right - x, 64, 150));
    });
    const masks = this.frames.filter((_, index) => matrices[index].scale === "mask");
    this.key.hidden = !masks.length;
    this.key.classList.toggle("is-pale", masks.every(({ cell }) => Math.min(...cell) < TILED));
    this.foot.hidden = !masks.length && !header.shared;
  }

  // Drawing -----------------------------------------------------------------------------------------------------

  drawCells(index) {
    const context = this.figures[index].cells.getContext("2d");
    const [matrix, frame] = [this.matrices[index], this.frames[index]];
    context.clearRect(0, 0, frame.width, frame.bottom + 2);
    if (Math.min(...frame.cell) >= TILED) this.drawTiles(context, matrix, frame);
    else this.drawPixels(context, matrix, frame);
    if (frame.numbers) this.drawNumbers(context, matrix, frame);
    context.fillStyle = this.theme.text;
    context.textBaseline = "middle";
    this.drawRowAxis(context, matrix, frame);
    this.drawColumnAxis(context, matrix, frame);
    this.drawAxisNames(context, matrix, frame);
    context.lineWidth = 2;
    if (index === this.header.state.selected) {
      context.strokeStyle = this.theme.primary;
      context.strokeRect(frame.x - 1, frame.y - 1, frame.right - frame.x + 1, frame.bottom - frame.y + 1);
    }
  }

  /** Cells that stand apart, each a rectangle; what has no value stays empty, with a stroke across. */
  drawTiles(context, matrix, frame) {
    const [across, down] = frame.cell;
    const lut = this.luts[matrix.scale];
    const hatched = matrix.scale === "mask";
    context.lineWidth = 1;
    for (let row = 0, place = 0; row < frame.rows; row += 1) {
      for (let column = 0; column < frame.columns; column += 1, place += 1) {
        const box = [frame.x + column * across, frame.y + row * down, across - 1, down - 1];
        const level = matrix.levels[place];
        if (level < 0) this.drawEmpty(context, box);
        else if (hatched && level === 0) this.drawHatched(context, box);
        else {
          context.fillStyle = lutColour(lut, level);
          context.fillRect(...box);
        }
      }
    }
    if (matrix.scale !== "signed") return;
    context.strokeStyle = this.theme.border; // cells near 0 have the colour of the ground
    context.globalAlpha = 0.75;
    context.strokeRect(frame.x - 0.5, frame.y - 0.5, frame.columns * across, frame.rows * down);
    context.globalAlpha = 1;
  }

  drawEmpty(context, [x, y, width, height]) {
    context.strokeStyle = this.theme.text;
    context.globalAlpha = 0.28;
    context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    context.beginPath();
    context.moveTo(x + 3, y + height - 3);
    context.lineTo(x + width - 3, y + 3);
    context.stroke();
    context.globalAlpha = 1;
  }

  drawHatched(context, [x, y, width, height]) {
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.strokeStyle = this.theme.text;
    context.globalAlpha = 0.3;
    context.beginPath();
    for (let start = -height; start < width; start += 5) {
      context.moveTo(x + start, y + height);
      context.lineTo(x + start + height, y);
    }
    context.stroke();
    context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    context.restore();
  }

  /** Cells of a few pixels, as a picture. */
  drawPixels(context, matrix, frame) {
    const canvas = document.createElement("canvas");
    paintLevels(canvas, matrix.levels, matrix.columns, matrix.rows, this.luts[matrix.scale]);
    context.imageSmoothingEnabled = false;
    const size = [frame.right - frame.x, frame.bottom - frame.y];
    context.fillStyle = lutColour(this.luts.mask, 0); // where there is no value
    context.fillRect(frame.x, frame.y, ...size);
    context.drawImage(canvas, frame.x, frame.y, ...size);
    context.strokeStyle = this.theme.border;
    context.lineWidth = 1;
    context.strokeRect(frame.x - 0.5, frame.y - 0.5, size[0] + 1, size[1] + 1);
  }

  drawNumbers(context, matrix, frame) {
    const [across, down] = frame.cell;
    const lut = this.luts[matrix.scale];
    context.font = `400 12px ${this.theme.font}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    matrix.values.forEach((value, place) => {
      const level = matrix.levels[place];
      if (level < 0) return;
      context.fillStyle = inkOn(lut, level);
      const [row, column] = [Math.floor(place / frame.columns), place % frame.columns];
      const [x, y] = [frame.x + (column + 0.5) * across - 0.5, frame.y + (row + 0.5) * down];
      context.fillText(cellText(value, matrix.decimals), x, y);
    });
  }

  drawRowAxis(context, matrix, frame) {
    const [side] = matrix.sides;
    context.textAlign = "right";
    context.font = `400 12px ${this.theme.font}`;
    const middle = (row) => frame.y + (row + 0.5) * frame.cell[1];
    if (frame.rowLabels) {
      frame.shorts[0].forEach((text, row) => {
        context.fillText(this.cut(context, text, LABEL_ROOM), frame.x - 7, middle(row));
      });
    } else if (side.labels.length || (side.name && frame.rows > 16)) {
      this.drawTicks(context, frame.rows, frame.cell[1], 24, (row, text) => {
        context.fillRect(frame.x - 4, middle(row), 3, 1);
        context.fillText(text, frame.x - 7, middle(row));
      });
    }
  }

  drawColumnAxis(context, matrix, frame) {
    const side = matrix.sides[1];
    const middle = (column) => frame.x + (column + 0.5) * frame.cell[0];
    context.font = `400 12px ${this.theme.font}`;
    context.textAlign = frame.level ? "center" : "left";
    if (frame.columnLabels) {
      frame.shorts[1].forEach((text, column) => this.drawColumnLabel(context, frame, column, text, middle(column)));
    } else if (side.labels.length || (side.name && frame.columns > 16)) {
      context.textAlign = "center";
      this.drawTicks(context, frame.columns, frame.cell[0], 36, (column, text) => {
        context.fillRect(middle(column), frame.y - 4, 1, 3);
        context.fillText(text, middle(column), frame.y - 11);
      });
    }
  }

  drawColumnLabel(context, frame, column, text, x) {
    if (frame.level) {
      context.textAlign = "center";
      context.fillText(text, x, frame.y - 10);
      return;
    }
    context.save();
    context.textAlign = "left";
    context.translate(x, frame.y - 6);
    context.rotate(-TILT);
    context.fillText(this.cut(context, text, LABEL_ROOM), 0, 0);
    context.restore();
  }

  drawTicks(context, count, size, room, draw) {
    context.font = `400 11px ${this.theme.font}`;
    context.globalAlpha = 0.7;
    let step = 1;
    while (step * size < room && step < count) step *= 2;
    for (let index = 0; index < count; index += step) draw(index, String(index));
    context.globalAlpha = 1;
  }

  drawAxisNames(context, matrix, frame) {
    const [down, across] = matrix.sides;
    context.font = `400 11px ${this.theme.font}`;
    context.globalAlpha = 0.66;
    context.textAlign = "right";
    let y = frame.y - 8 - frame.lift;
    if (down.name) context.fillText(`${down.name} ↓`, frame.x - 7, y);
    if (down.name) y -= 14;
    if (across.name) context.fillText(`${across.name} →`, frame.x - 7, y);
    context.globalAlpha = 1;
  }

  /** A text that is at most `room` px wide, cut with an ellipsis. */
  cut(context, text, room) {
    if (context.measureText(text).width <= room) return text;
    const letters = [...text.replace(/…$/, "")];
    while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
    return `${letters.join("")}…`;
  }

  // The pointer's marks -----------------------------------------------------------------------------------------

  /** The row and the column of a matrix that are lit, null for none: those of the same axes as the pointed cell's. */
  lit(index) {
    const { pointed } = this;
    if (!pointed) return [null, null];
    if (pointed.index === index) return [pointed.row, pointed.column];
    const from = this.matrices[pointed.index].axes;
    const found = [pointed.row, pointed.column];
    const place = (axis, side) =>
      axis === from[side] ? found[side] : axis === from[1 - side] ? found[1 - side] : null;
    return this.matrices[index].axes.map(place);
  }

  drawMarks(index) {
    const frame = this.frames[index];
    const context = this.figures[index].marks.getContext("2d");
    context.clearRect(0, 0, frame.width, frame.bottom + 2);
    const [row, column] = this.lit(index);
    const [across, down] = frame.cell;
    const { x, y, right, bottom } = frame;
    if (row !== null) this.drawBand(context, x, y + row * down, right - x, down, down < 5);
    if (column !== null) this.drawBand(context, x + column * across, y, across, bottom - y, across < 5);
    this.drawLitLabels(context, index, row, column);
    if (row !== null && column !== null) outline(context, ...this.cellBox(frame, row, column));
    if (this.cell && this.cell[0] < frame.rows && this.cell[1] < frame.columns) {
      outline(context, ...this.cellBox(frame, ...this.cell), this.theme.primary, this.theme.background);
    }
    const said = [row, column].map((place) => (place === null ? "" : String(place)));
    this.figures[index].marks.dataset.lit = said.join(" ");
  }

  /** A whole row or column: a frame of two hair lines, or one through it where cells are too small for a frame. */
  drawBand(context, x, y, width, height, thin) {
    const flat = width > height;
    const box = thin
      ? [flat ? x : x + width / 2, flat ? y + height / 2 : y, flat ? width : 0, flat ? 0 : height]
      : [x - 0.5, y - 0.5, width, height];
    for (const [colour, line, alpha] of [["#000000", 3, 0.3], ["#ffffff", 1, 0.8]]) {
      context.strokeStyle = colour;
      context.globalAlpha = alpha;
      context.lineWidth = line;
      context.strokeRect(...box);
    }
    context.globalAlpha = 1;
  }

  drawLitLabels(context, index, row, column) {
    const frame = this.frames[index];
    const { sides } = this.matrices[index];
    context.font = `400 12px ${this.theme.font}`;
    context.textBaseline = "middle";
    const text = (side, place) => (frame.shorts[side].length ? this.cut(context, frame.shorts[side][place], LABEL_ROOM) : "");
    if (row !== null && (frame.rowLabels || (sides[0].labels.length && frame.x > 40))) {
      this.drawBadge(context, text(0, row), frame.x - 7, frame.y + (row + 0.5) * frame.cell[1], "right");
    }
    if (column === null || !frame.columnLabels) return;
    const x = frame.x + (column + 0.5) * frame.cell[0];
    if (frame.level) {
      this.drawBadge(context, text(1, column), x, frame.y - 10, "center");
      return;
    }
    context.save();
    context.translate(x, frame.y - 6);
    context.rotate(-TILT);
    this.drawBadge(context, text(1, column), 0, 0, "left");
    context.restore();
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

  cellBox(frame, row, column) {
    const [across, down] = frame.cell;
    const inset = Math.min(across, down) >= TILED ? 1 : 0;
    const size = [Math.max(across - inset, 3), Math.max(down - inset, 3)];
    return [frame.x + column * across, frame.y + row * down, ...size];
  }

  // Words -------------------------------------------------------------------------------------------------------

  valueText(index, row, column) {
    const matrix = this.matrices[index];
    const value = matrix.values[row * matrix.columns + column];
    if (matrix.scale === "mask" && Number.isFinite(value)) return value ? "may attend" : "may not attend";
    return exactText(value);
  }

  /** "key 3 “the”". */
  placeText(index, side, place) {
    const { name, labels } = this.matrices[index].sides[side];
    const label = labels.length ? ` “${labels[place]}”` : "";
    return `${name || ["row", "column"][side]} ${place}${label}`;
  }

  lines({ index, row, column }) {
    const matrix = this.matrices[index];
    const lines = [this.valueText(index, row, column), matrix.name];
    lines.push(this.placeText(index, 0, row), this.placeText(index, 1, column));
    const alike = this.matrices
      .map((_, place) => place)
      .filter((place) => place !== index && String(this.matrices[place].axes) === String(matrix.axes));
    for (const place of alike.slice(0, LISTED)) {
      lines.push(`${this.matrices[place].name}: ${this.valueText(place, row, column)}`);
    }
    return lines;
  }

  speak(text) {
    this.speaking.request(() => {
      this.live.textContent = text;
    });
  }

  // Acting ------------------------------------------------------------------------------------------------------

  listen(canvas, index) {
    canvas.addEventListener("pointermove", (event) => this.point(this.cellAt(index, event), event));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("click", (event) => {
      const cell = this.cellAt(index, event);
      if (cell) this.choose(cell);
    });
    canvas.addEventListener("keydown", (event) => this.onKey(index, event));
    canvas.addEventListener("blur", () => this.point(null));
  }

  cellAt(index, event) {
    const frame = this.frames[index];
    const box = this.figures[index].marks.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (x < frame.x || x >= frame.right || y < frame.y || y >= frame.bottom) return null;
    return { index, row: Math.floor((y - frame.y) / frame.cell[1]), column: Math.floor((x - frame.x) / frame.cell[0]) };
  }

  /** Lights a cell everywhere and tells it at a place of the window; null for none. */
  point(cell, at = null) {
    const moved = JSON.stringify(cell) !== JSON.stringify(this.pointed);
    this.pointed = cell;
    this.pointer = at;
    if (cell && at) this.tooltip.show(this.lines(cell), at.clientX, at.clientY);
    else this.tooltip.hide();
    if (moved && this.frames) this.figures.forEach((_, index) => this.drawMarks(index));
  }

  choose(cell) {
    this.cell = cell && [cell.row, cell.column];
    this.shared.tell(this.cell);
    this.figures.forEach((_, index) => this.drawMarks(index));
    this.speak(cell ? `Chosen: ${this.lines(cell).join(", ")}` : "No cell is chosen");
    const at = cell && [cell.index, cell.row, cell.column];
    this.setTrigger("select", { input: this.header.input, at });
  }

  onKey(index, event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey ? 10 : 1;
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
    const here = this.pointed?.index === index ? this.pointed : null;
    if (moves[event.key]) this.moveBy(index, here, moves[event.key]);
    else if ((event.key === "Enter" || event.key === " ") && here) this.choose(here);
    else if (event.key === "Escape" && (this.cell || this.pointed)) {
      this.point(null);
      if (this.cell) this.choose(null);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The first key shows where the keyboard is: at the chosen cell, else at the first. */
  moveBy(index, here, [down, across]) {
    const { rows, columns, shape } = this.matrices[index];
    const start = this.cell?.every((place, side) => place < shape[side]) ? this.cell : [0, 0];
    const cell = here
      ? { index, row: clamp(here.row + down, 0, rows - 1), column: clamp(here.column + across, 0, columns - 1) }
      : { index, row: start[0], column: start[1] };
    this.point(cell, this.placeOf(cell));
    this.speak(this.lines(cell).slice(0, 4).join(", "));
  }

  /** Where the middle of a cell is in the window. */
  placeOf({ index, row, column }) {
    const frame = this.frames[index];
    const box = this.figures[index].marks.getBoundingClientRect();
    return {
      clientX: box.left + frame.x + (column + 0.5) * frame.cell[0],
      clientY: box.top + frame.y + (row + 0.5) * frame.cell[1],
    };
  }
}

export default function (component) {
  return mountView(views, MatrixSheet, component);
}
