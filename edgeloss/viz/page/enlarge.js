// A picture as large as the window. The arrow keys or a swipe show the other pictures of its image, N and P other images.

const imageOf = new Map(); // the image that an element shows pictures of
let stepImage = (by) => find(`nav a[rel="${by < 0 ? "prev" : "next"}"]`)?.click(); // of a page about one image

const large = element("dialog", { id: "large", ariaLabel: "Picture" });
let place = null; // the element whose image is shown
let current = 0; // which of its pictures

const showLarge = () => {
  const image = imageOf.get(place);
  const { name, figures, photo } = image;
  current = (current + figures.length) % figures.length;
  const act = (label, title, action) => {
    const made = element("button", { type: "button", textContent: label, title });
    made.addEventListener("click", action);
    return made;
  };
  const moves = [act("←", "Previous image (P)", () => stepLarge(-1)), act("→", "Next image (N)", () => stepLarge(1))];
  const close = act("Close", "Close (Esc)", () => large.close());
  const head = element("div", { className: "head" }, element("h2", {}, name, " ", element("small", {}, ...saidOf(image))), element("span", {}, ...moves, close));
  const tabs = figures.map(({ caption }, at) => {
    const made = act(caption, "", () => showPicture(at));
    made.ariaPressed = String(at === current);
    return made;
  });
  const stage = element("div", { className: "stage" }, pictureOf(figures[current], photo));
  const [width, height] = figures[current].size;
  stage.style.setProperty("--aspect", width / height);
  const { about, bar, key } = figures[current];
  const hint = text("p", "← → or a swipe: other pictures of this image. N, P: next and previous image. Esc: close.", "hint");
  large.replaceChildren(head, element("div", { className: "tabs" }, ...tabs), stage, element("div", {}, ...(about ? [text("p", about, "hint")] : []), ...(bar ? [barOf(bar)] : []), ...(key ? [keyOf(keys[key])] : []), hint));
};

const showPicture = (at) => {
  current = at;
  showLarge();
  const tab = find('.tabs [aria-pressed="true"]', large);
  tab.focus();
  tab.scrollIntoView({ block: "nearest", inline: "center" }); // a long name is seen whole
};

// The next image in the order of the page, folded or not, with the same picture.
const stepLarge = (by) => {
  const places = [...imageOf.keys()].filter((one) => !one.closest("[hidden]")).sort((a, b) => (a.compareDocumentPosition(b) & 4 ? -1 : 1));
  place = places[(places.indexOf(place) + by + places.length) % places.length];
  showLarge();
};

const enlarge = (element, at) => {
  [place, current] = [element, at];
  if (!large.isConnected) document.body.append(large);
  large.showModal();
  showPicture(at);
};

let swipe = null; // where it begins
large.addEventListener("pointerdown", ({ pointerType, clientX }) => (swipe = pointerType === "mouse" ? null : clientX));
large.addEventListener("pointerup", ({ clientX }) => {
  if (swipe !== null && Math.abs(clientX - swipe) > 40) showPicture(current + Math.sign(swipe - clientX));
  swipe = null;
});
large.addEventListener("pointercancel", () => (swipe = null));

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const steps = { n: 1, p: -1 };
  const pictures = large.open ? { ArrowRight: 1, ArrowLeft: -1 } : {};
  if (event.key in steps) large.open ? stepLarge(steps[event.key]) : stepImage(steps[event.key]);
  else if (event.key in pictures) showPicture(current + pictures[event.key]);
  else return;
  event.preventDefault();
});
