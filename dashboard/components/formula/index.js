// softmax(QKᵀ/√d_k)V as a typeset expression whose parts are buttons, the chosen part in words, and below it every
// matrix in the order of the computation. The chosen query's row is marked in each matrix that has it; the operands of
// the cell under the pointer (or of the chosen one) are framed. Clicks are told to Python, which sends the new words.

const views = new WeakMap();

const QUERY_ROWS = new Set(["query", "scores", "root", "softmax", "output"]);
const BETWEEN = { key: "·", scores: "=", root: "scale", softmax: "softmax", value: "·", output: "=" };
const SPLITS = [[7], [3, 4], [5, 2], [3, 2, 2], [2, 1, 2, 2], [1, 1, 1, 1, 1, 1, 1]];
const HEAD = 30; // px of a matrix's name
const GAP = 18; // px between lines
const MOST_PITCH = 44;
const DIM_ROOM = 208; // px that the dimensions of one vector may take
const SMALLEST_TEXT = 9;
const LEGIBLE_PITCH = 13; // px of a cell whose label can be read
const LINE_COST = 0.8; // another line must make cells larger by a quarter

class Formula {
  constructor(parent) {
    this.parent = parent;
    this.root = make("section", "view-root formula-root", { parent, "aria-label": "Formula explorer" });
    const top = make("div", "formula-top", { parent: this.root });
    this.expression = make("div", "formula-expression", { parent: top, role: "group", "aria-label": "Formula" });
    this.words = make("div", "formula-words", { parent: top });
    this.board = make("div", "formula-board", { parent: this.root });
    this.said = make("div", "formula-said", { parent: this.root });
    this.live = make("div", "view-live", { parent: this.root, role: "status", "aria-live": "polite" });
    this.tooltip = makeTooltip(this.root);
    this.hover = null;
    this.observer = new ResizeObserver(() => this.header && this.layOut());
    this.observer.observe(this.root);
    this.onResize = () => this.header && this.layOut();
    window.addEventListener("resize", this.onResize);
  }

  end() {
    this.observer.disconnect();
    window.removeEventListener("resize", this.onResize);
    this.root.remove();
  }

  update({ header, arrays }) {
    const changed = !this.header || this.header.input !== header.input;
    const { formula } = header;
    const drawn = JSON.stringify(formula);
    this.header = header;
    this.luts = { weights: arrays.weights, signed: arrays.signed };
    let start = 0;
    this.matrices = header.matrices.map((matrix) => {
      const count = matrix.shape[0] * matrix.shape[1];
      const values = arrays.values.subarray(start, start + count);
      start += count;
      return { ...matrix, values };
    });
    const told = [header.state.part, ...this.matrices.flatMap((matrix) => matrix.cell)];
    if (changed) {
      this.shared = makeShared(told);
      this.hover = null;
      this.tooltip.hide();
      this.take();
    } else if (this.shared.isNews(told)) this.take();
    if (drawn !== this.drawnFormula) this.writeFormula();
    this.drawnFormula = drawn;
    this.writeWords();
    if (changed || this.names !== header.matrices.map(({ name }) => name).join()) this.build();
    this.layOut();
  }

  /** Choices as Python has them. */
  take() {
    this.part = this.header.state.part;
    this.cells = Object.fromEntries(this.matrices.map(({ part, cell }) => [part, cell]));
  }

  // The formula -------------------------------------------------------------------------------------------------

  partButton(parent, part, text, spoken) {
    const button = make("button", "formula-part", { parent, type: "button", title: spoken, "aria-label": spoken });
    setMath(button, text);
    button.classList.add(`is-${part}`);
    button.dataset.part = part;
    button.addEventListener("click", () => this.pick(part, null));
    return button;
  }

