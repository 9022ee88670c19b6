//! Images of a container engine, Docker or Podman: asked for once, over its socket. No engine runs anything for us.

mod http;
mod saved;
mod socket;

use crate::bounds::{Bounds, MOST_DOCUMENT};
use crate::build::Unpacked;
use crate::disk::read_bounded;
use crate::error::ImageError;
use crate::layer::{Layered, unpack};
use crate::name::Digest;
use crate::oci::parse;
use crate::tree::Tree;
use http::Engine;
use serde::Deserialize;
use std::path::Path;

/// Bytes of a reference.
const MOST_REFERENCE: usize = 512;

/// An image that an engine has.
pub(crate) struct EngineImage {
    engine: Engine,
    pub(crate) id: Digest,
}

#[derive(Deserialize)]
struct Inspected {
    #[serde(rename = "Id")]
    id: String,
}

#[derive(Deserialize)]
struct Problem {
    message: String,
}

impl EngineImage {
    /// Asks the engine at that socket, or the usual one, what it has under that reference.
    pub(crate) fn find(reference: &str, socket: Option<&Path>) -> Result<Self, ImageError> {
        let is_plain = |c: u8| c.is_ascii_alphanumeric() || b"._-/:@".contains(&c);
        let begins_well = reference.starts_with(|c: char| c.is_ascii_alphanumeric());
        let goes_up = reference
            .split('/')
            .any(|part| part.chars().all(|c| c == '.'));
        let is_good = reference.bytes().all(is_plain) && reference.len() <= MOST_REFERENCE;
        if !(begins_well && is_good) || goes_up {
            let what = format!("{reference:?} is no reference of an image");
            return Err(ImageError::refused(what, "write NAME, NAME:TAG or an id"));
        }
        let mut engine = Engine::over(socket::connect(socket)?)?;
        let (status, mut answer) = engine.ask(&format!("/images/{reference}/json"))?;
        let bytes = match read_bounded(&mut answer, MOST_DOCUMENT) {
            Ok(bytes) => bytes,
            Err(error) => return Err(answer.blame(ImageError::read("the engine's answer")(error))),
        };
        if status != 200 {
            return Err(refusal(reference, status, &bytes));
        }
        let Inspected { id } = parse("the engine's answer", &bytes)?;
        let id = if id.contains(':') {
            id
        } else {
            format!("sha256:{id}")
        };
        let id = Digest::new(id).map_err(|error| {
            ImageError::read("the engine's answer")(std::io::Error::other(error))
        })?;
        Ok(Self { engine, id })
    }

    /// Has the engine save it, below `scratch`, and unpacks what it saved. By its id: its name may be another's by now.
    pub(crate) fn unpack(
        mut self,
        scratch: &Path,
        tree: &mut Tree,
    ) -> Result<Unpacked, ImageError> {
        let (status, mut answer) = self.engine.ask(&format!("/images/{}/get", self.id.hex()))?;
        if status != 200 {
            let bytes = read_bounded(answer, MOST_DOCUMENT).unwrap_or_default();
            return Err(refusal(self.id.as_str(), status, &bytes));
        }
        let mut saved = Tree::new(scratch, Bounds::USUAL)?;
        if let Err(error) = unpack(&mut saved, &mut answer, Layered::No) {
            return Err(answer.blame(error));
        }
        saved::unpack(scratch, &self.id, tree)
    }
}

/// What an engine says when it does not give.
fn refusal(reference: &str, status: u16, body: &[u8]) -> ImageError {
    let told: Option<Problem> = serde_json::from_slice(body).ok();
    let told = told.map_or_else(|| "no reason given".to_owned(), |problem| problem.message);
    match status {
        404 => ImageError::Unavailable {
            what: format!("the engine has no image {reference}"),
            hint: format!("`docker pull {reference}` (or `podman pull`) fetches it"),
        },
        _ => ImageError::Unavailable {
            what: format!("the engine refused ({status}): {told}"),
            hint: "its log says more".into(),
        },
    }
}
