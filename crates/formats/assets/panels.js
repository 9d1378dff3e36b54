// What is around the graph: tooltip, legend, path, table. Text only ever becomes text nodes.

/** An element with attributes and children; strings become text nodes. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** How something has changed, in words. */
function changed(before, after) {
  if (!(before > 0)) return after > 0 ? "new" : "";
  if (!(after > 0)) return "gone";
  const change = (after / before - 1) * 100;
  return `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(1)} %`;
}

/** The box beside the pointer that says all about one node. */
class Tip {
  constructor(element) {
    this.element = element;
    this.node = -1;
  }

  hide() {
    this.element.hidden = true;
    this.node = -1;
  }

  show(view, node, x, y) {
    if (this.node !== node || this.tree !== view.tree) {
      this.node = node;
      this.tree = view.tree;
      this.element.replaceChildren(...this.content(view, node));
    }
    this.element.hidden = false;
    const { offsetWidth: w, offsetHeight: h } = this.element;
    const left = x + 16 + w > innerWidth ? Math.max(4, x - w - 12) : x + 16;
    const top = y + 18 + h > innerHeight ? Math.max(4, y - h - 10) : y + 18;
    this.element.style.left = `${left}px`;
    this.element.style.top = `${top}px`;
  }

  /** What a box stands for that is many. */
  rest(view, first) {
    const { nodes } = view.tree;
    const parent = nodes.parent[first];
    const behind = nodes.first[parent] + nodes.count[parent];
    let weight = 0;
    for (let node = first; node < behind; node++) weight += nodes.weight[node];
    const what = view.tree.reverse ? "callers" : "callees";
    return [
      make("b", { class: "name" }, `${(behind - first).toLocaleString("en")} more ${what}`),
      make("p", {}, `${percent(weight, view.weights.all)} together, each too small to be drawn ` +
        "at this zoom. Click to see them."),
    ];
  }

  content(view, node) {
    if (isRest(node)) return this.rest(view, restOf(node));
    const { tree, event, profile, byValue, weights } = view;
    const { nodes } = tree;
    const rows = [];
    const row = (name, ...cells) => rows.push(make("tr", {}, make("th", {}, name),
      ...cells.map((cell) => make("td", {}, cell))));
    const parts = [make("b", { class: "name" }, tree.name(node))];
    const valued = hasValue(event);
    const line = (name, weight, samples, value) => {
      const counts = `${samples.toLocaleString("en")} ${samples === 1 ? "sample" : "samples"}`;
      row(name, percent(weight, weights.all), counts, valued ? amount(value, event.unit) : "");
    };
    line("total", nodes.weight[node], nodes.samples[node], nodes.value[node]);
    if (weights.compares && node !== ROOT) {
      const [before, after] = weights.shares(nodes.weight[node], nodes.after[node]);
      row("before", percent(before, 1), "", "");
      row("after", percent(after, 1), changed(before, after), "");
    }
    if (node === ROOT && nodes.own[node] > 0) {
      line("no frame shown", nodes.own[node], nodes.ownSamples[node], nodes.ownValue[node]);
    }
    if (node !== ROOT) {
      if (tree.reverse) {
        tree.expand(node);
        if (nodes.own[node] > 0) {
          line("no caller", nodes.own[node], nodes.ownSamples[node], nodes.ownValue[node]);
        }
      } else {
        line("self", nodes.own[node], nodes.ownSamples[node], nodes.ownValue[node]);
      }
      const parent = nodes.parent[node];
      if (parent !== ROOT) {
        row(tree.reverse ? "of callee" : "of caller",
          percent(nodes.weight[node], nodes.weight[parent]), "", "");
      }
      const calls = tree.calls(node);
      if (calls !== null) row("calls", calls.toLocaleString("en"), "", "");
      const facts = this.facts(view, node);
      parts.push(make("table", {}, ...rows), make("dl", {}, ...facts));
    } else {
      parts.push(make("table", {}, ...rows));
    }
    if (byValue === false && valued) {
      parts.push(make("p", {}, "Percentages are of samples."));
    }
    return parts;
  }

