// The two views: they show the same part of the image, zoom and move together, and mark the pixel of interest.

const canvases = findAll(".pane > canvas");
const menus = findAll(".layer");
const blends = findAll(".opacity");
const opacities = { labels: 60, values: 100 }; // in percent: maps and wrong pixels hide the image, as their colors mean something
const OUTLINE = { same: "#00c8ff", other: "#ff9d2e", own: "#ff2d2d" };
const MOST = 48; // screen pixels of a pixel of the image

const view = { x: 0, y: 0, zoom: 1 }; // the middle, and the size of a pixel on the screen
let shown = null; // the pixel whose values are shown, [row, column]
let pinned = false; // it stays when the pointer moves
let around = []; // the neighbors of an edge pixel that are shown
const contours = new Set();
const drawn = []; // the layer of each view; that of its menu may still be unpacked

const sizeOf = (canvas) => [canvas.clientWidth, canvas.clientHeight];
const wholeZoom = () => {
  const { rows, columns } = image;
  const [width, height] = sizeOf(canvases[0]);
  return Math.min(width / columns, height / rows, MOST);
};
const frameOf = (canvas) => {
  const [width, height] = sizeOf(canvas);
  const dots = view.zoom * (canvas.width / width);
  return { left: view.x - width / 2 / view.zoom, top: view.y - height / 2 / view.zoom, dots };
};

// Keep the zoom in its range and the image in the views.
const settle = () => {
  const { rows, columns } = image;
  const whole = wholeZoom();
  view.zoom = limited(view.zoom, whole, Math.max(MOST, whole));
  const [width, height] = sizeOf(canvases[0]).map((size) => size / 2 / view.zoom);
  view.x = 2 * width >= columns ? columns / 2 : limited(view.x, width, columns - width);
  view.y = 2 * height >= rows ? rows / 2 : limited(view.y, height, rows - height);
  canvases.forEach((canvas) => canvas.classList.toggle("zoomed", view.zoom > whole * 1.001));
  redraw();
};

const showWhole = () => {
  view.zoom = 0;
  settle();
};

// Zoom so that the given point of a view stays in place.
const zoomBy = (factor, x = view.x, y = view.y) => {
  const before = view.zoom;
  view.zoom = limited(before * factor, wholeZoom(), MOST);
  view.x = x + ((view.x - x) * before) / view.zoom;
  view.y = y + ((view.y - y) * before) / view.zoom;
  settle();
};

const zoomTo = (y, x, across = 48) => {
  Object.assign(view, { x: x + 0.5, y: y + 0.5, zoom: Math.min(...sizeOf(canvases[0])) / across });
  settle();
};

// ------------------------------------------------------------------------------------------------------------- drawing

// The pixels that are not finite, to mark them: one in a million is hard to see.
const failures = (key) => {
  const places = [];
  const failed = layerOf(key) ? (code) => code >= NOT_FINITE : (code) => key === "prediction" && code === IGNORED;
  image.arrays[key]?.forEach((code, at) => places.length < 2000 && failed(code) && places.push(pixelOf(at)));
  return places;
};

const box = (context, frame, y, x, color, width) => {
  const { left, top, dots } = frame;
  context.strokeStyle = color;
  context.lineWidth = width * devicePixelRatio;
  const side = Math.max(dots, 4 * devicePixelRatio); // visible also where pixels are smaller than dots
  context.strokeRect((x + 0.5 - left) * dots - side / 2, (y + 0.5 - top) * dots - side / 2, side, side);
};

const drawView = (side) => {
  const canvas = canvases[side];
  const [width, height] = sizeOf(canvas).map((size) => Math.round(size * devicePixelRatio));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const frame = frameOf(canvas);
  const key = drawn[side];
  if (!image.arrays.truth || !key) return; // they are being unpacked
  drawLayer(context, frame, key, { opacity: blends[side].value / 100, contours });
  context.fillStyle = data.special.loud;
  const size = 5 * devicePixelRatio;
  for (const [y, x] of (image.failures[key] ??= failures(key)))
    context.fillRect((x + 0.5 - frame.left) * frame.dots - size / 2, (y + 0.5 - frame.top) * frame.dots - size / 2, size, size);
  if (!shown) return;
  for (const { down, right, same } of around)
    box(context, frame, shown[0] + down, shown[1] + right, same ? OUTLINE.same : OUTLINE.other, 1.5);
  box(context, frame, ...shown, OUTLINE.own, 2.5);
};

