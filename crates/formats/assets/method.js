// One method: who calls it, what it calls, and on which of its lines the time is.

/** Half of the sandwich: the tree of callers, or that of callees, with the method as its root. */
class Half {
  constructor(reverse, container, space, canvas, mark, told) {
    this.reverse = reverse;
    this.container = container;
    this.told = told;
    this.graph = new Graph(container, space, canvas, mark);
    // Callers grow upwards from the method, callees downwards.
    this.graph.icicle = !reverse;
    this.selected = -1;
    this.part = -1;
    container.addEventListener("pointermove", (e) => this.hover(e));
    container.addEventListener("pointerleave", () => { told.tip.hide(); this.select(-1); });
    container.addEventListener("click", (e) => this.take(this.nodeAt(e)));
    container.addEventListener("contextmenu", (e) => {
      const node = e.button === 2 ? this.nodeAt(e) : this.selected;
      if (node > ROOT) openMenu(told, this.tree.nodes.key[node], e);
    });
    container.addEventListener("keydown", (e) => this.key(e));
    container.addEventListener("scroll", () => told.tip.hide());
  }

  show(app, key) {
    this.tree = new Tree(app.profile, app.weights, app.keys, this.reverse, by("order").value, key);
    this.part = -1;
    this.draw(app, true);
  }

  draw(app, toRoot) {
    this.graph.matches = app.matches;
    this.graph.show(this.tree, ROOT, this.part, app.groups, app.palette, toRoot);
    this.select(-1);
  }

  nodeAt(e) {
    const box = this.container.getBoundingClientRect();
    return this.graph.hit(e.clientX - box.left, e.clientY - box.top);
  }

  select(node) {
    this.selected = node;
    this.graph.outline(node);
  }

  hover(e) {
    const node = this.nodeAt(e);
    this.container.style.cursor = node !== -1 && node !== ROOT ? "pointer" : "default";
    if (node === -1) {
      this.told.tip.hide();
      this.select(-1);
      return;
    }
    if (node !== this.selected) this.select(node);
    this.told.tip.show(this.seen, node, e.clientX, e.clientY);
  }

  /** What a tooltip is about. */
  get seen() {
    return Object.create(this.told, { tree: { value: this.tree } });
  }

  /** The next method is the one that was taken; many small boxes are opened. */
  take(node) {
    if (node === -1 || node === ROOT) return;
    this.told.tip.hide();
    if (isRest(node)) {
      this.part = restOf(node);
      this.draw(this.told, false);
    } else {
      this.told.openMethod(this.tree.nodes.key[node]);
    }
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const towards = this.reverse ? ["ArrowUp", "ArrowDown"] : ["ArrowDown", "ArrowUp"];
    const where = { [towards[0]]: "callee", [towards[1]]: "caller", ArrowLeft: "before", ArrowRight: "behind" }[e.key];
    if (where) {
      const next = this.selected === -1 ? ROOT : this.graph.beside(this.selected, where);
      if (next !== -1) this.pointOut(next);
    } else if (e.key === "Enter") {
      this.take(this.selected);
    } else if (e.key === "Escape" && this.part >= 0) {
      this.part = -1;
      this.draw(this.told, false);
    } else if (e.key === "y" && this.selected > ROOT) {
      copy(this.tree.name(this.selected));
    } else {
      return;
    }
    e.preventDefault();
    e.stopPropagation();
  }

  pointOut(node) {
    this.graph.reveal(node);
    this.select(node);
    const mark = this.graph.mark.getBoundingClientRect();
    this.told.tip.show(this.seen, node, mark.left + Math.min(mark.width / 2, 200), mark.bottom);
  }
}

class MethodView {
  constructor(app) {
    this.callers = new Half(true, by("callers"), by("callers-space"), by("callers-canvas"), by("callers-mark"), app);
    this.callees = new Half(false, by("callees"), by("callees-space"), by("callees-canvas"), by("callees-mark"), app);
  }

  /** The half that has the focus. */
  get focused() {
    return [this.callers, this.callees].find(({ container }) => container === document.activeElement);
  }

