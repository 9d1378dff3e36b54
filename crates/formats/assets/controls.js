// The controls of the page: what can be chosen in this profile.

function fillControls(app) {
  const { head } = app.profile;
  document.title = head.title;
  // Folders are for the tooltip.
  by("title").textContent = head.title.replace(/(^| )\/[^ ]*\/(?=[^ ])/g, "$1");
  by("facts").textContent = by("facts").title = facts(head);
  by("title").title = head.title;
  by("honest").textContent = head.honest;
  showLive(head);
  showGrowth(app);
  by("notes").replaceChildren(...head.notes.map((note) => make("p", {}, `Note: ${note}`)));
  fillTraced(by("traced"), head.traced);
  const option = (value, text) => make("option", { value }, text);
  by("event").replaceChildren(...head.events.map((event, at) =>
    option(at, `${event.name} (${event.samples.toLocaleString("en")})`)));
  by("event").value = head.event;
  by("event-box").hidden = head.events.length < 2;
  by("process").replaceChildren(option("", "all"),
    ...head.processes.map((process, at) => option(at, process.name)));
  by("process-box").hidden = head.processes.length < 2;
  by("runtime").replaceChildren(option(0, "all CLRs"), ...head.clrs.map((name, at) => option(at + 1, `.NET ${name}`)));
  by("runtime").value = 0;
  by("runtime").hidden = head.clrs.length === 0;
  by("stacks").replaceChildren(...(head.views ?? []).map((name, at) =>
    option(at, name === "logical" ? "async: who awaits" : "async: thread's stack")));
  by("stacks").value = 0;
  by("stacks").hidden = !head.views;
  by("signatures").hidden = !head.frames.signature.some((signature) => signature > 0);
  fillMeasure(app);
  fillThreads(app);
  fillAbout(app);
}

function fillMeasure(app) {
  const { unit, name } = app.event;
  const word = { bytes: "bytes", nanoseconds: `${name} time`, count: `${name}s` }[unit];
  const choices = hasValue(app.event)
    ? [["value", word], ["samples", "samples"]]
    : [["samples", "samples"]];
  by("measure").replaceChildren(...choices.map(([id, text]) => make("option", { value: id }, text)));
  if (choices.length === 1) app.byValue = false;
  by("measure").value = app.byValue ? "value" : "samples";
}

/** Threads that have samples, most first; those of one name also as one choice. */
function fillThreads(app) {
  const { head } = app.profile;
  const process = by("process").value;
  const threads = app.event.groups
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

/** Only some events are about something. */
function fillAbout(app) {
  const { head, frame } = app.profile;
  const about = head.kinds.indexOf("detail");
  by("about").hidden = !app.event.groups.some((group) =>
    group.node.some((node) => head.frames.kind[frame[node]] === about));
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

/** The range of time that is shown, in its fields and in words. */
function showRange(app) {
  const { range, time } = app;
  const digits = Math.max(3, app.strip.digits);
  by("from").value = range ? time.text(range.from, digits) : "";
  by("to").value = range ? time.text(range.to, digits) : "";
  by("range").classList.remove("wrong");
  by("from").placeholder = time.text(0, 0);
  by("to").placeholder = time.text(time.end, 3);
  by("range-clear").hidden = !range;
  const { view } = app.strip;
  const isAll = view.from === 0 && view.to === time.end;
  by("range-zoom").hidden = !range && isAll;
  by("range-zoom").textContent = range ? "Zoom to it" : "Whole time again";
  by("range-says").textContent = range
    ? `${amount((range.to - range.from) * time.tick, "nanoseconds")}, ${app.weights.allSamples.toLocaleString("en")} samples`
    : "drag to select a part";
}