  writeFormula() {
    const { factor, temperature, causal } = this.header.formula;
    this.expression.replaceChildren();
    const line = make("div", "formula-line", { parent: this.expression });
    const sign = (text, parent = line) => make("span", "formula-sign", { parent, text });
    this.partButton(line, "output", "output", "output: the whole formula");
    sign("=");
    this.partButton(line, "softmax", "softmax", "softmax: scores become weights");
    make("span", "formula-bracket", { parent: line, text: "(" });
    if (factor) sign(`${factor} ·`);
    const fraction = make("span", "formula-fraction", { parent: line });
    const over = make("span", "formula-over", { parent: fraction });
    const scores = this.partButton(over, "scores", "scores", "QKᵀ: the scores");
    scores.classList.add("formula-brace");
    const product = make("span", "formula-product", { parent: over });
    this.partButton(product, "query", "Q", "Q: the queries");
    this.partButton(product, "key", "Kᵀ", "K: the keys, transposed");
    const under = make("span", "formula-under", { parent: fraction });
    const root = this.partButton(under, "root", "", "√d_k: the scale");
    make("span", "formula-radical", { parent: root, text: "√" });
    setMath(make("span", "formula-radicand", { parent: root }), "d_k");
    if (temperature) sign(`· ${temperature}`, under);
    if (causal) {
      sign("+");
      const mask = sign("mask");
      mask.title = "0 where a token may look, −∞ where the key comes later";
      mask.classList.add("formula-mask");
    }
    make("span", "formula-bracket", { parent: line, text: ")" });
    this.partButton(line, "value", "V", "V: the values");
  }

  writeWords() {
    const { words, said } = this.header;
    const head = make("div", "formula-words-head");
    setMath(make("strong", `formula-symbol is-${this.header.state.part}`, { parent: head }), words.symbol);
    make("span", "formula-title", { parent: head, text: words.title });
    const shape = make("span", "formula-shape", { parent: head });
    setMath(shape, `${words.shape}: ${words.axes}`);
    const about = make("p", "formula-about");
    setMath(about, words.about);
    const cell = make("p", "formula-cell");
    setMath(cell, words.cell);
    const numbers = words.numbers.map((text) => make("p", "formula-number", { text, dir: "auto" }));
    this.words.replaceChildren(head, about, cell, ...numbers);
    this.said.replaceChildren(...said.map((text) => make("p", "", { text, dir: "auto" })));
  }

  // The matrices ------------------------------------------------------------------------------------------------

  build() {
    this.names = this.header.matrices.map(({ name }) => name).join();
    this.board.replaceChildren();
    this.boxes = this.matrices.map((matrix, index) => {
      const figure = make("figure", `formula-matrix is-${matrix.part}`);
      const caption = make("figcaption", "", { parent: figure });
      const [rows, columns] = matrix.shape;
      const name = this.partButton(caption, matrix.part, matrix.name, `explain ${matrix.name}`);
      name.classList.add("formula-name");
      make("span", "formula-size", { parent: caption, text: `${rows} × ${columns}` });
      const canvas = make("canvas", "", { parent: figure, tabindex: "0", role: "img" });
      canvas.setAttribute("aria-label", `${matrix.name}, ${rows} rows, ${columns} columns; arrow keys read its cells`);
      this.listen(canvas, index);
      return { figure, canvas, context: canvas.getContext("2d") };
    });
    this.joints = this.matrices.map(({ part }, index) => {
      if (index === 0) return null;
      const sign = BETWEEN[part];
      const joint = make("span", "formula-joint", { "aria-hidden": "true" });
      if (sign.length === 1) joint.textContent = sign;
      else {
        joint.classList.add("is-step");
        setMath(make("span", "", { parent: joint }), sign === "scale" ? this.scaleText() : sign);
        make("span", "formula-arrow", { parent: joint, text: "→" });
      }
      return joint;
    });
    this.board.replaceChildren(...this.boxes.map(({ figure }) => figure), ...this.joints.filter(Boolean));
    this.captions = this.boxes.map(({ figure }) => Math.ceil(figure.firstChild.getBoundingClientRect().width));
    this.gaps = this.joints.map((joint) => (joint ? Math.ceil(joint.getBoundingClientRect().width) : 0));
    this.laid = null;
  }

  /** What happens to the scores between QKᵀ and the softmax. */
  scaleText() {
    const { factor, temperature } = this.header.formula;
    return `${factor ? `· ${factor} ` : ""}÷ √d_k${temperature ? ` ÷ ${temperature}` : ""}`;
  }

