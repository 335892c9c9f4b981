//! Links that lose packets in one or both directions, are slow, or stay open and carry nothing.

use std::time::Duration;

use ringfence_laws::history::Fault;
use tokio::time::{Instant, sleep};

use super::{Scene, named};
use crate::nemesis::Nemesis;
use crate::plan::{Shape, pairs};
use crate::wires::Trouble;

/// How long a flapping link is down, and up: down for longer than the election timeout, and for less than it takes until a
/// connection is given up.
const AWAY: Duration = Duration::from_millis(1_500);
const BACK: Duration = Duration::from_millis(700);

impl Scene<'_> {
    pub(super) async fn partition(
        self,
        shape: Shape,
        order: &[u64],
        lasts: Duration,
    ) -> anyhow::Result<Vec<Fault>> {
        let (wires, half) = (self.field.wires(), order.len() / 2);
        let (hit, what) = match shape {
            Shape::Halves => (&order[..half], format!("{} apart from the rest", named(&order[..half]))),
            Shape::Ring => (order, format!("each hears a majority: the ring of {}", named(order))),
            Shape::Bridge => (order, format!("node {} alone hears all others", order[half])),
            Shape::Mute => (&order[..1], format!("nobody hears node {}", order[0])),
            Shape::Deaf => (&order[..1], format!("node {} hears nobody", order[0])),
            Shape::Isolated => (&order[..1], format!("node {} alone", order[0])),
            Shape::Flapping => (&order[..1], format!("node {} alone, again and again", order[0])),
        };
        let fault = self.begun(Nemesis::Partition, hit, what);
        let (lost, end) = (shape.lost(order), Instant::now() + lasts);
        wires.trouble(Trouble::Cut, &lost)?;
        if shape == Shape::Flapping {
            while Instant::now() + AWAY + BACK < end {
                sleep(AWAY).await;
                wires.ease(Trouble::Cut)?;
                sleep(BACK).await;
                wires.trouble(Trouble::Cut, &lost)?;
            }
        }
        tokio::time::sleep_until(end).await;
        wires.ease(Trouble::Cut)?;
        Ok(self.over(fault))
    }

    pub(super) async fn slow_links(self, nodes: &[u64], lasts: Duration) -> anyhow::Result<Vec<Fault>> {
        let what = format!("the links of {} are slow", named(nodes));
        self.link_trouble(Nemesis::SlowLinks, Trouble::Slow, nodes, what, lasts).await
    }

    pub(super) async fn half_open(self, nodes: &[u64], lasts: Duration) -> anyhow::Result<Vec<Fault>> {
        let what = format!("the links of {} are half open", named(nodes));
        self.link_trouble(Nemesis::HalfOpen, Trouble::HalfOpen, nodes, what, lasts).await
    }

    async fn link_trouble(
        self,
        nemesis: Nemesis,
        trouble: Trouble,
        nodes: &[u64],
        what: String,
        lasts: Duration,
    ) -> anyhow::Result<Vec<Fault>> {
        let all: Vec<u64> = (1..=self.field.nodes()).collect();
        let mut links = [pairs(nodes, &all), pairs(&all, nodes)].concat();
        links.retain(|(from, to)| from != to);
        links.sort_unstable();
        links.dedup();
        let fault = self.begun(nemesis, nodes, what);
        self.field.wires().trouble(trouble, &links)?;
        sleep(lasts).await;
        self.field.wires().ease(trouble)?;
        Ok(self.over(fault))
    }
}
