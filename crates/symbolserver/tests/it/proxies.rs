//! Proxies of the environment are used.

use symbolserver::FetchedFrom;
use symbolserver::testing::{TestResponse, TestServer};

use crate::common::{Scene, TAG, by_build_id, bytes};

#[test]
fn a_proxy_is_used_and_where_it_is_excepted_not() {
    for variable in ["http_proxy", "ALL_PROXY"] {
        let mut scene = Scene::new();
        scene.server.put(
            &by_build_id(),
            TestResponse::File(bytes("small.so.debug"), TAG),
        );
        let proxy = TestServer::new();
        let there = scene.server.address().replace("http://", "");
        proxy.put(&there, TestResponse::Tunnel(there.clone()));
        scene.environment = vec![(variable, proxy.address())];
        assert!(matches!(scene.fetch(), Ok(FetchedFrom::Downloaded(..))));
        assert_eq!(proxy.requested_paths(), [there]);
        assert_eq!(scene.server.requested_paths(), [by_build_id()]);

        std::fs::remove_file(scene.destination()).unwrap();
        scene
            .environment
            .push(("no_proxy", "localhost,127.0.0.1".to_owned()));
        assert!(matches!(scene.fetch(), Ok(FetchedFrom::Downloaded(..))));
        assert_eq!(proxy.requested_paths(), [""; 0]);
    }
}

#[test]
fn a_proxy_that_refuses_is_told_and_nothing_goes_another_way() {
    let mut scene = Scene::new();
    scene.server.put(
        &by_build_id(),
        TestResponse::File(bytes("small.so.debug"), TAG),
    );
    let proxy = TestServer::new();
    proxy.put("*", TestResponse::Status(407));
    scene.environment = vec![("HTTP_PROXY", proxy.address())];
    let failure = scene.fetch().unwrap_err().to_string();
    assert!(failure.contains("the proxy refuses"), "{failure}");
    scene.environment = vec![("HTTP_PROXY", "no proxy at all".to_owned())];
    let failure = scene.fetch().unwrap_err().to_string();
    assert!(
        failure.contains("HTTP_PROXY is no proxy at all, which is no proxy"),
        "{failure}"
    );
    assert_eq!(scene.server.requested_paths(), [""; 0]);
}
