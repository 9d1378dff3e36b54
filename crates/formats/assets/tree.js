// Builds the tree that is drawn, as far as it is seen, and the rows of the table.

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
 *
 * With `of`, a key, the root is that method: below it is what it calls, in reverse who calls it.
 */
class Tree {
  constructor(profile, weights, keys, reverse, order, of = -1) {
    Object.assign(this, { profile, weights, keys, reverse, order, of });
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
    n.key[ROOT] = of;
    n.parent[ROOT] = -1;
    n.first[ROOT] = -1;
    if (of >= 0) {
      this.takeSubject();
      return;
    }
    n.weight[ROOT] = weights.all;
    n.after[ROOT] = weights.all / 2;
    n.samples[ROOT] = weights.allSamples;
    n.value[ROOT] = weights.allValue;
    n.own[ROOT] = weights.nobodys;
    n.ownSamples[ROOT] = weights.nobodysSamples;
    n.ownValue[ROOT] = weights.nobodysValue;
  }

  /** The root is a method: the places where it is called by another one. */
  takeSubject() {
    const { profile, weights, keys, nodes: n, of } = this;
    this.subject = [];
    let behind = 0;
    for (let i = 0; i < profile.count; i++) {
      if (keys.of[profile.frame[i]] !== of || !weights.isShown(i) || weights.totalSamples(i) === 0) continue;
      if (!this.reverse) {
        n.own[ROOT] += weights.own[i];
        n.ownSamples[ROOT] += weights.ownSamples[i];
        n.ownValue[ROOT] += weights.ownValue[i];
      }
      // Called by itself: counted above.
      if (i < behind) continue;
      behind = profile.end[i];
      this.subject.push(i);
      n.weight[ROOT] += weights.total(i);
      n.samples[ROOT] += weights.totalSamples(i);
      n.value[ROOT] += weights.totalValue(i);
      n.after[ROOT] += weights.totalAfter(i);
    }
  }

  /** The children of a root that is a method. */
  gatherSubject(groups) {
    const { profile, weights, nodes: n } = this;
    for (const place of this.subject) {
      if (!this.reverse) {
        this.gatherRange(groups, place + 1, profile.end[place]);
        continue;
      }
      const caller = weights.caller(place);
      const [weight, samples, value] = [weights.total(place), weights.totalSamples(place), weights.totalValue(place)];
      if (caller >= 0) {
        this.gather(groups, caller, weight, samples, value, weights.totalAfter(place));
      } else {
        n.own[ROOT] += weight;
        n.ownSamples[ROOT] += samples;
        n.ownValue[ROOT] += value;
      }
    }
  }

  name(node) {
    return node === ROOT && this.of < 0 ? "all" : this.keys.name[this.nodes.key[node]];
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
    if (node === ROOT && this.of >= 0) {
      this.gatherSubject(groups);
    } else if (this.reverse) {
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
    const tier = this.profile.head.frames.tier[frame];
    if (group === undefined) {
      // In reverse a place may come again; forwards it does not.
      const known = this.reverse ? new Map() : null;
      group = { key, weight: 0, samples: 0, value: 0, after: 0, places: [], known, tier, tiers: null };
      groups.set(key, group);
    }
    group.weight += weight;
    group.samples += samples;
    group.value += value;
    group.after += after;
    if (group.tiers === null && tier !== group.tier) {
      group.tiers = new Float64Array(16);
      group.tiers[group.tier] = group.weight - weight;
    }
    if (group.tiers !== null) group.tiers[tier] += weight;
    const { places, known } = group;
    const at = known?.get(place);
    if (at === undefined) {
      known?.set(place, places.length);
      places.push(place, weight, samples, value, after);
    } else {
      places[at + 1] += weight;
      places[at + 2] += samples;
      places[at + 3] += value;
      places[at + 4] += after;
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
      nodes.tier[node] = group.tiers === null ? group.tier
        : group.tiers.reduce((best, w, i) => w > group.tiers[best] ? i : best, 0);
      x += group.weight;
      nodes.from[node] = places.length;
      for (let of = 0; of < group.places.length; of += 5) {
        const place = group.places[of];
        const at = places.add();
        places.node[at] = place;
        places.weight[at] = group.places[of + 1];
        places.samples[at] = group.places[of + 2];
        places.value[at] = group.places[of + 3];
        places.after[at] = group.places[of + 4];
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
