//! Points as bytes: column by column, differences as numbers of variable length, and runs of no difference as one.

use super::{COLUMNS, Point};

const VERSION: u8 = 1;
/// More points than any chunk has: an hour of minutes or a minute of seconds.
const MOST_POINTS: u64 = 3600;

/// Bytes that are no chunk of ours.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stored chunk can't be read")]
pub(crate) struct Undecodable;

/// Points, in order of time, as bytes.
pub(crate) fn encode(points: &[Point]) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    write_number(&mut bytes, points.len() as u64);
    column(&mut bytes, points.iter().map(|point| point.at));
    for index in 0..COLUMNS {
        column(&mut bytes, points.iter().map(|point| point.values[index]));
    }
    bytes
}

/// The points again.
pub(crate) fn decode(mut bytes: &[u8]) -> Result<Vec<Point>, Undecodable> {
    let bytes = &mut bytes;
    let (version, rest) = bytes.split_first().ok_or(Undecodable)?;
    *bytes = rest;
    let count = read_number(bytes)?;
    if *version != VERSION || count > MOST_POINTS {
        return Err(Undecodable);
    }
    let mut points = vec![Point::default(); usize::try_from(count).map_err(|_| Undecodable)?];
    read_column(bytes, &mut points, |point| &mut point.at)?;
    for index in 0..COLUMNS {
        read_column(bytes, &mut points, |point| &mut point.values[index])?;
    }
    let in_order = points.is_sorted_by(|a, b| a.at < b.at);
    match bytes.is_empty() && in_order {
        true => Ok(points),
        false => Err(Undecodable),
    }
}

fn column(bytes: &mut Vec<u8>, values: impl Iterator<Item = u64>) {
    let (mut last, mut same) = (0_u64, 0_u64);
    for value in values {
        if value == last {
            same += 1;
            continue;
        }
        end_run(bytes, &mut same);
        // Wrapping there and wrapping back: every number has a difference to every other.
        let difference = value.wrapping_sub(last).cast_signed();
        write_number(
            bytes,
            ((difference << 1) ^ (difference >> 63)).cast_unsigned(),
        );
        last = value;
    }
    end_run(bytes, &mut same);
}

/// No difference, so often: a zero and the number.
fn end_run(bytes: &mut Vec<u8>, same: &mut u64) {
    if *same > 0 {
        bytes.push(0);
        write_number(bytes, *same);
        *same = 0;
    }
}

fn read_column(
    bytes: &mut &[u8],
    points: &mut [Point],
    mut place: impl FnMut(&mut Point) -> &mut u64,
) -> Result<(), Undecodable> {
    let (mut last, mut same) = (0_u64, 0_u64);
    for point in points {
        if same == 0 {
            match read_number(bytes)? {
                0 => match read_number(bytes)? {
                    0 => return Err(Undecodable),
                    run => same = run,
                },
                folded => {
                    let difference = (folded >> 1).cast_signed() ^ -((folded & 1).cast_signed());
                    last = last.wrapping_add(difference.cast_unsigned());
                    *place(point) = last;
                    continue;
                }
            }
        }
        same -= 1;
        *place(point) = last;
    }
    match same {
        0 => Ok(()),
        _ => Err(Undecodable),
    }
}

/// Seven bits a byte, the low ones first.
pub(crate) fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

pub(crate) fn read_number(bytes: &mut &[u8]) -> Result<u64, Undecodable> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(Undecodable)?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f)
            .checked_shl(shift)
            .ok_or(Undecodable)?;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Undecodable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn points_come_back_as_they_were(values in prop::collection::vec(prop::array::uniform9(prop_oneof![Just(0), Just(7), any::<u64>()]), 0..70)) {
            let points: Vec<Point> = values
                .into_iter()
                .enumerate()
                .map(|(at, values)| Point { at: 1_700_000_000 + at as u64 * 3, values })
                .collect();
            prop_assert_eq!(decode(&encode(&points)), Ok(points));
        }

        #[test]
        fn any_bytes_are_points_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn an_idle_minute_is_small() {
        let points: Vec<Point> = (0..60).map(Point::at).collect();
        assert!(encode(&points).len() < 90, "{}", encode(&points).len());
    }
}
