//! The scenario `nbd`: the stacks of `mixed`, served over NBD by the server of the product to
//! clients of all manners.

mod client;
mod generate;
mod plan;
mod requests;
mod served;
mod server;
mod session;
mod wire;

pub use plan::{ClientMix, ExportPlan, ListenerPlan, NbdPlan};
pub(super) use served::Served;
pub(super) use server::{end_server, spawn_server};
