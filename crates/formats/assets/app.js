// The page: what is chosen, and what a choice changes.

const by = (id) => document.getElementById(id);

class App {
  constructor(profile) {
    this.views = [profile, ...profile.other ? [profile.other] : []];
    this.original = profile;
    this.take(profile);
    this.graph = new Graph(by("graph"), by("space"), by("canvas"), by("mark"));
    this.tip = new Tip(by("tip"));
    this.table = new Table(by("table"), (key) => this.searchFor(this.keys.name[key], true));
    this.tab = "graph";
    this.byValue = profile.head.by_value;
    this.accepts = () => true;
    this.reverse = false;
    this.signatures = false;
    this.about = true;
    this.zooms = [];
    this.selected = -1;
    this.matches = null;
    this.part = -1;
    this.hits = [];
    this.hit = -1;
    this.setTheme(rememberedTheme() ?? matchMedia("(prefers-color-scheme: dark)").matches);
    this.fillControls();
    this.listen();
    this.setKeys();
    this.refill();
  }

  /** Shows `profile`: the original, or a form of it with the same events. */
  take(profile) {
    const at = this.event ? this.profile.head.events.indexOf(this.event) : profile.head.event;
    this.profile = profile;
    this.event = profile.head.events[at] ?? emptyEvent();
    this.weights = new Weights(profile);
    this.groups = new Groups(profile.head);
  }

  // What follows from what: keys and weights, then the tree, then the picture.

  setKeys() {
    this.keys = new Keys(this.profile, by("detail").value, this.signatures);
  }

  refill() {
    this.weights.fill(this.event, this.accepts, this.byValue);
    this.regrow();
  }

  regrow() {
    const path = this.tree && this.tree.reverse === this.reverse && this.tree.keys === this.keys
      ? this.tree.path(this.focus).slice(1).map((node) => this.tree.nodes.key[node])
      : [];
    this.tree = new Tree(this.profile, this.weights, this.keys, this.reverse, by("order").value);
    this.focus = this.tree.find(path);
    this.part = -1;
    this.zooms = [];
    this.select(-1);
    this.search();
    this.show(true);
  }

  show(toRoot) {
    this.graph.matches = this.matches;
    // First: its height is the graph's.
    showLegend(by("legend"), this, this.groups, this.palette);
    const isGraph = this.tab === "graph";
    by("graph").hidden = !isGraph;
    by("table").hidden = isGraph;
    // The table is of what is zoomed into, too.
    showPath(by("path"), this, (node) => this.zoom(node));
    if (isGraph) {
      this.graph.show(this.tree, this.focus, this.part, this.groups, this.palette, toRoot);
      this.graph.outline(this.selected);
    } else {
      this.table.show(this);
    }
    const empty = this.weights.allSamples === 0;
    by("message").hidden = !empty;
    by("message").textContent = "No samples here.";
  }

  zoom(node) {
    // What is drawn as one box because it is many is opened as siblings of its own.
    const part = isRest(node) ? restOf(node) : -1;
    if (isRest(node)) node = this.tree.nodes.parent[part];
    if (node < 0 || (node === this.focus && part === this.part)) return;
    this.zooms.push([this.focus, this.part]);
    this.setFocus(node, part);
  }

  back() {
    const isAll = this.focus === ROOT && this.part < 0;
    const before = this.zooms.pop() ?? (isAll ? null : [ROOT, -1]);
    if (before) this.setFocus(...before);
  }

  setFocus(node, part) {
    this.focus = node;
    this.part = part;
    this.tip.hide();
    this.select(-1);
    this.findHits();
    this.show(true);
  }

  select(node) {
    this.selected = node;
    this.graph.outline(node);
  }

  // Search.

