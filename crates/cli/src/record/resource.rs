//! Attributes of a recorded process's resource, as OpenTelemetry defines them.
//!
//! Invariant: of a process's environment only [`VARIABLES`] are used, which are made to be sent.
//! Nothing of its command line is but the program's name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};

use diagnostics::Target;
use formats::otlp::SERVICE_NAME;
use profile::Profile;
use profile::model::{Module, Process};
use sha2::{Digest as _, Sha256};

use crate::running;

/// Length of the parts of a file that its hash covers.
const HASHED: u64 = 4096;
/// Maximum number of files whose hashes are kept.
const MAX_HASHES: usize = 10_000;
/// Variables of a process that are used.
const VARIABLES: [&str; 4] = [
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "PYROSCOPE_APPLICATION_NAME",
    "PYROSCOPE_LABELS",
];

/// Reads attributes, and keeps them while a process is recorded: they may be unreadable in its last
/// interval.
#[derive(Default)]
pub(super) struct ResourceReader {
    known: RefCell<HashMap<ProcessIdentity, ProcessFacts>>,
    hashes: RefCell<HashMap<String, Option<String>>>,
}

/// Names and values.
type Pairs = Vec<(String, String)>;

/// Facts about a process.
#[derive(Clone, Default)]
struct ProcessFacts {
    attributes: Pairs,
    /// Labels that Pyroscope's users set: `service_name` and others.
    labels: Pairs,
}

/// Pid and command line.
type ProcessIdentity = (u32, Vec<String>);

fn identity(process: &Process) -> ProcessIdentity {
    (process.pid, process.command.clone())
}

impl ResourceReader {
    /// Drops what is known of processes that are not in this profile.
    pub(super) fn forget_others(&self, profile: &Profile) {
        let present: Vec<ProcessIdentity> = profile.processes.iter().map(identity).collect();
        let mut known = self.known.borrow_mut();
        known.retain(|process, _| present.contains(process));
    }

    fn facts(&self, process: &Process) -> ProcessFacts {
        let mut known = self.known.borrow_mut();
        let facts = known.entry(identity(process));
        facts.or_insert_with(|| facts_of(process)).clone()
    }

    /// The labels of a process in Pyroscope. None of them is another one for each process.
    pub(super) fn labels(&self, profile: &Profile, process: &Process) -> Pairs {
        let mut labels = self.facts(process).labels;
        let attributes = self.of(profile, process).into_iter();
        labels.extend(attributes.filter(|(name, _)| name != INSTANCE));
        labels
    }

    /// The attributes of a process.
    pub(super) fn of(&self, profile: &Profile, process: &Process) -> Pairs {
        let mut attributes = self.facts(process).attributes;
        let runtimes = profile.runtimes.iter();
        let own = |id: profile::model::ProcessId| profile.process(id).pid == process.pid;
        let mut versions: Vec<&str> = runtimes
            .filter(|runtime| runtime.recorded && own(runtime.process))
            .map(|runtime| &*runtime.version)
            .collect();
        versions.sort_unstable();
        versions.dedup();
        if !versions.is_empty() {
            attributes.push(("process.runtime.name".to_owned(), ".NET".to_owned()));
            let versions = versions.join(", ");
            attributes.push(("process.runtime.version".to_owned(), versions));
        }
        attributes
    }

    /// `process.executable.build_id.htlhash` of a module's file: the first 16 bytes of the SHA-256
    /// of its first and last 4,096 bytes and its length.
    pub(super) fn file_hash(&self, module: &Module) -> Option<String> {
        let mut hashes = self.hashes.borrow_mut();
        if hashes.len() >= MAX_HASHES {
            hashes.clear();
        }
        if let Some(known) = hashes.get(&module.path) {
            return known.clone();
        }
        // A module inside a file has no file of its own.
        let is_file = module.path.starts_with('/') && module.file_offset == 0;
        let hash = is_file.then(|| hash_of(&module.path)).and_then(Result::ok);
        hashes.insert(module.path.clone(), hash.clone());
        hash
    }
}

