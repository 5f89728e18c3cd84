// race.js: several films on one clock, one under another, on one scale of memory.

class Race {
  constructor(root, films, { onRest = () => {} } = {}) {
    Object.assign(this, { root, films, onRest });
    root.classList.add("rl-view", "rl-race");
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", `Race of ${films.length} schedules`);
    this.theme = new Theme(root, () => this.draw());
    const timed = films.every((film) => film.length && film.time[film.length - 1] > 0);
    const clocks = films.map((film) => (timed ? film.time : Float64Array.from({ length: film.length }, (_, i) => i + 1)));
    const span = Math.max(1e-12, ...clocks.map((clock) => clock[clock.length - 1] ?? 0));
    const budgets = films.map((film) => film.budget ?? 0);
    const most = Math.max(1, ...films.map((film) => film.peak));
    const top = 1.12 * Math.max(most, ...budgets.filter((b) => b < 1.4 * most));
    this.unit = timed ? { s: "s", flop: "FLOP", paper: "units of time" }[films[0].time_unit] : "steps";
    this.clock = new Clock(span, span / 20, () => this.draw(), () => this.#changed());
    this.actions = this.#actions();
    this.lanes = films.map((film, i) => this.#lane(film, clocks[i], span, top));
    this.transport = new Transport(this.clock, this.actions, { unit: "time" });
    this.status = h("p", { class: "rl-sentence", "aria-live": "polite" });
    root.append(
      h("header", { class: "rl-head" }, h("h3", {}, `Race: ${films.map((f) => f.title).join(" · ")}`)),
      legend(widest(films), []),
      ...this.lanes.map((lane) => lane.element),
      h("div", { class: "rl-scrub" }, this.transport.range), this.transport.bar, this.status);
    this.unlisten = listenToKeys(root, (event) => actOnKey(event, this.actions));
    this.draw();
  }

  #lane(film, clock, span, top) {
    const height = this.films.length > 3 ? 110 : 140;
    const timeline = new Timeline(this.theme, film, {
      height, clock, span, top, unit: "time", label: this.unit, onScrub: (position) => this.seek(timeline.at(position)), title: film.title,
    });
    const now = h("dd", {}), held = h("dd", {}), again = h("dd", {}), fact = (name, value) => h("div", {}, h("dt", {}, name), value);
    const state = h("span", { class: "rl-state" });
    const element = h("section", { class: "rl-lane", "aria-label": film.title },
      h("div", { class: "rl-head" }, h("h4", {}, h("strong", {}, film.title), " ", state),
        h("dl", { class: "rl-facts" }, fact("now", now), fact("highest so far", held), fact("computed again", again),
          fact("overhead", h("dd", {}, formatRatio(film.overhead_ratio))))),
      timeline.element);
    const highest = new Float64Array(film.length + 1);
    const repeats = new Int32Array(film.length + 1);
    for (let i = 0; i < film.length; i++) {
      highest[i + 1] = Math.max(highest[i], film.during[i]);
      repeats[i + 1] = repeats[i] + film.again[i];
    }
    return { film, timeline, element, now, held, again, state, highest, repeats, end: clock[clock.length - 1] ?? 0 };
  }

  #actions() {
    const { clock } = this, small = clock.length / 400;
    const rest = (fn) => (...given) => { clock.pause(); fn(...given); this.rest(); };
    const all = (fn) => this.lanes.forEach((lane) => fn(lane.timeline));
    return {
      toggle: () => (reducedMotion() ? rest(() => this.seek(this.nextEvent()))() : clock.toggle()),
      next: rest((far = 1) => this.seek(clock.position + small * (typeof far === "number" ? far : 1))),
      back: rest((far = 1) => this.seek(clock.position - small * (typeof far === "number" ? far : 1))),
      first: rest(() => this.seek(0)),
      last: rest(() => this.seek(clock.length)),
      peak: rest(() => this.seek(this.nextPeak())),
      seek: (at) => this.seek(at),
      speed: (speed) => { clock.speed = speed; this.transport.setSpeed(speed); this.rest(); },
      faster: () => this.actions.speed(nextSpeed(clock.speed, 1)),
      slower: () => this.actions.speed(nextSpeed(clock.speed, -1)),
      zoomIn: () => all((t) => t.zoom(1.6, clock.position)),
      zoomOut: () => all((t) => t.zoom(1 / 1.6, clock.position)),
      fit: () => all((t) => t.fit()),
    };
  }

