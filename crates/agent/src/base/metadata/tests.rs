use super::*;

/// A module in file layout: a fixture of `symbolize`.
const LINES: &[u8] = include_bytes!("../../../../symbolize/tests/fixtures/Lines.dll");
const POINTS: &str = include_str!("../../../../symbolize/tests/fixtures/Lines.points");

impl Bytes for &[u8] {
    fn read(&self, at: u64, into: &mut [u8]) -> Option<()> {
        let bytes = self.get(usize::try_from(at).ok()?..)?.get(..into.len())?;
        into.copy_from_slice(bytes);
        Some(())
    }
}

/// Returns the names of all methods, in order, and of all types.
fn all(bytes: &impl Numbers, parts: &Parts) -> (Vec<String>, Vec<String>) {
    let methods = (1..=parts.method_def.rows).map(|row| {
        let (name, owner) = parts.method(bytes, 0x0600_0000 | row).unwrap();
        format!("{}.{name}", parts.type_name(bytes, owner).unwrap())
    });
    let types = (1..=parts.type_def.rows).map(|row| parts.type_name(bytes, row).unwrap());
    (methods.collect(), types.collect())
}

#[test]
fn a_small_module_s_names() {
    let parts = Parts::find(&LINES, true).unwrap();
    let (methods, types) = all(&LINES, &parts);
    for name in [
        "Program.Main",
        "Program.Twice",
        "Program.Numbers",
        "Program.Generated",
        "Program+<Numbers>d__2.MoveNext",
        "Program+<Later>d__3.MoveNext",
    ] {
        assert!(
            methods.iter().any(|known| known == name),
            "{name} in {methods:?}"
        );
    }
    assert_eq!(types[0], "<Module>");
    let mvid: String = parts
        .mvid(&LINES)
        .unwrap()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let reported = POINTS.lines().find_map(|line| line.strip_prefix("mvid "));
    assert_eq!(Some(mvid.as_str()), reported);
    let machine = types.iter().position(|name| name == "Program+<Later>d__3");
    let token = 0x0200_0001 + machine.unwrap() as u32;
    let state = parts.field(&LINES, token, "<>1__state").unwrap();
    assert_eq!(state >> 24, 4);
    assert_eq!(parts.field(&LINES, token, "no such field"), None);
}

#[test]
fn the_same_from_memory() {
    let flat = Metadata::of_module(LINES.as_ptr() as u64, true).unwrap();
    for _ in 0..2 {
        let main = flat.method(0x0600_0001).unwrap();
        assert_eq!(
            (main.type_name, main.name),
            ("Program".into(), "Main".into())
        );
    }
    assert_eq!(flat.type_name(0x0200_0002).as_deref(), Some("Program"));
    for token in [0, 0x0600_0000, 0x0600_ffff, 0x0a00_0001, u32::MAX] {
        assert_eq!(flat.method(token), None, "{token:#x}");
    }
    assert!(Metadata::of_module(0, true).is_none());
    assert!(
        Metadata::of_module(8, false).is_none(),
        "nothing is mapped there"
    );
}

#[test]
fn a_nested_type_by_its_own_name() {
    let flat = Metadata::of_module(LINES.as_ptr() as u64, true).unwrap();
    let whole = |name| flat.nested(name);
    assert_eq!(
        whole("<Numbers>d__2").as_deref(),
        Some("Program+<Numbers>d__2")
    );
    // Not nested, missing, or only the end of a name.
    for name in ["Program", "no such type", "Numbers>d__2", "d__3", ""] {
        assert_eq!(whole(name), None, "{name}");
    }
}

