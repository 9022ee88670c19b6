//! The record: any sequence of events is safe to fold, snapshots are checked, and racing owners get no more than the quota.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use belljar_policy::{Amount, Budget, Contract, OnParentExit};
use belljar_replication::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use serde_json::json;

fn worker() -> impl Strategy<Value = WorkerId> {
    (1u128..7).prop_map(WorkerId)
}

fn jti() -> impl Strategy<Value = Jti> {
    (1u128..7).prop_map(Jti)
}

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![
        Just(Amount::UNBOUNDED),
        Just(Amount::of(u64::MAX)),
        (0u64..9).prop_map(Amount::of)
    ]
}

fn budget() -> impl Strategy<Value = Budget> {
    prop_oneof![
        2 => Just(Budget::ZERO),
        3 => (amount(), amount(), amount()).prop_map(|(tokens, replicas, cpu_ms)| Budget { tokens, replicas, cpu_ms, ..Budget::ZERO }),
        1 => Just(Budget::UNBOUNDED),
    ]
}

fn share() -> impl Strategy<Value = Share> {
    let own = prop_oneof![3 => Just(Budget::ZERO), 1 => budget()];
    (budget(), own).prop_map(|(granted, own)| Share { granted, own })
}

fn code() -> impl Strategy<Value = Code> {
    proptest::sample::select(Code::ALL)
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..50, 1 => any::<u64>()]
}

fn contract() -> impl Strategy<Value = Contract> {
    (budget(), any::<bool>()).prop_map(|(budget, keeps)| {
        let mut contract = Contract::new(3, 9, Duration::ZERO, None);
        contract.budget = budget;
        if keeps {
            contract.on_parent_exit = OnParentExit::Keep;
        }
        contract
    })
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        1 => Just(What::ControllerStarted { boot: BootId(1) }),
        2 => contract().prop_map(|contract| What::ContractSet { contract: Box::new(contract) }),
        8 => (jti(), worker(), worker(), share(), number()).prop_map(|(jti, worker, parent, share, lapses_ns)| {
            What::Issued(Box::new(Issued { jti, worker, parent, share, lapses_ns }))
        }),
        8 => (jti(), worker(), proptest::option::of(number()))
            .prop_map(|(jti, worker, expires_ns)| What::Registered { jti, worker, expires_ns }),
        6 => (jti(), worker(), share(), proptest::option::of(number())).prop_map(|(jti, worker, share, expires_ns)| {
            What::RootAdmitted(Box::new(RootAdmitted { jti, worker, share, expires_ns }))
        }),
        1 => (code(), worker(), jti()).prop_map(|(code, worker, jti)| {
            What::Refused(Box::new(Refused { code, step: Step::Issue, worker, parent: None, jti, detail: None }))
        }),
        2 => jti().prop_map(|jti| What::Withdrawn { jti, why: WithdrawnWhy::Lapsed }),
        2 => worker().prop_map(|worker| What::Started { worker }),
        5 => (worker(), code()).prop_map(|(worker, code)| What::Ended { worker, code }),
        2 => (worker(), code()).prop_map(|(worker, code)| What::Quarantined { worker, code }),
        2 => worker().prop_map(|worker| What::Released { worker }),
        1 => Just(What::KillSwitchEngaged { scope: Scope::Fleet }),
        1 => Just(What::KillSwitchReset {}),
        1 => worker().prop_map(|worker| What::Revoked { worker }),
        1 => number().prop_map(|epoch| What::EpochBumped { epoch }),
        1 => any::<i64>().prop_map(|by_ms| What::ClockJumped { by_ms }),
        1 => Just(What::ClockAcknowledged {}),
        3 => (worker(), number(), number())
            .prop_map(|(worker, tokens, cpu_ms)| What::UsageReported { worker, usage: Usage { tokens, cpu_ms, micro_usd: 0 }, reading: None }),
        1 => Just(What::StopConditionTriggered { name: "stop".to_owned(), worker: None }),
    ]
}

/// Mostly in order, now and then from nowhere.
fn events() -> impl Strategy<Value = Vec<Event>> {
    let moment = prop_oneof![20 => 0u64..3, 1 => any::<u64>()];
    proptest::collection::vec((moment, what()), 0..60).prop_map(|steps| {
        let mut boot_ns = 0u64;
        let event = |(step, what): (u64, What)| {
            boot_ns = boot_ns.wrapping_add(step);
            Event::new(
                Now {
                    boot_ns,
                    wall_ms: boot_ns,
                },
                what,
            )
        };
        steps.into_iter().map(event).collect()
    })
}

proptest! {
    #![proptest_config(Config { cases: 500, rng_seed: RngSeed::Fixed(1789), failure_persistence: None, ..Config::default() })]

    #[test]
    fn any_sequence_of_events_is_safe_and_a_bad_one_changes_nothing(events in events()) {
        let mut state = State::default();
        for event in &events {
            let before = state.clone();
            if state.apply(event).is_err() {
                prop_assert!(state == before, "a refused event left a trace: {event:?}");
            }
            for view in state.workers() {
                let within = view.free.within(&view.granted);
                prop_assert!(within.is_ok(), "{view:?} can give more than it has");
            }
        }
        // What it has become can be stored, read back, and taken over.
        let text = serde_json::to_string(&state).unwrap();
        let read: State = serde_json::from_str(&text).unwrap();
        prop_assert!(read == state);
        let contract = state.contract().clone();
        let live = state.live();
        let (controller, outcome) = Controller::start(state, contract, BootId(9), Now::default()).unwrap();
        prop_assert_eq!(outcome.result.len(), live);
        prop_assert_eq!(controller.state().live(), 0);
    }

    #[test]
    fn a_snapshot_and_the_rest_fold_to_the_same_as_the_whole(events in events(), cut in any::<prop::sample::Index>()) {
        let mut state = State::default();
        let good: Vec<Event> = events.into_iter().filter(|event| state.apply(event).is_ok()).collect();
        let cut = cut.index(good.len() + 1);
        let half = State::default().fold(&good[..cut]).unwrap();
        let text = serde_json::to_string(&half).unwrap();
        let half: State = serde_json::from_str(&text).unwrap();
        prop_assert!(half.fold(&good[cut..]).unwrap() == state);
    }
}

