//! The files for users of the metrics: Grafana's dashboard and Prometheus' alert rules.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use jobqueue_dashboard::metrics::{ALL, Kind};
use regex::{Captures, Regex};

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/dashboard")
}

/// Returns the names of all series of the exposition.
fn series() -> BTreeSet<String> {
    let all = ALL.iter().flat_map(|metric| {
        let name = metric.series();
        match metric.kind {
            Kind::Histogram => ["_bucket", "_sum", "_count"].map(|end| format!("{name}{end}")).to_vec(),
            _ => vec![name.into_owned()],
        }
    });
    all.collect()
}

/// Returns the names in queries that are no series.
fn unknown(text: &str) -> Vec<String> {
    let known = series();
    let names = Regex::new(r"jobqueue_[a-z_]+").unwrap();
    let names = names.find_iter(text).map(|name| name.as_str().to_owned());
    names.filter(|name| !known.contains(name)).collect()
}

fn read(file: &str) -> String {
    fs::read_to_string(home().join(file)).unwrap()
}

fn dashboard() -> String {
    read("grafana/jobqueue.json")
}

fn alert_rules() -> String {
    read("prometheus/alerts.yml")
}

#[test]
fn dashboard_is_json_and_rules_have_names() {
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard()).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 5);
    assert!(alert_rules().matches("- alert: ").count() > 5);
}

#[test]
fn guide_names_the_series_of_each_state() {
    let guide = fs::read_to_string(home().join("../../jobqueue/src/docs/operating.md")).unwrap();
    let table: Vec<_> = guide.lines().filter(|line| line.contains("`jobqueue_queue_")).collect();
    let table = table.join("\n");
    assert_eq!(unknown(&table), Vec::<String>::new());
    for state in ["waiting", "in_flight", "delayed", "backing_off", "dead_letters", "length"] {
        assert!(table.contains(&format!("`jobqueue_queue_{state}`")), "{state}");
    }
}

#[test]
fn dashboard_and_rules_name_series_that_exist() {
    for text in [dashboard(), alert_rules()] {
        assert_eq!(unknown(&text), Vec::<String>::new());
    }
    assert_eq!(
        unknown("rate(jobqueue_deliveries_sum[5m]) + jobqueue_queue_length"),
        ["jobqueue_deliveries_sum"]
    );
}

