// The canvas: what is laid out, drawn and found under the pointer.

const ROW = 19;
const MIN_WIDTH = 0.5;
/** Siblings that were opened because they are many are at least this wide; so is what opens more. */
const SEEN_WIDTH = 12;
const MORE_WIDTH = 24;
const FONT = "12px system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif";

/** One box stands for siblings too small to be drawn: `restOf` the first of them. */
const restOf = (node) => -2 - node;
const isRest = (node) => node < -1;

/** The boxes of one view, in rows; in a row by x. Flat arrays, so that a row is a range. */
class Layout {
  /** `part`: the first of the siblings below `focus` that fill the width, or -1 for all of them. */
  constructor(tree, focus, part, width) {
    this.tree = tree;
    this.focus = focus;
    this.width = width;
    this.boxes = new Columns({ node: Int32Array, x: Float32Array, w: Float32Array });
    this.rowStart = [];
    for (const node of tree.path(focus)) {
      this.rowStart.push(this.boxes.length);
      this.add(node, 0, width);
    }
    this.focusRow = this.rowStart.length - 1;
    const n = tree.nodes;
    tree.expand(focus);
    const last = n.first[focus] + n.count[focus] - 1;
    const begin = part >= 0 ? n.x[part] : n.x[focus];
    let whole = n.weight[focus];
    if (part >= 0) whole = n.x[last] + n.weight[last] - begin;
    // Stacks in which nothing is shown would leave the place above the root empty.
    else if (focus === ROOT && tree.of < 0 && !tree.reverse && n.count[ROOT] > 0) whole -= n.own[ROOT];
    let scale = whole > 0 ? width / whole : 0;
    // Where even then all are too small, as many as can be seen, and a box for those behind them.
    let stop = last + 1;
    if (part >= 0 && n.weight[part] * scale < SEEN_WIDTH) {
      stop = Math.min(stop, part + Math.max(1, Math.floor((width - MORE_WIDTH) / SEEN_WIDTH)));
      const shown = (stop > last ? n.x[last] + n.weight[last] : n.x[stop]) - begin;
      scale = shown > 0 ? (width - (stop > last ? 0 : MORE_WIDTH)) / shown : 0;
    }
    for (let row = this.focusRow; ; row++) {
      const from = this.rowStart[row];
      const to = this.boxes.length;
      for (let box = from; box < to; box++) {
        const node = this.boxes.node[box];
        if (isRest(node)) continue;
        tree.expand(node);
        const isOpened = node === focus && part >= 0;
        const behind = isOpened ? stop : tree.nodes.first[node] + tree.nodes.count[node];
        const first = isOpened ? part : tree.nodes.first[node];
        for (let child = first; child < behind; child++) {
          const w = tree.nodes.weight[child] * scale;
          const x = (tree.nodes.x[child] - begin) * scale;
          if (w >= MIN_WIDTH) {
            this.add(child, x, w);
          } else if (tree.order === "weight") {
            // All that follow are smaller still.
            const last = behind - 1;
            const rest = (tree.nodes.x[last] + tree.nodes.weight[last] - tree.nodes.x[child]) * scale;
            if (rest >= 2) this.add(restOf(child), x, rest);
            break;
          }
        }
        if (isOpened && stop <= last) this.add(restOf(stop), width - MORE_WIDTH, MORE_WIDTH);
      }
      if (this.boxes.length === to) break;
      this.rowStart.push(to);
    }
  }

  add(node, x, w) {
    const box = this.boxes.add();
    this.boxes.node[box] = node;
    this.boxes.x[box] = x;
    this.boxes.w[box] = w;
  }

  /** How wide a node is drawn, pixels; 0 where it is not. */
  widthOf(node) {
    const where = this.where(node);
    return where ? this.boxes.w[where.box] : 0;
  }

  get rows() {
    return this.rowStart.length;
  }

  rowEnd(row) {
    return row + 1 < this.rows ? this.rowStart[row + 1] : this.boxes.length;
  }

  /** The box in `row` that covers `x`, or -1. */
  at(row, x) {
    if (row < 0 || row >= this.rows) return -1;
    let low = this.rowStart[row];
    let high = this.rowEnd(row);
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.boxes.x[middle] <= x) low = middle + 1;
      else high = middle;
    }
    const box = low - 1;
    if (box < this.rowStart[row]) return -1;
    return x < this.boxes.x[box] + Math.max(this.boxes.w[box], 1) ? box : -1;
  }

  /** The row and box of a node, or null where it is not drawn. */
  where(node) {
    const row = this.tree.nodes.depth[isRest(node) ? restOf(node) : node];
    if (row >= this.rows) return null;
    const end = this.rowEnd(row);
    for (let box = this.rowStart[row]; box < end; box++) {
      if (this.boxes.node[box] === node) return { row, box };
    }
    return null;
  }
}

