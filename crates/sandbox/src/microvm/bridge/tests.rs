//! Guests that say what they should, and what no guest says.

use super::*;
use crate::native::Verdict;
use crate::plan::Network;
use crate::reach::Reach;
use crate::told::{FORKS, SIZE, place_of};
use std::io::Read;

/// What becomes of a guest that says this, and nothing after.
fn said_by_a_guest(words: &[u8]) -> Result<End, Failure> {
    said_by_a_guest_that_reaches(NOTHING, words)
}

const NOTHING: Reach = Reach {
    network: Network::Closed,
    answered: None,
    published: Vec::new(),
    doors: Vec::new(),
};

fn said_by_a_guest_that_reaches(reach: Reach, words: &[u8]) -> Result<End, Failure> {
    let order = Order { reach, ..order() };
    let told = told_file();
    said_by_a_guest_of(order, told.path(), words)
}

/// A program that may start eight processes.
fn order() -> Order {
    Order {
        program: "/bin/true".into(),
        argv: Vec::new(),
        env: Vec::new(),
        workdir: "/".into(),
        uid: 1000,
        gid: 1000,
        may_spawn: true,
        shared_bytes: 0,
        memory_bytes: 0,
        processes: 8,
        writable: Vec::new(),
        limits: Vec::new(),
        reach: NOTHING,
    }
}

/// Where the bridge tells of a program.
fn told_file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(SIZE as u64).unwrap();
    file
}

fn said_by_a_guest_of(order: Order, told: &std::path::Path, words: &[u8]) -> Result<End, Failure> {
    let (mut guest, mut heard) = UnixStream::pair().unwrap();
    let channel = Arc::new(Mutex::new(heard.try_clone().unwrap()));
    let streams = Streams {
        outputs: [
            Output::start(&channel, 3, Box::new(std::io::sink())),
            Output::start(&channel, 4, Box::new(std::io::sink())),
        ],
        input: Input::default(),
    };
    let tree = tempfile::tempdir().unwrap();
    let server = Arc::new(Server::new(tree.path()).unwrap());
    let requests = serve_files(&server, &channel);
    // One end reads what it is told, as a guest's kernel does, or the other would wait for it.
    let mut answers = guest.try_clone().unwrap();
    std::thread::spawn(move || std::io::copy(&mut answers, &mut std::io::sink()));
    let words = words.to_vec();
    let talker = std::thread::spawn(move || {
        let _ = guest.write_all(&words);
        let _ = guest.shutdown(std::net::Shutdown::Write);
    });
    let mut telling = Telling::open_at(told, &order).unwrap();
    let ways = Ways::open(order.reach).unwrap();
    let mut service = Service {
        streams: &streams,
        requests: &requests,
        ways: &ways,
        telling: &mut telling,
    };
    let end = attend(&mut heard, &channel, Begin::Boot, b"", None, &mut service);
    drop(heard);
    let _ = channel.lock().unwrap().shutdown(std::net::Shutdown::Both);
    talker.join().unwrap();
    end
}

fn frame(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::send(&mut bytes, kind, body).unwrap();
    bytes
}

fn assert_garbage(words: &[u8]) {
    let end = said_by_a_guest(words);
    assert!(matches!(end, Err(Failure::Garbage(_))), "{:?}", end.err());
}

#[test]
fn a_guest_is_heard_to_its_end() {
    let words = [
        frame(Kind::Up, &[]),
        frame(Kind::Output, b"hi"),
        frame(Kind::Ended, &wire::numbers(&[7 << 8, 0])),
    ];
    let end = said_by_a_guest(&words.concat());
    assert!(matches!(
        end,
        Ok(End::Program {
            status: 0x700,
            killed: 0
        })
    ));
}

#[test]
fn a_guest_that_stops_in_the_middle_of_a_word_has_vanished() {
    let words = [frame(Kind::Up, &[]), frame(Kind::Output, b"hi")].concat();
    for length in [0, 3, 8, 12, words.len()] {
        let end = said_by_a_guest(&words[..length]);
        assert!(matches!(end, Err(Failure::Vanished(_))), "{length}");
    }
}

#[test]
fn what_no_guest_says_ends_it() {
    let up = frame(Kind::Up, &[]);
    let then = |words: Vec<u8>| [up.clone(), words].concat();
    assert_garbage(&frame(Kind::Output, b"before it is up"));
    assert_garbage(&then(up.clone()));
    assert_garbage(&then(frame(Kind::Answer, b"a word of ours")));
    assert_garbage(&then(vec![0xff; 64]));
    assert_garbage(&then(
        [u32::MAX.to_le_bytes(), [Kind::Output as u8, 0, 0, 0]].concat(),
    ));
    assert_garbage(&then(frame(Kind::Consumed, &wire::numbers(&[1]))));
    assert_garbage(&then(frame(Kind::Ended, b"short")));
    assert_garbage(&then(frame(Kind::Ended, &wire::numbers(&[0x7f, 0]))));
    assert_garbage(&then(frame(Kind::Output, &[])));
}

