// Evidence over a text: a row for each method and target, the words on their colours. A word that is pointed at or
// marked is shown in every row. Words are buttons: the arrow keys walk, Enter or Space marks, Escape unmarks.

const views = new WeakMap();

class EvidenceWords {
  constructor(parent) {
    this.root = make("section", "view-root evidence-words", { parent, "aria-label": "Evidence" });
    const toolbar = make("div", "view-toolbar", { parent: this.root, role: "toolbar", "aria-label": "Drawing" });
    this.title = make("div", "view-title", { parent: toolbar });
    const controls = make("div", "view-controls", { parent: toolbar });
    this.signs = makeSignChoice(controls, (positive) => this.change({ positive }));
    this.rows = make("div", "evidence-rows", { parent: this.root });
    const foot = make("div", "evidence-foot", { parent: this.root });
    this.bars = makeSignBars(foot);
    this.note = make("div", "view-note", { parent: foot });
    this.tooltip = makeTooltip(this.root);
    this.sending = makeDelayed(120);
    this.listen();
  }

  update({ header, arrays }) {
    const first = !this.header;
    const changedInput = !first && this.header.input !== header.input;
    this.header = header;
    this.luts = { true: arrays.signed, false: arrays.unsigned };
    this.scores = arrays.scores;
    const { marked, ...settings } = header.state;
    const at = first || changedInput ? 0 : this.texts()[0].scrollTop;
    let news = first || changedInput;
    if (first || changedInput) {
      this.shared = { marked: makeShared(marked), settings: makeShared(settings) };
      this.marked = marked;
      this.settings = { ...settings };
    } else {
      if (this.shared.marked.isNews(marked)) [this.marked, news] = [marked, true];
      if (this.shared.settings.isNews(settings)) this.settings = { ...settings };
    }
    this.pointed = null;
    this.tooltip.hide();
    this.build();
    for (const text of this.texts()) text.scrollTop = at;
    this.paint();
    if (news) requestAnimationFrame(() => this.reveal()); // when it has its room
  }

  /** Scrolls to a word that was marked from outside, by a link or a search. */
  reveal() {
    for (const { words } of this.lines) {
      const word = words[this.marked];
      if (word?.offsetParent) bringInside(word.parentElement, word);
    }
  }

  end() {
    this.sending.cancel();
    this.root.remove();
  }

  build() {
    const { header } = this;
    this.title.textContent = header.title;
    const held = this.rows.querySelector(".evidence-word:focus");
    const heldLine = held && panelName(this.lines[Number(held.parentElement.dataset.line)].panel);
    this.lines = [];
    const several = header.cards.some((card) => card.panels.length > 1);
    const rows = header.cards.flatMap((card) => card.panels.map((panel, order) => this.makeRow(card, panel, order, several)));
    this.rows.replaceChildren(...rows);
    this.stopAt(this.lines[0].words[0]);
    const again = held && this.lines.find(({ panel }) => panelName(panel) === heldLine);
    again?.words[Number(held.dataset.index)]?.focus({ preventScroll: true });
    this.note.textContent = `${header.tokens.length} ${header.unit} · colours end at the largest |score| of each method`;
    if (header.direction === "rtl") this.note.textContent += " · right to left";
  }

  makeRow(card, panel, order, several) {
    const element = make("div", "evidence-row");
    element.classList.toggle("is-second", order > 0);
    const names = make("div", "evidence-names", { parent: element });
    if (order === 0) {
      const head = make("div", "evidence-head", { parent: names });
      make("span", "evidence-method", { parent: head, text: card.method, title: card.method });
    }
    const target = make("div", "evidence-target", { parent: names });
    if (several) {
      const name = panel.target ? `for ${panel.target}` : "the same for every class";
      make("span", "", { parent: target, text: name, title: name });
    }
    const value = make("span", "evidence-value", { parent: target, title: "Where the colours end: the largest |score|" });
    const text = make("div", "evidence-text", { parent: element, role: "group", "aria-label": panelName(panel) });
    text.dir = this.header.direction;
    const words = this.header.tokens.map((token, index) => {
      const button = make("button", "evidence-word", { parent: text, text: labelText(token), type: "button" });
      button.setAttribute("aria-pressed", "false");
      button.dataset.index = String(index);
      button.dir = "auto";
      button.classList.toggle("continues", Boolean(token.continues));
      button.classList.toggle("is-continued", Boolean(this.header.tokens[index + 1]?.continues));
      button.tabIndex = -1;
      return button;
    });
    const said = make("div", "evidence-said", { parent: element });
    const facts = make("div", "evidence-facts", { parent: said, id: `evidence-facts-${panel.index}` });
    fillFacts(facts, panel);
    text.setAttribute("aria-describedby", facts.id);
    if (order === card.panels.length - 1) fillClaims(make("div", "evidence-claims", { parent: said }), panel);
    text.dataset.line = String(this.lines.length);
    this.lines.push({ panel, words, value });
    return element;
  }

  texts() {
    return this.rows.querySelectorAll(".evidence-text");
  }

