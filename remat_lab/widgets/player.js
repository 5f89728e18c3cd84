// player.js: one film with its graph, timeline, live values and sentence, and everything that moves it.

const SHOWN_VALUES = 12;

class Player {
  /**
   * @param root the element to fill
   * @param film the Film
   * @param onRest called with {position, playing, speed} when the player comes to rest or is set going
   */
  constructor(root, film, { onRest = () => {}, title = film.title } = {}) {
    this.root = root;
    this.film = film;
    this.onRest = onRest;
    root.classList.add("rl-view", "rl-player");
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", `Player: ${title}`);
    this.theme = new Theme(root, () => this.draw());
    const rate = Math.max(2, film.length / 30); // at speed 1 a schedule lasts half a minute at most
    this.clock = new Clock(film.length, rate, () => this.#moved(), () => this.#changed());
    this.actions = this.#actions();
    this.graph = new GraphView(this.theme, film, { onPick: (op) => this.#pick(op) });
    this.timeline = new Timeline(this.theme, film, { onScrub: (position) => this.seek(position) });
    this.transport = new Transport(this.clock, this.actions);
    this.film.describe = (op) => this.#describe(op);
    this.sentence = h("p", { class: "rl-sentence", "aria-live": "polite" });
    this.now = h("strong", {});
    this.list = h("ol", { class: "rl-live", "aria-label": "Values held now, largest first" });
    this.rows = Array.from({ length: Math.min(SHOWN_VALUES, film.values) }, () => this.#row());
    this.more = h("p", { class: "rl-more" });
    root.append(
      h("header", { class: "rl-head" }, h("h3", {}, title), this.#facts()),
      h("div", { class: "rl-columns" },
        h("div", { class: "rl-main" }, legend(film), this.graph.element, this.timeline.element,
          h("div", { class: "rl-scrub" }, this.transport.range), this.transport.bar, this.sentence),
        h("section", { class: "rl-side", "aria-label": "Live now" },
          h("h4", {}, "Live now ", this.now), this.list, this.more)));
    this.unlisten = listenToKeys(root, (event) => actOnKey(event, this.actions));
    if (!film.again.includes(1) && this.transport.againButton) this.transport.againButton.disabled = true;
    this.#moved();
  }

  #facts() {
    const { film } = this;
    const facts = [["peak", formatBytes(film.peak)], ["overhead", formatRatio(film.overhead_ratio)]];
    if (film.budget) facts.unshift(["budget", formatBytes(film.budget)]);
    return h("dl", { class: "rl-facts" }, ...facts.map(([k, v]) => h("div", {}, h("dt", {}, k), h("dd", {}, v))));
  }

  #row() {
    const row = h("li", { hidden: true }, h("i", {}), h("span", { class: "rl-name" }), h("span", { class: "rl-size" }));
    this.list.append(row);
    return { row, bar: row.children[0], name: row.children[1], size: row.children[2], value: -1 };
  }

  #actions() {
    const { clock, film } = this;
    const rest = (fn) => (...given) => { clock.pause(); fn(...given); this.rest(); };
    const step = (by) => this.seek(Math.floor(clock.position) + by);
    return {
      toggle: () => (reducedMotion() ? rest(() => this.seek(this.nextEvent()))() : clock.toggle()),
      next: rest((far = 1) => step(typeof far === "number" ? far : 1)),
      back: rest((far = 1) => step(typeof far === "number" ? -far : -1)),
      first: rest(() => this.seek(0)),
      last: rest(() => this.seek(film.length)),
      peak: rest(() => this.seek(film.peak_step + 1)),
      again: rest(() => this.seek(film.nextRecomputation() ?? film.nextRecomputation(0) ?? film.position)),
      seek: (position) => this.seek(position),
      speed: (speed) => { clock.speed = speed; this.transport.setSpeed(speed); this.rest(); },
      faster: () => this.actions.speed(nextSpeed(clock.speed, 1)),
      slower: () => this.actions.speed(nextSpeed(clock.speed, -1)),
      zoomIn: () => { this.timeline.zoom(1.6); this.graph.zoom(1.25); },
      zoomOut: () => { this.timeline.zoom(1 / 1.6); this.graph.zoom(0.8); },
      fit: () => { this.timeline.fit(); this.graph.fit(); },
    };
  }

  /** Go to a position and stay with it; a scrub while playing goes on from there. */
  seek(position) {
    this.clock.seek(position);
    if (!this.clock.playing) this.rest();
  }

  rest() { this.onRest({ position: this.film.position, playing: this.clock.playing, speed: this.clock.speed }); }

  /** The next moment worth a look: the first backward op, a stretch of recomputation, the peak, the end. */
  nextEvent() {
    const { film } = this;
    for (let p = film.position + 1; p < film.length; p++) {
      const code = film.actions[p - 1], before = film.actions[p - 2];
      if (p - 1 === film.peak_step || (film.again[p - 1] && !film.again[p - 2] && p > 1 && !(before < 0 && film.again[p - 3]))) return p;
      if (code >= 0 && film.backward[code] && !film.runs[code] && p - 1 === this.firstBackward()) return p;
    }
    return film.position < film.length ? film.length : 0;
  }

  firstBackward() {
    this.turn ??= this.film.actions.findIndex((code) => code >= 0 && this.film.backward[code]);
    return this.turn;
  }

  /** A click on an op goes to its next run (or its first). */
  #pick(op) {
    const { film } = this;
    let step = film.actions.indexOf(op, film.position);
    if (step < 0) step = film.actions.indexOf(op);
    if (step >= 0) { this.clock.pause(); this.seek(step + 1); }
  }

  #describe(op) {
    const said = ["has not run", "held", "dropped", "held, computed again", "gradient held", "done"][this.film.state(op)];
    const runs = this.film.runs[op];
    return `${this.film.op_names[op]}: ${said}${runs > 1 ? `, ran ${runs} times` : ""}`;
  }

