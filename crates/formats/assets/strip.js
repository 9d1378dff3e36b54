// The panel of time above the graph: what was when, and the range that all other views are of.

const AXIS = 17;
const MARKS = 10;
const AREA = 52;
const CELL = 3;
const TRACK = 24;
const HEADER = 19;
/** So many threads have a track. */
const MOST_TRACKS = 200;
const SMALL = "11px system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif";

/** Events that are marks on the time of the others, and how they are called. */
const MARKED = [
  { event: "gc", name: "collections", one: "collection", hue: 330, lasts: true },
  { event: "exception", name: "exceptions", one: "exception", hue: 12, lasts: false },
];

/** `choose` is told a new range (null: all); `pick` a thread whose track was clicked. */
class Strip {
  constructor(element, canvas, time, choose, pick) {
    Object.assign(this, { element, canvas, time, choose, pick });
    this.context = canvas.getContext("2d");
    this.picture = new StripPicture(this);
    this.lane = "kinds";
    this.view = { from: 0, to: time.end };
    this.range = null;
    // Where the keyboard is, and from where it or the pointer selects; ticks.
    this.cursor = -1;
    this.anchor = -1;
    this.track = -1;
    this.pointed = null;
    this.listen();
  }

  /** What is to be shown: `app`'s event, filters and colours. Numbers are made anew where `anew`. */
  show(app, anew) {
    this.app = app;
    this.range = app.range;
    if (anew || this.width !== this.element.clientWidth) this.count();
    this.picture.paint();
  }

  get width() {
    return this.shownWidth ?? 0;
  }

  /** Colours of a group's stacks; 255 where one does not count. */
  colors(group) {
    const { weights, groups, profile } = this.app;
    const { frames } = profile.head;
    return Uint8Array.from(group.node, (node) => {
      if (!weights.includes(node)) return 255;
      const frame = profile.frame[Math.max(weights.shown[node], -1) >= 0 ? weights.shown[node] : node];
      return groups.of(frames.kind[frame], frames.tier[frame]);
    });
  }

  /** Adds up what the lane shows. */
  count() {
    const { app, view, time } = this;
    this.shownWidth = this.element.clientWidth;
    const { event, byValue } = app;
    const counted = event.groups.filter((group) => app.accepts(group.thread));
    const samples = counted.reduce((sum, { time }) => sum + time.length, 0);
    this.bins = Math.max(1, Math.min(Math.floor(this.width / 2), Math.max(60, Math.ceil(samples / 8))));
    this.map = null;
    this.tracks = [];
    if (this.lane === "heatmap") {
      const interval = event.unit === "nanoseconds" ? app.profile.head.interval : 0;
      this.map = heatmapOf(time, view, Math.max(1, Math.floor(this.width / 5)), interval);
      this.cells = new Float64Array(this.map.columns * CELLS);
      for (const group of counted) addCells(group, this.map, byValue, this.colors(group), this.cells);
      this.most = this.cells.reduce((most, cell) => Math.max(most, cell), 0);
    } else if (this.lane === "tracks") {
      this.tracks = this.makeTracks();
      // One scale for all of them.
      const most = this.tracks.reduce((most, { area }) => Math.max(most, area?.most ?? 0), 0);
      for (const { area } of this.tracks) if (area) area.most = most;
    } else {
      this.area = this.areaOf(counted);
    }
    this.marks = MARKED.map((kind) => this.marksOf(kind)).filter((kind) => kind.list.length > 0);
    by("marks").replaceChildren(...this.marks.map(({ name, one, hue, list }) => {
      const swatch = make("i", { class: "swatch" });
      swatch.style.backgroundColor = markColor(app.palette, hue);
      return make("span", {}, swatch, `${list.length.toLocaleString("en")} ${list.length === 1 ? one : name}`);
    }));
    const tracks = this.tracks.reduce((sum, track) => sum + (track.group ? TRACK : HEADER), 0);
    this.height = AXIS + MARKS + ({ heatmap: CELLS * CELL, tracks }[this.lane] ?? AREA) + 2;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.style.width = `${this.width}px`;
  }

