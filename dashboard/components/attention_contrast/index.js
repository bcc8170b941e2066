// Other attention over the same positions: the observed distribution, one candidate beside it, and what the model says
// with each. Chips choose the candidate. Where the user may edit, bars (text) or patches (picture) are dragged; the
// other weights keep their proportions, distance and, with a decoder, the prediction follow at once, and the weights
// are sent when they are let go.

const BY_HAND = "by hand";
const LN2 = Math.log(2);
const views = new WeakMap();

class AttentionContrast {
  constructor(parent) {
    this.root = make("section", "view-root attention-contrast", { parent, "aria-label": "Attention contrast" });
    this.buildToolbar();
    this.verdict = make("div", "contrast-verdict", { parent: this.root });
    this.chips = make("div", "contrast-chips", { parent: this.root, role: "radiogroup", "aria-label": "Candidates" });
    const meters = make("div", "contrast-meters", { parent: this.root });
    this.distance = makeMeter(meters);
    this.change = makeMeter(meters);
    this.buildEditing();
    this.frame = make("div", "contrast-frame", { parent: this.root });
    const foot = make("div", "contrast-foot", { parent: this.root });
    this.bar = makeShadeBar(foot);
    this.note = make("div", "view-note", { parent: foot });
    this.held = make("div", "view-note contrast-held", { parent: this.root });
    this.live = make("div", "view-live", { parent: this.root, role: "status", "aria-live": "polite" });
    this.tooltip = makeTooltip(this.root);
    this.sending = makeDelayed(120);
    this.settling = makeDelayed(350);
    this.speaking = makeDelayed(250);
    this.scale = "sqrt";
    this.turn = 0;
    this.observer = new ResizeObserver(() => this.header && this.stage.layOut());
    this.observer.observe(this.root);
    this.listen();
  }

  buildToolbar() {
    const toolbar = make("div", "view-toolbar", { parent: this.root, role: "toolbar", "aria-label": "Drawing" });
    this.title = make("div", "view-title", { parent: toolbar });
    const controls = make("div", "view-controls", { parent: toolbar });
    this.scaleChoice = makeChoice(
      controls,
      "Scale",
      [
        ["linear", "Linear", "Colours and bars in proportion to the weight"],
        ["sqrt", "√", "Colours and bars by the square root: small weights can be seen"],
      ],
      (scale) => {
        this.scale = scale;
        this.paint();
      },
    );
    const title = "Change the weights by hand, from those that are shown";
    this.editButton = make("button", "view-button", { parent: controls, text: "Edit by hand", title, type: "button" });
    this.editButton.addEventListener("click", () => this.setEditing(!this.editing));
  }

  buildEditing() {
    this.tools = make("div", "contrast-tools", { parent: this.root, role: "group", "aria-label": "Weights by hand" });
    const buttons = make("div", "view-buttons", { parent: this.tools });
    const observed = () => Float64Array.from(this.weightsOf(0));
    const uniform = () => new Float64Array(this.header.positions).fill(1 / this.header.positions);
    const start = () => Float64Array.from(this.start);
    for (const [text, title, weights] of [
      ["Observed", "Start from the observed weights", observed],
      ["Uniform", "The same weight everywhere", uniform],
      ["Reset", "Undo all changes by hand", start],
    ]) {
      const button = make("button", "view-button", { parent: buttons, text, title, type: "button" });
      button.addEventListener("click", () => this.take(weights()));
    }
    this.hint = make("div", "view-note", { parent: this.tools });
  }

  update({ header, arrays }) {
    const first = !this.header;
    const changedInput = !first && this.header.input !== header.input;
    this.header = header;
    this.arrays = arrays;
    const { shown } = header.state;
    if (first || changedInput) {
      this.shared = makeShared(shown);
      this.shown = shown;
      this.forgetHand();
      this.makeStage();
    } else {
      if (this.shared.isNews(shown)) this.shown = shown;
      this.shown = clamp(this.shown, 0, header.candidates.length - 1);
      if (!header.editable) this.setEditing(false);
      if (!this.editing && !this.alone) this.forgetHand(); // the blob has what the user made
    }
    this.title.textContent = header.title;
    this.fillSentences();
    this.editButton.hidden = !header.editable || header.positions < 2;
    this.stage.layOut();
    this.paint();
  }

