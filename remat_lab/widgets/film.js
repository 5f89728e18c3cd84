// film.js: reads a packet made by film.py and knows the schedule it holds at every position.

/** Typed arrays over the packet, without copying. `view` is a DataView or an ArrayBuffer. */
function readPacket(view) {
  const buffer = view.buffer ?? view;
  let base = view.byteOffset ?? 0;
  const size = view.byteLength;
  let whole = buffer;
  if (base % 8) { // typed arrays need their alignment; a message's buffer may start anywhere
    whole = buffer.slice(base, base + size);
    base = 0;
  }
  const length = new DataView(whole, base, 4).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, base + 4, length)));
  const kinds = { i1: Int8Array, u1: Uint8Array, u2: Uint16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };
  const arrays = {};
  for (const [name, [kind, at, count]] of Object.entries(header.arrays)) {
    arrays[name] = new kinds[kind](whole, base + 4 + length + at, count);
  }
  return { header, arrays };
}

/** n with `digits` decimals; exact ties go to the even digit, as Python's formatting does. */
function toFixedEven(x, digits) {
  const scaled = x * 2 ** (digits + 1);
  if (Number.isInteger(scaled) && scaled % 2 !== 0) {
    const low = Math.floor(x * 10 ** digits);
    return ((low % 2 === 0 ? low : low + 1) / 10 ** digits).toFixed(digits);
  }
  return x.toFixed(digits);
}

function threeDigits(x) {
  if (x >= 99.95) return toFixedEven(x, 0);
  return x >= 9.995 ? toFixedEven(x, 1) : toFixedEven(x, 2);
}

/** Bytes for people, in powers of ten; the twin of units.format_bytes. */
function formatBytes(value) {
  const size = Math.abs(value);
  const sign = value < 0 ? "-" : "";
  for (const [unit, scale] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (size >= scale * 0.9995) return `${sign}${threeDigits(size / scale)} ${unit}`;
  }
  return `${sign}${toFixedEven(size, 0)} B`;
}

const formatRatio = (x) => `${toFixedEven(x * 100, 1)}%`;

/** States an op is drawn in; the order is palette.py's. */
const WAITING = 0, KEPT = 1, DROPPED = 2, RECOMPUTED = 3, GRADIENT = 4, DONE = 5;

/**
 * A schedule and its position. `position` counts the actions done, as Stepper's does. Moving costs time in
 * proportion to the distance, so a playing film costs next to nothing a frame and a jump across 50,000 steps
 * about a millisecond.
 */
class Film {
  constructor(packet) {
    const { header, arrays } = packet;
    Object.assign(this, header, arrays);
    this.length = this.actions.length;
    this.ops = this.op_names.length;
    this.values = this.value_names.length;
    this.bySize = Uint32Array.from({ length: this.values }, (_, v) => v)
      .sort((a, b) => this.value_bytes[b] - this.value_bytes[a] || a - b);
    this.#index();
    this.position = 0;
    this.live = new Uint8Array(this.values);
    this.runs = new Int32Array(this.ops); // how often each op has run so far
    this.repeats = new Int32Array(this.ops); // how many of those runs compute something again
    this.held = new Int32Array(this.ops); // how many of the values it wrote are held
    this.liveCount = 0;
  }

