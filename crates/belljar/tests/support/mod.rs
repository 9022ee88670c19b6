//! What the tests of the real binary share: users to run as, a home and workspace to attack, the probe, and the
//! check that a finished run left nothing behind.
//!
//! Every test runs twice, as root and as an ordinary user. Run as root, the suite plays both; run as an ordinary
//! user, the `as_root::` half fails by name and can be left out with `--skip as_root::`.
//!
//! Settings for hosts that cannot build (a minimal VM guest): `BELLJAR_BIN` and `BELLJAR_PROBE` name ready-made
//! programs; `BELLJAR_EXPECT_LIMITS` says which `limits_by` the user who runs the tests must get. `BELLJAR_RUNSC` is for the
//! boxes on gVisor what it is outside the tests: another release of it.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "each test file uses its own part of this module"
)]

mod allowance;
mod apart;
mod build;
mod dockerd;
mod family;
mod http;
mod image;
mod jail;
mod leftovers;
mod lesson;
mod outcome;
mod picture;
mod place;
mod record;
pub(crate) mod review;
mod scratch;
mod supervised;
mod talk;
mod tier;
mod watch;
mod world;
mod yard;

pub(crate) use allowance::{few_cpu_seconds, machines_own, patience, shortest_patience};
pub(crate) use apart::{apart, for_each_user_apart, is_apart, on_other_tiers_apart};
pub(crate) use build::{belljar, probe, reachable_by_others};
pub(crate) use dockerd::{Dockerd, Storage};
pub(crate) use family::{AGENT, Family, Host, Refusal, Said, text};
pub(crate) use http::{Answer, Http, Ready};
pub(crate) use image::{
    IMAGE, MARK as IMAGE_MARK, provide as provide_image, put as put_image, tree as image_tree,
};
pub(crate) use jail::{AWS_SECRET, DOTENV_SECRET, Jail, NETRC_SECRET, SSH_SECRET};
pub(crate) use leftovers::{cgroups_of, files_below, processes_marked};
pub(crate) use lesson::{belljar_in, jail_with, plain_jail, succeeded, valid};
pub(crate) use outcome::{Attempt, Outcome, assert_all_allowed, assert_all_refused};
pub(crate) use picture::picture;
pub(crate) use place::{Place as ImagePlace, text as path_text};
pub(crate) use record::{Record, with_flipped};
pub(crate) use scratch::Scratch;
pub(crate) use supervised::{Supervised, pid as supervised_pid};
pub(crate) use talk::{Talk, text_of};
pub(crate) use tier::{
    CONTAINER, Difference, GVISOR, MICROVM, differs, in_container, on_gvisor, on_microvm, tier,
    tier_lines,
};
pub(crate) use watch::{Finished, eventually, finish, finish_with_input};
pub(crate) use world::{
    NODE_MODULES, PLACE, PYTHON, World, assert_recorded, codes, for_each_user_in_a_world,
    in_a_world, on_other_tiers_in_a_world,
};
pub(crate) use yard::{Yard, attend_admitted};

use std::fs;

/// Where the search for an unused user id starts; high enough to be nobody's on an ordinary machine.
const FIRST_SPARE_UID: u32 = 54321;

/// Whom a test runs Belljar as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Root,
    User,
}

impl Who {
    /// The id Belljar is started with.
    pub(crate) fn uid(self) -> u32 {
        match self {
            Who::Root => 0,
            Who::User if runner_is_root() => spare_uid(),
            Who::User => runner_uid(),
        }
    }

    /// Fails the test by name where this user cannot be played.
    pub(crate) fn require(self) {
        assert!(
            self != Who::Root || runner_is_root(),
            "this half of the suite needs root; run it as root, or leave it out with `--skip as_root::`"
        );
    }

    /// True when this is the user who started the tests, without a change of id.
    pub(crate) fn is_runner(self) -> bool {
        self.uid() == runner_uid()
    }
}

