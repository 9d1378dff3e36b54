// The profile with methods that call themselves merged.

/**
 * `profile` without what only repeats: A calls A, or A calls B calls A calls B, by way of however many. Where a method comes
 * again and everything since it came is on the stack already, what follows goes on from where it came first. So each stack
 * keeps its methods, and each method its self and its total; only depth goes. Frames that `isHidden` (by index) are in nobody's
 * way. Which frames are one method is in `keys`; a frame keeps its line and tier.
 */
function withoutRecursion(profile, keys, isHidden) {
  const { count } = profile;
  const hidden = Uint8Array.from(profile.head.frames.kind, (kind) => isHidden(kind) ? 1 : 0);
  const nodes = new Columns({ parent: Int32Array, frame: Int32Array, newest: Int32Array });
  const known = new Map();
  const frames = profile.head.frames.name.length;
  const child = (parent, frame) => {
    const id = (parent + 1) * frames + frame;
    let node = known.get(id);
    if (node === undefined) {
      node = nodes.add();
      nodes.parent[node] = parent;
      nodes.frame[node] = frame;
      known.set(id, node);
    }
    return node;
  };
  const image = new Int32Array(count);
  for (let i = 0; i < count; i++) {
    const frame = profile.frame[i];
    const above = profile.parent[i] < 0 ? -1 : image[profile.parent[i]];
    // The nearest to the leaf that was the first of its method.
    const newest = above < 0 ? -1 : nodes.newest[above];
    if (hidden[frame]) {
      image[i] = child(above, frame);
      nodes.newest[image[i]] = newest;
      continue;
    }
    const key = keys.of[frame];
    let again = -1;
    let isNew = true;
    for (let at = above, behind = true; at >= 0; at = nodes.parent[at]) {
      if (!hidden[nodes.frame[at]] && keys.of[nodes.frame[at]] === key) {
        isNew = false;
        if (!behind) break;
        again = at;
      }
      if (at === newest) behind = false;
    }
    image[i] = child(again >= 0 ? nodes.parent[again] : above, frame);
    nodes.newest[image[i]] = isNew || again === newest ? image[i] : newest;
  }
  return inPreorder(profile, nodes, image);
}

/** A profile of the same samples at other nodes: those of `profile` are at `image`. */
function inPreorder(profile, nodes, image) {
  const { length } = nodes;
  const [first, next] = [new Int32Array(length + 1).fill(-1), new Int32Array(length).fill(-1)];
  // Place 0 is for roots.
  for (let node = length - 1; node >= 0; node--) {
    const at = nodes.parent[node] + 1;
    next[node] = first[at];
    first[at] = node;
  }
  const place = new Int32Array(length);
  const parent = new Int32Array(length);
  const frame = new Int32Array(length);
  let count = 0;
  for (let node = first[0]; node >= 0;) {
    place[node] = count;
    parent[count] = nodes.parent[node] < 0 ? -1 : place[nodes.parent[node]];
    frame[count++] = nodes.frame[node];
    let up = node;
    node = first[node + 1];
    for (; node < 0 && up >= 0; up = nodes.parent[up]) node = next[up];
  }
  const events = profile.head.events.map((event) => ({
    ...event, groups: event.groups.map((group) => ({ ...group, node: group.node.map((node) => place[image[node]]) })),
  }));
  return withEnds({ head: { ...profile.head, events }, count, parent, frame });
}
