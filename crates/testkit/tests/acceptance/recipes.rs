//! docs/recipes.md: its scripts for CI and its settings for pods work unchanged.
//!
//! No CI runner or cluster is used. A job's scripts run in a folder laid out as by a runner. A pod
//! is replaced by the same namespaces and capabilities.

use std::fs;
use std::path::Path;
use std::process::Command;

use saphyr::{LoadableYamlNode as _, Yaml};
use testkit::{
    Machine, Runtime, agent, agent_variable, output_in_time, repository, sidewalk, test_folder,
    workload,
};

use crate::containers::{contained, empty_tmp};

fn page() -> String {
    fs::read_to_string(repository().join("docs/recipes.md")).unwrap()
}

/// Returns the code blocks of the page in `language`.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let begin = format!("```{language}\n");
    let blocks = page.split(begin.as_str()).skip(1);
    blocks
        .map(|block| block.split("```\n").next().unwrap())
        .collect()
}

fn parsed(text: &str) -> Yaml<'_> {
    let mut documents = Yaml::load_from_str(text).unwrap();
    assert_eq!(documents.len(), 1);
    documents.remove(0)
}

fn text(node: &Yaml<'_>) -> String {
    node.as_str()
        .unwrap_or_else(|| panic!("{node:?} is no text"))
        .to_owned()
}

fn items<'n, 'y>(node: &'n Yaml<'y>) -> &'n [Yaml<'y>] {
    node.as_vec()
        .unwrap_or_else(|| panic!("{node:?} is no list"))
}

/// Writes an archive of the local build with the layout of `cargo xtask dist`.
fn release(folder: &Path) {
    let name = format!("sidewalk-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let inside = folder.join(&name);
    fs::create_dir_all(&inside).unwrap();
    fs::copy(sidewalk(), inside.join("sidewalk")).unwrap();
    fs::copy(agent(), inside.join("libsidewalk.so")).unwrap();
    let script = format!("tar czf {name}.tar.gz {name} && sha256sum {name}.tar.gz > SHA256SUMS");
    let done = Command::new("sh")
        .args(["-ec", &script])
        .current_dir(folder)
        .status();
    assert!(done.unwrap().success());
}

#[test]
fn the_job_of_github_actions_runs() {
    let page = page();
    let job = parsed(blocks(&page, "yaml")[0]);
    let job = &job["jobs"]["profile"];
    assert_eq!(text(&job["runs-on"]), "ubuntu-latest");
    let folder = test_folder("recipe-actions");
    let (there, work) = (folder.join("there"), folder.join("work"));
    for folder in [&there, &work.join("out")] {
        fs::create_dir_all(folder).unwrap();
    }
    release(&there);
    let runtime = Runtime::net8();
    // The files that `dotnet build` would have made: there is no SDK here.
    let built = workload("leaf").dll;
    for file in fs::read_dir(built.parent().unwrap()).unwrap().flatten() {
        let name = file.file_name().into_string().unwrap();
        let name = match name.strip_prefix("leaf.") {
            Some(ending) if ending != "dll" && ending != "pdb" => format!("bench.{ending}"),
            _ => name,
        };
        fs::copy(file.path(), work.join("out").join(name)).unwrap();
    }
    fs::copy(&built, work.join("out/bench.dll")).unwrap();

    let added = work.join("path");
    fs::write(&added, "").unwrap();
    let run = |script: &str| {
        let paths = fs::read_to_string(&added).unwrap();
        let paths = paths
            .lines()
            .chain([runtime.root().to_str().unwrap(), "/usr/bin:/bin"]);
        let mut command = Command::new("bash");
        command
            // As a runner does.
            .args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script])
            .current_dir(&work)
            .env("PATH", paths.collect::<Vec<_>>().join(":"))
            .env("GITHUB_PATH", &added)
            .env("SIDEWALK", format!("file://{}", there.to_str().unwrap()))
            .env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1")
            .env_remove("SIDEWALK_AGENT");
        output_in_time(&mut command)
    };
    let machine = Machine::exclusive();
    let mut ran = Vec::new();
    for step in items(&job["steps"]) {
        let script = match (step.as_mapping_get("uses"), step.as_mapping_get("run")) {
            (Some(action), None) => {
                assert!(text(action).contains('@'), "{action:?} has no version");
                continue;
            }
            (None, Some(script)) => text(script),
            _ => panic!("{step:?} is either an action or a script"),
        };
        if script.starts_with("dotnet build") {
            continue;
        }
        let answer = run(&script);
        assert!(answer.status.success(), "{script}: {answer:?}");
        if script.starts_with("sidewalk record") {
            // Compared with itself: what changed by chance is the test of `diff`, not this one's.
            fs::copy(work.join("profile.swk"), work.join("baseline.swk")).unwrap();
        }
        ran.push(text(&step["name"]));
    }
    drop(machine);
    assert_eq!(ran, ["Get Sidewalk", "Record", "Compare"]);
    let kept = items(&job["steps"]).last().unwrap();
    for file in text(&kept["with"]["path"]).lines() {
        assert!(
            fs::metadata(work.join(file)).unwrap().len() > 1000,
            "{file}"
        );
    }
}