  end() {
    this.observer.disconnect();
    this.sending.cancel();
    this.settling.cancel();
    this.speaking.cancel();
    this.root.remove();
  }

  makeStage() {
    this.tooltip.hide();
    this.frame.replaceChildren();
    this.stage = this.header.grid ? new PictureStage(this) : new TextStage(this);
    this.hint.textContent = `${this.stage.hint} The other weights are rescaled so that all sum to 1.`;
  }

  fillSentences() {
    const { header } = this;
    const [lead, ...rest] = header.verdict;
    const told = [lead, rest.join(" ")].filter(Boolean);
    this.verdict.replaceChildren(...told.map((text) => make("p", "", { text })));
    this.verdict.hidden = !header.verdict.length;
    this.held.replaceChildren();
    if (header.held) {
      make("b", "", { parent: this.held, text: "Held fixed" });
      this.held.append(` ${header.held}`);
    }
    this.held.hidden = !header.held;
    const count = header.positions;
    const notes = [header.grid ? `${header.grid.join(" × ")} patches` : counted(count, "token")];
    if (header.prefix.length) notes.push(`${counted(header.prefix.length, "position")} before them`);
    if (header.rows > 1) notes.push(`means of ${countText(header.rows)} rows that are changed together`);
    if (header.direction === "rtl") notes.push("right to left");
    this.note.textContent = notes.join(" · ");
  }

  // What is shown -------------------------------------------------------------------------------------------------

  weightsOf(index) {
    const { positions } = this.header;
    return this.arrays.weights.subarray(index * positions, (index + 1) * positions);
  }

  outputsOf(index) {
    const count = this.header.labels.length;
    return this.arrays.outputs.subarray(index * count, (index + 1) * count);
  }

  candidate(index) {
    return { ...this.header.candidates[index], index, weights: this.weightsOf(index), outputs: this.outputsOf(index) };
  }

  /** What stands beside the observed attention; null where that stands alone. */
  current() {
    if (this.handShown) return this.byHand();
    return this.shown ? this.candidate(this.shown) : null;
  }

  /** The weights made here, with the numbers of a candidate that is the same, else with those that follow from them. */
  byHand() {
    const same = this.header.candidates.findIndex((_, index) => isSame(this.weightsOf(index), this.hand));
    const made = { name: BY_HAND, index: this.header.hand, weights: this.hand, made: true };
    if (same >= 0) return { ...this.candidate(same), ...made };
    const jsd = jensenShannon(this.hand, this.weightsOf(0));
    const outputs = this.decoded(this.hand);
    if (!outputs || this.header.change_name !== "TVD") return { ...made, jsd, outputs, change: null, same: null };
    const change = totalVariation(outputs, this.outputsOf(0));
    return { ...made, jsd, outputs, change, same: Math.fround(change) <= Math.fround(this.header.epsilon) };
  }

  /** Softmax of the positions' weighted logits; null where the blob does not hold them. */
  decoded(weights) {
    const { decoder } = this.arrays;
    if (!decoder) return null;
    const count = this.header.labels.length;
    const logits = new Float64Array(count);
    weights.forEach((weight, position) => {
      if (weight === 0) return;
      for (let label = 0; label < count; label += 1) logits[label] += weight * decoder[position * count + label];
    });
    const most = logits.reduce((left, right) => Math.max(left, right), -Infinity);
    const shares = logits.map((logit) => Math.exp(logit - most));
    const sum = shares.reduce((left, right) => left + right, 0);
    return shares.map((share) => share / sum);
  }

