// What the two evidence views share: colours with opacity, the bars that explain them, what stands in a card, and how
// a score is told.

/** A score as a share of where the colours end, -1 to 1; evidence against is 0 where only the positive is drawn. */
function shareOf(value, panel, positive) {
  return clamp(value / panel.limit, positive ? 0 : -1, 1);
}

/** Level 0 to 255 of a share in the table of its kind: signed tables have 0 in their middle. */
function shareLevel(share, signed) {
  return Math.round(clamp(signed ? 127.5 * (share + 1) : 255 * share, 0, 255));
}

/** Writes shares as pixels of a canvas of the same size, clear at 0. */
function paintShares(canvas, shares, width, height, { signed, lut }) {
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  for (let index = 0; index < shares.length; index += 1) {
    const level = 4 * shareLevel(shares[index], signed);
    for (let part = 0; part < 4; part += 1) image.data[4 * index + part] = lut[level + part];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** What a score is, in lines for a tooltip: the raw number, its share of the largest, and which way it points. */
function scoreLines(value, panel) {
  const share = Math.abs(value) / panel.limit;
  const percent = `${shortText(100 * share)} % of the largest |score|`;
  return [exactText(value), percent, wayText(value, panel)].filter(Boolean);
}

/** The same as a sentence that is read aloud. */
function spokenScore(value, panel) {
  const percent = `${shortText((100 * Math.abs(value)) / panel.limit)} % of the largest`;
  return [`score ${shortText(value)}`, percent, wayText(value, panel)].filter(Boolean).join(", ");
}

/** Which way a score points. */
function wayText(value, panel) {
  if (!panel.signed) return "no sign: not for or against";
  if (!panel.target) return "";
  return value === 0 ? "neither for nor against" : `${value > 0 ? "for" : "against"} ${panel.target}`;
}

/** A method and what it explains. */
const panelName = (panel) => (panel.target ? `${panel.method} for ${panel.target}` : panel.method);

/** The switch between signed evidence and the positive alone. */
function makeSignChoice(parent, choose) {
  const options = [
    [false, "Signed", "Evidence for (red) and against (blue)"],
    [true, "Positive only", "Evidence against is not drawn"],
  ];
  return makeChoice(parent, "Evidence", options, choose);
}

/** Bars that explain the colours of the kinds of scores that are shown. */
function makeSignBars(parent) {
  const element = make("div", "evidence-scales", { parent });
  return {
    element,
    update({ panels, positive, luts }) {
      const kinds = [true, false].filter((signed) => panels.some((panel) => panel.signed === signed));
      element.replaceChildren(
        ...kinds.map((signed) => {
          const scale = make("div", "evidence-scale");
          const low = signed ? (positive ? "0" : "against") : "0";
          make("span", "", { parent: scale, text: low });
          const from = signed && positive ? 128 : 0;
          const strip = make("canvas", "", { parent: scale, role: "img" });
          const shares = Float32Array.from({ length: 256 - from }, (_, index) => {
            const share = (from + index) / 255;
            return signed ? 2 * share - 1 : share;
          });
          paintShares(strip, shares, shares.length, 1, { signed, lut: luts[signed] });
          const high = signed ? "for" : "most (no sign)";
          make("span", "", { parent: scale, text: high });
          strip.setAttribute("aria-label", `Colour scale from ${low} to ${high}`);
          return scale;
        }),
      );
    },
  };
}

/** The sentences of a method below its maps: what a high score means and what the method cannot show. */
function fillClaims(element, panel) {
  element.replaceChildren(
    ...[
      ["Shows", panel.claims],
      ["Beware", panel.cannot],
    ]
      .filter(([, text]) => text)
      .map(([name, text]) => {
        const line = make("p", "", { title: text });
        make("b", "", { parent: line, text: name });
        line.append(` ${text}`);
        return line;
      }),
  );
}

/** What was measured of one answer, and what a reader must not overlook. */
function fillFacts(element, panel) {
  const lines = panel.facts.map((text) => make("p", "", { text }));
  if (panel.empty) lines.unshift(make("p", "evidence-empty", { text: panel.empty }));
  if (panel.warning) lines.unshift(make("p", "evidence-warning", { text: panel.warning }));
  element.replaceChildren(...lines);
}

/** Where the colours of a card end, as text. */
const limitText = (panel) => `${panel.signed ? "±" : "max "}${shortText(panel.limit)}`;
