//! Reading and extending rows of tiles.
//!
//! A partial tile is one file that grows in place and is renamed to its new width: nothing is copied, and a reader
//! always finds one file with at least the items it was promised. The bytes of items that were signed for never change.

use std::fs::File;
use std::io;

use crate::bundle::MAX_BUNDLE;
use crate::disk::{Disk, read_up_to};
use crate::hash::Hash;
use crate::tile::{Piece, Row, Tile, WIDTH, pieces, rows};

/// A writer may rename a partial tile between our look at its directory and our open. It can't win this often.
const TRIES: usize = 10_000;

/// Opens a tile that must have at least `width` items by its place in the log. `None` if no file has its name.
///
/// The file may hold more than was asked for: items of a later size, or of a commit that did not come to its end.
pub(crate) fn open_tile(disk: &Disk, tile: Tile, width: u64) -> io::Result<Option<(File, String)>> {
    let exact = tile.path(width);
    if let Some(file) = disk.open_file(&exact)? {
        return Ok(Some((file, exact)));
    }
    for _ in 0..TRIES {
        let Some(path) = find_tile(disk, tile)? else {
            return Ok(None);
        };
        if let Some(file) = disk.open_file(&path)? {
            return Ok(Some((file, path)));
        }
    }
    Ok(None)
}

/// The path under which the most of a tile is found.
fn find_tile(disk: &Disk, tile: Tile) -> io::Result<Option<String>> {
    let full = tile.full_path();
    // Twice: the tile may become full between the two looks.
    for _ in 0..2 {
        if disk.exists(&full)? {
            return Ok(Some(full));
        }
        if let Some(width) = partial_widths(disk, tile)?.max() {
            return Ok(Some(tile.path(width)));
        }
    }
    Ok(None)
}

fn partial_widths(disk: &Disk, tile: Tile) -> io::Result<impl Iterator<Item = u64>> {
    let names = disk.list(&tile.partial_dir())?;
    Ok(names
        .into_iter()
        .filter_map(|name| name.parse().ok())
        .filter(|width| (1..WIDTH).contains(width)))
}

/// The bytes of a tile or bundle, possibly with more at the end: but no more than a byte over the longest there can be.
pub(crate) fn read_tile(disk: &Disk, tile: Tile, width: u64) -> io::Result<Option<Vec<u8>>> {
    let limit = match tile.row {
        Row::Entries => MAX_BUNDLE,
        Row::Hashes(_) => WIDTH * Hash::LEN as u64,
    };
    match open_tile(disk, tile, width)? {
        Some((file, _)) => read_up_to(&file, limit + 1).map(Some),
        None => Ok(None),
    }
}

/// As many whole hashes as the bytes hold, up to `width`.
pub(crate) fn hashes_of(bytes: &[u8], width: u64) -> Vec<Hash> {
    bytes
        .chunks_exact(Hash::LEN)
        .take(usize::try_from(width).unwrap_or(usize::MAX))
        .filter_map(Hash::from_slice)
        .collect()
}

/// The growing end of a row.
pub(crate) struct RowEnd {
    row: Row,
    items: u64,
    /// Bytes in the partial tile at the end.
    length: u64,
    /// That tile, once it was opened.
    file: Option<File>,
    /// The next tile's directory is there, and empty.
    directory_waits: bool,
}

impl RowEnd {
    pub(crate) fn new(row: Row, items: u64) -> Self {
        RowEnd::with_tail_length(row, items, 0)
    }

    /// The end of a row whose partial tile has this many bytes.
    pub(crate) fn with_tail_length(row: Row, items: u64, length: u64) -> Self {
        RowEnd {
            row,
            items,
            length,
            file: None,
            directory_waits: false,
        }
    }

    /// Whether the partial tile on disk is as we left it.
    pub(crate) fn is_untouched(&self, disk: &Disk) -> io::Result<bool> {
        let tile = Tile {
            row: self.row,
            index: self.items / WIDTH,
        };
        match self.items % WIDTH {
            0 => Ok(!disk.exists(&tile.full_path())? && !disk.exists(&tile.partial_dir())?),
            width => Ok(disk.length(&tile.path(width))? == Some(self.length)),
        }
    }

    /// Writes new items up to `items` in the row. `offset(n)` is where in `bytes` the first `n` of them end.
    pub(crate) fn extend(
        &mut self,
        disk: &Disk,
        items: u64,
        bytes: &[u8],
        offset: impl Fn(u64) -> usize,
    ) -> io::Result<()> {
        let first = self.items;
        let mut pieces = pieces(self.row, first, items).peekable();
        while let Some(piece) = pieces.next() {
            let before = piece.tile.index * WIDTH;
            let range = offset(before + piece.from - first)..offset(before + piece.to - first);
            self.extend_tile(disk, piece, &bytes[range], pieces.peek())?;
            self.items = before + piece.to;
        }
        Ok(())
    }