/** Draws a layout into a canvas that stays in place while its scroll container moves. */
class Graph {
  constructor(container, space, canvas, mark) {
    Object.assign(this, { container, space, canvas, mark });
    this.context = canvas.getContext("2d");
    this.layout = null;
    this.icicle = false;
    this.matches = null;
    this.frame = 0;
    this.widths = new Map();
    // How far the view is from the root's side, so that it stays there when sizes change.
    this.fromBottom = 0;
    this.shownHeight = 0;
    container.addEventListener("scroll", () => {
      // A scroll that follows from a new size is not the user's.
      if (this.height === this.shownHeight) this.keepPlace();
      this.draw();
    }, { passive: true });
  }

  get width() {
    return this.container.clientWidth;
  }

  get height() {
    return this.container.clientHeight;
  }

  /** Shows `tree` zoomed to `focus`. `toRoot`: scroll to where the zoomed node is. */
  show(tree, focus, part, groups, palette, toRoot) {
    this.groups = groups;
    this.palette = palette;
    this.layout = new Layout(tree, focus, part, this.width);
    this.space.style.height = `${this.layout.rows * ROW + 2}px`;
    if (toRoot) {
      const top = this.top(this.layout.focusRow);
      this.container.scrollTop = this.icicle
        ? Math.max(0, top - 3 * ROW)
        : top - this.height + 4 * ROW;
    } else if (!this.icicle) {
      this.container.scrollTop = this.container.scrollHeight - this.height - this.fromBottom;
    }
    this.shownHeight = this.height;
    this.keepPlace();
    this.draw();
  }

  keepPlace() {
    const { scrollHeight, scrollTop } = this.container;
    this.fromBottom = scrollHeight - scrollTop - this.height;
  }

  /** Top of a row in the scrolled content. A graph that is lower than the window sits at its root's side. */
  top(row) {
    if (this.icicle) return row * ROW;
    return Math.max(this.layout.rows * ROW, this.height - 2) - (row + 1) * ROW;
  }

  rowAt(y) {
    const content = y + this.container.scrollTop;
    if (this.icicle) return Math.floor(content / ROW);
    return Math.floor((Math.max(this.layout.rows * ROW, this.height - 2) - content) / ROW);
  }

  /** The node (or rest) under a point of the container, or -1. */
  hit(x, y) {
    if (!this.layout) return -1;
    const box = this.layout.at(this.rowAt(y), x);
    return box < 0 ? -1 : this.layout.boxes.node[box];
  }

  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  paint() {
    const { canvas, context: c, layout, palette } = this;
    if (!layout || this.container.hidden) return;
    const ratio = window.devicePixelRatio || 1;
    const { width, height } = this;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = palette.background;
    c.fillRect(0, 0, width, height);
    c.font = FONT;
    c.textBaseline = "middle";
    c.direction = "ltr";
    const scroll = this.container.scrollTop;
    const nearest = this.rowAt(this.icicle ? 0 : height);
    const farthest = this.rowAt(this.icicle ? height : 0);
    for (let row = Math.max(0, nearest); row <= Math.min(farthest, layout.rows - 1); row++) {
      this.paintRow(row, this.top(row) - scroll, row < layout.focusRow);
    }
  }

  paintRow(row, y, above) {
    const { context: c, layout, palette } = this;
    const { tree, boxes } = layout;
    const { nodes } = tree;
    const end = layout.rowEnd(row);
    const h = ROW - 1;
    let last = "";
    for (let box = layout.rowStart[row]; box < end; box++) {
      const node = boxes.node[box];
      const w = boxes.w[box];
      const color = this.color(node, above);
      if (color !== last) c.fillStyle = last = color;
      c.fillRect(boxes.x[box], y, Math.max(w - (w > 3 ? 1 : w > 1.5 ? 0.5 : 0), 0.5), h);
    }
    // A stripe under frames of each CLR, where there are several.
    if (tree.profile.head.clrs.length > 0 && !above) {
      for (let box = layout.rowStart[row]; box < end; box++) {
        const node = boxes.node[box];
        if (node === ROOT || isRest(node)) continue;
        const clr = tree.keys.clr[nodes.key[node]];
        if (clr === 0) continue;
        const w = boxes.w[box];
        c.fillStyle = clrColor(palette, clr);
        c.fillRect(boxes.x[box], y + h - 3, Math.max(w - (w > 3 ? 1 : 0), 0.5), 3);
      }
    }
    for (let box = layout.rowStart[row]; box < end; box++) {
      const w = boxes.w[box];
      const node = boxes.node[box];
      if (w < 24 || isRest(node)) continue;
      const faded = above || (this.matches && node !== ROOT && !this.matches[nodes.key[node]]);
      if (!above && node !== ROOT && GROUPS[this.group(node)].kind === "pseudo") {
        this.hatch(boxes.x[box], y, w - 1, h);
      }
      const text = node === ROOT ? rootLabel(tree) : this.fit(tree, node, w - 8);
      if (text === "") continue;
      c.fillStyle = faded ? palette.fadedText : palette.text;
      c.fillText(text, boxes.x[box] + 4, y + h / 2 + 0.5);
    }
  }

