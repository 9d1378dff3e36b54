// The page: what is chosen, and what a choice changes.

const by = (id) => document.getElementById(id);

class App {
  constructor(profile) {
    this.views = [profile, ...profile.other ? [profile.other] : []];
    this.original = profile;
    // With threads at the roots or without, before recursion is merged.
    this.whole = profile;
    this.take(profile);
    this.graph = new Graph(by("graph"), by("space"), by("canvas"), by("mark"));
    this.tip = new Tip(by("tip"));
    this.table = new Table(by("table"), (key) => searchFor(this, this.keys.name[key], true), (key) => this.openMethod(key));
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
    this.takeRange(range);
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
    search(this);
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
    findHits(this);
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

  /** The key of what is selected: a box, a row, a caller, else the method that is shown; -1 where nothing is. */
  get selectedKey() {
    if (this.tab === "graph") return this.selected > ROOT ? this.tree.nodes.key[this.selected] : -1;
    if (this.tab === "table") return this.table.key;
    const half = this.method.focused;
    return half && half.selected > ROOT ? half.tree.nodes.key[half.selected] : this.subject;
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

  // Controls.

  /** What all views are to be of; they are to be filled behind this. */
  takeRange(range) {
    this.range = range && range.to > range.from ? range : null;
    showGrowth(this);
  }

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
    showGrowth(this);
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
    this.whole = roots === "merged" ? this.original : withThreads(this.original, roots === "each");
    this.take(this.whole);
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
    const isHidden = (kind) => hides(kinds[kind]) || (!this.about && kinds[kind] === "detail");
    const profile = by("recursion").value === "merged" ? withoutRecursion(this.whole, this.keys, isHidden) : this.whole;
    if (profile !== this.profile) this.take(profile);
    this.weights.hide(isHidden, (kind) => folds(kinds[kind]));
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
      waiting = setTimeout(() => { search(this); this.show(false); }, 80);
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
    // Browsers make this of the keyboard's menu key too, behind the key itself.
    document.addEventListener("contextmenu", (e) => { if (!by("menu").hidden) e.preventDefault(); });
    // The address was changed by hand, or a link to this page was followed.
    window.addEventListener("hashchange", () => {
      if (location.hash.slice(1) !== (this.link ?? "")) openLink(this, location.hash.slice(1));
    });
    new ResizeObserver(() => { if (this.tab !== "table") this.show(false); }).observe(by("content"));
    on("next", "click", () => goToHit(this, 1));
    on("previous", "click", () => goToHit(this, -1));
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

function emptyEvent() {
  return { name: "cpu", unit: "nanoseconds", groups: [], samples: 0, value: 0 };
}

/** From so many nodes on it is felt that a script is slow until it has run some times. */
const MANY_NODES = 50000;

/**
 * Does what a new range takes before one is asked for, while the browser has nothing else to do: the first times take several
 * times as long. Nothing that is shown changes.
 */
function warmUp(app) {
  if (!window.requestIdleCallback || app.profile.count < MANY_NODES) return;
  let left = 2;
  const rehearse = () => {
    const { profile, weights, keys, time, event, accepts, byValue } = app;
    weights.fill(event, accepts, byValue, { from: time.end / 3, to: time.end / 2 });
    new Layout(new Tree(profile, weights, keys, false, "weight"), ROOT, -1, innerWidth);
    weights.fill(event, accepts, byValue, app.range);
    if (--left > 0) window.requestIdleCallback(rehearse);
    else performance.mark("warm");
  };
  window.requestIdleCallback(rehearse);
}

payloadOf(by("profile")).then((bytes) => {
  const app = new App(decode(bytes));
  performance.mark("ready");
  document.documentElement.dataset.ready = "true";
  warmUp(app);
}).catch((error) => {
  by("message").hidden = false;
  by("message").textContent = `The profile cannot be shown: ${error.message}`;
  document.documentElement.dataset.ready = "error";
});
