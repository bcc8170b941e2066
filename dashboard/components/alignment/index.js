// Translators at work, side by side: the words produced so far, the source words that the decoder looks at, and the
// alignment matrix filling up. Steps are walked in the browser; Python is told where the walk has stopped.

const views = new WeakMap();
const BEAT = 900; // ms a step while it plays
const CELLS_WIDE = 380; // px for the cells of a matrix, where they may be as narrow as that asks
const percent = (share) => (share >= 0.995 ? "100 %" : share < 0.005 ? "<1 %" : `${Math.round(100 * share)} %`);

class Alignment {
  constructor(parent) {
    this.root = make("section", "view-root alignment", { parent });
    const toolbar = make("div", "view-toolbar", { parent: this.root });
    const buttons = make("div", "view-buttons", { parent: toolbar });
    this.first = makeButton(buttons, "«", "To the first word", () => this.go(0));
    this.back = makeButton(buttons, "‹", "One word back", () => this.go(this.step - 1));
    this.play = makeButton(buttons, "Play", "Watch the words come", () => this.toggle());
    this.on = makeButton(buttons, "›", "One word on", () => this.go(this.step + 1));
    this.last = makeButton(buttons, "»", "To the whole translation", () => this.go(this.steps));
    this.place = make("div", "view-note", { parent: toolbar });
    this.board = make("div", "alignment-board", { parent: this.root });
    this.bar = makeScaleBar(this.root);
    this.live = make("div", "view-live", { parent: this.root, "aria-live": "polite" });
    this.tooltip = makeTooltip(this.root);
    this.report = makeDelayed(250);
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    this.board.addEventListener("pointermove", (event) => this.hint(event));
    this.board.addEventListener("pointerleave", () => this.tooltip.hide());
    this.board.addEventListener("click", (event) => {
      const cell = event.target.closest?.("[data-row]");
      if (cell) this.go(Number(cell.dataset.row));
    });
  }

  update({ header, arrays }) {
    const fresh = !this.header || this.header.input !== header.input;
    this.header = header;
    this.lut = arrays.lut;
    this.steps = Math.max(0, ...header.panels.map((panel) => panel.target.length));
    this.panels = header.panels.map((panel, index) => ({ ...panel, weights: arrays[`weights_${index}`] }));
    if (fresh) {
      this.stop();
      this.shared = makeShared(header.state.step);
      this.step = Math.min(header.state.step, this.steps);
    } else if (this.shared.isNews(header.state.step)) this.step = Math.min(header.state.step, this.steps);
    this.build();
    this.paint();
    this.bar.update({ lut: this.lut, low: 0, high: 1, text: "share of the decoder's attention (rows sum to 1)" });
  }

  end() {
    this.stop();
    this.report.cancel();
    this.root.remove();
  }

  // Building ----------------------------------------------------------------------------------------------------

  build() {
    this.tooltip.hide();
    this.boxes = this.panels.map((panel) => this.panelBox(panel));
    this.board.replaceChildren(...this.boxes.map((box) => box.element));
  }

  panelBox(panel) {
    const element = make("article", "alignment-panel", { "aria-label": panel.title });
    const head = make("header", "", { parent: element });
    make("h3", "", { parent: head, text: panel.title });
    make("span", "view-note", { parent: head, text: panel.about });
    const source = make("div", "alignment-source", { parent: element, dir: "auto" });
    const words = panel.source.map((word) => {
      const box = make("span", "alignment-word", { parent: source });
      const text = make("b", "", { parent: box, text: word.text });
      text.classList.toggle("is-unknown", Boolean(word.unknown));
      if (word.unknown) box.title = "not in the translator's vocabulary";
      return { box, share: make("i", "", { parent: box, text: " " }) };
    });
    const target = make("div", "alignment-target", { parent: element, dir: "auto" });
    const produced = panel.target.map((word, row) => {
      const button = make("button", "alignment-word", { parent: target, text: word.text, type: "button" });
      button.dataset.row = String(row);
      return button;
    });
    const said = make("p", "alignment-said", { parent: element });
    const below = make("div", "alignment-below", { parent: element });
    const cells = panel.weights ? this.grid(panel, below) : this.nothing(panel, below);
    const guesses = make("div", "alignment-guesses", { parent: below });
    const bars = make("ol", "view-bars", { parent: guesses });
    return { element, words, produced, said, cells, bars };
  }

  /** The matrix: a table, so that a screen reader walks it too. */
  grid(panel, parent) {
    const scroller = make("div", "alignment-scroller", { parent });
    const table = make("table", "alignment-matrix", { parent: scroller, "aria-label": "Alignment matrix" });
    table.style.setProperty("--cell", `${clamp(Math.floor(CELLS_WIDE / panel.source.length), 9, 26)}px`);
    const head = make("tr", "", { parent: make("thead", "", { parent: table }) });
    make("td", "", { parent: head });
    for (const word of panel.source) {
      const cell = make("th", "", { parent: head, scope: "col" });
      make("span", "", { parent: cell, text: word.text });
    }
    const body = make("tbody", "", { parent: table });
    return panel.target.map((word, row) => {
      const line = make("tr", "", { parent: body });
      const name = make("th", "", { parent: line, scope: "row", text: word.text });
      name.dataset.row = String(row);
      const cells = panel.source.map((_, column) => {
        const cell = make("td", "", { parent: line });
        cell.dataset.row = String(row);
        cell.dataset.column = String(column);
        return cell;
      });
      return { line, cells };
    });
  }

