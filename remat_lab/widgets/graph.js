// graph.js: the computation graph as a hairpin folded into rows, each op drawn in the state it is in.

/** The twin of Layout.fold: first column of each row when a row holds at most `width` columns. */
function foldColumns(crossing, width) {
  const columns = crossing.length;
  if (columns <= width) return [0];
  const rows = Math.ceil(columns / width);
  const even = Math.max(Math.ceil(columns / rows), Math.floor((3 * width) / 4));
  const starts = [0];
  while (columns - starts.at(-1) > even) {
    const latest = starts.at(-1) + even;
    let best = latest;
    for (let c = latest - 1; c >= latest - Math.floor(even / 4); c--) if (crossing[c] < crossing[best]) best = c;
    starts.push(best);
  }
  return starts;
}

class GraphView {
  /**
   * `film` gives column, lane, backward, edges and crossing; what is drawn comes from `state(op)`, so the same
   * class shows a playing film and a plan at rest.
   */
  constructor(theme, film, { most = 300, onPick = null, title = "Computation graph" } = {}) {
    Object.assign(this, { theme, film, most, onPick });
    this.scale = 1;
    this.scroll = 0;
    this.surface = new Surface(`${title}: forward ops above, backward ops below them`, 120, () => this.arrange());
    this.tip = h("div", { class: "rl-tip", hidden: true });
    this.element = h("div", { class: "rl-graph" }, this.surface.canvas, this.tip);
    this.#listen();
  }

