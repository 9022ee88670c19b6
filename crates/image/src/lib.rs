//! Root file systems for boxes.
//!
//! A *store* below the state directory keeps images: unpacked trees, each with a small record, found by a name or by a
//! digest. A tree is made in a place where nobody looks, out of a directory, a Debian suite, an OCI layout or an engine's
//! image, and appears in the store whole or not at all. Whatever is unpacked comes from strangers: see [`tree`] for how it is
//! kept inside.
//!
//! ```no_run
//! # fn main() -> Result<(), belljar_image::ImageError> {
//! let store = belljar_image::Store::open("/var/lib/belljar".as_ref());
//! let image = store.find("tools")?;
//! let held = image.hold()?; // nobody prunes it now
//! println!("{} is at {}", image.digest, image.tree.display());
//! # drop(held);
//! # Ok(())
//! # }
//! ```

mod bounds;
mod build;
mod debian;
mod directory;
mod disk;
mod engine;
mod error;
mod hashed;
mod layer;
mod name;
mod oci;
mod prune;
mod record;
mod staging;
mod store;
pub mod tree;

pub use bounds::Bounds;
pub use build::{Built, Freshness, Source};
pub use error::ImageError;
pub use name::{Digest, ImageName, InvalidName};
pub use prune::{Kept, Pruned, Scope};
pub use record::{ImageConfig, LeftOut, Record};
pub use store::{Hold, Image, Store};
