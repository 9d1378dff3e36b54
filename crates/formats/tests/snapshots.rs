//! Every format of the canonical profiles, as it is today.
//!
//! Binary outputs (pprof, the payload of the HTML file) are snapshot beside their modules.

use formats::{Format, GroupBy, OutputOptions, Profile, StackView};
use profile::model::Event;
use profile::ops::Counts;
use profile::testing;

fn text(format: Format, profile: &Profile, options: &OutputOptions) -> String {
    let mut out = Vec::new();
    formats::write(format, profile, options, &mut out).expect("a Vec takes everything");
    String::from_utf8(out).expect("text formats are UTF-8")
}

/// JSON with one value a line.
fn json(text: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
    serde_json::to_string_pretty(&value).expect("it was JSON")
}

fn scenes() -> [(&'static str, Profile); 5] {
    [
        ("tiny", testing::tiny().profile()),
        ("two_runtimes", testing::two_runtimes().profile()),
        ("events", testing::events().profile()),
        ("shadow", testing::shadow().profile()),
        ("awaits", testing::awaits().profile()),
    ]
}

#[test]
fn collapsed() {
    for (name, profile) in scenes() {
        let plain = text(Format::Collapsed, &profile, &OutputOptions::default());
        insta::assert_snapshot!(format!("{name}_collapsed"), plain);
        let all = OutputOptions {
            annotate: true,
            threads: true,
            processes: true,
            ..OutputOptions::default()
        };
        let all = text(Format::Collapsed, &profile, &all);
        insta::assert_snapshot!(format!("{name}_collapsed_with_all"), all);
    }
}

/// Every event as a choice: stacks with what they are about on top, and the table of that.
#[test]
fn each_event_alone() {
    let profile = testing::events().profile();
    let mut all = String::new();
    for event in (0..)
        .map_while(Event::from_code)
        .filter(|e| !matches!(e, Event::Call | Event::TracedCall | Event::Live))
    {
        let options = OutputOptions {
            event: Some(event),
            tree: event == Event::Exception,
            ..OutputOptions::default()
        };
        let collapsed = text(Format::Collapsed, &profile, &options);
        let report = text(Format::Text, &profile, &options);
        // The honest line is the same in all.
        let (report, _) = report.trim_end().rsplit_once('\n').expect("lines");
        all.push_str(&format!("# {}\n{collapsed}\n{report}\n", event.name()));
    }
    insta::assert_snapshot!(all);
    let plain = OutputOptions {
        event: Some(Event::Alloc),
        details: false,
        ..OutputOptions::default()
    };
    let plain = text(Format::Collapsed, &profile, &plain);
    assert!(
        plain.contains("Parse 716800\n") && !plain.contains("String"),
        "{plain}"
    );
}

/// The table of what is alive, and the same for programs.
#[test]
fn the_live_heap() {
    let profile = testing::live().profile();
    let options = OutputOptions {
        event: Some(Event::Live),
        ..OutputOptions::default()
    };
    let mut all = text(Format::Text, &profile, &options);
    let json = OutputOptions {
        json: true,
        ..options.clone()
    };
    let json: serde_json::Value =
        serde_json::from_str(&text(Format::Text, &profile, &json)).expect("JSON");
    all.push_str(&serde_json::to_string_pretty(&json["live"]).expect("JSON"));
    all.push_str(&text(Format::Collapsed, &profile, &options));
    insta::assert_snapshot!(all);
    // Nothing of it where it was not asked for.
    let other = text(
        Format::Text,
        &testing::events().profile(),
        &OutputOptions::default(),
    );
    assert!(!other.contains("live heap"), "{other}");
}

/// As the source reads, unless what was on the thread's stack is asked for.
#[test]
fn either_stack() {
    let profile = testing::awaits().profile();
    let physical = OutputOptions {
        stacks: StackView::Physical,
        ..OutputOptions::default()
    };
    let lines = text(Format::Collapsed, &profile, &physical);
    insta::assert_snapshot!("awaits_collapsed_physical", lines);
}

#[test]
fn collapsed_weighs_by_value() {
    let value = OutputOptions {
        weight: formats::WeightBy::Value,
        ..OutputOptions::default()
    };
    let lines = text(Format::Collapsed, &testing::tiny().profile(), &value);
    insta::assert_snapshot!("tiny_collapsed_by_value", lines);
}

#[test]
fn report() {
    for (name, profile) in scenes() {
        for by in GroupBy::ALL {
            let options = OutputOptions {
                by: Some(by),
                tree: by == GroupBy::Method,
                ..OutputOptions::default()
            };
            let report = text(Format::Text, &profile, &options);
            insta::assert_snapshot!(format!("{name}_report_by_{}", by.name()), report);
        }
        let options = OutputOptions {
            json: true,
            tree: true,
            top: 3,
            ..OutputOptions::default()
        };
        let report = json(&text(Format::Text, &profile, &options));
        insta::assert_snapshot!(format!("{name}_report_json"), report);
    }
}

/// Thousands of frames are a few lines, and do not overflow anything.
#[test]
fn report_of_a_deep_stack() {
    let options = OutputOptions {
        tree: true,
        ..OutputOptions::default()
    };
    let report = text(Format::Text, &testing::deep().profile(), &options);
    insta::assert_snapshot!("deep_report", report);
}

/// Methods that call each other in a circle are as many lines as there are of them.
#[test]
fn report_of_circles() {
    use profile::model::Tier;
    let mut scene = testing::Scene::new(4711, &["dotnet", "app.dll"]);
    let clr = scene.runtime("8.0.4");
    let module = scene.managed_module(clr, "/app/app.dll");
    let thread = scene.thread(1, "main", true);
    let frames = ["Main", "Even", "Odd", "Leaf", "Third"].map(|name| {
        let method = scene.method(clr, module, "App.Circles", name);
        scene.managed(method, Tier::Tier1, 0)
    });
    for (stack, count) in [
        // Main, Even, Odd, Even, Odd, Even, Odd, Leaf
        (&[0, 1, 2, 1, 2, 1, 2, 3][..], 60),
        // A circle of three, in the middle of which it ends.
        (&[0, 4, 1, 2, 4, 1, 2, 4, 1], 25),
        // Once round is none, and nor is what has something beside it.
        (&[0, 3, 2, 1, 2, 3], 10),
        (&[0, 3, 2], 5),
    ] {
        let stack: Vec<_> = stack.iter().map(|&at| frames[at]).collect();
        let stack = scene.stack(&stack);
        scene.samples(thread, stack, count);
    }
    scene.end();
    let options = OutputOptions {
        tree: true,
        ..OutputOptions::default()
    };
    let report = text(Format::Text, &scene.profile(), &options);
    let tree = report.split_once("total %").expect("a tree").1;
    insta::assert_snapshot!("circles_report", tree);
}

#[test]
fn every_format_takes_a_deep_stack() {
    let profile = testing::deep().profile();
    for format in Format::ALL {
        let mut out = Vec::new();
        formats::write(format, &profile, &OutputOptions::default(), &mut out).expect("a Vec");
        assert!(!out.is_empty());
    }
}

#[test]
fn inspect() {
    for (name, profile) in scenes() {
        insta::assert_snapshot!(
            format!("{name}_inspect"),
            formats::inspect_text(&profile, &Counts::of(&profile))
        );
        let keys = json(&formats::inspect_json(&profile, &Counts::of(&profile)));
        insta::assert_snapshot!(format!("{name}_inspect_json"), keys);
    }
}

#[test]
fn speedscope() {
    for (name, profile) in scenes() {
        let file = json(&text(
            Format::Speedscope,
            &profile,
            &OutputOptions::default(),
        ));
        let version = concat!("sidewalk ", env!("CARGO_PKG_VERSION"));
        insta::assert_snapshot!(
            format!("{name}_speedscope"),
            file.replace(version, "sidewalk VERSION")
        );
    }
}

#[test]
fn firefox() {
    for (name, profile) in scenes() {
        let file = text(Format::Firefox, &profile, &OutputOptions::default());
        // One line a table is enough to see a change in.
        let value: serde_json::Value = serde_json::from_str(&file).expect("it is JSON");
        let mut lines = vec![format!("meta {}", value["meta"])];
        for thread in value["threads"].as_array().expect("threads") {
            lines.push(format!(
                "thread {} of {}",
                thread["name"], thread["processName"]
            ));
            for table in [
                "stringArray",
                "funcTable",
                "frameTable",
                "stackTable",
                "samples",
                "markers",
            ] {
                lines.push(format!("  {table} {}", thread[table]));
            }
        }
        insta::assert_snapshot!(format!("{name}_firefox"), lines.join("\n"));
    }
}

/// A recording that ended before its first sample.
#[test]
fn every_format_says_that_there_is_nothing() {
    let profile = Profile::default();
    for format in Format::ALL {
        let mut out = Vec::new();
        formats::write(format, &profile, &OutputOptions::default(), &mut out).expect("a Vec");
        assert_eq!(out.is_empty(), format == Format::Collapsed, "{format:?}");
    }
    let report = text(Format::Text, &profile, &OutputOptions::default());
    insta::assert_snapshot!("empty_report", report);
    insta::assert_snapshot!(
        "empty_inspect",
        formats::inspect_text(&profile, &Counts::of(&profile))
    );
}

#[test]
fn formats_are_known_by_the_ending() {
    use std::path::Path;
    for (path, format) in [
        ("a.html", Some(Format::Html)),
        ("dir.txt/a.HTML", Some(Format::Html)),
        ("a.pb.gz", Some(Format::Pprof)),
        ("a.speedscope.json", Some(Format::Speedscope)),
        ("a.firefox.json", Some(Format::Firefox)),
        ("a.collapsed", Some(Format::Collapsed)),
        ("a.txt", Some(Format::Text)),
        ("a.swk", None),
        ("a.json", None),
        ("a.gz", None),
        (".html", None),
        ("a.html/", Some(Format::Html)),
        ("html", None),
        ("", None),
    ] {
        assert_eq!(Format::from_path(Path::new(path)), format, "{path}");
    }
}

/// CPU time that no sample stands for, with its reasons, and a process without a sample.
#[test]
fn unseen() {
    let profile = testing::unseen().profile();
    insta::assert_snapshot!(
        "unseen_inspect",
        formats::inspect_text(&profile, &Counts::of(&profile))
    );
    insta::assert_snapshot!(
        "unseen_inspect_json",
        json(&formats::inspect_json(&profile, &Counts::of(&profile)))
    );
}
