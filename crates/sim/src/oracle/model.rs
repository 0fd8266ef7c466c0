//! A slow, obvious model of one sector, and the oracle compared with it.
//!
//! The model is the machine itself. It has a history of contents: reads see the last one, and a
//! power cut may bring back any from the durable one on. The model keeps *every* state in which the
//! machine can be after the events so far: each write in flight may happen at any time, and each
//! read in flight takes the present content at any time. A read's result is right if a state with
//! it is left.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A write in flight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    id: u64,
    /// The content that it leaves; 0 are zeroes.
    content: u64,
    fua: bool,
    is_discard: bool,
    /// Its place in the history, if it has happened.
    at: Option<usize>,
}

/// One state of the machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    history: Vec<u64>,
    /// The oldest place in the history that a power cut may bring back.
    durable: usize,
    /// The latest acknowledged place in the history.
    acknowledged: usize,
    writes: Vec<Flight>,
    /// Reads in flight, and the contents that they have taken.
    reads: Vec<(u64, Option<u64>)>,
    /// Flushes in flight, and the latest place that was acknowledged when each began.
    flushes: Vec<(u64, usize)>,
    lying: bool,
}

impl State {
    fn new() -> Self {
        State {
            history: vec![0],
            durable: 0,
            acknowledged: 0,
            writes: Vec::new(),
            reads: Vec::new(),
            flushes: Vec::new(),
            lying: false,
        }
    }

    fn seen(&self) -> u64 {
        self.history[self.history.len() - 1]
    }

    /// The states after one spontaneous event.
    fn steps(&self) -> Vec<State> {
        let mut found = Vec::new();
        for (index, write) in self.writes.iter().enumerate().filter(|(_, w)| w.at.is_none()) {
            let mut next = self.clone();
            next.writes[index].at = Some(next.history.len());
            next.history.push(write.content);
            found.push(next);
        }
        for (index, _) in self.reads.iter().enumerate().filter(|(_, read)| read.1.is_none()) {
            let mut next = self.clone();
            next.reads[index].1 = Some(self.seen());
            found.push(next);
        }
        found
    }

    /// The state after a write ends; `None` if it cannot end so.
    fn ends(mut self, id: u64, ok: bool) -> Option<State> {
        let index = self.writes.iter().position(|write| write.id == id)?;
        let write = self.writes.remove(index);
        if ok && !write.is_discard {
            let at = write.at?;
            self.acknowledged = self.acknowledged.max(at);
            if write.fua {
                self.durable = self.durable.max(at);
            }
        }
        Some(self)
    }

    fn flush_ends(mut self, id: u64, ok: bool) -> State {
        if let Some(index) = self.flushes.iter().position(|flush| flush.0 == id) {
            let (_, at) = self.flushes.remove(index);
            if ok {
                self.durable = self.durable.max(at);
            }
        }
        self
    }

    fn process_killed(mut self) -> State {
        self.writes.clear();
        self.reads.clear();
        self.flushes.clear();
        self
    }

    /// All states that a power cut may leave.
    fn power_cut(self) -> Vec<State> {
        let lying = self.lying;
        let left = self.history[self.durable..].iter();
        left.map(|&content| State { history: vec![content], lying, ..State::new() }).collect()
    }

    /// All states after a device has dropped what is not durable: the loss shows at once, or only
    /// after a power cut.
    fn drops(&self) -> Vec<State> {
        let mut found = Vec::new();
        for &kept in &self.history[self.durable..] {
            for history in [vec![kept], vec![kept, self.seen()]] {
                let mut next = State { history, durable: 0, acknowledged: 0, ..self.clone() };
                for write in &mut next.writes {
                    write.at = write.at.map(|_| 0);
                }
                for flush in &mut next.flushes {
                    flush.1 = 0;
                }
                found.push(next);
            }
        }
        found
    }

    fn lies(mut self, lying: bool) -> State {
        self.lying = lying;
        self.flushes.clear();
        for write in &mut self.writes {
            write.fua = false;
        }
        self
    }
}

/// All states in which the machine can be.
struct Model(BTreeSet<State>);

impl Model {
    fn new() -> Self {
        Model(BTreeSet::from([State::new()]))
    }

    fn change<I: IntoIterator<Item = State>>(&mut self, change: impl Fn(State) -> I) {
        let mut todo: Vec<State> =
            std::mem::take(&mut self.0).into_iter().flat_map(change).collect();
        while let Some(state) = todo.pop() {
            if !self.0.contains(&state) {
                todo.extend(state.steps());
                self.0.insert(state);
            }
        }
    }

