//! Lines of managed code, against what .NET's own reader found (`fixtures/make.py`).

use std::fs;
use std::path::Path;

use crate::common::{bytes, fixture, module};
use profile::model::Module;
use symbolize::{LookupOptions, SymbolSource, Symbolizer};

struct Point {
    token: u32,
    il_offset: u32,
    file: String,
    /// `None`: hidden.
    line: Option<u32>,
}

/// MVID and sequence points of Lines.dll.
fn expected() -> (Vec<u8>, Vec<Point>) {
    let text = fs::read_to_string(fixture("Lines.points")).unwrap();
    let mut lines = text.lines();
    let mvid = lines.next().unwrap().strip_prefix("mvid ").unwrap();
    let mvid = (0..mvid.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&mvid[at..at + 2], 16).unwrap())
        .collect();
    let points = lines.map(|line| {
        let [token, il_offset, file, line] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        Point {
            token: u32::from_str_radix(token, 16).unwrap(),
            il_offset: il_offset.parse().unwrap(),
            file: file.to_owned(),
            line: line.parse().ok(),
        }
    });
    (mvid, points.collect())
}

/// Holds every IL offset of every method against the fixture.
fn check(module: &Module, source: &SymbolSource) {
    let (_, points) = expected();
    let mut symbolizer = Symbolizer::new(LookupOptions::default());
    let mut methods: Vec<u32> = points.iter().map(|point| point.token).collect();
    methods.dedup();
    assert_eq!(methods.len(), 5);
    for token in methods {
        let visible: Vec<&Point> = points
            .iter()
            .filter(|point| point.token == token && point.line.is_some())
            .collect();
        for il_offset in 0..200 {
            let expected = visible
                .iter()
                .rfind(|point| point.il_offset <= il_offset)
                .unwrap_or(&visible[0]);
            let found = symbolizer.managed_line(module, token, il_offset).unwrap();
            assert_eq!(
                (found.file.as_str(), Some(found.line)),
                (expected.file.as_str(), expected.line),
                "{token:x} at {il_offset}"
            );
        }
    }
    // Without sequence points; beyond the table; no method at all.
    for token in [0x0600_0003, 0x0600_0fff, 0x0600_0000, 0x0200_0002, 0] {
        assert_eq!(symbolizer.managed_line(module, token, 0), None, "{token:x}");
    }
    assert_eq!(&symbolizer.report().modules[0].source, source);
}

fn source_of(module: &Module) -> SymbolSource {
    let mut symbolizer = Symbolizer::new(LookupOptions::default());
    symbolizer.managed_line(module, 0x0600_0001, 0);
    symbolizer.report().modules[0].source.clone()
}

#[test]
fn pdb_beside_the_module() {
    let module = module(&fixture("Lines.dll"), true);
    check(&module, &SymbolSource::Pdb(fixture("Lines.pdb")));
}

#[test]
fn pdb_inside_the_module() {
    let module = module(&fixture("Embedded.dll"), true);
    check(&module, &SymbolSource::EmbeddedPdb);
}

#[test]
fn module_inside_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let app = folder.path().join("app");
    for (name, source) in [
        (
            "Lines.dll",
            SymbolSource::Pdb(folder.path().join("Lines.pdb")),
        ),
        ("Embedded.dll", SymbolSource::EmbeddedPdb),
    ] {
        let mut content = vec![0x7f; 1000];
        content.extend(bytes(name));
        content.extend([0xcc; 500]);
        fs::write(&app, content).unwrap();
        fs::copy(fixture("Lines.pdb"), folder.path().join("Lines.pdb")).unwrap();
        let mut module = module(&app, true);
        module.file_offset = 1000;
        check(&module, &source);
    }
}

#[test]
fn the_recorded_mvid_must_be_the_files() {
    let (mvid, _) = expected();
    let mut lines = module(&fixture("Lines.dll"), true);
    lines.id_bytes = mvid;
    check(&lines, &SymbolSource::Pdb(fixture("Lines.pdb")));
    lines.id_bytes[3] ^= 1;
    assert_eq!(source_of(&lines), SymbolSource::Changed);
}

#[test]
fn no_pdb() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("Lines.dll");
    fs::copy(fixture("Lines.dll"), &path).unwrap();
    assert_eq!(source_of(&module(&path, true)), SymbolSource::NoSymbols);
}