  /** Sets `matches` by key from the search box; wrong expressions are taken literally. */
  search() {
    const text = this.searched = by("search").value;
    const out = by("matched");
    by("search").classList.remove("literal");
    if (text === "") {
      this.matches = null;
      out.textContent = "";
      this.findHits();
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
    this.matches = Uint8Array.from(this.keys.name, (name) => expression.test(name) ? 1 : 0);
    const { weight, samples } = matchedShare(this.profile, this.weights, this.keys, this.matches);
    const methods = this.matches.reduce((sum, hit) => sum + hit, 0);
    out.textContent = `${percent(weight, this.weights.all)} matched` +
      (isLiteral ? " as plain text (not a valid expression)" : "");
    out.title = `${samples.toLocaleString("en")} samples in stacks with one of ${methods} ` +
      (methods === 1 ? "matching frame" : "matching frames");
    this.findHits();
  }

  /** The boxes that match, heaviest first, to go through one by one. */
  findHits() {
    this.hits = this.matches ? this.tree.matching(this.matches, this.focus, MOST_HITS) : [];
    this.hit = -1;
    this.showHits();
  }

  showHits() {
    const { length } = this.hits;
    by("hits").hidden = length === 0;
    const of = length === MOST_HITS ? `${length}+` : length;
    by("hit").textContent = this.hit < 0 ? `${of}` : `${this.hit + 1} of ${of}`;
  }

  /** Shows the next match, `by` 1 or -1; zooms where it is too small to be seen. */
  goToHit(step) {
    const { hits } = this;
    if (hits.length === 0) return;
    this.hit = this.hit < 0 ? (step > 0 ? 0 : hits.length - 1) : (this.hit + step + hits.length) % hits.length;
    const node = hits[this.hit];
    if (this.tab !== "graph") this.setTab("graph");
    // Not by `zoom`: that would look for matches below.
    const { nodes } = this.tree;
    const seen = (this.graph.layout?.tree === this.tree && this.focus === this.graph.layout.focus)
      ? this.graph.layout.widthOf(node) : 0;
    if (seen < WIDE_ENOUGH) {
      // The farthest caller under which it can be seen; itself where it is alone there.
      let top = node;
      for (let at = nodes.parent[node]; at >= 0; at = nodes.parent[at]) {
        if (nodes.weight[node] * this.graph.width < WIDE_ENOUGH * nodes.weight[at]) break;
        top = at;
      }
      this.zooms.push([this.focus, this.part]);
      this.focus = top;
      this.part = -1;
    }
    this.show(false);
    this.pointOut(node);
    this.showHits();
  }

  searchFor(name, toGraph) {
    by("search").value = `^${literal(name)}$`;
    if (toGraph) this.setTab("graph");
    this.search();
    this.show(false);
    if (toGraph) this.goToHit(1);
  }

  // Controls.

  fillControls() {
    const { head } = this.profile;
    document.title = head.title;
    // Folders are for the tooltip.
    by("title").textContent = head.title.replace(/(^| )\/[^ ]*\/(?=[^ ])/g, "$1");
    by("facts").textContent = by("facts").title = facts(head);
    by("title").title = head.title;
    by("honest").textContent = head.honest;
    by("notes").replaceChildren(...head.notes.map((note) => make("p", {}, `Note: ${note}`)));
    const option = (value, text) => make("option", { value }, text);
    by("event").replaceChildren(...head.events.map((event, at) =>
      option(at, `${event.name} (${event.samples.toLocaleString("en")})`)));
    by("event").value = head.event;
    by("event-box").hidden = head.events.length < 2;
    by("process").replaceChildren(option("", "all"),
      ...head.processes.map((process, at) => option(at, process.name)));
    by("process-box").hidden = head.processes.length < 2;
    by("stacks").replaceChildren(...(head.views?.names ?? []).map((name, at) =>
      option(at, name === "logical" ? "async: who awaits" : "async: thread's stack")));
    by("stacks").value = 0;
    by("stacks").hidden = !head.views;
    by("signatures").hidden = !head.frames.signature.some((signature) => signature > 0);
    this.fillMeasure();
    this.fillThreads();
    this.fillAbout();
  }

  fillMeasure() {
    const { unit, name } = this.event;
    const word = { bytes: "bytes", nanoseconds: `${name} time`, count: `${name}s` }[unit];
    const choices = hasValue(this.event)
      ? [["value", word], ["samples", "samples"]]
      : [["samples", "samples"]];
    by("measure").replaceChildren(...choices.map(([id, text]) => make("option", { value: id }, text)));
    if (choices.length === 1) this.byValue = false;
    by("measure").value = this.byValue ? "value" : "samples";
  }

  /** Threads that have samples, most first; those of one name also as one choice. */
  fillThreads() {
    const { head } = this.profile;
    const process = by("process").value;
    const threads = this.event.groups
      .map((group) => ({ ...head.threads[group.thread], id: group.thread, samples: group.allSamples }))
      .filter((thread) => process === "" || thread.process === Number(process))
      .sort((a, b) => b.samples - a.samples || a.tid - b.tid);
    const names = new Map();
    for (const { name, samples } of threads) {
      const known = names.get(name) ?? { count: 0, samples: 0 };
      known.count++;
      known.samples += samples;
      names.set(name, known);
    }
    const shared = [...names].filter(([, known]) => known.count > 1)
      .sort((a, b) => b[1].samples - a[1].samples);
    const choices = [make("option", { value: "" }, `all (${threads.length})`)];
    if (shared.length > 0) {
      choices.push(make("optgroup", { label: "By name" }, ...shared.map(([name, known]) =>
        make("option", { value: `name:${name}` },
          `${name}: ${known.count} threads, ${known.samples.toLocaleString("en")} samples`))));
    }
    choices.push(make("optgroup", { label: "Threads" }, ...threads.map((thread) =>
      make("option", { value: `id:${thread.id}` },
        `${thread.name} (tid ${thread.tid}), ${thread.samples.toLocaleString("en")} samples`))));
    const chosen = by("thread").value;
    by("thread").replaceChildren(...choices);
    by("thread").value = chosen;
    if (by("thread").value !== chosen) by("thread").value = "";
    by("thread-box").hidden = threads.length < 2 && head.threads.length < 2;
    by("roots").hidden = by("thread-box").hidden;
  }

  setFilter() {
    const { threads } = this.profile.head;
    const process = by("process").value;
    const thread = by("thread").value;
    this.accepts = (id) =>
      (process === "" || threads[id].process === Number(process)) &&
      (thread === "" || (thread.startsWith("id:") ? thread === `id:${id}`
        : thread === `name:${threads[id].name}`));
    this.refill();
  }

  /** Shows who awaits async methods, or what was on the threads' stacks. */
  setStacks() {
    this.original = this.views[Number(by("stacks").value)];
    this.setRoots();
  }

  /** Puts threads at the roots, or not. */
  setRoots() {
    const roots = by("roots").value;
    this.take(roots === "merged" ? this.original : withThreads(this.original, roots === "each"));
    this.setKeys();
    this.setCode();
  }

  /** Hides kinds of code. What says that a stack is not whole stays. */
  setCode() {
    const { kinds } = this.profile.head;
    const all = by("code").value === "all";
    const shown = ["managed", "pseudo", "async", "thread", "detail"];
    this.weights.hide((kind) => (!all && !shown.includes(kinds[kind])) ||
      (!this.about && kinds[kind] === "detail"));
    this.refill();
  }

  /** Shows what events are about, or not. */
  toggleAbout() {
    this.about = !this.about;
    by("about").setAttribute("aria-pressed", this.about);
    this.setCode();
  }

  /** Only some events are about something. */
  fillAbout() {
    const { head, frame } = this.profile;
    const about = head.kinds.indexOf("detail");
    by("about").hidden = !this.event.groups.some((group) =>
      group.node.some((node) => head.frames.kind[frame[node]] === about));
  }

  setTab(tab) {
    this.tab = tab;
    by("tab-graph").setAttribute("aria-selected", tab === "graph");
    by("tab-table").setAttribute("aria-selected", tab === "table");
    this.tip.hide();
  }

  setTheme(dark) {
    this.dark = dark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    by("theme").textContent = dark ? "Light" : "Dark";
    this.palette = new Palette(dark);
  }

  toggleTheme() {
    this.setTheme(!this.dark);
    rememberTheme(this.dark);
    this.show(false);
  }

  toggleReverse() {
    this.reverse = !this.reverse;
    by("reverse").setAttribute("aria-pressed", this.reverse);
    this.setTab("graph");
    this.regrow();
  }

  /** Tells overloads apart, or not. */
  toggleSignatures() {
    this.signatures = !this.signatures;
    by("signatures").setAttribute("aria-pressed", this.signatures);
    this.setKeys();
    this.regrow();
  }

  toggleIcicle() {
    this.graph.icicle = !this.graph.icicle;
    by("icicle").setAttribute("aria-pressed", this.graph.icicle);
    this.setTab("graph");
    this.show(true);
  }

  listen() {
    const on = (id, event, action) => by(id).addEventListener(event, action);
    on("tab-graph", "click", () => { this.setTab("graph"); this.show(true); });
    on("tab-table", "click", () => { this.setTab("table"); this.show(false); });
    on("event", "change", () => {
      this.event = this.profile.head.events[Number(by("event").value)];
      this.byValue = hasValue(this.event);
      this.fillMeasure();
      this.fillThreads();
      this.fillAbout();
      this.setFilter();
    });
    on("process", "change", () => { this.fillThreads(); this.setFilter(); });
    on("thread", "change", () => this.setFilter());
    on("measure", "change", () => { this.byValue = by("measure").value === "value"; this.refill(); });
    on("detail", "change", () => { this.setKeys(); this.regrow(); });
    on("order", "change", () => this.regrow());
    on("code", "change", () => this.setCode());
    on("roots", "change", () => this.setRoots());
    on("stacks", "change", () => this.setStacks());
    on("about", "click", () => this.toggleAbout());
    on("reverse", "click", () => this.toggleReverse());
    on("signatures", "click", () => this.toggleSignatures());
    on("icicle", "click", () => this.toggleIcicle());
    on("theme", "click", () => this.toggleTheme());
    on("help-button", "click", () => by("help").showModal());
    let waiting = 0;
    on("search", "input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => { this.search(); this.show(false); }, 80);
    });
    on("graph", "pointermove", (e) => this.hover(e));
    on("graph", "pointerleave", () => { this.tip.hide(); this.select(-1); });
    on("graph", "scroll", () => this.tip.hide());
    on("graph", "click", (e) => {
      const node = this.nodeAt(e);
      if (node !== -1) this.zoom(node);
    });
    document.addEventListener("keydown", (e) => this.key(e));
    new ResizeObserver(() => { if (this.tab === "graph") this.show(false); }).observe(by("graph"));
    on("next", "click", () => this.goToHit(1));
    on("previous", "click", () => this.goToHit(-1));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (e) => {
      if (rememberedTheme() !== null) return;
      this.setTheme(e.matches);
      this.show(false);
    });
  }

  nodeAt(e) {
    const box = by("graph").getBoundingClientRect();
    return this.graph.hit(e.clientX - box.left, e.clientY - box.top);
  }

  hover(e) {
    const node = this.nodeAt(e);
    by("graph").style.cursor = node !== -1 ? "pointer" : "default";
    if (node === -1) {
      this.tip.hide();
      this.select(-1);
      return;
    }
    if (node !== this.selected) this.select(node);
    this.tip.show(this, node, e.clientX, e.clientY);
  }

  key(e) {
    if (by("help").open) return;
    const find = e.key === "/" || (e.key === "f" && (e.ctrlKey || e.metaKey));
    const field = e.target instanceof HTMLInputElement || e.target instanceof HTMLSelectElement;
    if (e.key === "Escape") {
      if (e.target === by("search") || this.matches) {
        by("search").value = "";
        by("search").blur();
        this.search();
        this.show(false);
      } else {
        this.back();
      }
      return;
    }
    if (e.key === "Enter" && e.target === by("search")) {
      this.goToHit(e.shiftKey ? -1 : 1);
      return;
    }
    if (find && !(field && e.key === "/")) {
      by("search").focus();
      by("search").select();
      e.preventDefault();
      return;
    }
    if (field || e.ctrlKey || e.metaKey || e.altKey) return;
    const actions = {
      r: () => this.toggleReverse(),
      i: () => this.toggleIcicle(),
      m: () => {
        by("code").value = by("code").value === "all" ? "managed" : "all";
        this.setCode();
      },
      a: () => { if (!by("about").hidden) this.toggleAbout(); },
      l: () => {
        if (by("stacks").hidden) return;
        by("stacks").value = 1 - by("stacks").value;
        this.setStacks();
      },
      d: () => this.toggleTheme(),
      t: () => { this.setTab(this.tab === "table" ? "graph" : "table"); this.show(true); },
      s: () => {
        if (this.selected > ROOT) this.searchFor(this.tree.name(this.selected), false);
      },
      n: () => this.goToHit(1),
      N: () => this.goToHit(-1),
      "?": () => by("help").showModal(),
      Backspace: () => this.back(),
      Home: () => this.zoom(ROOT),
      Enter: () => {
        // A button or a row has its own Enter.
        if (e.target === document.body || e.target === by("graph")) this.zoom(this.selected);
      },
      ArrowUp: () => this.step(this.graph.icicle ? "caller" : "callee"),
      ArrowDown: () => this.step(this.graph.icicle ? "callee" : "caller"),
      ArrowLeft: () => this.step("before"),
      ArrowRight: () => this.step("behind"),
    };
    const action = this.tab === "graph" || ["t", "d", "?", "r", "i", "m", "a", "l"].includes(e.key)
      ? actions[e.key] : undefined;
    if (!action) return;
    if (e.key !== "Enter") e.preventDefault();
    action();
  }

  /** Moves the selection by one box. */
  step(where) {
    const { nodes } = this.tree;
    const layout = this.graph.layout;
    if (this.selected === -1) {
      this.pointOut(this.focus);
      return;
    }
    const at = layout.where(this.selected);
    if (!at) return;
    let next = -1;
    if (where === "caller") {
      next = nodes.parent[isRest(this.selected) ? restOf(this.selected) : this.selected];
    } else if (where === "callee") {
      if (isRest(this.selected)) return;
      const first = nodes.first[this.selected];
      for (let c = first; first >= 0 && c < first + nodes.count[this.selected]; c++) {
        if (layout.where(c) && (next < 0 || nodes.weight[c] > nodes.weight[next])) next = c;
      }
      if (at.row < layout.focusRow) next = layout.boxes.node[layout.rowStart[at.row + 1]];
    } else {
      const box = at.box + (where === "before" ? -1 : 1);
      if (box >= layout.rowStart[at.row] && box < layout.rowEnd(at.row)) {
        next = layout.boxes.node[box];
      }
    }
    if (next !== -1) this.pointOut(next);
  }

  pointOut(node) {
    this.graph.reveal(node);
    this.select(node);
    const mark = by("mark").getBoundingClientRect();
    this.tip.show(this, node, mark.left + Math.min(mark.width / 2, 200), mark.bottom);
  }
}