  /** Weight at which colours and bars end: the largest that is drawn, rounded up. */
  top(shown) {
    const last = this.stage.measured;
    const of = (weights) => weights.subarray(last).reduce((most, weight) => Math.max(most, weight), 0);
    return niceEnd(Math.max(of(this.weightsOf(0)), shown ? of(shown.weights) : 0));
  }

  paint() {
    const { header } = this;
    const shown = this.current();
    this.root.style.setProperty("--contrast-observed", header.colours[0]);
    this.root.style.setProperty("--contrast-shown", header.colours[1]);
    this.scaleChoice.update(this.scale);
    this.editButton.setAttribute("aria-pressed", String(Boolean(this.editing)));
    this.tools.hidden = !this.editing;
    this.paintChips();
    this.paintMeters(shown);
    const observed = this.candidate(0);
    const told = toldLabels(observed.outputs, shown?.outputs);
    const top = this.top(shown);
    const ground = this.stage.ground();
    const shades = shadesOn(this.arrays.shades, ground);
    this.stage.paint({ observed, shown, told, top, ground, shades });
    const beyond = [observed, shown].some((entry) => entry?.weights.some((weight) => weight > top + SAME_WEIGHTS));
    this.bar.update({ shades, ground, top, scale: this.scale, beyond });
  }

  /** A chip for each candidate, and one for weights made here that no candidate stands for. */
  paintChips() {
    const entries = this.header.candidates.map((entry, index) => ({ ...entry, index }));
    if (this.hand) {
      const made = { ...this.byHand(), hand: true };
      if (this.header.hand === null) entries.push(made);
      else entries[this.header.hand] = made;
    }
    const held = this.chips.querySelector(":focus");
    const place = held ? [...this.chips.children].indexOf(held) : -1;
    while (this.chips.children.length > entries.length) this.chips.lastChild.remove();
    while (this.chips.children.length < entries.length) makeChip(this.chips);
    this.entries = entries;
    entries.forEach((entry, order) => {
      const chip = this.chips.children[order];
      const chosen = this.handShown ? Boolean(entry.hand) : entry.index === this.shown;
      const texts = { numbers: this.numbersText(entry), same: this.sameText(entry) };
      fillChip(chip, entry, { chosen, observed: order === 0, ...texts });
    });
    if (place >= 0) this.chips.children[Math.min(place, entries.length - 1)].focus({ preventScroll: true });
    this.chips.hidden = entries.length < 2;
    this.revealChip();
  }

  /** Scrolls the chosen chip into sight where there are many, without moving the page. */
  revealChip() {
    const chip = this.chips.querySelector('[aria-checked="true"]');
    const [box, frame] = [chip ?? this.chips, this.chips].map((element) => element.getBoundingClientRect());
    if (box.top < frame.top) this.chips.scrollTop += box.top - frame.top - 4;
    else if (box.bottom > frame.bottom) this.chips.scrollTop += box.bottom - frame.bottom + 4;
  }

  paintMeters(shown) {
    const { header } = this;
    const others = header.candidates.slice(1);
    this.distance.element.parentElement.hidden = !shown && !others.length;
    const share = header.jsd_bound > 0 && shown ? Math.round((100 * shown.jsd) / header.jsd_bound) : null;
    this.distance.update({
      name: "JSD from observed",
      value: shown && shown.jsd,
      text: shown ? `${this.approximate(shown)}${numberText(shown.jsd)} nats` : "",
      remark: share === null ? "" : `${share} % of the farthest`,
      high: LN2,
      scale: "linear",
      dots: others.map((entry) => entry.jsd),
      ticks: [
        { at: header.jsd_bound, text: `farthest possible ${shortText(header.jsd_bound)}` },
        { at: LN2, text: "ln 2", above: true },
      ],
    });
    const changes = [...others.map((entry) => entry.change), shown?.change ?? 0, 2 * header.epsilon];
    const high = header.change_bound ?? niceEnd(Math.max(...changes), Infinity);
    this.change.update({
      name: `${header.change_name} of the output, √ scale`,
      value: shown && shown.change,
      text: shown ? (shown.change === null ? this.waitText() : numberText(shown.change)) : "",
      remark: shown && shown.change !== null ? this.sameText(shown) : "",
      high,
      scale: "sqrt",
      zone: header.epsilon,
      dots: others.map((entry) => entry.change),
      ticks: [
        { at: header.epsilon, text: `ε = ${shortText(header.epsilon)}` },
        { at: high, text: header.change_bound === null ? shortText(high) : `most ${shortText(high)}`, above: true },
      ],
    });
  }

