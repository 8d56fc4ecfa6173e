//! The dashboard for Grafana, made from the list of metrics.

use serde_json::{Value, json};

use super::list::{self, Metric};

/// A panel: its title, unit, and queries. In a query `{}` is the name of the series.
struct Panel {
    title: &'static str,
    unit: &'static str,
    queries: &'static [(Metric, &'static str, &'static str)],
}

const PANELS: &[Panel] = &[
    Panel {
        title: "Jobs that wait",
        unit: "short",
        queries: &[(list::WAITING, r#"{}{queue=~"$queue"}"#, "{{queue}}")],
    },
    Panel {
        title: "Age of the oldest job that waits",
        unit: "s",
        queries: &[(list::OLDEST, r#"{}{queue=~"$queue"}"#, "{{queue}}")],
    },
    Panel {
        title: "Deliveries a second, by outcome",
        unit: "ops",
        queries: &[(
            list::DELIVERIES,
            r#"sum by (queue, outcome) (rate({}{queue=~"$queue"}[$__rate_interval]))"#,
            "{{queue}} {{outcome}}",
        )],
    },
    Panel {
        title: "Run time, 95th percentile",
        unit: "s",
        queries: &[(
            list::RUN_TIME,
            r#"histogram_quantile(0.95, sum by (queue, kind, le) (rate({}_bucket{queue=~"$queue"}[$__rate_interval])))"#,
            "{{queue}} {{kind}}",
        )],
    },
    Panel {
        title: "Messages in the queue, and jobs that run",
        unit: "short",
        queries: &[
            (list::LENGTH, r#"{}{queue=~"$queue"}"#, "{{queue}}: messages"),
            (list::IN_FLIGHT, r#"{}{queue=~"$queue"}"#, "{{queue}}: running"),
        ],
    },
    Panel {
        title: "Dead letters",
        unit: "short",
        queries: &[(list::DEAD, r#"{}{queue=~"$queue"}"#, "{{queue}}")],
    },
    Panel {
        title: "Workers, and those that the queue needs",
        unit: "short",
        queries: &[
            (list::WORKERS, r#"{}{queue=~"$queue"}"#, "{{queue}}: present"),
            (list::DESIRED, r#"{}{queue=~"$queue"}"#, "{{queue}}: needed"),
            (list::PRESENT, r#"{}{state="stale"}"#, "gone without a word"),
        ],
    },
    Panel {
        title: "Slots in use",
        unit: "percentunit",
        queries: &[(
            list::SLOTS,
            r#"sum by (queue) (jobqueue_queue_in_flight{queue=~"$queue"}) / sum by (queue) ({}{queue=~"$queue"} > 0)"#,
            "{{queue}}",
        )],
    },
    Panel {
        title: "Paused queues, and open circuits",
        unit: "short",
        queries: &[
            (list::PAUSED, r#"{}{queue=~"$queue"} > 0"#, "{{queue}}: paused"),
            (list::CIRCUITS, r#"{}{queue=~"$queue"} > 0"#, "{{queue}}: circuit open"),
        ],
    },
    Panel {
        title: "Reading the storage",
        unit: "s",
        queries: &[(list::SCRAPE_DURATION, "{}", "duration"), (list::SCRAPE_AGE, "{}", "age of the figures")],
    },
];

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
