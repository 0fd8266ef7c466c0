//! The laboratory: experiments that compare a design of Drystone with those it replaces.

#![forbid(unsafe_code)]

pub mod engine;
pub mod scheduler;
