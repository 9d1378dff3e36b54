//! The file's objects, in version 55 of the processed format, in the order of their keys there.
//! Columns of tables are computed while they are written.

use std::io::{self, Write};
use std::iter;

use profile::Profile;
use profile::model::{Event, Sample, Unit};

use super::categories::Categories;
use super::json::{Object, write_array};
use super::tables::{SharedTables, Tables, pause_texts, sample_texts};
use super::{SamplesByThread, Track, Tracks};
use crate::forest::NONE;
use crate::visible::visible;

/// The name of the markers' type.
const MARKER_TYPE: &str = "sidewalk event";

/// A profile as the tracks of a file need it.
pub(super) struct File<'a> {
    pub(super) profile: &'a Profile,
    /// Time 0 of the file.
    pub(super) start_ns: u64,
    pub(super) title: &'a str,
    pub(super) categories: &'a Categories,
    pub(super) shared: &'a SharedTables,
    pub(super) samples: &'a SamplesByThread,
    pub(super) tracks: &'a Tracks<'a>,
    /// Whether each sample weighs one.
    pub(super) counts_samples: bool,
}

impl File<'_> {
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut tables = Tables::default();
        Object::write(out, |file| {
            file.object("meta", |meta| self.meta(meta))?;
            file.entry("libs", [(); 0])?;
            write_array(
                file.key("threads")?,
                self.tracks.list.iter(),
                |out, track| {
                    tables.fill(self.profile, self.shared, track, self.samples);
                    Object::write(out, |thread| self.track(thread, track, &tables))
                },
            )?;
            file.entry("pages", [(); 0])?;
            file.entry("profilerOverhead", [(); 0])?;
            file.entry("counters", [(); 0])
        })
    }

    fn meta(&self, meta: &mut Object<'_, impl Write>) -> io::Result<()> {
        let Self { profile, .. } = self;
        let unix_ns = profile.processes.first().map_or(0, |p| p.start_unix_ns);
        let interval_ns = profile.health.interval_ns.max(1);
        let seconds = |ns| std::time::Duration::from_nanos(ns).as_secs_f64();
        meta.entry("categories", &self.categories.list)?;
        meta.entry("debug", false)?;
        meta.object("extensions", |extensions| {
            extensions.entry("baseURL", [(); 0])?;
            extensions.entry("id", [(); 0])?;
            extensions.entry("length", 0)?;
            extensions.entry("name", [(); 0])
        })?;
        meta.entry("interval", seconds(interval_ns) * 1000.0)?;
        meta.entry("preprocessedProfileVersion", 55)?;
        meta.entry("processType", 0)?;
        meta.entry("product", self.title)?;
        meta.entry("oscpu", "Linux")?;
        meta.object("sampleUnits", |units| {
            units.entry("eventDelay", "ms")?;
            units.entry("threadCPUDelta", "µs")?;
            units.entry("time", "ms")
        })?;
        meta.entry("startTime", seconds(unix_ns) * 1000.0)?;
        // The file contains all names, so the reader looks up none.
        meta.entry("symbolicated", true)?;
        meta.entry("pausedRanges", [(); 0])?;
        // Readers go by the other version.
        meta.entry("version", 24)?;
        meta.entry("usesOnlyOneStackType", true)?;
        meta.entry("sourceCodeIsNotOnSearchfox", true)?;
        let has_markers = self.tracks.list.iter().any(|track| {
            let mut markers = track.markers(profile, self.samples);
            !track.pauses.is_empty() || markers.next().is_some()
        });
        let schemas = iter::repeat_n((), usize::from(has_markers));
        write_array(meta.key("markerSchema")?, schemas, |out, ()| {
            Object::write(out, marker_schema)
        })?;
        let visible = &self.tracks.visible[..];
        if let [busiest, ..] = visible {
            meta.entry("initialVisibleThreads", visible)?;
            meta.entry("initialSelectedThreads", [busiest])?;
        }
        Ok(())
    }

    fn track(
        &self,
        thread: &mut Object<'_, impl Write>,
        track: &Track,
        tables: &Tables,
    ) -> io::Result<()> {
        let process_id = self.profile.thread(track.thread).process;
        let process = self.profile.process(process_id);
        let process_name = process.name();
        let process_name = visible(&process_name);
        let name = match track.is_main {
            true => &*process_name,
            false => &track.name,
        };
        thread.object("frameTable", |table| self.frames(table, tables))?;
        thread.object("funcTable", |table| functions(table, tables))?;
        thread.object("markers", |table| self.markers(table, track, tables))?;
        thread.entry("name", name)?;
        thread.entry("isMainThread", track.is_main)?;
        thread.object("nativeSymbols", |table| {
            empty(table, &["address", "functionSize", "libIndex", "name"])
        })?;
        thread.entry("pausedRanges", [(); 0])?;
        thread.entry("pid", &self.tracks.pids[process_id.0 as usize])?;
        thread.entry("processName", &process_name)?;
        thread.entry("processShutdownTime", self.since(process.end_ns))?;
        thread.entry("processStartupTime", self.since(process.start_ns))?;
        thread.entry("processType", "default")?;
        thread.entry("registerTime", self.since(track.start_ns))?;
        thread.object("resourceTable", |table| {
            empty(table, &["lib", "name", "host", "type"])
        })?;
        thread.object("samples", |table| self.samples(table, track, tables))?;
        thread.object("stackTable", |table| self.stacks(table, tables))?;
        thread.entry("stringArray", tables.strings.list())?;
        thread.entry("tid", &track.tid)?;
        thread.entry("unregisterTime", track.end_ns.map(|ns| self.since(ns)))?;
        thread.entry("showMarkersInTimeline", false)
    }

    fn frames(&self, table: &mut Object<'_, impl Write>, tables: &Tables) -> io::Result<()> {
        let frames = &tables.frames.items;
        let categories = || frames.iter().map(|&frame| self.shared.category(frame));
        table.entry("length", frames.len())?;
        table.repeated("address", -1, frames.len())?;
        table.repeated("inlineDepth", 0, frames.len())?;
        table.array("category", categories().map(|pair| pair.category))?;
        table.array("subcategory", categories().map(|pair| pair.subcategory))?;
        table.array("func", tables.functions_of_frames.iter())?;
        table.repeated("nativeSymbol", (), frames.len())?;
        table.repeated("innerWindowID", 0, frames.len())?;
        table.repeated("line", (), frames.len())?;
        table.repeated("column", (), frames.len())
    }

    fn markers(
        &self,
        table: &mut Object<'_, impl Write>,
        track: &Track,
        tables: &Tables,
    ) -> io::Result<()> {
        let samples = || track.markers(self.profile, self.samples);
        let pauses = || track.pauses.iter();
        // Start and end. The end of an instant is not read.
        let times = || {
            let of_samples = samples().map(|sample| match sample.event.unit() {
                Unit::Nanoseconds => {
                    let begin = sample.time_ns.saturating_sub(sample.value);
                    (begin, Some(sample.time_ns))
                }
                _ => (sample.time_ns, None),
            });
            let of_pauses = pauses().map(|pause| {
                let begin = pause.time_ns.saturating_sub(pause.stopped_ns);
                (begin, Some(pause.time_ns))
            });
            of_samples.chain(of_pauses)
        };
        let contents = || {
            let stack_and_text = |sample| {
                let stack = tables.stack_of(self.shared, sample);
                (stack, sample_texts(self.profile, sample).text)
            };
            let of_samples = samples().map(stack_and_text);
            let of_pauses = pauses().map(|pause| (None, pause_texts(pause).text));
            of_samples.chain(of_pauses).zip(&tables.markers)
        };
        let length = tables.markers.len();
        table.entry("length", length)?;
        table.repeated("category", self.categories.events, length)?;
        write_array(
            table.key("data")?,
            contents(),
            |out, ((stack, text), strings)| {
                Object::write(out, |data| {
                    data.entry("type", MARKER_TYPE)?;
                    if let Some(stack) = stack {
                        data.object("cause", |cause| cause.entry("stack", stack))?;
                    }
                    data.entry("about", strings.about)?;
                    data.entry("text", &text)?;
                    data.entry("value", strings.value)
                })
            },
        )?;
        let ends = times().map(|(_, end)| end.map_or(0.0, |end| self.since(end)));
        table.array("endTime", ends)?;
        table.array("name", tables.markers.iter().map(|strings| strings.name))?;
        // 0: an instant, 1: an interval.
        table.array("phase", times().map(|(_, end)| u8::from(end.is_some())))?;
        table.array("startTime", times().map(|(start, _)| self.since(start)))
    }

    fn samples(
        &self,
        table: &mut Object<'_, impl Write>,
        track: &Track,
        tables: &Tables,
    ) -> io::Result<()> {
        let samples = || {
            let all = self.samples.of(self.profile, track.thread);
            all.filter(|sample| sample.event == track.event)
        };
        let mut before = self.start_ns;
        let deltas = samples().map(|sample| {
            let since = sample.time_ns.saturating_sub(before);
            before = before.max(sample.time_ns);
            milliseconds(since)
        });
        let mut weights = SampleWeights {
            is_one: self.counts_samples,
            interval_ns: self.profile.health.interval_of(track.event).unwrap_or(0),
            left: 0,
        };
        let cpu = samples().map(|sample| match sample.event {
            Event::Cpu => sample.value / 1000,
            _ => 0,
        });
        let unit = if track.weighs_bytes {
            "bytes"
        } else {
            "samples"
        };
        table.entry("length", tables.samples)?;
        table.entry("weightType", unit)?;
        let stacks = samples().map(|sample| tables.stack_of(self.shared, sample));
        table.array("stack", stacks)?;
        table.array("timeDeltas", deltas)?;
        table.array("weight", samples().map(|sample| weights.of(sample)))?;
        table.array("threadCPUDelta", cpu)
    }

    fn stacks(&self, table: &mut Object<'_, impl Write>, tables: &Tables) -> io::Result<()> {
        let stacks = &tables.stacks.items;
        let nodes = || stacks.iter().map(|&stack| self.shared.stack(stack));
        let number = |caller| match caller {
            NONE => None,
            caller => tables.stacks.get(caller),
        };
        table.entry("length", stacks.len())?;
        table.array("prefix", nodes().map(|(caller, _)| number(caller)))?;
        table.array("frame", nodes().map(|(_, frame)| tables.frames.get(frame)))
    }

    /// Milliseconds since time 0.
    fn since(&self, time_ns: u64) -> f64 {
        milliseconds(time_ns.saturating_sub(self.start_ns))
    }
}

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1_000_000.0
}

