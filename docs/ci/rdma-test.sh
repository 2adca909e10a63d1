#!/bin/sh
# Tests of RDMA programs on a machine without RDMA. dgiwarp-run has to be in PATH.
set -eu

# Runs a program as server, then as client of it. Arguments are those of both.
pair() {
    dgiwarp-run "$@" &
    server=$!
    tries=10
    until dgiwarp-run "$@" localhost; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || { kill "$server"; return 1; }
        sleep 1
    done
    wait "$server"
}

# The device that programs see.
dgiwarp-run ibv_devinfo

# Programs of your own go here: ./server, ./client, or a whole suite, as in `dgiwarp-run make check`.
pair ibv_rc_pingpong --iters=200
pair ibv_rc_pingpong --events --iters=200
pair ibv_ud_pingpong --iters=200

# A slow network: each datagram arrives a millisecond late. Loss is drop=0.01, for programs that expect it.
export DGIWARP_FAULT='delay=1ms,seed=1'
pair ibv_ud_pingpong --iters=50