  facts(view, node) {
    const { tree, profile } = view;
    const { strings, kinds, tiers } = profile.head;
    const key = tree.nodes.key[node];
    const facts = [];
    const fact = (name, ...says) => facts.push(make("dt", {}, name),
      make("dd", {}, ...says.map((text) => make("span", {}, text))));
    const details = tree.details(node);
    const share = (weight) => percent(weight, tree.nodes.weight[node]);
    const kind = kinds[tree.keys.kind[key]];
    const known = details.tiers.filter(([tier]) => tiers[tier] !== "");
    if (known.length > 0) {
      fact("kind", `${kind}, ` + (details.tiers.length === 1
        ? tiers[known[0][0]]
        : known.map(([tier, weight]) => `${tiers[tier]} ${share(weight)}`).join(", ")));
    } else {
      fact("kind", kind);
    }
    if (tree.keys.clr[key] > 0) fact("CLR", `.NET ${profile.head.clrs[tree.keys.clr[key] - 1]}`);
    if (details.texts.length > 0) {
      const says = details.texts.slice(0, 4).map(([text, weight]) =>
        details.texts.length === 1 ? text : `${text}  ${share(weight)}`);
      if (details.texts.length > 4) says.push(`and ${details.texts.length - 4} more`);
      fact("says", ...says);
    }
    if (tree.keys.module[key] > 0) fact("module", strings[tree.keys.module[key] - 1]);
    if (details.lines.length > 0) {
      const says = details.lines.slice(0, 4).map(([text, weight]) =>
        details.lines.length === 1 ? text : `${text}  ${share(weight)}`);
      if (details.lines.length > 4) says.push(`and ${details.lines.length - 4} more lines`);
      fact(details.lines.length === 1 ? "line" : "lines", ...says);
    }
    return facts;
  }
}

/**
 * Colours that occur, each with what is self in it. What is not code has no self: there it is
 * the stacks that it is in.
 */
function showLegend(element, view, groups, palette) {
  const { profile, weights } = view;
  if (weights.compares) {
    const { names } = profile.head.sides;
    const item = (change, text) => {
      const swatch = make("i", { class: "swatch" });
      swatch.style.backgroundColor = changeColor(palette, change);
      return make("span", {}, swatch, text);
    };
    element.replaceChildren(
      make("span", {}, `before: ${names[0]}; after: ${names[1]}; each half of the width`),
      item(-1, "half or less"), item(-0.3, "less"), item(0, "as before"), item(0.3, "more"), item(1, "twice or more"));
    return;
  }
  const { frames } = profile.head;
  const share = new Float64Array(GROUPS.length);
  const seen = new Uint8Array(GROUPS.length);
  const clrShare = new Float64Array(profile.head.clrs.length + 1);
  // By group: up to where its stacks are counted.
  const counted = new Int32Array(GROUPS.length);
  for (let i = 0; i < profile.count; i++) {
    const frame = profile.frame[i];
    const group = groups.of(frames.kind[frame], frames.tier[frame]);
    const total = weights.isShown(i) ? weights.total(i) : 0;
    if (total > 0) seen[group] = 1;
    clrShare[frames.clr[frame]] += weights.own[i];
    if (!GROUPS[group].above) {
      share[group] += weights.own[i];
    } else if (i >= counted[group]) {
      share[group] += total;
      counted[group] = profile.end[i];
    }
  }
  const items = [];
  for (let g = 0; g < GROUPS.length; g++) {
    if (!seen[g] || GROUPS[g].kind === "thread") continue;
    const swatch = make("i", { class: GROUPS[g].kind === "pseudo" ? "swatch striped" : "swatch" });
    swatch.style.backgroundColor = palette.fill[g][2];
    const title = GROUPS[g].above ? "share of stacks with such a frame" : "share of self";
    items.push(make("span", { title }, swatch,
      `${GROUPS[g].kind === "detail" ? ABOUT[view.event.name] ?? "detail" : GROUPS[g].name} `, make("small", {}, percent(share[g], weights.all))));
  }
  profile.head.clrs.forEach((name, at) => {
    const swatch = make("i", { class: "swatch clr" });
    swatch.style.borderBottomColor = clrColor(palette, at + 1);
    items.push(make("span", { title: "share of self in managed code and stubs of this CLR" }, swatch,
      `.NET ${name} `, make("small", {}, percent(clrShare[at + 1], weights.all))));
  });
  if (view.matches) {
    const swatch = make("i", { class: "swatch" });
    swatch.style.backgroundColor = palette.hit[2];
    items.push(make("span", {}, swatch, "found"));
  }
  element.replaceChildren(...items);
}

