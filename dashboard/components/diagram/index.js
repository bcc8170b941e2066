// A computation as boxes with their numbers, and arrows between them. A box is a button; the chosen one is explained
// below. Boxes stand in a grid, arrows go round what stands in their way.

const views = new WeakMap();

const GAP_X = 52; // px between columns; labels of arrows stand there
const GAP_Y = 34;
const BOX_HEIGHT = 92;
const LEAST_BOX = 84; // px; a narrower frame scrolls
const MOST_BOX = 168;
const SVG = "http://www.w3.org/2000/svg";

class Diagram {
  constructor(parent) {
    this.root = make("section", "view-root diagram-root", { parent });
    this.scroller = make("div", "diagram-scroller", { parent: this.root });
    this.board = make("div", "diagram-board", { parent: this.scroller, role: "group" });
    this.words = make("div", "diagram-words", { parent: this.root, "aria-live": "polite" });
    this.said = make("div", "diagram-said", { parent: this.root });
    this.tooltip = makeTooltip(this.root);
    this.observer = new ResizeObserver(() => this.header && this.layOut());
    this.observer.observe(this.root);
  }

  end() {
    this.observer.disconnect();
    this.root.remove();
  }

  update({ header, arrays }) {
    const changed = !this.header || this.header.input !== header.input;
    this.header = header;
    this.luts = { weights: arrays.weights, signed: arrays.signed };
    let start = 0;
    this.stages = header.stages.map((stage) => {
      const count = stage.size[0] * stage.size[1];
      const values = arrays.values.subarray(start, start + count);
      start += count;
      return { ...stage, values };
    });
    if (changed) {
      this.shared = makeShared(header.state.selected);
      this.selected = header.state.selected;
      this.build();
    } else if (this.shared.isNews(header.state.selected)) this.selected = header.state.selected;
    this.said.replaceChildren(...header.said.map((text) => make("p", "", { text, dir: "auto" })));
    this.layOut();
    this.tell();
  }

  build() {
    this.board.setAttribute("aria-label", this.header.title);
    this.lines = document.createElementNS(SVG, "svg");
    this.lines.setAttribute("class", "diagram-lines");
    this.lines.setAttribute("aria-hidden", "true");
    this.boxes = this.stages.map((stage, index) => {
      const box = make("button", "diagram-box", { type: "button" });
      const head = make("span", "diagram-head", { parent: box });
      setMath(make("span", "diagram-symbol", { parent: head }), stage.symbol);
      make("span", "diagram-name", { parent: head, text: stage.name });
      const canvas = make("canvas", "", { parent: box });
      const foot = make("span", "diagram-shape", { parent: box });
      box.addEventListener("click", () => this.choose(index));
      box.addEventListener("keydown", (event) => this.onKey(event, index));
      canvas.addEventListener("pointermove", (event) => this.hint(event, index));
      canvas.addEventListener("pointerleave", () => this.tooltip.hide());
      return { box, canvas, foot };
    });
    this.labels = this.header.arrows.map(() => make("span", "diagram-label", { "aria-hidden": "true" }));
    this.board.replaceChildren(this.lines, ...this.labels, ...this.boxes.map(({ box }) => box));
  }

  // Places ------------------------------------------------------------------------------------------------------

  layOut() {
    const width = this.root.clientWidth;
    if (!width || !this.boxes) return;
    this.theme = readTheme(this.root);
    const columns = Math.max(...this.stages.map(({ place }) => place[0])) + 1;
    const rows = Math.max(...this.stages.map(({ place }) => place[1])) + 1;
    const box = clamp(Math.floor((width - GAP_X * (columns - 1) - 2) / columns), LEAST_BOX, MOST_BOX);
    this.box = box;
    const across = columns * box + (columns - 1) * GAP_X;
    const down = rows * BOX_HEIGHT + (rows - 1) * GAP_Y + 20; // room for an arrow below the last row
    this.board.style.width = `${across + 2}px`;
    this.board.style.height = `${down}px`;
    this.lines.setAttribute("viewBox", `0 0 ${across + 2} ${down}`);
    this.lines.setAttribute("width", across + 2);
    this.lines.setAttribute("height", down);
    this.frames = this.stages.map(({ place: [column, row] }) => {
      const left = column * (box + GAP_X) + 1;
      const top = row * (BOX_HEIGHT + GAP_Y) + 1;
      return { left, top, right: left + box, bottom: top + BOX_HEIGHT, x: left + box / 2, y: top + BOX_HEIGHT / 2 };
    });
    this.boxes.forEach(({ box: element }, index) => {
      const { left, top } = this.frames[index];
      Object.assign(element.style, { left: `${left}px`, top: `${top}px`, width: `${box}px`, height: `${BOX_HEIGHT}px` });
    });
    this.drawArrows();
    this.paint();
  }

