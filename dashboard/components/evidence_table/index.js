// Evidence for every predicted word: a column a word that the model predicts, a row a token that it has read. The
// heads of the columns are buttons: the arrow keys walk, Enter or Space chooses a word, Escape none.

const views = new WeakMap();

class EvidenceTable {
  constructor(parent) {
    this.root = make("section", "view-root evidence-table", { parent, "aria-label": "Evidence for every word" });
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
      (positive) => this.change(positive),
    );
    this.frame = make("div", "table-frame", { parent: this.root });
    this.scale = makeScaleBar(this.root);
    this.note = make("div", "view-note", { parent: this.root });
    this.said = make("div", "table-said", { parent: this.root });
    this.tooltip = makeTooltip(this.root);
    this.sending = makeDelayed(120);
    this.listen();
  }

  update({ header, arrays }) {
    const known = this.header?.input === header.input;
    const { marked, positive } = header.state;
    this.header = header;
    this.scores = arrays.scores;
    this.colours = arrays.colours;
    if (!known) {
      this.shared = { marked: makeShared(marked), positive: makeShared(positive) };
      this.marked = marked;
      this.positive = positive;
    } else {
      if (this.shared.marked.isNews(marked)) this.marked = marked;
      if (this.shared.positive.isNews(positive)) this.positive = positive;
    }
    this.tooltip.hide();
    this.build();
    this.paint();
    this.drawMark();
  }

  end() {
    this.sending.cancel();
    this.root.remove();
  }

  build() {
    const { title, tokens, predicted, panel } = this.header;
    this.title.textContent = title;
    const place = [this.frame.scrollLeft, this.frame.scrollTop];
    const table = make("table", "", { "aria-label": title });
    const head = make("tr", "", { parent: make("thead", "", { parent: table }) });
    const corner = make("th", "table-corner", { parent: head, scope: "col" });
    make("div", "", { parent: corner, text: "predicted →" });
    make("div", "", { parent: corner, text: "read ↓" });
    this.words = predicted.map((word, column) => this.makeWord(head, word, column));
    const body = make("tbody", "", { parent: table });
    const own = tokens.findIndex((token) => token.segment);
    this.rows = tokens.map((token, row) => {
      const line = make("tr", row > 0 && row === own ? "is-own" : "", { parent: body });
      const name = make("th", token.special ? "is-special" : "", { parent: line, scope: "row", text: labelText(token) });
      name.dir = "auto";
      name.title = token.text;
      const cells = predicted.map((_, column) => {
        const cell = make("td", "", { parent: line });
        cell.dataset.row = String(row);
        cell.dataset.column = String(column);
        return cell;
      });
      return { name, cells };
    });
    this.frame.replaceChildren(table);
    [this.frame.scrollLeft, this.frame.scrollTop] = place;
    const unread = this.scores.some((value) => Number.isNaN(value)) ? " · grey: not read yet" : "";
    const side = own > 0 ? " · below the line: what the decoder itself has read" : "";
    this.note.textContent = `${predicted.length} predicted words, ${tokens.length} tokens read${unread}${side}`;
    const lines = [["Shows", panel.claims], ["Beware", panel.cannot], ...panel.facts.map((text) => ["", text])];
    this.said.replaceChildren(
      ...lines
        .filter(([, text]) => text)
        .map(([name, text]) => {
          const line = make("p", "");
          if (name) make("b", "", { parent: line, text: name });
          line.append(` ${text}`);
          return line;
        }),
    );
  }

  makeWord(head, word, column) {
    const button = make("button", "table-word", { parent: make("th", "", { parent: head, scope: "col" }), type: "button" });
    const name = make("span", word.special ? "is-special" : "", { parent: button, text: labelText(word) });
    name.dir = "auto";
    const share = this.header.probabilities[column];
    if (share !== undefined) {
      make("span", "table-share", { parent: button, text: percentText(share) });
      button.title = `“${word.text}”, probability ${exactText(share)}`;
    }
    button.dataset.column = String(column);
    button.tabIndex = column === (this.marked ?? 0) ? 0 : -1;
    return button;
  }

  paint() {
    const { panel } = this.header;
    const palette = mixedOver(this.colours, groundOf(this.root));
    const decimals = Math.max(2 - Math.floor(Math.log10(panel.limit)), 0);
    this.rows.forEach(({ cells }, row) => {
      cells.forEach((cell, column) => {
        const value = this.valueAt(row, column);
        cell.classList.toggle("is-unread", Number.isNaN(value));
        if (Number.isNaN(value)) return;
        const level = this.levelOf(value);
        cell.style.background = lutColour(palette, level);
        cell.style.color = inkOn(palette, level);
        cell.textContent = cellText(value, decimals);
      });
    });
    this.signs.update(this.positive);
    this.signs.element.hidden = !panel.signed;
    const cut = panel.signed && this.positive;
    this.scale.update({
      lut: cut ? stretched(palette) : palette,
      low: panel.signed && !cut ? -panel.limit : 0,
      high: panel.limit,
      text: panel.signed ? "score: blue against, red for the word" : "score, no sign: not for or against",
    });
  }

  levelOf(value) {
    const share = clamp(value / this.header.panel.limit, this.positive ? 0 : -1, 1);
    return Math.round(clamp(this.header.panel.signed ? 127.5 * (share + 1) : 255 * share, 0, 255));
  }

  valueAt(row, column) {
    return this.scores[column * this.header.tokens.length + row];
  }

  drawMark() {
    this.words.forEach((word, column) => {
      word.classList.toggle("is-marked", column === this.marked);
      word.setAttribute("aria-pressed", String(column === this.marked));
    });
    for (const { cells } of this.rows) cells.forEach((cell, column) => cell.classList.toggle("is-marked", column === this.marked));
  }

  // Acting ------------------------------------------------------------------------------------------------------

  change(positive) {
    this.positive = positive;
    this.shared.positive.tell(positive);
    this.paint();
    this.setState("view", { positive, input: this.header.input });
  }

  /** Chooses a predicted word; null chooses none. */
  choose(column) {
    this.marked = column;
    this.shared.marked.tell(column);
    this.drawMark();
    this.sending.request(() => this.setState("word", { at: column, input: this.header.input }));
  }

  hint(cell, x, y) {
    const row = Number(cell.dataset.row);
    const column = Number(cell.dataset.column);
    const { tokens, predicted, panel } = this.header;
    const value = this.valueAt(row, column);
    this.point(row, column);
    const names = `“${tokens[row].text}” for the word “${predicted[column].text}”`;
    if (Number.isNaN(value)) {
      this.tooltip.show(["not read yet", names], x, y);
      return;
    }
    const lines = [exactText(value), names, `${shortText((100 * Math.abs(value)) / panel.limit)} % of the largest |score|`];
    if (panel.signed && value !== 0) lines.push(value > 0 ? "makes the word likelier" : "makes the word less likely");
    if (tokens[row].segment) lines.push("read by the decoder itself");
    this.tooltip.show([...lines, ...tokenRemarks(tokens[row])], x, y);
  }

  point(row, column) {
    this.rows.forEach(({ name }, index) => name.classList.toggle("is-pointed", index === row));
    this.words.forEach((word, index) => word.classList.toggle("is-pointed", index === column));
  }

  leave() {
    this.point(null, null);
    this.tooltip.hide();
  }

  listen() {
    this.frame.addEventListener("pointermove", (event) => {
      const cell = event.target.closest?.("td");
      if (cell) this.hint(cell, event.clientX, event.clientY);
      else this.leave();
    });
    this.frame.addEventListener("pointerleave", () => this.leave());
    this.frame.addEventListener("click", (event) => {
      const place = event.target.closest?.("[data-column]");
      if (!place) return;
      const column = Number(place.dataset.column);
      this.choose(column === this.marked ? null : column);
    });
    this.frame.addEventListener("keydown", (event) => this.onKey(event));
  }

  onKey(event) {
    const word = event.target.closest?.(".table-word");
    if (!word || event.ctrlKey || event.metaKey || event.altKey) return;
    const column = Number(word.dataset.column);
    const last = this.words.length - 1;
    const goals = { ArrowRight: column + 1, ArrowLeft: column - 1, Home: 0, End: last };
    if (event.key === "Escape") {
      this.choose(null);
    } else if (event.key in goals) {
      word.tabIndex = -1;
      const next = this.words[clamp(goals[event.key], 0, last)];
      next.tabIndex = 0;
      next.focus();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}

/** A score as short as its cell: a minus sign before digits that are not all 0. */
function cellText(value, decimals) {
  const text = decimals > 6 ? value.toExponential(0) : value.toFixed(decimals);
  return (Number(text) === 0 ? text.replace("-", "") : text).replaceAll("-", "−");
}

/** A probability in percent, short. */
function percentText(share) {
  const percent = 100 * share;
  return percent > 0 && percent < 0.01 ? "< 0.01 %" : `${Number(percent.toPrecision(2))} %`;
}

/** Red, green and blue of 256 colours with opacity as they look on a ground. */
function mixedOver(colours, ground) {
  return Uint8Array.from({ length: 768 }, (_, index) => {
    const level = Math.floor(index / 3);
    const part = index % 3;
    const opacity = colours[4 * level + 3] / 255;
    return Math.round(ground[part] + (colours[4 * level + part] - ground[part]) * opacity);
  });
}

/** The upper half of a palette over its whole length. */
function stretched(palette) {
  return Uint8Array.from({ length: 768 }, (_, index) => palette[3 * (128 + (Math.floor(index / 3) >> 1)) + (index % 3)]);
}

export default function (component) {
  return mountView(views, EvidenceTable, component);
}