/** The zoomed path, each step a button. Long paths lose their middle. */
function showPath(element, view, zoom) {
  const { tree, focus } = view;
  const path = tree.path(focus);
  const keep = 7;
  const items = [];
  path.forEach((node, at) => {
    if (path.length > keep && at === 2) {
      items.push(make("span", { class: "gap" }, `… ${path.length - keep + 1} …`));
    }
    if (path.length > keep && at >= 2 && at < path.length - keep + 3) return;
    const last = node === focus;
    const name = node === ROOT ? rootLabel(tree)
      : shorter(tree.name(node), tree.isDotted(node))[1] ?? tree.name(node);
    const text = name.length > 60 ? `${name.slice(0, 59)}…` : name;
    items.push(make("button", {
      type: "button", title: tree.name(node), onclick: () => zoom(node),
      "aria-current": last ? "true" : null,
    }, text));
  });
  if (view.part >= 0) {
    const { nodes } = tree;
    const more = nodes.first[focus] + nodes.count[focus] - view.part;
    items.push(make("button", { type: "button", "aria-current": "true" },
      `${more.toLocaleString("en")} more ${tree.reverse ? "callers" : "callees"}`));
  }
  if (focus !== ROOT || view.part >= 0) {
    items.push(make("button", { type: "button", class: "reset", onclick: () => zoom(ROOT) },
      "Reset zoom"));
  }
  element.replaceChildren(...items);
}

/** The hottest methods, sortable; as many rows as one asks for. */
class Table {
  /** `pick` is told the key of a row that was clicked, `open` that of one whose callers are asked for. */
  constructor(element, pick, open) {
    Object.assign(this, { element, pick, open });
    // The row that has the focus.
    this.key = -1;
    this.column = "own";
    this.down = true;
    this.limit = 100;
  }

  show(view) {
    this.view = view;
    const { profile, weights, keys, event, matches } = view;
    // What is zoomed into; in reverse a box is callers of leaves, and no part of the stacks below.
    const { tree, focus } = view;
    const zoomed = focus !== ROOT && !tree.reverse;
    const tops = [];
    if (zoomed) {
      for (let at = tree.nodes.from[focus]; at < tree.nodes.to[focus]; at++) tops.push(tree.places.node[at]);
    }
    const rows = tally(profile, weights, keys, zoomed ? tops : null);
    const { strings, kinds } = profile.head;
    const valued = hasValue(event);
    const unit = valued ? event.unit : "samples";
    const columns = [
      { id: "own", name: "self %", text: (k) => percent(rows.own[k], weights.all) },
      {
        id: "ownValue", name: "self",
        text: (k) => amount(valued ? rows.ownValue[k] : rows.ownSamples[k], unit),
      },
      { id: "total", name: "total %", text: (k) => percent(rows.total[k], weights.all) },
      {
        id: "totalValue", name: "total",
        text: (k) => amount(valued ? rows.totalValue[k] : rows.totalSamples[k], unit),
      },
      { id: "ownSamples", name: "samples", text: (k) => rows.ownSamples[k].toLocaleString("en") },
      ...(weights.ownCalls && event.name !== "call" ? [
        { id: "calls", name: "calls", text: (k) => rows.calls[k].toLocaleString("en") },
      ] : []),
      { id: "name", name: "method", text: (k) => keys.name[k] },
      { id: "kind", name: "kind", text: (k) => kinds[keys.kind[k]] },
      {
        id: "module", name: "module",
        text: (k) => keys.module[k] > 0 ? baseName(strings[keys.module[k] - 1]) : "",
      },
    ];
    if (weights.compares) this.compare(columns, rows, view);
    const column = columns.find((c) => c.id === this.column) ?? columns[0];
    let order = [];
    for (let key = 0; key < keys.count; key++) {
      if ((rows.totalSamples[key] > 0 || rows.calls[key] > 0) && (!matches || matches[key])) order.push(key);
    }
    const byText = (a, b) => {
      const [x, y] = [column.text(a), column.text(b)];
      return x < y ? -1 : x > y ? 1 : 0;
    };
    const numbers = rows[this.column];
    const direction = this.down ? -1 : 1;
    const byName = (a, b) => keys.name[a] < keys.name[b] ? -1 : keys.name[a] > keys.name[b] ? 1 : 0;
    order.sort((a, b) => direction * (numbers ? numbers[a] - numbers[b] : byText(a, b)) ||
      (rows.own[a] === 0 && rows.own[b] === 0 ? rows.total[b] - rows.total[a] : 0) || byName(a, b));
    const hidden = Math.max(0, order.length - this.limit);
    order = order.slice(0, this.limit);

    const head = make("tr", {}, ...columns.map((c) => make("th", {
      scope: "col", class: rows[c.id] ? "number" : null,
      "aria-sort": c.id !== this.column ? null : this.down ? "descending" : "ascending",
    }, make("button", { type: "button", onclick: () => this.sort(c.id, !rows[c.id]) }, c.name))));
    this.key = -1;
    const body = order.map((key) => make("tr", {
      tabindex: 0, onclick: () => this.pick(key), onfocus: () => { this.key = key; },
      oncontextmenu: (e) => openMenu(view, key, e), onkeydown: (e) => this.press(e, key),
    },
      ...columns.map((c) => {
        const cell = make("td", { class: rows[c.id] ? "number" : c.id }, c.text(key));
        if (c.id === "own" || c.id === "total") {
          const share = rows[c.id][key] / (weights.all || 1);
          cell.append(make("i", { class: `meter ${c.id}` }));
          cell.lastChild.style.width = `${Math.min(100, share * 100)}%`;
        }
        if (c.id === "name") {
          cell.append(make("button", {
            type: "button", class: "open", title: "Callers, callees and lines (c)", tabindex: -1,
            onclick: (e) => { e.stopPropagation(); this.open(key); },
            "aria-label": "Callers, callees and lines",
          }));
        }
        if (c.id === "module" && keys.module[key] > 0) cell.title = strings[keys.module[key] - 1];
        return cell;
      })));
    const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
    const parts = [];
    if (zoomed) {
      parts.push(make("p", { class: "zoomed" },
        `In ${tree.name(focus)}, as the graph is zoomed. Percentages are of everything.`));
    }
    parts.push(table);
    if (order.length === 0) parts.push(make("p", {}, "No method matches."));
    if (hidden > 0) {
      parts.push(make("button", {
        type: "button", class: "more", onclick: () => {
          this.limit *= 10;
          this.show(this.view);
        },
      }, `${hidden.toLocaleString("en")} more`));
    }
    this.element.replaceChildren(...parts);
  }

