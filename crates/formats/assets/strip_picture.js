// The panel of time as a picture. What is in it is added up in strip.js.

class StripPicture {
  constructor(strip) {
    this.strip = strip;
  }

  paint() {
    if (!this.strip.app || this.strip.element.hidden || this.strip.width === 0) return;
    const { canvas, context: c, width, height, app: { palette } } = this.strip;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = palette.background;
    c.fillRect(0, 0, width, height);
    c.font = SMALL;
    c.textBaseline = "middle";
    this.paintAxis();
    if (this.strip.map) this.paintCells();
    else if (this.strip.lane === "tracks") this.paintTracks();
    else this.paintArea(this.strip.area, AXIS + MARKS, AREA);
    this.paintMarks();
    this.paintRange();
    // Above what is shaded.
    this.paintLabels();
  }

  paintAxis() {
    const { context: c, view, time, app: { palette } } = this.strip;
    const step = time.step(view.to - view.from, Math.max(2, this.strip.width / 90));
    const digits = Math.min(6, Time.digits(time.seconds(step)));
    // Round times, also by the clock.
    const before = time.wall ? time.start * 1e6 / time.tick % step : 0;
    for (let at = Math.ceil((view.from + before) / step) * step - before; at <= view.to; at += step) {
      const x = Math.round(this.strip.x(at));
      c.fillStyle = palette.grid;
      c.fillRect(x, 0, 1, this.strip.height);
      c.fillStyle = palette.soft;
      const text = time.text(at, digits);
      if (x + 4 + c.measureText(text).width < this.strip.width) c.fillText(text, x + 4, AXIS / 2);
    }
  }

  paintArea({ sums, most }, top, height) {
    const { context: c, bins, app: { palette } } = this.strip;
    if (most === 0) return;
    const w = this.strip.width / bins;
    const y = new Float64Array(bins).fill(top + height);
    for (let g = 0; g < GROUPS.length; g++) {
      c.fillStyle = palette.fill[g][2];
      for (let bin = 0; bin < bins; bin++) {
        const h = sums[bin * GROUPS.length + g] / most * (height - 2);
        if (h === 0) continue;
        y[bin] -= h;
        c.fillRect(bin * w, y[bin], w + 0.3, h + 0.3);
      }
    }
  }

  paintLabels() {
    const top = AXIS + MARKS;
    if (this.strip.map) {
      const of = (ticks) => amount(ticks * this.strip.time.tick, "nanoseconds").replace(/\.0+ /, " ");
      this.label(`${of(this.strip.map.column)} across, ${of(this.strip.map.cell)} down; the stronger, the more`, 5, top + 9);
    } else if (this.strip.lane === "tracks") {
      let y = top;
      for (const track of this.strip.tracks) {
        const height = track.group ? TRACK : HEADER;
        if (this.isSeen(y, height)) this.label(fitted(this.strip.context, track.name, this.strip.width / 2), 8, y + height / 2, !track.group);
        y += height;
      }
    } else if (this.strip.area.most > 0) {
      this.label(this.strip.rate(this.strip.area.most), 5, top + 8);
    }
  }

  isSeen(top, height) {
    const { scrollTop, clientHeight } = this.strip.element;
    return top + height > scrollTop && top < scrollTop + clientHeight;
  }

  /** Text that can be read on whatever is below it. */
  label(text, x, y, strong = false) {
    const { context: c, app: { palette } } = this.strip;
    c.fillStyle = palette.veil;
    c.fillRect(x - 3, y - 7, c.measureText(text).width + 6, 14);
    c.fillStyle = strong ? palette.text : palette.soft;
    c.fillText(text, x, y);
  }

  paintCells() {
    const { context: c, map, cells, most, app: { palette } } = this.strip;
    for (let column = 0; column < map.columns; column++) {
      const begin = (map.first + column) * map.column;
      const x = this.strip.x(begin);
      const w = this.strip.x(begin + map.column) - x;
      for (let row = 0; row < CELLS; row++) {
        const sum = cells[column * CELLS + row];
        c.fillStyle = sum === 0 ? palette.cold : palette.heat[Math.ceil(Math.sqrt(sum / most) * (palette.heat.length - 1))];
        c.fillRect(x, AXIS + MARKS + row * CELL, w - (w > 4 ? 1 : 0), CELL - 0.4);
      }
    }
  }

