//! Servers that are wrong, slow, or mean harm.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use symbolserver::testing::TestResponse;
use symbolserver::{Failure, Server};

use crate::common::{BUILD_ID, Scene, TAG, by_build_id, bytes, debug_file, pdb};

/// The failure's text for an answer, of which nothing is kept.
fn messages(answer: TestResponse) -> String {
    let scene = Scene::new();
    scene.server.put(&by_build_id(), answer);
    let failure = scene.fetch().unwrap_err();
    scene.assert_empty();
    failure.to_string()
}

fn assert_told(answer: TestResponse, expected: &str) {
    let text = messages(answer);
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_debug_file_of_another_build_is_refused() {
    let id: Vec<u8> = (0..20)
        .map(|at| u8::from_str_radix(&BUILD_ID[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let mut other = bytes("small.so.debug");
    let at = other.windows(20).position(|window| window == id).unwrap();
    other[at] = 0xff;
    let id = BUILD_ID.replacen("3e", "ff", 1);
    assert_told(
        TestResponse::File(other, TAG),
        &format!("it belongs to another build, {id}"),
    );
}

#[test]
fn a_file_that_is_none_or_not_whole_is_refused() {
    let whole = bytes("small.so.debug");
    let page = b"<html>please log in</html>".to_vec();
    let half = whole[..whole.len() / 2].to_vec();
    for content in [page, half, Vec::new()] {
        assert_told(
            TestResponse::File(content, TAG),
            "it is damaged or no such file",
        );
    }
    // All its tables are there, and one of them says more than there is.
    let mut long = whole;
    let sections = u64::from_le_bytes(long[0x28..0x30].try_into().unwrap()) as usize;
    // sh_size of section 1.
    long[sections + 64 + 0x20..sections + 64 + 0x28].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_told(
        TestResponse::File(long, TAG),
        "it is damaged or no such file",
    );
}

#[test]
fn a_file_without_names_is_refused() {
    let stripped = bytes("small.so");
    // It has its exports, so it is none without names; what has nothing at all is built here.
    let mut none = stripped;
    let sections = u64::from_le_bytes(none[0x28..0x30].try_into().unwrap()) as usize;
    let count = usize::from(u16::from_le_bytes(none[0x3c..0x3e].try_into().unwrap()));
    for section in 0..count {
        let kind = sections + 64 * section + 4;
        // SHT_DYNSYM
        if none[kind..kind + 4] == 11_u32.to_le_bytes() {
            none[kind..kind + 4].copy_from_slice(&1_u32.to_le_bytes());
        }
    }
    assert_told(TestResponse::File(none, TAG), "it holds no names");
}

/// A section that says that it unpacks to a gigabyte, in a file of some kilobytes.
#[test]
fn a_file_that_unpacks_to_too_much_is_refused() {
    use object::write::{Object, StandardSegment};
    use object::{Architecture, BinaryFormat, Endianness, SectionFlags, SectionKind};
    let mut bomb = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let name = bomb.segment_name(StandardSegment::Debug).to_vec();
    let section = bomb.add_section(name, b".debug_info".to_vec(), SectionKind::Debug);
    // ch_type zlib, ch_size, ch_addralign.
    let mut content = [1_u64.to_le_bytes(), (1_u64 << 30).to_le_bytes(), [0; 8]].concat();
    content.extend([0; 64]);
    bomb.append_section_data(section, &content, 1);
    let compressed = object::elf::SHF_COMPRESSED;
    bomb.section_mut(section).flags = SectionFlags::Elf {
        sh_flags: compressed,
        sh_type: object::elf::SHT_PROGBITS,
    };
    let content = bomb.write().unwrap();
    assert_told(
        TestResponse::File(content, TAG),
        "that unpack to 1073741824",
    );
}

#[test]
fn a_pdb_whose_sum_is_another_is_refused() {
    let scene = Scene::new();
    let mut other = bytes("Lines.pdb");
    *other.last_mut().unwrap() ^= 1;
    scene.server.put("*", TestResponse::File(other, TAG));
    let server = Server::symbol_store(&scene.server.address()).unwrap();
    let outcome = scene.fetch_from(vec![server], vec![pdb()]).remove(0);
    let failure = outcome.result.unwrap_err().remove(0).1.to_string();
    assert!(
        failure.contains("not those that the module names"),
        "{failure}"
    );
    scene.assert_empty();
}

#[test]
fn numbers_are_told_with_what_to_do() {
    for (status, expected) in [
        (401, "it refuses (401)"),
        (503, "try again later"),
        (500, "it answers 500"),
        (206, "it answers 206"),
    ] {
        assert_told(TestResponse::Status(status), expected);
    }
}

#[test]
fn what_is_too_large_is_not_waited_for() {
    let mut scene = Scene::new();
    scene.limits.bytes = 1 << 20;
    for answer in [TestResponse::DeclaredLength(1 << 40), TestResponse::Endless] {
        scene.server.put(&by_build_id(), answer);
        let failure = scene.fetch().unwrap_err();
        assert!(matches!(failure, Failure::TooLarge(_)), "{failure}");
        assert!(
            failure.to_string().contains("DEBUGINFOD_MAXSIZE"),
            "{failure}"
        );
        scene.assert_empty();
    }
}

#[test]
fn what_comes_byte_by_byte_is_given_up() {
    let mut scene = Scene::new();
    scene.limits.time = Duration::from_millis(600);
    scene.server.put(&by_build_id(), TestResponse::Drip);
    let failure = scene.fetch().unwrap_err();
    assert!(matches!(failure, Failure::Slow(..)), "{failure}");
    assert!(
        failure.to_string().contains("DEBUGINFOD_MAXTIME"),
        "{failure}"
    );
}

#[test]
fn a_silent_server_is_left_alone_for_the_rest_of_the_run() {
    for answer in [TestResponse::NoReply, TestResponse::DeclaredLength(1000)] {
        let scene = Scene::new();
        scene.server.put("*", answer);
        let start = Instant::now();
        let failure = scene.fetch().unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(matches!(failure, Failure::NoData(_)), "{failure}");
        assert!(
            failure.to_string().contains("DEBUGINFOD_TIMEOUT"),
            "{failure}"
        );
        // More files than are got at once: those behind the first ones find it marked.
        let _ = scene.server.requests();
        let wanted = (0..12).map(|at| symbolize::MissingFile::DebugFile {
            of: "/x".into(),
            build_id: vec![at; 20],
        });
        let server = Server::debuginfod(&scene.server.address()).unwrap();
        let outcomes = scene.fetch_from(vec![server], wanted.collect());
        assert!(scene.server.requests().len() <= 4);
        let messages = outcomes
            .iter()
            .filter_map(|outcome| outcome.result.as_ref().err());
        let messages = messages
            .flatten()
            .filter(|(_, why)| !matches!(why, Failure::Skipped));
        assert_eq!(messages.count(), 1, "once for the whole run: {outcomes:?}");
    }
}

#[test]
fn without_a_network_it_is_said_what_to_set() {
    let scene = Scene::new();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    for address in [
        format!("http://127.0.0.1:{port}"),
        "http://no.such.host.invalid".into(),
    ] {
        let server = Server::debuginfod(&address).unwrap();
        let outcome = scene.fetch_from(vec![server], vec![debug_file()]).remove(0);
        let failure = outcome.result.unwrap_err().remove(0).1.to_string();
        assert!(failure.starts_with("it cannot be reached ("), "{failure}");
        assert!(failure.ends_with("set HTTPS_PROXY"), "{failure}");
        scene.assert_empty();
    }
}

#[test]
fn answers_that_make_no_sense_are_told() {
    assert_told(TestResponse::Garbage, "its answer is invalid");
    assert_told(
        TestResponse::Packed(bytes("small.so.debug")),
        "it is compressed",
    );
    assert_told(TestResponse::Redirect("ftp://127.0.0.1/x".into()), "it");
    let scene = Scene::new();
    let round = format!("{}/x", scene.server.address());
    scene.server.put("*", TestResponse::Redirect(round));
    let failure = scene.fetch().unwrap_err();
    assert!(failure.to_string().contains("too often"), "{failure}");
    assert!(scene.server.requests().len() <= 6);
}

/// A link where our file would be written leads nowhere.
#[test]
fn a_link_in_the_folder_is_not_written_through() {
    let scene = Scene::new();
    let outside = tempfile::tempdir().unwrap();
    let theirs = outside.path().join("theirs");
    std::fs::write(&theirs, "mine").unwrap();
    std::fs::create_dir(scene.destination().parent().unwrap()).unwrap();
    for name in [".debuginfo.partial", ".debuginfo.partial.from"] {
        let link = scene.destination().with_file_name(name);
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        scene.server.put(
            &by_build_id(),
            TestResponse::Cut(bytes("small.so.debug"), TAG, 50),
        );
        let _ = scene.fetch();
        assert_eq!(std::fs::read(&theirs).unwrap(), b"mine", "{name}");
        let _ = std::fs::remove_file(link);
    }
}