  group(node) {
    const { nodes, keys } = this.layout.tree;
    return this.groups.of(keys.kind[nodes.key[node]], nodes.tier[node]);
  }

  color(node, above) {
    const { palette } = this;
    if (node === ROOT) return palette.root;
    if (isRest(node)) return palette.rest;
    const key = this.layout.tree.nodes.key[node];
    const shade = shadeOf(this.layout.tree.keys.name[key]);
    if (this.matches) {
      if (this.matches[key]) return palette.hit[shade];
      return palette.faded[this.group(node)][shade];
    }
    const { nodes, weights } = this.layout.tree;
    if (weights.compares) return changeColor(palette, weights.change(nodes.weight[node], nodes.after[node]));
    return (above ? palette.faded : palette.fill)[this.group(node)][shade];
  }

  /** Stripes over what is not code. */
  hatch(x, y, w, h) {
    const c = this.context;
    c.save();
    c.beginPath();
    c.rect(x, y, w, h);
    c.clip();
    c.strokeStyle = this.palette.dark ? "rgb(255 255 255 / 0.14)" : "rgb(255 255 255 / 0.4)";
    c.lineWidth = 2;
    c.beginPath();
    for (let at = x - h; at < x + w; at += 8) {
      c.moveTo(at, y + h);
      c.lineTo(at + h, y);
    }
    c.stroke();
    c.restore();
  }

  measure(text) {
    let width = this.widths.get(text);
    if (width === undefined) {
      if (this.widths.size > 50000) this.widths.clear();
      width = this.context.measureText(text).width;
      this.widths.set(text, width);
    }
    return width;
  }

  /** The longest form of a name that fits; empty where not even three letters do. */
  fit(tree, node, room) {
    const name = tree.name(node);
    // A name that is longer than any screen is cut before it is measured.
    const whole = name.length > 1000 ? `${name.slice(0, 1000)}…` : name;
    if (this.measure(whole) <= room) return whole;
    const names = shorter(whole, tree.isDotted(node));
    for (const short of names) if (this.measure(short) <= room) return short;
    const short = names[names.length - 1];
    let low = 0;
    let high = short.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.context.measureText(`${short.slice(0, middle)}…`).width <= room) low = middle;
      else high = middle - 1;
    }
    // Not through the middle of a surrogate pair.
    if (low > 0 && /[\ud800-\udbff]/.test(short[low - 1])) low--;
    return low < 2 ? "" : `${short.slice(0, low)}…`;
  }

  /** Puts the outline around a node; -1 takes it away. */
  outline(node) {
    const where = node !== -1 && this.layout ? this.layout.where(node) : null;
    this.mark.hidden = !where;
    if (!where) return;
    const { boxes } = this.layout;
    this.mark.style.left = `${boxes.x[where.box]}px`;
    this.mark.style.top = `${this.top(where.row)}px`;
    this.mark.style.width = `${Math.max(boxes.w[where.box] - 1, 2)}px`;
    this.mark.style.height = `${ROW - 1}px`;
  }

  /** The box beside a selected one: its caller, its heaviest callee, the one before or behind it; -1 where there is none. */
  beside(selected, where) {
    const { layout } = this;
    const { nodes } = layout.tree;
    const at = layout.where(selected);
    let next = -1;
    if (!at) return next;
    if (where === "caller") {
      next = nodes.parent[isRest(selected) ? restOf(selected) : selected];
    } else if (where === "callee") {
      if (isRest(selected)) return -1;
      const first = nodes.first[selected];
      for (let c = first; first >= 0 && c < first + nodes.count[selected]; c++) {
        if (layout.where(c) && (next < 0 || nodes.weight[c] > nodes.weight[next])) next = c;
      }
      if (at.row < layout.focusRow) next = layout.boxes.node[layout.rowStart[at.row + 1]];
    } else {
      const box = at.box + (where === "before" ? -1 : 1);
      if (box >= layout.rowStart[at.row] && box < layout.rowEnd(at.row)) next = layout.boxes.node[box];
    }
    return next;
  }

  /** Scrolls until a node's row is seen. */
  reveal(node) {
    const where = this.layout?.where(node);
    if (!where) return;
    const top = this.top(where.row);
    const box = this.container;
    if (top < box.scrollTop) box.scrollTop = top - ROW;
    else if (top + ROW > box.scrollTop + this.height) box.scrollTop = top + 2 * ROW - this.height;
  }
}

function rootLabel(tree) {
  if (tree.of >= 0) return tree.name(ROOT);
  if (tree.reverse) return "all, from the leaves";
  const without = tree.nodes.own[ROOT];
  return without > 0 ? `all; ${percent(without, tree.nodes.weight[ROOT])} is in stacks without this code` : "all";
}
