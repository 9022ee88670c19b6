//! `belljar`: the command line.

mod cli;
mod commands;
mod exit;
mod print;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = cli::Cli::parse();
    exit::finish(commands::dispatch(arguments))
}