/** As many matches are gone through one by one. */
const MOST_HITS = 1000;
/** A match narrower than this is zoomed to, pixels. */
const WIDE_ENOUGH = 12;
const THEME = "sidewalk-theme";

/** Dark or not, as chosen before on this machine; null where nothing was, or a browser keeps nothing. */
function rememberedTheme() {
  try {
    const chosen = localStorage.getItem(THEME);
    return chosen === null ? null : chosen === "dark";
  } catch {
    return null;
  }
}

function rememberTheme(dark) {
  try {
    localStorage.setItem(THEME, dark ? "dark" : "light");
  } catch {
    // The choice holds as long as the page.
  }
}

function emptyEvent() {
  return { name: "cpu", unit: "nanoseconds", groups: [], samples: 0, value: 0 };
}

function literal(text) {
  return text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
}

function facts(head) {
  const parts = [];
  if (head.start > 0) {
    parts.push(new Date(head.start).toISOString().replace("T", " ").replace(/\..*/, " UTC"));
  }
  parts.push(amount(head.duration, "nanoseconds"));
  if (head.interval > 0) parts.push(`every ${amount(head.interval, "nanoseconds")}`);
  if (head.runtimes.length > 0) parts.push(`.NET ${head.runtimes.join(", ")}`);
  if (head.processes.length > 1) parts.push(`${head.processes.length} processes`);
  parts.push(`${head.threads.length} ${head.threads.length === 1 ? "thread" : "threads"}`);
  return parts.join(" · ");
}

payloadOf(by("profile")).then((bytes) => {
  const app = new App(decode(bytes));
  document.documentElement.dataset.ready = "true";
  return app;
}).catch((error) => {
  by("message").hidden = false;
  by("message").textContent = `The profile cannot be shown: ${error.message}`;
  document.documentElement.dataset.ready = "error";
});
