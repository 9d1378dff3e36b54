// Time: what was when, as numbers. No drawing.

/** How many rows a column of the heatmap has. */
const CELLS = 50;
/** Widths of heatmap columns and distances of axis labels, seconds. */
const NICE = [1, 2, 5, 10, 20, 50].flatMap((n) => [n * 1e-6, n * 1e-4]).concat(
  [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200,
    86400, 172800, 604800]).sort((a, b) => a - b);

/** Time of a profile, counted in ticks of `tick` nanoseconds from its begin. */
class Time {
  constructor(head) {
    this.tick = head.tick;
    this.start = head.start;
    // The last sample counts, and whatever the recording says of its end.
    let end = Math.ceil(head.duration / head.tick);
    for (const event of head.events) {
      for (const { time } of event.groups) if (time.length > 0) end = Math.max(end, time[time.length - 1] + 1);
    }
    this.end = Math.max(end, 1);
    /** Times are shown as of the clock on the wall (UTC). */
    this.wall = false;
  }

  /** Ticks of so many seconds. */
  ticks(seconds) {
    return Math.round(seconds * 1e9 / this.tick);
  }

  seconds(ticks) {
    return ticks * this.tick / 1e9;
  }

  /** Digits behind the point that tell times apart which lie `step` seconds from each other. */
  static digits(step) {
    return Math.max(0, Math.min(9, Math.ceil(-Math.log10(step) - 1e-6)));
  }

  /** A time as people read it, to `digits` behind the second. */
  text(ticks, digits = 3) {
    const seconds = this.seconds(ticks);
    if (!this.wall) {
      if (seconds < 60) return `${seconds.toFixed(digits)} s`;
      const minutes = Math.floor(seconds / 60 + 1e-12);
      const rest = (seconds - minutes * 60).toFixed(digits).padStart(digits > 0 ? digits + 3 : 2, "0");
      if (minutes < 60) return `${minutes}:${rest}`;
      return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest}`;
    }
    const whole = Math.floor(this.start / 1000 + seconds + 1e-9);
    const part = this.start / 1000 - Math.floor(this.start / 1000) + seconds;
    const fraction = digits > 0 ? (part - Math.floor(part + 1e-9)).toFixed(digits).replace(/^-?\d/, "") : "";
    return new Date(whole * 1000).toISOString().slice(11, 19) + fraction;
  }

  /**
   * The ticks that a text means: `2`, `2.5 s`, `20 ms`, `1:02.5` from the begin; with times by the clock also
   * `14:03:07.5` of the first day on which that is in the recording. Null where it means none.
   */
  parse(text) {
    const found = /^\s*(?:(?:(\d+):)?(\d+):)?(\d+(?:\.\d+)?)\s*(ms|s|m|h)?\s*$/.exec(text);
    if (!found) return null;
    const [, hours, minutes, rest, unit] = found;
    let seconds = Number(rest) * ({ ms: 1e-3, m: 60, h: 3600 }[unit] ?? 1);
    seconds += 60 * Number(minutes ?? 0) + 3600 * Number(hours ?? 0);
    if (this.wall && hours !== undefined) {
      const day = 86400;
      const begin = this.start / 1000 % day;
      seconds -= begin;
      // An instant before the begin is one of the next day, if the recording lasts until then.
      if (seconds < 0 && this.seconds(this.end) > seconds + day) seconds += day;
    }
    return Math.max(0, Math.min(this.end, this.ticks(seconds)));
  }

  /** The distance of axis labels so that at most `most` are in so many ticks; ticks. */
  step(ticks, most) {
    const seconds = this.seconds(ticks);
    const step = NICE.find((step) => seconds / step <= most) ?? NICE[NICE.length - 1];
    return Math.max(step * 1e9 / this.tick, 1);
  }
}

/** What lies in `view` (ticks) of a group's samples, in `count` bins, by the `colors` of its stacks: `into[bin * width + color]`. */
function addBins(group, view, count, byValue, colors, width, into) {
  const scale = count / (view.to - view.from);
  addTimes(group, view, byValue, colors, scale, count, (bin, color, much) => { into[bin * width + color] += much; });
}

/**
 * Tells `add` what is in which bin of `view`, `scale` bins a tick. What stands for the time before it is in all bins
 * of that.
 */
function addTimes(group, view, byValue, colors, scale, count, add) {
  const { time, stack, values, constant, lasts, tick } = group;
  const isLong = byValue && Number.isFinite(lasts);
  const from = firstAt(group, view.from);
  const to = Math.min(time.length, firstAt(group, view.to) + (isLong ? REACH : 0));
  const one = byValue ? constant : 1;
  for (let i = from; i < to; i++) {
    const color = colors[stack[i]];
    if (color === 255) continue;
    const much = byValue && values ? values[i] : one;
    const end = (time[i] - view.from) * scale;
    if (!isLong || much < lasts) {
      if (end < count) add(Math.floor(end), color, much);
      continue;
    }
    const begin = Math.max(0, end - much / tick * scale);
    const stop = Math.min(end, count);
    for (let bin = Math.floor(begin); bin < stop; bin++) {
      add(bin, color, (Math.min(stop, bin + 1) - Math.max(begin, bin)) / scale * tick);
    }
  }
}

/** Which cells there are in `view` if `most` columns fit; an `interval` (ns) is no shorter than a cell. */
function heatmapOf(time, view, most, interval) {
  const seconds = time.seconds(view.to - view.from);
  const least = Math.max(CELLS * interval / 1e9, CELLS * time.tick / 1e9);
  const step = NICE.find((step) => seconds / step <= most && step >= least * 0.999) ?? NICE[NICE.length - 1];
  const column = time.ticks(step);
  const first = Math.floor(view.from / column);
  return { column, cell: column / CELLS, first, columns: Math.ceil(view.to / column) - first };
}

/** Adds a group's samples to the cells of a heatmap: `into[column * CELLS + row]`. */
function addCells(group, map, byValue, colors, into) {
  const view = { from: map.first * map.column, to: (map.first + map.columns) * map.column };
  addTimes(group, view, byValue, colors, 1 / map.cell, into.length, (cell, _, much) => { into[cell] += much; });
}
