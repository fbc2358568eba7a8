// A gallery of thumbnails: sort the images, and show those of a class or name.

const BINS = 24; // of the histogram on a card
const [FEW, MANY] = [8, 12]; // images that are shown at first where there are more than the second number

const figureLine = ([title, value, change]) =>
  element("div", {}, text("dt", title), element("dd", {}, value, ...(change ? [" ", text("small", change.text, change.tone)] : [])));
const cardOf = (image, places) => {
  const { name, link, photo, figures, lines } = image;
  // Of one network a card leads to the page of its image; of two its pictures are enlarged, and the name leads there.
  const pictured = (at) => figureOf(figures[at], pictureOf(figures[at], photo));
  const head = link && !isOfTwo
    ? [element("a", { href: link }, element("div", { className: "shown" }, ...places.map(pictured)), text("strong", name))]
    : [picturesOf(image, places, "shown"), element("strong", {}, link ? element("a", { href: link }, name) : name)];
  return element("li", { className: "card" }, ...head, element("dl", {}, ...lines.map(figureLine)));
};

// The IoU of a class: of one network, or how much the second has more than the first; null where it does not occur.
const changeOf = (iou, label) => {
  const [first, last] = [iou[0], iou[iou.length - 1]].map((one) => one[label] ?? null);
  return iou.length < 2 || first === null || last === null ? last : last - first;
};

// A figure of two networks: of both, and how it changed.
const isOfTwo = items.some(({ iou }) => iou.length > 1);
const classLine = (name, iou) => {
  const change = isOfTwo && !iou.includes(null) ? 100 * (iou[1] - iou[0]) : null;
  const shown = change === null ? null : `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(1)}`;
  const tone = /[1-9]/.test(shown) ? (change > 0 ? "better" : "worse") : "";
  return figureLine([`IoU of ${name}`, iou.map((one) => percent(one)).join(" → "), shown && { text: shown, tone }]);
};

parts.gallery = ({ shown, sort, always, scores, classes }) => {
  const cards = items.map((one) => cardOf(one, shown));
  const gallery = element("ul", { className: "gallery rows" }, ...cards);
  const menu = (id, entries) => element("select", { id }, ...entries.map(([value, name]) => new Option(name, value)));
  const titles = Object.fromEntries(sort);
  const by = menu("sort", [...sort.map(([key, name]) => [key, isOfTwo ? `change in ${name}` : name]), ["name", "name"]]);
  const class_ = menu("class", [["", "all classes"], ...classes]);
  const search = element("input", { id: "search", type: "search", size: 14 });
  const order = element("button", { id: "order", title: "Reverse the order" });
  let reversed = false;
  const count = element("span", { id: "count", role: "status" });
  const more = element("button", { id: "more", type: "button" });
  more.addEventListener("click", () => {
    gallery.classList.toggle("whole");
    fold();
  });
  const axis = text("p", "", "hint");

  // The worst come first; what is not finite is worst of the losses, and no score.
  const comparison = (key) => {
    if (key === "name") return (a, b) => items[a].name.localeCompare(items[b].name);
    const value = (at) => (key === "mean_iou" && class_.value ? changeOf(items[at].iou, class_.value) : items[at].values[key]) ?? Infinity;
    const sign = scores.includes(key) ? 1 : -1;
    return (a, b) => (value(a) === value(b) ? a - b : sign * (value(a) - value(b)));
  };
  // Below the figure that the page sorts by, a histogram of it over all images, in which the bar of the image is marked.
  const drawHistograms = () => {
    const values = items.map((image) => image.values[by.value] ?? null);
    const [low, high] = [Math.min, Math.max].map((end) => end(...values.filter((value) => value !== null)));
    const binOf = (value) => Math.min(Math.floor((BINS * (value - low)) / (high - low)), BINS - 1);
    const counts = Array(BINS).fill(0);
    for (const value of low < high ? values : []) if (value !== null) counts[binOf(value)]++;
    const most = Math.max(...counts);
    const barOf = (count, bin) => (count ? `M${bin + 0.1} 1V${(1 - count / most).toFixed(3)}h.8V1Z` : "");
    const all = counts.map(barOf).join("");
    const zero = isOfTwo && low < 0 && high > 0 ? `M${((BINS * -low) / (high - low)).toFixed(2)} 0V1` : "";
    cards.forEach((card, at) => {
      find(".spread", card)?.remove();
      if (values[at] === null || !most) return;
      const bin = binOf(values[at]);
      const bars = Object.entries({ all, zero, own: barOf(counts[bin], bin) }).map(([name, d]) => svg("path", { class: name, d }));
      find(".by", card).after(svg("svg", { class: "spread", viewBox: `0 0 ${BINS} 1`, preserveAspectRatio: "none", "aria-hidden": "true" }, ...bars));
    });
    const shownOf = (value) => {
      const [, text, change] = items[values.indexOf(value)].lines.find(([title]) => title === titles[by.value]);
      return change?.text ?? text;
    };
    const ofAll = `Bars: the ${by.selectedOptions[0].textContent} of all images, from ${shownOf(low)} to ${shownOf(high)}; the darkest bar has this image`;
    axis.textContent = low < high ? `${ofAll}${isOfTwo ? ", and the line is no change." : "."}` : "";
  };
  // Without those that the menus leave out, the first few; all when asked, and on paper.
  const fold = () => {
    const visible = [...gallery.children].filter(({ hidden }) => !hidden);
    const isWhole = gallery.classList.contains("whole");
    visible.forEach((card, at) => card.classList.toggle("later", at >= FEW && visible.length > MANY));
    more.hidden = visible.length <= MANY;
    more.textContent = isWhole ? `Show the first ${FEW} only` : `Show all ${visible.length} images`;
    more.ariaExpanded = String(isWhole);
    count.textContent = visible.length < cards.length ? `${visible.length} of ${cards.length} images` : "";
    arrangeRows();
  };
  const arrange = () => {
    const places = [...items.keys()].sort(comparison(by.value));
    if (reversed) places.reverse();
    const isRising = reversed !== (by.value === "name" || scores.includes(by.value));
    order.textContent = by.value === "name" ? (isRising ? "A to Z" : "Z to A") : isRising ? "Lowest first" : "Highest first";
    gallery.append(...places.map((at) => cards[at]));
    items.forEach(({ name, iou }, at) => {
      const hasClass = !class_.value || iou.some((one) => (one[class_.value] ?? null) !== null);
      cards[at].hidden = !hasClass || !name.toLowerCase().includes(search.value.toLowerCase());
      for (const line of findAll("dl div", cards[at])) {
        const title = find("dt", line).textContent;
        line.classList.toggle("by", title === titles[by.value]);
        line.hidden = !line.classList.contains("by") && !always.includes(title);
      }
      find(".class", cards[at])?.remove();
      if (!class_.value) return;
      const line = classLine(class_.selectedOptions[0].textContent, iou.map((one) => one[class_.value] ?? null));
      line.className = "class";
      find("dl", cards[at]).append(line);
    });
    drawHistograms();
    fold();
  };
  for (const chooser of [by, class_]) chooser.addEventListener("change", arrange);
  search.addEventListener("input", arrange);
  order.addEventListener("click", () => {
    reversed = !reversed;
    arrange();
  });
  arrange();
  const label = (name, input) => element("label", {}, `${name} `, input);
  return [element("div", { className: "toolbar choosers" }, label("Sort by", by), order, label("Class", class_), label("Name", search), count), axis, gallery, more];
};