fn functions(table: &mut Object<'_, impl Write>, tables: &Tables) -> io::Result<()> {
    let names = &tables.functions.items;
    table.entry("length", names.len())?;
    table.array("name", names.iter())?;
    table.repeated("isJS", false, names.len())?;
    table.repeated("relevantForJS", false, names.len())?;
    table.repeated("resource", -1, names.len())?;
    table.repeated("fileName", (), names.len())?;
    table.repeated("lineNumber", (), names.len())?;
    table.repeated("columnNumber", (), names.len())
}

/// Writes a table without rows.
fn empty(table: &mut Object<'_, impl Write>, columns: &[&str]) -> io::Result<()> {
    table.entry("length", 0)?;
    columns.iter().try_for_each(|key| table.entry(key, [(); 0]))
}

fn marker_schema(schema: &mut Object<'_, impl Write>) -> io::Result<()> {
    schema.entry("name", MARKER_TYPE)?;
    schema.entry("display", ["marker-chart", "marker-table"])?;
    schema.entry("chartLabel", "{marker.data.about}")?;
    let label = "{marker.data.about} {marker.data.text} {marker.data.value}";
    schema.entry("tableLabel", label)?;
    let fields = [
        ("about", "About", "unique-string", true),
        ("text", "Text", "sanitized-string", true),
        ("value", "Value", "unique-string", false),
    ];
    let out = schema.key("fields")?;
    write_array(
        out,
        fields.into_iter(),
        |out, (key, label, format, searchable)| {
            Object::write(out, |field| {
                field.entry("key", key)?;
                field.entry("label", label)?;
                field.entry("format", format)?;
                match searchable {
                    true => field.entry("searchable", true),
                    false => Ok(()),
                }
            })
        },
    )
}

/// Weights of a track's samples, as integers.
///
/// They are intervals of time, bytes or pieces; 1 for an event that takes time of its own. A sample
/// of time need not be whole intervals (walker `shadow` measures it): what is left over goes to the
/// next sample of its track, so that a track's weights add up to its time.
struct SampleWeights {
    /// Each sample is one.
    is_one: bool,
    /// Of the track's event; 0 if it is not sampled by time.
    interval_ns: u64,
    /// Nanoseconds that no sample weighs yet, or that samples weigh too much.
    left: i128,
}

impl SampleWeights {
    fn of(&mut self, sample: &Sample) -> i32 {
        if self.is_one {
            return 1;
        }
        if sample.event.unit() != Unit::Nanoseconds {
            return i32::try_from(sample.value).unwrap_or(i32::MAX);
        }
        let interval = i128::from(self.interval_ns);
        if interval == 0 {
            return 1;
        }
        let due = self.left + i128::from(sample.value);
        let intervals = (due + interval / 2).div_euclid(interval).max(0);
        self.left = due - intervals * interval;
        i32::try_from(intervals).unwrap_or(i32::MAX)
    }
}
