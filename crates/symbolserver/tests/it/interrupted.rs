//! Connections that end too early.

use symbolserver::testing::TestResponse;
use symbolserver::{Failure, FetchedFrom};

use crate::common::{BUILD_ID, Scene, TAG, by_build_id, bytes};

fn is_fetched(scene: &Scene) {
    let result = scene.fetch();
    assert!(
        matches!(result, Ok(FetchedFrom::Downloaded(..))),
        "{result:?}"
    );
    assert_eq!(
        std::fs::read(scene.destination()).unwrap(),
        bytes("small.so.debug")
    );
    assert_eq!(scene.files(), [BUILD_ID, "debuginfo"]);
}

fn ranges(scene: &Scene) -> Vec<Option<String>> {
    let asked = scene.server.requests();
    asked
        .iter()
        .map(|asked| asked.headers.get("range").cloned())
        .collect()
}

#[test]
fn a_broken_connection_is_gone_on_with() {
    let scene = Scene::new();
    let content = bytes("small.so.debug");
    let most = content.len() / 3;
    scene
        .server
        .put(&by_build_id(), TestResponse::Cut(content, TAG, most));
    is_fetched(&scene);
    let from = |count| Some(format!("bytes={}-", count * most));
    assert_eq!(ranges(&scene)[..3], [None, from(1), from(2)]);
}

#[test]
fn the_next_run_goes_on_where_the_last_one_was_broken_off() {
    let scene = Scene::new();
    let content = bytes("small.so.debug");
    scene
        .server
        .put(&by_build_id(), TestResponse::Cut(content.clone(), TAG, 100));
    let failure = scene.fetch().unwrap_err();
    let messages = format!("after 500 of {} bytes, which are kept", content.len());
    assert!(failure.to_string().contains(&messages), "{failure}");
    assert!(!scene.destination().exists());
    let _ = ranges(&scene);
    scene
        .server
        .put(&by_build_id(), TestResponse::File(content, TAG));
    is_fetched(&scene);
    assert_eq!(ranges(&scene), [Some("bytes=500-".to_owned())]);
}

#[test]
fn a_file_that_has_changed_meanwhile_is_begun_anew() {
    let scene = Scene::new();
    let content = bytes("small.so.debug");
    let mut other = content.clone();
    other.fill(b'x');
    scene
        .server
        .put(&by_build_id(), TestResponse::Cut(other, "\"other\"", 100));
    assert!(matches!(scene.fetch(), Err(Failure::Broken(500, Some(_)))));
    scene
        .server
        .put(&by_build_id(), TestResponse::File(content, TAG));
    is_fetched(&scene);
}

#[test]
fn a_server_that_marks_no_versions_is_asked_anew() {
    let scene = Scene::new();
    let content = bytes("small.so.debug");
    scene
        .server
        .put(&by_build_id(), TestResponse::Plain(content.clone(), 100));
    assert!(matches!(scene.fetch(), Err(Failure::Broken(100, Some(_)))));
    scene
        .server
        .put(&by_build_id(), TestResponse::Plain(content, usize::MAX));
    is_fetched(&scene);
    assert_eq!(ranges(&scene), [None, None]);
}

#[test]
fn another_part_than_the_one_asked_for_is_not_put_together() {
    let scene = Scene::new();
    scene.server.put(
        &by_build_id(),
        TestResponse::WrongPart(bytes("small.so.debug")),
    );
    let failure = scene.fetch().unwrap_err();
    assert!(
        failure.to_string().contains("another part of a file"),
        "{failure}"
    );
    scene.assert_empty();
}

#[test]
fn a_file_that_another_process_is_getting_is_left_to_it() {
    let scene = Scene::new();
    std::fs::create_dir(scene.destination().parent().unwrap()).unwrap();
    let theirs =
        std::fs::File::create(scene.destination().with_file_name(".debuginfo.partial")).unwrap();
    theirs.lock().unwrap();
    scene.server.put(
        &by_build_id(),
        TestResponse::File(bytes("small.so.debug"), TAG),
    );
    assert!(matches!(scene.fetch(), Err(Failure::Busy)));
    drop(theirs);
    is_fetched(&scene);
}