#[test]
fn pdb_of_another_build() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("Lines.dll");
    let pdb = folder.path().join("Lines.pdb");
    fs::copy(fixture("Lines.dll"), &path).unwrap();
    let mut other = bytes("Lines.pdb");
    // The id is at the start of the #Pdb stream: any other id is another build.
    let id = id_of_lines();
    let at = other.windows(20).position(|window| window == id).unwrap();
    other[at] ^= 1;
    fs::write(&pdb, other).unwrap();
    let module = module(&path, true);
    assert_eq!(
        source_of(&module),
        SymbolSource::PdbOfOtherBuild(pdb.clone())
    );
    fs::write(&pdb, "no PDB at all").unwrap();
    assert_eq!(source_of(&module), SymbolSource::PdbOfOtherBuild(pdb));
}

/// The GUID and stamp that Lines.dll names, from its CodeView entry.
fn id_of_lines() -> Vec<u8> {
    let dll = bytes("Lines.dll");
    let at = dll.windows(4).position(|window| window == b"RSDS").unwrap();
    let guid = &dll[at + 4..at + 20];
    let pdb = bytes("Lines.pdb");
    let at = pdb.windows(16).position(|window| window == guid).unwrap();
    pdb[at..at + 20].to_vec()
}

#[test]
fn what_is_no_module_is_reported() {
    for path in ["/nowhere.dll", "/dev/null", "/proc/self/exe", ""] {
        let source = source_of(&module(Path::new(path), true));
        assert!(
            matches!(source, SymbolSource::Unreadable(_)),
            "{path}: {source:?}"
        );
    }
}

#[test]
fn signatures_of_methods() {
    let lines = Module {
        id_bytes: expected().0,
        ..module(&fixture("Lines.dll"), true)
    };
    let mut symbolizer = Symbolizer::new(LookupOptions::default());
    let mut of = |token| symbolizer.signature(&lines, token);
    let found: Vec<Option<String>> = (0x0600_0001..=0x0600_0005).map(&mut of).collect();
    let expected = ["(string[])", "(int)", "()", "(int)", "()"];
    assert_eq!(found, expected.map(|text| Some(text.to_owned())));
    // No method; beyond the table; another table.
    for token in [0x0600_0000, 0x0600_0fff, 0x0200_0002, 0, u32::MAX] {
        assert_eq!(of(token), None, "{token:x}");
    }
    // The file is of another build.
    let other = Module {
        id_bytes: vec![7; 16],
        ..lines
    };
    assert_eq!(symbolizer.signature(&other, 0x0600_0001), None);
}

/// Any module gets an answer, and soon.
#[test]
fn signatures_of_damaged_modules() {
    let folder = tempfile::tempdir().unwrap();
    let whole = bytes("Lines.dll");
    for seed in 0..400_usize {
        let mut damaged = whole.clone();
        for step in 0..6 {
            let at = (seed * 7919 + step * 104_729) % damaged.len();
            damaged[at] = damaged[at].wrapping_add((seed * 31 + step + 1) as u8);
        }
        let path = folder.path().join(format!("{seed}.dll"));
        fs::write(&path, damaged).unwrap();
        let damaged = module(&path, true);
        let mut symbolizer = Symbolizer::new(LookupOptions::default());
        for token in 0x0600_0001..0x0600_0020 {
            let found = symbolizer.signature(&damaged, token).unwrap_or_default();
            assert!(found.len() < 10_000, "{found}");
        }
    }
}

/// Each await of each method, by the number that its code stores before it, against what .NET's own
/// reader found; no number beyond.
#[test]
fn lines_of_awaits() {
    for name in ["Awaits", "AwaitsDebug"] {
        let module = module(&fixture(&format!("{name}.dll")), true);
        let mut symbolizer = Symbolizer::new(LookupOptions::default());
        let text = fs::read_to_string(fixture(&format!("{name}.states"))).unwrap();
        let mut last = 0;
        for line in text.lines() {
            let [token, state, line] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let token = u32::from_str_radix(token, 16).unwrap();
            let (state, line): (i32, u32) = (state.parse().unwrap(), line.parse().unwrap());
            let found = symbolizer.await_line(&module, token, state).unwrap();
            let expected = ("/fixture/Awaits.cs", line);
            assert_eq!(
                (found.file.as_str(), found.line),
                expected,
                "{token:x} {state}"
            );
            last = token;
        }
        assert_eq!(text.lines().count(), 15);
        // Finished, running, in a yield; more awaits than there are.
        for state in [-1, -2, -4, i32::MIN, 1, 100, i32::MAX] {
            assert_eq!(symbolizer.await_line(&module, last, state), None, "{state}");
        }
        // Methods without awaits, and no method.
        for token in [
            0x0600_0001,
            0x0600_0fff,
            0x0600_0000,
            0x0200_0002,
            0,
            u32::MAX,
        ] {
            assert_eq!(symbolizer.await_line(&module, token, 0), None, "{token:x}");
        }
    }
    // A PDB without any.
    let lines = module(&fixture("Lines.dll"), true);
    let mut symbolizer = Symbolizer::new(LookupOptions::default());
    assert_eq!(symbolizer.await_line(&lines, 0x0600_0001, 0), None);
}

