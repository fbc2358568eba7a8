// The numbers of a report: unpack them, and filter pixels.

const { names, colors, images } = data.parts.find(({ kind }) => kind === "viewer") ?? { names: [], colors: [], images: [] };
const { HIDDEN, IGNORED, OFF_EDGES, FIRST, NOT_FINITE } = data.codes; // those below FIRST are no numbers

// A code holds the exponent and eight bits of the significand of a float32.
const NUMBERS = new Float32Array(Uint32Array.from({ length: 65536 }, (_, code) => Math.max(code - FIRST, 0) << 15).buffer);

const unpack = async (text) => {
  const letters = atob(text);
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < packed.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

// Integers are stored as they are, codes of floats as their high bytes and their low bytes.
const INTEGERS = { uint8: Uint8Array, uint16: Uint16Array, int16: Int16Array };

const decode = async (kind, text) => {
  const bytes = await unpack(text);
  if (kind in INTEGERS) return new INTEGERS[kind](bytes.buffer);
  const count = bytes.length / 2;
  const values = new Uint16Array(count);
  for (let i = 0; i < count; i++) values[i] = (bytes[i] << 8) | bytes[count + i];
  return values;
};

const NEIGHBOR = ["down", "right", "nll", "share"]; // arrays with a row per edge pixel

let image; // the current one

// Return an image without its arrays. They are stored in bands of rows, which are unpacked when they are needed: all
// bands of an array to draw it, and one band of each array for the values of a pixel.
const openImage = (about) => {
  const { arrays: packed, picture } = about;
  const opened = { ...about, arrays: {}, levels: new Map(), paintings: {}, keep: null, picture: null, failures: {} };
  const stored = Object.keys(packed);
  const [height, width] = packed.truth.shape;
  const count = packed.truth.bands.length;
  const bands = Object.fromEntries(stored.map((name) => [name, []]));
  const startOf = (rows, band) => Math.floor((rows * band) / count);
  const bandOf = (rows, row) => Math.ceil(((row + 1) * count) / rows) - 1;

  const loadBand = async (name, band) => (bands[name][band] ??= await decode(packed[name].kind, packed[name].bands[band]));
  const load = async (name) => {
    const { kind, shape } = packed[name];
    const parts = await Promise.all(packed[name].bands.map((_, band) => loadBand(name, band)));
    const values = new parts[0].constructor(shape[0] * shape[1]);
    parts.forEach((part, band) => {
      const at = startOf(shape[0], band) * shape[1];
      values.set(part, at);
      bands[name][band] = values.subarray(at, at + part.length);
    });
    const about = kind === "float" ? { codes: true } : { none: kind === "uint8" ? 255 : 65535 };
    opened.arrays[name] = { rows: shape[0], columns: shape[1], values, ...about };
  };
  const loading = {};
  opened.need = (name) => (loading[name] ??= load(name));

  const placeOf = (name, y, x) => {
    const [rows, columns] = packed[name].shape;
    const row = Math.floor(((y + 0.5) * rows) / height);
    const band = bandOf(rows, row);
    return { band, at: (row - startOf(rows, band)) * columns + Math.floor(((x + 0.5) * columns) / width) };
  };
  // Return a promise of what the values of a pixel need, or null if nothing is missing.
  opened.needPixel = (y, x) => {
    const missing = stored
      .map((name) => [name, NEIGHBOR.includes(name) ? bandOf(height, y) : placeOf(name, y, x).band])
      .filter(([name, band]) => !bands[name][band]);
    return missing.length ? Promise.all(missing.map(([name, band]) => loadBand(name, band))) : null;
  };
  opened.has = (name) => name in packed;
  opened.valueAt = (name, y, x) => {
    const { band, at } = placeOf(name, y, x);
    return bands[name][band][at];
  };
  // The neighbors of an edge pixel; edge pixels are stored in the order of the image.
  const ranks = [];
  opened.neighborsAt = (y, x) => {
    const { band, at } = placeOf("edge", y, x);
    if (!ranks[band]) {
      let rank = 0;
      ranks[band] = Int32Array.from(bands.edge[band], (code) => (code >= FIRST ? rank++ : -1));
    }
    const row = ranks[band][at];
    const [, most] = packed.down.shape;
    const places = row < 0 ? [] : Array.from({ length: most }, (_, k) => row * most + k);
    return places.map((place) => Object.fromEntries(NEIGHBOR.map((name) => [name, bands[name][band][place]])));
  };

  opened.loadPicture = async () => {
    if (!picture) return;
    opened.picture = Object.assign(new Image(), { src: picture });
    await opened.picture.decode();
  };
  opened.choices = [
    ...(picture ? [{ key: "picture", name: "image" }] : []),
    { key: "truth", name: "ground truth" },
    { key: "prediction", name: "prediction" },
    { key: "errors", name: "right and wrong" },
    ...about.layers,
  ];
  return opened;
};

const layerOf = (key) => image.layers.find((layer) => layer.key === key);
const isDistance = (key) => layerOf(key)?.nothing === "far"; // an infinite one is drawn black
const gridOf = (key) => image.arrays[key] ?? image.arrays.truth;

// The place in a layer of lower resolution of a pixel of the image.
const placeIn = ({ rows, columns }, y, x) => {
  const { truth } = image.arrays;
  return Math.floor(((y + 0.5) * rows) / truth.rows) * columns + Math.floor(((x + 0.5) * columns) / truth.columns);
};

// The pixel in the middle of a place of a layer.
const pixelOf = ({ rows, columns }, at) => {
  const { truth } = image.arrays;
  const y = ((Math.floor(at / columns) + 0.5) * truth.rows) / rows;
  return [Math.floor(y), Math.floor((((at % columns) + 0.5) * truth.columns) / columns)];
};

const labelAt = (key, y, x) => image.arrays[key].values[y * image.arrays[key].columns + x];

// ------------------------------------------------------------------------------------------------------------- filters

const filter = {
  hidden: new Set(), // classes
  pair: null, // [true class, predicted class] to show alone
  ranges: new Map(), // by layer: { binOf, low, high }, bins to show
};

// Mark the pixels that pass: a class is shown where it is the truth or the prediction.
const filtered = () => {
  const { truth, prediction } = image.arrays;
  const { hidden, pair, ranges } = filter;
  if (!hidden.size && !pair && !ranges.size) return null;
  const keep = new Uint8Array(truth.values.length);
  const shown = Uint8Array.from({ length: 65536 }, (_, label) => label < names.length && !hidden.has(label));
  for (let at = 0; at < keep.length; at++) {
    const [true_, found] = [truth.values[at], prediction.values[at]];
    keep[at] = pair ? true_ === pair[0] && (names[found] ? found : -1) === pair[1] : !hidden.size || shown[true_] | shown[found];
  }
  for (const [key, { binOf, low, high }] of ranges) {
    const grid = image.arrays[key];
    for (let y = 0, at = 0; y < truth.rows; y++)
      for (let x = 0; x < truth.columns; x++, at++) {
        const bin = keep[at] ? binOf[grid.values[grid.rows === truth.rows ? at : placeIn(grid, y, x)]] : 255;
        if (bin < low || bin > high) keep[at] = 0;
      }
  }
  return keep;
};
