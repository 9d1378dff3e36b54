//! The interactive flame graph: one HTML file that needs nothing else.
//!
//! The page, its style and its script are files in `assets`; the profile goes in as one block of
//! base64 (`payload`). The invariants: nothing of the profile is written anywhere else but in
//! the title, so no name can be markup; a content security policy forbids everything but this
//! script and this style, by their hashes, so nothing is fetched and nothing injected runs.

mod payload;
mod samples;
mod sources;
#[cfg(test)]
mod tests;
mod traced;

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use profile::Profile;
use sha2::{Digest, Sha256};

use crate::labels::Labels;
use crate::options::OutputOptions;

const PAGE: &str = include_str!("../../assets/page.html");
const STYLE: &str = concat!(
    include_str!("../../assets/page.css"),
    include_str!("../../assets/views.css"),
    include_str!("../../assets/traced.css"),
    include_str!("../../assets/live.css")
);
/// Scripts in the order in which they run. Later ones use declarations of earlier ones.
const SCRIPTS: [&str; 21] = [
    include_str!("../../assets/decode.js"),
    include_str!("../../assets/threads.js"),
    include_str!("../../assets/weights.js"),
    include_str!("../../assets/tree.js"),
    include_str!("../../assets/recursion.js"),
    include_str!("../../assets/colors.js"),
    include_str!("../../assets/graph.js"),
    include_str!("../../assets/panels.js"),
    include_str!("../../assets/time.js"),
    include_str!("../../assets/strip_picture.js"),
    include_str!("../../assets/strip.js"),
    include_str!("../../assets/menu.js"),
    include_str!("../../assets/method.js"),
    include_str!("../../assets/traced.js"),
    include_str!("../../assets/live.js"),
    include_str!("../../assets/controls.js"),
    include_str!("../../assets/search.js"),
    include_str!("../../assets/theme.js"),
    include_str!("../../assets/link.js"),
    include_str!("../../assets/keys.js"),
    include_str!("../../assets/app.js"),
];

/// Minimum payload size for compression, in bytes. Uncompressed files also open in browsers without
/// `DecompressionStream` (before 2023).
const COMPRESS_FROM: usize = 48 * 1024;

/// Writes the flame graph of all events of `profile`.
///
/// Options: `title`; `event` (the one shown first); `weight` (what is shown first).
///
/// # Errors
/// Those of `out`.
pub fn write(profile: &Profile, options: &OutputOptions, mut out: impl Write) -> io::Result<()> {
    let title = Labels::new(profile).title(options.title.as_deref());
    let payload = payload::encode(profile, options, &title);
    let (encoding, payload) = if payload.len() < COMPRESS_FROM {
        ("plain", payload)
    } else {
        let mut deflate = DeflateEncoder::new(Vec::new(), Compression::best());
        deflate.write_all(&payload)?;
        ("deflate-raw", deflate.finish()?)
    };
    let script = script();
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
        hash(&script),
        hash(STYLE)
    );
    let title = escape(&title);
    let data = BASE64.encode(payload);
    let parts: [(&str, &str); 6] = [
        ("{{policy}}", &policy),
        ("{{title}}", &title),
        ("{{style}}", STYLE),
        ("{{encoding}}", encoding),
        ("{{data}}", &data),
        ("{{script}}", &script),
    ];
    let mut rest = PAGE;
    for (mark, part) in parts {
        // The marks are in the page in this order; a test holds it to that.
        let Some((before, after)) = rest.split_once(mark) else {
            continue;
        };
        out.write_all(before.as_bytes())?;
        out.write_all(part.as_bytes())?;
        rest = after;
    }
    out.write_all(rest.as_bytes())?;
    out.flush()
}

/// The whole script. In one function, so that it declares nothing outside.
fn script() -> String {
    format!("\"use strict\";\n(() => {{\n{}}})();\n", SCRIPTS.concat())
}

/// A hash source of a content security policy.
fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64.encode(Sha256::digest(text)))
}

/// Text for HTML, also inside double quotes.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}