#[test]
fn packets_and_flows_that_lead_nowhere_end_a_guest() {
    let then = |kind, body: &[u8]| [frame(Kind::Up, &[]), frame(kind, body)].concat();
    // There is no network in this box, so that no guest of it looks names up.
    assert_garbage(&then(Kind::Lookup, b"?"));
    assert_garbage(&then(Kind::Stray, &[4; 19]));
    assert_garbage(&then(Kind::Open, &[0; 3]));
    assert_garbage(&then(Kind::Open, &[0xff; 23]));
    assert_garbage(&then(Kind::Flow, &[0; 9]));
    assert_garbage(&then(Kind::Room, &[0; 8]));
    assert_garbage(&then(Kind::Over, &[0; 8]));
    assert_garbage(&frame(Kind::Open, &[0; 23]));
    let guarded = Reach {
        network: Network::Guarded {
            host_ports: Vec::new(),
        },
        ..NOTHING
    };
    let end = said_by_a_guest_that_reaches(guarded, &then(Kind::Stray, &[0; 19]));
    assert!(matches!(end, Err(Failure::Garbage(_))), "{:?}", end.err());
}

/// Rules that tell, and one that does not.
fn rules_of(order: &Order) -> (Vec<u32>, u32) {
    let rules = crate::tier::rules_inside(order.spawn());
    let tells = |rule: &crate::native::Rule| matches!(rule.verdict, Verdict::Report(_));
    let telling = (0u32..).zip(&rules).filter(|(_, rule)| tells(rule));
    let telling = telling.map(|(number, _)| number).collect();
    let silent = rules.iter().position(|rule| !tells(rule)).unwrap();
    (telling, silent as u32)
}

fn refusal(which: u32, hits: u32) -> Vec<u8> {
    frame(Kind::Refused, &wire::numbers(&[which, hits]))
}

fn count_in(told: &std::path::Path, which: u32) -> u32 {
    let bytes = std::fs::read(told).unwrap();
    assert_eq!(bytes.len(), SIZE, "the file has grown");
    let at = place_of(which as usize) as usize;
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn what_is_refused_to_a_program_is_passed_on() {
    let (rules, _) = rules_of(&order());
    let (first, forks) = (rules[0], FORKS as u32);
    let words = [
        frame(Kind::Up, &[]),
        refusal(first, 1),
        refusal(forks, 5),
        refusal(first, 2),
        refusal(first, 3),
        refusal(forks, 10),
        frame(Kind::Ended, &wire::numbers(&[0, 0])),
    ];
    let told = told_file();
    said_by_a_guest_of(order(), told.path(), &words.concat()).unwrap();
    assert_eq!(count_in(told.path(), first), 3);
    assert_eq!(count_in(told.path(), forks), 10);
    assert_eq!(count_in(told.path(), rules[1]), 0);
}

#[test]
fn a_refusal_that_cannot_be_ends_the_guest() {
    let (rules, silent) = rules_of(&order());
    let (first, forks) = (rules[0], FORKS as u32);
    let then = |words: &[Vec<u8>]| [&[frame(Kind::Up, &[])], words].concat().concat();
    assert_garbage(&refusal(first, 1));
    assert_garbage(&then(&[frame(Kind::Refused, b"short")]));
    assert_garbage(&then(&[refusal(silent, 1)]));
    assert_garbage(&then(&[refusal(forks - 1, 1)]));
    assert_garbage(&then(&[refusal(forks + 1, 1)]));
    assert_garbage(&then(&[refusal(u32::MAX, 1)]));
    assert_garbage(&then(&[refusal(first, 0)]));
    assert_garbage(&then(&[refusal(first, 8), refusal(first, 8)]));
    assert_garbage(&then(&[refusal(first, 8), refusal(first, 7)]));
    assert_garbage(&then(&[
        refusal(first, 8),
        refusal(first, 9),
        refusal(first, 18),
    ]));
    let limitless = Order {
        processes: 0,
        ..order()
    };
    let end = said_by_a_guest_of(limitless, told_file().path(), &then(&[refusal(forks, 1)]));
    assert!(matches!(end, Err(Failure::Garbage(_))), "{:?}", end.err());
}

/// Whatever a guest that fell says of refusals, it changes numbers, upwards, and only so often.
#[test]
fn a_flood_of_refusals_changes_a_few_numbers() {
    let told = told_file();
    let mut telling = Telling::open_at(told.path(), &order()).unwrap();
    let (rules, _) = rules_of(&order());
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 32) as u32
    };
    let mut taken = 0;
    let mut last = std::collections::BTreeMap::new();
    for _ in 0..100_000 {
        let which = next() % (FORKS as u32 + 8);
        let hits = next() >> (next() % 32);
        if telling.refused(which, hits) {
            taken += 1;
            let before = last.insert(which, hits).unwrap_or(0);
            assert!(hits > before);
        }
    }
    assert_eq!(last.len(), rules.len() + 1, "some were never heard");
    assert!(taken <= last.len() * 33, "{taken}");
    for (which, hits) in last {
        assert_eq!(count_in(told.path(), which), hits);
    }
    let bytes = std::fs::read(told.path()).unwrap();
    assert_eq!(ProgramEnd::decode(&bytes), None, "an end that nobody told");
}

