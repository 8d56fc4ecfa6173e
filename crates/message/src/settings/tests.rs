//! Settings from metadata, good and bad.

use super::*;

fn resolve(metadata: Metadata) -> (QueueSettings, Vec<SettingWarning>) {
    QueueSettings::resolve(&metadata, &MessageDefaults::new(), &SettingOverrides::default())
}

#[test]
fn empty_metadata_gives_the_defaults() {
    let (settings, warnings) = resolve(Metadata::new());
    assert_eq!(settings.poison_threshold, 5);
    assert_eq!(settings.max_deliveries, 40);
    assert_eq!(settings.timeout, Duration::from_secs(30));
    assert!(!settings.paused);
    assert_eq!(settings.unknown_kind_timeout, Duration::from_secs(86_400));
    assert_eq!(settings.raw_version, None);
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn absurd_values_give_the_default_and_a_warning() {
    for bad in ["0", "-1", "99999999999999999999", "abc", "", "1.5", "1001"] {
        let (settings, warnings) = resolve(Metadata::new().with(POISON_THRESHOLD, bad));
        assert_eq!(settings.poison_threshold, 5, "{bad:?}");
        assert_eq!(warnings.len(), 1, "{bad:?}");
    }
    let (settings, warnings) = resolve(
        Metadata::new()
            .with(DEFAULT_TIMEOUT, "0")
            .with(MAX_DELIVERIES, "0")
            .with(MESSAGE_ENCODING, "utf7")
            .with(PAUSED, "maybe")
            .with(PAUSED_UNTIL, "tomorrow")
            .with(UNKNOWN_KIND_SECONDS, "0")
            .with(RAW_VERSION, "0"),
    );
    assert_eq!(settings, resolve(Metadata::new()).0);
    assert_eq!(warnings.len(), 7);
    let named = |warning: &&SettingWarning| {
        !warning.without_type().ends_with("of each message type is used, or the default")
    };
    let named: Vec<_> = warnings.iter().filter(named).map(SettingWarning::name).collect();
    assert_eq!(named, [UNKNOWN_KIND_SECONDS, MESSAGE_ENCODING, PAUSED, PAUSED_UNTIL, RAW_VERSION]);
}

#[test]
fn metadata_wins_over_the_type_and_the_process_over_both() {
    let metadata = Metadata::new().with("PoisonThreshold", " 7 ").with(PAUSED, "TRUE");
    let defaults = MessageDefaults::new().with_poison_threshold(3).with_lease(Duration::from_secs(60));
    let (settings, _) = QueueSettings::resolve(&metadata, &defaults, &SettingOverrides::default());
    assert_eq!(settings.poison_threshold, 7);
    assert_eq!(settings.timeout, Duration::from_secs(60));
    assert!(settings.paused);
    let until = resolve(Metadata::new().with(PAUSED, "true").with(PAUSED_UNTIL, "1970-01-01T00:01:00Z")).0;
    let after = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    assert!(until.is_paused(after(59)) && !until.is_paused(after(60)));
    let overrides = SettingOverrides { poison_threshold: Some(2), ..Default::default() };
    let (settings, _) = QueueSettings::resolve(&metadata, &defaults, &overrides);
    assert_eq!(settings.poison_threshold, 2);
    assert_eq!(settings.max_deliveries, 28);
    let all = SettingOverrides {
        timeout: Some(Duration::from_millis(1)),
        max_deliveries: Some(u32::MAX),
        ..Default::default()
    };
    let (settings, _) = QueueSettings::resolve(&metadata, &defaults, &all);
    assert_eq!(settings.timeout, Duration::from_secs(1));
    assert_eq!(settings.max_deliveries, 1_000_000);
}

#[test]
fn settings_of_types_are_no_entries_of_the_queue() {
    let names =
        |metadata| resolve(metadata).0.entries().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let of_types = QueueSettings::OF_TYPES;
    assert!(names(Metadata::new()).iter().all(|name| !of_types.contains(name)));
    let set = names(Metadata::new().with(POISON_THRESHOLD, "3").with(DEFAULT_TIMEOUT, "60"));
    assert!(of_types.iter().all(|name| set.contains(name)), "{set:?}");
}