  /** The lines and the cell size that let the matrices stand as large as the window allows. */
  layOut() {
    const width = this.root.clientWidth;
    if (!width || !this.boxes) return;
    const theme = readTheme(this.root);
    const measure = this.boxes[0].context;
    measure.font = `12px ${theme.font}`;
    const longest = Math.max(...this.header.shorts.map((text) => measure.measureText(text).width));
    const above = this.root.getBoundingClientRect();
    const board = this.board.getBoundingClientRect();
    const room = Math.max(frameHeight(this.parent, 720) - (board.top - above.top) - this.said.offsetHeight - 8, 240);
    let best = null;
    for (const split of SPLITS) {
      for (let pitch = MOST_PITCH; pitch >= 4; pitch -= 1) {
        const plan = this.plan(split, pitch, longest);
        if (plan.width > width) continue;
        const fits = plan.height <= room;
        if (!fits && pitch > LEGIBLE_PITCH) continue; // what does not fit the window is at least not large
        const worth = pitch * LINE_COST ** (split.length - 1);
        if (!best || worth > best.worth) best = { ...plan, worth };
        break;
      }
    }
    best ??= this.plan(SPLITS.at(-1), 4, longest);
    const key = JSON.stringify([best.split, width]);
    if (this.laid !== key) {
      this.laid = key;
      let index = 0;
      const lines = best.split.map((count) => {
        const line = make("div", "formula-row");
        for (let place = 0; place < count; place += 1, index += 1) {
          if (this.joints[index]) line.append(this.joints[index]);
          line.append(this.boxes[index].figure);
        }
        return line;
      });
      this.board.replaceChildren(...lines);
    }
    this.geometry = best;
    this.theme = theme;
    this.paint();
  }

  /** Sizes of everything for one way to break the lines. */
  plan(split, pitch, longest) {
    const { tokens } = this.header;
    const width = this.matrices[0].shape[1];
    const channels = this.matrices.find(({ part }) => part === "value").shape[1];
    const along = (size) => clamp(Math.floor(DIM_ROOM / size), 2, pitch);
    const steps = { query: pitch, key: pitch, dimension: along(width), channel: along(channels) };
    const named = pitch >= SMALLEST_TEXT;
    const side = named ? Math.ceil(Math.min(longest, 84)) + 7 : 4;
    const level = named && longest + 4 <= pitch; // labels of columns stand upright where they do not fit
    const head = named ? (level ? 18 : side) : 4;
    const places = [];
    let index = 0;
    let widest = 0;
    let height = 0;
    for (const count of split) {
      let across = 0;
      let tallest = 0;
      for (let place = 0; place < count; place += 1, index += 1) {
        const { shape, axes, part } = this.matrices[index];
        const rowStep = steps[axes[0]];
        const columnStep = steps[axes[1]];
        const left = axes[0] !== "dimension" && (place === 0 || part === "value") ? side : 4;
        const box = { left, top: head, rowStep, columnStep, level, named };
        box.width = left + shape[1] * columnStep + 4;
        box.height = head + shape[0] * rowStep + 4;
        across += this.gaps[index] + Math.max(box.width, this.captions[index]);
        tallest = Math.max(tallest, box.height);
        places.push(box);
      }
      widest = Math.max(widest, across);
      height += HEAD + tallest + GAP;
    }
    return { width: widest, height, places, tokens: tokens.length, split, pitch };
  }

  paint() {
    for (const part of this.root.querySelectorAll(".formula-part")) {
      const chosen = part.dataset.part === this.part;
      part.classList.toggle("is-chosen", chosen);
      part.setAttribute("aria-pressed", String(chosen));
    }
    const focus = this.hover ?? { part: this.part, cell: this.cells[this.part] };
    const operands = this.operands(focus);
    this.matrices.forEach((matrix, index) => this.paintMatrix(matrix, index, focus, operands));
  }

  /** Which rows, columns and cells a cell is made of: part → [row or null, column or null]. */
  operands({ part, cell }) {
    if (!cell) return {};
    const [row, column] = cell;
    if (part === "scores") return { query: [row, null], key: [null, column] };
    if (part === "root") return { scores: [row, column] };
    if (part === "softmax") return { root: [row, null] };
    if (part === "output") return { softmax: [row, null], value: [null, column] };
    return {};
  }

