// The numbers of a report: unpack them, and filter pixels.

const { names, colors, images } = data.parts.find(({ kind }) => kind === "viewer") ?? { names: [], colors: [], images: [] };
const { HIDDEN, IGNORED, NOTHING, FIRST, NOT_FINITE } = data.codes; // those below FIRST are no numbers

// A code holds the exponent and eight bits of the significand of a float32.
const NUMBERS = new Float32Array(Uint32Array.from({ length: 65536 }, (_, code) => Math.max(code - FIRST, 0) << 15).buffer);

// Unpack a band: the high bytes of all values precede their low bytes, and rows are differences to those above.
const unpack = async ({ kind, shape: [, columns] }, text) => {
  const letters = atob(text);
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < packed.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const values = kind === "uint8" ? bytes : new { int16: Int16Array, uint16: Uint16Array }[kind](bytes.length / 2);
  if (kind !== "uint8") for (let i = 0; i < values.length; i++) values[i] = (bytes[i] << 8) | bytes[values.length + i];
  for (let i = columns; i < values.length; i++) values[i] += values[i - columns];
  return values;
};

const NEIGHBOR = ["down", "right", "nll", "share"]; // arrays with a row per edge pixel; the others have one per pixel

let image; // the current one

// Return an image without its arrays. They are stored in bands of rows, which are unpacked when they are needed: all
// bands of an array to draw it, and one band of each array for the values of a pixel.
const openImage = (about) => {
  const { arrays: packed, picture } = about;
  const [rows, columns] = packed.truth.shape;
  const opened = { ...about, packed, rows, columns, arrays: {}, levels: new Map(), paintings: {}, keep: null, picture: null, failures: {} };
  const count = packed.truth.bands.length;
  const bands = Object.fromEntries(Object.keys(packed).map((name) => [name, []]));
  const startOf = (band) => Math.floor((rows * band) / count) * columns;
  const bandOf = (y) => Math.ceil(((y + 1) * count) / rows) - 1;

  const loadBand = async (name, band) => (bands[name][band] ??= await unpack(packed[name], packed[name].bands[band]));
  const load = async (name) => {
    const parts = await Promise.all(packed[name].bands.map((_, band) => loadBand(name, band)));
    const values = new parts[0].constructor(rows * columns);
    parts.forEach((part, band) => {
      values.set(part, startOf(band));
      bands[name][band] = values.subarray(startOf(band), startOf(band) + part.length);
    });
    opened.arrays[name] = values;
  };
  const loading = {};
  opened.need = (name) => (loading[name] ??= load(name));
  // Return a promise of what the values of a pixel need, or null if nothing is missing.
  opened.needPixel = (y) => {
    const missing = Object.keys(packed).filter((name) => !bands[name][bandOf(y)]);
    return missing.length ? Promise.all(missing.map((name) => loadBand(name, bandOf(y)))) : null;
  };
  opened.has = (name) => name in packed;
  opened.codeAt = (name, y, x) => bands[name][bandOf(y)][y * columns + x - startOf(bandOf(y))];
  // The neighbors of an edge pixel; edge pixels are stored in the order of the image.
  opened.neighborsAt = (y, x) => {
    const edges = bands.edge[bandOf(y)];
    const at = y * columns + x - startOf(bandOf(y));
    if (edges[at] < FIRST) return [];
    const [, most] = packed.down.shape;
    const row = edges.subarray(0, at).reduce((rank, code) => rank + (code >= FIRST), 0);
    return Array.from({ length: most }, (_, k) => Object.fromEntries(NEIGHBOR.map((name) => [name, bands[name][bandOf(y)][row * most + k]])));
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
const pixelOf = (at) => [Math.floor(at / image.columns), at % image.columns];
const labelAt = (key, y, x) => image.arrays[key][y * image.columns + x] - FIRST; // negative where there is none

// ------------------------------------------------------------------------------------------------------------- filters

const filter = {
  hidden: new Set(), // classes
  pair: null, // [true class, predicted class] to show alone
  ranges: new Map(), // by layer: { first, end }, codes to show
};

// Mark the pixels that pass: a class is shown where it is the truth or the prediction.
const filtered = () => {
  const { truth, prediction } = image.arrays;
  const { hidden, pair, ranges } = filter;
  if (!hidden.size && !pair && !ranges.size) return null;
  const shown = Uint8Array.from({ length: 65536 }, (_, code) => code >= FIRST && code < FIRST + names.length && !hidden.has(code - FIRST));
  const passes = (code, at) => {
    const found = prediction[at];
    if (pair) return code - FIRST === pair[0] && Math.max(found - FIRST, -1) === pair[1];
    return !hidden.size || shown[code] || shown[found];
  };
  const keep = truth.map(passes);
  for (const [key, { first, end }] of ranges) image.arrays[key].forEach((code, at) => (keep[at] &&= code >= first && code < end));
  return keep;
};
