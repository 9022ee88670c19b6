//! The dashboard's files, and how they get into the library.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../build/pack.rs"]
mod pack;
mod support;

use std::fs;
use std::io::Read;

use belljar_web::Pages;
use support::TestServer;

#[test]
fn files_have_their_kind_and_say_how_long_they_are_good_for() {
    let server = TestServer::start();
    let heard = server.ask("GET /", None, None);
    assert_eq!(heard.status, 200);
    assert_eq!(heard.text(), "<!doctype html>the dashboard");
    assert_eq!(
        heard.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(heard.header("cache-control"), Some("no-cache"));
    let tag = heard.header("etag").unwrap().to_owned();
    for given in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}")] {
        let again = server.ask_with("GET /", &[format!("If-None-Match: {given}")], None);
        assert_eq!((again.status, again.text().as_str()), (304, ""), "{given}");
    }
    assert_eq!(
        server
            .ask_with("GET /", &["If-None-Match: \"x\"".into()], None)
            .status,
        200
    );
    let heard = server.ask("GET /assets/index-B3xY_z-9.js", None, None);
    assert_eq!(
        heard.header("content-type"),
        Some("text/javascript; charset=utf-8")
    );
    assert_eq!(
        heard.header("cache-control"),
        Some("public, max-age=31536000, immutable")
    );
    assert_eq!(
        server
            .ask("GET /favicon.svg", None, None)
            .header("content-type"),
        Some("image/svg+xml")
    );
    let mut peer = server.peer();
    peer.send(support::request("HEAD /", server.address, &[], None));
    let head = peer.hear_head();
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("28"))
    );
}

#[test]
fn a_page_of_the_dashboard_is_its_one_document() {
    let server = TestServer::start();
    let accept = ["Accept: text/html,application/xhtml+xml;q=0.9".to_owned()];
    for path in ["/agents", "/agents/w1", "/alerts?state=open"] {
        let heard = server.ask_with(&format!("GET {path}"), &accept, None);
        assert_eq!(
            (heard.status, heard.text().as_str()),
            (200, "<!doctype html>the dashboard"),
            "{path}"
        );
        assert_eq!(
            server.ask(&format!("GET {path}"), None, None).status,
            404,
            "{path}"
        );
    }
    for path in ["/assets/gone-12345678.js", "/gone.js", "/assets/gone"] {
        assert_eq!(
            server
                .ask_with(&format!("GET {path}"), &accept, None)
                .status,
            404,
            "{path}"
        );
    }
    assert_eq!(server.ask_with("POST /agents", &accept, None).status, 405);
    // What is the API's is never a page.
    assert_eq!(server.ask_with("GET /v1/agents", &accept, None).status, 401);
}

#[test]
fn no_path_leads_out_of_the_table() {
    let server = TestServer::start();
    let real = server.state.path().join("web/tokens.json");
    server.token(belljar_web::Role::Viewer);
    assert!(real.exists());
    let up = "../".repeat(20);
    let coded = "%2e%2e%2f".repeat(20);
    let tail = real.to_str().unwrap().trim_start_matches('/');
    for path in [
        format!("/{up}{tail}"),
        format!("/assets/{up}{tail}"),
        format!("/{coded}{tail}"),
        format!("/assets/..%5c..%5c{tail}"),
        format!("/{}", real.display()),
        format!("//{tail}"),
        "/assets/../index.html".to_owned(),
        "/.%00/index.html".to_owned(),
    ] {
        let heard = server.ask(&format!("GET {path}"), None, None);
        assert!([400, 404].contains(&heard.status), "{path}: {heard:?}");
        assert!(!heard.text().contains("sha256"), "{path}");
    }
}

