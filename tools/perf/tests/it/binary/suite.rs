//! Two quantities of the suite, in rounds too short for figures: what is written, and where it is judged.

use serde_json::Value;

use super::{perf, run, scratch, stderr, turn};

#[test]
fn a_suite_writes_what_it_measured_and_why_it_did_not() {
    let _turn = turn();
    let folder = scratch("suite");
    let output = perf(
        "--suite --quick --rounds 2 --only rate-list,loss-goodput,loss-valid --json s.json --html s.html",
    )
    .current_dir(&folder)
    .output()
    .expect("the program starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("rate-list: 64-octet messages"), "{table}");

    let json = std::fs::read(folder.join("s.json")).expect("the document");
    let document: Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(document["schema"], 1);
    let rows = document["rows"].as_array().expect("rows");
    // Four operations in lists, and four shares of loss for each of two quantities.
    assert_eq!(rows.len(), 12, "{table}");
    for row in rows {
        assert!(row["figure"].as_f64() > Some(0.0), "{row}");
        assert!(row["missing"].is_null(), "{row}");
        if row["quantity"] == "loss-valid" {
            assert!(row["figure"].as_f64() <= Some(1.0), "{row}");
        }
    }
    let groups = document["groups"].as_array().expect("groups");
    let names: Vec<&str> = groups
        .iter()
        .filter_map(|it| it["group"].as_str())
        .collect();
    assert_eq!(names, ["lo rate list", "lo loss ud write-record 64K"]);
    for member in groups
        .iter()
        .flat_map(|it| it["members"].as_array().expect("members"))
    {
        assert_eq!(
            member["rounds"].as_array().map(Vec::len),
            Some(2),
            "{member}"
        );
    }
    let html = std::fs::read_to_string(folder.join("s.html")).expect("the report");
    assert!(html.contains("<table>") && !html.contains("http"), "{html}");
}

#[test]
fn a_suite_lists_its_quantities_and_refuses_others() {
    let listed = run("--suite --list");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("thesis-latency"), "{listed}");
    for wrong in ["--suite --only nothing", "--suite --op send", "--only rate"] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong}");
    }
}