  #index() {
    const { length, values, write_start: ws, write_index: wi, read_start: rs, read_index: ri } = this;
    const writerCount = new Int32Array(values + 1);
    for (const v of wi) writerCount[v + 1] += 1;
    for (let v = 0; v < values; v++) writerCount[v + 1] += writerCount[v];
    this.writer_start = writerCount;
    this.writer_index = new Int32Array(wi.length);
    const at = writerCount.slice();
    for (let op = 0; op < this.ops; op++) {
      for (let e = ws[op]; e < ws[op + 1]; e++) this.writer_index[at[wi[e]]++] = op;
    }
    // What each action brings to life, so that it can be undone.
    this.new_start = new Int32Array(length + 1);
    const fresh = [];
    const live = new Uint8Array(values);
    let total = 0;
    for (let step = 0; step < length; step++) {
      const code = this.actions[step];
      if (code < 0) live[~code] = 0;
      else {
        for (let e = ws[code]; e < ws[code + 1]; e++) {
          if (!live[wi[e]]) { live[wi[e]] = 1; fresh.push(wi[e]); }
        }
        total += ws[code + 1] - ws[code];
      }
      this.new_start[step + 1] = fresh.length;
    }
    this.new_index = Int32Array.from(fresh);
    // For every written value of every run: the step that reads this instance first, -1 if none does.
    this.use_start = new Int32Array(length + 1);
    for (let step = 0; step < length; step++) {
      const code = this.actions[step];
      this.use_start[step + 1] = this.use_start[step] + (code < 0 ? 0 : ws[code + 1] - ws[code]);
    }
    this.use_step = new Int32Array(total);
    const upcoming = new Int32Array(values).fill(-1);
    for (let step = length - 1; step >= 0; step--) {
      const code = this.actions[step];
      if (code < 0) { upcoming[~code] = -1; continue; }
      for (let k = 0; k < ws[code + 1] - ws[code]; k++) {
        this.use_step[this.use_start[step] + k] = upcoming[wi[ws[code] + k]];
      }
      for (let e = rs[code]; e < rs[code + 1]; e++) upcoming[ri[e]] = step;
    }
  }

  /** Go to the moment when `position` actions are done. */
  goto(position) {
    const wanted = Math.max(0, Math.min(this.length, Math.round(position)));
    while (this.position < wanted) this.#forward(this.position++);
    while (this.position > wanted) this.#backward(--this.position);
  }

  #set(value, alive) {
    this.live[value] = alive;
    const change = alive ? 1 : -1;
    this.liveCount += change;
    for (let e = this.writer_start[value]; e < this.writer_start[value + 1]; e++) this.held[this.writer_index[e]] += change;
  }

  #forward(step) {
    const code = this.actions[step];
    if (code < 0) { this.#set(~code, 0); return; }
    this.runs[code] += 1;
    this.repeats[code] += this.again[step];
    for (let e = this.new_start[step]; e < this.new_start[step + 1]; e++) this.#set(this.new_index[e], 1);
  }

  #backward(step) {
    const code = this.actions[step];
    if (code < 0) { this.#set(~code, 1); return; }
    this.runs[code] -= 1;
    this.repeats[code] -= this.again[step];
    for (let e = this.new_start[step]; e < this.new_start[step + 1]; e++) this.#set(this.new_index[e], 0);
  }

  /** How an op is drawn now. */
  state(op) {
    if (!this.runs[op]) return WAITING;
    if (this.backward[op]) return this.held[op] ? GRADIENT : DONE;
    if (!this.held[op]) return DROPPED;
    return this.repeats[op] ? RECOMPUTED : KEPT;
  }

  /** The op running at the moment, -1 at the start and while a value is freed. */
  get current() {
    const code = this.position ? this.actions[this.position - 1] : -1;
    return code >= 0 ? code : -1;
  }

  /** The value freed at the moment, -1 at the start and while an op runs. */
  get freed() {
    const code = this.position ? this.actions[this.position - 1] : 0;
    return code < 0 ? ~code : -1;
  }

  get bytesNow() { return this.position ? this.bytes[this.position - 1] : 0; }

  /** The `most` largest held values, as indices. */
  largest(most) {
    const found = [];
    for (let i = 0; i < this.values && found.length < most; i++) {
      if (this.live[this.bySize[i]]) found.push(this.bySize[i]);
    }
    return found;
  }

  resident(value) { return this.writer_start[value] === this.writer_start[value + 1]; }

  /** The position just after the next run that computes something again; null if there is none. */
  nextRecomputation(from = this.position) {
    for (let step = from; step < this.length; step++) if (this.again[step]) return step + 1;
    return null;
  }

  /** The sentence for action `step`; word for word that of Stepper.explain(). */
  explain(step = this.position - 1) {
    if (step < 0) {
      return `Nothing has run yet. ${formatBytes(this.baseline)} of parameters and inputs are there throughout.`;
    }
    const code = this.actions[step];
    const before = step ? this.bytes[step - 1] : 0;
    const after = this.bytes[step];
    const moved = `${formatBytes(before)} to ${formatBytes(after)}`;
    if (code < 0) return `Step ${step}: free ${this.value_names[~code]}; ${this.whyFree(step, ~code)}. Memory ${moved}.`;
    const again = this.again[step];
    const verb = (this.backward[code] ? "run" : "compute") + (again ? " again" : "");
    const reads = [];
    for (let e = this.read_start[code]; e < this.read_start[code + 1]; e++) {
      if (!this.resident(this.read_index[e])) reads.push(this.value_names[this.read_index[e]]);
    }
    let text = `Step ${step}: ${verb} ${this.op_names[code]}, `;
    text += reads.length ? `reading ${listing(reads)}.` : "reading only parameters and inputs.";
    if (again) text += ` Why now: ${this.#whyAgain(step, code)}.`;
    const most = this.during[step];
    const inside = most > Math.max(before, after) ? ` (up to ${formatBytes(most)} while it runs)` : "";
    text += ` Memory ${moved}${inside}.`;
    return step === this.peak_step ? `${text} This is the peak.` : text;
  }

  #whyAgain(step, op) {
    const first = this.write_start[op];
    for (let k = 0; k < this.write_start[op + 1] - first; k++) {
      const reader = this.use_step[this.use_start[step] + k];
      if (reader < 0) continue;
      const value = this.write_index[first + k];
      let freed = step - 1;
      while (freed >= 0 && this.actions[freed] !== ~value) freed -= 1;
      const gone = freed >= 0 ? `, and was freed at step ${freed}` : "";
      return `${this.value_names[value]} is read by ${this.op_names[this.actions[reader]]} at step ${reader}${gone}`;
    }
    return "nothing reads its values afterwards, so this run is wasted";
  }

  /** Why `value` may go after action `step`: the twin of simulate._why_free. */
  whyFree(step, value) {
    const from = this.writer_start[value], to = this.writer_start[value + 1];
    for (let later = step + 1; later < this.length; later++) {
      for (let e = from; e < to; e++) {
        if (this.actions[later] === this.writer_index[e]) return `it will be computed again at step ${later}`;
      }
    }
    return "nothing reads it any more";
  }

  /** The step that next reads `value` before it is freed, counted from action `step` on; -1 if none does. */
  nextRead(step, value) {
    for (let later = step; later < this.length; later++) {
      const code = this.actions[later];
      if (code === ~value) return -1;
      if (code < 0) continue;
      for (let e = this.read_start[code]; e < this.read_start[code + 1]; e++) if (this.read_index[e] === value) return later;
    }
    return -1;
  }
}

function listing(names, most = 4) {
  const shown = names.slice(0, most).join(", ");
  return names.length <= most ? shown : `${shown} and ${names.length - most} more`;
}
