//! Checks the call rules table against the vtable slots, the trait bounds and the docs.

use std::collections::BTreeMap;
use std::path::Path;

use corprof::sys::rules::{
    ASYNCHRONOUS_OF_THE_ARTICLE, Bound, Entry, RULES, RuntimeVersion, Typed, markdown_table,
};
use corprof::sys::{ICorProfilerInfo15, Interface};

/// Name and first bound of each public method in `src/info` and the walks.
fn bounds_in_source() -> BTreeMap<String, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files: Vec<_> = std::fs::read_dir(source.join("info"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.extend(["snapshot.rs", "suspension.rs", "elt.rs"].map(|name| source.join(name)));
    let mut found = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for part in text.split("pub fn ").skip(1) {
            let Some((name, rest)) = part.split_once(['<', '(']) else {
                continue;
            };
            let head = rest.split('{').next().unwrap_or_default();
            let bound = match head.split_once("C: ") {
                Some((_, bound)) => bound.split([',', '>']).next().unwrap_or_default(),
                None if head.contains("Cx<'rt, Startup>") => "Startup",
                None => "",
            };
            // A method of `Suspension` has the name of the `Info` method that it replaces.
            if !bound.is_empty() {
                let before = found.insert(name.to_owned(), bound.to_owned());
                assert_eq!(before, None, "{name} is there twice");
            }
        }
    }
    found
}

#[test]
fn rows_are_the_slots() {
    for (method, rule) in ICorProfilerInfo15::METHODS.iter().zip(&RULES) {
        assert_eq!((method.name, method.slot), (rule.name, rule.slot));
        let interface = if rule.interface == 1 {
            "ICorProfilerInfo".to_owned()
        } else {
            format!("ICorProfilerInfo{}", rule.interface)
        };
        assert_eq!(method.interface, interface, "{}", rule.name);
        for version in RuntimeVersion::ALL {
            assert_eq!(
                rule.entry(version) == Entry::Absent,
                rule.interface > version.interface(),
                "{} in {version:?}",
                rule.name
            );
        }
    }
    assert_eq!(ICorProfilerInfo15::METHODS.len(), RULES.len());
}

#[test]
fn the_typed_layer_asks_for_at_least_what_any_runtime_checks() {
    for rule in &RULES {
        let Some(bound) = rule.bound() else { continue };
        let strictest = rule.entry.iter().map(|entry| entry.bound()).max().unwrap();
        assert!(
            bound >= strictest,
            "{}: {bound:?} < {strictest:?}",
            rule.name
        );
        assert_eq!(
            bound > strictest,
            !rule.reason.is_empty(),
            "{}: a stricter bound has a reason, and only that has",
            rule.name
        );
    }
}

#[test]
fn the_bounds_in_the_source_are_those_of_the_table() {
    let source = bounds_in_source();
    let mut expected: BTreeMap<String, &str> = BTreeMap::new();
    for (method, rule) in ICorProfilerInfo15::METHODS.iter().zip(&RULES) {
        match rule.typed {
            Typed::Method(bound) => {
                expected.insert(method.field.to_owned(), bound.text());
            }
            Typed::As(bound, names) => {
                for name in names.split(", ").filter(|name| !name.contains("::")) {
                    expected.insert(name.to_owned(), bound.text());
                }
            }
            Typed::NotOffered(_) => assert!(
                !source.contains_key(method.field),
                "{} is offered all the same",
                method.field
            ),
        }
    }
    for (name, bound) in &expected {
        assert_eq!(source.get(name).map(String::as_str), Some(*bound), "{name}");
    }
    // Other methods with a context token correspond to one of these.
    let others: Vec<&str> = source
        .keys()
        .filter(|name| !expected.contains_key(*name))
        .map(String::as_str)
        .collect();
    assert_eq!(
        others,
        [
            "enable_stack_snapshots",
            "get_function_info2_of_frame",
            "get_il_function_body_address",
            "get_module_meta_data_emit",
            "handle_has_object",
            "suspend_runtime_with_retries",
            "walk_current_with_registers",
        ]
    );
}

#[test]
fn the_articles_list_is_asynchronous_everywhere() {
    for name in ASYNCHRONOUS_OF_THE_ARTICLE {
        let rule = RULES.iter().find(|rule| rule.name == name).unwrap();
        assert_eq!(rule.entry, [Entry::Async; 3], "{name}");
        assert!(
            matches!(rule.bound(), None | Some(Bound::Context)),
            "{name}"
        );
    }
}

#[test]
fn the_page_has_the_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/call-table.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (begin, end) = ("<!-- table begin -->\n", "<!-- table end -->");
    let head = text.split_once(begin).unwrap().0;
    let tail = text.split_once(end).unwrap().1;
    let wanted = format!("{head}{begin}{}{end}{tail}", markdown_table());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&page, &wanted).unwrap();
    }
    assert!(
        text == wanted,
        "{} is not what the table makes: run this test with UPDATE_DOCS=1",
        page.display()
    );
}
