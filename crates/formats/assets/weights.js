// Adds up samples: which count, which frames are shown, and which of them are one.

/**
 * Self of every node under a filter, and sums over subtrees by difference of prefix sums.
 *
 * Kinds of code can be hidden: what is self of a hidden node is self of its nearest caller that
 * is shown, or of nobody.
 */
class Weights {
  constructor(profile) {
    this.profile = profile;
    // By node: itself, or the nearest caller that is shown; -1 where there is none.
    this.shown = new Int32Array(profile.count);
    this.included = null;
    this.hide(() => false);
    // Calls counted exactly, where the recording has them.
    this.callEvent = profile.head.events.find((event) => event.name === "call");
    this.ownCalls = this.callEvent ? new Float64Array(profile.count) : null;
    this.ownSamples = new Float64Array(profile.count);
    this.ownValue = new Float64Array(profile.count);
    this.sumSamples = new Float64Array(profile.count + 1);
    this.sumValue = new Float64Array(profile.count + 1);
    // Where two sides are compared: by process, 1 for after.
    this.sides = profile.head.sides?.of ?? null;
    this.compares = false;
    if (this.sides) {
      this.ownSide = [new Float64Array(profile.count), new Float64Array(profile.count)];
      this.ownBoth = new Float64Array(profile.count);
      this.sumBoth = new Float64Array(profile.count + 1);
      this.sumAfter = new Float64Array(profile.count + 1);
    }
  }

  /**
   * Hides frames of the kinds (by index) that `isHidden`; of those that `isFolded` all but the outermost of
   * several that call each other. Fill again after this.
   */
  hide(isHidden, isFolded = () => false) {
    const { profile, shown } = this;
    const { frames, kinds } = profile.head;
    const hidden = kinds.map((_, kind) => isHidden(kind));
    const folded = kinds.map((_, kind) => isFolded(kind));
    for (let i = 0; i < profile.count; i++) {
      const parent = profile.parent[i];
      const caller = parent < 0 ? -1 : shown[parent];
      const kind = frames.kind[profile.frame[i]];
      let hides = hidden[kind];
      if (!hides && caller >= 0) hides = folded[kind] && folded[frames.kind[profile.frame[caller]]];
      shown[i] = hides ? caller : i;
    }
  }

  /** Counts only stacks with a frame of a CLR, by its number; 0 for all. Fill again after this. */
  only(clr) {
    this.included = null;
    if (clr === 0) return;
    const { profile } = this;
    const { frames } = profile.head;
    this.included = new Uint8Array(profile.count);
    for (let i = 0; i < profile.count; i++) {
      const parent = profile.parent[i];
      const has = frames.clr[profile.frame[i]] === clr || (parent >= 0 && this.included[parent] === 1);
      this.included[i] = has ? 1 : 0;
    }
  }

  /** A stack counts, by its node. */
  includes(node) {
    return this.included === null || this.included[node] === 1;
  }

  isShown(node) {
    return this.shown[node] === node;
  }

  /** The nearest caller that is shown, or -1. */
  caller(node) {
    const parent = this.profile.parent[node];
    return parent < 0 ? -1 : this.shown[parent];
  }

  /**
   * Counts `event`'s samples on threads that `accepts`, in a range of time (all of it where there is none).
   * `byValue`: what `own` and `sum` are.
   */
  fill(event, accepts, byValue, range = null) {
    this.ownSamples.fill(0);
    this.ownValue.fill(0);
    this.nobodysSamples = 0;
    this.nobodysValue = 0;
    // Where each sample has the same value it is not added up one by one.
    const constant = event?.groups.every((group) => !group.values && group.lasts === Infinity) ? event.groups[0]?.constant ?? 0 : null;
    for (const group of event ? event.groups : []) {
      if (accepts(group.thread)) this.add(group, sumsIn(group, range, constant === null), constant === null);
    }
    if (this.ownCalls) {
      this.ownCalls.fill(0);
      for (const group of this.callEvent.groups) {
        if (!accepts(group.thread)) continue;
        const { value } = sumsIn(group, range);
        for (let i = 0; i < group.node.length; i++) {
          const node = group.node[i];
          if (this.includes(node) && this.shown[node] === node) this.ownCalls[node] += value[i];
        }
      }
    }
    addBefore(this.ownSamples, this.sumSamples);
    if (constant === null) addBefore(this.ownValue, this.sumValue);
    else this.multiply(constant);
    this.own = byValue ? this.ownValue : this.ownSamples;
    this.nobodys = byValue ? this.nobodysValue : this.nobodysSamples;
    this.sum = byValue ? this.sumValue : this.sumSamples;
    if (this.sides) this.compare(event, accepts, byValue, range);
  }

