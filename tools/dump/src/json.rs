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
    let fields: Map<_, _> = (text::fields(item).into_iter())
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    if !fields.is_empty() {
        value["fields"] = fields.into();
    }
    if octets {
        value["octets"] = hex(text::octets(item), usize::MAX).into();
    }
    value
}
