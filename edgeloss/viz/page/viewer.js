// Open an image of the report, and listen.

// Show all of an image but its arrays: what is below keeps its place while they are unpacked.
const describe = (opened, chosen) => {
  image = opened;
  find("#tiles").replaceChildren(...parts.tiles(image.tiles));
  find("#scores").replaceChildren(...parts.tables(image.tables));
  menus.forEach((menu, side) =>
    menu.replaceChildren(...image.choices.map(({ key, name }) => new Option(name, key, false, key === chosen[side]))),
  );
  makeHistograms();
  arrangeRows();
  fit();
  unpin();
  makeLegend();
  showWorst();
};

let newest; // the image that was chosen last; the one before stays until this one is unpacked

const open = async (index) => {
  find("#wait").style.visibility = "visible";
  const opened = (newest = openImage(images[index]));
  const first = ["prediction", "edge"];
  const preferred = () => menus.map((menu, side) => menu.value || first[side]);
  const missing = () => ["truth", "prediction", ...preferred()].filter((name) => opened.has(name) && !opened.arrays[name]);
  if (!image) describe(opened, preferred());
  await opened.loadPicture();
  while (missing().length) await Promise.all(missing().map(opened.need)); // the layers may change meanwhile
  if (opened !== newest) return;

  if (image !== opened) describe(opened, preferred());
  drawWorst();
  clearFilter();
  await Promise.all(menus.map((_, side) => showLayer(side)));
  await image.needPixel(0, 0); // of a small image, all arrays
  if (opened === newest) find("#wait").style.visibility = "hidden";
};

const start = async () => {
  const [pick, slide] = [find("#image"), find("#slide")];
  pick.replaceChildren(...images.map(({ name }, index) => new Option(name, String(index))));
  slide.max = images.length - 1;
  find("#choice").hidden = images.length < 2;
  slide.hidden = images.length < 3;
  await open(0);
  showWhole();
  for (const [chosen, other, event] of [[pick, slide, "change"], [slide, pick, "input"]])
    chosen.addEventListener(event, () => {
      other.value = chosen.value;
      open(Number(chosen.value));
    });
  const follow = stepImage;
  stepImage = (by) => {
    const index = Number(pick.value) + by;
    if (!images[index]) return follow(by);
    pick.value = index;
    pick.dispatchEvent(new Event("change"));
  };
  canvases.forEach(listenToPointer);
  menus.forEach((menu, side) => menu.addEventListener("change", () => showLayer(side)));
  findAll(".largest").forEach((button, side) => button.addEventListener("click", () => goToLargest(side)));
  blends.forEach((blend, side) =>
    blend.addEventListener("input", () => {
      opacities[kindOf(drawn[side])] = blend.value;
      blends.forEach((other, k) => (other.value = opacities[kindOf(drawn[k])]));
      redraw();
    }),
  );
  for (const name of ["truth", "prediction"]) {
    const button = find(`#${name}-contours`);
    button.addEventListener("click", () => {
      contours.has(name) ? contours.delete(name) : contours.add(name);
      button.ariaPressed = String(contours.has(name));
      redraw();
    });
  }
  find("#in").addEventListener("click", () => zoomBy(1.5));
  find("#out").addEventListener("click", () => zoomBy(1 / 1.5));
  find("#whole").addEventListener("click", showWhole);
  find("#clear").addEventListener("click", clearFilter);
  document.addEventListener("keydown", listenToKeys);
  new ResizeObserver(fit).observe(find(".panes"));
};

(images.length ? start() : Promise.resolve()).then(() => {
  document.body.dataset.ready = "true";
  performance.mark("ready"); // for benchmarks
}, fail);