#[test]
fn labels_in_the_queries_exist() {
    let selector = Regex::new(r"(jobqueue_[a-z_]+)\{([^}]*)\}").unwrap();
    let mut seen = 0;
    for text in [dashboard().replace("\\\"", "\""), alert_rules()] {
        for found in selector.captures_iter(&text) {
            let metric = ALL.iter().find(|metric| found[1].starts_with(&*metric.series())).unwrap();
            let label = found[2].split(['=', '!']).next().unwrap();
            assert!(metric.labels.contains(&label), "{}", &found[0]);
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen}");
}

/// A gauge that falls looks like a counter that was reset: `increase` would call it a rise.
#[test]
fn functions_in_the_queries_fit_the_kinds_of_the_metrics() {
    let call = Regex::new(r"\b(rate|increase|irate|delta|deriv)\((jobqueue_[a-z_]+)").unwrap();
    let mut seen = BTreeSet::new();
    for text in [dashboard(), alert_rules()] {
        for found in call.captures_iter(&text) {
            let of_gauge = ["delta", "deriv"].contains(&&found[1]);
            let series = ALL.iter().filter(|metric| found[2].starts_with(&*metric.series()));
            let metric = series.max_by_key(|metric| metric.series().len()).unwrap();
            assert_eq!(metric.kind == Kind::Gauge, of_gauge, "{}", &found[0]);
            seen.insert(found[1].to_owned());
        }
    }
    assert!(seen.contains("increase"), "{seen:?}");
}

/// The default context of an operator may be another storage than the one of the alert.
#[test]
fn alerts_name_their_storage_and_pass_it_to_their_commands() {
    let rules = alert_rules();
    let command = Regex::new(r"jobqueue [a-z]").unwrap();
    let (mut commands, mut summaries) = (0, 0);
    for line in rules.lines().map(str::trim) {
        if let Some(action) = line.strip_prefix("action: ") {
            assert!(!command.is_match(action), "{action}");
            commands +=
                action.matches("jobqueue{{ with $labels.storage }} --context {{ . }}{{ end }} ").count();
        }
        if let Some(summary) = line.strip_prefix("summary: ") {
            assert!(
                summary.contains("{{ with $labels.storage }}") || summary.contains("No exporter"),
                "{summary}"
            );
            summaries += 1;
        }
    }
    assert!(commands > 8 && summaries == rules.matches("- alert: ").count(), "{commands} {summaries}");
}

// D45
#[test]
fn each_alert_links_to_the_section_of_the_guide_that_names_it() {
    let guide = fs::read_to_string(home().join("../../jobqueue/src/docs/scaling.md")).unwrap();
    let (_, section) = guide.split_once("\n## The alerts\n").unwrap();
    let (section, _) = section.split_once("\n# ").unwrap();
    let link = "/jobqueue/src/docs/scaling.md#the-alerts'";
    for rule in alert_rules().split("- alert: ").skip(1) {
        let name = rule.lines().next().unwrap();
        assert!(rule.lines().any(|line| line.contains("runbook_url: ") && line.ends_with(link)), "{name}");
        assert!(section.contains(&format!("`{name}`")), "{name} is not in the guide");
    }
}

/// A scrape that fails ends the series: a `for` over them would begin anew each time.
#[test]
fn rules_that_hold_for_a_time_bridge_failed_scrapes() {
    let rules = alert_rules();
    let bare = Regex::new(r"jobqueue_[a-z_]+(\{[^}]*\})?([^\[{a-z_]|$)").unwrap();
    let mut seen = 0;
    for rule in rules.split("- alert: ").skip(1).filter(|rule| !rule.contains("for: 0m")) {
        let expression = rule.lines().find_map(|line| line.trim().strip_prefix("expr: '")).unwrap();
        // The rule about the absence itself.
        if !expression.starts_with("absent(") {
            assert!(!bare.is_match(expression.trim_end_matches('\'')), "{rule}");
            seen += 1;
        }
    }
    assert!(seen > 6, "{seen}");
}

/// Runs `promtool`, if it is installed. The workflow `ci` sets `JOBQUEUE_REQUIRE_PROMTOOL`, with which a test
/// fails where `promtool` is missing.
fn promtool(arguments: [&str; 3], folder: &Path) {
    match Command::new("promtool").args(arguments).current_dir(folder).output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
        }
        Err(error) => {
            let missing =
                format!("promtool cannot be started ({error}); `apt-get install prometheus` has it");
            assert!(std::env::var_os("JOBQUEUE_REQUIRE_PROMTOOL").is_none(), "{missing}");
            println!("skipped: {missing}");
        }
    }
}

// D45
#[test]
fn alerts_fire_in_incidents_and_only_then_where_promtool_is_installed() {
    let folder = home().join("prometheus");
    promtool(["check", "rules", "alerts.yml"], &folder);
    promtool(["test", "rules", "alerts_test.yml"], &folder);
}

#[test]
fn alerts_fire_although_every_fourth_scrape_fails() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("alerts.yml"), alert_rules()).unwrap();
    let values = Regex::new(r"values: '([^']*)'").unwrap();
    let incidents = read("prometheus/alerts_test.yml");
    let incidents =
        values.replace_all(&incidents, |found: &Captures<'_>| format!("values: '{}'", thinned(&found[1])));
    // The minutes for which an alert fires are others; the alerts are not.
    let minutes = Regex::new(r"value: [0-9]+\}").unwrap();
    let incidents = minutes.replace_all(&incidents, "value: 1}").replace("'sum by", "'group by");
    fs::write(folder.path().join("thinned_test.yml"), incidents).unwrap();
    promtool(["test", "rules", "thinned_test.yml"], folder.path());
}

/// Returns the samples of a series of `promtool` of which every fourth scrape has failed.
fn thinned(values: &str) -> String {
    let samples = values.split(' ').flat_map(repeated).enumerate();
    let kept = samples.map(|(scrape, sample)| if scrape % 4 == 2 { "stale".to_owned() } else { sample });
    kept.collect::<Vec<_>>().join(" ")
}

/// Returns the samples that an item stands for, as in `0`, `stale`, `_x3`, `5x60` and `0+10x30`.
fn repeated(item: &str) -> Vec<String> {
    let Some((sample, times)) = item.split_once('x') else { return vec![item.to_owned()] };
    let times: i64 = times.parse().unwrap();
    if sample == "_" {
        return vec![sample.to_owned(); usize::try_from(times).unwrap()];
    }
    let (first, step) = sample.split_once('+').unwrap_or((sample, "0"));
    let (first, step): (i64, i64) = (first.parse().unwrap(), step.parse().unwrap());
    (0..=times).map(|time| (first + step * time).to_string()).collect()
}
