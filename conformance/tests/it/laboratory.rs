//! Use of the tester by a laboratory: devices of revision 1, several devices, addresses and ports by request, selections, reports, and comparisons.

mod old_device;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::device::programs::{Server, agent, tester};
use old_device::OldDevice;

fn conform(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dgiwarp-conform"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A device that knows nothing of RFC 6581 is blamed for nothing, and cases about it are skipped with that reason.
#[test]
fn a_device_of_revision_1_is_judged_as_such() {
    let device = OldDevice::new();
    let folder = tempfile::tempdir().unwrap();
    let (junit, results) = (folder.path().join("x.xml"), folder.path().join("x.json"));
    let output = conform(&[
        "run",
        "--target",
        &device.address(),
        "--revision",
        "1",
        "--family",
        "startup,crc,enhanced,framing,rdmap,impairment",
        "--without",
        "M13",
        "--patience",
        "30",
        "--junit",
        junit.to_str().unwrap(),
        "--json",
        results.to_str().unwrap(),
    ]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}{output:?}");
    let results: Value = serde_json::from_str(&read(&results)).unwrap();
    let of = |id: &str| {
        let mut cases = results["cases"].as_array().unwrap().iter();
        cases.find(|case| case["case"] == id).unwrap().clone()
    };
    assert_eq!(of("M01")["outcome"], "pass");
    assert_eq!(of("E01")["outcome"], "pass");
    let reason = "about enhanced startup (RFC 6581), which revision 1 does not have";
    for case in ["E03", "E05", "E08", "E12"] {
        assert_eq!(of(case)["outcome"], "skipped", "{case}");
        assert_eq!(of(case)["reason"], reason);
    }
    assert_eq!(results["options"]["revision"], 1);
    assert!(text.contains(&format!("\n  {reason}: E03, ")), "{text}");
    assert!(read(&junit).contains(&format!("<skipped message=\"{reason}\"/>")));
}

/// A run that ends because the device is of revision 1 gives that hint, and lists the cases that did not run.
#[test]
fn a_run_that_ends_by_the_revision_gives_a_hint() {
    let device = OldDevice::new();
    let output = conform(&[
        "run",
        "--target",
        &device.address(),
        "--case",
        "M09,M10,F04",
        "--patience",
        "1",
        "--json",
        "-",
    ]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let results = json(&output);
    let hint = results["hint"].as_str().unwrap();
    assert!(hint.contains("--revision 1"), "{hint}");
    assert!(String::from_utf8_lossy(&output.stderr).contains(hint));
    let last = &results["cases"][2];
    assert_eq!(last["outcome"], "skipped");
    assert_eq!(
        last["reason"],
        "the device accepts no good connection since M09"
    );
}

/// Control and RDMA have an address each, and ports are those that were asked for.
#[test]
fn addresses_and_ports_are_by_request() {
    let child = agent(&[])
        .args(["-a", "127.0.0.2", "-c", "127.0.0.1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let server = Server::of_agent(child).unwrap();
    // Below the ports that the system gives to others.
    let (rdma, own) = (21_740, 21_760);
    let run = conform(&[
        "run",
        "--agent",
        &server.address(),
        "--token",
        &server.token,
        "--rdma-port",
        &rdma.to_string(),
        "--listen-port",
        &own.to_string(),
        "--case",
        "M01,M20,D01",
        "--patience",
        "30",
        "--json",
        "-",
    ]);
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    let results = json(&run);
    assert_eq!(results["target"], format!("127.0.0.2:{rdma}"));
    assert_eq!(results["control"], server.address());
    for case in results["cases"].as_array().unwrap() {
        assert_eq!(case["outcome"], "pass", "{case:#}");
    }
}

#[test]
fn a_device_with_an_ipv6_address_is_tested_in_both_roles_and_transports() {
    let child = agent(&[])
        .args(["-a", "::1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let server = Server::of_agent(child).unwrap();
    let address = server.address().replace("127.0.0.1", "[::1]");
    let run = tester(&[
        "--agent",
        &address,
        "--token",
        &server.token,
        "--case",
        "M01,C03,T02,R05,M20,E20,N02,D01,D06",
    ]);
    assert_eq!(run.status, Some(0), "{}", run.report());
    for case in ["M01", "T02", "M20", "D06"] {
        assert_eq!(run.outcome(case), "pass", "{case}");
    }
}

/// Two devices, one of which is not there: the other is tested, and all reports have both.
#[test]
fn several_devices_are_in_one_report() {
    let (first, second) = (OldDevice::new(), OldDevice::faulty());
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let output = conform(&[
        "run",
        "--target",
        &first.address(),
        "--target",
        &second.address(),
        "--device",
        "first & foremost",
        "--device",
        "second",
        "--revision",
        "1",
        "--case",
        "M01,M02",
        "--patience",
        "5",
        "--progress",
        "always",
        "--json",
        &file("x.json"),
        "--junit",
        &file("x.xml"),
        "--html",
        &file("x.html"),
        "--pcap",
        &file("pcap"),
    ]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(progress.contains("[2/2] FAIL     M02"), "{progress}");
    let results: Value = serde_json::from_str(&read(Path::new(&file("x.json")))).unwrap();
    let runs = results["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[0]["cases"][1]["outcome"], "pass");
    assert_eq!(runs[1]["cases"][1]["outcome"], "fail");
    let trial = &runs[1]["cases"][1]["trials"][0];
    let sequence = trial["sequence"].as_array().unwrap();
    assert!(
        sequence[0]["what"].as_str().unwrap().contains("wrong key"),
        "{trial:#}"
    );
    assert_eq!(sequence[1]["from"], "device");
    let junit = read(Path::new(&file("x.xml")));
    assert_eq!(junit.matches("<testsuite ").count(), 2, "{junit}");
    let page = read(Path::new(&file("x.html")));
    assert_eq!(page.matches("<article>").count(), 2);
    assert!(page.contains("first &amp; foremost"));
    assert!(page.contains("<svg") && page.contains("M02"));
    // Self-contained: nothing is fetched.
    assert!(!page.contains("src=") && !page.contains("<script") && !page.contains("url("));
    assert!(Path::new(&file("pcap/2/M02.pcapng")).is_file());
    assert!(!Path::new(&file("pcap/1/M02.pcapng")).exists());
}

#[test]
fn results_of_two_runs_are_compared() {
    let device = OldDevice::new();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let run = |device: &OldDevice, to: &str| {
        conform(&[
            "run",
            "--target",
            &device.address(),
            "--revision",
            "1",
            "--case",
            "M01,M02,M03",
            "--patience",
            "5",
            "--json",
            to,
        ])
    };
    let (one, two, other) = (file("1.json"), file("2.json"), file("3.json"));
    run(&device, &one);
    run(&device, &two);
    run(&OldDevice::faulty(), &other);
    let equal = conform(&["compare", &one, &two]);
    assert_eq!(equal.status.code(), Some(0), "{equal:?}");
    let different = conform(&["compare", &one, &other, "--json"]);
    assert_eq!(different.status.code(), Some(1), "{different:?}");
    let differences = json(&different);
    let of = |case: &str| {
        let all = differences[0]["differences"].as_array().unwrap();
        all.iter().filter(|one| one["case"] == case).count()
    };
    assert!(of("M02") > 1 && of("M01") == 0, "{differences:#}");
    // A difference that the profile knows to vary is named apart.
    let profile = file("profile.json");
    let entry = r#"{"device":"x","expected":[{"case":"M02","trial":"*","seen":"MPA Reply*","varies":true,"why":"it has moods"}]}"#;
    std::fs::write(&profile, entry).unwrap();
    let known = conform(&["compare", &one, &other, "--profile", &profile]);
    assert_eq!(known.status.code(), Some(0), "{known:?}");
    let text = String::from_utf8_lossy(&known.stdout);
    assert!(
        text.contains("known to vary:") && text.contains("because it has moods"),
        "{text}"
    );
    let wrong = conform(&["compare", &one, &file("none.json")]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}

#[test]
fn cases_are_listed_and_selected_for_programs() {
    let all = json(&conform(&["list", "--json"]));
    for case in all.as_array().unwrap() {
        for field in ["case", "about", "family", "role", "needs", "level"] {
            assert!(
                case[field].as_str().is_some_and(|text| !text.is_empty()),
                "{case}"
            );
        }
        assert!(case["version"].as_u64() >= Some(1) && case["may_crash"].is_boolean());
    }
    let some = json(&conform(&[
        "list",
        "--json",
        "--clause",
        "5044-7.1.2",
        "--level",
        "should",
    ]));
    let some = some.as_array().unwrap();
    assert!(!some.is_empty() && some.iter().all(|case| case["level"] == "should"));
    for wrong in [
        ["--clause", "5044-99"],
        ["--without", "Z99"],
        ["--case", "Z99"],
    ] {
        let output = conform(&["list", wrong[0], wrong[1]]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

/// Faults before the first case have messages of their own.
#[test]
fn messages_tell_the_token_the_agent_and_the_port_apart() {
    let server = Server::agent(&[]);
    let said = |arguments: &[&str]| {
        let output = conform(&[&["run", "--case", "M01", "--patience", "1"], arguments].concat());
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let token = said(&["--agent", &server.address(), "--token", "00"]);
    assert!(token.contains("does not take this token"), "{token}");
    let nobody = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let agent = said(&["--agent", &nobody, "--token", "00"]);
    assert!(agent.contains("no agent listens there"), "{agent}");
    let port = said(&["--target", &nobody]);
    assert!(port.contains("nobody listens there"), "{port}");
    // A port at which something else listens than iWARP.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let other = said(&["--target", &address]);
    assert!(other.contains("accepts no RDMA connection"), "{other}");
}
