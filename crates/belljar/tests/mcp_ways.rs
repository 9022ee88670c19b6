//! The ways to MCP servers: addresses that prove who they are, sockets, and a port of the box's own.

mod support;

use serde_json::{Value, json};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{
    Http, Jail, NODE_MODULES, PLACE, PYTHON, Ready, Who, eventually, files_below, finish,
    for_each_user_in_a_world, text_of,
};

const TOKEN: &str = "the-token-of-the-test";
const API_KEY: &str = "the-key-of-the-test";

fn jail(who: Who) -> Jail {
    let home: PathBuf = std::env::var_os("BELLJAR_TEST_WORLD_HOME")
        .expect("a world")
        .into();
    let jail = Jail::below(who, &home);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/world/mcp");
    for file in fs::read_dir(source).expect("what tests need") {
        let path = file.expect("a file").path();
        let name = path.file_name().expect("its name").to_owned();
        let text = fs::read_to_string(&path).expect("its text");
        jail.put(&jail.work.join(name), &text);
    }
    jail
}

fn python(jail: &Jail, words: &[&str]) -> Command {
    let mut command = jail.outside(PYTHON);
    command.arg("-B").args(words);
    command
}

/// An upstream that proves who it is: its port.
fn tls_upstream(jail: &Jail) -> Ready {
    let [certificate, key] = ["server.pem", "server.key"].map(|file| format!("{PLACE}/{file}"));
    Ready::start(python(jail, &["upstream.py", "called", &certificate, &key]))
}

fn policy(jail: &Jail, name: &str, text: &str) -> PathBuf {
    let file = jail.base.join(name);
    jail.put(&file, text);
    file
}

fn serve(jail: &Jail, config: &Path, words: &[&str]) -> Ready {
    let mut command = jail.belljar(&["mcp", "serve", "--config"]);
    command.arg(config).args(words).env("MCP_TOKEN", TOKEN);
    Ready::start(command)
}

fn said(command: &mut Command) -> Value {
    let finished = finish(command.spawn().expect("start it"));
    serde_json::from_str(finished.stdout().trim())
        .unwrap_or_else(|_| panic!("{}\n{}", finished.stdout(), finished.stderr()))
}

fn a_server_at_an_https_address_proves_who_it_is_and_is_told_its_secrets(who: Who) {
    let jail = jail(who);
    let up = tls_upstream(&jail);
    jail.put(&jail.base.join("key"), &format!("{API_KEY}\n"));
    let key = jail.base.join("key").display().to_string();
    let rules = |url: &str, more: &str| {
        format!(
            "extends: moderate\nmcp:\n  servers:\n    web:\n      url: \"{url}\"\n      bearer: {{env: MCP_TOKEN}}\n      \
             headers: {{X-Api-Key: {{file: {key}}}}}\n{more}  blocked_tools: [\"web:secret\"]\n"
        )
    };
    let url = format!("https://127.0.0.1:{}/mcp", up.line);
    let trusted = serve(&jail, &policy(&jail, "web.yaml", &rules(&url, "")), &[]);
    let http = Http::begun(&trusted.line);
    assert_eq!(
        text_of(&http.call("headers", json!({}))),
        format!("['Bearer {TOKEN}', '{API_KEY}']")
    );
    assert_eq!(http.call("secret", json!({}))["error"]["code"], -32010);
    // Where a redirect leads nobody agreed to, and what the server is told is for it alone.
    let elsewhere = TcpListener::bind("127.0.0.1:0").expect("a port");
    elsewhere.set_nonblocking(true).expect("not to wait");
    let to = elsewhere.local_addr().expect("its address");
    for to in [format!("http://{to}/mcp"), "/mcp".to_owned()] {
        let answer = http.call("redirect", json!({"to": to}));
        assert_eq!(answer["error"]["code"], -32015, "{answer}");
    }
    assert!(elsewhere.accept().is_err(), "it was followed");
    drop(trusted);
    for file in files_below(&jail.state) {
        let bytes = fs::read(&file).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        assert!(
            !text.contains(TOKEN) && !text.contains(API_KEY),
            "a secret is in {}",
            file.display()
        );
    }
    fs::remove_file(jail.work.join("called")).expect("it was called");
    // Another authority, another name.
    let strangers = jail.home.join("strangers.pem");
    let mut openssl = jail.outside("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
    ]);
    openssl.args([
        "-nodes",
        "-subj",
        "/CN=Strangers",
        "-keyout",
        "/dev/null",
        "-out",
    ]);
    openssl.arg(&strangers);
    assert!(finish(openssl.spawn().expect("openssl")).status.success());
    let ca = format!("      ca: {}\n", strangers.display());
    let other_name = url.replace("127.0.0.1", "127.0.0.2");
    for (url, more) in [(&url, ca.as_str()), (&other_name, "")] {
        let config = policy(&jail, "stranger.yaml", &rules(url, more));
        let stranger = serve(&jail, &config, &[]);
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
        let answer = Http::at(&stranger.line).post(hello.to_string(), &[]).json();
        assert_eq!(answer["error"]["code"], -32014, "{answer}");
        assert!(answer.to_string().contains("certificate"), "{answer}");
    }
    assert!(
        !jail.work.join("called").exists(),
        "a stranger was spoken to"
    );
    let ca = format!("      ca: {PLACE}/authority.pem\n");
    let named = serve(&jail, &policy(&jail, "named.yaml", &rules(&url, &ca)), &[]);
    assert_eq!(
        text_of(&Http::begun(&named.line).call("echo", json!({}))),
        "echo"
    );
    // What only the server may know goes nowhere in the clear.
    let config = policy(&jail, "clear.yaml", &rules("http://93.184.216.34/mcp", ""));
    let mut refused = jail.belljar(&["mcp", "serve", "--config"]);
    refused.arg(config).env("MCP_TOKEN", TOKEN);
    let refused = finish(refused.spawn().expect("start it"));
    assert!(!refused.status.success());
    assert!(
        refused.stderr().contains("unencrypted"),
        "{}",
        refused.stderr()
    );
}

