// timeline.js: memory by category over the schedule, with the budget, the peak, a cursor and a zoom window.

const PLOT = { left: 58, right: 14, top: 24, bottom: 30 };

class Timeline {
  /**
   * @param film what is shown
   * @param options.clock Float64Array: the clock after each action; without it the axis counts steps
   * @param options.span, options.top fix the axes, so that several timelines share them
   * @param options.label what the axis counts, written at its end
   * @param options.onScrub called with a position when the pointer moves the cursor
   */
  constructor(theme, film, { height = 190, clock = null, span = 0, top = 0, unit = "step", label = unit, onScrub = null, title = "Memory" } = {}) {
    Object.assign(this, { theme, film, clock, unit, label, onScrub });
    this.total = span || (clock ? clock[clock.length - 1] || 1 : film.length || 1);
    this.top = top || 1.1 * Math.max(1, film.peak, film.budget && film.budget < 1.6 * film.peak ? film.budget : 0);
    this.from = 0;
    this.to = this.total;
    this.position = 0;
    const said = `${title} by category over the schedule: peak ${formatBytes(film.peak)} at step ${film.peak_step}` +
      (film.budget ? `, budget ${formatBytes(film.budget)}` : "");
    this.surface = new Surface(said, height, (same) => { if (!same) this.layer = null; this.draw(); });
    this.element = h("div", { class: "rl-timeline" }, this.surface.canvas);
    if (onScrub) this.#listen();
  }