fn small() -> Controller {
    let contract = Contract::new(3, 10, Duration::ZERO, None);
    Controller::start(State::default(), contract, BootId(1), Now::default())
        .unwrap()
        .0
}

fn root() -> RootRequest {
    RootRequest {
        worker: WorkerId(1),
        jti: Jti(1),
        asked: Asked::default(),
        need: Budget::ZERO,
        lifetime: None,
    }
}

#[test]
fn a_forged_snapshot_is_refused() {
    let mut controller = small();
    let asked = Asked {
        tokens: Some(Amount::of(10)),
        ..Asked::default()
    };
    let _ = controller.admit_root(Now::default(), &RootRequest { asked, ..root() });
    let request = Request {
        parent: WorkerId(1),
        worker: WorkerId(2),
        jti: Jti(2),
        claimed_depth: None,
        asked: Asked {
            tokens: Some(Amount::of(4)),
            ..Asked::default()
        },
        need: Budget::ZERO,
    };
    controller
        .grant_and_register(Now::default(), &request)
        .result
        .unwrap();
    let sound = serde_json::to_value(controller.state()).unwrap();
    assert!(serde_json::from_value::<State>(sound.clone()).is_ok());
    let forgeries = [
        (
            "/workers/1/4/4",
            json!(4),
            json!(11),
            "more than the parent has",
        ),
        (
            "/workers/1/5/4",
            json!(0),
            json!(5),
            "more in its box than it has",
        ),
        ("/workers/1/2", json!(1), json!(0), "as deep as its parent"),
        ("/workers/1/1", json!(0), json!(1), "its own parent"),
        (
            "/workers/1/1",
            json!(0),
            json!(7),
            "a parent that is not there",
        ),
        (
            "/workers/1/6/1",
            json!(0),
            json!(5),
            "more used than it has",
        ),
        (
            "/workers/0/8",
            json!(null),
            json!(9),
            "a child that lives longer",
        ),
        (
            "/workers/1/0",
            json!(WorkerId(2)),
            json!(WorkerId(1)),
            "an id twice",
        ),
        (
            "/workers/1/3",
            json!("starting"),
            json!("walking"),
            "an unknown status",
        ),
        ("/v", json!(1), json!(2), "another version"),
    ];
    for (place, from, to, what) in forgeries {
        let mut forged = sound.clone();
        let field = forged.pointer_mut(place).expect(what);
        assert_eq!(*field, from, "{what}");
        *field = to;
        assert!(serde_json::from_value::<State>(forged).is_err(), "{what}");
    }
    for (place, what) in [
        ("", "an unknown field"),
        ("/contract", "an unknown field within"),
    ] {
        let mut forged = sound.clone();
        forged.pointer_mut(place).expect(what)["gold"] = json!(1);
        assert!(serde_json::from_value::<State>(forged).is_err(), "{what}");
    }
    let mut longer = sound.clone();
    longer["workers"][1]
        .as_array_mut()
        .expect("a row")
        .push(json!(1));
    assert!(
        serde_json::from_value::<State>(longer).is_err(),
        "a longer row"
    );
}

#[test]
fn sixty_four_threads_racing_for_ten_places_get_ten() {
    let mut controller = small();
    controller
        .admit_root(Now::default(), &root())
        .result
        .unwrap();
    let shared = Arc::new(Mutex::new(controller));
    let barrier = Arc::new(Barrier::new(64));
    let threads: Vec<_> = (0..64u128)
        .map(|number| {
            let (shared, barrier) = (Arc::clone(&shared), Arc::clone(&barrier));
            std::thread::spawn(move || {
                let request = Request {
                    parent: WorkerId(1),
                    worker: WorkerId(100 + number),
                    jti: Jti(100 + number),
                    claimed_depth: None,
                    asked: Asked::default(),
                    need: Budget::ZERO,
                };
                barrier.wait();
                // Two steps, so that others come in between.
                let grant = shared
                    .lock()
                    .unwrap()
                    .request(Now::default(), &request)
                    .result;
                let Ok(grant) = grant else {
                    return false;
                };
                std::thread::yield_now();
                shared
                    .lock()
                    .unwrap()
                    .register(Now::default(), &grant.manifest())
                    .result
                    .is_ok()
            })
        })
        .collect();
    let entered = threads
        .into_iter()
        .filter(|_| true)
        .map(|thread| thread.join().unwrap());
    assert_eq!(entered.filter(|entered| *entered).count(), 9);
    assert_eq!(shared.lock().unwrap().state().live(), 10);
}

#[test]
fn a_full_list_of_revocations_asks_for_a_new_epoch() {
    let mut controller = small();
    for number in 0..MAX_REVOKED as u128 {
        controller
            .revoke(Now::default(), WorkerId(number))
            .result
            .unwrap();
    }
    let full = controller
        .revoke(Now::default(), WorkerId(u128::MAX))
        .result;
    assert_eq!(full, Err(Fault::TooManyRevoked));
    assert_eq!(controller.bump_epoch(Now::default()).result, 1);
    assert_eq!(
        controller
            .revoke(Now::default(), WorkerId(u128::MAX))
            .result,
        Ok(0)
    );
}