  #moved() {
    this.film.goto(Math.floor(this.clock.position));
    this.draw(true);
  }

  #changed() {
    // While it plays a screen reader would be flooded; at rest the sentence is read out.
    this.sentence.setAttribute("aria-live", this.clock.playing ? "off" : "polite");
    this.draw();
    this.rest();
  }

  draw(follow = false) {
    if (!this.list) return;
    const { film, clock } = this;
    this.graph.draw(film, follow);
    this.timeline.draw(film.position);
    // Words change ten times a second at most: faster cannot be read, and layout is what costs.
    const now = performance.now();
    if (clock.playing && now - (this.wordsAt ?? 0) < 100) return;
    this.wordsAt = now;
    this.#words();
  }

  #words() {
    const { film } = this;
    this.transport.update(`${film.position} of ${film.length}`);
    this.sentence.textContent = film.explain();
    this.now.textContent = formatBytes(film.bytesNow);
    const largest = film.largest(this.rows.length);
    const scale = film.value_bytes[film.bySize[0]] || 1;
    let shown = 0;
    this.rows.forEach((slot, i) => {
      const value = largest[i] ?? -1;
      if (value >= 0) shown += film.value_bytes[value];
      if (slot.value === value) return;
      slot.value = value;
      slot.row.hidden = value < 0;
      if (value < 0) return;
      slot.name.textContent = film.value_names[value];
      slot.name.title = film.value_names[value];
      slot.size.textContent = formatBytes(film.value_bytes[value]);
      slot.row.style.setProperty("--share", film.value_bytes[value] / scale);
      slot.row.style.setProperty("--hue", `var(--rl-category-${Math.min(film.value_category[value], 5)})`);
    });
    const rest = film.liveCount - largest.length;
    this.more.textContent = rest > 0 ? `and ${rest} more, ${formatBytes(film.bytesNow - shown)}` : film.liveCount ? "" : "nothing yet";
  }

  dispose() {
    this.clock.dispose();
    this.unlisten();
    this.theme.dispose();
    this.graph.dispose();
    this.timeline.dispose();
    this.root.replaceChildren();
  }
}

/** What the shapes and colours mean: ops by state, and the categories that occur. */
function legend(film, states = ["not run yet", "kept", "dropped", "computed again", "gradient held", "done"]) {
  const shapes = ["dot", "square", "hollow", "diamond", "circle", "dot"];
  const item = (mark, text) => h("li", {}, h("i", { class: mark.class, style: mark.style }), text);
  const ops = states.map((text, i) => text && item({ class: `rl-${shapes[i]}`, style: `--hue:var(--rl-state-${i})` }, text));
  const kinds = film.categories.length;
  const used = film.categories.map((_, k) => { for (let i = k; i < film.split.length; i += kinds) if (film.split[i]) return true; return false; });
  const areas = film.categories.map((text, k) => used[k] && item({ class: "rl-area", style: `--hue:var(--rl-category-${k})` }, text));
  return h("div", { class: "rl-legend" },
    h("ul", { "aria-label": "Ops" }, ...ops.filter(Boolean)),
    h("ul", { "aria-label": "Memory" }, ...areas.filter(Boolean)));
}
