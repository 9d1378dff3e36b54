//! Pushes the profile of each interval to folders and stores (`record --push`).
//!
//! Folders are written at once; each store has a sender with a thread and a bounded queue.
//! Invariants: all that can be checked is checked before a command starts. Secrets come from files
//! and the environment, and are in no message. What leaves the machine has no command line and no
//! environment but the resource attributes that OpenTelemetry defines ([`super::resource`]).

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use formats::otlp::Facts;
use formats::{Format, OutputOptions};
use profile::Profile;
use profile::model::Process;
use push::{Credentials, Delivery, DeliveryWatch, Endpoint, Folder, Pacing, Sender, Target};

use super::resource::ResourceReader;
use crate::args::RecordArgs;
use crate::console::escaped;

/// Time in which profiles that wait are sent at the end.
const FLUSH_TIME: Duration = Duration::from_secs(10);
/// Maximum length of a file with headers.
const MAX_HEADERS: u64 = 64 * 1024;

/// Places to push to, checked.
#[derive(Default)]
pub(super) struct PushPlan {
    folders: Vec<Folder>,
    format: Option<Format>,
    stores: Vec<(Protocol, Endpoint, Credentials)>,
}

/// The protocol of a store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Pprof,
    Otlp,
    Pyroscope,
}

/// A store that is pushed to.
struct Store {
    protocol: Protocol,
    /// Its address, for messages.
    address: String,
    sender: Sender,
    /// Number of lost profiles in the last warning.
    warned: u64,
}

/// Places that are pushed to.
pub(super) struct Pushes {
    /// First part of the names of files.
    name: String,
    folders: Vec<Folder>,
    format: Format,
    stores: Vec<Store>,
    resources: ResourceReader,
}

impl PushPlan {
    /// Checks the places.
    ///
    /// # Errors
    /// A folder cannot be written, or a file with a token or headers cannot be read.
    pub(super) fn check(args: &RecordArgs) -> Result<PushPlan> {
        let limits = push::FolderLimits {
            files: args.keep,
            bytes: args.keep_size,
            age: args.keep_age,
        };
        let (mut folders, mut stores) = (Vec::new(), Vec::new());
        for target in &args.pushes {
            let (protocol, address) = match target {
                Target::Folder(path) => {
                    let opened = Folder::open(path, limits);
                    let shown = escaped(path);
                    folders.push(opened.with_context(|| format!("cannot push into {shown}"))?);
                    continue;
                }
                Target::Pprof(address) => (Protocol::Pprof, address),
                Target::Otlp(address) => (Protocol::Otlp, address),
                Target::Pyroscope(address) => (Protocol::Pyroscope, address),
                Target::WithPassword => bail!(push::WITH_PASSWORD),
            };
            let endpoint = Endpoint {
                address: address.clone(),
                content_type: match protocol {
                    Protocol::Otlp => "application/x-protobuf",
                    Protocol::Pyroscope => "application/proto",
                    Protocol::Pprof => "application/octet-stream",
                },
                // A pprof is compressed itself.
                is_gzip: protocol != Protocol::Pprof,
                is_otlp: protocol == Protocol::Otlp,
                spool: args.push_spool.clone(),
            };
            stores.push((protocol, endpoint, credentials(args, protocol)?));
        }
        Ok(PushPlan {
            folders,
            format: args.format,
            stores,
        })
    }

    /// Starts the senders. `name` is the first part of the names of files.
    ///
    /// # Errors
    /// The proxy of the environment is none, or the system has no more threads.
    pub(super) fn start(self, name: &str) -> Result<Pushes> {
        let mut stores = Vec::new();
        for (protocol, endpoint, credentials) in self.stores {
            let address = endpoint.address.as_str();
            // A query may have a key in it.
            let address = address.split('?').next().unwrap_or_default().to_owned();
            let variable = |name: &str| std::env::var_os(name);
            let sender = Sender::start(endpoint, credentials, Pacing::default(), &variable);
            stores.push(Store {
                protocol,
                sender: sender.map_err(|why| anyhow!("cannot push to {address}: {why}"))?,
                address,
                warned: 0,
            });
        }
        Ok(Pushes {
            name: name.to_owned(),
            folders: self.folders,
            format: self.format.unwrap_or(Format::Pprof),
            stores,
            resources: ResourceReader::default(),
        })
    }
}

impl Pushes {
    /// Whether there is nothing to push to.
    pub(super) fn is_empty(&self) -> bool {
        self.folders.is_empty() && self.stores.is_empty()
    }

    /// The stores by address, and the numbers of what was sent there.
    pub(super) fn watches(&self) -> Vec<(String, DeliveryWatch)> {
        let stores = self.stores.iter();
        stores
            .map(|store| (store.address.clone(), store.sender.watch()))
            .collect()
    }