fn a_box_has_its_servers_at_an_address_that_nobody_else_reaches(who: Who) {
    let jail = jail(who);
    let up = tls_upstream(&jail);
    let everything =
        format!("{NODE_MODULES}/@modelcontextprotocol/server-everything/dist/index.js");
    jail.put(&jail.base.join("server.yaml"), "extends: moderate\n");
    // Not where the box may write: there it is refused.
    jail.put(&jail.home.join("key"), API_KEY);
    let key = jail.home_file("key");
    let config = policy(
        &jail,
        "policy.yaml",
        &format!(
            "extends: moderate\nenv_allowlist: [MCP_TOKEN]\nmcp:\n  servers:\n    one: {{command: [node, {everything}, stdio], capability: server.yaml}}\n    \
             web: {{url: \"https://127.0.0.1:{}/mcp\", bearer: {{env: MCP_TOKEN}}, headers: {{x-api-key: {{file: {key}}}}}}}\n  \
             blocked_tools: [\"*:get-env\"]\n",
            up.line
        ),
    );
    let boxed = |script: &str| {
        let mut command = jail.belljar(&["run", "--quiet", "--config"]);
        command
            .arg(&config)
            .args(["--", "/bin/sh", "-euc", script])
            .env("MCP_TOKEN", TOKEN);
        command
    };
    for (program, file) in [(PYTHON, "client.py"), ("node", "client.mjs")] {
        let script = format!(
            "MODULES={NODE_MODULES} PREFIX=one__ URL_OF_SERVER=$BELLJAR_MCP_URL {program} {file}"
        );
        let said = said(&mut boxed(&script));
        assert_eq!(said["echo"], "Echo: hello", "{file}: {said}");
        assert_eq!(said["lists_get_env"], json!(false), "{file}: {said}");
        assert_eq!(said["denied_code"], -32010, "{file}: {said}");
    }
    // The agent has neither secret, nor the port: it is taken before the first instruction.
    let inside = r#"
import json, os, socket, sys, time
url = os.environ["BELLJAR_MCP_URL"]
port = int(url.split(":")[2].split("/")[0])
taken = []
for address in ["127.0.0.1", "0.0.0.0"]:
    with socket.socket() as mine:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            mine.bind((address, port))
            mine.listen()
            taken.append(False)
        except OSError:
            taken.append(True)
try:
    key = open(sys.argv[1]).read()
except OSError:
    key = ""
open("port", "w").write(str(port))
while not os.path.exists("go"):
    time.sleep(0.01)
print(json.dumps({"taken": taken, "key": key, "token": os.environ.get("MCP_TOKEN")}))
"#;
    jail.put(&jail.work.join("inside.py"), inside);
    let script = format!("exec {PYTHON} -B inside.py {key}");
    let mut first = boxed(&script);
    let first = std::thread::spawn(move || said(&mut first));
    let port = eventually("the box tells its port", || {
        fs::read_to_string(jail.work.join("port"))
            .ok()?
            .parse::<u16>()
            .ok()
    });
    assert!(
        TcpStream::connect(("127.0.0.1", port)).is_err(),
        "from the host"
    );
    let closed = policy(&jail, "closed.yaml", "extends: moderate\n");
    let mut other = jail.belljar(&["run", "--quiet", "--config"]);
    let connect = format!("import socket; socket.create_connection((\"127.0.0.1\", {port}))");
    other.arg(closed).args(["--", PYTHON, "-c", &connect]);
    let other = finish(other.spawn().expect("another box"));
    assert!(other.stderr().contains("refused"), "{}", other.stderr());
    jail.put(&jail.work.join("go"), "");
    let said = first.join().expect("the box");
    assert_eq!(said["taken"], json!([true, true]), "{said}");
    assert_eq!(said["key"], "", "{said}");
    assert_ne!(said["token"], TOKEN, "{said}");
    drop(up);
    jail.assert_nothing_left(None);
}

