//! A guest that is started to be kept: it comes up, is told nothing, and is written to our output.

use super::machine::{Hardware, Machine, Purpose};
use super::{Failure, complain};
use crate::microvm::SLOWEST_START;
use crate::microvm::wire::{self, Kind, Sender};

/// Starts a guest and writes it to our output once it waits for its order.
pub(crate) fn keep(hardware: Hardware) -> u8 {
    let carrier = hardware.carrier;
    match start_and_save(hardware) {
        Ok(()) => 0,
        Err(failure) => {
            complain(carrier, &failure.in_full());
            1
        }
    }
}

fn start_and_save(hardware: Hardware) -> Result<(), Failure> {
    hardware.demand()?;
    let beginning = hardware.first().map_err(Failure::Start)?;
    let (mut machine, mut heard) =
        Machine::start(&beginning, Purpose::Keep, hardware).map_err(Failure::Start)?;
    drop(beginning);
    let _ = heard.set_read_timeout(Some(SLOWEST_START));
    match wire::receive(&mut heard, Sender::Guest) {
        Ok(frame) if frame.kind == Kind::Up => {}
        Ok(frame) => {
            let text = String::from_utf8_lossy(&frame.body);
            let plain = text.chars().filter(|c| !c.is_control());
            return Err(Failure::Guest(plain.collect()));
        }
        Err(_) => {
            machine.await_end(super::PATIENCE);
            return Err(Failure::Vanished(machine.complaints()));
        }
    }
    machine
        .save(rustix::stdio::stdout())
        .map_err(Failure::Start)
}