    /// Pushes the profile of an interval that began at `unix_ns`. Returns the files that were
    /// written.
    ///
    /// # Errors
    /// A file cannot be written. The other places have the profile.
    pub(super) fn push(&mut self, profile: &Profile, unix_ns: u64) -> Result<Vec<PathBuf>> {
        let store = |protocol| {
            self.stores
                .iter()
                .filter(move |one| one.protocol == protocol)
        };
        let options = OutputOptions::default();
        self.resources.forget_others(profile);
        if store(Protocol::Pyroscope).next().is_some() {
            let labels = |process: &Process| self.resources.labels(profile, process);
            let requests = formats::pyroscope::requests(profile, &options, &labels);
            for request in &requests.map_err(anyhow::Error::msg)? {
                store(Protocol::Pyroscope).for_each(|one| one.sender.send(request));
            }
        }
        if store(Protocol::Otlp).next().is_some() {
            let facts = Facts {
                resource: &|process| self.resources.of(profile, process),
                file_hash: &|module| self.resources.file_hash(module),
                version: env!("CARGO_PKG_VERSION"),
            };
            let requests = formats::otlp::requests(profile, &options, &facts);
            for request in &requests {
                store(Protocol::Otlp).for_each(|one| one.sender.send(request));
            }
        }
        if store(Protocol::Pprof).next().is_some() && !profile.samples.is_empty() {
            let for_store = OutputOptions {
                for_store: true,
                ..options.clone()
            };
            let mut content = Vec::new();
            formats::write(Format::Pprof, profile, &for_store, &mut content)?;
            store(Protocol::Pprof).for_each(|one| one.sender.send(&content));
        }
        let mut written = Vec::new();
        let mut content = Vec::new();
        if !self.folders.is_empty() {
            formats::write(self.format, profile, &options, &mut content)?;
        }
        let mut failure = Ok(());
        for folder in &self.folders {
            match folder.push(&self.name, unix_ns, self.format.ending(), &content) {
                Ok(path) => written.push(path),
                Err(error) => failure = Err(error),
            }
        }
        failure.context("cannot push a profile into a folder")?;
        Ok(written)
    }

    /// Returns warnings about profiles that did not arrive, not more of them than doublings.
    pub(super) fn warnings(&mut self) -> Vec<String> {
        let mut warnings = Vec::new();
        for store in &mut self.stores {
            let delivery = store.sender.watch().delivery();
            let lost = lost(&delivery);
            if lost >= (2 * store.warned).max(1) {
                store.warned = lost;
                warnings.push(warning(&store.address, &delivery));
            }
        }
        warnings
    }

    /// Sends what waits, and ends the senders. Returns how many profiles did not arrive, and
    /// warnings about them.
    pub(super) fn finish(self) -> (u64, Vec<String>) {
        let (mut missing, mut warnings) = (0, Vec::new());
        // All have the same time.
        self.stores
            .iter()
            .for_each(|store| store.sender.close(FLUSH_TIME));
        for store in self.stores {
            let delivery = store.sender.finish(FLUSH_TIME);
            let lost = lost(&delivery);
            missing += lost;
            if lost > store.warned {
                warnings.push(warning(&store.address, &delivery));
            }
            if delivery.kept > 0 {
                let kept = formats::plural(delivery.kept, "profile");
                let why = delivery
                    .last_failure
                    .as_deref()
                    .unwrap_or("it was too slow");
                warnings.push(format!(
                    "{kept} for {} stay in the spool until it is pushed to again: {why}",
                    store.address
                ));
            }
        }
        (missing, warnings)
    }
}

fn lost(delivery: &Delivery) -> u64 {
    delivery.lost() + delivery.rejected_profiles
}

fn warning(address: &str, delivery: &Delivery) -> String {
    let lost = formats::plural(lost(delivery), "profile");
    let why = delivery.last_failure.as_deref();
    let why = why.unwrap_or("too many were waiting to be sent");
    format!("{lost} did not arrive at {address} so far: {why}")
}

/// Returns the headers for a store, and where its token is.
fn credentials(args: &RecordArgs, protocol: Protocol) -> Result<Credentials> {
    let mut headers = Vec::new();
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    match protocol {
        // As the exporters of OpenTelemetry.
        Protocol::Otlp => {
            let given = variable("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default();
            headers.extend(super::resource::pairs(&given));
        }
        // As the clients of Pyroscope.
        Protocol::Pyroscope => {
            let user = variable("PYROSCOPE_BASIC_AUTH_USER");
            if let Some(user) = user.filter(|_| args.push_token_file.is_none()) {
                let password = variable("PYROSCOPE_BASIC_AUTH_PASSWORD").unwrap_or_default();
                let basic = STANDARD.encode(format!("{user}:{password}"));
                headers.push(("Authorization".to_owned(), format!("Basic {basic}")));
            }
            let tenant = variable("PYROSCOPE_TENANT_ID");
            headers.extend(tenant.map(|tenant| ("X-Scope-OrgID".to_owned(), tenant)));
        }
        Protocol::Pprof => {}
    }
    if let Some(file) = &args.push_header_file {
        let shown = escaped(file);
        let text = read_small(file).with_context(|| format!("cannot read {shown}"))?;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let Some((name, value)) = line.split_once(':') else {
                // Not the line: it may be a secret.
                bail!("a line of {shown} is no header: expected Name: value");
            };
            headers.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    let is_valid = |(name, value): &(String, String)| {
        let is_token = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !name.is_empty()
            && name.chars().all(is_token)
            && value
                .bytes()
                .all(|byte| byte.is_ascii_graphic() || byte == b' ')
    };
    if let Some((name, _)) = headers.iter().find(|header| !is_valid(header)) {
        bail!("the header {} cannot be sent", escaped(name));
    }
    if let Some(file) = &args.push_token_file {
        let shown = escaped(file);
        let token = read_small(file).with_context(|| format!("cannot read {shown}"))?;
        if token.trim().is_empty() {
            bail!("there is no token in {shown}");
        }
    }
    Ok(Credentials {
        token_file: args.push_token_file.clone(),
        headers,
    })
}

fn read_small(file: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    let file = std::fs::File::open(file)?;
    file.take(MAX_HEADERS).read_to_string(&mut text)?;
    Ok(text)
}
