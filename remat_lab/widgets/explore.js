// explore.js: a slider over a frontier that is already here, so a move is a lookup and a redraw.

/** Reads the frontier packet; point i is the least-overhead plan of every budget from budget[i] on. */
class Points {
  constructor(view) {
    const { header, arrays } = readPacket(view);
    Object.assign(this, header, arrays);
    this.count = this.budget.length;
    this.kinds = this.categories.length;
    this.strips_of = new Map(); // point -> {strip, again}
    const size = this.slots * this.kinds, ops = this.op_names.length;
    this.chosen.forEach((point, k) => this.strips_of.set(point, {
      strip: this.strips.subarray(k * size, (k + 1) * size), again: this.again.subarray(k * ops, (k + 1) * ops),
    }));
    // The graph's own drawing wants these two; the explorer highlights nothing.
    this.resident = () => true;
    this.low = this.budget[0] - 0.06 * (this.vanilla_peak - this.budget[0] || this.budget[0]);
    this.high = Math.max(this.vanilla_peak, this.budget[this.count - 1]) * 1.015;
  }

  /** The point within a budget, -1 below the least. */
  index(budget) {
    let low = 0, high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.budget[middle] <= budget) low = middle + 1; else high = middle;
    }
    return low - 1;
  }
}

const EDGE = { left: 58, right: 14, top: 14, bottom: 26 };

/** Axes shared by the two plots of the explorer. */
class Plot {
  constructor(theme, label, height, paint) {
    this.theme = theme;
    this.surface = new Surface(label, height, () => this.draw());
    this.paint = paint;
  }

  draw() {
    if (!this.surface.width) return;
    const c = this.surface.begin();
    this.w = this.surface.width - EDGE.left - EDGE.right;
    this.h = this.surface.height - EDGE.top - EDGE.bottom;
    this.floor = EDGE.top + this.h;
    c.font = `11px ${this.theme.font}`;
    this.paint(c, this);
  }

  grid(c, top, format) {
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const tick of niceTicks(top, 4)) {
      const y = Math.round(this.floor - (this.h * tick) / top) + 0.5;
      c.strokeStyle = this.theme.line;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(EDGE.left, y);
      c.lineTo(EDGE.left + this.w, y);
      c.stroke();
      c.fillStyle = this.theme.soft;
      c.fillText(format(tick), EDGE.left - 7, y);
    }
    c.textAlign = "center";
    c.textBaseline = "top";
  }
}