  /** Makes a word the one that the Tab key leads to. */
  stopAt(word) {
    if (this.stop) this.stop.tabIndex = -1;
    this.stop = word;
    word.tabIndex = 0;
  }

  paint() {
    const { positive } = this.settings;
    const ground = groundOf(this.root);
    for (const { panel, words } of this.lines) {
      const lut = this.luts[panel.signed];
      words.forEach((button, index) => {
        const level = 4 * shareLevel(shareOf(this.valueAt(panel, index), panel, positive), panel.signed);
        const [red, green, blue, opacity] = lut.subarray(level, level + 4);
        button.style.background = `rgb(${red} ${green} ${blue} / ${opacity / 255})`;
        const mixed = [red, green, blue].map((part, at) => ground[at] + ((part - ground[at]) * opacity) / 255);
        button.style.color = inkOn(mixed, 0);
        const told = `${labelText(this.header.tokens[index])}, ${spokenScore(this.valueAt(panel, index), panel)}`;
        button.setAttribute("aria-label", told);
      });
    }
    this.signs.update(positive);
    this.signs.element.hidden = !this.lines.some(({ panel }) => panel.signed);
    this.bars.update({ panels: this.lines.map(({ panel }) => panel), positive, luts: this.luts });
    this.drawMarks();
  }

  drawMarks() {
    for (const word of this.rows.querySelectorAll(".is-marked, .is-pointed")) {
      word.classList.remove("is-marked", "is-pointed");
      word.setAttribute("aria-pressed", "false");
    }
    const shown = this.pointed ?? this.marked;
    for (const { panel, words, value } of this.lines) {
      words[this.marked]?.classList.add("is-marked");
      words[this.marked]?.setAttribute("aria-pressed", "true");
      words[this.pointed]?.classList.add("is-pointed");
      value.textContent = shown === null ? limitText(panel) : shortText(this.valueAt(panel, shown));
      value.classList.toggle("is-live", shown !== null);
    }
  }

  valueAt(panel, index) {
    return this.scores[panel.index * this.header.tokens.length + index];
  }

  // Acting ------------------------------------------------------------------------------------------------------

  change(settings) {
    Object.assign(this.settings, settings);
    this.shared.settings.tell(this.settings);
    this.paint();
    this.setState("view", { ...this.settings, input: this.header.input });
  }

  /** Marks a word in all rows; null unmarks. */
  choose(index) {
    this.marked = index;
    this.shared.marked.tell(index);
    this.drawMarks();
    this.sending.request(() => this.setState("word", { at: index, input: this.header.input }));
  }

  hint(button, x, y) {
    const index = Number(button.dataset.index);
    const { panel } = this.lines[Number(button.parentElement.dataset.line)];
    this.pointed = index;
    this.drawMarks();
    const [value, ...rest] = scoreLines(this.valueAt(panel, index), panel);
    const token = this.header.tokens[index];
    this.tooltip.show([value, `“${token.text}”`, ...rest, ...tokenRemarks(token)], x, y);
  }

  leave() {
    this.pointed = null;
    this.tooltip.hide();
    this.drawMarks();
  }

  listen() {
    const wordOf = (event) => event.target.closest?.(".evidence-word");
    this.rows.addEventListener("pointermove", (event) => {
      const word = wordOf(event);
      if (word) this.hint(word, event.clientX, event.clientY);
      else if (this.pointed !== null) this.leave();
    });
    this.rows.addEventListener("pointerleave", () => this.leave());
    const follow = ({ target }) => this.texts().forEach((text) => (text.scrollTop = target.scrollTop));
    this.rows.addEventListener("scroll", follow, true); // every row shows the same part of a long text
    this.rows.addEventListener("focusin", (event) => {
      const word = wordOf(event);
      if (!word) return;
      this.stopAt(word);
      if (!word.matches(":focus-visible")) return;
      const box = word.getBoundingClientRect();
      this.hint(word, box.left, box.bottom - 8);
    });
    this.rows.addEventListener("focusout", () => this.leave());
    this.rows.addEventListener("click", (event) => {
      const word = wordOf(event);
      if (!word) return;
      const index = Number(word.dataset.index);
      this.choose(index === this.marked ? null : index);
    });
    this.rows.addEventListener("keydown", (event) => this.onKey(event, wordOf(event)));
  }

  onKey(event, word) {
    if (!word || event.ctrlKey || event.metaKey || event.altKey) return;
    const forward = this.header.direction === "rtl" ? -1 : 1;
    const end = this.header.tokens.length;
    const steps = { ArrowRight: [0, forward], ArrowLeft: [0, -forward], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    Object.assign(steps, { Home: [0, -end], End: [0, end] });
    if (event.key === "Escape") {
      this.choose(null);
      this.leave();
    } else if (event.key in steps) {
      const [down, along] = steps[event.key];
      const line = clamp(Number(word.parentElement.dataset.line) + down, 0, this.lines.length - 1);
      const index = clamp(Number(word.dataset.index) + along, 0, this.header.tokens.length - 1);
      this.lines[line].words[index].focus();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}

export default function (component) {
  return mountView(views, EvidenceWords, component);
}
