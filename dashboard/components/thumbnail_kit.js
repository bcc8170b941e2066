// Little maps of heads, for the components that show all heads of a model. Runs after kit.js.

/**
 * Maps of some heads of a layer side by side on a canvas, a pixel a cell. Where a cell would be much smaller than a
 * pixel of the screen, a pixel is the maximum of a block of cells, so that thin patterns stay.
 *
 * `weights` are levels of `shape` [layers, heads, rows, columns], of which the layer fills `size` [rows, columns];
 * `limitOf(head)` is the weight at which the head's colours end; `side` the longer side of a drawn map in CSS pixels.
 */
function headMaps({ weights, lut, shape, layer, heads, size, limitOf, side }) {
  const [, every, high, broad] = shape;
  const [rows, columns] = size;
  const block = Math.max(Math.floor(Math.max(rows, columns) / (side * (window.devicePixelRatio || 1))), 1);
  const [height, width] = [Math.ceil(rows / block), Math.ceil(columns / block)];
  const levels = new Uint8Array(height * width * heads.length);
  const colours = new Uint8Array(256);
  heads.forEach((head, place) => {
    const limit = limitOf(head);
    for (let level = 0; level < 256; level += 1) colours[level] = Math.round(255 * Math.min((level / 255) ** 2 / limit, 1));
    for (let row = 0; row < rows; row += 1) {
      let from = ((layer * every + head) * high + row) * broad;
      const to = (Math.floor(row / block) * heads.length + place) * width;
      for (let column = 0; column < columns; column += 1, from += 1) {
        const at = to + Math.floor(column / block);
        const level = colours[weights[from]];
        if (level > levels[at]) levels[at] = level;
      }
    }
  });
  const canvas = document.createElement("canvas");
  paintLevels(canvas, levels, width * heads.length, height, lut);
  return { canvas, width, height, rows, columns };
}
