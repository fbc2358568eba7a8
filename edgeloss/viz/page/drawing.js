// Painting a layer: one color per pixel, or per block of pixels where the screen has fewer.

// Colors are integers of the bytes of ImageData, on little-endian machines.
const rgba = (hex) => {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
};
const special = Object.fromEntries(Object.entries(data.special).map(([name, hex]) => [name, rgba(hex)]));
const scale = data.scale.map(rgba);
const [RIGHT_PIXEL, WRONG_PIXEL] = [FIRST, FIRST + 1]; // the codes of "right and wrong"
// As TRUE_BORDER and FOUND_BORDER of edgeloss/viz/palette.py.
const CONTOURS = { "contour truth": "#ffffff", "contour prediction": "#ffeb00" };

// The color of each code of a layer.
const paintingOf = (key) => {
  const painting = new Uint32Array(65536);
  const layer = layerOf(key);
  [painting[IGNORED], painting[NOTHING]] = [key === "prediction" ? special.loud : special.void, image.picture ? 0 : special.nothing];
  if (key in CONTOURS) painting.fill(rgba(CONTOURS[key]), 1);
  else if (key === "picture") painting[HIDDEN] = special.void; // a veil
  else if (key === "errors") {
    const right = image.picture ? 0 : special.right; // the image is seen there
    [painting[RIGHT_PIXEL], painting[WRONG_PIXEL]] = [right, special.wrong];
  } else if (!layer) painting.set(colors.map(rgba), FIRST);
  else {
    for (let code = FIRST; code < NOT_FINITE; code++) {
      const value = layer.log ? Math.log10(NUMBERS[code]) : NUMBERS[code];
      const part = (value - layer.low) / (layer.high - layer.low);
      painting[code] = scale[limited(Math.floor(part * scale.length), 0, scale.length - 1)];
    }
    painting.fill(special.loud, NOT_FINITE);
  }
  return painting;
};

// Halve a resolution: the largest of four codes stays, so that thin edges do. Of labels the first: an order of them has
// no meaning.
const halved = ({ values, rows, columns }, isOrdered) => {
  const [down, across] = [Math.ceil(rows / 2), Math.ceil(columns / 2)];
  const half = new values.constructor(down * across);
  for (let y = 0, to = 0; y < down; y++) {
    const [above, below] = [2 * y * columns, Math.min(2 * y + 1, rows - 1) * columns];
    for (let x = 0; x < across; x++, to++) {
      const [left, right] = [2 * x, Math.min(2 * x + 1, columns - 1)];
      half[to] = values[above + left];
      if (isOrdered) half[to] = Math.max(half[to], values[above + right], values[below + left], values[below + right]);
    }
  }
  return { values: half, rows: down, columns: across };
};

// Return a layer at a level, each of half the resolution of the one before; made when it is first drawn.
const levelOf = (key, level) => {
  const { rows, columns, levels } = image;
  const make = () => (key in CONTOURS ? contourOf(key.slice("contour ".length)) : visibleCodes(key));
  if (!levels.has(key)) levels.set(key, [{ values: make(), rows, columns }]);
  const made = levels.get(key);
  while (made.length <= level) made.push(halved(made[made.length - 1], layerOf(key) || key in CONTOURS));
  return made[level];
};

// Return the codes of a layer, those of pixels that do not pass the filter hidden.
const visibleCodes = (key) => {
  const { arrays, keep } = image;
  const { truth, prediction } = arrays;
  let codes = arrays[key];
  if (key === "picture") codes = new Uint8Array(truth.length).fill(FIRST);
  if (key === "errors")
    codes = truth.map((code, at) => (code < FIRST ? IGNORED : code === prediction[at] ? RIGHT_PIXEL : WRONG_PIXEL));
  return keep ? codes.map((code, at) => (keep[at] ? code : HIDDEN)) : codes;
};

// The pixels at a contour: 1 where the right neighbor has another label, plus 2 where the lower one has.
const contourOf = (name) => {
  const { rows, columns } = image;
  const labels = image.arrays[name];
  const differ = (a, b) => a !== b && a >= FIRST && b >= FIRST;
  return labels.map((label, at) => {
    const right = (at + 1) % columns && differ(label, labels[at + 1]);
    return right + 2 * (at + columns < rows * columns && differ(label, labels[at + columns]));
  });
};