  /** "≈" before a distance of mean weights that stands for a mean of distances. */
  approximate(shown) {
    return shown.made && this.header.rows > 1 ? "≈ " : "";
  }

  numbersText(entry) {
    if (entry.index === 0 && !entry.hand) return "what the model does";
    const change = entry.change === null ? "…" : numberText(entry.change);
    return `JSD ${this.approximate(entry)}${numberText(entry.jsd)} · ${this.header.change_name} ${change}`;
  }

  sameText(entry, whole = true) {
    if (entry.same === null) return this.waitText();
    const epsilon = `ε = ${shortText(this.header.epsilon)}`;
    const said = entry.same ? "same prediction" : "another prediction";
    return whole ? `${said} (${entry.same ? "≤" : ">"} ${epsilon})` : said;
  }

  waitText() {
    return this.alone ? "needs the running app" : "computing …";
  }

  spoken(shown) {
    if (!shown) return "The observed attention alone";
    const { outputs } = shown;
    const [label] = outputs ? strongest(outputs, 1) : [];
    const said = [`${shown.name}: ${this.numbersText(shown)}`, this.sameText(shown)];
    if (outputs) said.push(`${this.header.labels[label]} ${outputText(outputs[label], this.header.probabilities)}`);
    return said.join(", ");
  }

  speak(text) {
    this.speaking.request(() => {
      this.live.textContent = text;
    });
  }

  // Pointing ------------------------------------------------------------------------------------------------------

  /** Marks a position everywhere and, with a place, tells its weights there. */
  point(index, at = null) {
    this.stage.point(index);
    if (index === null || !at) this.tooltip.hide();
    else this.tooltip.show(this.lines(index), ...at);
  }

  lines(index) {
    const shown = this.current();
    const observed = this.weightsOf(0)[index];
    const lines = [this.stage.nameOf(index), `observed: ${exactText(observed)}`];
    if (shown) {
      const weight = shown.made ? Number(shown.weights[index].toPrecision(6)) : shown.weights[index];
      const difference = weight - observed;
      lines.push(`${shown.name}: ${exactText(weight)}`);
      lines.push(`difference: ${difference > 0 ? "+" : ""}${shortText(difference)}`);
    }
    return [...lines, ...this.stage.remarks(index)];
  }

  /** A position and its weights in one sentence. */
  told(index, shown) {
    const said = [`${this.stage.nameOf(index)}: observed ${shortText(this.weightsOf(0)[index])}`];
    if (shown) said.push(`${shown.name} ${shortText(shown.weights[index])}`);
    return said.join(", ");
  }

  /** The strongest positions of a distribution, for who does not see it. */
  summary({ name, weights }) {
    const best = strongest(weights, 5).map((index) => `${this.stage.nameOf(index)} ${shortText(weights[index])}`);
    return `${name} attention, strongest: ${best.join(", ")}`;
  }

  // Choosing a candidate --------------------------------------------------------------------------------------------

  choose(entry) {
    if (this.editing && !entry.hand) this.setEditing(false);
    this.handShown = Boolean(entry.hand);
    if (entry.index !== null && entry.index !== undefined) {
      this.shown = entry.index;
      this.shared.tell(entry.index);
      this.sending.request(() => this.say("view", { shown: entry.index }));
    }
    this.paint();
    this.speak(this.spoken(this.current()));
  }

