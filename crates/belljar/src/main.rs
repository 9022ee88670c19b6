//! `belljar`: the command line.

mod cli;
mod commands;
mod exit;
mod print;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(code) = belljar_sandbox::take_over(&words) {
        return ExitCode::from(code);
    }
    exit::finish(commands::dispatch(cli::Cli::read()))
}
