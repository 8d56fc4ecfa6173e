//! The files that are made from the list of metrics: Grafana's dashboard and Prometheus' alert rules.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use jobqueue_dashboard::metrics::{ALL, Kind, alert_rules, grafana_dashboard};
use regex::Regex;

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../jobqueue-dashboard")
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

fn compare(file: &str, wanted: &str) {
    let path = home().join(file);
    if env::var_os("JOBQUEUE_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, wanted).unwrap();
    }
    assert!(fs::read_to_string(&path).unwrap() == wanted, "{file}: accept by JOBQUEUE_BLESS=1");
}

fn dashboard() -> String {
    format!("{}\n", serde_json::to_string_pretty(&grafana_dashboard()).unwrap())
}

#[test]
fn dashboard_and_rules_are_made_from_the_list() {
    compare("grafana/jobqueue.json", &dashboard());
    compare("prometheus/alerts.yml", &alert_rules());
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
    assert!(seen.contains("increase") && seen.contains("delta"), "{seen:?}");
}

#[test]
fn promtool_accepts_the_rules_where_it_is_installed() {
    let rules = home().join("prometheus/alerts.yml");
    match Command::new("promtool").args(["check", "rules"]).arg(&rules).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            println!("skipped: promtool cannot be started ({error}); `apt-get install prometheus` has it")
        }
    }
}