    fn extend_tile(
        &mut self,
        disk: &Disk,
        piece: Piece,
        bytes: &[u8],
        next: Option<&Piece>,
    ) -> io::Result<()> {
        let Piece { tile, from, to } = piece;
        let file = if from == 0 {
            if !std::mem::take(&mut self.directory_waits) {
                sweep_tile(disk, tile)?;
            }
            self.length = 0;
            disk.create(&tile.path(to))?
        } else {
            match self.file.take() {
                Some(file) => file,
                None => disk.open_writable(&tile.path(from))?.ok_or_else(|| {
                    io::Error::new(io::ErrorKind::NotFound, "a partial tile is gone")
                })?,
            }
        };
        disk.write(&file, bytes, self.length)?;
        self.length += bytes.len() as u64;
        if from > 0 {
            disk.rename(&tile.path(from), &tile.path(to))?;
        }
        if to < WIDTH {
            self.file = Some(file);
        } else if from > 0 {
            self.leave_directory(disk, tile, next)?;
        }
        Ok(())
    }

    /// A full tile needs no directory; the next one may. To make a directory is the dearest thing a small commit does: a busy
    /// file system looks long for a number to give it.
    fn leave_directory(&mut self, disk: &Disk, tile: Tile, next: Option<&Piece>) -> io::Result<()> {
        match next.filter(|next| next.to < WIDTH) {
            Some(next) => {
                sweep_tile(disk, next.tile)?;
                self.directory_waits = true;
                disk.rename(&tile.partial_dir(), &next.tile.partial_dir())
            }
            None => disk.remove_directory(&tile.partial_dir()),
        }
    }
}

/// Removes whatever bears a tile's names, and says how many bytes that were. Only for tiles past the last checkpoint.
pub(crate) fn sweep_tile(disk: &Disk, tile: Tile) -> io::Result<u64> {
    let directory = tile.partial_dir();
    let mut paths = vec![tile.full_path()];
    for name in disk.list(&directory)? {
        paths.push(format!("{directory}/{name}"));
    }
    let mut bytes = 0;
    for path in &paths {
        if let Some(length) = disk.length(path)? {
            disk.remove(path)?;
            bytes += length;
        }
    }
    if disk.exists(&directory)? {
        disk.remove_directory(&directory)?;
    }
    Ok(bytes)
}

/// Makes all tiles that hold items of `from..to` (sizes of the log) survive a power cut, names included.
pub(crate) fn sync_range(disk: &Disk, from: u64, to: u64) -> io::Result<()> {
    /// With more files than this, one call for the whole file system is cheaper, whatever else is dirty there.
    const MANY: usize = 4096;
    /// From here on they are synced side by side: the disk then serves several at once.
    const SEVERAL: usize = 16;
    /// So many at once. Each thread does nothing but wait.
    const THREADS: usize = 16;
    let touched: Vec<Piece> = rows(to)
        .flat_map(|row| pieces(row, row.items(from), row.items(to)))
        .take(MANY)
        .collect();
    if touched.len() == MANY {
        return disk.sync_all();
    }
    if touched.len() < SEVERAL {
        sync_files(disk, &touched)?;
    } else {
        std::thread::scope(|scope| {
            let threads: Vec<_> = touched
                .chunks(touched.len().div_ceil(THREADS))
                .map(|part| scope.spawn(move || sync_files(disk, part)))
                .collect();
            threads.into_iter().try_for_each(|thread| {
                let panicked = |_| Err(io::Error::other("a thread that synced panicked"));
                thread.join().unwrap_or_else(panicked)
            })
        })?;
    }
    // Every directory up to the log's own: any of them may be new.
    let mut directories: Vec<String> = Vec::new();
    for path in touched.iter().map(|piece| piece.tile.path(piece.to)) {
        for (end, _) in path.match_indices('/') {
            if !directories.iter().any(|known| known == &path[..end]) {
                directories.push(path[..end].to_owned());
            }
        }
    }
    for directory in directories.iter().map(String::as_str).chain(["."]) {
        disk.sync_directory(directory)?;
    }
    Ok(())
}

fn sync_files(disk: &Disk, pieces: &[Piece]) -> io::Result<()> {
    for piece in pieces {
        let file = disk.open_file(&piece.tile.path(piece.to))?.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "a tile just written is gone")
        })?;
        disk.sync(&file)?;
    }
    Ok(())
}
