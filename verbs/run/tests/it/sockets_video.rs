//! Unmodified `ffmpeg` under `dgiwarp-run --sockets`: video over HTTP, and over RTP.

use crate::common::scene::{Family, Place, Scene};
use crate::common::session::{self, End, Ready};
use crate::common::{scratch, succeed};
use std::path::PathBuf;
use std::process::Command;

const INFO: &[(&str, &str)] = &[("DGIWARP_LOG", "info")];
const TAKES: &str = "takes datagrams by a queue pair";
const FFMPEG: (&str, &str) = ("ffmpeg", "ffmpeg");

/// Three seconds of video.
fn video(test: &str) -> PathBuf {
    let file = scratch(test).join("video.ts");
    let mut command = Command::new("ffmpeg");
    command.args("-loglevel error -y -f lavfi -i testsrc=size=320x240:rate=25 -t 3 -c:v mpeg2video -b:v 2M -g 12 -f mpegts".split(' '));
    succeed(command.arg(&file));
    file
}

/// The octets of all frames come by an upgraded connection as the file has them.
#[test]
fn a_video_is_fetched_by_http() {
    let test = "sockets_video_http";
    let Some(scene) = Scene::of(test, Place::Here, &[FFMPEG]) else {
        return;
    };
    let file = video(test);
    let mut local = Command::new("ffmpeg");
    local.args(["-loglevel", "error", "-i"]).arg(&file);
    local.args("-map 0:v -c copy -f md5 -".split(' '));
    let sum = String::from_utf8(succeed(&mut local).stdout).unwrap();
    let sum: &str = sum.trim().to_owned().leak();
    let ends = [
        End::server("--sockets ffmpeg -nostdin -loglevel error -i {program} -map 0:v -c copy -f mpegts -listen 1 http://{server}:{port}/v")
            .program(&file)
            .environment(INFO)
            .complains(&["takes rsockets", "connection from", "upgraded"])
            .ready(Ready::Complains("takes rsockets")),
        End::client("--sockets ffmpeg -nostdin -loglevel error -i http://{server}:{port}/v -map 0:v -c copy -f md5 -")
            .environment(INFO)
            .says(vec![sum].leak())
            .complains(&["connection to", "upgraded"]),
    ];
    session::run(&scene, Family::V4, &ends);
}

/// A player that joins a live stream gets frames of it by queue pairs.
#[test]
fn a_video_is_received_by_rtp() {
    let test = "sockets_video_rtp";
    let Some(scene) = Scene::of(test, Place::Here, &[FFMPEG]) else {
        return;
    };
    let ends = [
        End::server("--sockets ffmpeg -nostdin -loglevel error -analyzeduration 0 -probesize 50000 -i rtp://{server}:{port} -map 0:v -frames:v 20 -c copy -f framemd5 -")
            .environment(INFO)
            .says(&["#codec_id 0: mpeg2video"])
            .complains(&[TAKES, "datagrams of", "upgraded"])
            .ready(Ready::Complains(TAKES)),
        End::client("--sockets ffmpeg -nostdin -loglevel error -re -stream_loop 2 -i {program} -map 0:v -c copy -f rtp_mpegts rtp://{server}:{port}")
            .program(&video(test))
            .environment(INFO)
            .complains(&["datagrams of", "upgraded"]),
    ];
    session::run(&scene, Family::V4, &ends);
}
