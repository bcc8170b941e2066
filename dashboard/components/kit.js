// What the views have in common: reading a payload, numbers, colours, labels, tooltip, scale bar.
// This file has no exports: `component_files` puts it before the index.js of a component, so that each
// component is one ES module that needs nothing else, in the app and in an exported page alike.
// Text from tokens, titles and files is only ever set with textContent or fillText.

const DTYPES = { uint8: Uint8Array, float32: Float32Array };

/** {header, arrays} of a payload: uint32 length, JSON header, then the arrays. */
function unpackPayload(data) {
  const bytes = data instanceof Uint8Array ? data : new Uint8Array(data);
  const length = new DataView(bytes.buffer, bytes.byteOffset, 4).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const arrays = {};
  for (const [name, entry] of Object.entries(header.arrays)) {
    const Type = DTYPES[entry.dtype];
    const count = entry.shape.reduce((product, size) => product * size, 1);
    const start = bytes.byteOffset + 4 + length + entry.offset;
    const aligned = start % Type.BYTES_PER_ELEMENT === 0;
    const stop = start + count * Type.BYTES_PER_ELEMENT;
    arrays[name] = aligned
      ? new Type(bytes.buffer, start, count)
      : new Type(bytes.buffer.slice(start, stop));
  }
  return { header, arrays };
}

/** An element with a class and, optionally, text and attributes. */
function make(tag, className, { text, parent, ...attributes } = {}) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (parent) parent.append(element);
  return element;
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** Shortest decimal text that reads back as the same float32 number. */
function exactText(value) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "no value" : value > 0 ? "∞" : "−∞";
  let text = "0";
  for (let digits = 1; digits <= 9; digits += 1) {
    text = String(Number(value.toPrecision(digits)));
    if (Math.fround(Number(text)) === Math.fround(value)) break;
  }
  return text.replaceAll("-", "−");
}

/** A whole number with commas between thousands. */
const countText = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, ",");

const isSmall = (value) => value !== 0 && Math.abs(value) < 1e-4;

/** A number at three digits, for scale bars and lists. */
function shortText(value, small = isSmall(value)) {
  if (!Number.isFinite(value)) return exactText(value);
  const text = small && value !== 0 ? value.toExponential(2) : String(Number(value.toPrecision(3)));
  return text.replaceAll("-", "−");
}

/** Values of one scale, written alike: with powers of ten where one of them needs them. */
function shortTexts(values) {
  const small = values.some(isSmall);
  return values.map((value) => shortText(value, small));
}

/** Where a value lies between two limits, 0 to 1, on a linear or square-root scale; NaN stays NaN. */
function position(value, low, high, scale) {
  if (Number.isNaN(value)) return NaN;
  const share = high > low ? clamp((value - low) / (high - low), 0, 1) : 0;
  return scale === "sqrt" ? Math.sqrt(share) : share;
}

/** The value at a position of the scale: the inverse of `position`. */
function valueAt(share, low, high, scale) {
  return low + (high - low) * (scale === "sqrt" ? share * share : share);
}

/** Levels 0 to 255 of many values, as `position` places them; -1 for no value. */
function levelsOf(values, low, high, scale) {
  const levels = new Int16Array(values.length);
  const steps = high > low ? 1 / (high - low) : 0;
  for (let index = 0; index < levels.length; index += 1) {
    let share = (values[index] - low) * steps;
    share = share > 1 ? 1 : share < 0 ? 0 : share;
    // Rounds half up; the comparison is false for NaN alone.
    levels[index] = share >= 0 ? 255 * (scale === "sqrt" ? Math.sqrt(share) : share) + 0.5 : -1;
  }
  return levels;
}

/** CSS colour of a level 0 to 255. */
const lutColour = (lut, level) => `rgb(${lut[3 * level]}, ${lut[3 * level + 1]}, ${lut[3 * level + 2]})`;