  /** Keys in a row: Enter picks it, arrows go to the next one. */
  press(e, key) {
    const row = e.currentTarget;
    if (e.key === "Enter") this.pick(key);
    else if (e.key === "ArrowDown") row.nextSibling?.focus();
    else if (e.key === "ArrowUp") row.previousSibling?.focus();
    else return;
    e.preventDefault();
    e.stopPropagation();
  }

  /** Columns of a comparison in place of shares and amounts; a change that may be chance has a `?`. */
  compare(columns, rows, { profile, weights, keys }) {
    const certain = [new Set(profile.head.sides.own), new Set(profile.head.sides.total)];
    const of = (kind, word, known) => {
      const shares = (k) => weights.shares(rows[kind][k], rows[`${kind}After`][k]);
      const id = `${kind}Change`;
      rows[id] = Float64Array.from(rows[kind], (_, k) => {
        const [before, after] = shares(k);
        return after - before;
      });
      return [
        { id: `${kind}Before`, name: `${word} before`, text: (k) => percent(shares(k)[0], 1) },
        { id: `${kind}After`, name: "after", text: (k) => percent(shares(k)[1], 1) },
        {
          id, name: "change",
          text: (k) => changed(...shares(k)) + (rows[kind][k] > 0 && !known.has(keys.name[k]) ? " ?" : ""),
        },
      ];
    };
    const numbers = (kind) => {
      rows[`${kind}Before`] = Float64Array.from(rows[kind], (weight, k) => weight - rows[`${kind}After`][k]);
    };
    numbers("own");
    numbers("total");
    const kept = columns.filter((c) => ["ownSamples", "name", "kind", "module"].includes(c.id));
    columns.splice(0, columns.length, ...of("own", "self", certain[0]), ...of("total", "total", certain[1]), ...kept);
    if (!columns.some((c) => c.id === this.column)) this.column = "ownChange";
  }

  sort(column, text) {
    if (this.column === column) this.down = !this.down;
    else [this.column, this.down] = [column, !text];
    this.show(this.view);
  }
}