#[test]
fn without_a_dashboard_the_page_says_what_is_missing() {
    let server = TestServer::with(|settings| settings.pages = Pages::default());
    let heard = server.ask("GET /", None, None);
    assert_eq!(heard.status, 200);
    assert_eq!(
        heard.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert!(heard.text().contains("make dashboard"));
    assert_eq!(server.ask("GET /index.html", None, None).status, 404);
}

#[test]
fn a_dashboard_that_is_not_built_stops_the_build_and_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let dist = directory.path().join("dist");
    let problem = pack::pack(&dist, directory.path()).unwrap_err();
    assert!(problem.contains("make dashboard"), "{problem}");
    assert!(problem.contains("--no-default-features"), "{problem}");
    fs::create_dir(&dist).unwrap();
    assert!(
        pack::pack(&dist, directory.path()).is_err(),
        "an empty dashboard"
    );
}

#[test]
fn a_dashboard_is_packed_file_by_file_and_nothing_strange_gets_in() {
    let directory = tempfile::tempdir().unwrap();
    let (dist, out) = (directory.path().join("dist"), directory.path().join("out"));
    fs::create_dir_all(dist.join("assets")).unwrap();
    fs::create_dir(&out).unwrap();
    let code = "long ".repeat(100);
    fs::write(dist.join("index.html"), "x").unwrap();
    fs::write(dist.join("assets/index-12345678.js"), &code).unwrap();
    pack::pack(&dist, &out).unwrap();
    let table = fs::read_to_string(out.join("pages.rs")).unwrap();
    assert!(
        table.contains("(\"/assets/index-12345678.js\", include_bytes!("),
        "{table}"
    );
    assert!(
        table.contains("(\"/index.html\", include_bytes!("),
        "{table}"
    );
    // One byte does not get smaller.
    assert_eq!(table.matches("Some(include_bytes!").count(), 1, "{table}");
    let packed = fs::read(out.join("page-0.gz")).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, code);
    std::os::unix::fs::symlink("/etc/hostname", dist.join("link.txt")).unwrap();
    assert!(pack::pack(&dist, &out).unwrap_err().contains("link.txt"));
    fs::remove_file(dist.join("link.txt")).unwrap();
    fs::write(dist.join("id_rsa"), "x").unwrap();
    assert!(pack::pack(&dist, &out).unwrap_err().contains("id_rsa"));
}

/// The paths that a document's `src` and `href` name.
#[cfg(feature = "dashboard")]
fn named(document: &str) -> Vec<String> {
    let parts = document.split([' ', '>']);
    let values = parts.filter_map(|part| {
        let value = part
            .strip_prefix("src=\"")
            .or_else(|| part.strip_prefix("href=\""))?;
        value.split('"').next()
    });
    values
        .map(|path| format!("/{}", path.trim_start_matches(['.', '/'])))
        .collect()
}

#[cfg(feature = "dashboard")]
#[test]
fn the_dashboard_in_the_library_is_whole_and_keeps_to_its_content_policy() {
    let server = TestServer::with(|settings| settings.pages = Pages::embedded());
    let document = server.ask("GET /", None, None).text();
    for forbidden in [
        "<script>",
        "<style",
        " style=",
        " onload=",
        " onclick=",
        "http:",
        "https:",
        "javascript:",
    ] {
        assert!(
            !document.contains(forbidden),
            "{forbidden} would be refused by the browser, or asks another host"
        );
    }
    let files = named(&document);
    assert!(files.iter().any(|path| path.ends_with(".js")), "{document}");
    for path in files {
        let plain = server.ask(&format!("GET {path}"), None, None);
        assert_eq!(plain.status, 200, "{path}");
        let packed = server.ask_with(
            &format!("GET {path}"),
            &["Accept-Encoding: br, gzip;q=0.5".into()],
            None,
        );
        assert_eq!(packed.header("content-encoding"), Some("gzip"), "{path}");
        assert_ne!(packed.header("etag"), plain.header("etag"), "{path}");
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&packed.body[..])
            .read_to_end(&mut text)
            .unwrap();
        assert_eq!(text, plain.body, "{path}");
    }
}