/// A method that waits has the line of its await, and is told from one that runs.
#[test]
fn frames_of_methods_that_wait_have_lines() {
    use profile::model::Location;
    let mut scene = profile::testing::Scene::new(1, &["x"]);
    let runtime = scene.runtime("8.0.33");
    let path: &'static str = fixture("Awaits.dll").to_str().unwrap().to_owned().leak();
    let module = scene.managed_module(runtime, path);
    let thread = scene.thread(1, "main", true);
    // The tokens count from 0x06000001.
    let methods: Vec<u32> = (0..0x21)
        .map(|_| scene.method(runtime, module, "Awaits+<Straight>d__2", "MoveNext"))
        .collect();
    let awaits = scene.frame(recording::Frame::Async {
        method: methods[0x1e],
        state: 3,
    });
    let logical = scene.stack(&[awaits]);
    let runs = scene.managed(methods[0x1e], recording::Tier::Tier1, 0);
    let physical = scene.stack(&[runs]);
    scene.awaited(thread, physical, logical, 1);
    let mut profile = scene.profile();
    for module in &mut profile.modules {
        module.id_bytes.clear();
    }
    let options = LookupOptions {
        signatures: true,
        ..LookupOptions::default()
    };
    symbolize::symbolize(&mut profile, &options);
    let sample = profile.samples[0];
    let physical = profile.frame(profile.frames_of(sample.stack).next().unwrap());
    assert_eq!(physical.line, 13, "of its first visible code");
    let leaf = profile.frames_of(sample.logical.unwrap()).next().unwrap();
    let frame = profile.frame(leaf);
    assert_eq!(profile.name(leaf), "Awaits.Straight");
    assert_eq!(frame.line, 18);
    // As when it runs, so that it is the same method.
    assert_eq!(frame.signature, physical.signature);
    assert!(matches!(frame.location, Location::Await { state: 3, .. }));
}

/// Text that the compiler has put into the PDB, packed or as it is, comes out as it was written.
#[test]
fn sources_in_a_pdb() {
    let sources = module(&fixture("Sources.dll"), true);
    let mut symbolizer = Symbolizer::new(LookupOptions::default());
    let files = ["/fixture/Lines.cs", "/fixture/Short.cs", "/fixture/None.cs"].into();
    let mut read = |most| symbolizer.sources(&sources, &files, most);
    let text = |name| fs::read_to_string(fixture(name)).unwrap();
    let [lines, short] = ["Lines.cs", "Short.cs"].map(text);
    let named = |name: &str, text: &str| (format!("/fixture/{name}"), text.to_owned());
    let both = [named("Lines.cs", &lines), named("Short.cs", &short)];
    assert_eq!(read(usize::MAX), both.clone().into());
    assert_eq!(read(lines.len() + short.len()), both.clone().into());
    assert_eq!(
        read(lines.len() + short.len() - 1),
        both[..1].iter().cloned().collect()
    );
    assert_eq!(read(0), [].into());
    // Only what is asked for; a module without any.
    let of = |symbolizer: &mut Symbolizer, module: &Module, name: &str| {
        symbolizer.sources(module, &[name].into(), usize::MAX)
    };
    assert_eq!(
        of(&mut symbolizer, &sources, "/fixture/Short.cs"),
        both[1..].iter().cloned().collect()
    );
    let lines = module(&fixture("Embedded.dll"), true);
    assert_eq!(of(&mut symbolizer, &lines, "/fixture/Lines.cs"), [].into());
}
