//! Boxes that are kept by processes of their own, which outlive whoever started them.
//!
//! ```text
//! daemon ── Session ──► socket (inherited as standard input; later fleet/keepers/ID.sock) ──► Board ── reins ──► box
//!    ▲                                                                            │
//!    └────────── samples, refusals, the end; the door's listener ◄────────────────┘
//! ```

mod board;
mod disk;
mod line;
mod place;
mod process;
mod session;
mod wire;
pub(crate) mod words;

pub(crate) use line::Line;
pub(crate) use place::{Keepers, Trace, make_private, write_whole};
pub use process::keep;
pub(crate) use session::{Adoptee, Heard, Session, Setup};