    fn begins(&mut self, flight: Flight) {
        self.change(|mut state| {
            let fua = flight.fua && !state.lying;
            state.writes.push(Flight { fua, ..flight.clone() });
            [state]
        });
    }

    /// True if a read in flight may end with this content.
    fn may_return(&self, id: u64, content: u64) -> bool {
        self.0.iter().any(|state| state.reads.contains(&(id, Some(content))))
    }

    /// A read has ended with this content, or failed.
    fn read_ends(&mut self, id: u64, content: Option<u64>) {
        self.change(|mut state| {
            let is_it = |read: &(u64, Option<u64>)| {
                read.0 == id && (content.is_none() || read.1 == content)
            };
            let index = state.reads.iter().position(is_it)?;
            state.reads.remove(index);
            Some(state)
        });
    }
}

/// The kinds of events in a history.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// Operations in flight at once.
    at_once: usize,
    /// True if operations fail, devices lie and drop, and discards come.
    faults: bool,
}

/// The outcome of a history.
#[derive(Debug, Default, PartialEq, Eq)]
struct Verdicts {
    permitted: u32,
    refused: u32,
    /// Histories that the model refuses and the oracle accepts.
    lenient: u32,
}

/// One oracle and one model that are told the same.
struct Pair {
    rules: Rules,
    oracle: Oracle,
    model: Model,
    writes: Vec<WriteId>,
    reads: Vec<ReadId>,
    flushes: Vec<FlushId>,
    newest: u64,
    verdicts: Verdicts,
}

/// The sector that is compared; its neighbours must not matter.
const AT: u64 = 1;

impl Pair {
    fn new(rules: Rules) -> Self {
        Pair {
            rules,
            oracle: Oracle::new(1, 3),
            model: Model::new(),
            writes: Vec::new(),
            reads: Vec::new(),
            flushes: Vec::new(),
            newest: 0,
            verdicts: Verdicts::default(),
        }
    }

    fn has_room(&self) -> bool {
        self.writes.len() + self.reads.len() + self.flushes.len() < self.rules.at_once
    }

    /// Tells both of one event. False if the model has no state left: it refused a result that the
    /// oracle permitted.
    fn step(&mut self, what: u8, how: u8) -> bool {
        match what % 16 {
            0..=4 if self.has_room() => self.write(how),
            5..=7 => self.write_ends(how),
            8 | 9 if self.has_room() => {
                let id = self.oracle.read_begins(AT..AT + 1);
                self.reads.push(id);
                self.model.change(|mut state| {
                    state.reads.push((id.0, None));
                    [state]
                });
            }
            10 | 11 => return self.read_ends(how),
            12 if self.has_room() => {
                let id = self.oracle.flush_begins();
                self.flushes.push(id);
                self.model.change(|mut state| {
                    if !state.lying {
                        state.flushes.push((id.0, state.acknowledged));
                    }
                    [state]
                });
            }
            13 => self.flush_ends(how),
            14 => self.outage(how),
            15 if self.rules.faults => self.device_fault(how),
            _ => {}
        }
        true
    }

    fn write(&mut self, how: u8) {
        let (range, fua) = (AT - u64::from(how & 1)..AT + 1 + u64::from(how >> 1 & 1), how & 4 > 0);
        let id = match how >> 4 & 7 {
            0 | 1 => self.oracle.zeroes_begin(range, fua),
            2 if self.rules.faults => self.oracle.discard_begins(range),
            _ => self.oracle.write_begins(range, fua),
        };
        self.newest = id.stamp();
        self.writes.push(id);
        let kind = self.oracle.writes.get(id.index()).kind;
        let content = if kind == Kind::Data { id.stamp() } else { 0 };
        let is_discard = kind == Kind::Discard;
        self.model.begins(Flight { id: id.stamp(), content, fua, is_discard, at: None });
    }

    fn write_ends(&mut self, how: u8) {
        if self.writes.is_empty() {
            return;
        }
        let id = self.writes.remove(how as usize % self.writes.len());
        let ended = match how >> 5 {
            0 if self.rules.faults => Ended::Failed,
            1 if self.rules.faults => Ended::Cancelled,
            _ => Ended::Ok,
        };
        self.oracle.write_ends(id, ended);
        self.model.change(|state| state.ends(id.stamp(), ended == Ended::Ok));
    }

