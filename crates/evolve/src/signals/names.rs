//! The words that give a text away.

use crate::lang::Lang;

/// Names that a proposal may not bring in: code from text, ways around the interpreter, and around who judges.
pub(super) const DENIED_PYTHON: &[&str] = &[
    "exec",
    "eval",
    "compile",
    "__import__",
    "import_module",
    "importlib",
    "__builtins__",
    "builtins",
    "__globals__",
    "__subclasses__",
    "__code__",
    "__closure__",
    "f_locals",
    "f_globals",
    "f_back",
    "f_builtins",
    "f_code",
    "f_trace",
    "tb_frame",
    "gi_frame",
    "cr_frame",
    "ag_frame",
    "currentframe",
    "walk_stack",
    "extract_stack",
    "_getframe",
    "_current_frames",
    "settrace",
    "settrace_all_threads",
    "setprofile",
    "setprofile_all_threads",
    "monitoring",
    "get_objects",
    "get_referents",
    "get_referrers",
    "ctypes",
    "cffi",
    "_ctypes",
    "system",
    "popen",
    "shell",
    "_exit",
    "abort",
    "fork",
    "forkpty",
    "execv",
    "execve",
    "execvp",
    "execvpe",
    "execl",
    "execle",
    "execlp",
    "execlpe",
    "fork_exec",
    "_posixsubprocess",
    "posix_spawn",
    "posix_spawnp",
    "spawnl",
    "spawnle",
    "spawnlp",
    "spawnlpe",
    "spawnv",
    "spawnve",
    "spawnvp",
    "spawnvpe",
    "pickle",
    "_pickle",
    "cPickle",
    "marshal",
    "dill",
    "cloudpickle",
    "shelve",
    "pty",
    "pytest",
    "_pytest",
    "unittest",
    "sitecustomize",
    "usercustomize",
    "addaudithook",
    "meta_path",
    "path_hooks",
    "breakpoint",
    "runpy",
    "code",
    "atexit",
    "register_at_fork",
    "resolve_name",
    "timeit",
    "get_type_hints",
    "dictConfig",
    "fileConfig",
    "cProfile",
    "runctx",
    "pydoc",
    "zipimport",
    "zipimporter",
    "doctest",
    "pdb",
    "bdb",
    "codeop",
    "create_subprocess_shell",
    "subprocess_shell",
    "linecache",
    "findCaller",
    "co_consts",
    "co_code",
    "CodeType",
    "ForwardRef",
    "evaluate_forward_ref",
    "_interpreters",
    "_xxsubinterpreters",
    "__wrapped__",
    "__loader__",
    "__spec__",
    "PYTEST_CURRENT_TEST",
    "PYTEST_VERSION",
];

/// Modules that lead around the judge, however they are imported: what they have runs text as code, or looks at who calls.
const DENIED_MODULES: &[&str] = &[
    "__main__",
    "builtins",
    "cProfile",
    "code",
    "codeop",
    "doctest",
    "imp",
    "importlib",
    "lib2to3",
    "linecache",
    "logging.config",
    "pdb",
    "bdb",
    "pkgutil.resolve_name",
    "profile",
    "pydoc",
    "rlcompleter",
    "runpy",
    "site",
    "sys.modules",
    "sys._getframe",
    "sys._current_frames",
    "sys._current_exceptions",
    "timeit",
    "trace",
    "typing.get_type_hints",
    "inspect.get_annotations",
    "inspect.getframeinfo",
    "inspect.getinnerframes",
    "inspect.getouterframes",
    "inspect.stack",
    "inspect.trace",
    "concurrent.interpreters",
    "_frozen_importlib",
    "_frozen_importlib_external",
    "zipimport",
];

/// Words that stand for something else too: in a dotted text they count after a module that has them.
const COMMON: &[&str] = &[
    "abort",
    "code",
    "compile",
    "fork",
    "monitoring",
    "popen",
    "shell",
    "system",
];

/// Whether a dotted name, as `logging.config.dictConfig`, or a text that is one, leads around the judge. What is said to be
/// allowed is a part of it.
pub(crate) fn denied_path(path: &str, is_text: bool, allowed: &[String]) -> Option<String> {
    let parts: Vec<&str> = path.split(['.', ':']).collect();
    let is_allowed = |part: &&str| allowed.iter().any(|name| name == part);
    let is_denied = |module: &&&str| {
        let inside = path
            .strip_prefix(**module)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', ':']));
        inside && !module.split('.').any(|part| is_allowed(&part))
    };
    if (!is_text || parts.len() > 1)
        && let Some(module) = DENIED_MODULES.iter().find(is_denied)
    {
        return Some((*module).to_owned());
    }
    if !is_text || parts.len() < 2 {
        return None;
    }
    let known = matches!(
        parts.first(),
        Some(&("os" | "posix" | "sys" | "subprocess" | "asyncio"))
    );
    let counts = |part: &&&str| {
        DENIED_PYTHON.contains(*part) && (known || !COMMON.contains(*part)) && !is_allowed(part)
    };
    parts.iter().find(counts).map(|part| (*part).to_owned())
}
pub(super) const DENIED_JAVASCRIPT: &[&str] = &[
    "eval",
    "Function",
    "child_process",
    "execSync",
    "spawnSync",
    "vm",
    "runInThisContext",
    "binding",
    "dlopen",
    "constructor",
    "__proto__",
    "setPrototypeOf",
    "worker_threads",
    "inspector",
    "v8",
    "reallyExit",
    "_load",
    "_linkedBinding",
    "internalBinding",
    "syncBuiltinESMExports",
    "WebAssembly",
    "prepareStackTrace",
];

