// What a sheet of matrices is made of besides its figures: widths, numbers, names, colours, boxes and scales.

const TILT = Math.PI / 3; // column labels lean by 60° where they do not fit above their cells
const GAP = [34, 26]; // px between matrices, across and down

/** Puts matrices of several rows below each other where the page says how many stand in one. */
function alignColumns(rows, frames, width) {
  const columns = Math.max(...rows.map((row) => row.members.length));
  const widths = Array.from({ length: columns }, (_, column) =>
    Math.max(...rows.filter((row) => row.members.length > column).map((row) => frames[row.members[column]].width)),
  );
  const total = widths.reduce((sum, each) => sum + each, 0) + GAP[0] * (columns - 1);
  if (total > width + 0.5) return;
  for (const { members } of rows) {
    let left = 0;
    members.forEach((index, column) => {
      frames[index].left = left;
      left += widths[column] + GAP[0];
    });
  }
}

/** How far leaning labels reach beyond the last column, in px. */
function overhang(widths, across) {
  const reach = widths.map((width, column) => width * Math.cos(TILT) - (widths.length - column - 0.5) * across + 8);
  return Math.max(...reach, 1);
}

/** A value with as many decimals as its matrix has, with a true minus; three digits where it has no such number. */
function cellText(value, decimals) {
  if (decimals !== null) return value.toFixed(decimals).replace(/^-(?=.*[1-9])/, "−").replace("-", "");
  const size = Math.abs(value);
  return size < 1e6 ? shortText(value) : value.toExponential(2).replaceAll("-", "−");
}

/** Nodes of a name, its subscripts among them. */
function nameParts(parts) {
  return parts.map(([text, below]) => (below ? make("sub", "", { text }) : document.createTextNode(text)));
}

/** (256, 3) colours of a table with opacity as they look on a ground. */
function mixedTable(table, ground) {
  const mixed = new Uint8Array(768);
  for (let level = 0; level < 256; level += 1) {
    const share = table[4 * level + 3] / 255;
    for (let part = 0; part < 3; part += 1) {
      mixed[3 * level + part] = Math.round(ground[part] * (1 - share) + table[4 * level + part] * share);
    }
  }
  return mixed;
}

/** (256, 3) colours of a mask: what may not attend is pale where cells are too small to be hatched. */
function maskTable(theme, ground) {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const read = (colour) => {
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data.subarray(0, 3)];
  };
  const [filled, ink] = [read(theme.primary), read(theme.text)];
  const pale = ground.map((part, at) => Math.round(0.88 * part + 0.12 * ink[at]));
  return Uint8Array.from({ length: 768 }, (_, at) => (at < 384 ? pale : filled)[at % 3]);
}

/** A box that shows on every colour: a line between two of another colour. */
function outline(context, x, y, width, height, colour = "#ffffff", around = "#000000") {
  for (const [style, line] of [[around, 4], [colour, 2]]) {
    context.strokeStyle = style;
    context.lineWidth = line;
    context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
  }
}

/** A small colour scale with its ends. */
function makeRamp(parent) {
  const element = make("div", "sheet-scale", { parent });
  const strip = make("canvas", "sheet-strip", { parent: element, role: "img" });
  const ticks = make("div", "sheet-ticks", { parent: element });
  return {
    element,
    update({ scale, limit, low }, lut, over, width) {
      element.style.width = `${width}px`;
      paintLevels(strip, Uint8Array.from({ length: 256 }, (_, level) => level), 256, 1, lut);
      const signed = scale === "signed";
      const last = `${over ? "≥ " : ""}${shortText(limit)}`;
      const words = signed ? [`${over ? "≤ " : ""}${shortText(low)}`, "0", last] : ["0", last];
      ticks.replaceChildren(...words.map((text) => make("span", "", { text })));
      strip.setAttribute("aria-label", `Colour scale from ${words[0]} to ${words.at(-1)}`);
    },
  };
}

/** What the cells of a mask mean. */
function makeMaskKey(parent) {
  const element = make("div", "sheet-key", { parent });
  for (const [mark, text] of [["is-filled", "may attend"], ["is-hatched", "may not attend"]]) {
    make("span", `sheet-swatch ${mark}`, { parent: element });
    make("span", "", { parent: element, text });
  }
  return element;
}
