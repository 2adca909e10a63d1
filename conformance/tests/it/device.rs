//! The tester, as the program that it is, against our own stack under programs that know nothing of it.

pub(crate) mod programs;

use programs::{Server, tester};

/// The other persona, with Markers and without CRCs of its own.
const IWARP: &[(&str, &str)] = &[
    ("DGIWARP_PERSONA", "iwarp"),
    ("DGIWARP_MARKERS", "1"),
    ("DGIWARP_CRC", "0"),
];

/// Black box: rping serves whoever comes. Cases that need an agent are skipped; none fails.
#[test]
fn rping_passes() {
    if xtask::debian::find_program("rping").is_none() {
        return xtask::skips::skip(
            "rping_passes",
            "rping is missing (Debian package rdmacm-utils)",
        );
    }
    for environment in [&[][..], &[("DGIWARP_MARKERS", "1")]] {
        let server = Server::rping(environment);
        let run = tester(&["--target", &server.address(), "--allow-crash"]);
        assert_eq!(run.status, Some(0), "{}", run.report());
        assert_eq!(run.outcome("M02"), "pass");
        assert_eq!(run.outcome("C03"), "pass");
        let markers = if environment.is_empty() {
            "skipped"
        } else {
            "pass"
        };
        assert_eq!(run.outcome("K02"), markers);
    }
}

/// CRCs within this host too, as between hosts: without them C20, a SHOULD, has a finding.
const CRC: &[(&str, &str)] = &[("DGIWARP_CRC", "1")];

const IWARP_WITH_CRC: &[(&str, &str)] = &[IWARP[0], IWARP[1], CRC[0]];

/// Everything, both roles and both transports, with the agent.
fn passes(environment: &[(&str, &str)], more: &[&str]) {
    let agent = Server::agent(environment);
    let address = agent.address();
    let options = [
        "--agent",
        &address,
        "--token",
        &agent.token,
        "--allow-crash",
    ];
    let run = tester(&[&options, more].concat());
    assert_eq!(run.status, Some(0), "{environment:?} {}", run.report());
    let found: Vec<_> = run.found().collect();
    let wanted = if environment.contains(&CRC[0]) {
        &[][..]
    } else {
        &["C20(deviates)"]
    };
    assert_eq!(found, wanted, "{environment:?}");
    let some = [
        "M21", "T02", "U05", "R06", "A02", "I03", "E11", "E20", "R40", "A07", "N02", "N05", "D06",
        "D08", "D19", "D23",
    ];
    for case in some {
        assert_eq!(run.outcome(case), "pass", "{environment:?} {case}");
    }
}

#[test]
fn our_stack_passes_as_programs_for_infiniband_find_it() {
    passes(&[], &[]);
}

#[test]
fn our_stack_passes_as_programs_for_iwarp_find_it_with_markers() {
    passes(IWARP, &[]);
}

/// Long cases too, again and again, with other patterns of loss each time.
#[test]
#[ignore = "half an hour"]
fn soak_our_stack_passes_again_and_again() {
    std::thread::scope(|scope| {
        for environment in [CRC, IWARP_WITH_CRC] {
            scope.spawn(move || {
                for seed in 1..=10 {
                    let seed = seed.to_string();
                    passes(
                        environment,
                        &["--slow", "--patience", "30", "--seed", &seed],
                    );
                    eprintln!("{environment:?}, seed {seed}: nothing found");
                }
            });
        }
    });
}

/// Long cases, beside the others.
#[test]
fn our_stack_ends_startups_that_never_end() {
    let agent = Server::agent(&[]);
    let run = tester(&[
        "--agent",
        &agent.address(),
        "--token",
        &agent.token,
        "--slow",
        "--case",
        "M41",
    ]);
    assert_eq!(run.status, Some(0), "{}", run.report());
    assert_eq!(run.outcome("M41"), "pass");
}

/// Without our header it is a C file like others.
#[test]
fn the_agent_compiles_with_nothing_but_the_verbs() {
    let folder = tempfile::tempdir().unwrap();
    programs::compile(&folder.path().join("agent"), &[]);
}

/// All of the loopback network is the host's, and one address of it alone has a GID.
#[test]
fn the_agent_serves_datagrams_at_any_loopback_address() {
    let agent = Server::agent_at("127.0.0.2");
    let cases = ["M01", "D01", "D16", "D18", "D20", "D27"];
    let run = tester(&[
        "--agent",
        &agent.address(),
        "--token",
        &agent.token,
        "--case",
        &cases.join(","),
    ]);
    assert_eq!(run.status, Some(0), "{}", run.report());
    for case in cases {
        assert_eq!(run.outcome(case), "pass", "{case}");
    }
}

/// A client without the token gets nothing, and the one that has it finds the agent there afterwards.
#[test]
fn the_agent_wants_its_token() {
    let agent = Server::agent(&[]);
    let address = agent.address();
    let run = |token: &str| tester(&["--agent", &address, "--token", token, "--case", "M01"]);
    let stranger = run("00");
    assert_eq!(stranger.status, Some(3), "{}", stranger.report());
    drop(std::net::TcpStream::connect(&address).unwrap());
    let own = run(&agent.token);
    assert_eq!(own.status, Some(0), "{}", own.report());
}

/// A port behind which nobody speaks iWARP is no device.
#[test]
fn who_does_not_speak_iwarp_is_no_device() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    drop(listener);
    let run = tester(&["--target", &to, "--case", "M01", "--patience", "1"]);
    assert_eq!(run.status, Some(3), "{}", run.report());
}
