// Adds up samples and builds the tree that is drawn, as far as it is seen.

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

  /** Hides frames of the kinds (by index) that `isHidden`. Fill again after this. */
  hide(isHidden) {
    const { profile, shown } = this;
    const { frames, kinds } = profile.head;
    const hidden = kinds.map((_, kind) => isHidden(kind));
    for (let i = 0; i < profile.count; i++) {
      const parent = profile.parent[i];
      shown[i] = !hidden[frames.kind[profile.frame[i]]] ? i : parent < 0 ? -1 : shown[parent];
    }
  }

  isShown(node) {
    return this.shown[node] === node;
  }

  /** The nearest caller that is shown, or -1. */
  caller(node) {
    const parent = this.profile.parent[node];
    return parent < 0 ? -1 : this.shown[parent];
  }

  /** Counts `event`'s samples on threads that `accepts`. `byValue`: what `own` and `sum` are. */
  fill(event, accepts, byValue) {
    this.ownSamples.fill(0);
    this.ownValue.fill(0);
    this.nobodysSamples = 0;
    this.nobodysValue = 0;
    for (const group of event ? event.groups : []) {
      if (!accepts(group.thread)) continue;
      for (let i = 0; i < group.node.length; i++) {
        const node = this.shown[group.node[i]];
        if (node < 0) {
          this.nobodysSamples += group.samples[i];
          this.nobodysValue += group.value[i];
        } else {
          this.ownSamples[node] += group.samples[i];
          this.ownValue[node] += group.value[i];
        }
      }
    }
    if (this.ownCalls) {
      this.ownCalls.fill(0);
      for (const group of this.callEvent.groups) {
        if (!accepts(group.thread)) continue;
        for (let i = 0; i < group.node.length; i++) {
          const node = group.node[i];
          if (this.shown[node] === node) this.ownCalls[node] += group.value[i];
        }
      }
    }
    for (let i = 0; i < this.profile.count; i++) {
      this.sumSamples[i + 1] = this.sumSamples[i] + this.ownSamples[i];
      this.sumValue[i + 1] = this.sumValue[i] + this.ownValue[i];
    }
    this.own = byValue ? this.ownValue : this.ownSamples;
    this.nobodys = byValue ? this.nobodysValue : this.nobodysSamples;
    this.sum = byValue ? this.sumValue : this.sumSamples;
    if (this.sides) this.compare(event, accepts, byValue);
  }

  /** Both sides weigh the same, whatever was sampled of each: half of all. */
  compare(event, accepts, byValue) {
    const { threads } = this.profile.head;
    const nobodys = [0, 0];
    const all = [0, 0];
    for (const own of this.ownSide) own.fill(0);
    for (const group of event ? event.groups : []) {
      if (!accepts(group.thread)) continue;
      const side = this.sides[threads[group.thread].process];
      const weights = byValue ? group.value : group.samples;
      for (let i = 0; i < group.node.length; i++) {
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

function baseName(path) {
  return path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1);
}

/** Typed arrays that grow together. */
class Columns {
  constructor(types) {
    this.types = types;
    this.capacity = 1024;
    this.length = 0;
    for (const [name, Type] of Object.entries(types)) this[name] = new Type(this.capacity);
  }

  /** Makes room for one more row and returns its index. */
  add() {
    if (this.length === this.capacity) {
      this.capacity *= 2;
      for (const [name, Type] of Object.entries(this.types)) {
        const larger = new Type(this.capacity);
        larger.set(this[name]);
        this[name] = larger;
      }
    }
    return this.length++;
  }
}

const ROOT = 0;

/**
 * The merged tree. A node is a set of places in the profile's stacks; its children are made when
 * they are first asked for, so a view costs what is wide enough to be seen.
 *
 * Forwards a place is a stack node and counts with its whole subtree. In reverse, a place is a
 * caller of some leaf and counts what those leaves have of their own.
 */
class Tree {
  constructor(profile, weights, keys, reverse, order) {
    Object.assign(this, { profile, weights, keys, reverse, order });
    this.nodes = new Columns({
      key: Int32Array, parent: Int32Array, depth: Int32Array,
      first: Int32Array, count: Int32Array, from: Int32Array, to: Int32Array,
      x: Float64Array, weight: Float64Array, samples: Float64Array, value: Float64Array,
      own: Float64Array, ownSamples: Float64Array, ownValue: Float64Array, tier: Uint8Array,
      after: Float64Array,
    });
    this.places = new Columns({
      node: Int32Array, weight: Float64Array, samples: Float64Array, value: Float64Array, after: Float64Array,
    });
    const n = this.nodes;
    n.add();
    n.key[ROOT] = -1;
    n.parent[ROOT] = -1;
    n.first[ROOT] = -1;
    n.weight[ROOT] = weights.all;
    n.after[ROOT] = weights.all / 2;
    n.samples[ROOT] = weights.allSamples;
    n.value[ROOT] = weights.allValue;
    n.own[ROOT] = weights.nobodys;
    n.ownSamples[ROOT] = weights.nobodysSamples;
    n.ownValue[ROOT] = weights.nobodysValue;
  }

  name(node) {
    return node === ROOT ? "all" : this.keys.name[this.nodes.key[node]];
  }

  isManaged(node) {
    const { kinds } = this.profile.head;
    return node !== ROOT && kinds[this.keys.kind[this.nodes.key[node]]] === "managed";
  }

  /** Dots part the name of a node. */
  isDotted(node) {
    const { kinds } = this.profile.head;
    const isType = node !== ROOT && kinds[this.keys.kind[this.nodes.key[node]]] === "detail" &&
      !/\.(dll|exe)$/i.test(this.name(node));
    return isType || this.isManaged(node);
  }

  /** Makes the children of `node`, if they are not there yet. */
  expand(node) {
    if (this.nodes.first[node] >= 0) return;
    const groups = new Map();
    const { profile, weights } = this;
    if (this.reverse) {
      if (node === ROOT) {
        for (let i = 0; i < profile.count; i++) {
          if (weights.own[i] > 0) {
            const after = weights.compares ? weights.ownAfter[i] : 0;
            this.gather(groups, i, weights.own[i], weights.ownSamples[i], weights.ownValue[i], after);
          }
        }
      } else {
        const p = this.places;
        for (let at = this.nodes.from[node]; at < this.nodes.to[node]; at++) {
          const caller = weights.caller(p.node[at]);
          if (caller >= 0) {
            this.gather(groups, caller, p.weight[at], p.samples[at], p.value[at], p.after[at]);
          } else {
            this.nodes.own[node] += p.weight[at];
            this.nodes.ownSamples[node] += p.samples[at];
            this.nodes.ownValue[node] += p.value[at];
          }
        }
      }
    } else if (node === ROOT) {
      this.gatherRange(groups, 0, profile.count);
    } else {
      for (let at = this.nodes.from[node]; at < this.nodes.to[node]; at++) {
        const place = this.places.node[at];
        this.gatherRange(groups, place + 1, profile.end[place]);
      }
    }
    this.adopt(node, groups);
  }

  /** The topmost nodes that are shown in a range of the preorder. */
  gatherRange(groups, from, to) {
    const w = this.weights;
    let next = from;
    for (let place = from; place < to; place = next) {
      // Behind a hidden node comes the first thing it calls.
      if (!w.isShown(place)) {
        next = place + 1;
        continue;
      }
      next = this.profile.end[place];
      const weight = w.total(place);
      if (weight > 0) {
        this.gather(groups, place, weight, w.totalSamples(place), w.totalValue(place), w.totalAfter(place));
      }
    }
  }

  gather(groups, place, weight, samples, value, after) {
    const frame = this.profile.frame[place];
    const key = this.keys.of[frame];
    let group = groups.get(key);
    if (group === undefined) {
      group = {
        key, weight: 0, samples: 0, value: 0, after: 0, places: new Map(), tiers: new Float64Array(16),
      };
      groups.set(key, group);
    }
    group.weight += weight;
    group.samples += samples;
    group.value += value;
    group.after += after;
    group.tiers[this.profile.head.frames.tier[frame]] += weight;
    const known = group.places.get(place);
    if (known === undefined) {
      group.places.set(place, [weight, samples, value, after]);
    } else {
      known[0] += weight;
      known[1] += samples;
      known[2] += value;
      known[3] += after;
    }
  }

  adopt(parent, groups) {
    const { nodes, places, weights, keys } = this;
    const sorted = [...groups.values()];
    const byName = (a, b) => {
      const [x, y] = [keys.name[a.key], keys.name[b.key]];
      return x < y ? -1 : x > y ? 1 : a.key - b.key;
    };
    sorted.sort(this.order === "name" ? byName : (a, b) => b.weight - a.weight || byName(a, b));
    nodes.first[parent] = nodes.length;
    nodes.count[parent] = sorted.length;
    let x = nodes.x[parent];
    for (const group of sorted) {
      const node = nodes.add();
      nodes.key[node] = group.key;
      nodes.parent[node] = parent;
      nodes.depth[node] = nodes.depth[parent] + 1;
      nodes.first[node] = -1;
      nodes.x[node] = x;
      nodes.weight[node] = group.weight;
      nodes.samples[node] = group.samples;
      nodes.value[node] = group.value;
      nodes.after[node] = group.after;
      nodes.tier[node] = group.tiers.reduce((best, w, i) => w > group.tiers[best] ? i : best, 0);
      x += group.weight;
      nodes.from[node] = places.length;
      for (const [place, [weight, samples, value, after]] of group.places) {
        const at = places.add();
        places.node[at] = place;
        places.weight[at] = weight;
        places.samples[at] = samples;
        places.value[at] = value;
        places.after[at] = after;
        if (!this.reverse) {
          nodes.own[node] += weights.own[place];
          nodes.ownSamples[node] += weights.ownSamples[place];
          nodes.ownValue[node] += weights.ownValue[place];
        }
      }
      nodes.to[node] = places.length;
    }
  }

  /** How often a node was called, or null where calls were not counted. */
  calls(node) {
    const { ownCalls } = this.weights;
    if (!ownCalls || this.reverse || node === ROOT) return null;
    let calls = 0;
    for (let at = this.nodes.from[node]; at < this.nodes.to[node]; at++) {
      calls += ownCalls[this.places.node[at]];
    }
    return calls;
  }

  /** What the frames of a node are: weight by tier, by source line and by text, most first. */
  details(node) {
    const { frames, strings } = this.profile.head;
    const tiers = new Map();
    const lines = new Map();
    const texts = new Map();
    for (let at = this.nodes.from[node]; at < this.nodes.to[node]; at++) {
      const frame = this.profile.frame[this.places.node[at]];
      const weight = this.places.weight[at];
      tiers.set(frames.tier[frame], (tiers.get(frames.tier[frame]) ?? 0) + weight);
      if (frames.file[frame] > 0 || frames.line[frame] > 0) {
        const file = frames.file[frame] > 0 ? strings[frames.file[frame] - 1] : "";
        const line = frames.line[frame] > 0 ? `${file}:${frames.line[frame]}` : file;
        lines.set(line, (lines.get(line) ?? 0) + weight);
      }
      if (frames.text[frame] > 0) {
        const text = strings[frames.text[frame] - 1];
        texts.set(text, (texts.get(text) ?? 0) + weight);
      }
    }
    const sorted = (map) => [...map].sort((a, b) => b[1] - a[1]);
    return { tiers: sorted(tiers), lines: sorted(lines), texts: sorted(texts) };
  }

  /** The callers of a node, the root first, itself last. */
  path(node) {
    const path = [];
    for (let at = node; at >= 0; at = this.nodes.parent[at]) path.push(at);
    return path.reverse();
  }

  /**
   * The nodes nearest to the root below `from` that match (by key), the heaviest first; at most `most`.
   * Only where there is a match is the tree unfolded.
   */
  matching(matches, from, most) {
    const { profile, weights, keys, nodes } = this;
    // Forwards a place holds its subtree, in reverse its callers.
    const before = new Int32Array(profile.count + 1);
    const above = new Uint8Array(profile.count);
    for (let i = 0; i < profile.count; i++) {
      const hit = weights.isShown(i) && matches[keys.of[profile.frame[i]]] && weights.total(i) > 0;
      before[i + 1] = before[i] + (hit ? 1 : 0);
      const parent = profile.parent[i];
      above[i] = hit || (parent >= 0 && above[parent]) ? 1 : 0;
    }
    const holds = (node) => {
      for (let at = nodes.from[node]; at < nodes.to[node]; at++) {
        const place = this.places.node[at];
        if (this.reverse ? above[place] : before[profile.end[place]] > before[place]) return true;
      }
      return false;
    };
    const found = [];
    const open = [from];
    let left = 100000;
    while (open.length > 0 && left-- > 0 && found.length < 10 * most) {
      const node = open.pop();
      if (node !== ROOT && matches[nodes.key[node]]) {
        found.push(node);
        continue;
      }
      this.expand(node);
      const first = nodes.first[node];
      // The heaviest is looked at first.
      for (let c = first + nodes.count[node] - 1; c >= first; c--) if (holds(c)) open.push(c);
    }
    return found.sort((a, b) => nodes.weight[b] - nodes.weight[a] || a - b).slice(0, most);
  }

  /** The node that a path of keys leads to, or the last one on the way that is there. */
  find(keys) {
    let node = ROOT;
    for (const key of keys) {
      this.expand(node);
      let next = -1;
      const first = this.nodes.first[node];
      for (let c = first; c < first + this.nodes.count[node]; c++) {
        if (this.nodes.key[c] === key) next = c;
      }
      if (next < 0) break;
      node = next;
    }
    return node;
  }
}

/**
 * Self and total by key below the places of the stacks that `tops` are (all without it); a recursive
 * key counts once a stack.
 */
function tally(profile, weights, keys, tops) {
  const rows = {
    own: new Float64Array(keys.count), ownSamples: new Float64Array(keys.count),
    ownValue: new Float64Array(keys.count), calls: new Float64Array(keys.count), total: new Float64Array(keys.count),
    ownAfter: new Float64Array(keys.count), totalAfter: new Float64Array(keys.count),
    totalSamples: new Float64Array(keys.count), totalValue: new Float64Array(keys.count),
  };
  const open = new Int32Array(keys.count);
  const ranges = tops ? tops.map((top) => [top, profile.end[top]]) : [[0, profile.count]];
  for (const [from, to] of ranges) count(from, to);
  return rows;

  function count(from, to) {
    const path = [];
    for (let i = from; i < to; i++) {
      while (path.length > 0 && profile.end[path[path.length - 1]] <= i) {
        open[keys.of[profile.frame[path.pop()]]]--;
      }
      if (weights.ownCalls) rows.calls[keys.of[profile.frame[i]]] += weights.ownCalls[i];
      if (weights.totalSamples(i) === 0) {
        // Below may be calls that took no time.
        if (!weights.ownCalls) i = profile.end[i] - 1;
        continue;
      }
      if (!weights.isShown(i)) continue;
      const key = keys.of[profile.frame[i]];
      rows.own[key] += weights.own[i];
      rows.ownSamples[key] += weights.ownSamples[i];
      rows.ownValue[key] += weights.ownValue[i];
      if (weights.compares) rows.ownAfter[key] += weights.ownAfter[i];
      if (open[key] === 0) {
        rows.total[key] += weights.total(i);
        rows.totalSamples[key] += weights.totalSamples(i);
        rows.totalValue[key] += weights.totalValue(i);
        rows.totalAfter[key] += weights.totalAfter(i);
      }
      open[key]++;
      path.push(i);
    }
    while (path.length > 0) open[keys.of[profile.frame[path.pop()]]]--;
  }
}

/** Weight and samples of all stacks in which a key matches. */
function matchedShare(profile, weights, keys, matches) {
  let weight = 0;
  let samples = 0;
  for (let i = 0; i < profile.count; i++) {
    if (weights.isShown(i) && matches[keys.of[profile.frame[i]]]) {
      weight += weights.total(i);
      samples += weights.totalSamples(i);
      i = profile.end[i] - 1;
    }
  }
  return { weight, samples };
}