  nothing(panel, parent) {
    const box = make("div", "alignment-nothing", { parent });
    make("b", "", { parent: box, text: "No attention" });
    make("span", "", { parent: box, text: panel.nothing });
    return [];
  }

  // Painting ----------------------------------------------------------------------------------------------------

  paint() {
    this.panels.forEach((panel, index) => this.paintPanel(panel, this.boxes[index]));
    const whole = this.step >= this.steps;
    this.place.textContent = whole ? `whole translation, ${this.steps} steps` : `step ${this.step + 1} of ${this.steps}`;
    // A disabled button would lose the focus, and the arrow keys with it.
    for (const button of [this.back, this.first]) button.setAttribute("aria-disabled", String(this.step === 0));
    for (const button of [this.on, this.last]) button.setAttribute("aria-disabled", String(whole));
    this.play.textContent = this.timer ? "Pause" : "Play";
    this.live.textContent = this.panels.map((panel) => `${panel.title}: ${this.sentence(panel)}`).join(" ");
  }

  paintPanel(panel, box) {
    const row = this.step < panel.target.length ? this.step : null;
    const columns = panel.source.length;
    panel.source.forEach((_, column) => {
      const share = row === null || !panel.weights ? NaN : panel.weights[row * columns + column];
      const { box: word, share: label } = box.words[column];
      const level = Number.isNaN(share) ? -1 : Math.round(255 * clamp(share, 0, 1));
      word.style.background = level < 0 ? "" : lutColour(this.lut, level);
      word.style.color = level < 0 ? "" : inkOn(this.lut, level);
      label.textContent = Number.isNaN(share) ? " " : percent(share);
    });
    box.produced.forEach((button, place) => {
      button.classList.toggle("is-coming", place > this.step);
      button.classList.toggle("is-current", place === this.step);
      button.setAttribute("aria-current", String(place === this.step));
    });
    box.cells.forEach(({ line, cells }, place) => {
      line.classList.toggle("is-current", place === row);
      cells.forEach((cell, column) => {
        const shown = place <= this.step;
        const level = Math.round(255 * clamp(panel.weights[place * columns + column], 0, 1));
        cell.style.background = shown ? lutColour(this.lut, level) : "";
      });
    });
    box.said.textContent = this.sentence(panel);
    const step = panel.guesses[row ?? -1];
    fillBars(
      box.bars,
      (step ?? []).map(([name, value]) => ({ name, value })),
      { low: 0, high: 1 },
    );
    box.bars.setAttribute("aria-label", "Most probable words of this step");
  }

  /** What happens at this step, in words. */
  sentence(panel) {
    if (this.step >= panel.target.length) return panel.whole;
    const word = panel.target[this.step].text;
    if (!panel.weights) return `“${word}” comes from the last state alone.`;
    const columns = panel.source.length;
    const weights = panel.weights.subarray(this.step * columns, (this.step + 1) * columns);
    const looked = strongest(weights, 3).filter((column, place) => place === 0 || weights[column] >= 0.1);
    return `“${word}” ← ${looked.map((column) => `${panel.source[column].text} ${percent(weights[column])}`).join(", ")}`;
  }

  // Acting ------------------------------------------------------------------------------------------------------

  go(step) {
    this.stop();
    this.show(step);
  }

  show(step) {
    this.step = clamp(step, 0, this.steps);
    this.paint();
    if (!this.timer) this.tell();
  }

  /** Python hears where the walk has stopped. */
  tell() {
    this.shared.tell(this.step);
    this.report.request(() => this.setState("view", { step: this.step, input: this.header.input }));
  }

  toggle() {
    if (this.timer) {
      this.stop();
      this.paint();
      this.tell();
      return;
    }
    if (this.step >= this.steps) this.step = 0;
    this.timer = setInterval(() => {
      if (this.step + 1 >= this.steps) this.stop();
      this.show(this.step + 1);
    }, BEAT);
    this.paint();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
  }

  hint(event) {
    const cell = event.target.closest?.("td[data-row]");
    const index = cell ? this.boxes.findIndex((box) => box.element.contains(cell)) : -1;
    if (index < 0) return this.tooltip.hide();
    const [row, column] = [Number(cell.dataset.row), Number(cell.dataset.column)];
    if (row > this.step) return this.tooltip.hide();
    const panel = this.panels[index];
    const value = panel.weights[row * panel.source.length + column];
    const lines = [exactText(value), `“${panel.target[row].text}” looks at “${panel.source[column].text}”`];
    return this.tooltip.show(lines, event.clientX, event.clientY);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") this.tooltip.hide();
    if (!(event.key in steps)) return;
    this.go(this.step + steps[event.key]);
    event.preventDefault();
    event.stopPropagation();
  }
}

export default function (component) {
  return mountView(views, Alignment, component);
}