  get plotWidth() { return Math.max(1, this.surface.width - PLOT.left - PLOT.right); }
  get plotHeight() { return this.surface.height - PLOT.top - PLOT.bottom; }
  x(at) { return PLOT.left + ((at - this.from) / (this.to - this.from)) * this.plotWidth; }
  y(bytes) { return PLOT.top + this.plotHeight * (1 - bytes / this.top); }
  /** Where a position stands on the axis. */
  at(position) {
    if (!this.clock) return position;
    return position ? this.clock[Math.min(position, this.clock.length) - 1] : 0;
  }
  /** The last position at or before a place on the axis. */
  positionAt(at) {
    if (!this.clock) return Math.round(at);
    let low = 0, high = this.clock.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.clock[middle] <= at) low = middle + 1; else high = middle;
    }
    return low;
  }

  #listen() {
    const canvas = this.surface.canvas;
    const scrub = (event) => {
      const box = canvas.getBoundingClientRect();
      const share = (event.clientX - box.left - PLOT.left) / this.plotWidth;
      this.onScrub(this.positionAt(this.from + Math.max(0, Math.min(1, share)) * (this.to - this.from)));
    };
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); scrub(event); });
    canvas.addEventListener("pointermove", (event) => { if (canvas.hasPointerCapture(event.pointerId)) scrub(event); });
    // Plain wheel keeps scrolling the page; with Ctrl (or a pinch) it zooms.
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const share = (event.offsetX - PLOT.left) / this.plotWidth;
      this.zoom(event.deltaY < 0 ? 1.25 : 0.8, this.from + share * (this.to - this.from));
    }, { passive: false });
  }

  get zoomed() { return this.total / (this.to - this.from); }

  /** Zoom by a factor around a place on the axis (default: the cursor). */
  zoom(factor, around = this.cursorAt ?? 0) {
    const least = this.clock ? this.total / 2000 : Math.min(this.total, 20);
    const width = Math.min(this.total, Math.max(least, (this.to - this.from) / factor));
    const share = (around - this.from) / (this.to - this.from);
    const kept = share >= 0 && share <= 1 ? share : 0.5;
    this.#look(around - kept * width, width);
  }

  fit() { this.#look(0, this.total); }

  #look(from, width) {
    this.from = Math.max(0, Math.min(this.total - width, from));
    this.to = this.from + width;
    this.layer = null;
    this.draw(this.position, this.clock ? this.cursorAt : null);
  }

  /** Turn the page when the cursor leaves the window: less motion than scrolling along. */
  #follow() {
    const at = this.cursorAt, width = this.to - this.from;
    if (width >= this.total) return;
    if (at > this.to || at < this.from) {
      this.from = Math.max(0, Math.min(this.total - width, at - 0.08 * width));
      this.to = this.from + width;
      this.layer = null;
    }
  }

  /** Draw at a position; a shared clock may stand between two of them, at `clockAt`. */
  draw(position = this.position, clockAt = null) {
    this.position = position;
    this.cursorAt = clockAt ?? this.at(position);
    const { surface, theme } = this;
    if (!surface.width) return;
    this.#follow();
    if (!this.layer || this.layerTheme !== theme.seen) this.#paint();
    const c = surface.begin();
    const cursor = Math.max(PLOT.left, Math.min(this.x(this.cursorAt), PLOT.left + this.plotWidth));
    c.globalAlpha = theme.dark ? 0.38 : 0.34;
    c.drawImage(this.layer.canvas, 0, 0, surface.width, surface.height);
    c.globalAlpha = 1;
    c.save();
    c.beginPath();
    c.rect(0, 0, cursor, surface.height);
    c.clip();
    c.drawImage(this.layer.canvas, 0, 0, surface.width, surface.height);
    c.restore();
    c.drawImage(this.axes.canvas, 0, 0, surface.width, surface.height);
    c.fillStyle = theme.ink;
    c.fillRect(Math.round(cursor) - 0.75, PLOT.top - 4, 1.5, this.plotHeight + 12);
    c.beginPath();
    c.arc(cursor, PLOT.top - 5, 3.5, 0, 7);
    c.fill();
  }

  /** Areas and axes, drawn once per window, size and theme. A pixel shows the largest moment that falls on it. */
  #paint() {
    const { surface, theme, film } = this;
    this.layer = surface.layer();
    this.axes = surface.layer();
    this.layerTheme = theme.seen;
    const c = this.layer.context, floor = PLOT.top + this.plotHeight, kinds = film.categories.length;
    const steps = this.clock ? (at) => this.positionAt(at) : (at) => Math.floor(at);
    let repeats = [];
    // One column a device pixel: columns between pixels would show seams on screens of fractional sharpness.
    const unit = 1 / surface.ratio, pixels = Math.floor(this.plotWidth * surface.ratio);
    const perPixel = (this.to - this.from) / pixels, left = Math.round(PLOT.left * surface.ratio) * unit;
    for (let px = 0; px < pixels; px++) {
      const first = Math.min(film.length - 1, steps(this.from + px * perPixel));
      const end = this.from + (px + 1) * perPixel;
      if (this.clock && this.from + px * perPixel > this.at(film.length)) break;
      const last = Math.max(first, Math.min(film.length - 1, Math.ceil(this.clock ? this.positionAt(end) : end) - 1));
      let best = first, again = false;
      for (let step = first; step <= last; step++) {
        if (film.during[step] > film.during[best]) best = step;
        again ||= film.again[step] === 1;
      }
      let from = 0;
      for (let k = 0; k < kinds; k++) {
        const size = film.split[best * kinds + k];
        if (!size) continue;
        const y0 = this.y(from), y1 = this.y(from + size);
        c.fillStyle = theme.categories[k];
        c.fillRect(left + px * unit, y1, unit, y0 - y1);
        from += size;
      }
      if (again) repeats.push(px);
    }
    c.fillStyle = theme.states[RECOMPUTED];
    for (const px of repeats) c.fillRect(left + px * unit, floor + 3, unit, 5);
    this.#paintAxes(this.axes.context, floor);
  }

  #paintAxes(c, floor) {
    const { theme, film } = this;
    c.font = `11px ${theme.font}`;
    c.textBaseline = "middle";
    c.textAlign = "right";
    for (const tick of niceTicks(this.top, 4)) {
      const y = Math.round(this.y(tick)) + 0.5;
      c.strokeStyle = theme.line;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(PLOT.left, y);
      c.lineTo(PLOT.left + this.plotWidth, y);
      c.stroke();
      c.fillStyle = theme.soft;
      c.fillText(tick ? shortBytes(tick) : "0", PLOT.left - 7, y);
    }
    c.textBaseline = "top";
    c.textAlign = "center";
    const ticks = niceTicks(this.to - this.from, this.plotWidth > 600 ? 8 : 4).map((t) => t + this.from);
    const step = ticks[1] - ticks[0];
    const end = PLOT.left + this.plotWidth, free = end - c.measureText(this.label).width - 22;
    for (let at = Math.ceil(this.from / step) * step; at <= this.to + 1e-9 && step > 0; at += step) {
      if (this.x(at) < free) c.fillText(this.unit === "step" ? String(Math.round(at)) : shortNumber(at), this.x(at), floor + 11);
    }
    c.textAlign = "right";
    c.fillText(this.label, end, floor + 11);
    if (film.budget && film.budget <= this.top) {
      const y = Math.round(this.y(film.budget)) + 0.5;
      c.strokeStyle = theme.ink;
      c.lineWidth = 1.25;
      c.setLineDash([6, 4]);
      c.beginPath();
      c.moveTo(PLOT.left, y);
      c.lineTo(PLOT.left + this.plotWidth, y);
      c.stroke();
      c.setLineDash([]);
      c.textAlign = "left";
      c.textBaseline = "bottom";
      c.fillStyle = theme.ink;
      haloText(c, theme, `budget ${formatBytes(film.budget)}`, PLOT.left + 5, y - 2);
    }
    const peakAt = this.at(film.peak_step + 1) - (this.clock ? 0 : 0.5);
    if (film.length && peakAt >= this.from && peakAt <= this.to) {
      const x = this.x(peakAt), y = this.y(film.peak);
      c.fillStyle = theme.ink;
      c.beginPath();
      c.moveTo(x, y - 1.5);
      c.lineTo(x - 4.5, y - 9);
      c.lineTo(x + 4.5, y - 9);
      c.fill();
      const text = `peak ${formatBytes(film.peak)}`;
      const wide = c.measureText(text).width;
      const right = x + 8 + wide < PLOT.left + this.plotWidth;
      c.textAlign = right ? "left" : "right";
      c.textBaseline = "bottom";
      haloText(c, theme, text, right ? x + 8 : x - 8, y - 1);
    }
  }

  dispose() { this.surface.dispose(); }
}

/** About `count` round numbers from 0 to `top`. */
function niceTicks(top, count) {
  if (!(top > 0)) return [0, 1];
  const raw = top / count, scale = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * scale).find((s) => s >= raw);
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => i * step);
}

/** An axis label: as few digits as say it. */
function shortBytes(value) {
  for (const [unit, scale] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= scale) return `${+(value / scale).toPrecision(3)} ${unit}`;
  }
  return `${+value.toPrecision(3)} B`;
}

function shortNumber(value) {
  for (const [unit, scale] of [["T", 1e12], ["G", 1e9], ["M", 1e6]]) if (value >= scale) return `${+(value / scale).toPrecision(3)}${unit}`;
  return String(+value.toPrecision(3));
}
