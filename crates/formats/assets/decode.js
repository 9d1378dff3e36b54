// Reads the payload that html/payload.rs wrote.

/** Varints: little-endian groups of seven bits, up to 2^53. */
class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  varint() {
    let value = 0;
    let place = 1;
    for (;;) {
      if (this.at >= this.bytes.length) throw new Error("the profile in this file is cut");
      const byte = this.bytes[this.at++];
      value += (byte & 127) * place;
      if (byte < 128) return value;
      place *= 128;
    }
  }

  /** As many numbers as `column` has, into it. */
  column(column) {
    const { bytes } = this;
    let { at } = this;
    for (let i = 0; i < column.length; i++) {
      let byte = bytes[at++];
      let value = byte & 127;
      for (let place = 128; byte > 127; place *= 128) {
        byte = bytes[at++];
        value += (byte & 127) * place;
      }
      column[i] = value;
    }
    if (at > bytes.length) throw new Error("the profile in this file is cut");
    this.at = at;
    return column;
  }

  take(length) {
    const part = this.bytes.subarray(this.at, this.at + length);
    this.at += length;
    return part;
  }
}

/** The payload's bytes, out of the element that holds it. */
async function payloadOf(element) {
  const text = atob(element.textContent.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  if (element.dataset.encoding === "plain") return bytes;
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser is too old to unpack the profile: " +
      "it takes Chromium 103, Firefox 113 or Safari 16.4");
  }
  const stream = new Blob([bytes]).stream()
    .pipeThrough(new DecompressionStream(element.dataset.encoding));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * The profile: the head's tables, and the nodes of all stacks in preorder.
 * `parent` is -1 at a root; `end` is the place behind a node's subtree; `other` is the profile with the other
 * stacks of samples in async methods, null where each sample has one stack.
 */
function decode(bytes) {
  const reader = new Reader(bytes);
  const head = JSON.parse(new TextDecoder().decode(reader.take(reader.varint())));
  const count = head.nodes;
  const parent = reader.column(new Int32Array(count));
  for (let i = 0; i < count; i++) parent[i] = i - 1 - parent[i];
  const frame = reader.column(new Int32Array(count));
  const nodes = [];
  const stacks = reader.varint();
  for (let view = 0; view < (head.views ? 2 : 1); view++) nodes.push(reader.column(new Int32Array(stacks)));
  for (const event of head.events) readEvent(reader, event, nodes, head.tick);
  const profile = withEnds({ head, count, parent, frame });
  // The same samples at other nodes.
  const others = head.views && head.events.map((event) => ({
    ...event, groups: event.groups.map((group) => ({ ...group, node: group.other })),
  }));
  profile.other = others ? { ...profile, head: { ...head, events: others } } : null;
  return profile;
}

/**
 * Adds to `event` its samples: `groups`, one a thread, with a `node` for each of its stacks and what
 * that has of samples and value, and for each sample, by time, its `time` and its `stack` of these.
 */
function readEvent(reader, event, nodes, tick) {
  const { scale, constant } = event;
  const threads = [];
  let all = 0;
  for (let thread = reader.varint(); thread !== 0; thread = reader.varint()) {
    const length = reader.varint();
    threads.push({ thread: thread - 1, from: all, to: all + length });
    all += length;
  }
  const time = reader.column(new Uint32Array(all));
  const stack = reader.column(new Uint32Array(all));
  const values = constant === undefined ? reader.column(new Float64Array(all)) : null;
  Object.assign(event, { samples: 0, value: 0 });
  // By stack: its number among the current thread's, plus one.
  const number = new Uint32Array(nodes[0].length);
  event.groups = threads.map(({ thread, from, to }) => {
    const used = [];
    let now = 0;
    for (let i = from; i < to; i++) {
      time[i] = now += time[i];
      const at = stack[i];
      if (number[at] === 0) number[at] = used.push(at);
      stack[i] = number[at] - 1;
    }
    for (const at of used) number[at] = 0;
    const group = {
      thread,
      node: Int32Array.from(used, (at) => nodes[0][at]),
      other: nodes[1] ? Int32Array.from(used, (at) => nodes[1][at]) : null,
      time: time.subarray(from, to),
      stack: stack.subarray(from, to),
      values: values ? values.subarray(from, to) : null,
      constant: (constant ?? 0) * scale,
      // A sample with a value from this on stands for the time before it.
      lasts: event.lasts ?? Infinity,
      tick,
      samples: new Float64Array(used.length),
      value: new Float64Array(used.length),
    };
    if (values) for (let i = from; i < to; i++) values[i] *= scale;
    group.sums = countUp(group);
    setConstant(group, group.samples, group.value);
    group.allSamples = to - from;
    group.allValue = group.value.reduce((sum, value) => sum + value, 0);
    event.samples += group.allSamples;
    event.value += group.allValue;
    return group;
  });
}