let waiting = false;
const redraw = () => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    canvases.forEach((_, side) => drawView(side));
  });
};

// What the colors of a layer mean that belong neither to a class nor to a number: those that occur.
const NOTHING_MEANS = { "off the edges": "no edge", zero: "zero gradient", far: "no other label near" };
const othersOf = (key) => {
  const codes = image.arrays[key] ?? image.arrays.truth;
  const isErrors = key === "errors";
  const occurring = {
    right: isErrors && !image.picture,
    wrong: isErrors && image.pixels.wrong,
    void: key !== "picture" && key !== "prediction" && codes.includes(IGNORED),
    nothing: layerOf(key) && codes.includes(NOTHING),
    loud: (image.failures[key] ??= failures(key)).length,
  };
  const nothing = [NOTHING_MEANS[layerOf(key)?.nothing], ...(image.picture ? ["the image, darkened"] : [])].join(": ");
  const meanings = { right: "right", wrong: "wrong", void: "ignored", nothing, loud: "not finite" };
  return Object.entries(meanings).flatMap(([name, meaning]) => (occurring[name] ? [[meaning, data.special[name]]] : []));
};

const ABOUT_LABELS = {
  picture: "the photograph",
  truth: "the true labels",
  prediction: "the most probable class of each pixel",
  errors: "where the prediction has another class than the truth",
};
const kindOf = (key) => (layerOf(key) || key === "errors" ? "values" : "labels");

// Show the layer of the menu of a view.
const showLayer = async (side) => {
  const key = menus[side].value;
  const about = image;
  if (layerOf(key)) await image.need(key);
  if (image !== about || menus[side].value !== key) return; // another was chosen since
  drawn[side] = key;
  blends[side].value = opacities[kindOf(key)];
  blends[side].closest("label").hidden = !image.picture || key === "picture";
  const layer = layerOf(key);
  const pane = canvases[side].parentElement;
  find(".largest", pane).hidden = !layer;
  find(".stats", pane).textContent = layer?.stats ?? "";
  find(".scale", pane).classList.toggle("on", Boolean(layer));
  find(".what", pane).textContent = layer?.about ?? ABOUT_LABELS[key];
  find(".others", pane).replaceChildren(keyOf(othersOf(key)));
  find(".color-bar", pane)?.remove();
  if (layer?.bar) find(".scale", pane).prepend(barOf(layer.bar));
  const name = menus[side].selectedOptions[0].textContent;
  canvases[side].ariaLabel = `${side ? "Right" : "Left"} view: ${name}`;
  redraw();
};

let fitted = 0; // the zoom that shows the whole image, when the views were last fitted

const fit = () => {
  if (!canvases[0].clientWidth) return; // not laid out
  const { rows, columns } = image;
  const isWhole = view.zoom <= fitted * 1.001;
  for (const canvas of canvases) {
    const height = (canvas.clientWidth * rows) / columns;
    canvas.style.height = `${limited(height, 180, 0.72 * window.innerHeight)}px`;
  }
  fitted = wholeZoom();
  if (isWhole) view.zoom = 0; // it stays so in views of another size
  settle();
};

// ------------------------------------------------------------------------------------------------- pointer and keyboard

const pointAt = (canvas, event) => {
  const { left, top } = canvas.getBoundingClientRect();
  const frame = frameOf(canvas);
  return [frame.top + (event.clientY - top) / view.zoom, frame.left + (event.clientX - left) / view.zoom];
};

const pixelAt = (canvas, event) => {
  const { rows, columns } = image;
  const [y, x] = pointAt(canvas, event).map(Math.floor);
  return y < 0 || x < 0 || y >= rows || x >= columns ? null : [y, x];
};

