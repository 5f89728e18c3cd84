// stepper.js: run an op, ask what may be freed, show what the schedule frees and why.

class Stepper {
  constructor(root, film, { onChange = () => {} } = {}) {
    Object.assign(this, { root, film, onChange });
    root.classList.add("rl-view", "rl-stepper");
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", `Stepper: ${film.title}`);
    this.theme = new Theme(root, () => this.draw());
    this.graph = new GraphView(this.theme, film, { most: 240 });
    this.timeline = new Timeline(this.theme, film, { height: 150, onScrub: (position) => this.open(position) });
    this.score = { right: 0, asked: 0 };
    this.chosen = new Set();
    this.answered = false;
    film.describe = (op) => film.op_names[op];
    const { next, back } = this.#moves();
    this.moves = { next, back };
    this.sentence = h("p", { class: "rl-said", "aria-live": "polite" });
    this.question = h("h4", { class: "rl-question" });
    this.choices = h("ul", { class: "rl-choices", "aria-label": "Values held now" });
    this.verdict = h("p", { class: "rl-verdict", "aria-live": "polite" });
    this.nextButton = button("Show the answer", null, "Go on (Enter or →)", next, "Show the answer");
    this.nextButton.classList.add("rl-primary");
    this.backButton = button("Back", "back", "One run back (←)", back, "Back");
    this.range = h("input", { type: "range", class: "rl-range", min: 0, max: film.length, step: 1, "aria-label": "Position: actions done",
      input: () => this.open(Number(this.range.value)), pointerup: () => this.range.blur() });
    this.counter = h("output", { class: "rl-counter" });
    root.append(
      h("header", { class: "rl-head" }, h("h3", {}, film.title), this.facts = h("p", { class: "rl-message" })),
      legend(film), this.graph.element, this.timeline.element, h("div", { class: "rl-scrub" }, this.range),
      this.sentence, this.question, this.choices, this.verdict,
      h("div", { class: "rl-bar" }, this.backButton, this.nextButton, this.counter));
    this.unlisten = listenToKeys(root, (event) => {
      const act = { ArrowRight: next, Enter: next, ArrowLeft: back, Home: () => this.open(0) }[event.key];
      act?.();
      return Boolean(act);
    });
  }

  /** After a run: the frees that follow it before the next run. */
  frees(position = this.film.position) {
    const found = [];
    for (let step = position; step < this.film.length && this.film.actions[step] < 0; step++) found.push(~this.film.actions[step]);
    return found;
  }

  #moves() {
    return {
      next: () => {
        const { film } = this;
        if (film.position && !this.answered && film.position < film.length) { this.#judge(); return; }
        const run = film.position + (this.answered ? this.frees().length : 0);
        if (film.position < film.length) this.open(Math.min(film.length, run + 1));
      },
      back: () => {
        if (this.answered) { this.open(this.film.position); return; }
        let step = this.film.position - 2; // the run before the one just shown
        while (step >= 0 && this.film.actions[step] < 0) step -= 1;
        this.open(step + 1);
      },
    };
  }

  /** Stand just after a run (or at the start) and ask; a position within the frees goes to the run before them. */
  open(position) {
    const { film } = this;
    let at = Math.max(0, Math.min(film.length, position));
    while (at > 0 && at < film.length && film.actions[at - 1] < 0) at -= 1;
    film.goto(at);
    this.answered = false;
    this.chosen.clear();
    this.#show();
    this.#tell();
  }

