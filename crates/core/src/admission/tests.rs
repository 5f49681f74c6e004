//! The laws of the room, over every order of arrivals, grants, departures and time.

use super::{Closed, Entry, Key, Refused, Room, Ticket};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PLACES: usize = 6;
const CLASSES: usize = 3;
const MODELS: [&str; 2] = ["a", "b"];

#[derive(Debug, Clone)]
enum Step {
    Enter {
        class: usize,
        tenant: u64,
        model: usize,
        tokens: u64,
        patience: u64,
    },
    /// The one of those who wait, counted from the oldest.
    Leave(usize),
    /// A place for one of these models.
    Grant([bool; 2]),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..CLASSES, 0_u64..4, 0..2_usize, 0_u64..500, 1_u64..40).prop_map(
            |(class, tenant, model, tokens, patience)| Step::Enter { class, tenant, model, tokens, patience }
        ),
        1 => (0..PLACES).prop_map(Step::Leave),
        3 => any::<[bool; 2]>().prop_map(Step::Grant),
        2 => (0_u64..10).prop_map(Step::Wait),
    ]
}

#[expect(clippy::disallowed_methods, reason = "any moment will do")]
fn start() -> Instant {
    Instant::now()
}

fn model(index: usize) -> Arc<str> {
    MODELS[index].into()
}

/// A ticket whose payload is its number.
fn ticket(number: usize, class: usize, tenant: u64, now: Instant) -> Ticket<usize> {
    let deadline = now + Duration::from_secs(1_000);
    Ticket { class, tenant, model: Some(model(0)), tokens: 100, deadline, payload: number }
}

/// Grants a place to the first in the order.
fn grant(room: &mut Room<usize>, now: Instant) -> Option<Ticket<usize>> {
    let (key, ()) = room.first(now, &mut Closed::default(), |_| Some(()))?;
    room.grant(key, now)
}

/// The room, with what must be true of it kept in the plainest way.
struct Checked {
    room: Room<usize>,
    now: Instant,
    waiting: BTreeMap<usize, (Key, Ticket<usize>)>,
    entered: usize,
    ended: BTreeSet<usize>,
}

impl Checked {
    fn enter(&mut self, ticket: Ticket<usize>) {
        let number = ticket.payload;
        let copy = Ticket { model: ticket.model.clone(), ..ticket };
        let is_full = self.waiting.len() == PLACES;
        let (class, tenant) = (ticket.class, ticket.tenant);
        self.entered += 1;
        match self.room.enter(ticket, self.now) {
            Entry::Waits(key) => {
                assert!(!is_full);
                self.waiting.insert(number, (key, copy));
            }
            Entry::InsteadOf(key, Refused { ticket: worse, retry_after }) => {
                assert!((1..=60).contains(&retry_after));
                assert!(is_full);
                let lowest = self.waiting.values().map(|(_, ticket)| ticket.class).max().unwrap();
                assert_eq!(worse.class, lowest, "the lowest class makes room");
                assert!(
                    class < worse.class
                        || self.places(class, tenant) + 1 < self.places(class, worse.tenant)
                );
                self.end(worse.payload);
                self.waiting.insert(number, (key, copy));
            }
            Entry::Full(Refused { ticket, retry_after }) => {
                assert!((1..=60).contains(&retry_after));
                assert!(is_full && ticket.payload == number);
                assert!(self.waiting.values().all(|(_, ticket)| ticket.class <= class));
                assert!(self.ended.insert(number));
            }
        }
    }

    fn places(&self, class: usize, tenant: u64) -> usize {
        let is_its = |ticket: &Ticket<usize>| (ticket.class, ticket.tenant) == (class, tenant);
        self.waiting.values().filter(|(_, ticket)| is_its(ticket)).count()
    }

    fn grant(&mut self, open: [bool; 2]) {
        let is_open = |ticket: &Ticket<usize>| {
            (0..2).any(|index| open[index] && ticket.model == Some(model(index)))
        };
        let servable = |ticket: &Ticket<usize>| is_open(ticket) && ticket.deadline > self.now;
        let first = self
            .room
            .first(self.now, &mut Closed::default(), |ticket| is_open(ticket).then_some(()));
        let best = self
            .waiting
            .values()
            .map(|(_, ticket)| ticket)
            .filter(|t| servable(t))
            .map(|t| t.class)
            .min();
        let Some((key, ())) = first else {
            assert_eq!(best, None, "somebody could have been served");
            return;
        };
        let granted = self.room.grant(key, self.now).unwrap();
        assert!(servable(&granted));
        assert_eq!(Some(granted.class), best, "the highest class goes first");
        let is_older = |(number, (_, other)): (&usize, &(Key, Ticket<usize>))| {
            servable(other)
                && (other.class, other.tenant) == (granted.class, granted.tenant)
                && *number < granted.payload
        };
        assert!(!self.waiting.iter().any(is_older), "of one tenant the oldest goes first");
        self.end(granted.payload);
    }

