// theme.js: elements, icons, colours that follow light and dark, and canvases that stay sharp.

/** An element with attributes (functions become listeners) and children. */
function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

const ICONS = {
  play: "M4 2.5v11l9-5.5z",
  pause: "M4 2.5h3v11H4zM9 2.5h3v11H9z",
  next: "M4 2.5v11l6-5.5zM11 2.5h2v11h-2z",
  back: "M12 2.5v11L6 8zM3 2.5h2v11H3z",
  first: "M13.5 2.5v11L8.5 8zM8 2.5v11L3 8zM1.5 2.5H3v11H1.5z",
  last: "M2.5 2.5v11l5-5.5zM8 2.5v11l5-5.5zM13 2.5h1.5v11H13z",
  peak: "M1 13.5 6 4l2 3.5L9.500 5.500 15 13.5z",
  again: "M8 2.500a5.500 5.500 0 1 1-5.100 3.400l1.700.700A3.700 3.700 0 1 0 8 4.300V7L3.800 3.500 8 0z",
};

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A labelled button; `title` is its tooltip and, with the key in brackets, what a screen reader says. */
function button(label, iconName, title, onClick, text = "") {
  const node = h("button", { type: "button", class: "rl-button", title, "aria-label": label, click: onClick });
  if (iconName) node.append(icon(iconName));
  if (text) node.append(h("span", {}, text));
  return node;
}

/**
 * Colours for canvases, read from the page's variables. `onChange` runs when the page turns light or dark.
 * Nothing here asks which application this is: the background that the page really paints decides.
 */
class Theme {
  constructor(root, onChange) {
    this.root = root;
    this.read();
    let timer = 0;
    const changed = () => {
      clearTimeout(timer);
      // A theme's style sheet may arrive after the attribute that names it.
      const check = () => { if (this.read()) onChange(); };
      check();
      timer = setTimeout(check, 400);
    };
    // An element that is in no page has no colours and no font: read them when it gets its place.
    this.placed = new ResizeObserver(() => { if (this.read()) onChange(); });
    this.placed.observe(root);
    this.observer = new MutationObserver(changed);
    for (const node of [document.documentElement, document.body]) this.observer.observe(node, { attributes: true });
    this.media = matchMedia("(prefers-color-scheme: dark)");
    this.media.addEventListener("change", changed);
    this.dispose = () => {
      clearTimeout(timer);
      this.observer.disconnect();
      this.placed.disconnect();
      this.media.removeEventListener("change", changed);
    };
  }

  /** True if anything changed since the last reading. */
  read() {
    const style = getComputedStyle(this.root);
    const seen = `${style.backgroundColor}/${style.color}`;
    if (seen === this.seen) return false;
    this.seen = seen;
    const [r, g, b] = (style.backgroundColor.match(/[\d.]+/g) ?? [255, 255, 255]).map(Number);
    this.dark = 0.299 * r + 0.587 * g + 0.114 * b < 128;
    Object.assign(this, PALETTE[this.dark ? "dark" : "light"]);
    this.ground = style.backgroundColor;
    this.ink = style.color;
    this.soft = this.dark ? "rgba(255,255,255,0.66)" : "rgba(0,0,0,0.64)";
    this.line = this.dark ? "rgba(255,255,255,0.20)" : "rgba(0,0,0,0.16)";
    this.wire = this.dark ? "rgba(255,255,255,0.30)" : "rgba(0,0,0,0.26)";
    this.font = style.fontFamily;
    this.root.dataset.theme = this.dark ? "dark" : "light";
    this.categories.forEach((colour, i) => this.root.style.setProperty(`--rl-category-${i}`, colour));
    this.states.forEach((colour, i) => this.root.style.setProperty(`--rl-state-${i}`, colour));
    return true;
  }
}

/** A canvas measured in CSS pixels and drawn in device pixels; `onResize` runs when its place changes size. */
class Surface {
  constructor(label, height, onResize) {
    this.canvas = h("canvas", { role: "img", "aria-label": label });
    this.context = this.canvas.getContext("2d");
    this.height = height;
    this.width = 0;
    this.onResize = onResize;
    this.canvas.style.height = `${height}px`;
    this.observer = new ResizeObserver(() => this.measure());
    this.observer.observe(this.canvas);
    // A notebook may drop a canvas that is scrolled away and bring it back blank.
    this.seen = new IntersectionObserver((entries) => entries.some((e) => e.isIntersecting) && this.measure(true));
    this.seen.observe(this.canvas);
  }

  measure(force = false) {
    const width = Math.floor(this.canvas.clientWidth);
    const ratio = Math.min(devicePixelRatio || 1, 2);
    if (!width || (!force && width === this.width && ratio === this.ratio)) return;
    const same = width === this.width && ratio === this.ratio && this.canvas.height === Math.round(this.height * ratio);
    this.width = width;
    this.ratio = ratio;
    if (!same) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
    }
    this.onResize(same);
  }

  setHeight(height) {
    this.height = height;
    this.canvas.style.height = `${height}px`;
    if (this.width) this.canvas.height = Math.round(height * this.ratio);
  }

  /** The context, cleared and scaled to CSS pixels. */
  begin() {
    const c = this.context;
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.clearRect(0, 0, this.width, this.height);
    return c;
  }

  /** A hidden canvas of the same sharpness: something drawn once and copied every frame. */
  layer(width = this.width, height = this.height) {
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(width * this.ratio));
    canvas.height = Math.max(1, Math.round(height * this.ratio));
    const context = canvas.getContext("2d");
    context.scale(this.ratio, this.ratio);
    return { canvas, context, width, height };
  }

  dispose() {
    this.observer.disconnect();
    this.seen.disconnect();
  }
}

/** Text that stays readable on any ground: a halo of the background behind it. */
function haloText(c, theme, text, x, y) {
  c.lineJoin = "round";
  c.lineWidth = 3.5;
  c.strokeStyle = theme.ground;
  c.strokeText(text, x, y);
  c.fillText(text, x, y);
}

const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Run `fn` once calls have stopped for `wait` milliseconds; `.cancel()` drops a pending call. */
function debounce(fn, wait) {
  let timer = 0;
  const run = (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => fn(...given), wait);
  };
  run.cancel = () => clearTimeout(timer);
  return run;
}

/**
 * Keys for a view. The listener sits on the window and in the capture phase, before the one on the document by
 * which JupyterLab takes arrows and letters for its own (R would turn the cell into raw text). Keys with Ctrl,
 * Alt or Meta pass through, so saving works while a control has the focus.
 */
function listenToKeys(root, handle) {
  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !root.contains(event.target)) return;
    if (event.key === "Tab" || event.key === "Escape") return;
    const typing = event.target.matches("select, input:not([type=range]):not([type=checkbox])");
    const onRange = event.target.matches("input[type=range]") && /^(Arrow|Home|End|Page)/.test(event.key);
    const onButton = event.target.matches("button, input[type=checkbox], a, summary") && /^( |Enter)$/.test(event.key);
    event.stopImmediatePropagation(); // whatever it is, it is meant for this view
    if (typing || onRange || onButton) return; // the control itself knows what to do
    if (handle(event)) event.preventDefault();
  };
  window.addEventListener("keydown", onKey, true);
  return () => window.removeEventListener("keydown", onKey, true);
}