class Explorer {
  constructor(root, model) {
    Object.assign(this, { root, model });
    root.classList.add("rl-view", "rl-explore");
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    this.latencies = []; // from the slider's event to the frame that shows it, in milliseconds
    this.theme = new Theme(root, () => this.draw());
    this.tellBudget = debounce(() => {
      model.set("budget", Math.round(this.budget));
      model.save_changes();
    }, 40);
    this.rev = 0;
    this.#controls();
    this.unlisten = listenToKeys(root, (event) => this.#key(event));
    this.takePoints();
    this.takeStatus();
  }

  #controls() {
    const { theme } = this;
    this.title = h("h3", {});
    this.methodSelect = h("select", { class: "rl-select", "aria-label": "Method", change: () => this.#choose("method", this.methodSelect.value) });
    this.objectiveSelect = h("select", { class: "rl-select", "aria-label": "Objective", change: () => this.#choose("objective", this.objectiveSelect.value) });
    this.objectiveLabel = h("label", {}, "Objective", this.objectiveSelect);
    this.bar = h("progress", { "aria-label": "Solving" });
    this.workText = h("span", { "aria-live": "polite" });
    this.cancelButton = button("Cancel", null, "Stop solving and keep what is shown", () => this.ask({ want: "cancel" }), "Cancel");
    this.retryButton = button("Solve", null, "Solve again", () => this.ask({ want: "solve" }), "Solve");
    this.seconds = h("span", { class: "rl-counter" });
    this.work = h("span", { class: "rl-work" }, this.bar, this.workText, this.seconds, this.cancelButton, this.retryButton);
    this.slider = h("input", { type: "range", class: "rl-range", min: 0, max: 1000, step: 1, "aria-label": "Budget",
      input: (event) => this.#slide(event), pointerup: () => this.slider.blur() });
    this.marks = new Surface("Breakpoints of the frontier", 16, () => this.#paintMarks());
    this.result = h("dl", { class: "rl-result" });
    this.cells = {};
    for (const name of ["budget", "peak", "overhead", "computed again", "answer"]) {
      this.cells[name] = h("dd", {});
      this.result.append(h("div", {}, h("dt", {}, name), this.cells[name]));
    }
    this.message = h("p", { class: "rl-message", "aria-live": "polite" });
    this.frontierPlot = new Plot(theme, "Overhead against budget: the method's frontier", 190, (c, plot) => this.#paintFrontier(c, plot));
    this.memoryPlot = new Plot(theme, "Memory over the clock, against vanilla's", 190, (c, plot) => this.#paintMemory(c, plot));
    this.frontierPlot.surface.canvas.addEventListener("pointerdown", (event) => this.#clickFrontier(event));
    this.graphPlace = h("div", {});
    this.openButton = button("Open the player", "play", "Play this plan (Enter)", () => this.openPlayer(), "Open the player");
    this.openButton.classList.add("rl-primary");
    this.inner = h("div", { class: "rl-inner" });
    this.legend = h("div", {});
    this.root.append(
      h("header", { class: "rl-head" }, this.title),
      h("div", { class: "rl-choose" }, h("label", {}, "Method", this.methodSelect), this.objectiveLabel, this.work),
      this.result,
      h("div", { class: "rl-slide" }, this.slider, this.marks.canvas),
      this.message,
      h("div", { class: "rl-split" },
        h("section", { "aria-label": "Frontier" }, h("h4", {}, "Overhead against budget"), this.frontierPlot.surface.canvas),
        h("section", { "aria-label": "Memory" }, h("h4", {}, "Memory over time, vanilla in grey"), this.memoryPlot.surface.canvas)),
      this.legend, this.graphPlace, h("div", { class: "rl-open" }, this.openButton), this.inner);
  }

  /** Ask the kernel; every question carries a number, or an equal one would never be sent. */
  ask(question) {
    this.model.set("ask", { rev: Date.now() + Math.random(), ...question });
    this.model.save_changes();
    this.#expectAnswer();
  }

  #choose(name, value) {
    this.model.set(name, value);
    this.model.save_changes();
    this.#expectAnswer();
  }

  /** A busy kernel answers after its cell: say so rather than look dead. */
  #expectAnswer() {
    clearTimeout(this.busy);
    this.busy = setTimeout(() => {
      this.workText.textContent = "waiting for the kernel";
      this.work.hidden = this.bar.hidden = false;
      this.bar.removeAttribute("value");
      this.#time("kernel");
    }, 1500);
  }

  /** Count the seconds that something takes; null for nothing. Counted here: a kernel that computes may be silent. */
  #time(what) {
    if (what === this.timed) return;
    this.timed = what;
    clearInterval(this.ticking);
    this.seconds.textContent = "";
    if (what === null) return;
    const began = performance.now();
    this.ticking = setInterval(() => { this.seconds.textContent = `${Math.round((performance.now() - began) / 1000)} s`; }, 1000);
  }

  /** The kernel has answered: nothing is waited for, unless it is solving. */
  #answered() {
    clearTimeout(this.busy);
    if (this.model.get("status").state !== "ready") return;
    this.work.hidden = true;
    this.#time(null);
  }

  takeStatus() {
    clearTimeout(this.busy);
    const status = this.model.get("status"), { state } = status;
    const solving = state === "solving";
    this.#time(solving ? status.rev : null);
    this.work.hidden = state === "ready";
    this.bar.hidden = !solving;
    this.cancelButton.hidden = !solving;
    this.retryButton.hidden = solving || state === "ready";
    if (solving && status.total) { this.bar.max = status.total; this.bar.value = status.done; }
    else this.bar.removeAttribute("value");
    this.workText.className = state === "failed" ? "rl-message rl-bad" : "";
    this.workText.textContent = solving ? `solving ${status.method}` : state === "cancelled" ? "cancelled" : status.text ?? "";
    const options = this.model.get("methods").map(({ name, summary }) => h("option", { value: name, title: summary }, name));
    if (options.length !== this.methodSelect.options.length) this.methodSelect.replaceChildren(...options);
    this.methodSelect.value = this.model.get("method");
    const { objectives = [] } = this.model.get("methods").find((m) => m.name === this.methodSelect.value) ?? {};
    this.objectiveLabel.hidden = !objectives.length;
    this.objectiveSelect.replaceChildren(...objectives.map((o) => h("option", { value: o }, o)));
    this.objectiveSelect.value = this.model.get("objective");
    const alone = Boolean(this.model.standalone); // an exported page has no kernel to ask
    for (const select of [this.methodSelect, this.objectiveSelect]) select.disabled = alone;
    if (alone) this.work.hidden = true;
    this.openButton.hidden = alone && !this.model.get("film")?.byteLength;
  }

  takePoints() {
    const packet = this.model.get("points");
    if (!packet?.byteLength) {
      this.title.textContent = "Explore";
      this.root.setAttribute("aria-label", "Explorer");
      return;
    }
    this.points = new Points(packet);
    const { points } = this;
    this.title.textContent = `${points.title} · ${points.method} · vanilla ${formatBytes(points.vanilla_peak)}`;
    this.root.setAttribute("aria-label", `Explorer: ${points.title}`);
    this.graph?.dispose();
    this.graph = new GraphView(this.theme, points, { most: 220 });
    this.graphPlace.replaceChildren(this.graph.element);
    this.shown = null;
    this.legend.replaceChildren(legend({ categories: points.categories, split: points.strips },
      ["", "computed once", "", "computed again", "backward", ""]));
    this.setBudget(this.model.get("budget") || points.budget[points.count - 1]);
  }

  setBudget(budget) {
    this.budget = budget;
    if (!this.points) return;
    const { low, high } = this.points;
    this.slider.value = Math.round((1000 * (budget - low)) / (high - low));
    this.draw();
  }

  #slide(event) {
    if (!this.points) return;
    const { low, high } = this.points;
    const began = event.timeStamp;
    this.budget = low + (Number(this.slider.value) / 1000) * (high - low);
    this.tellBudget();
    if (this.pending) return; // the frame that is coming shows the latest value
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
      // The frame is on screen when the next task runs after it.
      const channel = new MessageChannel();
      channel.port1.onmessage = () => { this.latencies.push(performance.now() - began); channel.port1.close(); };
      channel.port2.postMessage(0);
    });
  }

  /** To the neighbouring breakpoint. */
  step(by) {
    const { points } = this;
    if (!points) return;
    const at = points.index(this.budget);
    const exact = at >= 0 && points.budget[at] === this.budget;
    const next = Math.max(0, Math.min(points.count - 1, by < 0 && !exact ? at : at + by));
    this.setBudget(points.budget[next]);
    this.tellBudget();
  }

  #key(event) {
    const { points } = this;
    const act = { ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1), Enter: () => this.openPlayer(),
      Home: () => points && (this.setBudget(points.budget[0]), this.tellBudget()),
      End: () => points && (this.setBudget(points.budget[points.count - 1]), this.tellBudget()) }[event.key];
    if (!act || this.inner.contains(event.target)) return false;
    act();
    return true;
  }

  #clickFrontier(event) {
    if (!this.points) return;
    const { low, high } = this.points, share = (event.offsetX - EDGE.left) / this.frontierPlot.w;
    this.setBudget(low + Math.max(0, Math.min(1, share)) * (high - low));
    this.tellBudget();
  }

