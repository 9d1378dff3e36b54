// Reads an HTML file the way its own script does, and prints the trees and the table it would
// draw, one line a node: `node page.mjs FILE STACKS RANGE SCRIPT.js…`. STACKS: logical or physical. RANGE: all, or FROM-TO
// in ticks, of which only the table is printed; merged: stacks whose recursion is merged, as names, and their samples.

import { readFileSync } from "node:fs";
import vm from "node:vm";

const [file, stacks, range, ...scripts] = process.argv.slice(2);
const page = readFileSync(file, "utf8");
const [, encoding, text] =
  /<script type="text\/plain" id="profile" data-encoding="([a-z-]+)">([^<]*)<\/script>/.exec(page);
// Sums are kept often enough for ranges of small profiles to use them.
const [seldom, often] = ["FEWEST_BETWEEN = 32768", "FEWEST_BETWEEN = 4"];
const source = scripts.map((script) => readFileSync(script, "utf8")).join("\n").replace(seldom, often);
if (!source.includes(often)) throw new Error("sums are kept otherwise than this test knows");
// One script: what one file declares, the next one sees.
const parts = vm.runInThisContext(`"use strict";${source}
({ payloadOf, decode, withThreads, Weights, Keys, Tree, ROOT, tally, matchedShare,
  withoutRecursion: typeof withoutRecursion === "function" ? withoutRecursion : null })`);

const element = { textContent: text, dataset: { encoding } };
const decoded = parts.decode(await parts.payloadOf(element));
const profile = stacks === "logical" ? decoded : decoded.other;
const weights = new parts.Weights(profile);
const event = profile.head.events[profile.head.event];
weights.fill(event, () => true, profile.head.by_value);
const keys = new parts.Keys(profile, "method");

if (range === "merged") {
  const merged = parts.withoutRecursion(profile, keys, () => false);
  if (parts.withoutRecursion(merged, keys, () => false).count !== merged.count) throw new Error("merged twice is another");
  const after = new parts.Weights(merged);
  const mergedEvent = merged.head.events[merged.head.event];
  after.fill(mergedEvent, () => true, merged.head.by_value);
  // Depth goes and nothing else: each method keeps what it has, as do threads and lines.
  const [was, is] = [parts.tally(profile, weights, keys), parts.tally(merged, after, keys)];
  for (const [column, numbers] of Object.entries(was)) {
    numbers.forEach((number, key) => {
      if (number !== is[column][key]) throw new Error(`${column} of ${keys.name[key]}: ${is[column][key]}, not ${number}`);
    });
  }
  const ofFrames = ({ frame, count }, { ownSamples }) => {
    const sums = new Float64Array(profile.head.frames.name.length);
    for (let node = 0; node < count; node++) sums[frame[node]] += ownSamples[node];
    return String(sums);
  };
  if (ofFrames(profile, weights) !== ofFrames(merged, after)) throw new Error("lines have other samples");
  const stacks = new Map();
  for (let node = 0; node < merged.count; node++) {
    if (merged.parent[node] >= node || merged.end[node] <= node) throw new Error("no preorder");
    if (after.ownSamples[node] === 0) continue;
    const names = [];
    for (let at = node; at >= 0; at = merged.parent[at]) names.unshift(keys.name[keys.of[merged.frame[at]]]);
    stacks.set(names.join(";"), (stacks.get(names.join(";")) ?? 0) + after.ownSamples[node]);
  }
  for (const [names, samples] of stacks) console.log(`${names} ${samples}`);
  process.exit();
}

if (range !== "all") {
  const [from, to] = range.split("-").map(Number);
  weights.fill(event, () => true, profile.head.by_value, { from, to });
  const rows = parts.tally(profile, weights, keys);
  for (let key = 0; key < keys.count; key++) {
    if (rows.totalSamples[key] === 0) continue;
    console.log(["row", rows.ownSamples[key], Math.round(rows.ownValue[key]), rows.totalSamples[key],
      Math.round(rows.totalValue[key]), keys.name[key]].join(" "));
  }
  process.exit();
}

for (const reverse of [false, true]) {
  const tree = new parts.Tree(profile, weights, keys, reverse, "weight");
  const open = [parts.ROOT];
  while (open.length > 0) {
    const node = open.pop();
    tree.expand(node);
    const n = tree.nodes;
    const [own, weight] = profile.head.by_value
      ? [n.ownValue[node], n.value[node]] : [n.ownSamples[node], n.samples[node]];
    if (own !== n.own[node] || weight !== n.weight[node]) throw new Error(tree.name(node));
    console.log([reverse ? "callers" : "callees", n.depth[node], n.samples[node], n.value[node],
      n.ownSamples[node], n.ownValue[node], tree.name(node)].join(" "));
    const first = n.first[node];
    for (let child = first + n.count[node] - 1; child >= first; child--) open.push(child);
  }
}

// Without native code there are other boxes, and as much of everything.
weights.hide((kind) => profile.head.kinds[kind] !== "managed");
weights.fill(event, () => true, profile.head.by_value);
for (const reverse of [false, true]) {
  const tree = new parts.Tree(profile, weights, keys, reverse, "weight");
  const n = tree.nodes;
  let own = 0;
  const open = [parts.ROOT];
  while (open.length > 0) {
    const node = open.pop();
    tree.expand(node);
    own += tree.nodes.own[node];
    if (node !== parts.ROOT && !tree.isManaged(node)) throw new Error(`shown: ${tree.name(node)}`);
    for (let i = 0; i < n.count[node]; i++) open.push(n.first[node] + i);
  }
  if (own !== weights.all) throw new Error(`${own} of ${weights.all}`);
  console.log(["managed", reverse ? "callers" : "callees", n.samples[0], n.ownSamples[0]].join(" "));
}
weights.hide(() => false);
weights.fill(event, () => true, profile.head.by_value);

const rows = parts.tally(profile, weights, keys);
for (let key = 0; key < keys.count; key++) {
  if (rows.totalSamples[key] === 0) continue;
  console.log(["row", rows.ownSamples[key], rows.ownValue[key], rows.totalSamples[key],
    rows.totalValue[key], keys.name[key]].join(" "));
  // Searching for one method finds what its row says.
  const matches = Uint8Array.from(keys.name, (_, at) => at === key ? 1 : 0);
  const found = parts.matchedShare(profile, weights, keys, matches);
  if (found.weight !== rows.total[key]) throw new Error(`${keys.name[key]}: ${found.weight}`);
}

// With threads as roots: as much of every method, and a root for each thread.
for (const each of [true, false]) {
  const split = parts.withThreads(profile, each);
  const splitWeights = new parts.Weights(split);
  const splitEvent = split.head.events[split.head.event];
  splitWeights.fill(splitEvent, () => true, split.head.by_value);
  const splitKeys = new parts.Keys(split, "method");
  const tree = new parts.Tree(split, splitWeights, splitKeys, false, "weight");
  tree.expand(parts.ROOT);
  const n = tree.nodes;
  for (let node = n.first[0]; node < n.first[0] + n.count[0]; node++) {
    console.log([each ? "thread" : "threads", n.samples[node], n.value[node], tree.name(node)].join(" "));
  }
  const again = parts.tally(split, splitWeights, splitKeys);
  for (let key = 0; key < keys.count; key++) {
    if (rows.ownSamples[key] !== again.ownSamples[key] || rows.total[key] !== again.total[key]) {
      throw new Error(`${keys.name[key]}: ${again.total[key]} with threads, not ${rows.total[key]}`);
    }
  }
}