#[test]
fn an_end_is_told_as_the_program_had_it() {
    let ended = |status, killed| end_of(&End::Program { status, killed });
    assert_eq!(ended(0x700, 0), Some(ProgramEnd::Ended(0x700)));
    assert_eq!(ended(9, 0), Some(ProgramEnd::Ended(9)));
    assert_eq!(ended(64, 0), Some(ProgramEnd::Ended(192 << 8)));
    assert_eq!(ended(9, 1), None, "its kernel ran out of memory");
    assert_eq!(
        end_of(&End::NotStarted(2)),
        Some(ProgramEnd::NotStarted(Errno::NOENT))
    );
}

/// It asks for doors that are not there, and hears that each is closed.
#[test]
fn a_guest_that_opens_what_is_not_there_goes_on() {
    let mut words = frame(Kind::Up, &[]);
    for slot in 0..200u32 {
        let door = [&slot.to_le_bytes()[..], &[0; 19]].concat();
        words.extend(frame(Kind::Open, &door));
        words.extend(frame(
            Kind::Flow,
            &[&slot.to_le_bytes()[..], b"hello"].concat(),
        ));
    }
    words.extend(frame(Kind::Ended, &wire::numbers(&[0, 0])));
    assert!(matches!(
        said_by_a_guest(&words),
        Ok(End::Program { status: 0, .. })
    ));
}

#[test]
fn a_request_that_is_none_ends_the_guest() {
    let words = [frame(Kind::Up, &[]), frame(Kind::Request, b"no header")].concat();
    let end = said_by_a_guest(&words);
    assert!(matches!(end, Err(Failure::Vanished(_))), "{:?}", end.err());
}

#[test]
fn a_flood_of_requests_is_answered_and_never_piles_up() {
    let mut statfs = [0; 40];
    statfs[0] = 40;
    statfs[4] = 17;
    statfs[16] = 1;
    let mut words = frame(Kind::Up, &[]);
    for _ in 0..50_000 {
        words.extend(frame(Kind::Request, &statfs));
    }
    words.extend(frame(Kind::Ended, &wire::numbers(&[0, 0])));
    assert!(matches!(
        said_by_a_guest(&words),
        Ok(End::Program { status: 0, .. })
    ));
}

#[test]
fn output_that_nobody_takes_is_never_more_than_a_window() {
    /// Somebody who takes nothing.
    struct Busy(mpsc::Receiver<()>);
    impl Write for Busy {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (mut guest, heard) = UnixStream::pair().unwrap();
    let channel = Arc::new(Mutex::new(heard));
    let (free, busy) = mpsc::channel();
    let output = Output::start(&channel, 1, Box::new(Busy(busy)));
    let piece = || vec![b'x'; wire::PIECE];
    let taken = (0..100).take_while(|_| output.take(piece())).count();
    assert_eq!(taken, wire::WINDOW / wire::PIECE);
    drop(free);
    output.finish();
    drop(channel);
    let mut told = Vec::new();
    guest.read_to_end(&mut told).unwrap();
    assert_eq!(told.len(), taken * 16, "each piece is told as taken once");
}

/// Only a kept guest of Firecracker's is given up for another: QEMU's boxes do not have what one starts from.
#[test]
fn what_does_not_start_is_tried_once_more_only_where_it_was_to_go_on_and_may_be_lost() {
    use crate::microvm::Accelerator;
    let qemu = Carrier::Qemu(Accelerator::Kvm);
    for (carrier, begin, tries) in [
        (Carrier::Firecracker, Begin::Resume, 2),
        (Carrier::Firecracker, Begin::Boot, 1),
        (qemu, Begin::Resume, 1),
        (qemu, Begin::Boot, 1),
    ] {
        let (mut tried, mut notes) = (Vec::new(), 0);
        let start = |begin| {
            tried.push(begin);
            Err::<(), _>(std::io::Error::other(format!("try {}", tried.len())))
        };
        let failed = start_or_anew(carrier, begin, start, |_| notes += 1);
        assert_eq!(failed.unwrap_err().to_string(), format!("try {tries}"));
        assert_eq!((tried.len(), notes), (tries, tries - 1));
        assert_eq!(tried.last() == Some(&begin), tries == 1);
    }
}

#[test]
fn who_complains_says_in_which_tier() {
    let said = complaint(Carrier::Firecracker, "a word");
    assert_eq!(said, "[belljar] firecracker: a word");
}
