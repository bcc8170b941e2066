// Parts of a contrast: chips, meters, the colour bar, predictions, and sums over distributions.

const TOLD_LABELS = 5;
const PALER = 0.4; // how far shades are faded to white on a dark ground
const SAME_WEIGHTS = 1e-5; // weights that differ less are the same: a blob holds them as float32

function makeChip(parent) {
  const chip = make("button", "contrast-chip", { parent, type: "button", role: "radio" });
  make("span", "contrast-mark", { parent: chip, "aria-hidden": "true" });
  make("span", "contrast-chip-name", { parent: chip });
  make("span", "contrast-chip-numbers", { parent: chip });
}

function fillChip(chip, entry, { chosen, observed, numbers: text, same: named }) {
  const [mark, name, numbers] = chip.children;
  mark.textContent = observed ? "" : entry.same === null ? "…" : entry.same ? "=" : "≠";
  mark.classList.toggle("is-same", entry.same === true);
  mark.classList.toggle("is-observed", observed);
  name.textContent = entry.name;
  numbers.textContent = text;
  chip.title = observed ? entry.name : `${entry.name}: ${named}`;
  chip.setAttribute("aria-label", observed ? `${entry.name}, ${text}` : `${entry.name}, ${text}, ${named}`);
  chip.setAttribute("aria-checked", String(chosen));
  chip.tabIndex = chosen ? 0 : -1;
}

/** A number on a line with named ticks, the other candidates as dots. */
function makeMeter(parent) {
  const element = make("div", "contrast-meter", { parent, role: "meter" });
  const head = make("div", "contrast-meter-head", { parent: element });
  const title = make("span", "view-note", { parent: head });
  const number = make("b", "", { parent: head });
  const note = make("span", "view-note", { parent: head });
  const line = make("div", "contrast-meter-line", { parent: element, "aria-hidden": "true" });
  return {
    element,
    update({ name, value, text, remark, high, scale, zone, dots, ticks }) {
      title.textContent = name;
      number.textContent = text;
      note.textContent = remark;
      const place = (number) => `${100 * position(number, 0, high, scale)}%`;
      const parts = [];
      if (zone !== undefined) parts.push(placed("contrast-zone", "width", place(zone)));
      const track = make("div", "contrast-track");
      if (typeof value === "number") track.append(placed("contrast-track-fill", "width", place(value)));
      parts.push(track, ...dots.map((dot) => placed("contrast-dot", "left", place(dot))));
      for (const { at, text: label, above } of ticks) {
        const tick = placed(`contrast-tick${above ? " is-above" : ""}`, "left", place(at));
        tick.classList.toggle("is-late", position(at, 0, high, scale) > 0.6);
        make("span", "", { parent: tick, text: label });
        parts.push(tick);
      }
      line.replaceChildren(...parts);
      element.setAttribute("aria-label", name);
      element.setAttribute("aria-valuemin", "0");
      element.setAttribute("aria-valuemax", String(high));
      element.setAttribute("aria-valuenow", String(typeof value === "number" ? value : 0));
      const told = [text || "observed alone", remark, ...ticks.map((tick) => tick.text)].filter(Boolean);
      element.setAttribute("aria-valuetext", told.join(", "));
    },
  };
}

function placed(className, side, place) {
  const element = make("div", className);
  element.style[side] = place;
  return element;
}

/** The colours of weights and where they end. */
function makeShadeBar(parent) {
  const element = make("div", "evidence-scale contrast-scale", { parent });
  const unit = make("span", "", { parent: element });
  make("span", "", { parent: element, text: "0" });
  const strip = make("canvas", "", { parent: element, role: "img" });
  const end = make("span", "", { parent: element });
  return {
    update({ shades, ground, top, scale, beyond }) {
      strip.style.background = `rgb(${ground.join(" ")})`;
      unit.textContent = `Share of the row, ${scale === "sqrt" ? "square root" : "linear"}`;
      const shares = Float32Array.from({ length: 256 }, (_, level) => level / 255);
      paintShares(strip, shares, 256, 1, { signed: false, lut: shades });
      end.textContent = `${beyond ? "≥ " : ""}${shortText(top)}`;
      strip.setAttribute("aria-label", `Colour scale of weights from 0 to ${shortText(top)}`);
    },
  };
}

/** Shades that can be told apart on a ground: paler ones where it is dark. */
function shadesOn(shades, ground) {
  if (inkOn(ground, 0) === "#000") return shades;
  return shades.map((part, at) => (at % 4 === 3 ? part : part + (255 - part) * PALER));
}

