// The page: what is chosen, and what a choice changes.

const by = (id) => document.getElementById(id);

class App {
  constructor(profile) {
    this.views = [profile, ...profile.other ? [profile.other] : []];
    this.original = profile;
    this.take(profile);
    this.graph = new Graph(by("graph"), by("space"), by("canvas"), by("mark"));
    this.tip = new Tip(by("tip"));
    this.table = new Table(by("table"), (key) => this.searchFor(this.keys.name[key], true), (key) => this.openMethod(key));
    this.method = new MethodView(this);
    this.time = new Time(profile.head);
    this.strip = new Strip(by("strip"), by("strip-canvas"), this.time,
      (range) => this.setRange(range), (thread) => this.pickThread(thread));
    // What all views are of; null: all the time.
    this.range = null;
    // The method of the view of one, by key, and those before it.
    this.subject = -1;
    this.subjects = [];
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
    fillControls(this);
    // Times of two recordings beside each other say nothing of both.
    by("time").hidden = Boolean(profile.head.sides);
    this.usual = Object.fromEntries(Object.values(LINKED).map((id) => [id, by(id).value]));
    this.usual.event = this.event.name;
    this.listen();
    this.setKeys();
    if (location.hash.length > 1) openLink(this, location.hash.slice(1));
    else this.refill();
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

  /** Other frames are one than before. A method that is shown is another key then. */
  changeKeys() {
    const name = this.subject >= 0 ? this.keys.name[this.subject] : null;
    this.setKeys();
    this.subject = name === null ? -1 : this.keys.name.indexOf(name);
    this.subjects = [];
    // Recursion is merged by keys.
    this.setCode();
  }

  refill() {
    this.weights.fill(this.event, this.accepts, this.byValue, this.range);
    this.recount = true;
    this.regrow();
  }

  /** Shows a part of the time; null: all of it. */
  setRange(range) {
    this.range = range && range.to > range.from ? range : null;
    this.weights.fill(this.event, this.accepts, this.byValue, this.range);
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
    showRange(this);
    const isGraph = this.tab === "graph";
    by("graph").hidden = !isGraph;
    by("table").hidden = this.tab !== "table";
    by("method").hidden = this.tab !== "method";
    by("path").hidden = this.tab === "method";
    // Before the graph, whose height depends on it.
    if (!by("time").hidden) this.strip.show(this, this.recount);
    this.recount = false;
    // The table is of what is zoomed into, too.
    showPath(by("path"), this, (node) => this.zoom(node));
    if (isGraph) {
      this.graph.show(this.tree, this.focus, this.part, this.groups, this.palette, toRoot);
      this.graph.outline(this.selected);
    } else if (this.tab === "table") {
      this.table.show(this);
    } else {
      this.method.show(this);
    }
    const empty = this.weights.allSamples === 0;
    by("message").hidden = !empty;
    by("message").textContent = this.range ? "No samples in this range of time." : "No samples here.";
    keepLink(this);
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

  /** Shows who calls a method and what it calls. */
  openMethod(key) {
    if (this.tab === "method" && this.subject >= 0 && this.subject !== key) this.subjects.push(this.subject);
    this.subject = key;
    this.setTab("method");
    this.show(false);
  }

  /** Back to the method before, or to the graph. */
  closeMethod() {
    const before = this.subjects.pop();
    if (before === undefined) this.setTab("graph");
    else this.subject = before;
    this.show(false);
  }

  /** The key of what is selected: a box, a row, else the method that is shown; -1 where nothing is. */
  get selectedKey() {
    if (this.tab === "graph") return this.selected > ROOT ? this.tree.nodes.key[this.selected] : -1;
    return this.tab === "table" ? this.table.key : this.subject;
  }

  openSelected() {
    const key = this.selectedKey;
    this.tip.hide();
    if (key >= 0) {
      this.openMethod(key);
    } else {
      this.setTab("method");
      this.show(false);
    }
  }

  copySelected() {
    const key = this.selectedKey;
    if (key >= 0) copy(this.keys.name[key]);
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

  /** Shows the event at a place of the head's list; the filters are to be set behind this. */
  takeEvent(at) {
    this.event = this.profile.head.events[at];
    this.byValue = hasValue(this.event);
    fillMeasure(this);
    fillThreads(this);
    fillAbout(this);
  }

  /** Shows one thread alone, or all again. */
  pickThread(thread) {
    const value = `id:${thread}`;
    by("thread").value = by("thread").value === value ? "" : value;
    this.setFilter();
  }

  setLane(lane) {
    by("lane").value = this.strip.lane = lane;
    this.recount = true;
    this.show(false);
  }

  setClock(wall) {
    this.time.wall = wall;
    by("clock").setAttribute("aria-pressed", wall);
  }

  /** A range out of the two fields. */
  typeRange() {
    const at = (id, otherwise) => by(id).value.trim() === "" ? otherwise : this.time.parse(by(id).value);
    const [from, to] = [at("from", 0), at("to", this.time.end)];
    const wrong = from === null || to === null || from >= to;
    by("range").classList[wrong ? "add" : "remove"]("wrong");
    if (!wrong) this.setRange(from === 0 && to === this.time.end ? null : { from, to });
  }

  setFilter(refills = true) {
    const { threads } = this.profile.head;
    const process = by("process").value;
    const thread = by("thread").value;
    this.accepts = (id) =>
      (process === "" || threads[id].process === Number(process)) &&
      (thread === "" || (thread.startsWith("id:") ? thread === `id:${id}`
        : thread === `name:${threads[id].name}`));
    if (refills) this.refill();
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
    const shown = ["managed", "pseudo", "async", "thread", "detail"];
    const hides = {
      all: () => false, folded: () => false,
      runtime: (kind) => kind === "runtime" || kind === "stub",
      managed: (kind) => !shown.includes(kind),
    }[by("code").value];
    const folds = (kind) => by("code").value === "folded" && ["runtime", "stub", "native"].includes(kind);
    this.weights.hide((kind) => hides(kinds[kind]) || (!this.about && kinds[kind] === "detail"),
      (kind) => folds(kinds[kind]), by("recursion").value === "merged" ? this.keys : null);
    this.weights.only(Number(by("runtime").value));
    this.refill();
  }

  chooseCode(code) {
    by("code").value = code;
    this.setCode();
  }

  /** Shows what events are about, or not. */
  toggleAbout() {
    this.press("about", !this.about);
    this.setCode();
  }

  setTab(tab) {
    this.tab = tab;
    by("tab-graph").setAttribute("aria-selected", tab === "graph");
    by("tab-table").setAttribute("aria-selected", tab === "table");
    by("tab-method").setAttribute("aria-selected", tab === "method");
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

  /** A switch is on or off. */
  press(name, on) {
    this[name] = on;
    by(name).setAttribute("aria-pressed", on);
  }

  toggleReverse() {
    this.press("reverse", !this.reverse);
    this.setTab("graph");
    this.regrow();
  }

  /** Tells overloads apart, or not. */
  toggleSignatures() {
    this.press("signatures", !this.signatures);
    this.changeKeys();
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
    on("tab-method", "click", () => this.openSelected());
    on("event", "change", () => { this.takeEvent(Number(by("event").value)); this.setFilter(); });
    on("runtime", "change", () => this.setCode());
    on("recursion", "change", () => this.setCode());
    on("lane", "change", () => this.setLane(by("lane").value));
    on("clock", "click", () => { this.setClock(!this.time.wall); this.show(false); });
    on("from", "change", () => this.typeRange());
    on("to", "change", () => this.typeRange());
    for (const id of ["from", "to"]) on(id, "focus", () => by(id).select());
    on("range-clear", "click", () => this.setRange(null));
    on("range-zoom", "click", () => this.strip.zoom(this.range));
    on("process", "change", () => { fillThreads(this); this.setFilter(); });
    on("thread", "change", () => this.setFilter());
    on("measure", "change", () => { this.byValue = by("measure").value === "value"; this.refill(); });
    on("detail", "change", () => this.changeKeys());
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
    on("graph", "contextmenu", (e) => {
      const node = e.button === 2 ? this.nodeAt(e) : this.selected;
      if (node > ROOT) openMenu(this, this.tree.nodes.key[node], e);
    });
    document.addEventListener("keydown", (e) => pressed(this, e));
    // The address was changed by hand, or a link to this page was followed.
    window.addEventListener("hashchange", () => {
      if (location.hash.slice(1) !== (this.link ?? "")) openLink(this, location.hash.slice(1));
    });
    new ResizeObserver(() => { if (this.tab !== "table") this.show(false); }).observe(by("content"));
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

  /** Moves the selection by one box. */
  step(where) {
    const next = this.selected === -1 ? this.focus : this.graph.beside(this.selected, where);
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

payloadOf(by("profile")).then((bytes) => {
  const app = new App(decode(bytes));
  performance.mark("ready");
  document.documentElement.dataset.ready = "true";
  return app;
}).catch((error) => {
  by("message").hidden = false;
  by("message").textContent = `The profile cannot be shown: ${error.message}`;
  document.documentElement.dataset.ready = "error";
});
