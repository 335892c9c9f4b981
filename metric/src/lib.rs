//! Metrics, each defined in one place: its name, its help text, and the values of its label.
//!
//! A crate lists its metrics in a `measure.rs` with [`metrics!`]. The program [registers](Metric::register) them when it starts.
//!
//! Counters are per process and start at 0. A request is counted by the node that answers it, and an entry by the node that
//! proposes it: sum over all nodes. Metrics of the table are equal on all nodes that have applied the same entries: take the
//! maximum.

mod series;

use metrics::{Key, Label, Level, Metadata};

use series::Series;

/// A metric that a crate defines.
pub trait Metric: Sync {
    /// Its name, which begins with `ringfence_`.
    fn name(&self) -> &'static str;

    /// Tells the recorder what the metric means, and starts it at 0 if it counts: a rate misses the first count of a counter that did
    /// not exist before. Call it once, after the recorder is installed: from then on, each series is looked up once.
    fn register(&self);
}

/// The recorder ignores it.
static METADATA: Metadata<'_> = Metadata::new(module_path!(), Level::INFO, None);

/// What tells the series of one metric apart.
enum Labels {
    /// There is one series.
    None,
    /// One series for each value of the label. These are expected.
    One(&'static str, &'static [&'static str]),
    /// Several labels. Their values are known only when something happens.
    Several(&'static [&'static str]),
}

impl Labels {
    fn names(&self) -> &[&'static str] {
        match self {
            Self::None => &[],
            Self::One(label, _) => std::slice::from_ref(label),
            Self::Several(labels) => labels,
        }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident, $register:ident, $describe:ident, starts: $starts:literal;)*) => {$(
        $(#[$doc])*
        pub struct $kind {
            name: &'static str,
            help: &'static str,
            labels: Labels,
            series: Series<metrics::$kind>,
        }

        impl $kind {
            /// A metric with one series.
            pub const fn new(name: &'static str, help: &'static str) -> Self {
                Self { name, help, labels: Labels::None, series: Series::new() }
            }

            /// The same with a series for each value of `label`. A counter starts at 0 for each of `values`, and may meet others.
            #[must_use]
            pub const fn by(mut self, label: &'static str, values: &'static [&'static str]) -> Self {
                self.labels = Labels::One(label, values);
                self
            }

            /// The same with several labels.
            #[must_use]
            pub const fn by_several(mut self, labels: &'static [&'static str]) -> Self {
                self.labels = Labels::Several(labels);
                self
            }

            /// The series without a label.
            pub fn get(&self) -> &metrics::$kind {
                self.of_all(&[])
            }

            /// The series for `value` of the label.
            pub fn of(&self, value: &str) -> &metrics::$kind {
                if let Labels::One(label, values) = self.labels {
                    debug_assert!($starts || values.contains(&value), "{value} is no {label} of {}", self.name);
                }
                self.of_all(&[value])
            }

            /// The series for these values of all labels.
            pub fn of_all(&self, values: &[&str]) -> &metrics::$kind {
                debug_assert_eq!(values.len(), self.labels.names().len(), "labels of {}", self.name);
                self.series.get(values, || {
                    let labels = self.labels.names().iter().zip(values);
                    let labels: Vec<_> = labels.map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
                    let key = Key::from_parts(self.name, labels);
                    metrics::with_recorder(|recorder| recorder.$register(&key, &METADATA))
                })
            }
        }

        impl Metric for $kind {
            fn name(&self) -> &'static str {
                self.name
            }

            fn register(&self) {
                metrics::$describe!(self.name, self.help);
                self.series.begin();
                match self.labels {
                    Labels::None if $starts => _ = self.get(),
                    Labels::One(_, values) if $starts => values.iter().for_each(|value| _ = self.of(value)),
                    _ => {}
                }
            }
        }
    )*};
}

kinds! {
    /// A number that only grows. It starts at 0.
    Counter, register_counter, describe_counter, starts: true;
    /// A number that is set. It has no value before.
    Gauge, register_gauge, describe_gauge, starts: false;
    /// Counts of times, by their length. It starts empty.
    Histogram, register_histogram, describe_histogram, starts: true;
}

/// Defines the metrics of a crate, and the list of all of them, which comes first.
#[macro_export]
macro_rules! metrics {
    ($visible:vis $all:ident; $($name:ident: $kind:ident = $make:expr;)*) => {
        $(pub(crate) static $name: $crate::$kind = $make;)*

        /// All metrics of this crate.
        $visible static $all: &[&dyn $crate::Metric] = &[$(&$name),*];
    };
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    metrics! {
        METRICS;
        PLAIN: Counter = Counter::new("ringfence_plain_total", "Plain ones.");
        BY_REASON: Counter = Counter::new("ringfence_by_reason_total", "By reason.").by("reason", &["late", "silent"]);
        SEVERAL: Counter = Counter::new("ringfence_several_total", "Several labels.").by_several(&["a", "c"]);
        LEVEL: Gauge = Gauge::new("ringfence_level", "A level.");
        TIMES: Histogram = Histogram::new("ringfence_times_seconds", "Times.");
    }

    /// A rate once missed the first count of a counter that had not been registered.
    #[test]
    fn counters_start_at_0_for_each_value_of_their_label_and_gauges_do_not() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let shown = recorder.handle();
        metrics::with_local_recorder(&recorder, || METRICS.iter().for_each(|metric| metric.register()));
        let text = shown.render();
        for line in [
            "# HELP ringfence_plain_total Plain ones.",
            "ringfence_plain_total 0",
            "ringfence_by_reason_total{reason=\"late\"} 0",
            "ringfence_by_reason_total{reason=\"silent\"} 0",
            "ringfence_times_seconds_count 0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in:\n{text}");
        }
        for metric in [&SEVERAL as &dyn Metric, &LEVEL] {
            assert!(!text.contains(metric.name()), "{} in:\n{text}", metric.name());
        }
        metrics::with_local_recorder(&recorder, || {
            LEVEL.get().set(2.0);
            BY_REASON.of("late").increment(1);
            (0..3).for_each(|_| SEVERAL.of_all(&["b", "d"]).increment(1));
        });
        let text = shown.render();
        for line in [
            "# HELP ringfence_level A level.",
            "ringfence_level 2",
            "ringfence_by_reason_total{reason=\"late\"} 1",
            "ringfence_several_total{a=\"b\",c=\"d\"} 3",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in:\n{text}");
        }
    }

    /// Only what starts at 0 may meet values that nobody listed.
    #[test]
    #[should_panic(expected = "odd is no state of ringfence_state")]
    fn the_values_of_a_gauge_are_those_of_its_definition() {
        static STATE: Gauge = Gauge::new("ringfence_state", "1 for the state.").by("state", &["even"]);
        BY_REASON.of("other").increment(1);
        STATE.of("even").set(1.0);
        STATE.of("odd").set(1.0);
    }
}
