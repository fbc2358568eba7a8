// The gallery: sort the images, and show those of a class or name.

const cards = findAll("#gallery > li");
const [sort, order, class_, search] = ["#sort", "#order", "#class", "#search"].map((id) => find(id));

// The IoU of the class that is chosen: of one network, or how much the second has more than the first.
const iouOf = ({ iou }) => {
  const [first, last] = [iou[0][class_.value], iou[iou.length - 1][class_.value]];
  return iou.length < 2 || first === null || last === null ? last : last - first;
};

// The worst come first; what is not finite is worst of the losses, and no score.
const compareBy = (key) => {
  if (key === "name") return (a, b) => data.rows[a].name.localeCompare(data.rows[b].name);
  const value = (at) => (key === "mean_iou" && class_.value ? iouOf(data.rows[at]) : data.rows[at].figures[key]) ?? Infinity;
  const isScore = data.scores.includes(key);
  return (a, b) => (value(a) === value(b) ? a - b : isScore ? value(a) - value(b) : value(b) - value(a));
};

const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(1)}%`);

const arrange = () => {
  const places = [...cards.keys()].sort(compareBy(sort.value));
  if (order.ariaPressed === "true") places.reverse();
  find("#gallery").append(...places.map((at) => cards[at]));
  const text = search.value.toLowerCase();
  let count = 0;
  cards.forEach((card, at) => {
    const { name, iou } = data.rows[at];
    const matches = name.toLowerCase().includes(text) && (!class_.value || iou.some((one) => one[class_.value] !== null));
    card.hidden = !matches;
    count += matches;
    for (const line of findAll("dl div", card)) {
      const title = find("dt", line).textContent;
      line.classList.toggle("by", title === sort.selectedOptions[0].textContent);
    }
    let own = find(".class", card);
    if (!own) find("dl", card).append((own = element("div", { className: "class" }, element("dt"), element("dd"))));
    own.hidden = !class_.value;
    if (class_.value) {
      find("dt", own).textContent = `IoU of ${class_.selectedOptions[0].textContent}`;
      find("dd", own).textContent = iou.map((one) => percent(one[class_.value])).join(" → ");
    }
  });
  find("#count").textContent = count < cards.length ? `${count} of ${cards.length} images` : "";
};

begin(() => {
  for (const menu of [sort, class_]) menu.addEventListener("change", arrange);
  search.addEventListener("input", arrange);
  order.addEventListener("click", () => {
    order.ariaPressed = String(order.ariaPressed !== "true");
    arrange();
  });
  arrange();
});