  /** Pixels of a point of the grid, where box c runs from 2c to 2c + 1 and the gap behind it to 2c + 2. */
  at([across, down]) {
    const place = (value, box, gap) => {
      const index = Math.floor(value / 2);
      const share = value - 2 * index;
      return index * (box + gap) + (share <= 1 ? share * box : box + (share - 1) * gap) + 1;
    };
    return [place(across, this.box, GAP_X), place(down, BOX_HEIGHT, GAP_Y)];
  }

  drawArrows() {
    const head = document.createElementNS(SVG, "marker");
    for (const [name, value] of Object.entries({
      id: "diagram-tip", viewBox: "0 0 8 8", refX: 7.2, refY: 4, markerWidth: 10, markerHeight: 10, markerUnits: "userSpaceOnUse", orient: "auto",
    })) head.setAttribute(name, value);
    const tip = document.createElementNS(SVG, "path");
    tip.setAttribute("d", "M0 0.6 L7.4 4 L0 7.4 Z");
    tip.setAttribute("class", "diagram-tip");
    head.append(tip);
    const paths = this.header.arrows.map((arrow, index) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("d", rounded(arrow.corners.map((corner) => this.at(corner))));
      path.setAttribute("class", "diagram-arrow");
      path.setAttribute("marker-end", "url(#diagram-tip)");
      const text = this.labels[index];
      setMath(text, arrow.label);
      text.hidden = !arrow.label;
      text.className = `diagram-label is-${arrow.side}`;
      const [left, top] = this.at(arrow.at);
      text.style.left = `${left}px`;
      text.style.top = `${top}px`;
      return path;
    });
    this.paths = paths;
    this.lines.replaceChildren(head, ...paths);
  }

  // Boxes -------------------------------------------------------------------------------------------------------

  paint() {
    const ground = groundOf(this.root);
    this.stages.forEach((stage, index) => {
      const { box, canvas, foot } = this.boxes[index];
      const chosen = index === this.selected;
      box.classList.toggle("is-chosen", chosen);
      box.setAttribute("aria-pressed", String(chosen));
      box.tabIndex = index === (this.selected ?? 0) ? 0 : -1;
      box.setAttribute("aria-label", `${stage.name}, ${stage.shape} ${stage.axes}`);
      setMath(foot, `${stage.shape}  ${stage.axes}`);
      const width = this.box - 14;
      const [rows, columns] = stage.size;
      const height = rows === 1 ? 16 : 40;
      const context = sizeCanvas(canvas, width, height);
      canvas.style.marginBlock = rows === 1 ? "12px" : "0";
      for (let row = 0; row < rows; row += 1) {
        for (let column = 0; column < columns; column += 1) {
          const value = stage.values[row * columns + column];
          context.fillStyle = `rgb(${heatColour(value, stage, this.luts[stage.scale], ground).join()})`;
          const left = Math.round((column * width) / columns);
          const top = Math.round((row * height) / rows);
          const right = Math.round(((column + 1) * width) / columns);
          const bottom = Math.round(((row + 1) * height) / rows);
          context.fillRect(left, top, right - left, bottom - top);
        }
      }
      if (stage.row !== null) {
        context.strokeStyle = this.theme.text;
        context.lineWidth = 1.5;
        const top = Math.round((stage.row * height) / rows);
        context.strokeRect(0.75, top + 0.25, width - 1.5, Math.round(height / rows) - 0.5);
      }
    });
    this.header.arrows.forEach(({ start, stop }, index) => {
      const near = this.selected !== null && stop === this.selected;
      this.paths[index].classList.toggle("is-near", near);
      this.labels[index].classList.toggle("is-near", near);
      this.boxes[start].box.classList.toggle("is-source", false);
    });
    this.header.arrows.forEach(({ start, stop }) => {
      if (stop === this.selected) this.boxes[start].box.classList.add("is-source");
    });
  }

  tell() {
    const stage = this.stages[this.selected];
    if (!stage) {
      this.words.replaceChildren(make("p", "", { text: "Choose a box to see its formula, its numbers and its parameters." }));
      return;
    }
    const head = make("div", "diagram-words-head");
    setMath(make("strong", "diagram-symbol", { parent: head }), stage.symbol);
    make("span", "diagram-words-name", { parent: head, text: stage.name });
    setMath(make("span", "diagram-shape", { parent: head }), `${stage.shape}: ${stage.axes}`);
    const formula = make("p", "diagram-formula");
    setMath(formula, `${stage.symbol} = ${stage.formula}`);
    const parameter = stage.parameter ? [make("p", "diagram-parameter", { text: `parameters: ${stage.parameter}` })] : [];
    const told = stage.told.map((text) => make("p", "diagram-told", { text, dir: "auto" }));
    this.words.replaceChildren(head, formula, make("p", "", { text: stage.about }), ...parameter, ...told);
  }

  // Acting ------------------------------------------------------------------------------------------------------

  choose(index) {
    this.selected = index;
    this.shared.tell(index);
    this.paint();
    this.tell();
    this.setTrigger("pick", { input: this.header.input, stage: index });
  }

  hint(event, index) {
    const stage = this.stages[index];
    const frame = this.boxes[index].canvas.getBoundingClientRect();
    const [rows, columns] = stage.size;
    const row = clamp(Math.floor(((event.clientY - frame.top) / frame.height) * rows), 0, rows - 1);
    const column = clamp(Math.floor(((event.clientX - frame.left) / frame.width) * columns), 0, columns - 1);
    const value = stage.values[row * columns + column];
    this.tooltip.show(
      [exactText(value), `${stage.axis_names[0]} ${stage.rows[row] ?? row}`, `${stage.axis_names[1]} ${stage.columns[column] ?? column}`],
      event.clientX,
      event.clientY,
    );
  }

  onKey(event, index) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    if (!(event.key in steps)) return;
    const [across, down] = steps[event.key];
    const here = this.frames[index];
    let best = null;
    this.frames.forEach((there, other) => {
      const ahead = (there.x - here.x) * across + (there.y - here.y) * down;
      const aside = Math.abs((there.x - here.x) * down) + Math.abs((there.y - here.y) * across);
      if (ahead <= 0) return;
      const far = ahead + 2 * aside;
      if (!best || far < best.far) best = { far, other };
    });
    event.preventDefault();
    event.stopPropagation();
    if (!best) return;
    this.boxes[index].box.tabIndex = -1;
    this.boxes[best.other].box.tabIndex = 0;
    this.boxes[best.other].box.focus();
  }
}

/** A way through corners, these rounded. */
function rounded(points) {
  const parts = [`M${points[0].join(" ")}`];
  for (let index = 1; index < points.length; index += 1) {
    const [x, y] = points[index];
    const next = points[index + 1];
    if (!next) {
      parts.push(`L${x} ${y}`);
      continue;
    }
    const [px, py] = points[index - 1];
    const radius = Math.min(8, (Math.abs(x - px) + Math.abs(y - py)) / 2, (Math.abs(next[0] - x) + Math.abs(next[1] - y)) / 2);
    const before = [x - Math.sign(x - px) * radius, y - Math.sign(y - py) * radius];
    const after = [x + Math.sign(next[0] - x) * radius, y + Math.sign(next[1] - y) * radius];
    parts.push(`L${before.join(" ")}`, `Q${x} ${y} ${after.join(" ")}`);
  }
  return parts.join(" ");
}

export default function (component) {
  return mountView(views, Diagram, component);
}
