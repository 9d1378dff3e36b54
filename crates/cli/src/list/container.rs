//! Names the container that a process is in, from its control group.
//!
//! The names are those that container engines use. They are for display only; no decision depends
//! on them.
//! Invariant: an unrecognised control group gives no container id. A process with a view of its own
//! (process ids or files) is reported as such.

use diagnostics::Target;

use crate::running;

/// Number of id digits shown, as in `docker ps`.
const SHORT_ID: usize = 12;

/// The container's short id, or which views the process has of its own.
pub(super) fn container_of(target: &Target) -> Option<String> {
    let groups = target.process().cgroups().ok();
    let mut paths = groups.iter().flatten().map(|group| &*group.pathname);
    if let Some(id) = paths.find_map(id_in) {
        return Some(id);
    }
    let own_pids = target.pid() != target.pid_inside();
    match (own_pids, target.shares_our_files()) {
        (true, _) => Some(format!("as pid {}", target.pid_inside())),
        (false, false) => Some("own files".to_owned()),
        (false, true) => None,
    }
}

/// The id in a control group's path: the innermost component with 64 hexadecimal digits
/// (`/docker/ID`, `/system.slice/docker-ID.scope`, `…/cri-containerd-ID.scope`,
/// `…/libpod-ID.scope/container`), or LXC's name.
fn id_in(path: &str) -> Option<String> {
    for part in path.rsplit('/') {
        if let Some(id) = running::container_id(part) {
            return id.get(..SHORT_ID).map(str::to_owned);
        }
        if let Some(name) = part.strip_prefix("lxc.payload.") {
            return Some(name.to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_known_engines() {
        let id = "0123456789abcdef".repeat(4);
        for path in [
            format!("/docker/{id}"),
            format!("/system.slice/docker-{id}.scope"),
            format!("/kubepods.slice/kubepods-pod7.slice/cri-containerd-{id}.scope"),
            format!("/kubepods/besteffort/pod7/{id}"),
            format!("/machine.slice/libpod-{id}.scope/container"),
            format!("/system.slice/containerd.service/kubepods:cri-containerd:{id}"),
        ] {
            assert_eq!(id_in(&path).as_deref(), Some("0123456789ab"), "{path}");
        }
        assert_eq!(
            id_in("/lxc.payload.web/system.slice").as_deref(),
            Some("web")
        );
        for path in [
            "/",
            "/user.slice/user-1000.slice/session-2.scope",
            "/docker/short",
        ] {
            assert_eq!(id_in(path), None, "{path}");
        }
    }
}
