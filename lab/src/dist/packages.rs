//! Packages: a `.deb`, a Python wheel, NuGet's packages of a .NET tool.
//!
//! Each is made of the same files ([`Release`]), which are already built.

use std::fmt::Write as _;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use super::archive::{FileTree, ar, tar_gz, zip};

const SUMMARY: &str = "A sampling profiler for .NET programs on Linux";
/// The description that a package manager shows.
const DESCRIPTION: &str = "Shows where the time of .NET programs goes: stacks of managed, native and \
    runtime frames, from the leaf to the root, with the methods that await async methods. Records programs that \
    are started or that run already, without a change to them: CPU, wall clock, allocations, \
    exceptions, locks, collections, the live heap. Flame graphs, pprof, speedscope, Firefox Profiler.";
/// The same at more length, in Markdown.
const ABOUT: &str = include_str!("about.md");

/// Contents of a package.
pub(super) struct Release {
    pub(super) version: String,
    /// Of the commit, seconds since 1970.
    pub(super) time: u64,
    pub(super) sidewalk: Vec<u8>,
    pub(super) runsxs: Vec<u8>,
    /// File names and contents.
    pub(super) pages: Vec<(String, Vec<u8>)>,
    /// Shells and their scripts.
    pub(super) completions: Vec<(&'static str, Vec<u8>)>,
    /// The commit of which it was built.
    pub(super) commit: String,
    /// Where the project lives, if that is known.
    pub(super) project: Option<String>,
    /// How it is installed, for those who unpack an archive.
    pub(super) readme: String,
    pub(super) licence: String,
    pub(super) licences: String,
    pub(super) bill: String,
}

/// The C library of the machines that a wheel is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WheelLibc {
    Glibc,
    Musl,
}

/// The archive for everybody: unpack, run.
pub(super) fn tarball(release: &Release) -> Result<(String, Vec<u8>)> {
    let name = format!("sidewalk-{}-x86_64-linux", release.version);
    let mut tree = FileTree::default();
    let at = |path: &str| format!("{name}/{path}");
    tree.add_program(at("sidewalk"), release.sidewalk.clone());
    tree.add_program(at("runsxs"), release.runsxs.clone());
    for (page, text) in &release.pages {
        tree.add(at(&format!("man/{page}")), text.clone());
    }
    for (shell, text) in &release.completions {
        tree.add(
            at(&format!("completions/{}", completion_name(shell))),
            text.clone(),
        );
    }
    tree.add(at("README.md"), release.readme.clone());
    tree.add(at("LICENSE-MIT"), release.licence.clone());
    tree.add(at("LICENCES.txt"), release.licences.clone());
    tree.add(at("sidewalk.cdx.json"), release.bill.clone());
    Ok((format!("{name}.tar.gz"), tar_gz(&tree, release.time)?))
}

/// As each shell looks for it.
fn completion_name(shell: &str) -> &'static str {
    match shell {
        "zsh" => "_sidewalk",
        "fish" => "sidewalk.fish",
        _ => "sidewalk",
    }
}

/// Debian's package.
pub(super) fn deb(release: &Release) -> Result<(String, Vec<u8>)> {
    let mut data = FileTree::default();
    data.add_program("./usr/bin/sidewalk", release.sidewalk.clone());
    data.add_program("./usr/bin/runsxs", release.runsxs.clone());
    for (page, text) in &release.pages {
        let path = format!("./usr/share/man/man1/{page}.gz");
        data.add(path, gz(text)?);
    }
    for (shell, text) in &release.completions {
        let folder = match *shell {
            "zsh" => "zsh/vendor-completions",
            "fish" => "fish/vendor_completions.d",
            _ => "bash-completion/completions",
        };
        data.add(
            format!("./usr/share/{folder}/{}", completion_name(shell)),
            text.clone(),
        );
    }
    let copyright = format!("{}\n\n{}", release.licence.trim_end(), release.licences);
    data.add("./usr/share/doc/sidewalk/copyright", copyright);
    data.add(
        "./usr/share/doc/sidewalk/sidewalk.cdx.json",
        release.bill.clone(),
    );
    let bytes: usize = data.0.values().map(|file| file.content.len()).sum();
    let mut control = FileTree::default();
    control.add(
        "./control",
        format!(
            "Package: sidewalk\nVersion: {}\nArchitecture: amd64\nMaintainer: The Sidewalk developers \
             <sidewalk@localhost>\nInstalled-Size: {}\nDepends: libc6 (>= 2.17)\nSection: devel\n\
             Priority: optional\nDescription: {SUMMARY}\n Stacks hold managed, native \
             and runtime frames; programs are started or\n attached to, and left as they were.\n",
            release.version,
            bytes.div_ceil(1024)
        ),
    );
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", tar_gz(&control, release.time)?),
        ("data.tar.gz", tar_gz(&data, release.time)?),
    ];
    let name = format!("sidewalk_{}_amd64.deb", release.version);
    Ok((name, ar(&members, release.time)))
}