/** Black or white, whichever is easier to read on a level's colour (WCAG relative luminance). */
function inkOn(lut, level) {
  const channel = (index) => {
    const share = lut[3 * level + index] / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  const luminance = 0.2126 * channel(0) + 0.7152 * channel(1) + 0.0722 * channel(2);
  return luminance > 0.179 ? "#000" : "#fff";
}

/** Writes levels (-1 = no value, transparent) as pixels of a canvas of the same size. */
function paintLevels(canvas, levels, width, height, lut) {
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const palette = new Uint32Array(256);
  for (let level = 0; level < 256; level += 1) {
    palette[level] = (255 << 24) | (lut[3 * level + 2] << 16) | (lut[3 * level + 1] << 8) | lut[3 * level];
  }
  for (let index = 0; index < pixels.length; index += 1) {
    pixels[index] = levels[index] < 0 ? 0 : palette[levels[index]];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Colours of the theme as they are now; canvases have to be told. */
function readTheme(root) {
  const style = getComputedStyle(root);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    background: read("--view-background"),
    secondary: read("--view-secondary"),
    text: read("--view-text"),
    primary: read("--view-primary"),
    border: read("--view-border"),
    font: style.fontFamily,
  };
}

/** A token's text as labels show it; the payload holds `short` only where the text had to be cut. */
const labelText = (token) => token.short ?? token.text;

/** The lines of a tooltip that say everything about a token. */
function tokenRemarks(token) {
  const remarks = [];
  if (token.piece !== undefined) remarks.push(`piece: ${token.piece}`);
  if (token.special) remarks.push("special token, added by the model");
  if (token.unknown) remarks.push("unknown to the model");
  return remarks;
}

/** A tooltip inside a root; `show` takes lines, the first is strong. */
function makeTooltip(root) {
  const element = make("div", "view-tooltip", { parent: root, role: "tooltip" });
  element.hidden = true;
  return {
    element,
    hide() {
      element.hidden = true;
    },
    show(lines, clientX, clientY) {
      element.replaceChildren(...lines.map((text, index) => make(index ? "div" : "strong", "", { text })));
      element.hidden = false;
      const frame = root.getBoundingClientRect();
      const x = clientX - frame.left;
      const y = clientY - frame.top;
      const left = x + 16 + element.offsetWidth > frame.width ? x - 16 - element.offsetWidth : x + 16;
      const top = y + 16 + element.offsetHeight > frame.height ? y - 12 - element.offsetHeight : y + 16;
      element.style.left = `${clamp(left, 0, Math.max(frame.width - element.offsetWidth, 0))}px`;
      element.style.top = `${Math.max(top, 0)}px`;
    },
  };
}

/** A colour scale with its limits and what is measured. */
function makeScaleBar(parent) {
  const element = make("div", "view-scale", { parent });
  const unit = make("div", "view-scale-unit", { parent: element });
  const bar = make("div", "view-scale-bar", { parent: element });
  const strip = make("canvas", "", { parent: bar, role: "img" });
  const ticks = make("div", "view-scale-ticks", { parent: bar });
  return {
    element,
    update({ lut, low, high, scale = "linear", text, words = null, over = false }) {
      unit.textContent = text;
      paintLevels(strip, Uint8Array.from({ length: 256 }, (_, level) => level), 256, 1, lut);
      const shares = high > low ? [0, 0.25, 0.5, 0.75, 1] : [0, 1];
      const labels = words ?? shortTexts(shares.map((share) => valueAt(share, low, high, scale)));
      if (over) labels[labels.length - 1] = `≥ ${labels.at(-1)}`; // some values lie beyond
      ticks.replaceChildren(...labels.map((label) => make("span", "", { text: label })));
      strip.setAttribute("aria-label", `Colour scale: ${text}, from ${labels[0]} to ${labels.at(-1)}`);
    },
  };
}

/** Two or more exclusive buttons; `update` marks the chosen one. */
function makeChoice(parent, label, options, choose) {
  const element = make("div", "view-choice", { parent, role: "group", "aria-label": label });
  const buttons = options.map(([value, text, title]) => {
    const button = make("button", "", { parent: element, text, type: "button", title });
    button.addEventListener("click", () => choose(value));
    return [value, button];
  });
  return {
    element,
    update(chosen) {
      for (const [value, button] of buttons) button.setAttribute("aria-pressed", String(value === chosen));
    },
  };
}

/** A button with a spoken name. */
function makeButton(parent, text, name, act) {
  const button = make("button", "view-button", { parent, text, type: "button", title: name });
  button.setAttribute("aria-label", name);
  button.addEventListener("click", act);
  return button;
}

/** A list of named values with bars, as in "strongest keys of this row". */
function fillBars(list, entries, { low, high, onChoose }) {
  list.replaceChildren(
    ...entries.map(({ name, value, key, title }) => {
      const item = make("li", "");
      const host = onChoose ? make("button", "view-bar", { parent: item, type: "button" }) : item;
      if (!onChoose) item.classList.add("view-bar");
      else host.addEventListener("click", () => onChoose(key));
      if (title) host.title = title;
      const track = make("span", "view-bar-track", { parent: host });
      const fill = make("span", "view-bar-fill", { parent: track });
      fill.style.width = `${100 * position(value, low, high, "linear")}%`;
      make("span", "view-bar-name", { parent: host, text: name });
      make("span", "view-bar-value", { parent: host, text: shortText(value) });
      return item;
    }),
  );
}

/** Indices of the `count` largest values, largest first; NaN is left out. */
function strongest(values, count) {
  const best = [];
  for (let index = 0; index < values.length; index += 1) {
    const value = values[index];
    if (Number.isNaN(value)) continue;
    if (best.length === count && value <= values[best[count - 1]]) continue;
    let place = best.length;
    while (place > 0 && values[best[place - 1]] < value) place -= 1;
    best.splice(place, 0, index);
    if (best.length > count) best.pop();
  }
  return best;
}

/** A canvas of CSS size width × height, sharp on this screen; returns its context. */
function sizeCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(Math.round(width * ratio), 1);
  canvas.height = Math.max(Math.round(height * ratio), 1);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** Calls `act` once, `delay` ms after the last request. */
function makeDelayed(delay) {
  let timer = 0;
  return {
    request(act) {
      clearTimeout(timer);
      timer = setTimeout(act, delay);
    },
    cancel: () => clearTimeout(timer),
  };
}

/**
 * A value that the browser and Python both may set. What Python sends counts only when it is news: it differs from
 * what Python sent before and is not an echo of what was sent to Python, else an old echo would undo a newer choice.
 */
function makeShared(initial) {
  let heard = JSON.stringify(initial ?? null);
  let told = []; // not echoed yet
  return {
    tell(value) {
      const text = JSON.stringify(value ?? null);
      if (text !== (told.at(-1) ?? heard)) told.push(text);
    },
    isNews(value) {
      const text = JSON.stringify(value ?? null);
      if (text === heard) return false;
      heard = text;
      const echo = told.lastIndexOf(text);
      told = echo >= 0 ? told.slice(echo + 1) : [];
      return echo < 0;
    },
  };
}

/** Scrolls a frame, not the page, so that an element of it stands in its upper part; nothing where it is seen. */
function bringInside(frame, element) {
  const box = element.getBoundingClientRect();
  const room = frame.getBoundingClientRect();
  if (box.top >= room.top && box.bottom <= room.bottom) return;
  frame.scrollTop += box.top - room.top - frame.clientHeight / 3;
}

/**
 * Runs a view: makes it on the first call, updates it on the next ones, ends it when the last call is undone.
 * Streamlit undoes an overtaken call after the newer one has run, so only the newest call may end the view.
 */
function mountView(views, View, { data, parentElement, setStateValue, setTriggerValue }) {
  let view = views.get(parentElement);
  if (!view) {
    view = new View(parentElement);
    view.calls = 0;
    views.set(parentElement, view);
  }
  view.calls += 1;
  const call = view.calls;
  view.alone = !setStateValue; // an exported page: there is no Python to ask for other numbers
  view.connected = Boolean(setStateValue); // an exported page has no Python to ask
  view.setState = setStateValue ?? (() => {});
  view.setTrigger = setTriggerValue ?? (() => {});
  if (data) view.update(unpackPayload(data));
  return () => {
    if (view.calls !== call) return;
    views.delete(parentElement);
    view.end();
  };
}

/**
 * Most height that a component may take: what the window leaves it where the page says how much it needs itself
 * (`--view-reserve`), else its frame's height, else `fallback` where the frame grows with its content.
 */
function frameHeight(parentElement, fallback) {
  const host = parentElement.host ?? parentElement;
  const reserve = parseFloat(getComputedStyle(host).getPropertyValue("--view-reserve"));
  if (reserve > 0) return clamp(window.innerHeight - reserve, 480, 1100);
  const height = host.clientHeight;
  return height >= 160 ? height : fallback;
}

/** Red, green and blue of the ground below a view. */
function groundOf(root) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(root).backgroundColor;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data.subarray(0, 3)];
}
