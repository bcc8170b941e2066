// Zooming into maps over a picture: which part is seen, and what a wheel, a pinch, a drag and keys do to it. All panels
// of a view share one zoom. `scale` is 1 for the whole picture; `left` and `top` are shares of the picture.

const ZOOM_STEP = 1.5; // of a button or a key
const WHEEL_STEP = 0.0022; // of the zoom's logarithm a pixel of the wheel
const WHEEL_LINE = 16; // px of a wheel that counts lines
const DRAG_FROM = 4; // px that a press may move and still be a click
const PAGE_SCROLLS = 350; // ms after a wheel elsewhere in which a wheel over a picture still scrolls the page
const FEWEST_PATCHES = 4; // along the longer side of what the largest zoom shows
const SMALLEST_MAP = 170; // px of a surface in which a small picture of the whole has room
const SMALLEST_WORDS = 360; // px of the width of one in which words have room beside it
const LARGEST_MAP = 96; // px of the longer side of that small picture, and its share of a small surface
const MAP_SHARE = 0.3;
const LEAST_LARGEST = 4; // how far one can zoom into a picture of few patches

/** The part of a picture that is seen; `changed` is called after every change, once a frame. */
function makeZoom(changed) {
  let waiting = 0;
  const zoom = {
    scale: 1,
    left: 0,
    top: 0,
    largest: 1,
    get isWhole() {
      return zoom.scale === 1;
    },
    /** What the largest zoom is depends on the patches; a new picture is seen whole. */
    fit([rows, columns], whole) {
      zoom.largest = Math.max(LEAST_LARGEST, Math.max(rows, columns) / FEWEST_PATCHES);
      if (whole) Object.assign(zoom, { scale: 1, left: 0, top: 0 });
      else zoom.show(zoom.scale, zoom.left, zoom.top, false);
    },
    show(scale, left, top, tell = true) {
      const next = clamp(scale, 1, zoom.largest);
      const room = 1 - 1 / next;
      const place = { scale: next, left: clamp(left, 0, room), top: clamp(top, 0, room) };
      const same = place.scale === zoom.scale && place.left === zoom.left && place.top === zoom.top;
      Object.assign(zoom, place);
      if (same || !tell || waiting) return;
      waiting = requestAnimationFrame(() => {
        waiting = 0;
        changed();
      });
    },
    /** Zooms by a factor round a place of the surface, given in shares of it. */
    by(factor, [across, down] = [0.5, 0.5]) {
      const scale = clamp(zoom.scale * factor, 1, zoom.largest);
      const left = zoom.left + across / zoom.scale - across / scale;
      zoom.show(scale, left, zoom.top + down / zoom.scale - down / scale);
    },
    /** Moves by shares of the surface, as a hand that drags the picture. */
    drag(across, down) {
      zoom.show(zoom.scale, zoom.left - across / zoom.scale, zoom.top - down / zoom.scale);
    },
    whole() {
      zoom.show(1, 0, 0);
    },
    /** Moves as little as needed to have a patch in sight. */
    follow(patch, [rows, columns]) {
      if (!patch || zoom.isWhole) return;
      const seen = 1 / zoom.scale;
      const inSight = (start, place, count) =>
        clamp(start, Math.min((place + 1.5) / count - seen, place / count), Math.max((place - 0.5) / count, 0));
      zoom.show(zoom.scale, inSight(zoom.left, patch[1], columns), inSight(zoom.top, patch[0], rows));
    },
    /** The place of the picture, in shares of it, under a place of the surface. */
    placeOf: ([across, down]) => [zoom.left + across / zoom.scale, zoom.top + down / zoom.scale],
    end: () => cancelAnimationFrame(waiting),
  };
  return zoom;
}

