//! The exports, clients and network of a seed, made from it.

use super::super::plan::{Plan, chance, of};
use super::plan::{ClientMix, ExportPlan, ListenerPlan, NbdPlan};
use crate::world::NetOptions;
use drystone_core::clock::Ns;
use fastrand::Rng;
use std::fmt::Write;

const MS: Ns = 1_000_000;

impl NbdPlan {
    /// Adds exports of a plan's targets, also to its stack file.
    pub fn add(plan: &mut Plan, rng: &mut Rng) {
        let listeners: Vec<_> = (0..rng.u64(1..=2)).map(|_| listener(rng)).collect();
        let exports = exports(plan, listeners.len(), rng);
        plan.text.push_str("[group.a]\n[group.\"a/b\"]\n[group.c]\n");
        for export in &exports {
            let (device, listener) = (&plan.targets[export.target].name, export.listener);
            let text = describe(export, device, &listeners[listener], rng);
            plan.text.push_str(&text);
        }
        plan.nbd = Some(NbdPlan {
            exports,
            listeners,
            threads: rng.u64(1..=3),
            clients: rng.u64(2..=6),
            mix: mix(rng),
            net: net(rng),
            registered: of(rng, &[0, 1 << 20]),
            stops_early: rng.bool(),
        });
    }
}

fn listener(rng: &mut Rng) -> ListenerPlan {
    ListenerPlan {
        max_connections: of(rng, &[1, 3, 1024, 1024, 1024, 1024, 1024, 1024]),
        max_in_flight: of(rng, &[1, 2, 16, 128, 128]),
        max_request: of(rng, &[64 << 10, 256 << 10, 32 << 20]),
        handshake_ns: of(rng, &[100 * MS, 1_000 * MS, 10_000 * MS]),
        idle_ns: of(rng, &[0, 0, 0, 50 * MS, 2_000 * MS]),
    }
}

/// Exports every target once, some twice; each address has at least one export.
fn exports(plan: &Plan, listeners: usize, rng: &mut Rng) -> Vec<ExportPlan> {
    let mut exports = Vec::new();
    for (target, of) in plan.targets.iter().enumerate() {
        let times = 1 + u64::from(chance(rng, 30));
        for nth in 0..times {
            let name = format!("{}-{target}-{nth}", of.name);
            let read_only = nth > 0 && rng.bool() || is_part(plan, &of.name);
            let listener = exports.len() % listeners;
            exports.push(ExportPlan { name, target, read_only, listener, default: false });
        }
    }
    while exports.len() < listeners {
        let name = format!("again-{}", exports.len());
        let (target, listener) = (exports[0].target, exports.len());
        let read_only = exports[0].read_only;
        exports.push(ExportPlan { name, target, read_only, listener, default: false });
    }
    for listener in 0..listeners {
        if rng.bool() {
            let own = exports.iter_mut().find(|export| export.listener == listener);
            own.expect("each address has one").default = true;
        }
    }
    exports
}

/// True if volumes lie on a device, or may move to it: then clients may only read it.
fn is_part(plan: &Plan, device: &str) -> bool {
    let tables = plan.volumes.iter().map(|(_, table)| table);
    let moves = plan.targets.iter().filter_map(|target| target.moves.as_ref());
    let mut tables = tables.chain(moves.flatten().map(|(table, _)| table));
    tables.any(|table| table.split_whitespace().any(|word| word == device))
}

fn describe(export: &ExportPlan, device: &str, at: &ListenerPlan, rng: &mut Rng) -> String {
    let ExportPlan { name, read_only, listener, default, .. } = export;
    let ListenerPlan { max_connections, max_in_flight, max_request, .. } = at;
    let (handshake, idle) = (at.handshake_ns / MS, at.idle_ns / MS);
    let mut text = format!(
        "[export.{name}]\ndevice = \"{device}\"\nnbd = \"unix:/sim/{listener}.sock\"\n\
         read_only = {read_only}\ndefault = {default}\nmax_connections = {max_connections}\n\
         max_in_flight = {max_in_flight}\nmax_request = {max_request}\n\
         handshake_timeout = \"{handshake}ms\"\nidle_timeout = \"{idle}ms\"\n"
    );
    if chance(rng, 40) {
        let _ = writeln!(text, "group = \"{}\"", of(rng, &["a", "a/b", "c"]));
    }
    if chance(rng, 20) {
        // No client is this user, so the group above counts.
        text.push_str("clients = { \"uid:4000000\" = \"c\" }\n");
    }
    if chance(rng, 20) {
        let class = of(rng, &["idle", "promote-to-rt", "restrict-to-be"]);
        let _ = writeln!(text, "io.prio.class = \"{class}\"");
    }
    text
}

fn mix(rng: &mut Rng) -> ClientMix {
    let mut weights = [0, 0, 2, 3, 4, 4, 1, 1].map(|base| if chance(rng, 60) { base } else { 0 });
    weights[0] = of(rng, &[5, 20, 60]);
    weights[1] = of(rng, &[10, 30, 60]);
    weights[2] = of(rng, &[0, 1, 3, 10]);
    ClientMix {
        weights,
        fua: of(rng, &[0, 0, 5, 30]),
        blocks_max: of(rng, &[1, 4, 16, 64]),
        long: of(rng, &[0, 0, 5, 20]),
        depth: of(rng, &[1, 2, 8, 32, 150]),
        session: of(rng, &[5, 50, 300, 2_000]),
        rude: of(rng, &[0, 10, 50]),
        away_ns: of(rng, &[0, 10_000, 1_000_000, 50_000_000]),
        // Drawn last, so that a seed's other values stay the same.
        unaligned: of(rng, &[0, 10, 50]),
    }
}

fn net(rng: &mut Rng) -> NetOptions {
    NetOptions {
        latency_ns: of(rng, &[1_000, 20_000, 500_000]),
        spread_ns: of(rng, &[1, 20_000, 2_000_000]),
        capacity: of(rng, &[4_096, 65_536, 212_992, 1 << 20]),
        piece: of(rng, &[100, 1_000, 20_000, usize::MAX, usize::MAX]),
        cancelled_ppm: of(rng, &[0, 0, 1_000, 20_000]),
        exhausted_ppm: of(rng, &[0, 0, 200_000]),
        unix: rng.bool(),
    }
}
