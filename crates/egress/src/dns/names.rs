//! Names and the addresses that stand for them inside the box.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use belljar_policy::Host;

use crate::config::NameBlock;

/// A private prefix of Belljar's own.
const V6_BASE: u128 = 0xfd00_be11_0000_0000_0000_0000_0000_0000;
const V6_MASK: u128 = !0 << 64;

/// The table. A name keeps its address until the box ends, so a connection can always be led back to the one
/// name it was made for.
#[derive(Debug)]
pub(crate) struct Names {
    most: u32,
    v4: NameBlock,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    numbers: HashMap<Host, u32>,
    hosts: Vec<Host>,
}

/// The addresses of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Synthetic {
    pub(crate) v4: Ipv4Addr,
    pub(crate) v6: Ipv6Addr,
}

/// What an address stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A name that was looked up.
    Name(Host),
    /// One of ours, but no name has it.
    Nothing,
    /// Not one of ours.
    Itself,
}

/// There is no room for another name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Names {
    pub(crate) fn new(v4: NameBlock, most: u32) -> Self {
        Self {
            // Neither the first nor the last address of the block is given away.
            most: most.min(NameBlock::ROOM - 2),
            v4,
            table: Mutex::default(),
        }
    }

    /// The addresses of a name, new ones if it has none yet.
    pub(crate) fn assign(&self, host: &Host) -> Result<Synthetic, Full> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = table.numbers.get(host) {
            return Ok(Synthetic::of(self.v4, *number));
        }
        let number = u32::try_from(table.hosts.len()).map_err(|_| Full)?;
        if number >= self.most {
            return Err(Full);
        }
        table.hosts.push(host.clone());
        table.numbers.insert(host.clone(), number);
        Ok(Synthetic::of(self.v4, number))
    }

    /// What an address stands for.
    pub(crate) fn meaning(&self, address: IpAddr) -> Meaning {
        let number = match address.to_canonical() {
            IpAddr::V4(v4) if NameBlock::around(v4) == self.v4 => {
                u64::from(v4.to_bits() - self.v4.base())
            }
            IpAddr::V6(v6) if v6.to_bits() & V6_MASK == V6_BASE => v6.to_bits() as u64,
            _ => return Meaning::Itself,
        };
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let index = number
            .checked_sub(1)
            .and_then(|index| usize::try_from(index).ok());
        match index.and_then(|index| table.hosts.get(index)) {
            Some(host) => Meaning::Name(host.clone()),
            None => Meaning::Nothing,
        }
    }
}

impl Synthetic {
    fn of(block: NameBlock, number: u32) -> Self {
        Self {
            v4: Ipv4Addr::from_bits(block.base() + number + 1),
            v6: Ipv6Addr::from_bits(V6_BASE + u128::from(number) + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_its_own_addresses_and_room_ends() {
        let names = Names::new(NameBlock::default(), 2);
        let host = |text| Host::parse(text).unwrap();
        let a = names.assign(&host("a.com")).unwrap();
        let b = names.assign(&host("b.com")).unwrap();
        assert_eq!(names.assign(&host("A.com.")), Ok(a));
        assert_ne!(a, b);
        assert_eq!(names.assign(&host("c.com")), Err(Full));
        assert_eq!(a.v4, Ipv4Addr::new(198, 18, 0, 1));
        assert_eq!(names.meaning(a.v4.into()), Meaning::Name(host("a.com")));
        assert_eq!(names.meaning(b.v6.into()), Meaning::Name(host("b.com")));
        assert_eq!(
            names.meaning(a.v4.to_ipv6_mapped().into()),
            Meaning::Name(host("a.com"))
        );
        for nothing in [
            "198.18.0.0",
            "198.18.0.3",
            "198.19.255.255",
            "fd00:be11::",
            "fd00:be11::3",
        ] {
            assert_eq!(
                names.meaning(nothing.parse().unwrap()),
                Meaning::Nothing,
                "{nothing}"
            );
        }
        for itself in ["198.20.0.1", "8.8.8.8", "fd00:be12::1"] {
            assert_eq!(
                names.meaning(itself.parse().unwrap()),
                Meaning::Itself,
                "{itself}"
            );
        }
    }
}
