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
  const parent = new Int32Array(count);
  const frame = new Int32Array(count);
  for (let i = 0; i < count; i++) parent[i] = i - 1 - reader.varint();
  for (let i = 0; i < count; i++) frame[i] = reader.varint();
  const readEvent = (event) => {
    event.groups = [];
    event.samples = 0;
    event.value = 0;
    for (let thread = reader.varint(); thread !== 0; thread = reader.varint()) {
      const length = reader.varint();
      const group = {
        thread: thread - 1,
        node: new Int32Array(length),
        samples: new Float64Array(length),
        value: new Float64Array(length),
        allSamples: 0,
        allValue: 0,
      };
      let node = 0;
      for (let i = 0; i < length; i++) group.node[i] = node += reader.varint();
      for (let i = 0; i < length; i++) group.allSamples += group.samples[i] = reader.varint();
      for (let i = 0; i < length; i++) {
        group.allValue += group.value[i] = reader.varint() * event.scale;
      }
      event.samples += group.allSamples;
      event.value += group.allValue;
      event.groups.push(group);
    }
  };
  const { views } = head;
  // The same samples at other nodes.
  const others = views?.scales.map((scale, at) => ({ ...head.events[at], scale }));
  for (const event of [...head.events, ...others ?? []]) readEvent(event);
  const profile = withEnds({ head, count, parent, frame });
  profile.other = others ? { ...profile, head: { ...head, events: others } } : null;
  return profile;
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