fn gz(content: &[u8]) -> Result<Vec<u8>> {
    use std::io::Write as _;
    let gz = flate2::GzBuilder::new();
    let mut gz = gz.write(Vec::new(), flate2::Compression::best());
    gz.write_all(content)?;
    Ok(gz.finish()?)
}

/// Python's wheel. Its tags say which C library it needs at least: `runsxs` alone needs one, so the
/// wheel for musl has the tool alone.
pub(super) fn wheel(release: &Release, libc: WheelLibc) -> Result<(String, Vec<u8>)> {
    let version = &release.version;
    let tags: &[&str] = match libc {
        WheelLibc::Glibc => &["manylinux_2_17_x86_64", "manylinux2014_x86_64"],
        WheelLibc::Musl => &["musllinux_1_1_x86_64"],
    };
    let (info, data) = (
        format!("sidewalk-{version}.dist-info"),
        format!("sidewalk-{version}.data"),
    );
    let mut tree = FileTree::default();
    tree.add_program(format!("{data}/scripts/sidewalk"), release.sidewalk.clone());
    if libc == WheelLibc::Glibc {
        tree.add_program(format!("{data}/scripts/runsxs"), release.runsxs.clone());
    }
    for (page, text) in &release.pages {
        tree.add(format!("{data}/data/share/man/man1/{page}"), text.clone());
    }
    tree.add(
        format!("{info}/METADATA"),
        format!(
            "Metadata-Version: 2.1\nName: sidewalk\nVersion: {version}\nSummary: {SUMMARY}\nLicense: MIT\nClassifier: License :: OSI Approved :: MIT License\nClassifier: \
             Operating System :: POSIX :: Linux\nRequires-Python: >=3.6\nDescription-Content-Type: \
             text/markdown\n\n{ABOUT}"
        ),
    );
    let mut wheel =
        "Wheel-Version: 1.0\nGenerator: sidewalk xtask\nRoot-Is-Purelib: false\n".to_owned();
    for tag in tags {
        writeln!(wheel, "Tag: py3-none-{tag}")?;
    }
    tree.add(format!("{info}/WHEEL"), wheel);
    tree.add(
        format!("{info}/licenses/LICENSE-MIT"),
        release.licence.clone(),
    );
    tree.add(
        format!("{info}/licenses/LICENCES.txt"),
        release.licences.clone(),
    );
    tree.add(
        format!("{info}/sboms/sidewalk.cdx.json"),
        release.bill.clone(),
    );
    let mut record = String::new();
    for (path, file) in &tree.0 {
        let sum = URL_SAFE_NO_PAD.encode(Sha256::digest(&file.content));
        writeln!(record, "{path},sha256={sum},{}", file.content.len())?;
    }
    writeln!(record, "{info}/RECORD,,")?;
    tree.add(format!("{info}/RECORD"), record);
    let name = format!("sidewalk-{version}-py3-none-{}.whl", tags.join("."));
    Ok((name, zip(&tree)?))
}

