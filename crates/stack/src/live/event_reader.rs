//! Reads the events of a running stack, and limits the rate of repeated ones.
//!
//! Invariant: a repeated event is reported at once, then at growing intervals, and counted in
//! between.

use std::collections::BTreeMap;

use drystone_core::clock::Ns;
use drystone_core::failures::Noted;

use super::LiveStack;
use crate::events::{Event, Lasting, What};

/// The shortest and longest time in which a repeated event is only counted after a report; the time
/// doubles at each report.
const PAUSE_MIN_NS: Ns = 5_000_000_000;
const PAUSE_MAX_NS: Ns = 600_000_000_000;

/// The time at which a repeated event is due again.
#[derive(Clone, Copy, Default)]
struct Limit {
    next: Ns,
    pause: Ns,
}

impl Limit {
    fn told(self, now: Ns) -> Limit {
        let goes_on = self.pause > 0 && now < self.next.saturating_add(self.pause);
        let pause = if goes_on { (2 * self.pause).min(PAUSE_MAX_NS) } else { PAUSE_MIN_NS };
        Limit { next: now.saturating_add(pause), pause }
    }
}

impl LiveStack {
    /// A reader of the stack's events. Only one reader may exist at a time.
    pub fn event_reader(&self) -> EventReader {
        EventReader::new(self.clone())
    }
}

/// Reads the events of a stack. There is one at a time.
pub struct EventReader {
    stack: LiveStack,
    limits: BTreeMap<String, Limit>,
    /// Events that repeat and are not due yet.
    kept: Vec<Event>,
}

impl EventReader {
    fn new(stack: LiveStack) -> Self {
        EventReader { stack, limits: BTreeMap::new(), kept: Vec::new() }
    }

    /// The events that are due, in their order. Never waits long; to be called each second or so.
    pub fn take(&mut self) -> Vec<Event> {
        self.collect(false)
    }

    /// All events, also those that are not due yet: for the end.
    pub fn take_all(&mut self) -> Vec<Event> {
        self.collect(true)
    }

    fn collect(&mut self, is_end: bool) -> Vec<Event> {
        let stack = self.stack.clone();
        let now = stack.clock().now();
        let (repeated, mut told): (Vec<_>, Vec<_>) =
            stack.events().take().into_iter().partition(|event| event.repeats().is_some());
        for event in repeated {
            if !self.kept.iter_mut().any(|kept| kept.absorb(&event)) {
                self.kept.push(event);
            }
        }
        for event in std::mem::take(&mut self.kept) {
            let key = event.repeats().unwrap_or_default();
            match is_end || self.tell_if_due(&key, now) {
                true => told.push(event),
                false => self.kept.push(event),
            }
        }
        for live in stack.devices() {
            let Some(failures) = live.device.failures() else { continue };
            let noted =
                self.noted(&format!("device {}", live.name), now, is_end, || failures.take());
            told.extend(noted.map(|noted| {
                let lasting = Lasting::of(|name| live.device.attribute(name));
                Event {
                    at: now,
                    subject: live.name.clone(),
                    what: What::Failures { noted, lasting },
                }
            }));
        }
        for export in stack.live_exports() {
            let (name, failures) = (&export.spec.name, export.volume.clients.failures());
            let noted = self.noted(&format!("export {name}"), now, is_end, || failures.take());
            told.extend(noted.map(|noted| Event {
                at: now,
                subject: name.clone(),
                what: What::ClientFailures(noted),
            }));
        }
        self.limits.retain(|_, limit| now < limit.next.saturating_add(limit.pause));
        told.sort_by_key(|event| event.at);
        told
    }

    /// The failures of `key` since the last call, if they are due and there are any.
    fn noted(
        &mut self,
        key: &str,
        now: Ns,
        is_end: bool,
        take: impl FnOnce() -> Noted,
    ) -> Option<Noted> {
        if !is_end && !self.is_due(key, now) {
            return None;
        }
        let noted = Some(take()).filter(|noted| noted.count() > 0)?;
        self.tell_if_due(key, now);
        Some(noted)
    }

    fn is_due(&self, key: &str, now: Ns) -> bool {
        self.limits.get(key).is_none_or(|limit| now >= limit.next)
    }

    /// Marks `key` as reported now if it is due. Returns whether it is due.
    fn tell_if_due(&mut self, key: &str, now: Ns) -> bool {
        let is_due = self.is_due(key, now);
        if is_due {
            let limit = self.limits.entry(key.to_owned()).or_default();
            *limit = limit.told(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_while_it_goes_on() {
        let (mut limit, mut now, mut pauses) = (Limit::default(), 7, Vec::new());
        for _ in 0..10 {
            limit = limit.told(now);
            pauses.push((limit.next - now) / 1_000_000_000);
            now = limit.next;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]);
        limit = limit.told(limit.next + limit.pause);
        assert_eq!(limit.pause, PAUSE_MIN_NS, "after a quiet while it begins again");
    }
}