/** Lets a surface be zoomed by wheel, pinch and drag; `scrolls` tells whether the wheel belongs to what is around. */
function watchZoom(surface, zoom, scrolls) {
  const presses = new Map(); // pointers that are down, by their id
  let dragged = false;
  const windowShare = (x, y) => {
    const box = surface.getBoundingClientRect();
    return [(x - box.left) / box.width, (y - box.top) / box.height];
  };
  surface.addEventListener(
    "wheel",
    (event) => {
      const asked = event.ctrlKey || event.metaKey; // what a pinch on a touchpad comes as
      const idle = event.timeStamp - lastWheelElsewhere > PAGE_SCROLLS;
      const out = event.deltaY > 0 && zoom.isWhole;
      if (!asked && (scrolls() || !idle || out)) {
        lastWheelElsewhere = event.timeStamp; // the page goes on scrolling
        return;
      }
      event.preventDefault();
      event.stopPropagation();
      const pixels = event.deltaMode === 1 ? event.deltaY * WHEEL_LINE : event.deltaY;
      zoom.by(Math.exp(-clamp(pixels, -240, 240) * WHEEL_STEP * (asked ? 3 : 1)), windowShare(event.clientX, event.clientY));
    },
    { passive: false },
  );
  surface.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button !== 0) return;
    presses.set(event.pointerId, { x: event.clientX, y: event.clientY });
    dragged = presses.size > 1;
  });
  surface.addEventListener("pointermove", (event) => {
    const before = presses.get(event.pointerId);
    if (!before) return;
    const now = { x: event.clientX, y: event.clientY };
    const others = [...presses].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
    const moved = Math.hypot(now.x - before.x, now.y - before.y);
    if (!others.length && (zoom.isWhole || (!dragged && moved < DRAG_FROM))) return;
    if (!dragged || !surface.hasPointerCapture(event.pointerId)) surface.setPointerCapture(event.pointerId);
    dragged = true;
    surface.classList.add("is-dragging");
    const { width, height } = surface.getBoundingClientRect();
    if (others.length) {
      const other = others[0];
      const apart = (place) => Math.max(Math.hypot(place.x - other.x, place.y - other.y), 1);
      zoom.by(apart(now) / apart(before), windowShare((before.x + other.x) / 2, (before.y + other.y) / 2));
      zoom.drag((now.x - before.x) / 2 / width, (now.y - before.y) / 2 / height);
    } else {
      zoom.drag((now.x - before.x) / width, (now.y - before.y) / height);
    }
    presses.set(event.pointerId, now);
  });
  const released = (event) => {
    presses.delete(event.pointerId);
    if (!presses.size) surface.classList.remove("is-dragging");
  };
  surface.addEventListener("pointerup", released);
  surface.addEventListener("pointercancel", released);
  surface.addEventListener("lostpointercapture", released);
  surface.addEventListener(
    "click",
    (event) => {
      if (!dragged) return;
      dragged = false; // the end of a drag chooses nothing
      event.stopImmediatePropagation();
    },
    { capture: true },
  );
}

/** Time stamp of the last wheel that scrolled the page, so that a picture that comes under the pointer lets it go on. */
let lastWheelElsewhere = -Infinity;
if (typeof window !== "undefined") {
  window.addEventListener(
    "wheel",
    (event) => {
      const over = event.composedPath().some((part) => part.classList?.contains("is-zoomable"));
      if (!over) lastWheelElsewhere = event.timeStamp;
    },
    { passive: true, capture: true },
  );
}

/** All pixels of a picture that came as a JPEG beside fewer of them; null without one. */
async function decodedPicture(bytes) {
  return bytes ? createImageBitmap(new Blob([bytes], { type: "image/jpeg" })) : null;
}

/** Where keys and buttons zoom: at the marked patch while it is in sight, else (undefined) in the middle. */
function placeInSight(zoom, patch, [rows, columns]) {
  if (!patch) return undefined;
  const seen = [(patch[1] + 0.5) / columns - zoom.left, (patch[0] + 0.5) / rows - zoom.top];
  const place = seen.map((share) => share * zoom.scale);
  return place.every((share) => share >= 0 && share <= 1) ? place : undefined;
}