/** Gives an element the colour of a share on a ground, and ink that can be read on it. */
function paintShade(element, share, shades, ground) {
  const level = 4 * shareLevel(share, false);
  const opacity = shades[level + 3] / 255;
  const mixed = ground.map((part, at) => Math.round(part + (shades[level + at] - part) * opacity));
  element.style.background = `rgb(${mixed.join(" ")})`; // opaque, so that its ink can be read in another theme too
  element.style.color = inkOn(mixed, 0);
}

/** Labels that are told: the strongest of the observed outputs, and what is on top of the others. */
function toldLabels(observed, outputs) {
  const told = strongest(observed, TOLD_LABELS);
  const [top] = outputs ? strongest(outputs, 1) : [];
  if (top !== undefined && !told.includes(top)) told.push(top);
  return told;
}

/** What the model says: labels with numbers, and bars where these are probabilities; `before` as ticks on them. */
function fillOutputs(list, { header, outputs, told, before, wait }) {
  const [top] = strongest(outputs ?? [], 1);
  list.classList.toggle("is-plain", !header.probabilities);
  list.classList.toggle("is-waiting", !outputs);
  list.setAttribute("aria-label", outputs ? "Prediction" : `Prediction: ${wait}`);
  list.dataset.wait = wait;
  list.replaceChildren(
    ...told.map((label) => {
      const item = make("li", "contrast-output");
      item.classList.toggle("is-top", label === top);
      make("span", "contrast-output-name", { parent: item, text: header.labels[label], dir: "auto" });
      if (header.probabilities) {
        const track = make("span", "contrast-output-track", { parent: item });
        const fill = make("span", "contrast-output-fill", { parent: track });
        fill.style.width = `${100 * clamp(outputs?.[label] ?? 0, 0, 1)}%`;
        if (before) track.append(placed("contrast-before", "left", `${100 * clamp(before[label], 0, 1)}%`));
      }
      const text = outputs ? outputText(outputs[label], header.probabilities) : "…";
      make("span", "contrast-value", { parent: item, text });
      const told = before ? `, observed ${exactText(before[label])}` : "";
      item.title = `${header.labels[label]}: ${outputs ? exactText(Math.fround(outputs[label])) : wait}${told}`;
      return item;
    }),
  );
}

/** An output at three digits; a probability in percent. */
function outputText(value, probabilities) {
  if (!probabilities) return shortText(value);
  if (value > 0 && value < 1e-4) return "< 0.01 %";
  return `${value >= 0.01 ? (100 * value).toPrecision(3) : shortText(100 * value)} %`;
}

/** A number of 0 and more at three places or digits, without more than a reader needs. */
function numberText(value) {
  if (value >= 0.001) return String(Number(value.toFixed(3)));
  return value < 1e-9 ? "0" : shortText(value);
}

const counted = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;

const barHeight = (weight, end, scale) => (weight > 0 ? `max(1px, ${100 * position(weight, 0, end, scale)}%)` : "0");

/** The next round number that is no less. */
function niceEnd(value, most = 1) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value) + 1e-9);
  const step = [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((part) => value <= part * power * (1 + 1e-6)) ?? 10;
  return Math.min(step * power, most);
}

// Distributions -------------------------------------------------------------------------------------------------------

/** A distribution with one weight set; the others keep their proportions, or are alike where all were 0. */
function rescaled(weights, index, value) {
  const others = weights.length - 1;
  if (others === 0) return Float64Array.from(weights);
  const rest = weights.reduce((sum, weight, place) => (place === index ? sum : sum + weight), 0);
  const left = 1 - clamp(value, 0, 1);
  const next = Float64Array.from(weights, (weight) => (rest > 0 ? (weight * left) / rest : left / others));
  next[index] = 1 - left;
  return next;
}

function normalised(weights) {
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return Float64Array.from(weights, (weight) => weight / sum);
}

const isSame = (left, right) => left.every((weight, index) => Math.abs(weight - right[index]) < SAME_WEIGHTS);

/** Jensen–Shannon divergence in nats. */
function jensenShannon(left, right) {
  let sum = 0;
  left.forEach((weight, index) => {
    const middle = (weight + right[index]) / 2;
    if (weight > 0) sum += weight * Math.log(weight / middle);
    if (right[index] > 0) sum += right[index] * Math.log(right[index] / middle);
  });
  return Math.max(sum / 2, 0);
}

const totalVariation = (left, right) =>
  left.reduce((sum, share, index) => sum + Math.abs(share - right[index]), 0) / 2;
