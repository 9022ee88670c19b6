//! Files that a command line names, read under bounds.

use crate::exit::Failure;
use belljar_manifest::keys::{Keyset, MAX_KEYSET_BYTES};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The whole file, which may have at most so many bytes.
pub(crate) fn read_file(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    let failed = |why: String| {
        Failure::Invalid(
            format!("{}: {why}", path.display()),
            "name a file that you can read".into(),
        )
    };
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let mut bytes = Vec::new();
    // One byte beyond the bound is enough to know that the file is too large.
    file.take(most.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| failed(error.to_string()))?;
    if bytes.len() as u64 > most {
        return Err(failed(format!("larger than {most} bytes")));
    }
    Ok(bytes)
}

/// Public keys that somebody else believes.
pub(crate) fn read_keyset(path: &Path) -> Result<Keyset, Failure> {
    let bytes = read_file(path, MAX_KEYSET_BYTES as u64)?;
    Keyset::parse(&bytes).map_err(|source| {
        Failure::Keys(belljar_gate::keyring::KeyError::Keyset {
            path: path.to_owned(),
            source,
        })
    })
}
