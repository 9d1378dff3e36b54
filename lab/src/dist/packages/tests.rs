//! The packages, as those who install them read them: dpkg-deb, pip, tar; a NuGet package by its
//! parts.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read as _};
use std::path::Path;
use std::process::Command;

use super::*;

/// A release whose programs say their names.
fn release() -> Release {
    let program = |name: &str| format!("#!/bin/sh\necho {name} \"$@\"\n").into_bytes();
    Release {
        version: "1.2.3".into(),
        time: 1_700_000_000,
        sidewalk: program("sidewalk"),
        runsxs: program("runsxs"),
        pages: vec![("sidewalk.1".into(), b".TH SIDEWALK 1\n".to_vec())],
        completions: ["bash", "zsh", "fish"]
            .map(|shell| (shell, shell.into()))
            .into(),
        commit: "0123abcd".into(),
        project: Some("https://example.org/sidewalk".into()),
        readme: "# Readme\n".into(),
        licence: "MIT\n".into(),
        licences: "others\n".into(),
        bill: "{}\n".into(),
    }
}

fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn written(folder: &Path, (name, content): (String, Vec<u8>)) -> std::path::PathBuf {
    let file = folder.join(name);
    fs::write(&file, content).unwrap();
    file
}

#[test]
fn the_same_release_makes_the_same_bytes() {
    let all = |release: &Release| {
        let [pointer, tool, musl] = nuget(release).unwrap();
        [
            tarball(release).unwrap(),
            deb(release).unwrap(),
            wheel(release, WheelLibc::Glibc).unwrap(),
            wheel(release, WheelLibc::Musl).unwrap(),
            pointer,
            tool,
            musl,
        ]
    };
    assert!(all(&release()) == all(&release()));
}

#[test]
fn the_archive_unpacks_to_programs_that_run() {
    let folder = tempfile::tempdir().unwrap();
    let archive = written(folder.path(), tarball(&release()).unwrap());
    printed(
        Command::new("tar")
            .arg("xzf")
            .arg(&archive)
            .current_dir(folder.path()),
    );
    let unpacked = folder.path().join("sidewalk-1.2.3-x86_64-linux");
    assert_eq!(
        printed(Command::new(unpacked.join("sidewalk")).arg("x")),
        "sidewalk x\n"
    );
    assert!(unpacked.join("completions/_sidewalk").is_file());
    assert!(unpacked.join("LICENCES.txt").is_file());
}

#[test]
fn debians_tools_read_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let package = written(folder.path(), deb(&release()).unwrap());
    let fields = printed(Command::new("dpkg-deb").arg("--field").arg(&package));
    for field in [
        "Package: sidewalk",
        "Version: 1.2.3",
        "Depends: libc6 (>= 2.17)",
    ] {
        assert!(fields.lines().any(|line| line == field), "{fields}");
    }
    let root = folder.path().join("root");
    printed(
        Command::new("dpkg-deb")
            .arg("--extract")
            .arg(&package)
            .arg(&root),
    );
    assert_eq!(
        printed(&mut Command::new(root.join("usr/bin/sidewalk"))),
        "sidewalk\n"
    );
    for file in [
        "usr/share/man/man1/sidewalk.1.gz",
        "usr/share/bash-completion/completions/sidewalk",
        "usr/share/zsh/vendor-completions/_sidewalk",
        "usr/share/doc/sidewalk/copyright",
    ] {
        assert!(root.join(file).is_file(), "{file}");
    }
}