  get point() { return this.points ? this.points.index(this.budget) : -1; }

  draw() {
    const { points } = this;
    if (!points) return;
    const i = this.point;
    const say = (name, text) => { this.cells[name].textContent = text; };
    say("budget", formatBytes(this.budget));
    say("peak", i < 0 ? "–" : formatBytes(points.budget[i]));
    say("overhead", i < 0 ? "–" : formatRatio(points.ratio[i]));
    say("computed again", i < 0 ? "–" : `${points.recomputed[i]} ops`);
    say("answer", i < 0 ? "none" : points.status[i]);
    this.cells.answer.className = i < 0 ? "rl-none" : "";
    this.slider.setAttribute("aria-valuetext", `${formatBytes(this.budget)}: ${i < 0 ? "infeasible" : `overhead ${formatRatio(points.ratio[i])}`}`);
    const share = Math.round((100 * this.budget) / points.vanilla_peak);
    this.message.textContent = i < 0
      ? `${points.method} needs at least ${formatBytes(points.budget[0])}.`
      : `${share}% of vanilla; ${i + 1} of ${points.count} points.`;
    this.message.classList.toggle("rl-bad", i < 0);
    this.openButton.disabled = i < 0;
    if (i >= 0 && !points.strips_of.has(i)) this.#fetchStrip(i);
    this.frontierPlot.draw();
    this.memoryPlot.draw();
    this.#paintMarks();
    this.#drawGraph(i);
  }