/** So many samples of a group at least are between two sums. */
const FEWEST_BETWEEN = 32768;

/**
 * Adds up all samples of a group, and keeps the sums now and then: those of a range follow from the two nearest to its ends.
 * What is kept is no more than three bytes a sample, or nine where they have values.
 */
function countUp(group) {
  const { samples, value, time } = group;
  const step = Math.max(FEWEST_BETWEEN, 4 * samples.length * (group.values ? 1 : 0.5));
  const kept = [];
  for (let at = 0; at < time.length; at += step) {
    kept.push({ at, samples: Uint32Array.from(samples), value: group.values ? value.slice() : null });
    addUp(group, at, Math.min(time.length, at + step), samples, value, 1);
  }
  kept.push({ at: time.length, samples, value });
  return { step, kept };
}

/** Adds the samples of a group from one to another to what its stacks have: `sign` times. */
function addUp(group, from, to, samples, value, sign) {
  const { stack, values } = group;
  for (let i = from; i < to; i++) samples[stack[i]] += sign;
  if (values) for (let i = from; i < to; i++) value[stack[i]] += sign * values[i];
}

/** What was counted has the constant value each. */
function setConstant({ values, constant }, samples, value) {
  if (!values) for (let at = 0; at < samples.length; at++) value[at] = samples[at] * constant;
}

/** Adds `end` to a profile: nodes are in preorder, so a subtree is a range. */
function withEnds(profile) {
  const { count, parent } = profile;
  const end = new Int32Array(count);
  for (let i = count - 1; i >= 0; i--) {
    if (end[i] === 0) end[i] = i + 1;
    if (parent[i] >= 0 && end[parent[i]] < end[i]) end[parent[i]] = end[i];
  }
  return { ...profile, end };
}

/** The values of an event's samples say more than their number. */
function hasValue(event) {
  return event.value > 0 && (event.unit !== "count" || event.value !== event.samples);
}

/** An amount in a unit of the payload, as people read it. */
function amount(value, unit) {
  const scaled = (steps) => {
    for (const [from, divisor, suffix, digits] of steps) {
      if (value >= from) return `${(value / divisor).toFixed(digits)} ${suffix}`;
    }
    return null;
  };
  if (unit === "nanoseconds") {
    return scaled([[1e9, 1e9, "s", 3], [1e6, 1e6, "ms", 2], [1e3, 1e3, "µs", 2]]) ?? `${value} ns`;
  }
  if (unit === "bytes") {
    return scaled([[2 ** 30, 2 ** 30, "GiB", 2], [2 ** 20, 2 ** 20, "MiB", 2],
      [1024, 1024, "KiB", 2]]) ?? `${value} B`;
  }
  return value.toLocaleString("en");
}

/** Percent as the honest line writes it: something never reads as nothing. */
function percent(part, whole) {
  if (!(part > 0) || !(whole > 0)) return "0.00 %";
  const share = part * 100 / whole;
  if (share < 0.005) return "<0.01 %";
  if (part < whole && share >= 99.995) return ">99.99 %";
  return `${share.toFixed(2)} %`;
}