pub(crate) fn runner_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(crate) fn runner_is_root() -> bool {
    runner_uid() == 0
}

/// A user id without an account. The tests own every process of this user.
fn spare_uid() -> u32 {
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let taken = |uid: u32| {
        // A world gives its user an account, for programs that ask who they are.
        accounts
            .lines()
            .filter(|line| !line.starts_with("belljar-tester:"))
            .any(|line| line.split(':').nth(2) == Some(&uid.to_string()))
    };
    (FIRST_SPARE_UID..FIRST_SPARE_UID + 1000)
        .find(|uid| !taken(*uid))
        .expect("an unused user id")
}

/// Turns `fn name(who: Who)` into one test per user: `as_root::name` and `as_user::name`. Tests that only root can
/// prepare come after `prepared by root:`; their other half is `as_root::as_user::name`, so that leaving out
/// `as_root::` leaves out all that needs root.
macro_rules! for_each_user {
    ($($name:ident),+ $(,)? $(; prepared by root: $($prepared:ident),+ $(,)?)?) => {
        mod as_root {
            use $crate::support::Who;
            $(#[test] fn $name() { Who::Root.require(); super::$name(Who::Root) })+
            $($(#[test] fn $prepared() { Who::Root.require(); super::$prepared(Who::Root) })+
            mod as_user {
                use $crate::support::Who;
                $(#[test] fn $prepared() { Who::Root.require(); super::super::$prepared(Who::User) })+
            })?
        }
        mod as_user {
            use $crate::support::Who;
            $(#[test] fn $name() { super::$name(Who::User) })+
        }
    };
}
pub(crate) use for_each_user;

/// The same for every tier: `as_root::name` and `as_user::name` natively, `gvisor::as_root::name` and
/// `gvisor::as_user::name` on gVisor, the same in `container` with an image, and `microvm::as_root::name` with a guest. Where a
/// tier is known to differ, the test says so by a [`Difference`].
macro_rules! for_each_user_and_tier {
    ($($name:ident),+ $(,)? $(; prepared by root: $($prepared:ident),+ $(,)?)?) => {
        $crate::support::for_each_user!($($name),+ $(; prepared by root: $($prepared),+)?);
        $crate::support::tier_of_tests!(gvisor, on_gvisor, $($name),+ $(; prepared by root: $($prepared),+)?);
        $crate::support::tier_of_tests!(container, in_container, $($name),+ $(; prepared by root: $($prepared),+)?);
        // Guests are slow where the processor is emulated; who starts them makes no difference inside.
        mod microvm {
            mod as_root {
                use $crate::support::{Who, on_microvm};
                $(#[test] fn $name() { Who::Root.require(); on_microvm(|| super::super::$name(Who::Root)) })+
                $($(#[test] fn $prepared() { Who::Root.require(); on_microvm(|| super::super::$prepared(Who::Root)) })+)?
            }
        }
    };
}
pub(crate) use for_each_user_and_tier;

/// The tests of one tier.
macro_rules! tier_of_tests {
    ($tier:ident, $on:ident, $($name:ident),+ $(; prepared by root: $($prepared:ident),+)?) => {
        mod $tier {
            mod as_root {
                use $crate::support::{Who, $on};
                $(#[test] fn $name() { Who::Root.require(); $on(|| super::super::$name(Who::Root)) })+
                $($(#[test] fn $prepared() { Who::Root.require(); $on(|| super::super::$prepared(Who::Root)) })+
                mod as_user {
                    use $crate::support::{Who, $on};
                    $(#[test] fn $prepared() { Who::Root.require(); $on(|| super::super::super::$prepared(Who::User)) })+
                })?
            }
            mod as_user {
                use $crate::support::{Who, $on};
                $(#[test] fn $name() { $on(|| super::super::$name(Who::User)) })+
            }
        }
    };
}
pub(crate) use tier_of_tests;