/// NuGet's: one that says which package is for which platform, and the same tool for Linux on glibc
/// and on musl.
pub(super) fn nuget(release: &Release) -> Result<[(String, Vec<u8>); 3]> {
    let version = &release.version;
    let pointer = {
        let settings = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<DotNetCliTool Version=\"2\">\n  \
             <Commands>\n    <Command Name=\"sidewalk\" />\n  </Commands>\n  <RuntimeIdentifierPackages>\n    \
             <RuntimeIdentifierPackage RuntimeIdentifier=\"linux-x64\" Id=\"sidewalk.linux-x64\" />\n    \
             <RuntimeIdentifierPackage RuntimeIdentifier=\"linux-musl-x64\" Id=\"sidewalk.linux-musl-x64\" />\n  \
             </RuntimeIdentifierPackages>\n</DotNetCliTool>\n";
        let mut tree = nuget_tree(release, "sidewalk", "DotnetTool");
        tree.add("tools/net10.0/any/DotnetToolSettings.xml", settings);
        zip(&tree)?
    };
    let tool = |rid: &str| {
        let settings = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<DotNetCliTool Version=\"2\">\n  \
             <Commands>\n    <Command Name=\"sidewalk\" EntryPoint=\"sidewalk\" Runner=\"executable\" />\n  \
             </Commands>\n</DotNetCliTool>\n";
        let id = format!("sidewalk.{rid}");
        let mut tree = nuget_tree(release, &id, "DotnetToolRidPackage");
        tree.add(format!("tools/any/{rid}/DotnetToolSettings.xml"), settings);
        tree.add_program(
            format!("tools/any/{rid}/sidewalk"),
            release.sidewalk.clone(),
        );
        tree.add("LICENCES.txt", release.licences.clone());
        anyhow::Ok((format!("{id}.{version}.nupkg"), zip(&tree)?))
    };
    Ok([
        (format!("sidewalk.{version}.nupkg"), pointer),
        tool("linux-x64")?,
        tool("linux-musl-x64")?,
    ])
}

fn nuget_tree(release: &Release, id: &str, kind: &str) -> FileTree {
    let (version, commit) = (&release.version, &release.commit);
    let project = release.project.as_ref().map_or(String::new(), |url| {
        format!(
            "<projectUrl>{url}</projectUrl>\n    <repository type=\"git\" url=\"{url}\" \
             commit=\"{commit}\" />\n    "
        )
    });
    let mut tree = FileTree::default();
    tree.add(
        format!("{id}.nuspec"),
        format!(
            "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<package \
             xmlns=\"http://schemas.microsoft.com/packaging/2013/05/nuspec.xsd\">\n  <metadata>\n    \
             <id>{id}</id>\n    <version>{version}</version>\n    <authors>The Sidewalk \
             developers</authors>\n    <description>{DESCRIPTION}</description>\n    \
             {project}<license \
             type=\"expression\">MIT</license>\n    <readme>README.md</readme>\n    \
             <icon>icon.png</icon>\n    <tags>profiler profiling performance sampling dotnet coreclr linux \
             flamegraph pprof async tracing</tags>\n    <packageTypes>\n      <packageType name=\"{kind}\" />\n    \
             </packageTypes>\n  </metadata>\n</package>\n"
        ),
    );
    tree.add(
        "[Content_Types].xml",
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<Types \
         xmlns=\"http://schemas.openxmlformats.org/package/2006/content-types\">\n  <Default \
         Extension=\"nuspec\" ContentType=\"application/octet\" />\n  <Default Extension=\"xml\" \
         ContentType=\"application/octet\" />\n  <Default Extension=\"md\" ContentType=\"text/markdown\" \
         />\n  <Default Extension=\"txt\" ContentType=\"text/plain\" />\n  <Default Extension=\"png\" \
         ContentType=\"image/png\" />\n  <Default Extension=\"rels\" \
         ContentType=\"application/vnd.openxmlformats-package.relationships+xml\" />\n  <Override \
         PartName=\"/tools/any/linux-x64/sidewalk\" ContentType=\"application/octet\" />\n  <Override \
         PartName=\"/tools/any/linux-musl-x64/sidewalk\" ContentType=\"application/octet\" />\n</Types>\n",
    );
    tree.add(
        "_rels/.rels",
        format!(
            "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<Relationships \
             xmlns=\"http://schemas.openxmlformats.org/package/2006/relationships\">\n  <Relationship \
             Type=\"http://schemas.microsoft.com/packaging/2010/07/manifest\" Target=\"/{id}.nuspec\" \
             Id=\"R1\" />\n</Relationships>\n"
        ),
    );
    tree.add("README.md", ABOUT);
    tree.add("icon.png", include_bytes!("icon.png").to_vec());
    tree
}

#[cfg(test)]
mod tests;
