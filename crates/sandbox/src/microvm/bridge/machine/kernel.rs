//! A kernel as Firecracker takes it: unpacked. Distributions pack theirs.

use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// More than any kernel for guests has.
const LARGEST: usize = 256 << 20;
const ELF: &[u8] = b"\x7fELF";
const LZ4: &[u8] = &[0x02, 0x21, 0x4c, 0x18];
/// How much of the kernel is in one block of that format at most.
const LZ4_BLOCK: usize = 8 << 20;
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const GZIP: &[u8] = &[0x1f, 0x8b];

/// The kernel in this file, in memory of our own.
pub(in crate::microvm::bridge) fn unpacked(path: &Path) -> io::Result<File> {
    let mut image = Vec::new();
    File::open(path)?
        .take(LARGEST as u64)
        .read_to_end(&mut image)?;
    let kernel = unpack(image)?;
    let mut file = File::from(rustix::fs::memfd_create(c"kernel", MemfdFlags::CLOEXEC)?);
    file.write_all(&kernel)?;
    Ok(file)
}

fn unpack(image: Vec<u8>) -> io::Result<Vec<u8>> {
    if image.starts_with(ELF) {
        return Ok(image);
    }
    let packed = payload(&image).ok_or_else(|| spoilt("it is no kernel of a PC's"))?;
    // The last four bytes say how long it is when it is unpacked.
    let (packed, length) = packed
        .split_last_chunk::<4>()
        .ok_or_else(|| spoilt("it is too short"))?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > LARGEST {
        return Err(spoilt("it is too large"));
    }
    let kernel = if packed.starts_with(LZ4) {
        unpack_lz4(packed.get(LZ4.len()..).unwrap_or_default(), length)?
    } else if packed.starts_with(ZSTD) {
        let decoder = ruzstd::decoding::StreamingDecoder::new(packed).map_err(io::Error::other)?;
        read_all(decoder, length)?
    } else if packed.starts_with(GZIP) {
        // That format has the length itself: the four bytes are the format's own last.
        let whole = payload(&image).unwrap_or_default();
        read_all(flate2::read::GzDecoder::new(whole), length)?
    } else {
        return Err(spoilt(
            "it is packed in a way that is not known here (known are LZ4, Zstandard and gzip)",
        ));
    };
    match kernel.len() == length && kernel.starts_with(ELF) {
        true => Ok(kernel),
        false => Err(spoilt("what is packed in it is no kernel")),
    }
}

fn spoilt(why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the guest's kernel can't be used: {why}"),
    )
}

/// What a bzImage holds packed, by the header of Linux's boot protocol (2.08 and later).
fn payload(image: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        count => usize::from(count),
    };
    let start = (sectors + 1)
        .checked_mul(512)?
        .checked_add(number(0x248)?)?;
    image.get(start..start.checked_add(number(0x24c)?)?)
}

/// Blocks, each behind its length.
fn unpack_lz4(mut packed: &[u8], length: usize) -> io::Result<Vec<u8>> {
    let short = || spoilt("a block of it is cut short");
    let mut kernel = vec![0; length];
    let mut used = 0;
    while let Some((size, rest)) = packed.split_first_chunk::<4>() {
        let size = usize::try_from(u32::from_le_bytes(*size)).unwrap_or(usize::MAX);
        let block = rest.get(..size).ok_or_else(short)?;
        let room = kernel.get_mut(used..).unwrap_or_default();
        let most = room.len().min(LZ4_BLOCK);
        let room = room.get_mut(..most).unwrap_or_default();
        used += lz4_flex::block::decompress_into(block, room).map_err(io::Error::other)?;
        packed = rest.get(size..).unwrap_or_default();
    }
    kernel.truncate(used);
    Ok(kernel)
}

fn read_all(decoder: impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut kernel = Vec::with_capacity(length);
    // One more, so that one that is longer is seen to be.
    decoder.take(length as u64 + 1).read_to_end(&mut kernel)?;
    Ok(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage with this packed in it.
    fn image(packed: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(packed.len() as u32).to_le_bytes());
        image.extend([7; 16]);
        image.extend(packed);
        image.extend([7; 16]);
        image
    }

    fn kernel() -> Vec<u8> {
        let body = (0..300_000_u32).flat_map(u32::to_le_bytes);
        ELF.iter().copied().chain(body).collect()
    }

    fn with_length(packed: &[u8], length: usize) -> Vec<u8> {
        [packed, &(length as u32).to_le_bytes()].concat()
    }

    fn lz4(kernel: &[u8]) -> Vec<u8> {
        let mut packed = LZ4.to_vec();
        for block in kernel.chunks(500_000) {
            // Literals alone are a block too.
            let mut bytes = vec![0xf0];
            let mut rest = block.len() - 15;
            while rest >= 255 {
                bytes.push(255);
                rest -= 255;
            }
            bytes.push(rest as u8);
            bytes.extend(block);
            packed.extend((bytes.len() as u32).to_le_bytes());
            packed.extend(bytes);
        }
        packed
    }

    #[test]
    fn kernels_are_unpacked_however_they_were_packed() {
        let kernel = kernel();
        assert_eq!(unpack(kernel.clone()).unwrap(), kernel);
        let packed = image(&with_length(&lz4(&kernel), kernel.len()));
        assert_eq!(unpack(packed).unwrap(), kernel);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&kernel).unwrap();
        assert_eq!(unpack(image(&gzip.finish().unwrap())).unwrap(), kernel);
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let zstd = ruzstd::encoding::compress_to_vec(kernel.as_slice(), level);
        let packed = image(&with_length(&zstd, kernel.len()));
        assert_eq!(unpack(packed).unwrap(), kernel);
    }

    #[test]
    fn what_is_no_kernel_is_refused_and_never_grows() {
        let kernel = kernel();
        let whole = lz4(&kernel);
        for packed in [
            with_length(&whole, kernel.len() - 1),
            with_length(&whole, kernel.len() + 1),
            with_length(&whole, LARGEST + 1),
            with_length(&whole[..whole.len() - 9], kernel.len()),
            with_length(&lz4(&kernel[1..]), kernel.len() - 1),
            with_length(b"\xfd7zXZ\0what", 4),
            Vec::new(),
        ] {
            assert!(unpack(image(&packed)).is_err(), "{}", packed.len());
        }
        for image in [Vec::new(), vec![0; 4096], image(&whole)[..2000].to_vec()] {
            assert!(unpack(image).is_err());
        }
    }

    #[test]
    fn the_kernel_of_this_hosts_guests_is_one() {
        let tree = std::fs::read_dir("/usr/lib/belljar/guest/boot").expect("make setup");
        let name = tree.flatten().map(|entry| entry.path()).find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("vmlinuz-")
        });
        let kernel = unpack(std::fs::read(name.expect("a kernel")).unwrap()).unwrap();
        // What Firecracker enters it by.
        assert!(kernel.windows(4).any(|bytes| bytes == b"Xen\0"));
    }
}