#[test]
fn a_type_and_its_method_by_name() {
    let flat = Metadata::of_module(LINES.as_ptr() as u64, true).unwrap();
    let type_named = |name| {
        let [token] = flat.types_named([name]);
        token
    };
    for name in ["Program", "Program+<Numbers>d__2"] {
        let token = type_named(name).unwrap();
        assert_eq!(flat.type_name(token).as_deref(), Some(name));
    }
    // Several at once give the same result as each alone.
    let several = [
        "Program+<Numbers>d__2",
        "no such type",
        "Program",
        "Program",
    ];
    assert_eq!(flat.types_named(several), several.map(type_named));
    for name in [
        "<Numbers>d__2",
        "Other+<Numbers>d__2",
        "Numbers>d__2",
        "",
        "+",
    ] {
        assert_eq!(type_named(name), None, "{name}");
    }
    let iterator = type_named("Program+<Numbers>d__2").unwrap();
    let moves = flat.method_named(iterator, "MoveNext").unwrap();
    let found = flat.method(moves).unwrap();
    assert_eq!(
        (found.type_name.as_str(), found.name.as_str()),
        ("Program+<Numbers>d__2", "MoveNext")
    );
    for (token, is_wanted) in [(moves, true), (moves + 1, false), (0x0600_ffff, false)] {
        let found = flat.begins_wanted(token, ["MoveN", "Unknown"]);
        assert_eq!(found, Some(is_wanted), "{token:x}");
    }
    assert_eq!(flat.owner(moves), Some(iterator));
    assert_eq!(flat.owner(0x0600_ffff), None);
    // Declared by another type.
    assert_eq!(flat.method_named(iterator, "Main"), None);
    assert_eq!(flat.method_named(0x0200_0002, "MoveNext"), None);
    assert_eq!(flat.method_named(0x0200_ffff, "MoveNext"), None);
}

/// `cargo xtask test` names the core libraries of its runtimes.
#[test]
fn every_name_of_real_modules_is_read() {
    let named = std::env::var_os("SIDEWALK_TEST_R2R").unwrap_or_default();
    for path in std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()) {
        let file = std::fs::read(&path).unwrap();
        let bytes = file.as_slice();
        let parts = Parts::find(&bytes, true).unwrap();
        let (methods, types) = all(&bytes, &parts);
        assert!(methods.len() > 10_000, "{}", path.display());
        let own = |row: u32| parts.method(&bytes, 0x0600_0000 | row).unwrap().0;
        let all = 1..=parts.method_def.rows;
        let begins = ["Run", "MoveNext", "Concat"];
        let is_wanted = |name: String| begins.iter().any(|text| name.starts_with(text));
        let wanted: Vec<u32> = all.filter(|row| is_wanted(own(*row))).collect();
        let found = parts.methods_that_begin(&bytes, begins).unwrap();
        assert!(wanted.len() > 50 && *found == *wanted, "{}", path.display());
        for name in ["System.String.Concat", "System.Threading.Thread.Sleep"] {
            assert!(methods.iter().any(|known| known == name), "{name}");
        }
        let exception = types.iter().position(|name| name == "System.Exception");
        let token = 0x0200_0001 + exception.unwrap() as u32;
        assert!(parts.field(&bytes, token, "_message").is_some());
        assert!(types.iter().any(|name| name.contains('+')));
    }
}

#[test]
fn a_damaged_module_gives_no_name_and_nothing_worse() {
    let mut random = 0x1234_5678_9abc_def1;
    for round in 0..4000u64 {
        let mut bytes = LINES.to_vec();
        if round % 4 == 0 {
            let length = crate::base::random::next_random(&mut random) as usize % bytes.len();
            bytes.truncate(length);
        }
        for _ in 0..round % 16 {
            let at = crate::base::random::next_random(&mut random) as usize % bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = crate::base::random::next_random(&mut random) as u8;
            }
        }
        let bytes = bytes.as_slice();
        let Some(parts) = Parts::find(&bytes, round % 3 != 0) else {
            continue;
        };
        for token in [0x0600_0001, 0x0600_0005, 0x0600_ffff] {
            if let Some((_, owner)) = parts.method(&bytes, token) {
                let _any = parts.type_name(&bytes, owner);
            }
        }
        let _any = (parts.mvid(&bytes), parts.field(&bytes, 0x0200_0002, "x"));
    }
}
