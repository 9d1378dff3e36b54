//! `cargo xtask dist`: builds the release in `target/dist`: archive, `.deb`, wheel, NuGet packages
//! and checksums.
//!
//! Invariants: two runs on one commit, in two folders, write the same bytes. A build fails if the
//! tool is not static, if another binary needs more than glibc 2.17, if one contains a path of this
//! machine, or if an agent is linked in another way than it must be.

mod archive;
mod binaries;
mod packages;
mod parts;
mod tryout;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use self::packages::{Release, WheelLibc};
use xtask::process::run_quietly;

/// Builds and packs all.
pub(crate) fn run() -> Result<()> {
    let repository = testkit::repository();
    let of_commit = |format: &str| -> Result<String> {
        let mut git = Command::new("git");
        git.args(["log", "-1", format]).current_dir(repository);
        Ok(run_quietly(&mut git)?.trim().to_owned())
    };
    let time: u64 = of_commit("--format=%ct")?
        .parse()
        .context("the time of the commit")?;
    let built = binaries::build(time, &of_commit("--format=%H")?)?;
    let say = |arguments: &[&str]| -> Result<Vec<u8>> {
        let mut command = Command::new(&built.sidewalk);
        Ok(run_quietly(command.args(arguments))?.into_bytes())
    };
    let mut pages = vec![("sidewalk.1".to_owned(), say(&["man"])?)];
    let help = String::from_utf8(say(&["--help"])?)?;
    for verb in verbs(&help) {
        pages.push((format!("sidewalk-{verb}.1"), say(&["man", verb])?));
    }
    let parts = parts::crates_of(&["sidewalk", "libsidewalk", "runsxs"])?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let release = Release {
        time,
        sidewalk: fs::read(&built.sidewalk)?,
        runsxs: fs::read(&built.runsxs)?,
        pages,
        completions: vec![
            ("bash", say(&["completions", "bash"])?),
            ("zsh", say(&["completions", "zsh"])?),
            ("fish", say(&["completions", "fish"])?),
        ],
        commit: of_commit("--format=%H")?,
        project: project(repository),
        readme: fs::read_to_string(repository.join("docs/install.md"))?,
        licence: fs::read_to_string(repository.join("LICENSE-MIT"))?,
        licences: parts::licences(&parts),
        bill: parts::bill(&parts, &version)?,
        version,
    };
    let mut files = vec![
        packages::tarball(&release)?,
        packages::deb(&release)?,
        packages::wheel(&release, WheelLibc::Glibc)?,
        packages::wheel(&release, WheelLibc::Musl)?,
    ];
    files.extend(packages::nuget(&release)?);
    files.sort();
    let folder = testkit::target_dir().join("dist");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let mut sums = String::new();
    for (name, content) in &files {
        fs::write(folder.join(name), content)?;
        sums += &format!("{}  {name}\n", hex(&Sha256::digest(content)));
    }
    fs::write(folder.join("SHA256SUMS"), &sums)?;
    print!("{sums}");
    eprintln!("wrote {}", relative_text(&folder));
    Ok(())
}

/// Where the project lives: `SIDEWALK_PROJECT_URL`, else the repository from which this one was
/// cloned, if a browser can open it.
fn project(repository: &Path) -> Option<String> {
    let given = std::env::var("SIDEWALK_PROJECT_URL").ok();
    let url = given.or_else(|| {
        let mut git = Command::new("git");
        let git = git
            .current_dir(repository)
            .args(["remote", "get-url", "origin"]);
        Some(
            run_quietly(git)
                .ok()?
                .trim()
                .trim_end_matches(".git")
                .to_owned(),
        )
    });
    let is_plain =
        |url: &String| url.starts_with("https://") && !url.contains(['<', '&', '"', '@']);
    let url = url.filter(is_plain);
    if url.is_none() {
        eprintln!("note: packages name no project page: set SIDEWALK_PROJECT_URL");
    }
    url
}

/// Installs what has been packed, and records a program with each.
pub(crate) fn try_out() -> Result<()> {
    tryout::run(&testkit::target_dir().join("dist"))
}

/// The one file in a folder with that ending.
fn only(folder: &Path, ending: &str) -> Result<String> {
    let entries = fs::read_dir(folder).context("run cargo xtask dist first")?;
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names = names.filter(|name| name.ends_with(ending));
    match (names.next(), names.next()) {
        (Some(name), None) => Ok(name),
        _ => bail!("{} has no one file {ending}", relative_text(folder)),
    }
}

/// The verbs, each of which has a page.
fn verbs(help: &str) -> Vec<&str> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty()).collect()
}

fn relative_text(path: &Path) -> String {
    path.display().to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_those_of_the_help() {
        let help = "About\n\nCommands:\n  record  Record\n          a program\n  man     Print\n\nOptions:\n  -q\n";
        assert_eq!(verbs(help), ["record", "man"]);
    }
}
