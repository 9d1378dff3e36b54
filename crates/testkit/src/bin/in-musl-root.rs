//! `in-musl-root LOADER BUSYBOX DIR… -- FILE… -- COMMAND…`: runs a command (the tests) that starts
//! its programs in a root without glibc.
//!
//! The root, in a mount namespace of its own, has musl's loader, a static busybox, the folders DIR
//! at their places, and nothing else. The tests need glibc and run outside. In their namespace this
//! program is mounted over each FILE (the tool, `dotnet`). Started by the name of such a file, it
//! goes into the root, where the same path is the true file, and executes it. In a mount namespace
//! that a test made for itself (a container) it executes the true file there.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, unmount,
};
use rustix::process::{Signal, pivot_root, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// This process's mount namespace.
const OWN: &str = "/proc/self/ns/mnt";

fn main() {
    let own = std::env::current_exe().expect("/proc");
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    if own.file_name() != Some(OsStr::new(env!("CARGO_BIN_NAME"))) {
        enter(&own, &name, arguments);
    }
    let rest: Vec<OsString> = arguments.collect();
    match rest.first().is_some_and(|first| first == "make") {
        true => make(&rest[1..]),
        false => run(&own, &rest),
    }
}

/// A file or folder by which this program finds what it made.
fn place(name: &str) -> PathBuf {
    testkit::target_dir().join("in-musl-root").join(name)
}

/// Where the root is made.
const ROOT: &str = "root";
/// The root's namespace.
const INSIDE: &str = "inside";
/// The name of the namespace of the tests.
const OUTSIDE: &str = "outside";

#[expect(clippy::zombie_processes, reason = "it ends when this process does")]
fn run(own: &Path, arguments: &[OsString]) {
    let mut parts = arguments.split(|word| word == "--");
    let (kept, entered, command) = match (parts.next(), parts.next(), parts.next()) {
        (Some(kept), Some(entered), Some(command)) => (kept, entered, command),
        _ => panic!("LOADER BUSYBOX DIR… -- FILE… -- COMMAND…"),
    };
    fs::create_dir_all(place(ROOT)).expect("a folder");
    let mut made = Command::new(own)
        .arg("make")
        .args(kept)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program");
    let mut ready = String::new();
    let stdout = made.stdout.as_mut().expect("a pipe");
    BufReader::new(stdout)
        .read_line(&mut ready)
        .expect("a pipe");
    assert!(!ready.is_empty(), "no root without glibc was made");
    fs::remove_file(place(INSIDE)).ok();
    symlink(format!("/proc/{}/ns/mnt", made.id()), place(INSIDE)).expect("a link");
    own_namespace();
    let outside = fs::read_link(OWN).expect("/proc");
    fs::write(place(OUTSIDE), outside.as_os_str().as_encoded_bytes()).expect("a file");
    for file in entered {
        mount_bind(own, file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    let error = Command::new(&command[0]).args(&command[1..]).exec();
    panic!("{}: {error}", command[0].display());
}

/// Gives this process a mount namespace of its own, of which others see nothing.
fn own_namespace() {
    // SAFETY: this program has one thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("the right to mount: run as root");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).expect("a mount");
}

/// Makes the root, and keeps its namespace until the tests end.
fn make(arguments: &[OsString]) {
    set_parent_process_death_signal(Some(Signal::KILL)).expect("a signal");
    own_namespace();
    let root = place(ROOT);
    let none = MountFlags::empty();
    mount("root", &root, "tmpfs", none, None).expect("a mount");
    let at = |path: &OsStr| root.join(Path::new(path).strip_prefix("/").expect("a whole path"));
    let [loader, busybox, kept @ ..] = arguments else {
        panic!("LOADER BUSYBOX DIR…");
    };
    for folder in [
        "lib", "bin", "sbin", "usr/bin", "usr/sbin", "etc", "root", "old",
    ] {
        fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    fs::copy(loader, at(loader)).expect("musl's loader");
    fs::copy(busybox, root.join("bin/busybox")).expect("busybox");
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").expect("a file");
    let kernel = ["/proc", "/sys", "/dev", "/tmp"].map(OsString::from);
    for folder in kernel.iter().chain(kept) {
        fs::create_dir_all(at(folder)).expect("a folder");
        mount_bind_recursive(folder, at(folder))
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    }
    pivot_root(&root, root.join("old")).expect("a mount");
    std::env::set_current_dir("/").expect("a root");
    unmount("/old", UnmountFlags::DETACH).expect("a mount");
    fs::remove_dir("/old").expect("a folder");
    let installed = Command::new("/bin/busybox")
        .args(["--install", "-s"])
        .status();
    assert!(installed.expect("busybox").success());
    println!("ready");
    loop {
        std::thread::park();
    }
}

/// Executes the file that has this program mounted over it.
fn enter(file: &Path, name: &OsStr, arguments: impl Iterator<Item = OsString>) -> ! {
    let outside = fs::read(place(OUTSIDE)).expect("a root that was made");
    let here = fs::read_link(OWN).expect("/proc");
    if outside == here.as_os_str().as_encoded_bytes() {
        let folder = std::env::current_dir();
        let inside = File::open(place(INSIDE)).expect("a root that was made");
        move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Mount))
            .expect("the right to change the root");
        if let Ok(folder) = folder {
            std::env::set_current_dir(folder).expect("a folder that the root keeps");
        }
    } else {
        unmount(file, UnmountFlags::DETACH).expect("the right to mount");
    }
    let error = Command::new(file).arg0(name).args(arguments).exec();
    panic!("{}: {error}", file.display());
}
