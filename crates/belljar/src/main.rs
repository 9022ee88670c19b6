//! `belljar`: the command line.

mod cli;
mod commands;
mod exit;
mod pager;
mod print;

use std::panic;
use std::process::ExitCode;

fn main() -> ExitCode {
    end_at_a_panic();
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(code) = belljar_sandbox::take_over(&words) {
        return ExitCode::from(code);
    }
    exit::finish(commands::dispatch(cli::Cli::read()))
}

/// A panic ends the process, so that its box ends with it: nobody knows what state it is in. That holds for a box's init and
/// between fork and exec as well. What serves a single connection of the way out ends alone.
fn end_at_a_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |what| {
        if !belljar_egress::is_contained(what) {
            tell(what);
            std::process::abort();
        }
    }));
}