  paintMatrix(matrix, index, focus, operands) {
    const box = this.geometry.places[index];
    const { figure, canvas } = this.boxes[index];
    figure.classList.toggle("is-chosen", matrix.part === this.part);
    const context = sizeCanvas(canvas, box.width, box.height);
    const [rows, columns] = matrix.shape;
    const { left, top, rowStep, columnStep } = box;
    const seam = Math.min(rowStep, columnStep) >= 9 ? 1 : 0;
    const lut = this.luts[matrix.scale];
    const ground = groundOf(this.root);
    const written = Math.min(rowStep, columnStep) >= 30;
    context.textBaseline = "middle";
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const value = matrix.values[row * columns + column];
        const x = left + column * columnStep;
        const y = top + row * rowStep;
        if (!Number.isFinite(value)) {
          this.hatch(context, x, y, columnStep - seam, rowStep - seam);
          continue;
        }
        const colour = heatColour(value, matrix, lut, ground);
        context.fillStyle = `rgb(${colour.join()})`;
        context.fillRect(x, y, columnStep - seam, rowStep - seam);
        if (written) {
          context.fillStyle = inkOn(Uint8Array.from(colour), 0);
          context.font = `${rowStep >= 38 ? 13 : 11.5}px ${this.theme.font}`;
          context.textAlign = "center";
          const text = cellText(value, matrix.decimals);
          context.fillText(text, x + (columnStep - seam) / 2, y + rowStep / 2 + 0.5, columnStep - 3);
        }
      }
    }
    context.strokeStyle = this.theme.border;
    context.lineWidth = 1;
    context.strokeRect(left - 0.5, top - 0.5, columns * columnStep - seam + 1, rows * rowStep - seam + 1);
    this.label(context, matrix, box, focus);
    const frame = (row, column, colour, dash, outside) => {
      const x = left + (column ?? 0) * columnStep - outside;
      const y = top + (row ?? 0) * rowStep - outside;
      const across = (column === null ? columns * columnStep : columnStep) - seam + 2 * outside;
      const down = (row === null ? rows * rowStep : rowStep) - seam + 2 * outside;
      context.strokeStyle = this.theme.background; // a halo, so that it stands out on every colour
      context.lineWidth = 4;
      context.strokeRect(x, y, across, down);
      context.strokeStyle = colour;
      context.lineWidth = 2;
      context.setLineDash(dash);
      context.strokeRect(x, y, across, down);
      context.setLineDash([]);
    };
    if (QUERY_ROWS.has(matrix.part)) frame(this.cells.query[0], null, this.theme.primary, [], 1);
    if (operands[matrix.part]) frame(...operands[matrix.part], this.theme.text, [4, 3], 1);
    if (matrix.part === focus.part && focus.cell) frame(...focus.cell, this.theme.text, [], 1);
  }

  hatch(context, x, y, width, height) {
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.strokeStyle = this.theme.border;
    context.lineWidth = 1;
    for (let offset = -height; offset < width; offset += 6) {
      context.beginPath();
      context.moveTo(x + offset, y + height);
      context.lineTo(x + offset + height, y);
      context.stroke();
    }
    context.restore();
  }

  label(context, matrix, box, focus) {
    if (!box.named) return;
    const { left, top, rowStep, columnStep, level } = box;
    const { shorts } = this.header;
    const [rowAxis, columnAxis] = matrix.axes;
    const size = (step) => clamp(step - 1, 9, 12);
    const lit = (axis, index) =>
      (axis === "query" && index === this.cells.query[0]) ||
      (this.hover?.part === matrix.part && focus.cell?.[axis === rowAxis ? 0 : 1] === index);
    context.textBaseline = "middle";
    context.direction = "ltr";
    if (rowAxis !== "dimension" && left > 4) {
      context.textAlign = "right";
      for (let row = 0; row < matrix.shape[0]; row += 1) {
        context.font = `${lit(rowAxis, row) ? 600 : 400} ${size(rowStep)}px ${this.theme.font}`;
        context.fillStyle = this.theme.text;
        context.fillText(shorts[row], left - 6, top + (row + 0.5) * rowStep, left - 7);
      }
    }
    if (columnAxis === "key") {
      for (let column = 0; column < matrix.shape[1]; column += 1) {
        context.font = `${lit("column", column) ? 600 : 400} ${size(columnStep)}px ${this.theme.font}`;
        context.fillStyle = this.theme.text;
        const x = left + (column + 0.5) * columnStep;
        if (level) {
          context.textAlign = "center";
          context.fillText(shorts[column], x, top - 9, columnStep);
        } else {
          context.save();
          context.translate(x, top - 5);
          context.rotate(-Math.PI / 2);
          context.textAlign = "left";
          context.fillText(shorts[column], 0, 0, top - 7);
          context.restore();
        }
      }
    }
  }

  // Acting ------------------------------------------------------------------------------------------------------

  listen(canvas, index) {
    const at = (event) => {
      const box = this.geometry.places[index];
      const frame = canvas.getBoundingClientRect();
      const [rows, columns] = this.matrices[index].shape;
      const row = Math.floor((event.clientY - frame.top - box.top) / box.rowStep);
      const column = Math.floor((event.clientX - frame.left - box.left) / box.columnStep);
      return row >= 0 && row < rows && column >= 0 && column < columns ? [row, column] : null;
    };
    const { part } = this.matrices[index];
    canvas.addEventListener("pointermove", (event) => {
      const cell = at(event);
      if (!cell) return this.leave();
      this.point(index, cell);
      this.tooltip.show(this.lines(index, cell), event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("click", (event) => {
      const cell = at(event);
      if (cell) this.pick(part, cell);
    });
    canvas.addEventListener("keydown", (event) => this.onKey(event, index));
    canvas.addEventListener("blur", () => this.leave());
  }

  point(index, cell) {
    const { part } = this.matrices[index];
    if (this.hover?.part === part && String(this.hover.cell) === String(cell)) return;
    this.hover = { part, cell };
    this.paint();
  }

  leave() {
    this.tooltip.hide();
    if (!this.hover) return;
    this.hover = null;
    this.paint();
  }

  lines(index, [row, column]) {
    const matrix = this.matrices[index];
    const place = (axis, at) => (["query", "key"].includes(axis) ? `${axis} ${at} “${this.header.tokens[at]}”` : `${axis} ${at}`);
    const value = matrix.values[row * matrix.shape[1] + column];
    const remark = Number.isFinite(value) ? [] : ["may not be seen"];
    return [exactText(value), place(matrix.axes[0], row), place(matrix.axes[1], column), ...remark];
  }

  onKey(event, index) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { part, shape } = this.matrices[index];
    const [row, column] = this.hover?.part === part ? this.hover.cell : this.cells[part];
    const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    if (event.key === "Escape") return this.leave();
    if (event.key === "Enter" || event.key === " ") this.pick(part, [row, column]);
    else if (event.key in steps) {
      const [down, across] = steps[event.key];
      const cell = [clamp(row + down, 0, shape[0] - 1), clamp(column + across, 0, shape[1] - 1)];
      this.point(index, cell);
      const box = this.geometry.places[index];
      const frame = event.target.getBoundingClientRect();
      const lines = this.lines(index, cell);
      this.tooltip.show(lines, frame.left + box.left + (cell[1] + 1) * box.columnStep, frame.top + box.top + cell[0] * box.rowStep);
      this.live.textContent = [this.matrices[index].name, ...lines.slice(1), lines[0]].join(", ");
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** A part, and with a cell also the tokens and the dimension that meet there. */
  pick(part, cell) {
    if (this.alone) {
      this.part = part;
    } else {
      this.part = part;
      this.setTrigger("pick", { input: this.header.input, part, cell });
    }
    if (cell) this.choose(part, cell);
    this.shared.tell([this.part, ...this.matrices.flatMap((matrix) => this.cells[matrix.part])]);
    this.paint();
  }

  /** The same query, key and dimension in every matrix, the last where it has fewer. */
  choose(part, cell) {
    const chosen = { query: this.cells.scores[0], key: this.cells.scores[1], dim: null };
    const names = { query: "query", key: "key", dimension: "dim", channel: "dim" };
    const { axes } = this.matrices.find((matrix) => matrix.part === part);
    axes.forEach((axis, side) => {
      chosen[names[axis]] = cell[side];
    });
    this.cells = Object.fromEntries(
      this.matrices.map((matrix) => {
        const place = matrix.axes.map((axis, side) => {
          const index = chosen[names[axis]] ?? this.cells[matrix.part][side];
          return Math.min(index, matrix.shape[side] - 1);
        });
        return [matrix.part, place];
      }),
    );
  }
}

export default function (component) {
  return mountView(views, Formula, component);
}
