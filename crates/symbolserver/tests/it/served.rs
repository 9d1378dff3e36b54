//! Servers that do what they should.

use symbolserver::testing::TestResponse;
use symbolserver::{Failure, FetchedFrom, Server};

use crate::common::{BUILD_ID, Scene, TAG, by_build_id, by_key, bytes, debug_file, pdb};

#[test]
fn a_debug_file_comes_by_either_protocol_and_once() {
    for (path, make) in [
        (by_key(), Server::symbol_store as fn(&str) -> _),
        (by_build_id(), Server::debuginfod),
    ] {
        let scene = Scene::new();
        let content = bytes("small.so.debug");
        scene
            .server
            .put(&path, TestResponse::File(content.clone(), TAG));
        let server = make(&scene.server.address()).unwrap();
        let fetch = || {
            scene
                .fetch_from(vec![server.clone()], vec![debug_file()])
                .remove(0)
                .result
        };
        let from = FetchedFrom::Downloaded(scene.server.address(), content.len() as u64);
        assert_eq!(fetch().unwrap(), from);
        assert_eq!(std::fs::read(scene.destination()).unwrap(), content);
        assert_eq!(scene.files(), [BUILD_ID, "debuginfo"]);
        assert_eq!(scene.server.requested_paths(), [path]);
        assert_eq!(fetch().unwrap(), FetchedFrom::Cached);
        assert_eq!(scene.server.requested_paths(), [""; 0]);
    }
}

#[test]
fn a_pdb_comes_by_its_id_and_the_server_is_told_its_sum() {
    let scene = Scene::new();
    let wanted = pdb();
    let server = Server::symbol_store(&scene.server.address()).unwrap();
    let key = guid_of(&wanted.id());
    let path = format!("/lines.pdb/{key}FFFFFFFF/lines.pdb");
    scene
        .server
        .put(&path, TestResponse::File(bytes("Lines.pdb"), TAG));
    let debuginfod = Server::debuginfod(&scene.server.address()).unwrap();
    let outcome = scene
        .fetch_from(vec![debuginfod, server], vec![wanted.clone()])
        .remove(0);
    assert!(
        matches!(outcome.result, Ok(FetchedFrom::Downloaded(..))),
        "{outcome:?}"
    );
    assert_eq!(scene.files(), [&*wanted.id(), "pdb"]);
    let asked = scene.server.requests();
    // debuginfod has no PDBs.
    assert_eq!(asked.len(), 1);
    let sum = asked[0].headers.get("symbolchecksum").unwrap();
    assert!(sum.starts_with("SHA256:") && sum.len() == 7 + 64, "{sum}");
}

/// The first 16 bytes as a GUID is written.
fn guid_of(id: &str) -> String {
    let byte = |at: usize| &id[2 * at..2 * at + 2];
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    order.into_iter().map(byte).collect()
}

#[test]
fn the_next_server_is_asked_where_the_first_has_nothing() {
    let (first, second) = (Scene::new(), Scene::new());
    let file = TestResponse::File(bytes("small.so.debug"), TAG);
    second.server.put(&by_build_id(), file);
    let servers =
        [&first, &second].map(|scene| Server::debuginfod(&scene.server.address()).unwrap());
    let outcome = first
        .fetch_from(servers.to_vec(), vec![debug_file()])
        .remove(0);
    assert!(
        matches!(outcome.result, Ok(FetchedFrom::Downloaded(..))),
        "{outcome:?}"
    );
    assert_eq!(first.server.requested_paths(), [by_build_id()]);
}

#[test]
fn what_nobody_has_leaves_nothing() {
    let scene = Scene::new();
    assert!(matches!(scene.fetch(), Err(Failure::NotFound)));
    scene.assert_empty();
}

#[test]
fn a_server_may_send_us_on() {
    let scene = Scene::new();
    let there = format!("{}/elsewhere", scene.server.address());
    scene
        .server
        .put(&by_build_id(), TestResponse::Redirect(there));
    scene.server.put(
        "/elsewhere",
        TestResponse::File(bytes("small.so.debug"), TAG),
    );
    assert!(matches!(scene.fetch(), Ok(FetchedFrom::Downloaded(..))));
}

/// elfutils leaves an empty file where a server had nothing.
#[test]
fn an_empty_file_of_another_client_is_replaced() {
    let scene = Scene::new();
    std::fs::create_dir(scene.destination().parent().unwrap()).unwrap();
    std::fs::write(scene.destination(), "").unwrap();
    scene.server.put(
        &by_build_id(),
        TestResponse::File(bytes("small.so.debug"), TAG),
    );
    assert!(matches!(scene.fetch(), Ok(FetchedFrom::Downloaded(..))));
    assert_eq!(scene.files(), [BUILD_ID, "debuginfo"]);
}