fn a_client_that_shakes_hands_uses_a_server_that_does_not(who: Who) {
    let jail = jail(who);
    let config = policy(
        &jail,
        "sdk.yaml",
        "extends: permissive\nmcp:\n  blocked_tools: [\"*:get-env\"]\n  server_requests: {elicitation: allow}\n",
    );
    let server = [PYTHON, "-B", "sdk_server.py", "stateless"];
    let belljar = jail.belljar_path().display().to_string();
    let config = config.display().to_string();
    let mut wrapped = python(&jail, &["sdk_client.py", &belljar, "mcp", "wrap"]);
    wrapped
        .args(["--name", "sdk", "--config", &config, "--"])
        .args(server);
    let said_to_it = said(wrapped.env("ASK", "yes"));
    let expected = json!({"version": "2025-11-25", "server": "sdk", "tools": ["ask", "echo"], "echo": "Echo: hello",
        "denied_code": -32010, "asked": "asked ann (who?)"});
    assert_eq!(said_to_it, expected);
    let socket = jail.home_file("mcp.sock");
    let _serving = serve(
        &jail,
        Path::new(&config),
        &[
            &["--socket", &socket, "--name", "sdk", "--"],
            server.as_slice(),
        ]
        .concat(),
    );
    let mut client = python(&jail, &["sdk_client.py"]);
    let over_http = said(client.env("SOCKET_OF_SERVER", &socket).env("ASK", "yes"));
    assert_eq!(over_http, expected);
}

fn sockets_are_used_on_both_sides_and_opened_to_nobody_else(who: Who) {
    let jail = jail(who);
    let upstream = jail.home_file("up.sock");
    let _up = Ready::start(python(&jail, &["sdk_server.py", "uds", &upstream]));
    let socket = jail.home_file("mcp.sock");
    let config = policy(
        &jail,
        "unix.yaml",
        &format!(
            "extends: moderate\nmcp:\n  servers: {{local: {{unix: {upstream}}}}}\n  blocked_tools: [\"local:get-env\"]\n"
        ),
    );
    let serving = serve(&jail, &config, &["--socket", &socket]);
    assert_eq!(serving.line, format!("unix:{socket}"));
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(&socket).expect("the socket").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    let mut client = python(&jail, &["sdk_client.py"]);
    let answers = said(client.env("SOCKET_OF_SERVER", &socket));
    assert_eq!(answers["echo"], "Echo: hello", "{answers}");
    assert_eq!(answers["tools"], json!(["ask", "echo"]), "{answers}");
    assert_eq!(answers["denied_code"], -32010, "{answers}");
    drop(serving);
    assert!(!Path::new(&socket).exists(), "it goes with its server");
}

for_each_user_in_a_world!(
    a_server_at_an_https_address_proves_who_it_is_and_is_told_its_secrets,
    a_box_has_its_servers_at_an_address_that_nobody_else_reaches,
    a_client_that_shakes_hands_uses_a_server_that_does_not,
    sockets_are_used_on_both_sides_and_opened_to_nobody_else,
);