#[test]
fn pip_installs_the_wheel() {
    let folder = tempfile::tempdir().unwrap();
    let wheel = written(folder.path(), wheel(&release(), WheelLibc::Glibc).unwrap());
    let venv = folder.path().join("venv");
    printed(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    let mut pip = Command::new(venv.join("bin/pip"));
    printed(pip.args(["install", "--no-index", "--quiet"]).arg(&wheel));
    assert_eq!(
        printed(&mut Command::new(venv.join("bin/sidewalk"))),
        "sidewalk\n"
    );
    // It has found each file as the list says.
    printed(Command::new(venv.join("bin/pip")).args(["uninstall", "--yes", "--quiet", "sidewalk"]));
    assert!(!venv.join("bin/sidewalk").exists());
}

/// There is no SDK here: the layout is that of tools that SDK 10 makes for a platform.
#[test]
fn nugets_packages_have_the_parts_of_a_tool() {
    let packages = nuget(&release()).unwrap();
    let [(pointer, in_pointer), (tool, in_tool), (musl, in_musl)] =
        packages.map(|(name, content)| {
            let mut zip = ::zip::ZipArchive::new(Cursor::new(content)).unwrap();
            let parts: BTreeMap<String, (String, Option<u32>)> = (0..zip.len())
                .map(|at| {
                    let mut file = zip.by_index(at).unwrap();
                    let mut text = Vec::new();
                    file.read_to_end(&mut text).unwrap();
                    let text = String::from_utf8_lossy(&text).into_owned();
                    (file.name().to_owned(), (text, file.unix_mode()))
                })
                .collect();
            (name, parts)
        });
    assert_eq!(pointer, "sidewalk.1.2.3.nupkg");
    assert_eq!(tool, "sidewalk.linux-x64.1.2.3.nupkg");
    assert_eq!(musl, "sidewalk.linux-musl-x64.1.2.3.nupkg");
    let text = |parts: &BTreeMap<String, (String, Option<u32>)>, name: &str| {
        parts
            .get(name)
            .unwrap_or_else(|| panic!("{name}"))
            .0
            .clone()
    };
    let settings = text(&in_pointer, "tools/net10.0/any/DotnetToolSettings.xml");
    assert!(settings.contains("<DotNetCliTool Version=\"2\">"));
    assert!(settings.contains("RuntimeIdentifier=\"linux-x64\" Id=\"sidewalk.linux-x64\""));
    let settings = text(&in_tool, "tools/any/linux-x64/DotnetToolSettings.xml");
    assert!(settings.contains("EntryPoint=\"sidewalk\" Runner=\"executable\""));
    let (program, mode) = &in_tool["tools/any/linux-x64/sidewalk"];
    assert!(program.contains("echo sidewalk"));
    assert_eq!(mode.unwrap() & 0o777, 0o755);
    let (program, mode) = &in_musl["tools/any/linux-musl-x64/sidewalk"];
    assert!(program.contains("echo sidewalk"));
    assert_eq!(mode.unwrap() & 0o777, 0o755);
    for (parts, id, kind) in [
        (&in_pointer, "sidewalk", "DotnetTool"),
        (&in_tool, "sidewalk.linux-x64", "DotnetToolRidPackage"),
        (&in_musl, "sidewalk.linux-musl-x64", "DotnetToolRidPackage"),
    ] {
        let nuspec = text(parts, &format!("{id}.nuspec"));
        for part in [
            format!("<id>{id}</id>"),
            format!("<packageType name=\"{kind}\" />"),
            "<license type=\"expression\">MIT</license>".into(),
            "<readme>README.md</readme>".into(),
            "<icon>icon.png</icon>".into(),
            "<projectUrl>https://example.org/sidewalk</projectUrl>".into(),
            "commit=\"0123abcd\"".into(),
        ] {
            assert!(nuspec.contains(&part), "{part}: {nuspec}");
        }
        // Each part has a type, by its name or its ending.
        let types = text(parts, "[Content_Types].xml");
        for name in parts.keys().filter(|name| *name != "[Content_Types].xml") {
            let by_name = format!("PartName=\"/{name}\"");
            let ending = name.rsplit('.').next().unwrap();
            let by_ending = format!("Extension=\"{ending}\"");
            assert!(
                types.contains(&by_name) || types.contains(&by_ending),
                "{name}"
            );
        }
    }
}