/** Buttons that zoom out, back to the whole, and in; `update` says how far it is. */
function makeZoomButtons(parent, zoom, around = () => undefined) {
  const element = make("div", "view-choice zoom-buttons", { parent, role: "group", "aria-label": "Zoom" });
  const button = (text, name, act) => {
    const made = make("button", "", { parent: element, text, type: "button", title: name, "aria-label": name });
    made.addEventListener("click", act);
    return made;
  };
  const out = button("−", "Zoom out (−)", () => zoom.by(1 / ZOOM_STEP, around()));
  const whole = button("1×", "Show the whole picture (0)", () => zoom.whole());
  const closer = button("+", "Zoom in (+, or the wheel over the picture)", () => zoom.by(ZOOM_STEP, around()));
  whole.classList.add("zoom-scale");
  return {
    element,
    update() {
      whole.textContent = scaleText(zoom.scale);
      whole.setAttribute("aria-label", `Zoom ${scaleText(zoom.scale)}; show the whole picture (0)`);
      out.disabled = zoom.isWhole;
      closer.disabled = zoom.scale >= zoom.largest;
    },
  };
}

const scaleText = (scale) => `${scale < 10 ? Number(scale.toFixed(1)) : Math.round(scale)}×`;

/** Zooms by a key: + and −, 0 for the whole; whether it was one of these. */
function zoomKey(event, zoom, around) {
  if (event.key === "+" || event.key === "=") zoom.by(ZOOM_STEP, around);
  else if (event.key === "-" || event.key === "−") zoom.by(1 / ZOOM_STEP, around);
  else if (event.key === "0") zoom.whole();
  else return false;
  return true;
}

/** Which rows and columns of patches are in sight, and the zoom, in words; "" for the whole. */
function zoomText(zoom, [rows, columns]) {
  if (zoom.isWhole) return "";
  const span = (start, count) => {
    const last = Math.min(Math.ceil((start + 1 / zoom.scale) * count - 1e-6), count) - 1;
    return `${Math.floor(start * count + 1e-6)} to ${last}`;
  };
  return `${scaleText(zoom.scale)} · rows ${span(zoom.top, rows)}, columns ${span(zoom.left, columns)}`;
}

/** A small picture of the whole with a box round what is seen, and its words; hidden while the whole is seen. */
function makeMinimap(surface, zoom) {
  const words = make("div", "zoom-words", { parent: surface, "aria-hidden": "true" });
  const element = make("div", "zoom-minimap", { parent: surface, "aria-hidden": "true" });
  const canvas = make("canvas", "", { parent: element });
  const box = make("div", "zoom-window", { parent: element });
  const drawn = { picture: null, shrink: 0 };
  words.hidden = element.hidden = true;
  return {
    update(picture, size, grid) {
      const small = Math.min(size.width, size.height);
      words.hidden = !picture || zoom.isWhole || size.width < SMALLEST_WORDS;
      element.hidden = !picture || zoom.isWhole || small < SMALLEST_MAP;
      if (!words.hidden) words.textContent = zoomText(zoom, grid);
      if (element.hidden) return;
      const most = Math.min(LARGEST_MAP, MAP_SHARE * small);
      const shrink = Math.min(most / Math.max(picture.width, picture.height), 1);
      const [width, height] = [picture.width, picture.height].map((length) => Math.max(Math.round(length * shrink), 2));
      if (drawn.picture !== picture || drawn.shrink !== shrink) {
        Object.assign(drawn, { picture, shrink });
        const context = sizeCanvas(canvas, width, height);
        context.imageSmoothingQuality = "high";
        context.drawImage(picture, 0, 0, width, height);
      }
      element.style.width = `${width}px`;
      element.style.height = `${height}px`;
      box.style.left = `${100 * zoom.left}%`;
      box.style.top = `${100 * zoom.top}%`;
      box.style.width = box.style.height = `${100 / zoom.scale}%`;
    },
  };
}