  /** The peaks in order of the clock, round and round. */
  nextPeak() {
    const peaks = this.lanes.map((lane) => lane.timeline.at(lane.film.peak_step + 1)).sort((a, b) => a - b);
    return peaks.find((at) => at > this.clock.position + 1e-9 * this.clock.length) ?? peaks[0];
  }

  nextEvent() {
    const events = this.lanes.flatMap((lane) => [lane.timeline.at(lane.film.peak_step + 1), lane.end]).sort((a, b) => a - b);
    return events.find((at) => at > this.clock.position + 1e-9 * this.clock.length) ?? 0;
  }

  seek(at) {
    this.clock.seek(at);
    if (!this.clock.playing) this.rest();
  }

  rest() { this.onRest({ clock: this.clock.position, playing: this.clock.playing, speed: this.clock.speed }); }

  #changed() {
    this.status.setAttribute("aria-live", this.clock.playing ? "off" : "polite");
    this.draw();
    this.rest();
  }

  draw() {
    if (!this.status) return;
    const at = this.clock.position, now = performance.now();
    const words = !this.clock.playing || now - (this.wordsAt ?? 0) >= 100;
    if (words) this.wordsAt = now;
    const said = [];
    for (const lane of this.lanes) {
      const done = lane.timeline.positionAt(at + 1e-9 * this.clock.length);
      lane.timeline.draw(done, at);
      if (!words) continue;
      const { film } = lane, bytes = done ? film.bytes[done - 1] : 0;
      lane.now.textContent = formatBytes(bytes);
      lane.held.textContent = formatBytes(lane.highest[done]);
      lane.again.textContent = `${lane.repeats[done]} ops`;
      const finished = film.length && done >= film.length;
      lane.state.textContent = finished ? "finished" : "";
      said.push(`${film.title}: ${finished ? "finished" : formatBytes(bytes)}, highest so far ${formatBytes(lane.highest[done])}`);
    }
    if (!words) return;
    this.transport.update(`${shortNumber(at)} of ${shortNumber(this.clock.length)} ${this.unit}`);
    this.status.textContent = `${said.join("; ")}.`;
  }

  dispose() {
    this.clock.dispose();
    this.unlisten();
    this.theme.dispose();
    for (const lane of this.lanes) lane.timeline.dispose();
    this.root.replaceChildren();
  }
}

/** A stand-in film whose legend names every category that any of them uses. */
function widest(films) {
  const split = new Float32Array(films[0].categories.length);
  for (const film of films) film.split.forEach((size, i) => { if (size) split[i % split.length] = 1; });
  return { categories: films[0].categories, split };
}

function render({ model, el }) {
  const root = h("div", {});
  el.append(root);
  const tell = debounce(() => model.save_changes(), 120);
  const onRest = (state) => {
    for (const [name, value] of Object.entries(state)) model.set(name, value);
    tell();
  };
  const films = model.get("films").map((packet) => new Film(readPacket(packet)));
  const race = new Race(root, films, { onRest });
  root.remat = { race, films, clock: race.clock };
  race.clock.speed = model.get("speed");
  race.transport.setSpeed(race.clock.speed);
  race.clock.seek(model.get("clock"));
  const listeners = {
    "change:clock": () => {
      const at = model.get("clock");
      if (!race.clock.playing && Math.abs(at - race.clock.position) > 1e-12) race.clock.seek(at);
    },
    "change:playing": () => {
      if (model.get("playing") === race.clock.playing) return;
      if (model.get("playing")) race.clock.play(); else race.clock.pause();
    },
    "change:speed": () => { race.clock.speed = model.get("speed"); race.transport.setSpeed(race.clock.speed); },
  };
  for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
  return () => {
    for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
    tell.cancel();
    race.dispose();
  };
}

const widget = { render };
export default widget;
