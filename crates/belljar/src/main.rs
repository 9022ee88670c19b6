//! `belljar`: the command line.

mod cli;
mod commands;
mod exit;
mod print;

use std::process::ExitCode;

fn main() -> ExitCode {
    exit::finish(commands::dispatch(cli::Cli::read()))
}
