//! Items as JSON.

use dgiwarp_conform::trace::{Item, What};
use dgiwarp_conform::wire::hex;
use serde_json::{Map, Value, json};

use crate::text;

/// One item.
pub(crate) fn value(item: &Item<'_>, octets: bool) -> Value {
    let kind = match item.what {
        What::Startup { .. } => "startup",
        What::Fpdu(_) => "fpdu",
        What::Datagram(_) => "datagram",
        What::Finding(_) => "finding",
        What::Unjudged(_) => "unjudged",
    };
    let mut value = json!({
        "packet": item.packet,
        "at_ns": item.at,
        "from": item.from.to_string(),
        "to": item.to.to_string(),
        "kind": kind,
        "text": text::line(item),
    });
    if item.connection != 0 {
        value["connection"] = item.connection.into();
    }
    match item.what {
        What::Fpdu(seen) => value["crc"] = text::crc(seen).into(),
        What::Datagram(seen) => {
            value["crc"] = text::crc_of_datagram(seen).into();
            if let Some(comment) = seen.comment {
                value["comment"] = comment.into();
            }
        }
        What::Finding(finding) => {
            value["rule"] = finding.rule.id.into();
            value["clause"] = finding.rule.clause.into();
            value["keyword"] = finding.rule.keyword.to_string().into();
            value["detail"] = finding.detail.as_str().into();
        }
        What::Startup { .. } | What::Unjudged(_) => {}
    }
    let mut fields = Map::new();
    for (name, value) in text::fields(item) {
        add(&mut fields, name, value.into());
    }
    if !fields.is_empty() {
        value["fields"] = fields.into();
    }
    if octets {
        value["octets"] = hex(text::octets(item), usize::MAX).into();
    }
    value
}

/// Adds a field. Fields of frames of one type have the same names: their values are a list.
fn add(fields: &mut Map<String, Value>, name: &str, value: Value) {
    match fields.get_mut(name) {
        None => {
            fields.insert(name.to_owned(), value);
        }
        Some(Value::Array(list)) => list.push(value),
        Some(first) => *first = Value::Array(vec![first.take(), value]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_comes_again_is_a_list() {
        let mut fields = Map::new();
        add(&mut fields, "a", "1".into());
        for value in ["2", "3", "4"] {
            add(&mut fields, "b", value.into());
        }
        assert_eq!(
            Value::from(fields),
            json!({ "a": "1", "b": ["2", "3", "4"] })
        );
    }
}