  /** Rows of at most `width` columns, with the lanes that each uses above and below its fold. */
  #rows(width) {
    const { film } = this;
    const rows = foldColumns(film.crossing, width).map((start) => ({ start, above: 1, below: 1 }));
    if (!this.lanesOf) { // per column, once
      this.lanesOf = { above: new Int32Array(film.crossing.length), below: new Int32Array(film.crossing.length) };
      for (let op = 0; op < film.column.length; op++) {
        const lanes = film.backward[op] ? this.lanesOf.below : this.lanesOf.above;
        lanes[film.column[op]] = Math.max(lanes[film.column[op]], film.lane[op] + 1);
      }
    }
    for (let c = 0, r = 0; c < film.crossing.length; c++) {
      if (rows[r + 1]?.start === c) r += 1;
      rows[r].above = Math.max(rows[r].above, this.lanesOf.above[c]);
      rows[r].below = Math.max(rows[r].below, this.lanesOf.below[c]);
    }
    return rows;
  }

  /** Choose the largest cell with which everything fits the height, and place every op. */
  arrange() {
    const { film, surface } = this, width = surface.width - 20;
    if (width <= 0) return;
    const gap = (cell) => (cell < 5 ? 8 : Math.max(16, 1.1 * cell)); // room for bows and for a name
    const columns = film.crossing.length;
    // One row if its cells are not too small; else the largest cell with which all rows fit. A small graph is drawn larger.
    const largest = Math.max(24, Math.min(34, 544 / columns));
    let cell = width / columns >= 9 ? Math.min(largest, width / columns) : 24, rows;
    for (;;) {
      rows = this.#rows(Math.max(1, Math.floor(width / cell + 1e-6)));
      const height = rows.reduce((sum, row) => sum + (row.above + row.below) * cell + gap(cell), 12);
      if (cell <= 3 || height <= this.most) break;
      cell -= cell > 8 ? 1 : 0.5;
    }
    if (this.scale > 1) {
      cell = Math.min(cell * this.scale, 60);
      rows = this.#rows(Math.max(1, Math.floor(width / cell)));
    }
    this.cell = cell;
    this.rows = rows;
    this.starts = rows.map((row) => row.start);
    let top = 4;
    for (const row of rows) {
      row.top = top;
      row.turn = top + gap(cell) / 2 + row.above * cell;
      top = row.turn + row.below * cell + gap(cell) / 2;
    }
    this.content = top + 4;
    surface.setHeight(Math.min(this.content, this.most));
    const longest = Math.max(...this.starts.map((s, i) => (this.starts[i + 1] ?? film.crossing.length) - s));
    // Columns stand further apart than lanes where there is room: edges are then easier to follow.
    const pitch = Math.max(cell, Math.min(2.4 * cell, width / longest));
    const left = 10 + Math.max(0, (width - longest * pitch) / 2);
    this.x = new Float32Array(film.ops ?? film.column.length);
    this.y = new Float32Array(this.x.length);
    this.row = new Int32Array(this.x.length);
    const rowOf = new Int32Array(film.crossing.length);
    for (let c = 0, r = 0; c < rowOf.length; c++) {
      if (this.starts[r + 1] === c) r += 1;
      rowOf[c] = r;
    }
    for (let op = 0; op < this.x.length; op++) {
      const r = rowOf[film.column[op]];
      this.row[op] = r;
      this.x[op] = left + (film.column[op] - this.starts[r] + 0.5) * pitch;
      this.y[op] = rows[r].turn + (film.backward[op] ? film.lane[op] + 0.5 : -film.lane[op] - 0.5) * cell;
    }
    this.wires = null;
    this.draw();
  }

  zoom(factor) {
    this.scale = Math.max(1, Math.min(8, this.scale * factor));
    this.arrange();
    this.#reveal(this.shown?.current ?? -1);
    this.draw();
  }

  fit() { this.scale = 1; this.scroll = 0; this.arrange(); }

  #wire() {
    const { film, theme, surface, x, y, row, cell } = this;
    this.wires = surface.layer(surface.width, this.content);
    this.cells = surface.layer(surface.width, this.content);
    this.drawn = new Int8Array(x.length).fill(-1);
    this.wireTheme = theme.seen;
    const c = this.wires.context;
    c.strokeStyle = theme.wire;
    c.lineWidth = Math.max(0.6, Math.min(1.2, cell / 14));
    c.beginPath();
    for (let e = 0; e < film.edges.length; e += 2) {
      const u = film.edges[e], v = film.edges[e + 1];
      if (row[u] !== row[v]) { // a stub out of one row and into the next
        const out = (film.backward[u] ? -0.7 : 0.7) * cell;
        const away = Math.abs(film.column[u] - film.column[v]) < 3 ? 0 : (film.backward[u] ? 0.6 : -0.6) * cell;
        c.moveTo(x[u], y[u]); c.lineTo(x[u] + out, y[u] + away);
        c.moveTo(x[v] - out, y[v] + away); c.lineTo(x[v], y[v]);
        continue;
      }
      const span = Math.abs(film.column[v] - film.column[u]);
      c.moveTo(x[u], y[u]);
      if (span <= 1) { c.lineTo(x[v], y[v]); continue; }
      // Skips bow away from the fold, the further the longer, so that nested ones stay apart.
      const outward = film.backward[u] ? 1 : -1;
      const bow = Math.min(0.42 + 0.16 * Math.log2(span), 1.05) * cell;
      const edge = outward < 0 ? Math.min(y[u], y[v]) - bow : Math.max(y[u], y[v]) + bow;
      c.bezierCurveTo(x[u] + (x[v] - x[u]) * 0.15, edge, x[v] - (x[v] - x[u]) * 0.15, edge, x[v], y[v]);
    }
    c.stroke();
  }

  /** One op in its state, into the layer of cells. */
  #cell(op, state) {
    const c = this.cells.context, { theme, cell } = this, x = this.x[op], y = this.y[op];
    const half = cell / 2, r = 0.36 * cell;
    c.clearRect(x - half, y - half, cell, cell);
    c.fillStyle = theme.states[state];
    c.strokeStyle = theme.states[state];
    c.lineWidth = Math.max(1, cell / 9);
    c.beginPath();
    if (state === WAITING) {
      c.arc(x, y, Math.max(0.8, 0.2 * cell), 0, 7);
      c.fill();
    } else if (state === KEPT) {
      c.rect(x - r, y - r, 2 * r, 2 * r);
      c.fill();
    } else if (state === RECOMPUTED) { // a diamond: told from a square without its colour
      const d = 1.3 * r;
      c.moveTo(x, y - d); c.lineTo(x + d, y); c.lineTo(x, y + d); c.lineTo(x - d, y);
      c.fill();
    } else if (state === DROPPED) {
      c.fillStyle = theme.ground;
      c.rect(x - 0.8 * r, y - 0.8 * r, 1.6 * r, 1.6 * r);
      c.fill();
      c.stroke();
    } else {
      c.arc(x, y, state === GRADIENT ? r : 0.62 * r, 0, 7);
      c.fill();
    }
  }

  #reveal(op) {
    if (this.content <= this.surface.height || op < 0) { if (this.content <= this.surface.height) this.scroll = 0; return; }
    const row = this.row[op], { top } = this.rows[row], bottom = this.rows[row + 1]?.top ?? this.content;
    if (top < this.scroll || bottom > this.scroll + this.surface.height) {
      this.scroll = Math.max(0, Math.min(this.content - this.surface.height, top - 0.3 * (bottom - top)));
    }
  }

  /** Draw `shown` (anything with state(op) and current); only cells whose state changed are drawn anew. */
  draw(shown = this.shown, follow = false) {
    this.shown = shown;
    const { surface, theme, film } = this;
    if (!surface.width || !shown || !this.x) return;
    if (!this.wires || this.wireTheme !== theme.seen) this.#wire();
    for (let op = 0; op < this.x.length; op++) {
      const state = shown.state(op);
      if (this.drawn[op] !== state) { this.#cell(op, state); this.drawn[op] = state; }
    }
    const freed = shown.freed ?? -1;
    const op = freed < 0 ? shown.current ?? -1 : this.#writerOf(freed, shown);
    if (follow) this.#reveal(op);
    const c = surface.begin(), k = surface.ratio;
    for (const layer of [this.wires, this.cells]) {
      c.drawImage(layer.canvas, 0, this.scroll * k, surface.width * k, surface.height * k, 0, 0, surface.width, surface.height);
    }
    if (op >= 0) this.#highlight(c, op, shown, freed);
  }

  /** The op that made a value: of several contributors, the last that has run. */
  #writerOf(value, shown) {
    const { writer_start: start, writer_index: index } = this.film;
    for (let e = start[value + 1] - 1; e >= start[value]; e--) if (shown.runs[index[e]]) return index[e];
    return -1;
  }

  /** A ring round the running op, lines to what it reads, and its name; a dashed ring where a value goes. */
  #highlight(c, op, shown, freed) {
    const { theme, film, cell } = this, top = this.scroll;
    const colour = film.backward[op] ? theme.states[GRADIENT] : theme.states[shown.repeats?.[op] ? RECOMPUTED : KEPT];
    c.strokeStyle = colour;
    c.lineWidth = 1.6;
    c.beginPath();
    for (let e = film.read_start[op]; freed < 0 && e < film.read_start[op + 1]; e++) {
      const value = film.read_index[e];
      if (film.resident(value)) continue;
      const from = this.#writerOf(value, shown);
      if (from < 0 || from === op || this.row[from] !== this.row[op]) continue;
      c.moveTo(this.x[from], this.y[from] - top);
      c.lineTo(this.x[op], this.y[op] - top);
    }
    c.stroke();
    c.strokeStyle = theme.ink;
    c.lineWidth = 2;
    c.setLineDash(freed < 0 ? [] : [3, 2.5]);
    c.beginPath();
    c.arc(this.x[op], this.y[op] - top, Math.max(4.5, 0.66 * cell), 0, 7);
    c.stroke();
    c.setLineDash([]);
    c.font = `600 11px ${theme.font}`;
    c.fillStyle = theme.ink;
    c.textBaseline = "middle";
    const name = freed < 0 ? film.op_names[op] : `free ${film.value_names[freed]}`, wide = c.measureText(name).width, gap = Math.max(8, cell * 0.9);
    // Above the row, where it hides no op; a graph of tiny cells has no room there.
    const above = cell >= 5, left = Math.max(4, Math.min(this.x[op] - wide / 2, this.surface.width - wide - 4));
    const right = this.x[op] + gap + wide < this.surface.width - 4;
    c.textAlign = above || right ? "left" : "right";
    if (above) haloText(c, theme, name, left, this.rows[this.row[op]].top + 7 - top);
    else haloText(c, theme, name, this.x[op] + (right ? gap : -gap), this.y[op] - top);
  }

  /** The op under a point of the canvas, or -1. */
  opAt(px, py) {
    if (!this.x) return -1;
    const reach = Math.max(6, this.cell * 0.6);
    let best = -1, near = reach * reach;
    for (let op = 0; op < this.x.length; op++) {
      const d = (this.x[op] - px) ** 2 + (this.y[op] - this.scroll - py) ** 2;
      if (d < near) { near = d; best = op; }
    }
    return best;
  }

  #listen() {
    const canvas = this.surface.canvas;
    let held = null;
    canvas.addEventListener("pointerdown", (event) => { held = { y: event.clientY, scroll: this.scroll, moved: false }; });
    canvas.addEventListener("pointerup", (event) => {
      if (held && !held.moved && this.onPick) {
        const op = this.opAt(event.offsetX, event.offsetY);
        if (op >= 0) this.onPick(op);
      }
      held = null;
    });
    canvas.addEventListener("pointerleave", () => { held = null; this.tip.hidden = true; });
    canvas.addEventListener("pointermove", (event) => {
      if (held && event.buttons && this.content > this.surface.height) {
        const by = event.clientY - held.y;
        held.moved ||= Math.abs(by) > 3;
        this.scroll = Math.max(0, Math.min(this.content - this.surface.height, held.scroll - by));
        this.draw();
        return;
      }
      const op = this.opAt(event.offsetX, event.offsetY);
      this.tip.hidden = op < 0;
      if (op < 0) return;
      this.tip.textContent = this.shown.describe ? this.shown.describe(op) : this.film.op_names[op];
      const left = Math.min(this.x[op] + 12, this.surface.width - this.tip.offsetWidth - 6);
      this.tip.style.transform = `translate(${Math.max(4, left)}px, ${this.y[op] - this.scroll + 14}px)`;
    });
  }

  dispose() { this.surface.dispose(); }
}
