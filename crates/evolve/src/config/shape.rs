//! What may stand in `evolve.toml`: it is checked by this, and its JSON schema is written from it.

use belljar_manifest::document::{Field, Object, Shape, field, required};

const WORD: Shape = Shape::Text { most: 4096 };
const WORDS: Shape = Shape::List {
    item: &WORD,
    most: 1000,
};
const NAME: Field = required("name", WORD, "What it is called.");
const COMMAND: Field = required("command", WORDS, "The program and its arguments.");
const LINES: Shape = Shape::Lines { most: 256 * 1024 };

/// The whole of `evolve.toml`.
pub(super) static EVOLVE: Object = Object {
    name: "",
    doc: "How changes that an agent proposes to its own code are judged.",
    fields: &[
        field("project", Shape::Object(&PROJECT), "What the project is."),
        field(
            "limits",
            Shape::Object(&LIMITS),
            "How much one proposal may be and use.",
        ),
        field("scope", Shape::Object(&SCOPE), "What proposals may touch."),
        field("signals", Shape::Object(&SIGNALS), "Names in code."),
        field(
            "risk",
            Shape::Object(&RISK),
            "What is riskier than it looks.",
        ),
        field(
            "tests",
            Shape::Object(&TESTS),
            "The project's tests. They are taken from the tree before.",
        ),
        field(
            "checks",
            Shape::List {
                item: &Shape::Object(&CHECK),
                most: 20,
            },
            "Further programs that must end well (stage 2): type checkers, other languages' tests.",
        ),
        field(
            "cases",
            Shape::List {
                item: &Shape::Object(&CASE),
                most: 1000,
            },
            "Runs whose output is compared outside the box (stage 4).",
        ),
        field(
            "benchmark",
            Shape::Object(&BENCHMARK),
            "A program whose time counts (stage 5).",
        ),
        field(
            "scanners",
            Shape::List {
                item: &Shape::Object(&SCANNER),
                most: 20,
            },
            "Programs that find faults (stage 6). One that is missing is a failure.",
        ),
        field(
            "behaviour",
            Shape::Object(&BEHAVIOUR),
            "A program whose doings are compared (stage 7).",
        ),
    ],
};

static PROJECT: Object = Object {
    name: "project",
    doc: "What the project is.",
    fields: &[
        field(
            "python",
            WORD,
            "The Python that has pytest. Without it, /usr/bin/python3.",
        ),
        field(
            "node",
            WORD,
            "The Node that runs tests. Without it, /usr/bin/node.",
        ),
        field(
            "cargo",
            WORD,
            "The cargo of a toolchain, beside its rustc. Without it, /usr/bin/cargo.",
        ),
        field(
            "import_paths",
            WORDS,
            "Where Python looks for the project's modules. Without it, `.` and `src`.",
        ),
        field(
            "readable",
            WORDS,
            "Paths of the host that boxes see, such as an environment with the tools.",
        ),
        field(
            "exclude",
            WORDS,
            "Directories, by name, that are not part of the project, beside the usual ones.",
        ),
    ],
};
static LIMITS: Object = Object {
    name: "limits",
    doc: "How much one proposal may be and use.",
    fields: &[
        field(
            "max_files",
            Shape::Whole {
                least: 1,
                most: 10_000,
            },
            "Files. Without it, 10.",
        ),
        field(
            "max_lines_per_file",
            Shape::Whole {
                least: 1,
                most: 1_000_000,
            },
            "Changed lines of one file. Without it, 500.",
        ),
        field(
            "min_coverage",
            Shape::NumberFrom {
                least: 0.0,
                most: 1.0,
            },
            "The share of changed lines that tests run. Without it, 0.8.",
        ),
        field(
            "stage_seconds",
            Shape::Number {
                above: 0.0,
                most: 86_400.0,
            },
            "The time of one box. Without it, 120.",
        ),
        field(
            "memory_mb",
            Shape::Whole {
                least: 64,
                most: 1 << 20,
            },
            "The memory of one box. Without it, 1024.",
        ),
    ],
};
static SCOPE: Object = Object {
    name: "scope",
    doc: "What proposals may touch.",
    fields: &[
        field(
            "never",
            WORDS,
            "Paths that no proposal touches, beside the built-in ones.",
        ),
        field(
            "immutable",
            WORDS,
            "Paths that only a critical proposal touches, beside the built-in ones.",
        ),
    ],
};
static SIGNALS: Object = Object {
    name: "signals",
    doc: "Names in code.",
    fields: &[
        field(
            "deny",
            WORDS,
            "Names that no proposal brings in, beside the built-in ones.",
        ),
        field(
            "allow",
            WORDS,
            "Names that may be brought in although they are built in.",
        ),
    ],
};
static RISK: Object = Object {
    name: "risk",
    doc: "What is riskier than it looks.",
    fields: &[
        field("critical", WORDS, "Paths."),
        field("high", WORDS, "Paths."),
    ],
};
static TESTS: Object = Object {
    name: "tests",
    doc: "The project's tests.",
    fields: &[
        field(
            "files",
            WORDS,
            "Patterns of test files. Without it, test_*.py, *_test.py, and *.test.* and *.spec.* of JavaScript and TypeScript.",
        ),
        field(
            "runners",
            WORDS,
            "Who runs them: python, node, cargo. Without it, those for which there are test files, and cargo where there is a Cargo.toml.",
        ),
        field(
            "held_out",
            WORD,
            "A directory outside the project with tests that no author sees (stage 4), relative to the project.",
        ),
    ],
};
static CHECK: Object = Object {
    name: "checks",
    doc: "A program that must end well.",
    fields: &[NAME, COMMAND],
};
static CASE: Object = Object {
    name: "cases",
    doc: "A run whose output is compared outside the box. The expected output is never shown to it.",
    fields: &[
        NAME,
        required(
            "command",
            WORDS,
            "The program and its arguments; {input} is a file with the input.",
        ),
        field("input", LINES, "The input."),
        required(
            "expect",
            LINES,
            "What it prints, but for the last line end.",
        ),
    ],
};
static BENCHMARK: Object = Object {
    name: "benchmark",
    doc: "A program whose time counts, by the clock outside.",
    fields: &[
        COMMAND,
        field(
            "rounds",
            // With fewer, chance alone could not be ruled out; `compare` looks at no more.
            Shape::Whole {
                least: 12,
                most: 200,
            },
            "Rounds of two runs each. Without it, 12.",
        ),
        field(
            "max_slowdown",
            Shape::NumberFrom {
                least: 0.0,
                most: 10.0,
            },
            "How much slower the median may be. Without it, 0.1.",
        ),
    ],
};
static SCANNER: Object = Object {
    name: "scanners",
    doc: "A program that finds faults. There may be no more after than before.",
    fields: &[
        NAME,
        required(
            "command",
            WORDS,
            "The program and its arguments. It prints JSON.",
        ),
        required(
            "findings",
            WORD,
            "Where in the JSON the list of findings is, as a JSON pointer; `/` for the whole.",
        ),
    ],
};
static BEHAVIOUR: Object = Object {
    name: "behaviour",
    doc: "A program whose doings are compared: files, programs, refused calls.",
    fields: &[COMMAND],
};