  /** Sums of groups by bin and colour, and the largest of a bin. */
  areaOf(groups) {
    const { app, view, bins } = this;
    const sums = new Float64Array(bins * GROUPS.length);
    for (const group of groups) addBins(group, view, bins, app.byValue, this.colors(group), GROUPS.length, sums);
    let most = 0;
    for (let bin = 0; bin < bins; bin++) {
      let sum = 0;
      for (let g = 0; g < GROUPS.length; g++) sum += sums[bin * GROUPS.length + g];
      most = Math.max(most, sum);
    }
    return { sums, most };
  }

  /** A track for each thread that has samples, most first, below its process where there are several. */
  makeTracks() {
    const { app } = this;
    const { processes, threads } = app.profile.head;
    const chosen = by("process").value;
    const groups = app.event.groups
      .filter(({ thread }) => chosen === "" || threads[thread].process === Number(chosen))
      .sort((a, b) => b.allSamples - a.allSamples || threads[a.thread].tid - threads[b.thread].tid)
      .slice(0, MOST_TRACKS);
    const most = new Map();
    for (const { thread, allSamples } of groups) {
      const { process } = threads[thread];
      most.set(process, (most.get(process) ?? 0) + allSamples);
    }
    const order = [...most.keys()].sort((a, b) => most.get(b) - most.get(a) || a - b);
    return order.flatMap((process) => [
      ...processes.length > 1 ? [{ name: processes[process].name, group: null }] : [],
      ...groups.filter(({ thread }) => threads[thread].process === process).map((group) => ({
        name: `${threads[group.thread].name} (tid ${threads[group.thread].tid})`, group, area: this.areaOf([group]),
      })),
    ]);
  }

  /** The events of a kind in the view that are on accepted processes, by time. */
  marksOf(kind) {
    const { app, view, time } = this;
    const { head, frame } = app.profile;
    const list = [];
    const event = head.events.find(({ name }) => name === kind.event);
    const process = by("process").value;
    if (!event || event === app.event) return { ...kind, list };
    for (const group of event.groups) {
      if (process !== "" && head.threads[group.thread].process !== Number(process)) continue;
      const to = firstAt(group, view.to);
      for (let i = firstAt(group, view.from); i < to; i++) {
        const node = group.node[group.stack[i]];
        const of = frame[node];
        const value = group.values ? group.values[i] : group.constant;
        const lasts = kind.lasts ? value / time.tick : 0;
        const about = head.kinds[head.frames.kind[of]] === "detail" ? head.strings[head.frames.name[of]] : "";
        list.push({ from: group.time[i] - lasts, to: group.time[i], about, value });
      }
    }
    return { ...kind, list: list.sort((a, b) => a.from - b.from) };
  }

  x(ticks) {
    return (ticks - this.view.from) / (this.view.to - this.view.from) * this.width;
  }

  ticksAt(x) {
    const { from, to } = this.view;
    return Math.max(0, Math.min(this.time.end, Math.round(from + x / this.width * (to - from))));
  }

  /** The cell under a point of the heatmap: its first tick, or -1. */
  cellAt(x, y) {
    const row = Math.floor((y - AXIS - MARKS) / CELL);
    const column = Math.floor(this.ticksAt(x) / this.map.column);
    if (row < 0 || row >= CELLS) return -1;
    return column * this.map.column + row * this.map.cell;
  }

  trackAt(y) {
    let top = AXIS + MARKS;
    return this.tracks.findIndex((track) => y >= top && y < (top += track.group ? TRACK : HEADER));
  }

  // Pointer and keys.

