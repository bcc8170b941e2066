// What the views that draw maps over a picture share: the picture as a canvas, a surface for each map with boxes for the
// marked patch and the pointer's, and values between patches. A patch is [row, column], a grid [rows, columns]. Where a
// view can be zoomed (zoom_kit.js), what is seen is {scale, left, top}.

const WHOLE = { scale: 1, left: 0, top: 0 };

/** Pixels of a picture that came as red, green and blue. */
function pictureImage(pixels, [height, width]) {
  const image = new ImageData(width, height);
  for (let from = 0, to = 0; from < pixels.length; from += 3, to += 4) {
    image.data[to] = pixels[from];
    image.data[to + 1] = pixels[from + 1];
    image.data[to + 2] = pixels[from + 2];
    image.data[to + 3] = 255;
  }
  return image;
}

/** A canvas of the same pixels. */
function canvasOf(image) {
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/**
 * A surface for one map: the picture below, the map above, boxes on top. Its parts have classes of the view's `name`.
 * `gridOf` gives the grid; `acts` are hover(patch or null, event), choose(patch), key(event) and leave(); `seen` is
 * what is seen of the picture.
 */
function makeSurface(parent, name, gridOf, acts, seen = WHOLE) {
  const surface = make("div", `picture-surface ${name}-surface`, { parent, role: "application" });
  const base = make("canvas", "", { parent: surface, "aria-hidden": "true" });
  const overlay = make("canvas", `picture-overlay ${name}-overlay`, { parent: surface, "aria-hidden": "true" });
  const mark = make("div", `picture-mark ${name}-mark`, { parent: surface });
  const pointer = make("div", `picture-pointer ${name}-pointer`, { parent: surface });
  const patchAt = (event) => {
    const [rows, columns] = gridOf();
    const box = surface.getBoundingClientRect();
    const row = Math.floor((seen.top + (event.clientY - box.top) / box.height / seen.scale) * rows);
    const column = Math.floor((seen.left + (event.clientX - box.left) / box.width / seen.scale) * columns);
    return [clamp(row, 0, rows - 1), clamp(column, 0, columns - 1)];
  };
  surface.addEventListener("pointermove", (event) => acts.hover(patchAt(event), event));
  surface.addEventListener("pointerleave", () => acts.hover(null));
  surface.addEventListener("click", (event) => acts.choose(patchAt(event)));
  surface.addEventListener("keydown", acts.key);
  surface.addEventListener("blur", acts.leave);
  return { surface, base, overlay, mark, pointer };
}

/** The switch between patches as squares and what lies between them. */
function makeDrawingChoice(parent, choose) {
  const options = [
    [false, "Squares", "One square a patch, as computed"],
    [true, "Smooth", "Interpolated between patches"],
  ];
  return makeChoice(parent, "Drawing", options, choose);
}

/** Gives a surface its size and draws what is seen of the picture; one of few pixels shows them. */
function drawPicture({ surface, base }, picture, { width, height }, { scale, left, top } = WHOLE) {
  surface.style.width = `${width}px`;
  surface.style.height = `${height}px`;
  const context = sizeCanvas(base, width, height);
  context.imageSmoothingEnabled = (scale * width) / picture.width < 6;
  context.imageSmoothingQuality = "high";
  const seen = [left * picture.width, top * picture.height, picture.width / scale, picture.height / scale];
  context.drawImage(picture, ...seen, 0, 0, width, height);
}

/** Puts a map of squares where it belongs, and an interpolated one, which was made for what is seen, over the surface. */
function placeOverlay(overlay, smooth, { scale, left, top } = WHOLE) {
  const whole = smooth || scale === 1;
  overlay.style.left = whole ? "" : `${-100 * left * scale}%`;
  overlay.style.top = whole ? "" : `${-100 * top * scale}%`;
  overlay.style.width = overlay.style.height = whole ? "" : `${100 * scale}%`;
}

/**
 * {values, width, height} of an overlay: one a patch, or interpolated and at most `most` along a side, of what is seen.
 */
function overlayValues(map, [rows, columns], smooth, size, most, seen = WHOLE) {
  if (!smooth) return { values: map, width: columns, height: rows };
  const scale = Math.min(most / Math.max(size.width, size.height), 1);
  const width = Math.max(Math.round(size.width * scale), 1);
  const height = Math.max(Math.round(size.height * scale), 1);
  return { values: interpolated(map, rows, columns, height, width, seen), width, height };
}

/** A map at more pixels, bilinear between the centres of its patches; beyond the outer centres it stays constant. */
function interpolated(map, rows, columns, height, width, seen = WHOLE) {
  const places = (size, count, first) =>
    Array.from({ length: size }, (_, index) => {
      const centre = clamp((first + (index + 0.5) / size / seen.scale) * count - 0.5, 0, count - 1);
      const start = Math.floor(centre);
      return [start, Math.min(start + 1, count - 1), centre - start];
    });
  const across = places(width, columns, seen.left);
  const values = new Float32Array(height * width);
  places(height, rows, seen.top).forEach(([top, bottom, down], row) => {
    for (let column = 0; column < width; column += 1) {
      const [left, right, share] = across[column];
      const above = map[top * columns + left] * (1 - share) + map[top * columns + right] * share;
      const below = map[bottom * columns + left] * (1 - share) + map[bottom * columns + right] * share;
      values[row * width + column] = above * (1 - down) + below * down;
    }
  });
  return values;
}

/** Puts a box round a patch of a picture, or hides it. */
function placeBox(box, patch, [rows, columns], { scale, left, top } = WHOLE) {
  box.hidden = !patch;
  if (!patch) return;
  box.style.left = `${100 * scale * (patch[1] / columns - left)}%`;
  box.style.top = `${100 * scale * (patch[0] / rows - top)}%`;
  box.style.width = `${(100 * scale) / columns}%`;
  box.style.height = `${(100 * scale) / rows}%`;
}

/** Which pixels of the picture a patch covers, in words. */
function pixelsText([row, column], [rows, columns], [height, width]) {
  const span = (place, count, length) => {
    const first = Math.round((place * length) / count);
    return [first, Math.max(Math.round(((place + 1) * length) / count) - 1, first)].map(countText).join("–");
  };
  return `pixels x ${span(column, columns, width)}, y ${span(row, rows, height)}`;
}

/** The patch that an arrow key leads to, from the middle where there is none yet; null for another key. */
function steppedPatch(event, patch, [rows, columns]) {
  const step = event.shiftKey ? 5 : 1;
  const moves = { ArrowUp: [-step, 0], ArrowDown: [step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step] };
  const move = moves[event.key];
  if (!move) return null;
  if (!patch) return [Math.floor((rows - 1) / 2), Math.floor((columns - 1) / 2)];
  return [clamp(patch[0] + move[0], 0, rows - 1), clamp(patch[1] + move[1], 0, columns - 1)];
}

/** Draws the box round a marked patch into a picture that has `unit` pixels for each one on the screen. */
function strokeBox(context, patch, [rows, columns], { width, height }, unit) {
  const left = (width * patch[1]) / columns;
  const top = (height * patch[0]) / rows;
  for (const [colour, thick] of [
    ["#000000", 4],
    ["#ffffff", 2],
  ]) {
    const line = Math.max(thick * unit, 1); // all of it lies outside the patch
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(left - line / 2, top - line / 2, width / columns + line, height / rows + line);
  }
}

/** Gives a canvas to the user as a PNG file; nothing is sent anywhere. */
function savePng(canvas, name) {
  canvas.toBlob((blob) => {
    const url = URL.createObjectURL(blob);
    make("a", "", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000); // the browser may still be asking where to
  }, "image/png");
}
