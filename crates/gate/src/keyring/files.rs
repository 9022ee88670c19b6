//! Reading secrets from where they are kept, and replacing files as a whole.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use belljar_manifest::keys::SecretKey;
use zeroize::Zeroizing;

use super::KeyError;

/// The most that is read of a secret key, from wherever it comes.
const LONGEST_SECRET: u64 = 1024;

pub(super) fn file_error(path: &Path, source: io::Error) -> KeyError {
    KeyError::File {
        path: path.to_owned(),
        source,
    }
}

pub(super) fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn read_secret_file(path: &Path) -> Result<SecretKey, KeyError> {
    let fail = |source| file_error(path, source);
    let file = File::open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    if metadata.is_file() && metadata.mode() & 0o077 != 0 {
        return Err(KeyError::Exposed {
            path: path.to_owned(),
        });
    }
    // Sized beforehand: a buffer that grows leaves its old copies unwiped.
    let mut text = Zeroizing::new(Vec::with_capacity(LONGEST_SECRET as usize + 1));
    file.take(LONGEST_SECRET)
        .read_to_end(&mut text)
        .map_err(fail)?;
    SecretKey::parse(&text).map_err(|_| KeyError::NotSecret {
        from: path.display().to_string(),
    })
}

pub(super) fn secret_from_command(command: &str) -> Result<SecretKey, KeyError> {
    use std::process::{Command, Stdio};
    let failed = |how: String| KeyError::Command { how };
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let mut text = Zeroizing::new(Vec::with_capacity(LONGEST_SECRET as usize + 1));
    let read = match child.stdout.take() {
        Some(out) => out.take(LONGEST_SECRET).read_to_end(&mut text),
        None => Ok(0),
    };
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    read.map_err(|error| failed(error.to_string()))?;
    if !status.success() {
        return Err(failed(status.to_string()));
    }
    SecretKey::parse(&text).map_err(|_| KeyError::NotSecret {
        from: "BELLJAR_KEY_COMMAND".to_owned(),
    })
}
