//! A keeper at rest holds little memory.

use std::ops::Range;
use std::sync::Once;

use rustix::io::Errno;

use super::check;

/// Gives back this program's code, of which starting a box needed far more than waiting for its end does.
///
/// Once in the life of a process; what is needed again, the kernel maps again.
pub fn give_back_code() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        for addresses in unwritten(&maps) {
            // Kept instead: nothing but memory is lost.
            let _ = let_go_of(addresses);
        }
    });
}

/// Lets go of pages that can be read from this program's file again. They must never have been written.
fn let_go_of(addresses: Range<usize>) -> Result<(), Errno> {
    let size = addresses.end.saturating_sub(addresses.start);
    let start = addresses.start as *mut libc::c_void;
    // SAFETY: pages of a file that were only read are the same after this as before: whoever touches one has it read again.
    check(unsafe { libc::madvise(start, size, libc::MADV_DONTNEED) }.into()).map(drop)
}

/// Where this program's code and constants lie. What was written once at the start (relocations) is not among them.
fn unwritten(maps: &str) -> impl Iterator<Item = Range<usize>> {
    let program = std::env::current_exe();
    maps.lines().filter_map(move |line| {
        let mut words = line.split_ascii_whitespace();
        let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
        let file = words.nth(2)?;
        let is_ours = program
            .as_ref()
            .is_ok_and(|program| program.as_os_str() == file);
        // Constants come first in the file. Those with addresses in them come after the code, and were written.
        let is_unwritten =
            rights == "r-xp" || (rights == "r--p" && offset.bytes().all(|b| b == b'0'));
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        (is_ours && is_unwritten).then_some(start..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_goes_on_without_its_code_in_memory() {
        let text = String::from("constants and code are read again");
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/status").expect("a status");
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("RssFile:"));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
            kib.and_then(|kib| kib.parse::<u64>().ok())
                .expect("a number")
        };
        let before = resident();
        give_back_code();
        assert!(resident() < before, "{} of {before} KiB", resident());
        assert_eq!(text, format!("{} and code are read again", "constants"));
    }

    #[test]
    fn only_what_was_never_written_is_given_back() {
        let program = std::env::current_exe().expect("a program");
        let program = program.display();
        let maps = format!(
            "1000-2000 r--p 00000000 fe:00 1 {program}\n2000-3000 r-xp 00001000 fe:00 1 {program}\n\
             3000-4000 r--p 00002000 fe:00 1 {program}\n4000-5000 rw-p 00003000 fe:00 1 {program}\n\
             6000-7000 r-xp 00000000 fe:00 2 /usr/lib/other.so\n8000-9000 rw-p 00000000 00:00 0 [heap]\n"
        );
        let found: Vec<_> = unwritten(&maps).collect();
        assert_eq!(found, [0x1000..0x2000, 0x2000..0x3000]);
    }
}
