//! Our page and a page of another port, in one real browser with one set of cookies.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::process::Command;

use belljar_web::{Pages, Role, TokenFile};
use support::TestServer;

/// Shows a page in a browser with this profile; gives what the page has put into `#out`.
fn browse(profile: &Path, url: &str) -> String {
    let known = ["chromium", "google-chrome"];
    let is_there = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let browser = known
        .into_iter()
        .find(is_there)
        .expect("chromium: `make setup` installs it");
    let ran = Command::new("timeout")
        .args([
            "--kill-after=1",
            "60",
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
        ])
        .args([
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--virtual-time-budget=10000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(url)
        .output()
        .unwrap();
    let page = String::from_utf8(ran.stdout).unwrap();
    let text = page
        .split("<p id=\"out\">")
        .nth(1)
        .and_then(|rest| rest.split("</p>").next());
    text.unwrap_or_else(|| panic!("{page}\n{}", String::from_utf8_lossy(&ran.stderr)))
        .to_owned()
}

/// A document that runs one script, and one that our content policy stops.
fn page(script: String) -> Pages {
    let document = "<!doctype html><body><p id=\"out\">nothing</p><script>document.title = 'inline'</script>\
                    <script type=\"module\" src=\"/assets/page.js\"></script>";
    Pages::new([
        ("/index.html".to_owned(), document.as_bytes().to_vec()),
        ("/assets/page.js".to_owned(), script.into_bytes()),
    ])
}

/// What both pages have: requests, and a place for what comes of them.
const COMMON: &str = r"
const said = [];
const tell = () => { document.getElementById('out').textContent = said.join('; '); };
const json = (body, more = {}) => ({
  method: 'POST', credentials: 'include', headers: { 'Content-Type': 'application/json', ...more }, body: JSON.stringify(body),
});
const ask = async (name, path, options = { credentials: 'include' }) => {
  try { const heard = await fetch(path, options); said.push(`${name} ${heard.type} ${heard.status}`); return heard; }
  catch { said.push(`${name} blocked`); }
};
const watch = (name, path) => new Promise((done) => {
  const source = new EventSource(path, { withCredentials: true });
  source.addEventListener('agents', () => { said.push(`${name} told`); source.close(); done(); });
  source.onerror = () => { said.push(`${name} blocked`); source.close(); done(); };
});
";

#[test]
fn our_page_works_and_a_page_of_another_port_in_the_same_browser_does_nothing() {
    let state = tempfile::tempdir().unwrap();
    let profile = tempfile::tempdir().unwrap();
    let tokens = TokenFile::of(state.path());
    let (_, token) = support::token(&tokens, Role::Admin, None);
    let ours = format!(
        "{COMMON}
await ask('before', '/v1/session');
await ask('login', '/v1/session', json({{ token: '{token}' }}));
const who = await (await ask('who', '/v1/session')).json();
await ask('unproved', '/v1/kill-switch', json({{ reason: 'x' }}));
await ask('proved', '/v1/kill-switch', json({{ reason: 'x' }}, {{ 'X-Belljar-Csrf': who.csrf }}));
await watch('stream', '/v1/stream');
said.push(`title [${{document.title}}] cookie [${{document.cookie}}]`);
tell();"
    );
    let server = TestServer::on(state, tokens, |settings| settings.pages = page(ours));
    let said = browse(
        profile.path(),
        &format!("http://{}/agents/w1", server.address),
    );
    // Script in the document does not run, and no script sees the cookie.
    assert_eq!(
        said,
        "before basic 401; login basic 200; who basic 200; unproved basic 403; proved basic 409; stream told; title [] cookie []"
    );
    assert_eq!(server.seen.calls().len(), 1);

    let target = format!("http://{}", server.address);
    let theirs = format!(
        "{COMMON}
await ask('read', '{target}/v1/status');
await ask('read blindly', '{target}/v1/status', {{ credentials: 'include', mode: 'no-cors' }});
await ask('change', '{target}/v1/kill-switch', json({{ reason: 'x' }}));
await ask('change blindly', '{target}/v1/kill-switch', {{
  method: 'POST', credentials: 'include', mode: 'no-cors', headers: {{ 'Content-Type': 'text/plain' }}, body: '{{\"reason\":\"x\"}}' }});
await watch('stream', '{target}/v1/stream');
tell();"
    );
    // Another server of this machine: to the browser it is the same site, and is sent the same cookies. It has no content policy of ours.
    let evil = evil(theirs);
    let said = browse(profile.path(), &evil.url);
    assert_eq!(
        said,
        "read blocked; read blindly blocked; change blocked; change blindly blocked; stream blocked"
    );
    assert_eq!(server.seen.calls(), [], "the backend heard of it");
    // The cookie is still good: it is the page that was refused.
    let said = browse(profile.path(), &format!("{target}/agents/w1"));
    assert!(said.starts_with("before basic 200"), "{said}");
}

/// A server that nobody guards, on a port of its own.
struct Evil {
    url: String,
}

fn evil(script: String) -> Evil {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let script = script.clone();
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap())
                    .lines()
                    .map_while(Result::ok);
                if lines.by_ref().take_while(|line| !line.is_empty()).count() == 0 {
                    return;
                }
                let body = format!(
                    "<!doctype html><body><p id=\"out\">nothing</p><script type=\"module\">{script}</script>"
                );
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let _gone = stream.write_all(format!("{head}{body}").as_bytes());
            });
        }
    });
    Evil { url }
}