  #judge() {
    const going = new Set(this.frees());
    const asked = this.#candidates();
    this.score.asked += asked.length;
    this.score.right += asked.filter((value) => going.has(value) === this.chosen.has(value)).length;
    this.answered = true;
    this.#show();
    this.#tell();
  }

  /** Up to sixteen values: all that go, then the largest that stay. */
  #candidates() {
    const going = this.frees();
    const rest = this.film.largest(16 + going.length).filter((value) => !going.includes(value));
    const all = [...going.slice(0, 12), ...rest.slice(0, Math.max(4, 16 - going.length))];
    return all.sort((a, b) => this.film.value_bytes[b] - this.film.value_bytes[a] || a - b);
  }

  #tell() {
    this.onChange({
      position: this.film.position, answered: this.answered, chosen: [...this.chosen].sort((a, b) => a - b), ...this.score,
    });
  }

  #show() {
    const { film, answered } = this, start = film.position === 0, end = film.position >= film.length;
    this.sentence.textContent = film.explain();
    this.range.value = film.position;
    this.counter.textContent = `${film.position} of ${film.length}`;
    this.facts.textContent = this.score.asked ? `${this.score.right} of ${this.score.asked} values judged as this schedule does` : "";
    this.question.textContent = start ? "" : end ? "The schedule is done." : "What may be freed now?";
    this.choices.replaceChildren();
    const going = new Set(this.frees());
    if (!start && !end) for (const value of this.#candidates()) this.choices.append(this.#choice(value, going.has(value)));
    this.verdict.textContent = answered ? this.#verdict(going) : "";
    const label = start ? "Run the first op" : end ? "Done" : answered ? "Run the next op" : "Show the answer";
    this.nextButton.lastChild.textContent = label;
    this.nextButton.setAttribute("aria-label", label);
    this.nextButton.disabled = end;
    this.backButton.disabled = start;
    this.draw();
  }

  #choice(value, goes) {
    const { film, answered } = this, name = film.value_names[value];
    const box = h("input", { type: "checkbox", disabled: answered, checked: this.chosen.has(value), "data-value": value,
      change: () => { if (box.checked) this.chosen.add(value); else this.chosen.delete(value); this.#tell(); } });
    box.checked = this.chosen.has(value);
    const row = h("li", {}, h("label", {}, box, h("span", { class: "rl-name", title: name }, name),
      h("span", { class: "rl-size" }, formatBytes(film.value_bytes[value]))));
    if (!answered) return row;
    const right = goes === box.checked;
    row.className = `${goes ? "rl-goes" : "rl-stays"} ${right ? "rl-right" : "rl-wrong"}`;
    row.append(h("span", { class: "rl-why" }, `${right ? "✓" : "✗"} ${goes ? "freed" : "kept"}: ${this.#why(value, goes)}`));
    return row;
  }

  #why(value, goes) {
    const { film } = this;
    if (goes) return film.whyFree(film.position + this.frees().indexOf(value), value);
    const step = film.nextRead(film.position, value);
    if (step >= 0) return `${film.op_names[film.actions[step]]} reads it at step ${step}`;
    return "it is part of the result";
  }

  #verdict(going) {
    if (!going.size) return "Nothing: everything held is still to be read, or is part of the result.";
    const bytes = [...going].reduce((sum, value) => sum + this.film.value_bytes[value], 0);
    return `This schedule frees ${going.size === 1 ? "one value" : `${going.size} values`}, ${formatBytes(bytes)}.`;
  }

  draw() {
    if (!this.counter) return;
    this.graph.draw(this.film, true);
    this.timeline.draw(this.film.position);
  }

  dispose() {
    this.unlisten();
    this.theme.dispose();
    this.graph.dispose();
    this.timeline.dispose();
    this.root.replaceChildren();
  }

  /** Take up a saved state. */
  restore({ position, answered, chosen, right, asked }) {
    this.open(position);
    Object.assign(this, { score: { right, asked }, chosen: new Set(chosen), answered });
    this.#show();
  }
}

function render({ model, el }) {
  const root = h("div", {});
  el.append(root);
  const film = new Film(readPacket(model.get("film")));
  const tell = debounce(() => model.save_changes(), 60);
  let restoring = true;
  const onChange = (state) => {
    if (restoring) return;
    for (const [name, value] of Object.entries(state)) model.set(name, value);
    tell();
  };
  const stepper = new Stepper(root, film, { onChange });
  root.remat = { stepper, film };
  const saved = Object.fromEntries(["position", "answered", "chosen", "right", "asked"].map((name) => [name, model.get(name)]));
  stepper.restore(saved);
  restoring = false;
  const follow = () => { if (model.get("position") !== film.position) stepper.open(model.get("position")); };
  model.on("change:position", follow);
  return () => {
    model.off("change:position", follow);
    tell.cancel();
    stepper.dispose();
  };
}

const widget = { render };
export default widget;
