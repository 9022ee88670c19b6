//! Permits: proof, in the type system, that the gate said yes.

/// Leave to do `A`, once.
///
/// A permit comes out of the gate and out of nothing else: it has no public fields and no constructor, is not
/// `Clone`, and is spent by value. The function that starts a box asks for one, so code that goes around
/// the gate does not compile:
///
/// ```compile_fail,E0451
/// let forged = belljar_gate::Permit { action: (), entry: 0 };
/// ```
///
/// ```compile_fail,E0599
/// fn twice<A>(permit: belljar_gate::Permit<A>) -> (belljar_gate::Permit<A>, belljar_gate::Permit<A>) {
///     (permit.clone(), permit)
/// }
/// ```
///
/// ```compile_fail,E0624
/// let forged = belljar_gate::Permit::new((), 0);
/// ```
///
/// ```compile_fail,E0382
/// fn spend_twice(permit: belljar_gate::Permit<belljar_gate::Launch>) {
///     permit.spend();
///     permit.spend();
/// }
/// ```
#[derive(Debug)]
#[must_use = "a permit that is not spent means that something was granted and did not happen"]
pub struct Permit<A> {
    action: A,
    entry: u64,
}

impl<A> Permit<A> {
    pub(crate) fn new(action: A, entry: u64) -> Self {
        Self { action, entry }
    }

    /// What it allows.
    pub fn action(&self) -> &A {
        &self.action
    }

    /// The number of the log's entry that records the grant.
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// What it allows, by its proof: for permits that contain another.
    pub(crate) fn into_parts(self) -> (A, u64) {
        (self.action, self.entry)
    }

    /// Uses it up.
    pub fn spend(self) -> A {
        self.action
    }
}
