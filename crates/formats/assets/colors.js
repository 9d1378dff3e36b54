// What colour a frame has, in both schemes.

/**
 * Groups of frames that share a colour; `tiers` are names in the payload. `above`: they run nothing, so what counts
 * is what is above them.
 */
const GROUPS = [
  { name: "managed, optimized", kind: "managed", hue: 142, sat: 46 },
  { name: "managed, ReadyToRun", kind: "managed", tiers: ["ReadyToRun"], hue: 176, sat: 44 },
  {
    name: "managed, not optimized", kind: "managed", hue: 76, sat: 50,
    tiers: ["tier-0", "tier-0 instrumented", "minimal optimization"],
  },
  { name: "managed, awaiting", kind: "managed", tiers: ["awaiting"], hue: 150, sat: 20, above: true },
  { name: "managed, tier not known", kind: "managed", tiers: [""], hue: 112, sat: 30 },
  { name: "runtime", kind: "runtime", hue: 212, sat: 58 },
  { name: "native", kind: "native", hue: 32, sat: 72 },
  { name: "stub", kind: "stub", hue: 262, sat: 34 },
  { name: "not whole", kind: "pseudo", hue: 0, sat: 78, above: true },
  { name: "unknown", kind: "unknown", hue: 0, sat: 0 },
  { name: "detail", kind: "detail", hue: 330, sat: 52 },
  { name: "between async methods", kind: "async", hue: 196, sat: 30, above: true },
  { name: "thread", kind: "thread", hue: 220, sat: 14 },
];

/** What is at the leaf of an event's stacks, by event: for the legend. */
const ABOUT = {
  "exception": "exception thrown", "alloc": "type allocated", "contention": "lock waited for",
  "gc": "collection", "jit": "method compiled", "class-load": "class loaded",
  "module-load": "module loaded",
};

/** Hues of the stripes that tell frames of several CLRs apart. */
const CLR_HUES = [205, 25, 285, 95, 345, 165];

const SHADES = 5;

/** Colours from half of before to twice of it. */
const CHANGES = 21;

/** Colours of the heatmap. */
const HEATS = 24;

/** Colours of one scheme. */
class Palette {
  constructor(dark) {
    this.dark = dark;
    const base = dark ? 36 : 70;
    const step = dark ? 2.2 : 2.6;
    const shades = (hue, sat, light) => Array.from({ length: SHADES }, (_, s) =>
      `hsl(${hue + s * 2 - 4} ${sat}% ${light + (s - 2) * step}%)`);
    this.fill = GROUPS.map((g) => shades(g.hue, dark ? g.sat * 0.8 : g.sat,
      g.kind === "pseudo" && !dark ? 64 : base));
    this.faded = GROUPS.map((g) => shades(g.hue, g.sat * 0.25, dark ? 23 : 88));
    this.hit = shades(312, dark ? 62 : 78, dark ? 46 : 74);
    this.clr = CLR_HUES.map((hue) => `hsl(${hue} 85% ${dark ? 62 : 42}%)`);
    this.change = Array.from({ length: CHANGES }, (_, at) => {
      const change = at * 2 / (CHANGES - 1) - 1;
      const much = Math.sqrt(Math.abs(change));
      const light = dark ? 26 + 22 * much : 90 - 26 * much;
      return `hsl(${change < 0 ? 214 : 6} ${Math.round((dark ? 62 : 82) * much)}% ${light.toFixed(1)}%)`;
    });
    this.root = dark ? "hsl(220 8% 30%)" : "hsl(220 12% 84%)";
    this.rest = dark ? "hsl(220 6% 19%)" : "hsl(220 12% 93%)";
    this.text = dark ? "#f2f4f6" : "#14181c";
    this.fadedText = dark ? "#8b929a" : "#6a7178";
    this.background = dark ? "#15181b" : "#ffffff";
    this.soft = dark ? "#9aa3ac" : "#58616a";
    this.grid = dark ? "#2a2f35" : "#e6e9ec";
    this.veil = dark ? "rgb(21 24 27 / 0.78)" : "rgb(255 255 255 / 0.8)";
    this.shade = dark ? "rgb(21 24 27 / 0.72)" : "rgb(246 247 248 / 0.76)";
    this.edge = dark ? "#7db7f5" : "#1769c2";
    this.cold = dark ? "#1c2126" : "#f3f5f7";
    // From little to much: paler to deeper on white, darker to brighter on black.
    this.heat = Array.from({ length: HEATS }, (_, at) => {
      const much = at / (HEATS - 1);
      const light = dark ? 20 + 50 * much : 92 - 57 * much;
      return `hsl(${(dark ? 214 - 28 * much : 205 + 12 * much).toFixed(0)} ${(50 + 28 * much).toFixed(0)}% ${light.toFixed(1)}%)`;
    });
  }
}

/** The colour of a change, from -1 to 1. */
function changeColor(palette, change) {
  return palette.change[Math.round((change + 1) / 2 * (CHANGES - 1))];
}

/** The colour of a CLR's stripe; `clr` from 1. */
function clrColor(palette, clr) {
  return palette.clr[(clr - 1) % palette.clr.length];
}

/** By kind index and tier index of the payload: index into GROUPS. */
class Groups {
  constructor(head) {
    this.table = head.kinds.map((kind) => head.tiers.map((tier) => {
      const exact = GROUPS.findIndex((g) => g.kind === kind && g.tiers?.includes(tier));
      return exact >= 0 ? exact : GROUPS.findIndex((g) => g.kind === kind);
    }));
  }

  of(kind, tier) {
    return this.table[kind][tier];
  }
}

/** A shade that a name keeps everywhere. */
function shadeOf(name) {
  let hash = 0;
  for (let i = 0; i < name.length; i++) hash = (hash * 31 + name.charCodeAt(i)) | 0;
  return Math.abs(hash % SHADES);
}

/**
 * Shorter names for narrow boxes, longest first: the type and the method, the method alone. Only
 * `::` parts the names of native code: there a dot is one of a file's name.
 */
function shorter(name, dotted) {
  const parts = [];
  let deep = 0;
  for (let i = 0; i < name.length; i++) {
    const c = name[i];
    // Arguments, or the line or text that stands behind a name.
    if ((c === "(" && i > 0) || (c === " " && name[i + 1] === " ")) break;
    if (c === "<" || c === "[") deep++;
    else if ((c === ">" || c === "]") && deep > 0) deep--;
    else if (deep > 0) continue;
    else if (c === "." && dotted && i > 0) {
      parts.push(i + 1);
      // `Type..ctor`: the second dot is the name's.
      if (name[i + 1] === ".") i++;
    } else if (c === ":" && name[i + 1] === ":") parts.push(++i + 1);
  }
  const names = [name];
  // Code without a name: where in its file it is.
  const offset = dotted ? -1 : name.lastIndexOf("+0x");
  if (offset > 0) return [name, name.slice(offset)];
  if (parts.length > 1) names.push(name.slice(parts[parts.length - 2]));
  if (parts.length > 0) names.push(name.slice(parts[parts.length - 1]));
  return names.filter((n) => n.length > 0);
}
