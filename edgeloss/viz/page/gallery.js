// A gallery of thumbnails: sort the images, and show those of a class or name.

const SHOWN = [1, 5, 2, 3]; // labels, difference and both predictions
const cardOf = (image, first) => {
  const { name, link, photo, figures, lines } = image;
  const values = lines.map(([title, value]) => element("div", {}, text("dt", title), text("dd", value)));
  const head = link
    ? [element("a", { href: link }, ...figures.map((one) => pictureOf(one, photo)), text("strong", name))]
    : [picturesOf(image, first, SHOWN, "shown"), text("strong", name)];
  return element("li", { className: "card" }, ...head, element("dl", {}, ...values));
};

// The IoU of a class: of one network, or how much the second has more than the first; null where it does not occur.
const changeOf = (iou, label) => {
  const [first, last] = [iou[0], iou[iou.length - 1]].map((one) => one[label] ?? null);
  return iou.length < 2 || first === null || last === null ? last : last - first;
};

parts.gallery = ({ about, items, first, sort, always, scores, classes }) => {
  const cards = items.map((one) => cardOf(one, first));
  const gallery = element("ul", { className: "gallery rows" }, ...cards);
  const menu = (id, entries) => element("select", { id }, ...entries.map(([value, name]) => new Option(name, value)));
  const by = menu("sort", [...sort, ["name", "name"]]);
  const class_ = menu("class", [["", "all classes"], ...classes]);
  const search = element("input", { id: "search", type: "search", size: 14 });
  const order = element("button", { id: "order", ariaPressed: "false", textContent: "Reverse" });
  const count = element("span", { id: "count", role: "status" });

  // The worst come first; what is not finite is worst of the losses, and no score.
  const comparison = (key) => {
    if (key === "name") return (a, b) => items[a].name.localeCompare(items[b].name);
    const value = (at) => (key === "mean_iou" && class_.value ? changeOf(items[at].iou, class_.value) : items[at].values[key]) ?? Infinity;
    const sign = scores.includes(key) ? 1 : -1;
    return (a, b) => (value(a) === value(b) ? a - b : sign * (value(a) - value(b)));
  };
  const arrange = () => {
    const places = [...items.keys()].sort(comparison(by.value));
    if (order.ariaPressed === "true") places.reverse();
    gallery.append(...places.map((at) => cards[at]));
    items.forEach(({ name, iou }, at) => {
      const hasClass = !class_.value || iou.some((one) => (one[class_.value] ?? null) !== null);
      cards[at].hidden = !hasClass || !name.toLowerCase().includes(search.value.toLowerCase());
      for (const line of findAll("dl div", cards[at])) {
        const title = find("dt", line).textContent;
        line.classList.toggle("by", title === by.selectedOptions[0].textContent);
        line.hidden = !line.classList.contains("by") && !always.includes(title);
      }
      find(".class", cards[at])?.remove();
      const shown = iou.map((one) => percent(one[class_.value] ?? null)).join(" → ");
      const line = [text("dt", `IoU of ${class_.selectedOptions[0].textContent}`), text("dd", shown)];
      if (class_.value) find("dl", cards[at]).append(element("div", { className: "class" }, ...line));
    });
    const visible = cards.filter(({ hidden }) => !hidden).length;
    arrangeRows();
    count.textContent = `${visible < cards.length ? `${visible} of ` : ""}${cards.length} images`;
  };
  for (const chooser of [by, class_]) chooser.addEventListener("change", arrange);
  search.addEventListener("input", arrange);
  order.addEventListener("click", () => {
    order.ariaPressed = String(order.ariaPressed !== "true");
    arrange();
  });
  arrange();
  const label = (name, input) => element("label", {}, `${name} `, input);
  return [...(about ? [text("p", about, "hint")] : []), element("div", { className: "toolbar choosers" }, label("Sort by", by), order, label("Class", class_), label("Name", search), count), gallery];
};
