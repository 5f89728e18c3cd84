// transport.js: a clock that runs in the browser, and the controls that drive it.

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16];

/** Moves a position from 0 to `length`, `rate` units a second at speed 1. Nothing is sent to the kernel. */
class Clock {
  constructor(length, rate, onTick, onChange) {
    Object.assign(this, { length, rate, onTick, onChange });
    this.position = 0;
    this.speed = 1;
    this.playing = false;
    this.frame = 0;
    this.frames = []; // when the last frames were drawn, for measuring
  }

  play() {
    if (this.playing || !this.length) return;
    if (this.position >= this.length) this.seek(0);
    this.playing = true;
    this.frames = [];
    let last = performance.now();
    const tick = (now) => {
      if (!this.playing) return;
      // After a stall (a hidden tab, a busy page) go on from where it was instead of leaping.
      const passed = Math.min(now - last, 120) / 1000;
      last = now;
      this.position = Math.min(this.length, this.position + passed * this.rate * this.speed);
      this.onTick(this.position);
      this.frames.push(now);
      if (this.frames.length > 600) this.frames.splice(0, 300);
      if (this.position >= this.length) this.pause();
      else this.frame = requestAnimationFrame(tick);
    };
    this.frame = requestAnimationFrame(tick);
    this.onChange();
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    cancelAnimationFrame(this.frame);
    this.onChange();
  }

  toggle() { if (this.playing) this.pause(); else this.play(); }

  seek(position) {
    this.position = Math.max(0, Math.min(this.length, position));
    this.onTick(this.position);
  }

  /** Frames a second over the last frames, and the longest gap between two in milliseconds. */
  measure() {
    const gaps = this.frames.slice(1).map((t, i) => t - this.frames[i]);
    if (!gaps.length) return { fps: 0, longest: 0, frames: 0 };
    const sum = gaps.reduce((a, b) => a + b, 0);
    return { fps: (1000 * gaps.length) / sum, longest: Math.max(...gaps), frames: gaps.length };
  }

  dispose() {
    this.playing = false;
    cancelAnimationFrame(this.frame);
  }
}

/** The row of buttons under a timeline. `actions` maps names to what they do; missing ones get no button. */
class Transport {
  constructor(clock, actions, { unit = "step" } = {}) {
    this.clock = clock;
    this.reduced = reducedMotion();
    const add = (name, ...rest) => (actions[name] ? button(...rest) : null);
    // Where the system asks for no motion, Play goes from event to event instead of running.
    const playName = this.reduced ? "Next event" : "Play";
    this.playButton = button(playName, "play", this.reduced ? "Go to the next event (Space)" : "Play (Space)", actions.toggle);
    this.playButton.classList.add("rl-primary");
    this.range = h("input", {
      type: "range", class: "rl-range", min: 0, max: Math.max(1, clock.length), step: unit === "step" ? 1 : "any", value: 0,
      "aria-label": unit === "step" ? "Position: actions done" : "Position on the clock",
      input: () => actions.seek(Number(this.range.value)),
      pointerup: () => this.range.blur(), // so that keys go to the page again
    });
    this.speed = h("select", { class: "rl-select", "aria-label": "Playback speed", title: "Speed ([ and ])",
      change: () => actions.speed(Number(this.speed.value)) });
    for (const s of SPEEDS) this.speed.append(h("option", { value: s, selected: s === 1 }, `${s}×`));
    this.counter = h("output", { class: "rl-counter" });
    this.bar = h("div", { class: "rl-bar", role: "toolbar", "aria-label": "Playback" },
      h("div", { class: "rl-group" },
        add("first", "To the start", "first", "To the start (Home)", actions.first),
        add("back", "Step back", "back", "Step back (←; with Shift ten)", actions.back),
        this.playButton,
        add("next", "Step forward", "next", "Step forward (→; with Shift ten)", actions.next),
        add("last", "To the end", "last", "To the end (End)", actions.last)),
      this.speed,
      h("div", { class: "rl-group" },
        add("peak", "Jump to the peak", "peak", "Jump to the peak (P)", actions.peak, "Peak"),
        this.againButton = add("again", "Jump to the next recomputation", "again", "Jump to the next recomputation (R)", actions.again, "Next recomputation")),
      h("div", { class: "rl-group" },
        add("zoomOut", "Zoom out", null, "Zoom out (−)", actions.zoomOut, "−"),
        add("zoomIn", "Zoom in", null, "Zoom in (+)", actions.zoomIn, "+"),
        add("fit", "Show everything", null, "Show everything (0)", actions.fit, "Fit")),
      this.counter);
  }

  update(text) {
    this.range.value = this.clock.position;
    this.counter.textContent = text;
    this.range.setAttribute("aria-valuetext", text);
    const { playing } = this.clock;
    if (playing === this.wasPlaying) return;
    this.wasPlaying = playing;
    if (this.reduced) return;
    this.playButton.replaceChildren(icon(playing ? "pause" : "play"));
    this.playButton.setAttribute("aria-label", playing ? "Pause" : "Play");
    this.playButton.title = playing ? "Pause (Space)" : "Play (Space)";
  }

  setSpeed(speed) {
    if (!SPEEDS.includes(speed) && ![...this.speed.options].some((o) => Number(o.value) === speed)) {
      this.speed.append(h("option", { value: speed }, `${speed}×`));
    }
    this.speed.value = speed;
  }
}

/** The key of each action; what listenToKeys calls. True if the key meant something. */
function actOnKey(event, actions) {
  const far = event.shiftKey ? 10 : 1;
  const table = {
    " ": actions.toggle, ArrowRight: () => actions.next?.(far), ArrowLeft: () => actions.back?.(far),
    Home: actions.first, End: actions.last, p: actions.peak, r: actions.again,
    "+": actions.zoomIn, "=": actions.zoomIn, "-": actions.zoomOut, 0: actions.fit,
    "]": actions.faster, "[": actions.slower,
  };
  const act = table[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return false;
  act();
  return true;
}

/** The neighbour of a speed among SPEEDS. */
function nextSpeed(speed, by) {
  const at = SPEEDS.findIndex((s) => s >= speed);
  return SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, (at < 0 ? SPEEDS.length - 1 : at) + by))];
}