// Return the colors of rows [y0, y1) and columns [x0, x1) of a layer at a level.
const cells = (key, level, x0, y0, x1, y1) => {
  const painted = new ImageData(x1 - x0, y1 - y0);
  const pixels = new Uint32Array(painted.data.buffer);
  const painting = (image.paintings[key] ??= paintingOf(key));
  const { columns, values } = levelOf(key, level);
  for (let y = y0, to = 0; y < y1; y++) for (let x = x0; x < x1; x++) pixels[to++] = painting[values[y * columns + x]];
  return painted;
};

// Draw the borders of the visible pixels as lines, where pixels are large enough to lie between them.
const LINES_FROM = 4;
const drawContour = (context, { left, top, dots }, key) => {
  const { rows, columns, values } = levelOf(key, 0);
  const [x0, y0] = [Math.max(Math.floor(left), 0), Math.max(Math.floor(top), 0)];
  const x1 = Math.min(Math.ceil(left + context.canvas.width / dots), columns);
  const y1 = Math.min(Math.ceil(top + context.canvas.height / dots), rows);
  const path = new Path2D();
  const line = (x, y, across, down) => {
    path.moveTo((x - left) * dots, (y - top) * dots);
    path.lineTo((x + across - left) * dots, (y + down - top) * dots);
  };
  for (let y = y0; y < y1; y++)
    for (let x = x0; x < x1; x++) {
      if (values[y * columns + x] & 1) line(x + 1, y, 0, 1);
      if (values[y * columns + x] & 2) line(x, y + 1, 1, 0);
    }
  context.lineCap = "square";
  for (const [color, width] of [["#0009", 3.5], [CONTOURS[key], 2]]) {
    Object.assign(context, { strokeStyle: color, lineWidth: width * devicePixelRatio });
    context.stroke(path);
  }
};

const scratch = document.createElement("canvas");

// Draw the visible part of a layer. A frame is the place of the canvas: its left and top in pixels of the image, and how
// many dots of the screen a pixel takes.
const drawGrid = (context, { left, top, dots }, key, opacity = 1) => {
  const level = Math.max(0, Math.ceil(Math.log2(1 / dots) - 1e-9));
  const { rows, columns } = levelOf(key, level);
  const cell = 2 ** level; // its size in pixels of the image
  const { width, height } = context.canvas;
  const x0 = limited(Math.floor(left / cell), 0, columns - 1);
  const y0 = limited(Math.floor(top / cell), 0, rows - 1);
  const x1 = limited(Math.ceil((left + width / dots) / cell), x0 + 1, columns);
  const y1 = limited(Math.ceil((top + height / dots) / cell), y0 + 1, rows);
  [scratch.width, scratch.height] = [x1 - x0, y1 - y0];
  scratch.getContext("2d").putImageData(cells(key, level, x0, y0, x1, y1), 0, 0);
  context.globalAlpha = opacity;
  context.imageSmoothingEnabled = false;
  const size = cell * dots;
  context.drawImage(scratch, x0 * size - left * dots, y0 * size - top * dots, (x1 - x0) * size, (y1 - y0) * size);
  context.globalAlpha = 1;
};

// What covers the image so that a layer stands out, as [operation, color]: grays between those of PALE in palette.py
// below wrong pixels, and a dark image where a map has nothing.
const PALE = [["saturation", "#888"], ["source-over", "rgb(249 249 249 / 82%)"]];
const DARK = [["source-over", "rgb(0 0 0 / 68%)"]];
const veilOf = (key) => (key === "errors" ? PALE : layerOf(key)?.nothing ? DARK : []);

const drawPicture = (context, frame, opacity, veil) => {
  const { rows, columns } = image;
  context.globalAlpha = opacity;
  context.imageSmoothingEnabled = frame.dots < 2;
  context.imageSmoothingQuality = "high";
  const { left, top, dots } = frame;
  const area = [-left * dots, -top * dots, columns * dots, rows * dots];
  context.drawImage(image.picture, ...area);
  context.globalAlpha = 1;
  for (const [globalCompositeOperation, fillStyle] of veil) {
    Object.assign(context, { globalCompositeOperation, fillStyle });
    context.fillRect(...area);
  }
  context.globalCompositeOperation = "source-over";
};

// Draw a layer over the image, and contours over both.
const drawLayer = (context, frame, key, { opacity = 1, contours = [] } = {}) => {
  context.clearRect(0, 0, context.canvas.width, context.canvas.height);
  const alone = key === "picture";
  if (image.picture) drawPicture(context, frame, image.keep && !alone ? 0.35 : 1, veilOf(key));
  if (!alone || image.keep) drawGrid(context, frame, key, alone ? 0.85 : image.picture ? opacity : 1);
  for (const name of contours) (frame.dots >= LINES_FROM ? drawContour : drawGrid)(context, frame, `contour ${name}`);
};
