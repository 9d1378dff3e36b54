// The profile with threads as the roots of its stacks.

/**
 * `profile` with a frame below every stack that says on which thread it was: `each` thread has
 * its own, or all of one `name` share theirs. The stacks of each thread are nodes of their own;
 * everything else is shared with `profile`.
 */
function withThreads(profile, each) {
  const { head } = profile;
  const column = head.frames;
  const frames = Object.fromEntries(Object.entries(column).map(([name, list]) => [name, [...list]]));
  const strings = [...head.strings];
  const kinds = [...head.kinds, "thread"];
  const groups = new Map();
  head.events.forEach((event, at) => event.groups.forEach((group) => {
    if (!groups.has(group.thread)) groups.set(group.thread, []);
    groups.get(group.thread).push([at, group]);
  }));

  const parents = [];
  const nodeFrames = [];
  const events = head.events.map((event) => ({ ...event, groups: [] }));
  // By node: its number among the current thread's nodes, where `mark` says that it is of them.
  const place = new Int32Array(profile.count);
  const mark = new Int32Array(profile.count).fill(-1);
  for (const [thread, own] of groups) {
    const used = [];
    for (const [, group] of own) {
      for (const leaf of group.node) {
        for (let node = leaf; node >= 0 && mark[node] !== thread; node = profile.parent[node]) {
          mark[node] = thread;
          used.push(node);
        }
      }
    }
    // A part of a preorder that has all callers is a preorder.
    const nodes = Int32Array.from(used).sort();
    const root = parents.length;
    parents.push(-1);
    nodeFrames.push(frames.name.length);
    frames.name.push(strings.length);
    frames.kind.push(kinds.length - 1);
    for (const name of ["tier", "module", "file", "line", "inlined", "clr", "text", "signature"]) frames[name].push(0);
    strings.push(threadLabel(head, thread, each));
    for (const node of nodes) {
      place[node] = parents.length;
      const parent = profile.parent[node];
      parents.push(parent < 0 ? root : place[parent]);
      nodeFrames.push(profile.frame[node]);
    }
    for (const [at, group] of own) {
      events[at].groups.push({ ...group, node: group.node.map((node) => place[node]) });
    }
  }

  return withEnds({
    head: { ...head, frames, strings, kinds, events },
    count: parents.length,
    parent: Int32Array.from(parents),
    frame: Int32Array.from(nodeFrames),
  });
}

/** What to call a thread, with its process where there are several. */
function threadLabel(head, id, each) {
  const thread = head.threads[id];
  const name = each ? `${thread.name} (tid ${thread.tid})` : thread.name;
  return head.processes.length > 1 ? `${head.processes[thread.process].name}: ${name}` : name;
}
