// What the formula explorer and the diagram have in common: mathematical text, numbers and colours of small matrices.

/** Text with d_k as a subscript, ᵀ as a superscript and e^0.5 as a power. */
function setMath(element, text) {
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(/(?<=[A-Za-z])_([A-Za-z]+|\d)|ᵀ|\^(−?(?:[\d.]+|∞))/g)) {
    parts.push(document.createTextNode(text.slice(end, found.index)));
    if (found[0] === "ᵀ") parts.push(make("sup", "", { text: "T" }));
    else if (found[2] !== undefined) parts.push(make("sup", "", { text: found[2] }));
    else parts.push(make("sub", "", { text: found[1] }));
    end = found.index + found[0].length;
  }
  parts.push(document.createTextNode(text.slice(end)));
  element.replaceChildren(...parts);
}

/** A value as its cell shows it. */
function cellText(value, decimals) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "" : exactText(value);
  const text = decimals === null ? String(Number(value.toPrecision(3))) : value.toFixed(decimals);
  return text.replace(/^-(0(\.0*)?)$/, "$1").replaceAll("-", "−");
}

/** Red, green and blue of a value: of a table with opacity, as it is mixed with the ground. */
function heatColour(value, { scale, limit }, lut, ground) {
  const low = scale === "signed" ? -limit : 0;
  const level = Math.round(255 * position(value, low, limit, "linear"));
  const size = lut.length / 256;
  const strength = size === 4 ? lut[size * level + 3] / 255 : 1;
  return [0, 1, 2].map((channel) =>
    Math.round(lut[size * level + channel] * strength + ground[channel] * (1 - strength)),
  );
}