  paintTracks() {
    const { context: c, app: { palette } } = this.strip;
    let top = AXIS + MARKS;
    this.strip.tracks.forEach((track, at) => {
      const height = track.group ? TRACK : HEADER;
      if (this.isSeen(top, height)) {
        c.fillStyle = palette.grid;
        c.fillRect(0, top + height - 1, this.strip.width, 1);
        if (track.group) {
          this.paintArea(track.area, top, height - 1);
          if (by("thread").value === `id:${track.group.thread}` || at === this.strip.track) {
            c.fillStyle = palette.edge;
            c.fillRect(0, top, 3, height - 1);
          }
        }
      }
      top += height;
    });
  }

  paintMarks() {
    const { context: c, app: { palette } } = this.strip;
    this.strip.marks.forEach(({ hue, list, lasts }) => {
      c.fillStyle = markColor(palette, hue);
      let last = -9;
      for (const mark of list) {
        const x = this.strip.x(mark.from);
        const w = Math.max(2, this.strip.x(mark.to) - x);
        // As many as are in one place are one.
        if (x + w < last + 1) continue;
        last = x + w;
        if (lasts) {
          c.fillRect(x, AXIS, w, MARKS - 2);
        } else {
          c.beginPath();
          c.moveTo(x - 3.5, AXIS + MARKS - 2);
          c.lineTo(x + 3.5, AXIS + MARKS - 2);
          c.lineTo(x, AXIS + 1);
          c.fill();
        }
      }
    });
  }

  paintRange() {
    const { context: c, range, app: { palette } } = this.strip;
    if (range && this.strip.map) {
      this.paintCellRange(range);
    } else if (range) {
      const from = this.strip.x(range.from);
      const to = this.strip.x(range.to);
      c.fillStyle = palette.shade;
      c.fillRect(0, AXIS, Math.max(0, from), this.strip.height);
      c.fillRect(to, AXIS, Math.max(0, this.strip.width - to), this.strip.height);
      c.fillStyle = palette.edge;
      for (const x of [from - 1, to - 1]) c.fillRect(x, AXIS - 3, 2, this.strip.height);
    }
    if (this.strip.cursor >= 0) {
      c.fillStyle = palette.text;
      const column = this.strip.map ? Math.floor(this.strip.cursor / this.strip.map.column) * this.strip.map.column : this.strip.cursor;
      const row = this.strip.map ? (this.strip.cursor - column) / this.strip.map.cell : 0;
      if (this.strip.map) c.fillRect(this.strip.x(column), AXIS + MARKS + row * CELL, this.strip.x(this.strip.map.column) - this.strip.x(0), CELL);
      else c.fillRect(this.strip.x(column) - 0.5, AXIS - 5, 1, this.strip.height);
    }
  }

  /** Shades the cells that are not of the range. */
  paintCellRange(range) {
    const { context: c, map, app: { palette } } = this.strip;
    c.fillStyle = palette.shade;
    const row = (ticks) => Math.max(0, Math.min(CELLS, ticks / map.cell));
    for (let column = 0; column < map.columns; column++) {
      const begin = (map.first + column) * map.column;
      const x = this.strip.x(begin);
      const w = this.strip.x(begin + map.column) - x;
      const from = row(range.from - begin);
      const to = row(range.to - begin);
      c.fillRect(x, AXIS + MARKS, w, from * CELL);
      c.fillRect(x, AXIS + MARKS + Math.max(from, to) * CELL, w, (CELLS - Math.max(from, to)) * CELL);
    }
    c.strokeStyle = palette.edge;
    c.lineWidth = 2;
    const column = Math.floor(range.from / map.column) * map.column;
    const alone = range.to <= column + map.column;
    if (alone) {
      const x = this.strip.x(column);
      const y = AXIS + MARKS + row(range.from - column) * CELL;
      c.strokeRect(x, y - 1, this.strip.x(column + map.column) - x, (range.to - range.from) / map.cell * CELL + 2);
    }
  }
}

/** The beginning of a text that is no wider than `room`. */
function fitted(context, text, room) {
  let short = text.length > 200 ? `${text.slice(0, 199)}…` : text;
  while (short.length > 4 && context.measureText(short).width > room) short = `${short.slice(0, -5)}…`;
  return short;
}