  listen() {
    const { element } = this;
    const at = (e) => {
      const box = element.getBoundingClientRect();
      return { x: e.clientX - box.left, y: e.clientY - box.top + element.scrollTop };
    };
    element.addEventListener("pointerdown", (e) => {
      if (e.button !== 0 || !this.app) return;
      const point = at(e);
      element.setPointerCapture?.(e.pointerId);
      this.drag = { from: point, begin: this.range, edge: this.edgeAt(point.x) };
      if (this.drag.edge) this.anchor = this.drag.edge === "from" ? this.range.to : this.range.from;
    });
    element.addEventListener("pointermove", (e) => {
      const point = at(e);
      this.point(point);
      if (!this.drag) return;
      if (Math.hypot(point.x - this.drag.from.x, point.y - this.drag.from.y) < 4 && !this.drag.moved) return;
      this.drag.moved = true;
      this.range = this.dragged(point);
      this.picture.paint();
    });
    element.addEventListener("pointerup", (e) => {
      const { drag } = this;
      this.drag = null;
      if (!drag) return;
      if (drag.moved) this.choose(this.range);
      else this.click(at(e));
    });
    element.addEventListener("pointercancel", () => {
      this.range = this.drag?.begin ?? this.range;
      this.drag = null;
      this.picture.paint();
    });
    element.addEventListener("pointerleave", () => this.point(null));
    element.addEventListener("dblclick", (e) => { if (this.range) this.zoom(this.range); e.preventDefault(); });
    element.addEventListener("keydown", (e) => this.key(e));
    element.addEventListener("blur", () => { this.cursor = this.anchor = -1; this.picture.paint(); });
    element.addEventListener("scroll", () => this.picture.paint());
  }

  edgeAt(x) {
    if (!this.range || this.lane === "heatmap") return null;
    if (Math.abs(x - this.x(this.range.from)) < 5) return "from";
    return Math.abs(x - this.x(this.range.to)) < 5 ? "to" : null;
  }

  /** The range between where a drag began and where it is. */
  dragged({ x, y }) {
    const { drag } = this;
    if (this.lane === "heatmap") {
      const clamp = (y) => Math.max(AXIS + MARKS, Math.min(AXIS + MARKS + CELLS * CELL - 1, y));
      return this.ofCells(this.cellAt(drag.from.x, clamp(drag.from.y)), this.cellAt(x, clamp(y)));
    }
    return ordered(drag.edge ? this.anchor : this.ticksAt(drag.from.x), this.ticksAt(x));
  }

  ofCells(a, b) {
    const { from, to } = ordered(a, b);
    return { from: Math.max(0, from), to: Math.min(this.time.end, to + this.map.cell) };
  }

  click({ x, y }) {
    if (this.lane === "heatmap") {
      const cell = this.cellAt(x, y);
      this.choose(cell < 0 ? null : this.ofCells(cell, cell));
    } else if (this.lane === "tracks" && this.tracks[this.trackAt(y)]?.group) {
      this.pick(this.tracks[this.trackAt(y)].group.thread);
    } else {
      this.choose(null);
    }
  }

