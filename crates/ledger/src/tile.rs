//! Where things are on disk: the paths and the arithmetic of C2SP tlog-tiles.

use std::fmt;

/// Hashes (or entries) in a full tile.
pub(crate) const WIDTH: u64 = 256;
/// Each level of tiles spans this many levels of the tree.
pub(crate) const HEIGHT: u32 = 8;
/// 2^64 entries need no more levels than this.
pub(crate) const LEVELS: u32 = 8;

/// A row of tiles: the entries themselves, or the hashes at one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Row {
    Entries,
    Hashes(u32),
}

impl Row {
    /// How many items the row has in a log of this size.
    pub(crate) fn items(self, log_size: u64) -> u64 {
        match self {
            Row::Entries => log_size,
            Row::Hashes(level) => log_size.checked_shr(HEIGHT * level).unwrap_or(0),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Row::Entries => f.write_str("entries"),
            Row::Hashes(level) => level.fmt(f),
        }
    }
}

/// Every row that a log of this size has.
pub(crate) fn rows(log_size: u64) -> impl Iterator<Item = Row> {
    std::iter::once(Row::Entries).chain(
        (0..LEVELS)
            .map(Row::Hashes)
            .take_while(move |row| row.items(log_size) > 0),
    )
}

/// One tile of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) row: Row,
    pub(crate) index: u64,
}

impl Tile {
    /// The tile's path when it is full.
    pub(crate) fn full_path(self) -> String {
        let mut digits = format!("{:03}", self.index % 1000);
        let mut rest = self.index / 1000;
        while rest > 0 {
            digits = format!("x{:03}/{digits}", rest % 1000);
            rest /= 1000;
        }
        format!("tile/{}/{digits}", self.row)
    }

    /// The directory of the tile's partial form.
    pub(crate) fn partial_dir(self) -> String {
        self.full_path() + ".p"
    }

    /// The path when the tile holds this many items: from 1 to 256.
    pub(crate) fn path(self, width: u64) -> String {
        if width == WIDTH {
            self.full_path()
        } else {
            format!("{}.p/{width}", self.full_path())
        }
    }

    /// How many of its items a log with this many items in the row has.
    pub(crate) fn width_of(self, row_items: u64) -> u64 {
        row_items.saturating_sub(self.index * WIDTH).min(WIDTH)
    }
}

/// The part of a range of items that lies in one tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) tile: Tile,
    /// Items the tile has before the range, and at its end.
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Cuts the items `from..to` of a row by tile.
pub(crate) fn pieces(row: Row, from: u64, to: u64) -> impl Iterator<Item = Piece> {
    let mut next = from;
    std::iter::from_fn(move || {
        (next < to).then(|| {
            let index = next / WIDTH;
            let end = to.min(index.saturating_add(1).saturating_mul(WIDTH));
            let piece = Piece {
                tile: Tile { row, index },
                from: next - index * WIDTH,
                to: end - index * WIDTH,
            };
            next = end;
            piece
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_specification() {
        let tile = |index| Tile {
            row: Row::Hashes(0),
            index,
        };
        assert_eq!(tile(1_234_067).full_path(), "tile/0/x001/x234/067");
        assert_eq!(tile(0).path(5), "tile/0/000.p/5");
        assert_eq!(tile(999).path(256), "tile/0/999");
        assert_eq!(tile(1000).path(256), "tile/0/x001/000");
        let bundle = Tile {
            row: Row::Entries,
            index: 12,
        };
        assert_eq!(bundle.path(255), "tile/entries/012.p/255");
    }

    #[test]
    fn a_log_of_70000_has_the_tiles_of_the_specification() {
        let rows: Vec<_> = rows(70_000).skip(1).map(|row| row.items(70_000)).collect();
        assert_eq!(rows, [70_000, 273, 1]);
        assert_eq!(70_000 % WIDTH, 112);
    }

    #[test]
    fn ranges_are_cut_at_tiles() {
        let cut: Vec<_> = pieces(Row::Entries, 250, 600)
            .map(|piece| (piece.tile.index, piece.from, piece.to))
            .collect();
        assert_eq!(cut, [(0, 250, 256), (1, 0, 256), (2, 0, 88)]);
        assert_eq!(pieces(Row::Entries, 256, 256).count(), 0);
    }
}