  /** Adds what a group's stacks have to what their nodes have of their own. */
  add({ node }, { samples, value }, hasValues) {
    const { shown, included, ownSamples, ownValue } = this;
    for (let i = 0; i < node.length; i++) {
      const count = samples[i];
      if (count === 0 || (included !== null && included[node[i]] === 0)) continue;
      const at = shown[node[i]];
      if (at < 0) {
        this.nobodysSamples += count;
        this.nobodysValue += value[i];
      } else {
        ownSamples[at] += count;
        if (hasValues) ownValue[at] += value[i];
      }
    }
  }

  /** Values where each sample has this one. */
  multiply(constant) {
    const { ownSamples, ownValue, sumSamples, sumValue } = this;
    for (let i = 0; i < ownValue.length; i++) {
      ownValue[i] = ownSamples[i] * constant;
      sumValue[i + 1] = sumSamples[i + 1] * constant;
    }
    this.nobodysValue = this.nobodysSamples * constant;
  }

  /** Both sides weigh the same, whatever was sampled of each: half of all. */
  compare(event, accepts, byValue, range) {
    const { threads } = this.profile.head;
    const nobodys = [0, 0];
    const all = [0, 0];
    for (const own of this.ownSide) own.fill(0);
    for (const group of event ? event.groups : []) {
      if (!accepts(group.thread)) continue;
      const side = this.sides[threads[group.thread].process];
      const sums = sumsIn(group, range);
      const weights = byValue ? sums.value : sums.samples;
      for (let i = 0; i < group.node.length; i++) {
        if (!this.includes(group.node[i])) continue;
        const node = this.shown[group.node[i]];
        all[side] += weights[i];
        if (node < 0) nobodys[side] += weights[i];
        else this.ownSide[side][node] += weights[i];
      }
    }
    this.compares = all[0] > 0 && all[1] > 0;
    if (!this.compares) return;
    const scale = all.map((sum) => (all[0] + all[1]) / 2 / sum);
    const [before, after] = this.ownSide;
    for (let i = 0; i < this.profile.count; i++) {
      after[i] *= scale[1];
      this.ownBoth[i] = before[i] * scale[0] + after[i];
      this.sumBoth[i + 1] = this.sumBoth[i] + this.ownBoth[i];
      this.sumAfter[i + 1] = this.sumAfter[i] + after[i];
    }
    this.own = this.ownBoth;
    this.ownAfter = after;
    this.nobodysAfter = nobodys[1] * scale[1];
    this.nobodys = nobodys[0] * scale[0] + this.nobodysAfter;
    this.sum = this.sumBoth;
    // What ten samples weigh: less than that is no change to look at.
    this.little = 10 * this.all / this.allSamples;
  }

  /** The part of a subtree's weight that is of after. */
  totalAfter(node) {
    return this.compares ? this.sumAfter[this.profile.end[node]] - this.sumAfter[node] : 0;
  }

  /** By how much something has changed: -1 for half of before or less, 1 for twice or more. */
  change(weight, after) {
    const change = Math.log2((after + this.little) / (weight - after + this.little));
    return Math.max(-1, Math.min(1, change));
  }

  /** The parts of their side that are before and after, in a weight. */
  shares(weight, after) {
    const half = this.all / 2;
    return [(weight - after) / half, after / half];
  }

  total(node) {
    return this.sum[this.profile.end[node]] - this.sum[node];
  }

  totalSamples(node) {
    return this.sumSamples[this.profile.end[node]] - this.sumSamples[node];
  }

  totalValue(node) {
    return this.sumValue[this.profile.end[node]] - this.sumValue[node];
  }

  get all() {
    return this.sum[this.profile.count] + this.nobodys;
  }

  get allSamples() {
    return this.sumSamples[this.profile.count] + this.nobodysSamples;
  }

  get allValue() {
    return this.sumValue[this.profile.count] + this.nobodysValue;
  }
}

/** Which frames are one frame: `detail` is method, tier or line. */
class Keys {
  constructor(profile, detail, signatures) {
    const { frames, strings } = profile.head;
    const known = new Map();
    this.of = new Int32Array(frames.name.length);
    this.name = [];
    this.kind = [];
    this.module = [];
    this.clr = [];
    for (let f = 0; f < frames.name.length; f++) {
      let id = `${frames.name[f]} ${frames.kind[f]} ${frames.module[f]}`;
      if (detail === "tier") id += ` ${frames.tier[f]} ${frames.inlined[f]}`;
      if (signatures) id += ` ${frames.signature[f]}`;
      // Names say which CLR a frame is of, so frames of one name are of one.
      if (detail === "line") id += ` ${frames.file[f]} ${frames.line[f]} ${frames.text[f]}`;
      let key = known.get(id);
      if (key === undefined) {
        key = this.name.length;
        known.set(id, key);
        let name = strings[frames.name[f]];
        if (signatures && frames.signature[f] > 0) name += strings[frames.signature[f] - 1];
        if (detail === "line" && frames.line[f] > 0) {
          const file = frames.file[f] > 0 ? baseName(strings[frames.file[f] - 1]) : "";
          name += `  ${file}:${frames.line[f]}`;
        }
        // Or several boxes would have one name.
        const tier = profile.head.tiers[frames.tier[f]];
        if (detail === "tier" && tier !== "") name += `  (${tier})`;
        if (detail === "tier" && frames.inlined[f]) name += "  (inlined)";
        if (detail === "line" && frames.text[f] > 0) name += `  ${strings[frames.text[f] - 1]}`;
        this.name.push(name);
        this.kind.push(frames.kind[f]);
        this.module.push(frames.module[f]);
        this.clr.push(frames.clr[f]);
      }
      this.of[f] = key;
    }
  }

