#!/bin/bash
# Reliable datagrams beside TCP, UD and RC of the same machine, over the relay of `cargo xtask lab`, a veth pair and loopback. Rows are single runs in turns, and one
# line each. As root, with iperf3 and perftest; before: cargo build --release -p dgiwarp-perf -p dgiwarp-run && cargo build -p xtask
# Arguments: the rows (loss, long, tail, flows, incast, veth, latency; all of them without any). TURNS: runs of each, 3 by default.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
perf=$root/target/release/dgiwarp-perf
run=$root/target/release/dgiwarp-run
lab=$root/target/debug/xtask
turns=${TURNS:-3}

# field TRANSPORT NAME: a number of the row of this transport, from JSON on standard input.
field() {
	awk -v want="\"$1\"," -v name="\"$2\":" '$1 == "\"transport\":" { on = $2 == want } on && $1 == name { gsub(",", "", $2); value = $2 } END { print value }'
}

# row "LAB OPTIONS" TRANSPORT FIELD PERF-OPTION…: a number of a run over the link.
row() {
	local link=$1 transport=$2 name=$3
	shift 3
	timeout 120 "$lab" lab $link --wait-port 18515 -- "$perf" server --token lab -- "$perf" client 10.99.0.1 --token lab --rounds 1 --wait block --json - \
		--transport "$transport" "$@" 2>/dev/null | field "$transport" "$name"
}

# tcp "LAB OPTIONS" ALGORITHM: Gbit/s of iperf3 with this congestion control, which is read back, and large buffers.
tcp() {
	local sizes='sysctl -qw net.ipv4.tcp_rmem="4096 131072 67108864" net.ipv4.tcp_wmem="4096 65536 67108864"'
	timeout 60 "$lab" lab $1 --wait-port 5201 -- bash -c "$sizes; iperf3 -s -1 >/dev/null" -- bash -c "$sizes; iperf3 -c 10.99.0.1 -C $2 -t 10 -J" 2>/dev/null |
		awk -v want="\"$2\"" '/"sum_received"/ { on = 1 } on && $1 == "\"bits_per_second\":" { gsub(",", "", $2); value = $2 / 1e9; on = 0 }
			$1 == "\"sender_tcp_congestion\":" { gsub(",", "", $2); used = $2 } END { print used == want ? value : "other congestion control" }'
}

loss() {
	local link="--delay 100us --rate 200mbit --queue 256k --seed $1"
	local load=(--op send --mode bw --size 64K --iters 900 --window 1M)
	local whole part
	whole=$(row "$link" rd gbps "${load[@]}")
	for percent in 0.1 1 5; do
		part=$(row "$link --loss $percent%" rd gbps "${load[@]}")
		awk -v p=$percent -v w="$whole" -v g="$part" 'BEGIN { printf "loss %s %%: %.4f Gbit/s, %.3f of (1 - loss) of %.4f\n", p, g, g / w / (1 - p / 100), w }'
	done
}

long() {
	local link="--delay 25ms --rate 1gbit --queue 3m --loss 1%,0% --seed $1"
	local rd cubic bbr
	rd=$(row "$link" rd gbps --op send --mode bw --size 1M --iters 1000 --window 16M)
	cubic=$(tcp "$link" cubic)
	bbr=$(tcp "$link" bbr)
	awk -v r="$rd" -v c="$cubic" -v b="$bbr" 'BEGIN { printf "50 ms, 1 %%, 1 Gbit/s: %.3f Gbit/s, CUBIC %.4f (%.0f times), BBR %.3f (%.2f times)\n", r, c, r / c, b, r / b }'
}

tail() {
	local p50 p99
	p99=$(row "--delay 100us --loss 1% --seed $1" rd p99_us --op send --mode lat --size 64 --iters 5000)
	p50=$(row "--delay 100us --loss 1% --seed $1" rd p50_us --op send --mode lat --size 64 --iters 5000)
	awk -v m="$p50" -v p="$p99" 'BEGIN { printf "64 bytes, 0.2 ms, 1 %%: half round trip %.1f us, 99th percentile of the round trip %.2f ms of %.2f\n", m, 2 * p / 1000, (6 * m + 1000) / 1000 }'
}

# together COUNT "LAB OPTIONS" ITERATIONS: flows over one bottleneck, each between two processes of perftest's, which measure nothing else beside.
together() {
	local out servers= clients= last=$((18999 + $1))
	local program="env DGIWARP_RC=rd timeout 180 $run ib_send_bw -e -s 65536 -n $3"
	out=$(mktemp -d)
	for port in $(seq 19000 $last); do
		servers+="$program -p $port >/dev/null 2>&1 & "
		clients+="$program -p $port 10.99.0.1 >$out/$port 2>&1 & "
	done
	timeout 200 "$lab" lab $2 --wait-port $last -- bash -c "$servers wait" -- bash -c "sleep 3; $clients wait" >/dev/null 2>&1 || true
	awk -v of="$1" '$1 == 65536 { rate = $4 * 0.008388608; n++; sum += rate; squares += rate * rate; if (n == 1 || rate < least) least = rate }
		END { if (n == 0) { printf "0 of %d flows ended well\n", of; exit }
			printf "%d of %d flows ended well: %.4f Gbit/s in all, the slowest %.4f, index of Jain %.3f\n", n, of, sum, least, sum * sum / n / squares }' "$out"/*
	rm -r "$out"
}

flows() {
	together 10 "--delay 5ms --rate 100mbit --queue 250k --seed $1" 250
}

incast() {
	together 64 "--delay 100us --rate 200mbit --queue 256k --seed $1" 100
}

veth() {
	local rd record cpu other
	rd=$(row "" rd gbps --op send --mode bw --size 1M)
	record=$(row "" ud gbps --op write-record --mode bw --size 1M)
	cpu=$(row "" rd cpu_s_per_gib --op send --mode bw --size 1M)
	other=$(row "" ud cpu_s_per_gib --op write-record --mode bw --size 1M)
	awk -v r="$rd" -v w="$record" -v c="$cpu" -v o="$other" \
		'BEGIN { printf "veth, 1 MiB: %.2f Gbit/s, %.2f of Write-Record; CPU seconds per GiB %.2f, %.2f of Write-Record\n", r, r / w, c, c / o }'
}

latency() {
	local size of
	for size in 64 1K; do
		for of in rd ud rc; do
			printf -v "$of" %s "$("$perf" --transport $of --op send --mode lat --size $size --rounds 3 --json - --html /dev/null 2>/dev/null | field $of p50_us)"
		done
		awk -v s=$size -v r="$rd" -v u="$ud" -v c="$rc" 'BEGIN { printf "half round trip, %s: %.2f us, %.2f of UD, %.2f of RC\n", s, r, r / u, r / c }'
	done
}

rows=${*:-loss long tail flows incast veth latency}
echo "load $(cut -d' ' -f1-3 /proc/loadavg)"
for turn in $(seq "$turns"); do
	for of in $rows; do "$of" "$turn"; done
done
echo "load $(cut -d' ' -f1-3 /proc/loadavg)"