  /** Arrows move the cursor; with Shift they select. */
  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const { view, map, time } = this;
    const isMap = this.lane === "heatmap";
    const step = isMap ? map.column : time.step(view.to - view.from, this.width / 10);
    const moves = { ArrowLeft: -step, ArrowRight: step };
    if (isMap) Object.assign(moves, { ArrowUp: -map.cell, ArrowDown: map.cell });
    if (e.key in moves || e.key === "Home" || e.key === "End") {
      this.begin();
      const before = this.cursor;
      const jump = { Home: 0, End: time.end }[e.key];
      // On the grid, so that round times are met.
      const moved = jump ?? Math.round((before + moves[e.key]) / (isMap ? map.cell : step)) * (isMap ? map.cell : step);
      this.cursor = Math.max(0, Math.min(time.end, moved));
      if (e.shiftKey) {
        if (this.anchor < 0) this.anchor = before;
        this.choose(isMap ? this.ofCells(this.anchor, this.cursor)
          : this.anchor === this.cursor ? null : ordered(this.anchor, this.cursor));
      } else {
        this.anchor = -1;
      }
    } else if (this.lane === "tracks" && ["ArrowUp", "ArrowDown"].includes(e.key)) {
      const step = e.key === "ArrowUp" ? -1 : 1;
      let next = this.track + step;
      while (this.tracks[next] && !this.tracks[next].group) next += step;
      if (this.tracks[next]) this.track = next;
      this.element.scrollTop = Math.max(0, this.track * TRACK - 60);
    } else if (e.key === "o" && this.range && !isMap) {
      // The other end is moved from now on.
      this.begin();
      const { from, to } = this.range;
      [this.cursor, this.anchor] = this.cursor === from ? [to, from] : [from, to];
    } else if (e.key === "Enter" && this.lane === "tracks" && this.tracks[this.track]) {
      this.pick(this.tracks[this.track].group.thread);
    } else if (e.key === "Enter" && isMap && this.cursor >= 0) {
      this.choose(this.ofCells(this.cursor, this.cursor));
    } else if (e.key === "Escape" && this.range) {
      this.anchor = -1;
      this.choose(null);
    } else {
      return;
    }
    e.preventDefault();
    e.stopPropagation();
    this.picture.paint();
    this.tell(this.cursor);
  }

  /** Where the keyboard begins: at the end of the range, as if it had been selected with it. */
  begin() {
    if (this.cursor >= 0) return;
    const { range, view } = this;
    [this.cursor, this.anchor] = range ? [range.to, this.map ? -1 : range.from] : [view.from, -1];
  }

  zoom(range) {
    this.view = range ?? { from: 0, to: this.time.end };
    this.app.recount = true;
    this.app.show(false);
  }

  // What is under the pointer, in words.

  point(point) {
    this.pointed = point;
    if (!this.app) return;
    this.element.style.cursor = point && this.edgeAt(point.x) ? "ew-resize" : "crosshair";
    const cell = point && this.map ? this.cellAt(point.x, point.y) : -1;
    this.tell(point ? cell >= 0 ? cell : this.ticksAt(point.x) : -1);
  }

  tell(ticks) {
    by("at").hidden = ticks < 0;
    by("at").textContent = ticks < 0 ? "" : [this.time.text(ticks, this.digits), ...this.says(ticks)].join(" · ");
  }

  says(ticks) {
    const says = [];
    if (this.map) {
      const cell = this.cells[Math.floor((ticks - this.map.first * this.map.column) / this.map.cell)] ?? 0;
      const { event, byValue } = this.app;
      says.push(byValue ? amount(cell, event.unit) : `${cell.toLocaleString("en")} samples`);
    } else if (this.lane === "kinds") {
      const bin = Math.floor((ticks - this.view.from) / (this.view.to - this.view.from) * this.bins);
      let sum = 0;
      for (let g = 0; g < GROUPS.length; g++) sum += this.area.sums[bin * GROUPS.length + g] ?? 0;
      says.push(this.rate(sum));
    } else if (this.pointed && this.tracks[this.trackAt(this.pointed.y)]) {
      says.push(this.tracks[this.trackAt(this.pointed.y)].name);
    }
    const near = 4 * (this.view.to - this.view.from) / this.width;
    for (const { one, lasts, list } of this.marks) {
      const mark = list.find((mark) => ticks >= mark.from - near && ticks <= mark.to + near);
      if (mark) says.push(`${one} ${mark.about}${lasts ? ` ${amount(mark.value, "nanoseconds")}` : ""}`);
    }
    return says;
  }

  /** What a bin's sum is in a second. */
  rate(sum) {
    const { event, byValue } = this.app;
    const seconds = this.time.seconds(this.view.to - this.view.from) / this.bins;
    if (!byValue) return `${Math.round(sum / seconds).toLocaleString("en")} samples/s`;
    if (event.unit === "bytes") return `${amount(Math.round(sum / seconds), "bytes")}/s`;
    if (event.unit !== "nanoseconds") return `${Math.round(sum / seconds).toLocaleString("en")}/s`;
    const much = sum / 1e9 / seconds;
    return `${much.toFixed(much < 10 ? 2 : 1)} ${event.name === "cpu" ? "CPUs" : "threads"}`;
  }

  get digits() {
    return Math.min(6, Time.digits(this.time.seconds((this.view.to - this.view.from) / this.width)));
  }
}

const markColor = (palette, hue) => `hsl(${hue} 75% ${palette.dark ? 62 : 48}%)`;

const ordered = (a, b) => ({ from: Math.min(a, b), to: Math.max(a, b) });
