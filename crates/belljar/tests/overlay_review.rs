//! Looking through what a box left, with real boxes and real git.

mod support;

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use support::review::{belljar, outside, overlaid, read, repository, said};
use support::{Jail, Outcome, Who, finish, for_each_user};

const INVALID: i32 = 121;
fn the_only_box_needs_no_id(who: Who) {
    let jail = Jail::new(who);
    for verb in ["diff", "apply", "discard"] {
        let done = belljar(&jail, &[verb]);
        assert_eq!(done.code(), INVALID, "{verb}");
        assert!(
            done.stderr().contains("no changes wait"),
            "{}",
            done.stderr()
        );
    }
    overlaid(&jail, "echo 1 > one.txt");
    assert!(said(&jail, &["diff"]).contains("one.txt"));
    said(&jail, &["apply"]);
    assert_eq!(read(&jail, "one.txt"), "1\n");
    // Of several one must be named.
    let first = overlaid(&jail, "echo 2 > two.txt");
    let second = overlaid(&jail, "echo 3 > three.txt");
    for verb in ["diff", "apply", "discard"] {
        let done = belljar(&jail, &[verb]);
        let (code, text) = (done.code(), done.stderr());
        assert_eq!(code, INVALID, "{verb}: {text}");
        let place = |id: &str| {
            text.find(id)
                .unwrap_or_else(|| panic!("{id} is not in: {text}"))
        };
        assert!(
            place(&second) < place(&first),
            "the newest is not first: {text}"
        );
        for part in ["2 boxes", "bash", "ago", "--last", "project"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    assert!(said(&jail, &["diff", "--last"]).contains("three.txt"));
    assert!(said(&jail, &["diff", &first]).contains("two.txt"));
    // What looks like an id is one; what is no path of a change is told.
    assert_eq!(belljar(&jail, &["discard", "0123456789ab"]).code(), INVALID);
    assert_eq!(
        belljar(&jail, &["discard", "--last", "twoo.txt"]).code(),
        INVALID
    );
    said(&jail, &["discard", "--last"]);
    said(&jail, &["apply"]);
    assert_eq!(read(&jail, "two.txt"), "2\n");
    assert!(!jail.work.join("three.txt").exists());
    jail.assert_nothing_left(Some(&first));
}

fn the_project_comes_first_and_git_in_words(who: Who) {
    let jail = repository(who);
    let before = outside(&jail, "git rev-parse HEAD");
    overlaid(
        &jail,
        "echo changed > src/a.rs; git commit -qam $'change a\\ncontinued'; git commit -q --allow-empty -m \"$(printf 'evil \\033[2K\\302\\233 \\342\\200\\256subject')\"
         git branch other; git tag v1; git checkout -qb feature; echo new > staged.txt; git add staged.txt; echo more >> lines.txt",
    );
    let text = said(&jail, &["diff"]);
    let place = |part: &str| {
        text.find(part)
            .unwrap_or_else(|| panic!("{part} is not in:\n{text}"))
    };
    assert!(place("M ") < place("git, "), "{text}");
    assert!(place("git, ") < place("+++ "), "{text}");
    assert!(
        !text.contains(".git/objects") && !text.contains(".git/index"),
        "{text}"
    );
    for part in [
        "2 new commits",
        "HEAD refs/heads/main → refs/heads/feature",
        "change a continued (Ann <ann@example.org>)",
        "refs/heads/other is new: ",
        "refs/tags/v1 is new: ",
        "staged, new: staged.txt",
        "subject",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert!(
        text.contains(&format!("refs/heads/main {} → ", &before[..10])),
        "{text}"
    );
    assert!(
        !text.contains("leaves commits out") && !text.contains("not told"),
        "{text}"
    );
    // lines.txt is changed, and not staged; a.rs is committed.
    assert!(!text.contains("staged: "), "{text}");
    let is_steered = |c: char| belljar_policy::is_harmful(c) && c != '\n' && c != '\t';
    assert!(!text.contains(is_steered), "{text:?}");
    let all = said(&jail, &["diff", "--all"]);
    assert!(
        all.contains("/.git/objects/") && all.contains("/.git/index"),
        "{all}"
    );
    // Looking is not touching, and what was told is what happens.
    assert_eq!(outside(&jail, "git rev-parse HEAD"), before);
    said(&jail, &["apply"]);
    assert_eq!(
        outside(
            &jail,
            "git fsck --strict 2>&1 && git log --format=%s -1 HEAD~1"
        )
        .trim_end(),
        "change a continued"
    );
    assert!(outside(&jail, "git status --porcelain").contains("A  staged.txt"));
}

fn packed_and_rewritten_history_is_told(who: Who) {
    let jail = repository(who);
    // Many commits, so that packs have differences in them.
    outside(
        &jail,
        "for i in $(seq 30); do seq $i 300 > lines.txt; git commit -qam \"step $i\"; done; git gc -q",
    );
    let id = overlaid(
        &jail,
        "git commit -q --amend -m 'rewritten'; for i in $(seq 12); do seq $i 400 > lines.txt; git commit -qam \"packed $i\"; done
         git update-index --assume-unchanged src/a.rs; git gc -q; git pack-refs --all",
    );
    let text = said(&jail, &["diff"]);
    for part in [
        "13 new commits",
        "packed 12",
        "rewritten",
        "leaves commits out that were there",
        "no longer looked at by git status: src/a.rs",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert!(
        !text.contains("step 3") && !text.contains("not told"),
        "{text}"
    );
    said(&jail, &["discard", &id]);
    // Merges and what only goes on are no loss; a new repository is all new, and what it runs is shown.
    outside(
        &jail,
        "git branch side HEAD~3; git checkout -q side; echo x > side.txt; git add side.txt; git commit -qm side; git checkout -q main",
    );
    overlaid(
        &jail,
        "git merge -q --no-edit side; git branch -D side 2> /dev/null; git init -q nested; cd nested; echo n > n; git add n; git commit -qm inner; git config core.fsmonitor /tmp/x",
    );
    let text = said(&jail, &["diff"]);
    for part in [
        "Merge branch",
        "inner",
        "refs/heads/side is gone",
        "nested/.git/config",
        "fsmonitor = /tmp/x",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert!(
        !text.contains("leaves commits out") && !text.contains("not told"),
        "{text}"
    );
    assert!(!text.contains("hooks/"), "samples of hooks: {text}");
}

/// An agent writes whatever it likes where git has its objects.
fn hostile_repositories_are_survived(who: Who) {
    let jail = repository(who);
    let script = r#"
import os, zlib, struct, hashlib
def loose(kind, body, name=None):
    raw = kind + b' %d\0' % len(body) + body
    name = name or hashlib.sha1(raw).hexdigest()
    os.makedirs('.git/objects/' + name[:2], exist_ok=True)
    path = '.git/objects/%s/%s' % (name[:2], name[2:])
    open(path, 'wb').write(zlib.compress(raw, 9))
    return name
commit = lambda parent, text: b'tree ' + b'0'*40 + b'\n' + b''.join(b'parent ' + p.encode() + b'\n' for p in parent) + b'author A <a> 1 +0\ncommitter A <a> 1 +0\n\n' + text
def ref(name, to):
    os.makedirs(os.path.dirname('.git/refs/heads/' + name), exist_ok=True)
    open('.git/refs/heads/' + name, 'wb').write(to if isinstance(to, bytes) else to.encode() + b'\n')
# A bomb: a gigabyte of nothing in a megabyte.
bomb = zlib.compressobj(9)
os.makedirs('.git/objects/bb', exist_ok=True)
with open('.git/objects/bb/' + 'b'*38, 'wb') as f:
    f.write(bomb.compress(b'commit 1073741824\0'))
    for _ in range(1024): f.write(bomb.compress(b'\0' * (1 << 20)))
    f.write(bomb.flush())
ref('bomb', 'b'*40)
# One that says it is another; a ring can't be made, but be claimed.
ref('forged', loose(b'commit', commit(['c'*40], b'FORGED'), 'c'*40))
ref('lost', 'd'*40)
ref('garbage', b'\x1b[2K\xff\n\0' * 100)
ref('deep', loose(b'commit', commit([], b'x' * 100000 + b'\n\nmore')))
os.makedirs('.git/objects/pack', exist_ok=True)
# An index of a pack that leads everywhere but to objects.
open('.git/objects/pack/pack-0.idx', 'wb').write(b'\xfftOc\0\0\0\2' + b'\xff' * 4096)
open('.git/objects/pack/pack-0.pack', 'wb').write(b'PACK' + b'\xff' * 300)
open('.git/index', 'wb').write(b'DIRC\0\0\0\4\xff\xff\xff\xff' + b'\xff' * 1000)
os.symlink('/etc/passwd', '.git/refs/heads/link')
os.symlink('/etc/passwd', '.git/packed-refs')
"#;
    jail.put(&jail.work.join("hostile.py"), script);
    overlaid(&jail, "python3 hostile.py");
    let text = said(&jail, &["diff"]);
    for part in [
        "refs/heads/bomb is new",
        "too large to be looked into",
        "is not what its name says",
        "is missing",
        "refs/heads/deep",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert!(
        !text.contains("FORGED") && !text.contains("root:"),
        "{text}"
    );
    assert!(
        text.contains("packed-refs: a link to /etc/passwd"),
        "{text}"
    );
    let is_steered = |c: char| belljar_policy::is_harmful(c) && c != '\n' && c != '\t';
    assert!(!text.contains(is_steered), "{text:?}");
    assert!(text.lines().all(|line| line.len() < 1000), "{text}");
}

fn paths_choose_what_is_shown(who: Who) {
    let jail = repository(who);
    overlaid(
        &jail,
        "echo x >> src/a.rs; echo y >> src/b.txt; seq 2 41 > lines.txt; mkdir -p src/deep; echo z > src/deep/c.rs; printf '\\0' > binary",
    );
    let names = |words: &[&str]| -> Vec<String> {
        let words = [&["diff", "--name-only"], words].concat();
        let text = said(&jail, &words);
        let top = format!("{}/", jail.work.display());
        text.lines().map(|line| line.replace(&top, "")).collect()
    };
    assert_eq!(
        names(&[]),
        [
            "binary",
            "lines.txt",
            "src/a.rs",
            "src/b.txt",
            "src/deep",
            "src/deep/c.rs"
        ]
    );
    assert_eq!(names(&["*.rs"]), ["src/a.rs", "src/deep/c.rs"]);
    assert_eq!(
        names(&["--", "src/deep", "lines.txt"]),
        ["lines.txt", "src/deep", "src/deep/c.rs"]
    );
    assert_eq!(
        names(&[&jail.work_file("src/[ab].*")]),
        ["src/a.rs", "src/b.txt"]
    );
    let wrong = belljar(&jail, &["diff", "--", "nothing-here"]);
    assert_eq!(wrong.code(), INVALID);
    assert!(
        wrong.stderr().contains("nothing-here"),
        "{}",
        wrong.stderr()
    );
    let text = said(&jail, &["diff", "src/a.rs"]);
    assert!(text.contains("+x") && !text.contains("+y"), "{text}");
    let text = said(&jail, &["diff", "--stat"]);
    let row = |name: &str| {
        text.lines()
            .find(|line| line.contains(name))
            .unwrap_or_else(|| panic!("{name}: {text}"))
    };
    assert!(row("lines.txt").ends_with("| 2 +-"), "{text}");
    assert!(row("src/a.rs").ends_with("| 1 +"), "{text}");
    assert!(row("binary").ends_with("| not text"), "{text}");
    assert!(
        text.contains("6 files changed, 4 insertions(+), 1 deletion(-)"),
        "{text}"
    );
    // For programs, everything.
    let json: serde_json::Value =
        serde_json::from_str(&said(&jail, &["diff", "--output", "json", "*.rs"])).expect("JSON");
    assert_eq!(json.as_array().map(Vec::len), Some(2), "{json}");
}

/// What an agent keeps for itself is counted; what later agents obey is shown.
fn agents_own_directories_are_counted(who: Who) {
    let mut jail = Jail::new(who);
    for directory in [".codex/sessions", ".codex/prompts", "notes"] {
        jail.put(&jail.home.join(directory).join("there"), "x");
    }
    jail.policy("extends: moderate\nfilesystem_config:\n  workspace: overlay\n  writable_paths: [., ~/.codex, ~/.codex/prompts, ~/notes]\n");
    let script = "for i in 1 2 3; do echo $i > ~/.codex/sessions/$i; done; echo obey > ~/.codex/prompts/evil.md; echo n > ~/notes/n; echo p > p.txt";
    let child = jail.json_command(&["sh", "-euc", script]).spawn();
    Outcome::from_json(finish(child.expect("start belljar"))).assert_exit(0);
    let text = said(&jail, &["diff"]);
    let place = |part: &str| {
        text.find(part)
            .unwrap_or_else(|| panic!("{part} is not in:\n{text}"))
    };
    assert!(place("project/p.txt") < place("notes/n"), "{text}");
    assert!(
        text.contains("+obey") && !text.contains("sessions/"),
        "{text}"
    );
    assert!(
        text.contains("3 changes in directories that agents"),
        "{text}"
    );
    assert!(said(&jail, &["diff", "--all"]).contains("sessions/2"));
    assert!(said(&jail, &["diff", &jail.home_file(".codex")]).contains("sessions/2"));
}

/// A terminal, with a pager that marks what went through it.
fn on_a_terminal(jail: &Jail, variables: &[(&str, &str)], words: &str) -> String {
    let command = format!("{} {words}", jail.belljar_path().display());
    let mut script = jail.outside("/usr/bin/script");
    script
        .args(["-qec", &command, "/dev/null"])
        .env("TERM", "xterm");
    script.envs(variables.iter().copied());
    let mut child = script
        .stdin(Stdio::piped())
        .spawn()
        .expect("script, of util-linux");
    let mut text = String::new();
    let mut stdout = child.stdout.take().expect("its output");
    stdout.read_to_string(&mut text).expect("text");
    child.wait().expect("its end");
    text.replace('\r', "")
}

fn a_pager_and_colours_are_for_terminals(who: Who) {
    let jail = repository(who);
    let id = overlaid(&jail, "echo x >> src/a.rs; git commit -qam c");
    let plain = said(&jail, &["diff"]);
    assert!(!plain.contains('\u{1b}'), "{plain:?}");
    let mark = ("PAGER", "sed s/^/paged:/");
    let paged = on_a_terminal(&jail, &[mark], "diff");
    assert!(
        paged.lines().all(|line| line.starts_with("paged:")),
        "{paged:?}"
    );
    assert!(paged.contains("\u{1b}[32m+x\u{1b}[0m"), "{paged:?}");
    let bare = on_a_terminal(&jail, &[mark, ("NO_COLOR", "1")], "diff --no-pager");
    assert!(
        !bare.contains("paged:") && !bare.contains('\u{1b}'),
        "{bare:?}"
    );
    assert_eq!(bare, plain, "the same, whoever looks");
    for no_pager in ["", "cat"] {
        let text = on_a_terminal(&jail, &[("PAGER", no_pager)], "diff --stat");
        assert!(
            text.contains("1 file changed, 1 insertion(+)\n"),
            "{text:?}"
        );
    }
    // Where there is no less, and none was asked for, there is no pager.
    assert!(on_a_terminal(&jail, &[("PATH", "/nowhere")], "diff").contains("+x"));
    // One that ends early ends it all.
    let head = on_a_terminal(&jail, &[("PAGER", "head -n 1")], "diff");
    assert_eq!(head.lines().count(), 1, "{head:?}");
    // Less shows what fits and ends by itself.
    assert!(on_a_terminal(&jail, &[("PAGER", "less")], "diff").contains("+x"));
    // Questions are asked on the terminal itself.
    let mut script = jail.outside("/usr/bin/script");
    let command = format!("{} apply -i src", jail.belljar_path().display());
    script
        .args(["-qec", &command, "/dev/null"])
        .env("TERM", "xterm")
        .env(mark.0, mark.1);
    let mut child = script.stdin(Stdio::piped()).spawn().expect("script");
    let mut keys = child.stdin.take().expect("its keys");
    keys.write_all(b"y\n").expect("typed");
    let done = finish(child);
    drop(keys);
    assert!(
        done.stdout().contains("Apply this part") && !done.stdout().contains("paged:"),
        "{}",
        done.stdout()
    );
    assert_eq!(read(&jail, "src/a.rs"), "one\nx\n");
    said(&jail, &["discard", &id]);
}

for_each_user!(
    the_only_box_needs_no_id,
    the_project_comes_first_and_git_in_words,
    packed_and_rewritten_history_is_told,
    hostile_repositories_are_survived,
    paths_choose_what_is_shown,
    agents_own_directories_are_counted,
    a_pager_and_colours_are_for_terminals,
);
