// Searching: what matches, how much that is, and from one match to the next.

/** As many matches are gone through one by one. */
const MOST_HITS = 1000;
/** A match narrower than this is zoomed to, pixels. */
const WIDE_ENOUGH = 12;

/** Sets `matches` by key from the search box; wrong expressions are taken literally. */
function search(app) {
  const text = app.searched = by("search").value;
  const out = by("matched");
  by("search").classList.remove("literal");
  if (text === "") {
    app.matches = null;
    out.textContent = "";
    findHits(app);
    return;
  }
  const flags = /\p{Lu}/u.test(text.replace(/\\./g, "")) ? "" : "i";
  let expression;
  let isLiteral = false;
  try {
    expression = new RegExp(text, flags);
  } catch {
    expression = new RegExp(literal(text), flags);
    isLiteral = true;
    by("search").classList.add("literal");
  }
  app.matches = Uint8Array.from(app.keys.name, (name) => expression.test(name) ? 1 : 0);
  const { weight, samples } = matchedShare(app.profile, app.weights, app.keys, app.matches);
  const methods = app.matches.reduce((sum, hit) => sum + hit, 0);
  out.textContent = `${percent(weight, app.weights.all)} matched` +
    (isLiteral ? " as plain text (not a valid expression)" : "");
  out.title = `${samples.toLocaleString("en")} samples in stacks with one of ${methods} ` +
    (methods === 1 ? "matching frame" : "matching frames");
  findHits(app);
}

/** The boxes that match, heaviest first, to go through one by one. */
function findHits(app) {
  app.hits = app.matches ? app.tree.matching(app.matches, app.focus, MOST_HITS) : [];
  app.hit = -1;
  showHits(app);
}

function showHits(app) {
  const { length } = app.hits;
  by("hits").hidden = length === 0;
  const of = length === MOST_HITS ? `${length}+` : length;
  by("hit").textContent = app.hit < 0 ? `${of}` : `${app.hit + 1} of ${of}`;
}

/** Shows the next match, `by` 1 or -1; zooms where it is too small to be seen. */
function goToHit(app, step) {
  const { hits } = app;
  if (hits.length === 0) return;
  app.hit = app.hit < 0 ? (step > 0 ? 0 : hits.length - 1) : (app.hit + step + hits.length) % hits.length;
  const node = hits[app.hit];
  if (app.tab !== "graph") app.setTab("graph");
  // Not by `zoom`: that would look for matches below.
  const { nodes } = app.tree;
  const seen = (app.graph.layout?.tree === app.tree && app.focus === app.graph.layout.focus)
    ? app.graph.layout.widthOf(node) : 0;
  if (seen < WIDE_ENOUGH) {
    // The farthest caller under which it can be seen; itself where it is alone there.
    let top = node;
    for (let at = nodes.parent[node]; at >= 0; at = nodes.parent[at]) {
      if (nodes.weight[node] * app.graph.width < WIDE_ENOUGH * nodes.weight[at]) break;
      top = at;
    }
    app.zooms.push([app.focus, app.part]);
    app.focus = top;
    app.part = -1;
  }
  app.show(false);
  app.pointOut(node);
  showHits(app);
}

function searchFor(app, name, toGraph) {
  by("search").value = `^${literal(name)}$`;
  if (toGraph) app.setTab("graph");
  search(app);
  app.show(false);
  if (toGraph) goToHit(app, 1);
}

function literal(text) {
  return text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
}
