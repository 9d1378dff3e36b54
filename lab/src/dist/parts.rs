//! Third-party parts of the binaries: each crate with its licence's text, and the same as a
//! CycloneDX bill of materials.
//!
//! Read from `cargo metadata` and the sources that were compiled. The invariant: a crate that does
//! not say its licence is an error, and one that comes without its text is named as such.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use xtask::build::cargo;
use xtask::process::run_quietly;

/// A third-party crate.
pub(super) struct ThirdPartyCrate {
    name: String,
    version: String,
    licence: String,
    description: String,
    /// Of the archive that it came in.
    sha256: Option<String>,
    texts: Vec<String>,
}

/// The crates that these packages of ours are made of.
pub(super) fn crates_of(packages: &[&str]) -> Result<Vec<ThirdPartyCrate>> {
    let text = run_quietly(&mut cargo(&[
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
    ]))?;
    let metadata: Value = serde_json::from_str(&text)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let by_id: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (word(&package["id"]), package))
        .collect();
    let nodes: BTreeMap<String, Vec<Value>> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .map(|node| (word(&node["id"]), list(&node["deps"])))
        .collect();
    let ours = by_id.iter().filter(|(_, package)| {
        package["source"].is_null() && packages.contains(&word(&package["name"]).as_str())
    });
    let mut next: Vec<String> = ours.map(|(id, _)| id.clone()).collect();
    if next.len() != packages.len() {
        bail!("cargo metadata does not know all of {packages:?}");
    }
    let mut seen = BTreeSet::new();
    while let Some(id) = next.pop() {
        for dependency in nodes.get(&id).into_iter().flatten() {
            let is_linked = list(&dependency["dep_kinds"])
                .iter()
                .any(|kind| kind["kind"].is_null());
            let id = word(&dependency["pkg"]);
            if is_linked && seen.insert(id.clone()) {
                next.push(id);
            }
        }
    }
    let sums = checksums()?;
    let mut parts = Vec::new();
    for id in &seen {
        let package = by_id.get(id).context("a package without metadata")?;
        if package["source"].is_null() {
            continue;
        }
        let (name, version) = (word(&package["name"]), word(&package["version"]));
        let manifest = word(&package["manifest_path"]);
        let folder = Path::new(&manifest)
            .parent()
            .context("a manifest in no folder")?;
        let licence = word(&package["license"]);
        if licence.is_empty() {
            bail!("{name} {version} does not say its licence");
        }
        parts.push(ThirdPartyCrate {
            sha256: sums.get(&(name.clone(), version.clone())).cloned(),
            texts: texts(folder)?,
            description: word(&package["description"]).trim().to_owned(),
            name,
            version,
            licence,
        });
    }
    parts.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(parts)
}

/// Checksums of `Cargo.lock`, by name and version.
fn checksums() -> Result<BTreeMap<(String, String), String>> {
    let lock = fs::read_to_string(testkit::repository().join("Cargo.lock"))?;
    let mut sums = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let value = |key: &str| {
            let start = format!("{key} = \"");
            let line = package.lines().find_map(|line| line.strip_prefix(&start))?;
            Some(line.trim_end_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(sum)) =
            (value("name"), value("version"), value("checksum"))
        {
            sums.insert((name, version), sum);
        }
    }
    Ok(sums)
}

/// The files of a crate that hold licences.
fn texts(folder: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_uppercase();
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"]
            .iter()
            .any(|start| name.starts_with(start));
        if is_licence && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    files
        .iter()
        .map(|file| {
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
        })
        .collect()
}

/// All licences as one text; a text that many crates share is there once.
pub(super) fn licences(parts: &[ThirdPartyCrate]) -> String {
    let mut by_text: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut out = String::from("Sidewalk contains these crates, under these licences.\n\n");
    for part in parts {
        let _ = writeln!(out, "{} {}: {}", part.name, part.version, part.licence);
        for text in &part.texts {
            let users = by_text.entry(text.trim()).or_default();
            users.push(format!("{} {}", part.name, part.version));
        }
    }
    let without = parts.iter().filter(|part| part.texts.is_empty());
    for part in without {
        let _ = writeln!(
            out,
            "\n{} {} comes without the text of its licence ({}).",
            part.name, part.version, part.licence
        );
    }
    for (text, users) in by_text {
        let _ = write!(
            out,
            "\n{}\n{}:\n\n{text}\n",
            "-".repeat(72),
            users.join(", ")
        );
    }
    out
}

/// The bill of materials, CycloneDX 1.5.
pub(super) fn bill(parts: &[ThirdPartyCrate], version: &str) -> Result<String> {
    let components: Vec<Value> = parts
        .iter()
        .map(|part| {
            let purl = format!("pkg:cargo/{}@{}", part.name, part.version);
            let mut component = json!({
                "type": "library",
                "bom-ref": purl,
                "name": part.name,
                "version": part.version,
                "description": part.description,
                "licenses": [{"expression": part.licence.replace('/', " OR ")}],
                "purl": purl,
            });
            if let Some(sum) = &part.sha256 {
                component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
            }
            component
        })
        .collect();
    let own = json!({
        "type": "application",
        "bom-ref": format!("pkg:cargo/sidewalk@{version}"),
        "name": "sidewalk",
        "version": version,
        "licenses": [{"expression": "MIT"}],
    });
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
    });
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}
