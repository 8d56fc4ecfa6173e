//! The dashboard for Grafana, made from the list of metrics.

use serde_json::{Value, json};

use super::list::{self, Metric};

/// A panel: its title, unit, and queries.
struct Panel {
    title: &'static str,
    unit: &'static str,
    queries: &'static [Query],
}

/// A metric, the query in which `{}` is the name of its series, and the legend.
type Query = (Metric, &'static str, &'static str);

/// The query for a series of the selected queues, unchanged.
const SELECTED: &str = r#"{}{queue=~"$queue"}"#;

/// The query for a series of the selected queues, where it is not 0.
const POSITIVE: &str = r#"{}{queue=~"$queue"} > 0"#;

const PANELS: &[Panel] = &[
    panel("Jobs that wait", "short", &[(list::WAITING, SELECTED, "{{queue}}")]),
    panel("Age of the oldest job that waits", "s", &[(list::OLDEST, SELECTED, "{{queue}}")]),
    panel(
        "Deliveries a second, by outcome",
        "ops",
        &[(
            list::DELIVERIES,
            r#"sum by (queue, outcome) (rate({}{queue=~"$queue"}[$__rate_interval]))"#,
            "{{queue}} {{outcome}}",
        )],
    ),
    panel(
        "Run time, 95th percentile",
        "s",
        &[(
            list::RUN_TIME,
            r#"histogram_quantile(0.95, sum by (queue, kind, le) (rate({}_bucket{queue=~"$queue"}[$__rate_interval])))"#,
            "{{queue}} {{kind}}",
        )],
    ),
    panel(
        "Messages in the queue, and jobs that run",
        "short",
        &[(list::LENGTH, SELECTED, "{{queue}}: messages"), (list::IN_FLIGHT, SELECTED, "{{queue}}: running")],
    ),
    panel("Dead letters", "short", &[(list::DEAD, SELECTED, "{{queue}}")]),
    panel(
        "Workers, and those that the queue needs",
        "short",
        &[
            (list::WORKERS, SELECTED, "{{queue}}: present"),
            (list::DESIRED, SELECTED, "{{queue}}: needed"),
            (list::PRESENT, r#"{}{state="stale"}"#, "gone without a word"),
        ],
    ),
    panel(
        "Slots in use",
        "percentunit",
        &[(
            list::SLOTS,
            r#"sum by (queue) (jobqueue_queue_in_flight{queue=~"$queue"}) / sum by (queue) ({}{queue=~"$queue"} > 0)"#,
            "{{queue}}",
        )],
    ),
    panel(
        "Paused queues, and open circuits",
        "short",
        &[
            (list::PAUSED, POSITIVE, "{{queue}}: paused"),
            (list::CIRCUITS, POSITIVE, "{{queue}}: circuit open"),
        ],
    ),
    panel(
        "Reading the storage",
        "s",
        &[(list::SCRAPE_DURATION, "{}", "duration"), (list::SCRAPE_AGE, "{}", "age of the figures")],
    ),
];

const fn panel(title: &'static str, unit: &'static str, queries: &'static [Query]) -> Panel {
    Panel { title, unit, queries }
}

/// Returns the dashboard for Grafana 10 or newer, to import as it is. It asks for the data source.
pub fn grafana_dashboard() -> Value {
    let panels: Vec<Value> = PANELS.iter().enumerate().map(|(number, panel)| panel.json(number)).collect();
    let queues = format!("label_values({}, queue)", list::LENGTH.series());
    json!({
        "title": "jobqueue",
        "uid": "jobqueue",
        "description": "Queues, jobs and workers of one storage of jobqueue.",
        "tags": ["jobqueue"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
            {
                "name": "queue", "label": "Queue", "type": "query", "multi": true, "includeAll": true,
                "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "refresh": 2, "sort": 1,
                "datasource": source(), "definition": queues,
                "query": {"query": queues, "refId": "queues"},
            },
        ]},
        "panels": panels,
    })
}

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

impl Panel {
    fn json(&self, number: usize) -> Value {
        let targets = self.queries.iter().zip('A'..).map(|((metric, query, legend), id)| {
            json!({
                "refId": id,
                "datasource": source(),
                "expr": query.replace("{}", &metric.series()),
                "legendFormat": legend,
            })
        });
        json!({
            "id": number + 1,
            "type": "timeseries",
            "title": self.title,
            "datasource": source(),
            "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number / 2)},
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0}, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": true}},
            "targets": targets.collect::<Vec<_>>(),
        })
    }
}