/// Capabilities that Kubernetes' runtimes give a container that asks for nothing.
const USUAL: [&str; 14] = [
    "chown",
    "dac_override",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "net_bind_service",
    "net_raw",
    "sys_chroot",
    "mknod",
    "audit_write",
    "setfcap",
];

#[test]
fn the_commands_for_a_pod_record_with_what_it_gives_them() {
    let page = page();
    let pod = parsed(blocks(&page, "yaml")[1]);
    assert_eq!(text(&pod["kind"]), "Pod");
    assert_eq!(pod["spec"]["shareProcessNamespace"].as_bool(), Some(true));
    let containers = items(&pod["spec"]["containers"]);
    let sidecar = containers
        .iter()
        .find(|one| text(&one["name"]) == "sidewalk")
        .unwrap();
    let context = &sidecar["securityContext"];
    assert_eq!(context["runAsUser"].as_integer(), Some(0));
    let added = items(&context["capabilities"]["add"])
        .iter()
        .map(|name| text(name).to_lowercase());
    let granted: Vec<String> = USUAL
        .iter()
        .map(|name| (*name).to_owned())
        .chain(added)
        .collect();
    assert_eq!(granted.len(), USUAL.len() + 1);
    let bounds = granted
        .iter()
        .fold("-all".to_owned(), |list, name| format!("{list},+{name}"));

    // The program: a root of its own as far as it matters here, and no sight of where the agent
    // lies.
    let runtime = Runtime::net8();
    let hidden = agent().parent().unwrap().to_str().unwrap().to_owned();
    let mounts = format!("mount -t tmpfs none {hidden}\n{}", empty_tmp(""));
    let (running, target) = contained(&runtime, &mounts);

    // In the pod's view of processes, with files of its own.
    let folder = test_folder("recipe-pod");
    let commands = blocks(&page, "console").concat();
    let commands = commands
        .lines()
        .filter_map(|line| line.strip_prefix("$ kubectl exec shop "));
    let (mut ran, mut reported) = (0, String::new());
    for command in commands {
        let (_, command) = command.split_once(" -- ").unwrap();
        let (command, file) = command.split_once(" > ").unwrap_or((command, "list.txt"));
        let words = command.strip_prefix("sidewalk ").unwrap().split(' ');
        let setting = format!("mount -t proc proc /proc\n{}\nexec \"$@\"", empty_tmp(""));
        let mut sidecar = Command::new("nsenter");
        sidecar
            .args(["--pid", "--target", &target.pid().to_string(), "--"])
            .args(["unshare", "--mount", "sh", "-ec", &setting, "sh"])
            .args([
                "setpriv",
                "--inh-caps=-all",
                &format!("--bounding-set={bounds}"),
                "--",
            ])
            .arg(sidewalk())
            .args(words)
            .env(agent_variable(), agent())
            .current_dir(&folder);
        let machine = Machine::exclusive();
        let answer = output_in_time(&mut sidecar);
        drop(machine);
        assert!(answer.status.success(), "{command}: {answer:?}");
        fs::write(folder.join(file), &answer.stdout).unwrap();
        reported = String::from_utf8(answer.stderr).unwrap();
        ran += 1;
    }
    assert_eq!(ran, 2);
    let list = fs::read_to_string(folder.join("list.txt")).unwrap();
    assert!(
        list.contains("attach") && list.contains("waits.dll"),
        "{list}"
    );
    let picture = fs::read_to_string(folder.join("flame.html")).unwrap();
    assert!(picture.starts_with("<!DOCTYPE html>"), "{picture}");
    // A line counts what is in the picture, which is packed.
    let line = reported
        .lines()
        .find(|line| line.contains(" samples, "))
        .unwrap();
    let samples = line.trim_start_matches("sidewalk: ");
    let (samples, _) = samples.split_once(' ').unwrap();
    assert!(
        samples.parse::<u32>().is_ok_and(|samples| samples > 0),
        "{reported}"
    );
    running.end_well();
}