  show(app) {
    const key = app.subject;
    const isOne = key >= 0;
    by("method-none").hidden = isOne;
    by("sandwich").hidden = by("lines").hidden = !isOne;
    if (!isOne) {
      by("method-head").replaceChildren();
      return;
    }
    const { strings, kinds } = app.profile.head;
    this.callers.show(app, key);
    this.callees.show(app, key);
    const { nodes } = this.callees.tree;
    const module = app.keys.module[key];
    by("method-head").replaceChildren(
      ...app.subjects.length > 0 ? [make("button", { type: "button", title: "Previous method (Backspace)",
        onclick: () => app.closeMethod() }, "‹ Back")] : [],
      make("b", { class: "name" }, app.keys.name[key]),
      make("span", {}, `total ${percent(nodes.weight[ROOT], app.weights.all)}`),
      make("span", {}, `self ${percent(nodes.own[ROOT], app.weights.all)}`),
      make("span", { class: "soft", title: module > 0 ? strings[module - 1] : null },
        `${kinds[app.keys.kind[key]]}${module > 0 ? ` in ${baseName(strings[module - 1])}` : ""}`),
      make("button", { type: "button", title: "Copy its name (y)", onclick: () => copy(app.keys.name[key]) }, "Copy name"));
    this.showLines(app, linesOf(app.profile, app.weights, app.keys, key));
  }

  /** The lines by file; between them the source text, as far as the page has it. */
  showLines(app, files) {
    const { all } = app.weights;
    const { strings, sources = [] } = app.profile.head;
    const most = Math.max(...files.flatMap(({ lines }) => [...lines.values()].map(({ total }) => total)), 0);
    const parts = [make("h2", {}, "Lines")];
    for (const { file, lines } of files) {
      parts.push(make("h3", { title: strings[file - 1] }, baseName(strings[file - 1])));
      const texts = new Map();
      const known = [...lines.keys()];
      const [first, last] = [Math.min(...known) - 3, Math.max(...known) + 3];
      for (const source of sources) {
        if (source.file !== file) continue;
        source.lines.forEach((text, at) => {
          if (source.first + at >= first && source.first + at <= last) texts.set(source.first + at, text);
        });
      }
      const numbers = [...new Set([...known, ...texts.keys()])].sort((a, b) => a - b);
      const rows = [];
      let before = 0;
      for (const number of numbers) {
        if (texts.size > 0 && before > 0 && number > before + 1) {
          rows.push(make("tr", { class: "gap" }, make("td", { colspan: 4 }, "⋯")));
        }
        before = number;
        const sum = lines.get(number);
        const meter = make("i", { class: "heat" });
        meter.style.opacity = sum && most > 0 ? Math.max(0.08, sum.total / most) : 0;
        rows.push(make("tr", { class: sum ? "hot" : null },
          make("td", { class: "number" }, meter, sum ? percent(sum.own, all) : ""),
          make("td", { class: "number" }, sum ? percent(sum.total, all) : ""),
          make("td", { class: "line" }, number > 0 ? String(number) : "?"),
          make("td", { class: "source" }, texts.get(number) ?? "")));
      }
      parts.push(make("table", {}, make("thead", {}, make("tr", {}, ...["self", "total", "line", ""].map((name) =>
        make("th", { scope: "col" }, name)))), make("tbody", {}, ...rows)));
    }
    if (files.length === 0) {
      parts.push(make("p", {}, "Lines are unknown: they come from a portable PDB beside the module or in it, " +
        "if one was found when this page was written."));
    }
    by("lines").replaceChildren(...parts);
  }
}

/** Self and total by file and line of all frames of a method, whatever else tells them apart; most first. */
function linesOf(profile, weights, keys, key) {
  const { frames } = profile.head;
  const one = keys.of.indexOf(key);
  const isOf = Uint8Array.from(frames.name, (name, f) => Number(name === frames.name[one] &&
    frames.kind[f] === frames.kind[one] && frames.module[f] === frames.module[one] && frames.file[f] > 0));
  const files = new Map();
  let behind = 0;
  for (let i = 0; i < profile.count; i++) {
    const frame = profile.frame[i];
    if (!isOf[frame] || !weights.isShown(i) || weights.totalSamples(i) === 0) continue;
    const file = frames.file[frame];
    if (!files.has(file)) files.set(file, { file, lines: new Map(), total: 0 });
    const { lines } = files.get(file);
    const sum = lines.get(frames.line[frame]) ?? { own: 0, total: 0 };
    lines.set(frames.line[frame], sum);
    sum.own += weights.own[i];
    if (i < behind) continue;
    behind = profile.end[i];
    sum.total += weights.total(i);
    files.get(file).total += weights.total(i);
  }
  return [...files.values()].sort((a, b) => b.total - a.total);
}