  #fetchStrip(i) {
    clearTimeout(this.fetching);
    this.fetching = setTimeout(() => this.ask({ want: "strip", point: i }), 40);
  }

  takeStrip() {
    const packet = this.model.get("strip");
    if (!packet?.byteLength || !this.points) return;
    this.#answered();
    const { header, arrays } = readPacket(packet);
    if (header.rev !== this.points.rev) return; // of a frontier that is gone
    this.points.strips_of.set(header.point, arrays);
    this.draw();
  }

  #drawGraph(i) {
    const { points } = this, found = points.strips_of.get(i);
    this.graph.draw({
      state: (op) => (i < 0 || !found?.again[op] ? WAITING : points.backward[op] ? GRADIENT : found.again[op] > 1 ? RECOMPUTED : KEPT),
      describe: (op) => `${points.op_names[op]}${["", "", ": computed again"][found?.again[op] ?? 0]}`,
    });
  }

  #paintMarks() {
    const { points, theme, marks } = this;
    if (!points || !marks.width) return;
    const c = marks.begin(), thumb = 8, width = marks.width - 2 * thumb;
    const x = (budget) => thumb + (width * (budget - points.low)) / (points.high - points.low);
    c.fillStyle = theme.states[RECOMPUTED];
    c.globalAlpha = 0.35; // below the least budget nothing fits
    c.fillRect(thumb, 2, Math.max(0, x(points.budget[0]) - thumb), 4);
    c.globalAlpha = 1;
    const now = this.point;
    points.budget.forEach((budget, i) => {
      c.fillStyle = i === now ? theme.ink : theme.soft;
      c.fillRect(x(budget) - (i === now ? 1.25 : 0.5), 1, i === now ? 2.5 : 1, i === now || i === 0 ? 10 : 6);
    });
  }

  #paintFrontier(c, plot) {
    const { points, theme } = this;
    if (!points) return;
    // A chain's least budgets may cost tenfold: what is far above the rest is cut, so that the rest can be read.
    const usual = 2.5 * points.ratio[Math.floor(0.2 * points.count)], most = Math.max(...points.ratio);
    const top = 100 * Math.max(0.05, most > 2 * usual && usual > 0 ? usual : 1.15 * most);
    plot.grid(c, top, (t) => `${+t.toPrecision(3)}%`);
    const x = (b) => EDGE.left + (plot.w * (b - points.low)) / (points.high - points.low);
    const y = (r) => Math.max(EDGE.top - 4, plot.floor - (plot.h * 100 * r) / top);
    c.fillStyle = theme.soft;
    const step = niceTicks(points.high - points.low, plot.w > 420 ? 5 : 3)[1];
    for (let t = Math.ceil(points.low / step) * step; t <= points.high; t += step) c.fillText(shortBytes(t), Math.min(x(t), EDGE.left + plot.w - 16), plot.floor + 7);
    c.fillStyle = theme.states[RECOMPUTED];
    c.globalAlpha = 0.12;
    c.fillRect(EDGE.left, EDGE.top, Math.max(0, x(points.budget[0]) - EDGE.left), plot.h);
    c.globalAlpha = 1;
    c.strokeStyle = theme.states[KEPT];
    c.lineWidth = 2;
    c.beginPath();
    points.budget.forEach((b, i) => { if (i) c.lineTo(x(b), y(points.ratio[i - 1])); c[i ? "lineTo" : "moveTo"](x(b), y(points.ratio[i])); });
    c.lineTo(EDGE.left + plot.w, y(points.ratio[points.count - 1]));
    c.stroke();
    c.fillStyle = theme.states[KEPT];
    points.budget.forEach((b, i) => { c.beginPath(); c.arc(x(b), y(points.ratio[i]), 2.6, 0, 7); c.fill(); });
    const vx = x(points.vanilla_peak);
    c.fillStyle = theme.soft;
    c.fillRect(vx - 0.5, EDGE.top, 1, plot.h);
    c.textAlign = "right";
    haloText(c, theme, "vanilla", vx - 4, EDGE.top);
    const bx = Math.max(EDGE.left, Math.min(EDGE.left + plot.w, x(this.budget))), i = this.point;
    c.fillStyle = theme.ink;
    c.fillRect(bx - 0.75, EDGE.top, 1.5, plot.h);
    if (i < 0) return;
    c.beginPath();
    c.arc(bx, y(points.ratio[i]), 5.5, 0, 7);
    c.fill();
    const text = formatRatio(points.ratio[i]), left = bx > EDGE.left + plot.w - 70;
    c.font = `600 12px ${theme.font}`;
    c.textAlign = left ? "right" : "left";
    c.textBaseline = "bottom";
    haloText(c, theme, text, bx + (left ? -9 : 9), y(points.ratio[i]) - 4);
  }

  #paintMemory(c, plot) {
    const { points, theme } = this;
    if (!points) return;
    const top = 1.1 * points.vanilla_peak, i = this.point, longer = 1 + (points.ratio[i] ?? 0);
    const axis = Math.max(1.35, longer), unit = plot.w / axis; // in vanilla's times; steady while overheads are small
    const plain = unit / points.slots, dx = (unit * longer) / points.slots;
    const y = (bytes) => plot.floor - (plot.h * bytes) / top;
    c.fillStyle = theme.line;
    c.beginPath(); // one path: translucent bars beside each other would show their seams
    c.moveTo(EDGE.left, plot.floor);
    points.vanilla.forEach((bytes, s) => { c.lineTo(EDGE.left + s * plain, y(bytes)); c.lineTo(EDGE.left + (s + 1) * plain, y(bytes)); });
    c.lineTo(EDGE.left + unit, plot.floor);
    c.fill();
    plot.grid(c, top, (t) => (t ? shortBytes(t) : "0"));
    const found = points.strips_of.get(i);
    if (found) {
      for (let s = 0; s < points.slots; s++) {
        let from = 0;
        for (let k = 0; k < points.kinds; k++) {
          const size = found.strip[s * points.kinds + k];
          if (!size) continue;
          c.fillStyle = theme.categories[k];
          c.fillRect(EDGE.left + s * dx, y(from + size), dx + 0.3, y(from) - y(from + size));
          from += size;
        }
      }
    }
    c.fillStyle = theme.soft;
    c.textAlign = "center";
    c.textBaseline = "top";
    c.fillText("start", EDGE.left + 12, plot.floor + 7);
    if (points.plain_time) c.fillText("vanilla done", EDGE.left + Math.max(64, Math.min(unit, plot.w - 34)), plot.floor + 7);
    if (this.budget <= top) {
      const at = Math.round(y(this.budget)) + 0.5;
      c.strokeStyle = theme.ink;
      c.lineWidth = 1.25;
      c.setLineDash([6, 4]);
      c.beginPath();
      c.moveTo(EDGE.left, at);
      c.lineTo(EDGE.left + plot.w, at);
      c.stroke();
      c.setLineDash([]);
      c.fillStyle = theme.ink;
      c.textAlign = "left";
      c.textBaseline = "bottom";
      haloText(c, theme, `budget ${formatBytes(this.budget)}`, EDGE.left + 5, at - 2);
    }
  }

  openPlayer() {
    if (this.point < 0) return;
    this.opening = true;
    this.tellBudget.cancel();
    this.model.set("budget", Math.round(this.budget));
    if (this.model.standalone) this.takeFilm();
    else this.ask({ want: "film" });
  }

  takeFilm() {
    const packet = this.model.get("film");
    if (!packet?.byteLength) return;
    this.#answered();
    this.player?.dispose();
    const place = h("div", {});
    this.inner.replaceChildren(place);
    this.player = new Player(place, new Film(readPacket(packet)));
    if (this.opening) place.focus({ preventScroll: false });
    this.opening = false;
  }

  dispose() {
    cancelAnimationFrame(this.pending);
    clearInterval(this.ticking);
    clearTimeout(this.busy);
    clearTimeout(this.fetching);
    this.tellBudget.cancel();
    this.unlisten();
    this.theme.dispose();
    for (const part of [this.marks, this.frontierPlot.surface, this.memoryPlot.surface, this.graph, this.player]) part?.dispose();
  }
}

function render({ model, el }) {
  const root = h("div", {});
  el.append(root);
  const explorer = new Explorer(root, model);
  root.remat = { explorer };
  const listeners = {
    "change:points": () => explorer.takePoints(),
    "change:status": () => explorer.takeStatus(),
    "change:strip": () => explorer.takeStrip(),
    "change:film": () => explorer.takeFilm(),
    "change:budget": () => {
      const budget = model.get("budget");
      if (Math.abs(budget - explorer.budget) >= 1) explorer.setBudget(budget);
    },
  };
  for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
  return () => {
    for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
    explorer.dispose();
  };
}

const widget = { render };
export default widget;