fn hash_of(path: &str) -> io::Result<String> {
    let mut file = File::open(path)?;
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let length = facts.len();
    let mut content = Vec::new();
    (&file).take(HASHED).read_to_end(&mut content)?;
    file.seek(SeekFrom::Start(length.saturating_sub(HASHED)))?;
    (&file).take(HASHED).read_to_end(&mut content)?;
    content.extend_from_slice(&length.to_be_bytes());
    let hash = Sha256::digest(&content);
    Ok(hash
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// Attribute that is unique for each process.
const INSTANCE: &str = "service.instance.id";

/// Reads the facts about a process.
fn facts_of(process: &Process) -> ProcessFacts {
    let pid = process.pid;
    // Another process may have the id in our view, or a later one.
    let target = Target::new(pid);
    let is_it = target.is_ok_and(|target| running::command(&target) == process.command);
    let variables = match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) if is_it => variables(&environment),
        // A command inherits ours.
        _ => VARIABLES.map(|name| std::env::var(name).ok()),
    };
    let [service, given, application, labels] = variables;
    let mut attributes: Vec<(String, String)> = pairs(&given.unwrap_or_default()).collect();
    let mut set = |key: &str, value: String, is_default: bool| match attributes
        .iter_mut()
        .find(|(known, _)| known == key)
    {
        Some(_) if is_default => {}
        Some((_, known)) => *known = value,
        None => attributes.push((key.to_owned(), value)),
    };
    let name = process.name();
    let name = name.strip_suffix(".dll").unwrap_or(&name);
    match service.filter(|service| !service.is_empty()) {
        Some(service) => set(SERVICE_NAME, service, false),
        None => set(SERVICE_NAME, name.to_owned(), true),
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    set("host.name", host.to_owned(), true);
    // A number would have the whole batch refused behind a Collector, so `process.pid` is here.
    set(INSTANCE, format!("{host}:{pid}"), true);
    let groups = match is_it {
        true => fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default(),
        false => String::new(),
    };
    if let Some(container) = container_id(&groups) {
        set("container.id", container.to_owned(), true);
    }
    if let Some(pod) = pod_uid(&groups) {
        set("k8s.pod.uid", pod, true);
    }
    let application = application.filter(|name| !name.is_empty());
    let labels = labels.unwrap_or_default();
    let given = labels.split(',').filter_map(|pair| pair.split_once(':'));
    let given = given.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
    let named = application.map(|name| ("service_name".to_owned(), name));
    ProcessFacts {
        attributes,
        labels: named.into_iter().chain(given).collect(),
    }
}

/// Returns the values of [`VARIABLES`] in the content of `/proc/PID/environ`.
fn variables(environment: &[u8]) -> [Option<String>; 4] {
    VARIABLES.map(|name| {
        let mut all = environment.split(|byte| *byte == 0);
        let value = all.find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(String::from_utf8_lossy(value).into_owned())
    })
}

/// Parses `key=value,key=value`, with values as in a URL.
pub(super) fn pairs(text: &str) -> impl Iterator<Item = (String, String)> + '_ {
    text.split(',').filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        let key = key.trim();
        (!key.is_empty()).then(|| (key.to_owned(), decoded(value.trim())))
    })
}

/// Replaces `%41` by `A`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *byte == b'%');
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(decoded) => {
                bytes.push(decoded);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the container's id in the content of `/proc/PID/cgroup`.
fn container_id(groups: &str) -> Option<&str> {
    let mut parts = groups.lines().flat_map(|line| line.split('/').rev());
    parts.find_map(running::container_id)
}

/// Returns the uid of a Kubernetes pod in the content of `/proc/PID/cgroup`.
fn pod_uid(groups: &str) -> Option<String> {
    // With systemd the uid has `_` for `-`.
    let mut parts = groups.lines().flat_map(|line| line.split('/'));
    parts.find_map(|part| {
        let part = part.strip_suffix(".slice").unwrap_or(part);
        let (_, uid) = part.rsplit_once("pod")?;
        let uid = uid.replace('_', "-");
        let groups: Vec<&str> = uid.split('-').collect();
        let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
        let is_hex = uid
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        (is_hex && lengths == [8, 4, 4, 4, 12]).then_some(uid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_the_environment() {
        let found = |text| pairs(text).collect::<Vec<_>>();
        let of = |pairs: &[(&str, &str)]| {
            let owned = pairs
                .iter()
                .map(|(key, value)| (key.to_string(), value.to_string()));
            owned.collect::<Vec<_>>()
        };
        assert_eq!(
            found("a=1, b.c = x%20y,bad,=,d="),
            of(&[("a", "1"), ("b.c", "x y"), ("d", "")])
        );
        assert_eq!(found("a=%zz%4"), of(&[("a", "%zz%4")]));
        let environment = b"PATH=/bin\0SECRET=x\0OTEL_SERVICE_NAME=shop\0XOTEL_SERVICE_NAME=no\0";
        let [service, others @ ..] = variables(environment);
        assert_eq!(service.as_deref(), Some("shop"));
        assert_eq!(others, [None, None, None]);
    }

    #[test]
    fn containers_and_pods() {
        let id = "0123456789abcdef".repeat(4);
        let uid = "12345678-9abc-def0-1234-56789abcdef0";
        let systemd = uid.replace('-', "_");
        for (groups, container, pod) in [
            ("0::/".to_owned(), None, None),
            ("0::/user.slice/session-3.scope\n".into(), None, None),
            (format!("0::/docker/{id}\n"), Some(&*id), None),
            (
                format!("0::/system.slice/docker-{id}.scope\n"),
                Some(&*id),
                None,
            ),
            (
                format!("1:cpu:/kubepods/burstable/pod{uid}/{id}\n0::/\n"),
                Some(&*id),
                Some(uid),
            ),
            (
                format!(
                    "0::/kubepods.slice/kubepods-pod{systemd}.slice/cri-containerd-{id}.scope\n"
                ),
                Some(&*id),
                Some(uid),
            ),
        ] {
            assert_eq!(container_id(&groups), container, "{groups}");
            assert_eq!(pod_uid(&groups).as_deref(), pod, "{groups}");
        }
    }

    #[test]
    fn hashes_of_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, vec![7; 5000]).unwrap();
        let mut content = vec![7; 8192];
        content.extend_from_slice(&5000u64.to_be_bytes());
        let digest = Sha256::digest(&content);
        let expected: String = digest
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hash_of(path.to_str().unwrap()).unwrap(), expected);
        assert!(hash_of(folder.path().to_str().unwrap()).is_err());
    }
}