  say(name, value) {
    this.turn = Math.max(Date.now(), this.turn + 1); // also later than what an earlier mount has said
    this.setState(name, { ...value, input: this.header.input, turn: this.turn });
  }

  listen() {
    this.chips.addEventListener("click", (event) => {
      const chip = event.target.closest(".contrast-chip");
      if (chip) this.choose(this.entries[[...this.chips.children].indexOf(chip)]);
    });
    this.chips.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const count = this.chips.children.length;
      const place = [...this.chips.children].indexOf(event.target);
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: count - 1, ArrowUp: count - 1 };
      Object.assign(steps, { Home: -place, End: count - 1 - place });
      if (place < 0 || !(event.key in steps)) return;
      const next = (place + steps[event.key]) % count;
      this.choose(this.entries[next]);
      this.chips.children[next].focus();
      event.preventDefault();
      event.stopPropagation();
    });
    this.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      if (this.dragged) this.release(false);
      else if (this.editing) this.setEditing(false);
      else this.point(null);
    });
  }

  // Weights by hand -------------------------------------------------------------------------------------------------

  forgetHand() {
    this.editing = false;
    this.hand = null;
    this.handShown = false;
    this.dragged = null;
    this.unsent = false;
  }

  setEditing(editing) {
    if (editing === Boolean(this.editing)) return;
    this.editing = editing;
    if (editing) {
      this.hand = normalised(this.current()?.weights ?? this.weightsOf(0));
      this.start = Float64Array.from(this.hand);
      this.handShown = true;
    } else {
      this.send();
      if (isSame(this.start, this.hand)) {
        this.hand = null;
        this.handShown = false;
      }
    }
    this.stage.layOut();
    this.paint();
    this.speak(editing ? `Editing by hand. ${this.hint.textContent}` : this.spoken(this.current()));
  }

  /** Takes weights at once, as a button does. */
  take(weights) {
    this.hand = weights;
    this.unsent = true;
    this.paint();
    this.send();
    this.speak(this.spoken(this.current()));
  }

  /** Begins to drag a position; `moveTo` and `release` follow. */
  grab(index) {
    this.dragged = { index, from: this.hand };
  }

  moveTo(value, at) {
    const { index, from } = this.dragged;
    this.hand = rescaled(from, index, value);
    this.paint();
    this.point(index, at);
  }

  /** Ends dragging: sends the weights, or takes back what was done. */
  release(keep) {
    const { from } = this.dragged;
    this.dragged = null;
    if (keep && this.hand !== from) {
      this.unsent = true;
      this.send();
    } else if (!keep) {
      this.hand = from;
      this.paint();
    }
    this.speak(this.spoken(this.current()));
  }

  /** Changes a weight by a key; sent when the keys rest. */
  nudge(index, value) {
    this.hand = rescaled(this.hand, index, value);
    this.unsent = true;
    this.paint();
    this.settling.request(() => {
      this.send();
      this.speak(this.spoken(this.current()));
    });
  }

  /** The weight that a key leads to; null for another key. */
  keyedWeight(event, index, steps) {
    const weight = this.hand[index];
    if (event.key === "Home") return 0;
    if (event.key === "End") return 1;
    const often = event.shiftKey && event.key.startsWith("Arrow") ? 10 : 1; // "+" needs Shift on many keyboards
    return event.key in steps ? clamp(weight + steps[event.key] * often, 0, 1) : null;
  }

  send() {
    this.settling.cancel();
    if (!this.unsent) return;
    this.unsent = false;
    this.sending.cancel(); // an older choice of a candidate
    this.shared = makeShared(null); // whatever the answer shows is news
    this.say("edit", { weights: [...normalised(this.hand)] });
  }
}

export default function (component) {
  return mountView(views, AttentionContrast, component);
}
