use super::*;

fn own() -> (Target, Loader) {
    let target = Target::new(std::process::id()).unwrap();
    let loader = Loader::of(&target).unwrap();
    (target, loader)
}

fn folder(path: &Path) -> Folder {
    own().0.open_folder(path).unwrap()
}

fn write_and_lock(
    folder: &Folder,
    name: &str,
    content: &[u8],
    loader: &Loader,
) -> Result<File, &'static str> {
    super::write_and_lock(folder, name, content, loader, FolderAccess::Shared)
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Reads a file by its descriptor, whatever its path names now.
fn held(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd as _;
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_copy_is_made_once_and_stays_what_it_is() {
    let (_, loader) = own();
    let place = tempfile::tempdir().unwrap();
    let folder = folder(place.path());
    let first = write_and_lock(&folder, "libsidewalk-0.so", b"content", &loader).unwrap();
    let inode = first.metadata().unwrap().ino();
    assert_eq!(first.metadata().unwrap().mode() & 0o7777, 0o755);
    let second = write_and_lock(&folder, "libsidewalk-0.so", b"content", &loader).unwrap();
    assert_eq!(second.metadata().unwrap().ino(), inode);
    assert_eq!(names(place.path()), ["libsidewalk-0.so"]);
}

/// Writing into a library that a process has mapped makes it crash.
#[test]
fn another_content_never_goes_into_the_same_file() {
    let (_, loader) = own();
    let place = tempfile::tempdir().unwrap();
    let folder = folder(place.path());
    let first = write_and_lock(&folder, "libsidewalk-0.so", b"content", &loader).unwrap();
    let second = write_and_lock(&folder, "libsidewalk-0.so", b"another", &loader).unwrap();
    assert_ne!(
        first.metadata().unwrap().ino(),
        second.metadata().unwrap().ino()
    );
    let path = place.path().join("libsidewalk-0.so");
    assert_eq!(fs::read(path).unwrap(), b"another");
    assert_eq!(fs::read(held(&first)).unwrap(), b"content");
}

#[test]
fn what_somebody_else_may_have_put_there_is_not_taken() {
    let (_, loader) = own();
    let place = tempfile::tempdir().unwrap();
    let folder = folder(place.path());
    let path = place.path().join("libsidewalk-0.so");
    // Writable by others.
    fs::write(&path, b"content").unwrap();
    mode(&path, 0o777);
    assert!(find_trusted(&path, b"content", &loader, FolderAccess::Shared).is_none());
    let file = write_and_lock(&folder, "libsidewalk-0.so", b"content", &loader).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o755);
    // A link to a valid library, which can be redirected.
    let other = place.path().join("other");
    fs::rename(&path, &other).unwrap();
    std::os::unix::fs::symlink(&other, &path).unwrap();
    write_and_lock(&folder, "libsidewalk-0.so", b"content", &loader).unwrap();
    assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
    // Longer than the content.
    fs::write(&path, b"content and more").unwrap();
    assert!(find_trusted(&path, b"content", &loader, FolderAccess::Shared).is_none());
}

#[test]
fn folders_in_which_others_may_replace_files_are_left_alone() {
    let (_, loader) = own();
    let place = tempfile::tempdir().unwrap();
    let folder = folder(place.path());
    for (bits, fits) in [
        (0o700, true),
        (0o755, true),
        (0o1777, true),
        (0o777, false),
        (0o775, false),
    ] {
        mode(place.path(), bits);
        assert_eq!(loader.check(&folder).is_ok(), fits, "{bits:o}");
    }
}

#[test]
fn a_library_in_anothers_home_cannot_be_loaded() {
    let nobody = Loader {
        uid: 65_534,
        groups: vec![65_534],
        overrides: false,
    };
    let place = tempfile::tempdir().unwrap();
    let library = place.path().join("libsidewalk.so");
    fs::write(&library, "").unwrap();
    mode(&library, 0o755);
    mode(place.path(), 0o700);
    assert!(!nobody.can_load(&library));
    mode(place.path(), 0o711);
    assert!(nobody.can_load(&library));
    mode(&library, 0o700);
    assert!(!nobody.can_load(&library));
    let (_, us) = own();
    assert!(us.can_load(&library));
}

#[test]
fn what_nobody_maps_is_removed_and_what_is_locked_is_not() {
    let (_, loader) = own();
    let place = tempfile::tempdir().unwrap();
    let folder = folder(place.path());
    let held = write_and_lock(&folder, "libsidewalk-held.so", b"held", &loader).unwrap();
    drop(write_and_lock(&folder, "libsidewalk-old.so", b"old", &loader).unwrap());
    fs::write(place.path().join(".libsidewalk-now"), "").unwrap();
    let before = place.path().join(".libsidewalk-before");
    let old = File::create(&before).unwrap();
    old.set_modified(SystemTime::now() - 2 * UNFINISHED_AGE)
        .unwrap();
    fs::write(place.path().join("libother.so"), "").unwrap();
    sweep(&folder, &[]);
    let left = [".libsidewalk-now", "libother.so", "libsidewalk-held.so"];
    assert_eq!(names(place.path()), left);
    drop(held);
    sweep(&folder, &["libsidewalk-held.so".to_owned()]);
    assert_eq!(names(place.path()), left);
    sweep(&folder, &[]);
    assert_eq!(names(place.path()), left[..2]);
}

#[test]
fn our_own_process_loads_a_library_where_it_is() {
    let (target, _) = own();
    let survey = Survey::of(&target).unwrap();
    let library = std::env::current_exe().unwrap();
    let deployed = DeployedLibrary::new(&target, &survey, &library).unwrap();
    assert!(!deployed.is_copy());
    assert_eq!(deployed.library(), fs::canonicalize(&library).unwrap());
    let old = Survey {
        libc: Some(Libc::Glibc(Some((2, 1)))),
        ..Survey::default()
    };
    let refused = DeployedLibrary::new(&target, &old, &library).unwrap_err();
    assert!(
        matches!(refused, DeployError::OldLibc { has: (2, 1), .. }),
        "{refused}"
    );
    let missing = DeployedLibrary::new(&target, &survey, Path::new("/nowhere.so")).unwrap_err();
    assert!(
        matches!(missing, DeployError::Unreadable { .. }),
        "{missing}"
    );
}