    fn read_ends(&mut self, how: u8) -> bool {
        if self.reads.is_empty() {
            return true;
        }
        let id = self.reads.remove(how as usize % self.reads.len());
        // Mostly a recent content, which may be right.
        let back = if how & 0x80 > 0 { u64::from(how >> 4 & 7) } else { u64::from(how >> 5) };
        let mut content = self.newest.saturating_sub(back);
        if content > 0 && self.oracle.writes.get(content as u32).kind != Kind::Data {
            content = 0;
        }
        let mut data = vec![0; SECTOR];
        if content > 0 {
            fill(&mut data, 1, AT, content);
        }
        let permits = self.model.may_return(id.0, content);
        let verdict = self.oracle.read_ends_ok(id, &data);
        assert!(!permits || verdict.is_ok(), "refused, but right: {}", verdict.unwrap_err());
        match (permits, verdict.is_ok()) {
            (true, _) => self.verdicts.permitted += 1,
            (false, false) => self.verdicts.refused += 1,
            (false, true) => self.verdicts.lenient += 1,
        }
        self.model.read_ends(id.0, verdict.is_ok().then_some(content));
        !self.model.0.is_empty()
    }

    fn flush_ends(&mut self, how: u8) {
        if self.flushes.is_empty() {
            return;
        }
        let id = self.flushes.remove(how as usize % self.flushes.len());
        let ok = !(self.rules.faults && how >> 6 == 0);
        self.oracle.flush_ends(id, ok);
        self.model.change(|state| [state.flush_ends(id.0, ok)]);
    }

    fn outage(&mut self, how: u8) {
        if how.is_multiple_of(3) {
            // The oracle is lenient here: a write that was in flight at a power cut, and then was
            // seen not to have happened, may come back at the next cut.
            if self.rules.at_once == 1 && !self.writes.is_empty() {
                return;
            }
            self.oracle.process_killed();
            self.model.change(|state| [state.process_killed()]);
        } else {
            self.oracle.power_cut();
            self.model.change(State::power_cut);
        }
        self.writes.clear();
        self.reads.clear();
        self.flushes.clear();
    }

    fn device_fault(&mut self, how: u8) {
        match how % 3 {
            0 => {
                self.oracle.drop_undurable(AT..AT + 1);
                self.model.change(|state| state.drops());
            }
            1 => {
                self.oracle.distrust_flushes(0..3);
                self.model.change(|state| [state.lies(true)]);
            }
            _ => {
                self.oracle.trust_flushes(0..3);
                self.model.change(|state| [state.lies(false)]);
            }
        }
    }
}

fn run(rules: Rules, script: &[(u8, u8)]) -> Verdicts {
    let mut pair = Pair::new(rules);
    for &(what, how) in script {
        if !pair.step(what, how) {
            break;
        }
    }
    pair.verdicts
}

fn scripts(length: usize) -> impl Strategy<Value = Vec<(u8, u8)>> {
    proptest::collection::vec(any::<(u8, u8)>(), 0..length)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn one_after_the_other_both_agree_on_everything(script in scripts(60)) {
        let verdicts = run(Rules { at_once: 1, faults: false }, &script);
        prop_assert_eq!(verdicts.lenient, 0);
    }

    #[test]
    fn the_oracle_never_refuses_what_is_right(script in scripts(40)) {
        run(Rules { at_once: 4, faults: true }, &script);
    }

    #[test]
    fn nor_where_nothing_fails(script in scripts(40)) {
        run(Rules { at_once: 4, faults: false }, &script);
    }
}

#[test]
fn the_oracle_is_seldom_lenient() {
    for (faults, share_max) in [(false, 20), (true, 40)] {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut sum = Verdicts::default();
        for _ in 0..2000 {
            let script: Vec<_> = (0..40).map(|_| (rng.u8(..), rng.u8(..))).collect();
            let verdicts = run(Rules { at_once: 3, faults }, &script);
            sum.permitted += verdicts.permitted;
            sum.refused += verdicts.refused;
            sum.lenient += verdicts.lenient;
        }
        println!("faults: {faults}, {sum:?}");
        assert!(sum.permitted > 1000 && sum.refused > 300, "{sum:?}");
        assert!(sum.lenient * 100 < sum.refused * share_max, "{sum:?}");
    }
}