const listenToPointer = (canvas) => {
  const pointers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event);
    if (pointers.size === 1) moved = 0;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) {
      const pixel = pixelAt(canvas, event);
      if (!pinned && pixel && !(shown && shown[0] === pixel[0] && shown[1] === pixel[1])) showPixel(...pixel);
      return;
    }
    moved += Math.hypot(event.clientX - before.clientX, event.clientY - before.clientY);
    const other = [...pointers.values()].find(({ pointerId }) => pointerId !== event.pointerId);
    pointers.set(event.pointerId, event);
    if (other) {
      const far = ({ clientX, clientY }) => Math.hypot(clientX - other.clientX, clientY - other.clientY);
      const [y, x] = pointAt(canvas, other);
      zoomBy(far(event) / Math.max(far(before), 1), x, y);
    } else if (moved > 4) {
      view.x -= (event.clientX - before.clientX) / view.zoom;
      view.y -= (event.clientY - before.clientY) / view.zoom;
      settle();
    }
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => pointers.delete(event.pointerId));
  // A drag also ends with a click; the second click of a double click only zooms.
  canvas.addEventListener("click", (event) => {
    const pixel = pixelAt(canvas, event);
    if (moved <= 4 && event.detail < 2 && pixel) pin(...pixel);
  });
  canvas.addEventListener("dblclick", () => {
    unpin();
    showWhole();
  });
  canvas.addEventListener("pointerleave", () => pinned || forget());
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const [y, x] = pointAt(canvas, event);
      zoomBy(Math.exp(-limited(event.deltaY, -240, 240) / 300), x, y);
    },
    { passive: false },
  );
};

const pin = (y, x) => {
  pinned = true;
  showPixel(y, x);
};

const unpin = () => {
  pinned = false;
  forget();
};

let lastSpoken;
const speak = (text) => {
  clearTimeout(lastSpoken); // only where the pixel comes to rest
  lastSpoken = setTimeout(() => (find("#spoken").textContent = text), 500);
};

const movePixel = (down, right) => {
  const { rows, columns } = image;
  const from = shown ?? [Math.floor(view.y) - down, Math.floor(view.x) - right];
  const [y, x] = [limited(from[0] + down, 0, rows - 1), limited(from[1] + right, 0, columns - 1)];
  pin(y, x);
  const [width, height] = sizeOf(canvases[0]).map((size) => size / 2 / view.zoom - 1);
  view.x = limited(view.x, x - width, x + width);
  view.y = limited(view.y, y - height, y + height);
  settle();
  const [truth, prediction] = ["truth", "prediction"].map((key) => labelAt(key, y, x));
  speak(`Row ${y}, column ${x}: truth ${nameOf(truth, "ignored")}, prediction ${nameOf(prediction)}`);
};

const changeLayer = (side, by) => {
  const menu = menus[side];
  menu.selectedIndex = (menu.selectedIndex + by + menu.length) % menu.length;
  speak(menu.selectedOptions[0].textContent);
  return showLayer(side);
};

const goToLargest = (side) => {
  // Codes of values that are not finite are the largest.
  const pixel = pixelOf(image.arrays[drawn[side]].reduce((best, code, at, codes) => (code > codes[best] ? at : best), 0));
  zoomTo(...pixel);
  pin(...pixel);
};

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

const listenToKeys = (event) => {
  const side = canvases.indexOf(event.target);
  if (event.key === "Escape") return unpin();
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (side < 0 && !(pinned && event.target === document.body)) return;
  const step = STEPS[event.key];
  const actions = {
    "+": () => zoomBy(1.5, ...[...(shown ?? [view.y, view.x])].reverse()),
    "=": () => zoomBy(1.5),
    "-": () => zoomBy(1 / 1.5),
    0: showWhole,
    Enter: () => (pinned ? unpin() : pin(...(shown ?? [Math.floor(view.y), Math.floor(view.x)]))),
    "[": () => changeLayer(Math.max(side, 0), -1),
    "]": () => changeLayer(Math.max(side, 0), 1),
    l: () => layerOf(drawn[Math.max(side, 0)]) && goToLargest(Math.max(side, 0)),
  };
  const action = step ? () => movePixel(...step.map((by) => by * (event.shiftKey ? 10 : 1))) : actions[event.key];
  if (!action) return;
  event.preventDefault();
  action();
};