  get count() {
    return this.name.length;
  }
}

/** In `sums` before each place what `own` has before it. */
function addBefore(own, sums) {
  let sum = 0;
  for (let i = 0; i < own.length; i++) {
    sum += own[i];
    sums[i + 1] = sum;
  }
}

/** The first of a group's samples at or after a time. */
function firstAt(group, time) {
  let low = 0;
  let high = group.time.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (group.time[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** What the value of a group's sample is. */
const valueOf = (group, i) => group.values ? group.values[i] : group.constant;

/** How long before its time a sample began, ticks. */
function lengthOf(group, i) {
  const value = valueOf(group, i);
  return value >= group.lasts ? value / group.tick : 0;
}

/** So many samples behind an instant may have begun before it: a thread waits at one place at a time. */
const REACH = 4;

/** Numbers by stack; the same memory again and again, since tens of megabytes of it a range would have to be collected. */
function scratch(length) {
  const kept = scratch.kept ??= { samples: new Float64Array(0), value: new Float64Array(0) };
  if (kept.samples.length < length) {
    kept.samples = new Float64Array(length);
    kept.value = new Float64Array(length);
  }
  return { samples: kept.samples.subarray(0, length), value: kept.value.subarray(0, length) };
}

/**
 * Samples and value by stack of a group from `range.from` to before `range.to`; of all of it without one. They hold until
 * this is asked again. Values that are all the same are left out unless `hasValues`.
 */
function sumsIn(group, range, hasValues = true) {
  const { time, values } = group;
  if (!range) return group;
  const from = firstAt(group, range.from);
  const to = firstAt(group, range.to);
  const isLong = Number.isFinite(group.lasts);
  if (from === 0 && to === time.length && !isLong) return group;
  const sums = scratch(group.node.length);
  const { samples, value } = sums;
  const [first, last] = [nearest(group, from), nearest(group, to)];
  if (first === last) {
    samples.fill(0);
    if (values) value.fill(0);
    addUp(group, from, to, samples, value, 1);
  } else {
    // What is between the two, and at each end what is too little or too much.
    for (let at = 0; at < samples.length; at++) samples[at] = last.samples[at] - first.samples[at];
    if (values) for (let at = 0; at < samples.length; at++) value[at] = last.value[at] - first.value[at];
    addUp(group, from, first.at, samples, value, 1);
    addUp(group, first.at, from, samples, value, -1);
    addUp(group, last.at, to, samples, value, 1);
    addUp(group, to, last.at, samples, value, -1);
  }
  if (hasValues) setConstant(group, samples, value);
  if (isLong) cutLong(group, range, from, to, sums);
  return sums;
}

/** The sums that were kept nearest to a group's sample. */
function nearest({ sums: { step, kept } }, sample) {
  const at = Math.min(kept.length - 1, Math.round(sample / step));
  return at > 0 && sample > kept[at - 1].at && sample - kept[at - 1].at < kept[at].at - sample ? kept[at - 1] : kept[at];
}

/** Of samples that stand for the time before them, takes what is not in the range, and adds what is. */
function cutLong(group, range, from, to, { samples, value }) {
  const { time, stack, tick } = group;
  for (let i = from; i < Math.min(to, from + REACH); i++) {
    const early = range.from - (time[i] - lengthOf(group, i));
    if (lengthOf(group, i) === 0 || early <= 0) continue;
    value[stack[i]] -= Math.min(early * tick, valueOf(group, i));
    // Nothing of it is in the range.
    if (early * tick >= valueOf(group, i)) samples[stack[i]]--;
  }
  for (let i = to; i < Math.min(time.length, to + REACH); i++) {
    const begin = Math.max(range.from, time[i] - lengthOf(group, i));
    if (lengthOf(group, i) === 0 || begin >= range.to) continue;
    value[stack[i]] += (range.to - begin) * tick;
    samples[stack[i]]++;
  }
}

function baseName(path) {
  return path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1);
}