/// Modules of Node's with the like in them, and what runs text or other programs under names of its own.
const DENIED_NODE: &[&str] = &[
    "child_process",
    "cluster",
    "inspector",
    "repl",
    "test",
    "v8",
    "vm",
    "wasi",
    "worker_threads",
];

/// A text of a script as Node takes the name of a module: `node:vm` and `inspector/promises` are vm and inspector, and an address
/// with code in it is code.
pub(super) fn denied_module(text: &str) -> Option<&'static str> {
    let is_code = text
        .get(..5)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
    if is_code && text.to_ascii_lowercase().contains("javascript") {
        return Some("code in an address");
    }
    let first = text.strip_prefix("node:")?.split('/').next()?;
    DENIED_NODE.iter().find(|name| **name == first).copied()
}

/// Names that tell who calls, in languages in which they are no common words.
pub(super) fn tells_who_calls(lang: Lang, name: &str) -> bool {
    match lang {
        Lang::JavaScript | Lang::TypeScript | Lang::Tsx => {
            matches!(
                name,
                "callee" | "caller" | "captureStackTrace" | "getFunction"
            )
        }
        Lang::Rust => matches!(name, "caller" | "track_caller" | "Location"),
        Lang::Python => false,
    }
}
pub(super) const DENIED_RUST: &[&str] = &[
    "unsafe",
    "asm",
    "global_asm",
    "transmute",
    "no_mangle",
    "link_section",
    "libloading",
    "dlopen",
    // What puts a file, such as a test, into the program.
    "include!",
    "include_bytes",
    "include_str",
];

/// Names that make a proposal high, whatever else it is.
pub(super) const RAISED: &[&str] = &[
    "getattr",
    "attrgetter",
    "methodcaller",
    "itemgetter",
    "pkgutil",
    "create_subprocess_exec",
    "subprocess_exec",
    "setattr",
    "delattr",
    "globals",
    "locals",
    "vars",
    "subprocess",
    "Popen",
    "socket",
    "requests",
    "urllib",
    "httpx",
    "aiohttp",
    "open",
    "unlink",
    "rmtree",
    "chmod",
    "environ",
    "modules",
    "gc",
    "inspect",
    "__eq__",
    "__ne__",
    "__hash__",
    "__class__",
    "__dict__",
    "__getattr__",
    "__getattribute__",
    "__init_subclass__",
    "__set_name__",
    "metaclass",
    "signal",
    "threading",
    "multiprocessing",
    "fetch",
    "XMLHttpRequest",
    "WebSocket",
    "prototype",
    "process",
    "require",
    "createRequire",
    "createReadStream",
    "openSync",
    "readFile",
    "readFileSync",
    "readdirSync",
    "read_dir",
    "read_to_string",
    "Command",
    "TcpStream",
];

/// Names by which code can tell a test, a box or a moment from the real thing.
pub(super) const SWITCHES: &[&str] = &[
    "gettrace",
    "getprofile",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "getresuid",
    "getlogin",
    "getuser",
    "getpwuid",
    "getpid",
    "getppid",
    "gethostname",
    "uname",
    "getcwd",
    "exists",
    "lexists",
    "isfile",
    "isdir",
    "islink",
    "ismount",
    "is_file",
    "is_dir",
    "is_mount",
    "lstat",
    "statvfs",
    "listdir",
    "scandir",
    "iterdir",
    "getenv",
    "getenvb",
    "environb",
    "argv",
    "orig_argv",
    "isatty",
    "time_ns",
    "localtime",
    "gmtime",
    "utcnow",
    "monotonic",
    "perf_counter",
    "process_time",
    "sched_getaffinity",
    "cpu_count",
    "getrusage",
    "getloadavg",
    "warn_explicit",
    "traceback",
    "__file__",
    "existsSync",
    "hrtime",
    "hostname",
    "userInfo",
    "SystemTime",
    "Instant",
];

/// The same, where only the module says what a word means.
const SWITCH_PATHS: &[&str] = &[
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "os.access",
    "os.stat",
    "platform",
    "sys.executable",
    "sys.flags",
    "sys.platform",
    "time.time",
    "warnings.warn",
];

/// Whether a dotted name tells a test from the real thing.
pub(crate) fn is_switch_path(path: &str) -> bool {
    SWITCH_PATHS.iter().any(|known| {
        path.strip_prefix(known)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// What turns a tool off, or tells it something, in a comment.
pub(super) const DIRECTIVES: &[&str] = &[
    "noqa",
    "nosec",
    "type: ignore",
    "type:ignore",
    "pragma:",
    "pylint:",
    "mypy:",
    "pyright:",
    "pyre-",
    "pytype:",
    "ruff:",
    "flake8:",
    "isort:",
    "fmt:",
    "yapf:",
    "nosemgrep",
    "semgrep",
    "bandit:",
    "skipcq",
    "noinspection",
    "coding:",
    "coding=",
    "eslint",
    "@ts-",
    "tslint:",
    "prettier-ignore",
    "istanbul ignore",
    "c8 ignore",
    "v8 ignore",
    "jshint",
    "biome-ignore",
    "nolint",
    "sourcery",
    "nopep8",
    "lgtm",
    "codeql",
    "snyk",
    "gitleaks:",
    "pragma no cover",
    "doctest:",
    "cspell",
    "lint:",
    "vim:",
    "clippy::",
    "rustfmt",
    "#!",
    // What runs a script reads what to install, how to compile and what to leave out from comments.
    "# ///",
    "/// <reference",
    "/// <amd",
    "cython:",
    "distutils:",
    "@jsx",
    "@flow",
    "__pure__",
    "__no_side_effects__",
    "@vite-ignore",
    "webpackignore",
    "webpackinclude",
    "webpackmode",
    "sourcemappingurl",
    "sourceurl",
];
