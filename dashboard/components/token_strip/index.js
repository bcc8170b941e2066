// A text whose tokens are coloured by a score. Tokens are buttons: click, Enter or Space chooses one; the arrow keys
// walk in reading order, which for right-to-left text runs to the left.

const views = new WeakMap();

class TokenStrip {
  constructor(parent) {
    this.root = make("section", "view-root token-strip", { parent });
    const toolbar = make("div", "view-toolbar", { parent: this.root });
    this.title = make("div", "view-title", { parent: toolbar });
    this.note = make("div", "view-note", { parent: toolbar });
    make("div", "view-gap", { parent: toolbar });
    this.scaleChoice = makeChoice(
      toolbar,
      "Colour scale",
      [
        ["linear", "Linear", "Colour in proportion to the value"],
        ["sqrt", "√", "Colour by the square root: tells small values apart"],
      ],
      (scale) => this.chooseScale(scale),
    );
    this.text = make("div", "strip-text", { parent: this.root, role: "toolbar", "aria-label": "Tokens by score" });
    this.bar = makeScaleBar(this.root);
    this.tooltip = makeTooltip(this.root);
    this.listen();
  }

  update({ header, arrays }) {
    const changedInput = this.header && this.header.input !== header.input;
    const first = !this.header;
    this.header = header;
    this.lut = arrays.lut;
    this.scores = arrays.scores;
    const { source, scale } = header.state;
    let news = first || changedInput;
    if (first || changedInput) {
      this.shared = { source: makeShared(source), scale: makeShared(scale) };
      this.source = source;
      this.scale = scale;
    } else {
      if (this.shared.source.isNews(source)) [this.source, news] = [source, true];
      if (this.shared.scale.isNews(scale)) this.scale = scale;
    }
    this.title.textContent = header.title;
    if (first || changedInput) this.build();
    this.paint();
    if (news) requestAnimationFrame(() => this.reveal()); // when it has its room
    if (!this.tooltip.element.hidden) this.hint(...this.hinted); // the tooltip tells the new value
  }

  end() {
    this.root.remove();
  }

  /** Scrolls to a token that was chosen from outside, by a link or a search. */
  reveal() {
    const token = this.tokens[this.source];
    if (token?.offsetParent) bringInside(this.text, token);
  }

  build() {
    this.tooltip.hide();
    this.text.dir = this.header.direction;
    this.tokens = this.header.tokens.map((token, index) => {
      const button = make("button", "strip-token", { text: labelText(token), type: "button" });
      button.dataset.index = String(index);
      button.dir = "auto";
      button.classList.toggle("is-special", Boolean(token.special));
      button.classList.toggle("is-unknown", Boolean(token.unknown));
      button.classList.toggle("continues", Boolean(token.continues));
      button.classList.toggle("is-continued", Boolean(this.header.tokens[index + 1]?.continues));
      return button;
    });
    this.text.replaceChildren(...this.tokens);
    const stop = this.source ?? 0;
    this.tokens.forEach((button, index) => {
      button.tabIndex = index === stop ? 0 : -1;
    });
  }

  paint() {
    const [low, high] = this.header.limits;
    const levels = levelsOf(this.scores, low, high, this.scale);
    this.tokens.forEach((button, index) => {
      const token = this.header.tokens[index];
      const level = levels[index];
      button.style.background = level < 0 ? "transparent" : lutColour(this.lut, level);
      button.style.color = level < 0 ? "" : inkOn(this.lut, level);
      button.classList.toggle("is-source", index === this.source);
      button.classList.toggle("is-beyond", this.isBeyond(index));
      if (index === this.source) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      button.setAttribute("aria-label", [`${this.header.start + index} ${token.text}`, ...this.lines(index)].join(", "));
    });
    const { unit } = this.header;
    this.bar.update({ lut: this.lut, low, high, scale: this.scale, text: unit, over: this.header.over });
    this.scaleChoice.update(this.scale);
    this.note.textContent = this.remark();
  }

  remark() {
    const parts = [`${this.tokens.length} tokens`];
    const token = this.header.tokens[this.source];
    if (token) parts.push(`row of token ${this.header.start + this.source} “${labelText(token)}”`);
    if (this.header.direction === "rtl") parts.push("right to left");
    return parts.join(" · ");
  }

  lines(index) {
    const token = this.header.tokens[index];
    const beyond = this.isBeyond(index) ? ["above the colour scale"] : [];
    return [exactText(this.scores[index]), ...beyond, ...tokenRemarks(token)];
  }

  isBeyond(index) {
    return this.header.over && this.scores[index] > Math.fround(this.header.limits[1]);
  }

  // Acting ------------------------------------------------------------------------------------------------------

  chooseScale(scale) {
    if (scale === this.scale) return;
    this.scale = scale;
    this.shared.scale.tell(scale);
    this.paint();
    this.setState("view", { scale });
  }

  choose(index) {
    if (this.alone) return;
    this.source = index;
    this.shared.source.tell(index);
    this.paint();
    this.setTrigger("token", { index, input: this.header.input });
  }

  hint(index, x, y) {
    this.hinted = [index, x, y];
    const [value, ...rest] = this.lines(index);
    this.tooltip.show([value, `token ${this.header.start + index} “${this.header.tokens[index].text}”`, ...rest], x, y);
  }

  listen() {
    const indexOf = (event) => {
      const button = event.target.closest?.(".strip-token");
      return button ? Number(button.dataset.index) : null;
    };
    this.text.addEventListener("pointermove", (event) => {
      const index = indexOf(event);
      if (index === null) this.tooltip.hide();
      else this.hint(index, event.clientX, event.clientY);
    });
    this.text.addEventListener("pointerleave", () => this.tooltip.hide());
    this.text.addEventListener("focusin", (event) => {
      const index = indexOf(event);
      if (index === null || !event.target.matches(":focus-visible")) return;
      const box = event.target.getBoundingClientRect();
      this.hint(index, box.left, box.bottom - 8);
    });
    this.text.addEventListener("focusout", () => this.tooltip.hide());
    this.text.addEventListener("click", (event) => {
      const index = indexOf(event);
      if (index !== null) this.choose(index);
    });
    this.text.addEventListener("keydown", (event) => this.onKey(event, indexOf(event)));
  }

  onKey(event, index) {
    if (index === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const forward = this.header.direction === "rtl" ? -1 : 1;
    const steps = { ArrowRight: forward, ArrowLeft: -forward, ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") this.tooltip.hide();
    if (!(event.key in steps)) return;
    const next = clamp(index + steps[event.key], 0, this.tokens.length - 1);
    this.tokens[index].tabIndex = -1;
    this.tokens[next].tabIndex = 0;
    this.tokens[next].focus();
    event.preventDefault();
    event.stopPropagation();
  }
}

export default function (component) {
  return mountView(views, TokenStrip, component);
}