    fn leave(&mut self, index: usize) {
        let Some((number, (key, _))) = self.waiting.iter().nth(index) else { return };
        let (number, key) = (*number, *key);
        assert_eq!(self.room.leave(key).unwrap().payload, number);
        assert!(self.room.leave(key).is_none(), "nobody leaves twice");
        self.end(number);
    }

    fn end(&mut self, number: usize) {
        assert!(self.waiting.remove(&number).is_some(), "{number} waited");
        assert!(self.ended.insert(number), "{number} ended once");
    }

    fn check(&self) {
        assert!(self.room.len() <= PLACES);
        assert_eq!(self.room.len(), self.waiting.len());
        assert_eq!(self.room.is_empty(), self.waiting.is_empty());
        let mut waiting = vec![0; CLASSES];
        self.waiting.values().for_each(|(_, ticket)| waiting[ticket.class] += 1);
        assert_eq!(self.room.waiting(), waiting);
    }
}

proptest! {
    #[test]
    fn it_never_holds_more_than_its_places_and_every_ticket_ends_exactly_once(
        steps in proptest::collection::vec(step(), 0..120),
    ) {
        let room = Room::new(PLACES, CLASSES);
        let mut checked = Checked {
            room, now: start(), waiting: BTreeMap::new(), entered: 0, ended: BTreeSet::new(),
        };
        for step in steps {
            match step {
                Step::Enter { class, tenant, model: index, tokens, patience } => {
                    let deadline = checked.now + Duration::from_secs(patience);
                    let payload = checked.entered;
                    checked.enter(Ticket { class, tenant, model: Some(model(index)), tokens, deadline, payload });
                }
                Step::Leave(index) => checked.leave(index),
                Step::Grant(open) => checked.grant(open),
                Step::Wait(seconds) => checked.now += Duration::from_secs(seconds),
            }
            checked.check();
        }
        while !checked.waiting.is_empty() {
            checked.leave(0);
        }
        checked.check();
        prop_assert_eq!(checked.ended.len(), checked.entered);
    }

    #[test]
    fn tenants_that_always_wait_are_granted_the_same_tokens_whatever_their_rates_and_sizes(
        sizes in [1_u64..1_000, 1_u64..1_000, 1_u64..1_000],
        burst in 1_usize..6,
    ) {
        let now = start();
        let mut room = Room::new(1_000, 1);
        let mut granted = [0_u64; 3];
        let mut number = 0;
        // One of them comes in bursts, the others one at a time.
        let enter = |room: &mut Room<usize>, tenant: usize, number: &mut usize| {
            *number += 1;
            let tokens = sizes[tenant];
            room.enter(Ticket { tokens, ..ticket(*number, 0, tenant as u64, now) }, now);
        };
        for tenant in 0..3 {
            (0..2).for_each(|_| enter(&mut room, tenant, &mut number));
        }
        for _ in 0..300 {
            let served = grant(&mut room, now).unwrap();
            granted[served.tenant as usize] += served.tokens;
            enter(&mut room, served.tenant as usize, &mut number);
            if room.len() + burst < 900 {
                (0..burst).for_each(|_| enter(&mut room, 0, &mut number));
            }
            // The bound of start-time fair queueing: no two differ by more than a ticket of each.
            for (one, other) in [(0, 1), (0, 2), (1, 2)] {
                let bound = sizes[one] + sizes[other];
                prop_assert!(granted[one].abs_diff(granted[other]) <= bound, "{granted:?} {sizes:?}");
            }
        }
    }
}

#[test]
fn a_tenant_that_floods_waits_behind_itself() {
    let now = start();
    let mut room = Room::new(100, 1);
    for number in 0..50 {
        room.enter(ticket(number, 0, 1, now), now);
    }
    assert_eq!(grant(&mut room, now).unwrap().tenant, 1);
    room.enter(ticket(50, 0, 2, now), now);
    assert_eq!(grant(&mut room, now).unwrap().tenant, 2, "one of another tenant is next");
}

