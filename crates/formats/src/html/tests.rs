//! Tests of the page's parts, and that no profile can add markup to it.

use super::*;
use crate::options::OutputOptions;

/// The page of a profile.
fn page(profile: &Profile) -> String {
    let mut out = Vec::new();
    write(profile, &OutputOptions::default(), &mut out).expect("a Vec takes everything");
    String::from_utf8(out).expect("the page is UTF-8")
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let start = text.find(before).expect(before) + before.len();
    let end = text[start..].find(after).expect(after) + start;
    &text[start..end]
}

#[test]
fn the_page_has_every_mark_once_and_in_order() {
    let marks = [
        "{{policy}}",
        "{{title}}",
        "{{style}}",
        "{{encoding}}",
        "{{data}}",
        "{{script}}",
    ];
    let places: Vec<usize> = marks
        .iter()
        .map(|mark| {
            assert_eq!(PAGE.matches(mark).count(), 1, "{mark}");
            PAGE.find(mark).expect("counted above")
        })
        .collect();
    assert!(places.is_sorted());
    assert_eq!(PAGE.matches("{{").count(), marks.len());
}

#[test]
fn script_and_style_cannot_end_their_elements() {
    let script = script().to_lowercase();
    assert!(!script.contains("</script") && !script.contains("<!--"));
    assert!(!STYLE.to_lowercase().contains("</style"));
}

#[test]
fn the_script_never_makes_markup_or_code_of_text() {
    let script = script();
    for word in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "eval(",
        "new Function",
        "setAttribute(\"style\"",
    ] {
        assert!(!script.contains(word), "{word}");
    }
}

#[test]
fn nothing_is_fetched() {
    let page = page(&profile::testing::tiny().profile());
    for word in [
        "http://", "https://", "src=", "href=", "url(", "import(", "fetch(", "XMLHttp",
    ] {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn the_policy_allows_this_script_and_this_style_and_nothing_else() {
    let page = page(&profile::testing::tiny().profile());
    let policy = between(&page, "Content-Security-Policy\" content=\"", "\"");
    let of = |element: &str| {
        let text = between(&page, &format!("<{element}>"), &format!("</{element}>"));
        format!("sha256-{}", BASE64.encode(Sha256::digest(text)))
    };
    let expected = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
        of("script"),
        of("style")
    );
    assert_eq!(policy, expected);
    assert!(page.find("Content-Security-Policy") < page.find("<style>"));
    assert!(!page.contains(" style=") && !page.contains(" onclick="));
}

#[test]
fn all_of_a_profile_is_in_one_block_of_base64() {
    let page = page(&profile::testing::tiny().profile());
    let data = between(&page, "data-encoding=\"plain\">", "</script>");
    let bytes = BASE64.decode(data).expect("it is base64");
    let options = OutputOptions::default();
    let title = "/opt/dotnet/dotnet sample.dll --fast";
    assert_eq!(
        bytes,
        payload::encode(&profile::testing::tiny().profile(), &options, title)
    );
    assert!(!page.replace(data, "").contains("Sample.Worker"));
}

#[test]
fn large_payloads_are_deflated() {
    let mut profile = profile::testing::tiny().profile();
    for nth in 0..20_000_u32 {
        let mut sample = profile.samples[0];
        sample.value += u64::from(nth) * 7919;
        sample.thread = profile::model::ThreadId(nth % 3);
        profile.samples.push(sample);
        profile.strings.push(format!("Unused.Name{nth}"));
        let frame = profile::model::Frame {
            name: profile::model::StringId(profile.strings.len() as u32 - 1),
            ..profile.frames[0].clone()
        };
        profile.frames.push(frame);
        profile.stacks.push(profile::model::Stack {
            parent: None,
            frame: profile::model::FrameId(profile.frames.len() as u32 - 1),
        });
        let stack = profile::model::StackId(profile.stacks.len() as u32 - 1);
        profile.samples.last_mut().expect("pushed above").stack = stack;
    }
    let page = page(&profile);
    let data = between(&page, "data-encoding=\"deflate-raw\">", "</script>");
    let packed = BASE64.decode(data).expect("it is base64");
    let mut bytes = Vec::new();
    let mut inflate = flate2::write::DeflateDecoder::new(&mut bytes);
    inflate.write_all(&packed).expect("it is deflate");
    inflate.finish().expect("it is whole");
    let title = "/opt/dotnet/dotnet sample.dll --fast";
    assert_eq!(
        bytes,
        payload::encode(&profile, &OutputOptions::default(), title)
    );
    assert!(packed.len() * 3 < bytes.len());
}

/// The title is the only text outside of the payload.
#[test]
fn a_title_is_text() {
    let options = OutputOptions {
        title: Some("</title><script>alert(1)</script>\"'&\u{202e}".to_owned()),
        ..OutputOptions::default()
    };
    let mut out = Vec::new();
    write(&Profile::default(), &options, &mut out).expect("a Vec takes everything");
    let page = String::from_utf8(out).expect("the page is UTF-8");
    assert_eq!(
        between(&page, "<title>", "</title>"),
        "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;\\u{202e}"
    );
    assert_eq!(page.matches("<script").count(), 2);
}
