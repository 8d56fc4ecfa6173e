//! Checks JSON against `schema/output.schema.json`. Knows only the part of JSON Schema that the file uses,
//! and is stricter than JSON Schema: a field that the schema does not name is an error.

use serde_json::Value;

const SCHEMA: &str = include_str!("../../schema/output.schema.json");

pub(crate) fn check(definition: &str, document: &Value) {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let part = &schema["$defs"][definition];
    assert!(part.is_object(), "the schema has no {definition}");
    if let Err(problem) = matches(&schema, part, document, definition) {
        panic!("{problem}\nin {document:#}");
    }
}

fn matches(schema: &Value, part: &Value, value: &Value, place: &str) -> Result<(), String> {
    if let Some(reference) = part["$ref"].as_str() {
        let target = schema.pointer(reference.trim_start_matches('#')).unwrap();
        return matches(schema, target, value, place);
    }
    for choice in ["anyOf", "oneOf"] {
        if let Some(parts) = part[choice].as_array() {
            let fits = parts.iter().filter(|part| matches(schema, part, value, place).is_ok()).count();
            return if fits == 1 { Ok(()) } else { Err(format!("{place}: {fits} of the choices fit")) };
        }
    }
    if part.get("const").is_some_and(|constant| constant != value) {
        return Err(format!("{place} is not {}", part["const"]));
    }
    if part["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        return Err(format!("{place} is none of {}", part["enum"]));
    }
    let types: Vec<&str> = match &part["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().map(|name| name.as_str().unwrap()).collect(),
        _ => return Ok(()),
    };
    if !types.iter().any(|name| is(name, value)) {
        return Err(format!("{place} is not {types:?}"));
    }
    let items = value.as_array().into_iter().flatten();
    for (index, item) in items.enumerate() {
        matches(schema, &part["items"], item, &format!("{place}[{index}]"))?;
    }
    fields(schema, part, value, place)
}

fn fields(schema: &Value, part: &Value, value: &Value, place: &str) -> Result<(), String> {
    let Some(object) = value.as_object() else { return Ok(()) };
    for name in part["required"].as_array().into_iter().flatten() {
        if !object.contains_key(name.as_str().unwrap()) {
            return Err(format!("{place} lacks {name}"));
        }
    }
    for (name, field) in object {
        let part = part["properties"].get(name).or(part.get("additionalProperties"));
        let part = part.ok_or_else(|| format!("the schema does not name {place}.{name}"))?;
        matches(schema, part, field, &format!("{place}.{name}"))?;
    }
    Ok(())
}

fn is(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("the schema names the type {other}"),
    }
}
