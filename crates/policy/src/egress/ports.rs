//! Lists of ports, as every rule has them: sorted, each once, and empty for all ports.

/// Whether a list is about a port.
pub(crate) fn includes(ports: &[u16], port: u16) -> bool {
    ports.is_empty() || ports.contains(&port)
}

/// Whether every port of `inner` is one of `outer`'s.
pub(crate) fn covers(outer: &[u16], inner: &[u16]) -> bool {
    outer.is_empty() || (!inner.is_empty() && inner.iter().all(|port| outer.contains(port)))
}

/// The ports in both lists; `None` when there are none.
pub(crate) fn meet(a: &[u16], b: &[u16]) -> Option<Vec<u16>> {
    if a.is_empty() {
        return Some(b.to_vec());
    }
    if b.is_empty() {
        return Some(a.to_vec());
    }
    let both: Vec<u16> = a.iter().filter(|port| b.contains(port)).copied().collect();
    (!both.is_empty()).then_some(both)
}