#[test]
fn a_full_room_makes_room_for_a_higher_class_and_for_a_tenant_with_fewer_places() {
    let now = start();
    let mut room = Room::new(4, 2);
    for number in 0..4 {
        room.enter(ticket(number, 1, 1, now), now);
    }
    assert!(matches!(room.enter(ticket(4, 1, 1, now), now), Entry::Full(_)), "its own tenant");
    let Entry::InsteadOf(_, Refused { ticket: worse, .. }) = room.enter(ticket(5, 0, 1, now), now)
    else {
        panic!()
    };
    assert_eq!(worse.payload, 3, "the newest of the lowest class");
    let Entry::InsteadOf(_, Refused { ticket: worse, .. }) = room.enter(ticket(6, 1, 2, now), now)
    else {
        panic!()
    };
    assert_eq!(worse.payload, 2, "the newest of the tenant with the most places");
    assert!(matches!(room.enter(ticket(7, 1, 3, now), now), Entry::InsteadOf(..)));
    assert!(matches!(room.enter(ticket(8, 1, 4, now), now), Entry::Full(_)), "all have one");
    assert_eq!(room.waiting(), [1, 3]);
}

/// What a newcomer to a full room is told.
fn refused(room: &mut Room<usize>, class: usize, index: usize, now: Instant) -> u32 {
    let newcomer = Ticket { model: Some(model(index)), ..ticket(0, class, 1, now) };
    let Entry::Full(refused) = room.enter(newcomer, now) else { panic!("there is room") };
    refused.retry_after
}

#[test]
fn the_time_to_ask_again_is_the_place_in_the_line_divided_by_its_rate() {
    let begin = start();
    let mut room = Room::new(100, 2);
    for number in 0..100 {
        room.enter(ticket(number, 0, 1, begin), begin);
    }
    assert_eq!(refused(&mut room, 1, 0, begin), 1, "nobody knows yet");
    // Five leave in a second, and others come.
    let mut now = begin;
    for number in 100..200 {
        now += Duration::from_millis(200);
        grant(&mut room, now).unwrap();
        room.enter(ticket(number, 0, 1, now), now);
    }
    let seconds = refused(&mut room, 1, 0, now);
    assert!((19..=22).contains(&seconds), "{seconds}");
    assert_eq!(refused(&mut room, 1, 1, now), 1, "nobody waits for the other model");
    let stalled = now + Duration::from_mins(2);
    assert_eq!(refused(&mut room, 1, 0, stalled), 60, "never more than a minute");
}

#[test]
fn one_who_waited_in_vain_is_told_by_how_long_the_line_has_stood() {
    let begin = start();
    let mut room = Room::new(10, 1);
    let Entry::Waits(key) = room.enter(ticket(0, 0, 1, begin), begin) else { panic!() };
    let later = begin + Duration::from_secs(3);
    assert_eq!(room.refuse(key, later).unwrap().retry_after, 3);
    assert!(room.refuse(key, later).is_none());
}

#[test]
fn a_model_without_a_place_is_asked_for_once_and_does_not_hold_up_another() {
    let now = start();
    let mut room = Room::new(10, 1);
    for number in 0..8 {
        room.enter(Ticket { model: Some(model(number / 7)), ..ticket(number, 0, 1, now) }, now);
    }
    let (mut asked, mut closed) = (Vec::new(), Closed::default());
    let first = room.first(now, &mut closed, |ticket| {
        asked.push(ticket.payload);
        (ticket.payload == 7).then_some(())
    });
    assert!(first.is_some());
    assert_eq!(asked, [0, 7]);
    assert!(closed.has(Some(MODELS[0])) && !closed.has(Some(MODELS[1])) && !closed.has(None));
}

#[test]
fn a_room_without_places_refuses_at_once_and_one_without_classes_has_one() {
    let now = start();
    let mut room = Room::new(0, 0);
    assert!(matches!(room.enter(ticket(0, 0, 1, now), now), Entry::Full(_)));
    let mut room = Room::new(1, 0);
    assert!(matches!(room.enter(ticket(0, 7, 1, now), now), Entry::Waits(_)));
    assert_eq!(room.waiting(), [1]);
}

#[test]
fn whoever_waits_goes_on_in_another_class_when_classes_change() {
    let (mut room, now) = (Room::new(10, 3), start());
    let keys = [2, 1, 0].map(|class| match room.enter(ticket(class, class, 0, now), now) {
        Entry::Waits(key) => key,
        other => panic!("{other:?}"),
    });
    // The lowest is the highest now, and the others are one.
    room.change(2, 2, |class| usize::from(class < 2));
    assert_eq!(room.waiting(), [1, 2]);
    assert!(matches!(room.enter(ticket(9, 1, 0, now), now), Entry::Full(_)), "fewer places");
    assert!(room.leave(keys[1]).is_some());
    let order = [grant(&mut room, now), grant(&mut room, now)];
    assert_eq!(order.map(|ticket| ticket.unwrap().payload), [2, 0]);
    assert!(room.is_empty());
}
