// A timeline of operators: a lane for each thread and device, on a canvas. Wheel and keys zoom; drag and arrows move.
const LANE = 26, GAP = 8, LABEL = 14, AXIS = 18; // pixels
const ZOOM = 1.3; // of a turn of the wheel, or a key
const COLOURS = 6; // --lane-0 ... in report.css

function laneOf(lanes, name) {
  if (!lanes.has(name)) lanes.set(name, []);
  return lanes.get(name);
}

function numberOf(text) {
  let number = 0;
  for (let i = 0; i < text.length; ++i) number = (number * 31 + text.charCodeAt(i)) >>> 0;
  return number % COLOURS;
}

export class Timeline {
  // facts: the titles of the columns {start, length, thread, device, name}; element: as in report.js
  constructor(place, table, strings, facts, element) {
    const column = (title) => table.columns.find((other) => other.title === title);
    this.start = column(facts.start).values;
    this.length = column(facts.length).values;
    this.names = column(facts.name).values;
    this.wrong = table.wrong;
    this.strings = strings;
    this.colours = new Map();
    const threads = column(facts.thread).values, devices = column(facts.device).values;
    const lanes = new Map();
    for (let row = 0; row < this.start.length; ++row) {
      if (!Number.isFinite(this.start[row]) || !Number.isFinite(this.length[row])) continue;
      laneOf(lanes, `thread ${threads[row]}, ${strings[devices[row]] || "no device"}`).push(row);
    }
    this.lanes = [...lanes].sort(([a], [b]) => (a < b ? -1 : 1));
    for (const [, rows] of this.lanes) rows.sort((a, b) => this.start[a] - this.start[b]);
    this.first = Infinity;
    this.last = -Infinity;
    for (const [, rows] of this.lanes) {
      for (const row of rows) {
        this.first = Math.min(this.first, this.start[row]);
        this.last = Math.max(this.last, this.start[row] + this.length[row]);
      }
    }
    if (!(this.last > this.first)) return;
    this.from = this.first;
    this.until = this.last;
    this.canvas = element("canvas", { tabIndex: 0, role: "img" });
    this.canvas.setAttribute("aria-label", `Timeline of ${this.lanes.length} lanes. Plus and minus zoom, arrows move, 0 shows all.`);
    this.state = element("p", { className: "quiet small", role: "status" });
    const button = (text, label, action) => {
      const made = element("button", { type: "button", title: label }, text);
      made.setAttribute("aria-label", label);
      made.addEventListener("click", action);
      return made;
    };
    const tools = element(
      "div",
      { className: "tools" },
      button("+", "Zoom in", () => this.zoom(1 / ZOOM / ZOOM)),
      button("−", "Zoom out", () => this.zoom(ZOOM * ZOOM)),
      button("All", "Show all", () => this.show(this.first, this.last)),
    );
    place.append(element("h3", {}, "Timeline by thread and device"), tools, this.canvas, this.state);
    this.listen();
    new ResizeObserver(() => this.redraw()).observe(this.canvas);
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && document.activeElement !== canvas) return; // the page scrolls
        event.preventDefault();
        this.zoom(event.deltaY > 0 ? ZOOM : 1 / ZOOM, event.offsetX / canvas.clientWidth);
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: -0.2, ArrowRight: 0.2, PageUp: -0.9, PageDown: 0.9 };
      const zooms = { "+": 1 / ZOOM, "=": 1 / ZOOM, "-": ZOOM };
      if (event.key in moves) this.move(moves[event.key]);
      else if (event.key in zooms) this.zoom(zooms[event.key]);
      else if (event.key === "0" || event.key === "Home") this.show(this.first, this.last);
      else return;
      event.preventDefault();
    });
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      held = event.offsetX;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (held !== null && event.buttons) {
        this.move((held - event.offsetX) / canvas.clientWidth);
        held = event.offsetX;
      } else this.tell(event.offsetX, event.offsetY);
    });
    canvas.addEventListener("pointerup", () => (held = null));
  }

  show(from, until) {
    const width = Math.min(Math.max(until - from, (this.last - this.first) * 1e-7), this.last - this.first);
    this.from = Math.min(Math.max(from, this.first), this.last - width);
    this.until = this.from + width;
    this.redraw();
  }

  // Where the middle one of the calls is that are shown: most of a run may be idle.
  middle() {
    const longest = this.lanes.reduce((rows, [, others]) => (this.shown(others) > this.shown(rows) ? others : rows), []);
    const count = this.shown(longest);
    if (!count) return 0.5;
    const row = longest[this.firstAt(longest, this.from) + (count >> 1)];
    return (this.start[row] - this.from) / (this.until - this.from);
  }

  // How many calls of a lane begin in the part that is shown.
  shown(rows) {
    return this.firstAt(rows, this.until) - this.firstAt(rows, this.from);
  }

  zoom(by, at = this.middle()) {
    const centre = this.from + at * (this.until - this.from), width = (this.until - this.from) * by;
    this.show(centre - at * width, centre + (1 - at) * width);
  }

  move(share) {
    const by = share * (this.until - this.from);
    this.show(this.from + by, this.until + by);
  }

  // The number of the first row of a lane that begins at or behind a time.
  firstAt(rows, time) {
    let low = 0, high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.start[rows[middle]] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  redraw() {
    if (!this.canvas) return;
    const canvas = this.canvas, ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = this.lanes.length * (LANE + LABEL + GAP) + AXIS;
    if (!width) return; // folded
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const draw = canvas.getContext("2d");
    draw.scale(ratio, ratio);
    draw.font = "11px system-ui, sans-serif";
    const ink = this.colour("--ink"), quiet = this.colour("--quiet"), wrong = this.colour("--wrong");
    const palette = Array.from({ length: COLOURS }, (_, number) => this.colour(`--lane-${number}`));
    const scale = width / (this.until - this.from);
    this.lanes.forEach(([name, rows], number) => {
      const y = number * (LANE + LABEL + GAP);
      draw.fillStyle = quiet;
      draw.fillText(name, 2, y + LABEL - 3);
      draw.fillStyle = this.colour("--soft");
      draw.fillRect(0, y + LABEL, width, LANE);
      let drawn = -1; // the pixel up to which the lane is drawn: calls below a pixel share it
      for (let i = Math.max(0, this.firstAt(rows, this.from) - 64); i < rows.length; ++i) {
        const row = rows[i], x = (this.start[row] - this.from) * scale;
        if (x > width) break;
        const end = Math.max(x + 1, x + this.length[row] * scale);
        if (end < 0 || (end <= drawn && end - x < 2)) continue;
        draw.fillStyle = this.wrong[row] ? wrong : palette[this.colourOf(row)];
        draw.fillRect(x, y + LABEL + 1, Math.max(1, end - x - (end - x > 4 ? 1 : 0)), LANE - 2);
        const text = this.strings[this.names[row]].split(/[.:]/).pop();
        if (end - x > text.length * 6 + 8) {
          draw.fillStyle = this.colour("--on-lane");
          draw.fillText(text, Math.max(x, 0) + 4, y + LABEL + 17);
        }
        drawn = Math.max(drawn, end);
      }
    });
    draw.fillStyle = ink;
    const below = height - 4, text = (time) => `${Number((time - this.first).toPrecision(5))} ms`;
    draw.fillText(text(this.from), 2, below);
    draw.textAlign = "right";
    draw.fillText(text(this.until), width - 2, below);
    canvas.dataset.from = String(this.from - this.first);
    canvas.dataset.until = String(this.until - this.first);
  }

  colourOf(row) {
    const name = this.names[row];
    if (!this.colours.has(name)) this.colours.set(name, numberOf(this.strings[name]));
    return this.colours.get(name);
  }

  // The call below the pointer.
  tell(x, y) {
    const lane = this.lanes[Math.floor(y / (LANE + LABEL + GAP))];
    if (!lane) return;
    const width = this.until - this.from, time = this.from + (x / this.canvas.clientWidth) * width;
    const slack = (2 * width) / this.canvas.clientWidth, rows = lane[1];
    let best = -1;
    for (let i = Math.max(0, this.firstAt(rows, time + slack) - 256); i < rows.length && this.start[rows[i]] <= time + slack; ++i) {
      if (this.start[rows[i]] + this.length[rows[i]] + slack >= time) best = rows[i];
    }
    this.state.textContent =
      best < 0 ? "" : `${this.strings[this.names[best]]}: ${Number(this.length[best].toPrecision(4))} ms, at ${Number((this.start[best] - this.first).toPrecision(6))} ms, ${lane[0]}`;
  }
}
