//! Comparing a candidate with what it is to replace. Pure: figures go in, a verdict comes out.
//!
//! [`benchmark`] decides about runs that were measured in turns, once. [`canary`] decides about a candidate in use, looked at
//! again and again: its tests stay valid however often they are looked at and whenever they are stopped.

pub mod benchmark;
pub mod canary;

mod evidence;
