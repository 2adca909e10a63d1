/* A peer in another process that is killed. */
#include "session.h"
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>

extern char **environ;
static char **own_arguments;

/* Message `number` of an end that follows a script: both processes compute it. */
static struct message scripted(uint64_t seed, uint32_t number)
{
	uint64_t key = mix(seed + 31 * number);
	return (struct message) { .kind = SEND, .length = key % 7 ? key % 600 : key % slot, .key = key };
}

static void post_scripted(struct end *end, uint64_t seed)
{
	uint32_t seq = end->posted;
	struct message message = scripted(seed, seq);
	fill(staging_of(end, seq), message.length, message.key);
	*op_of(end, seq) = (struct op) { .kind = SEND, .length = message.length, .signaled = 1 };
	struct ibv_sge sge = { (uintptr_t)staging_of(end, seq), message.length, end->staging_mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id(end, 0, seq), .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	end->posted++;
	SURE(ibv_post_send(end->qp, &wr, &bad) == 0);
}

/* What the other process needs of this end, on a line. */
static void exchange(FILE *to, FILE *from, struct end *end, struct ibv_qp *other)
{
	fprintf(to, "%u\n", end->qp->qp_num);
	fflush(to);
	char line[64];
	SURE(fgets(line, sizeof line, from));
	other->qp_num = strtoul(line, NULL, 10);
}

/* One end of a connection to another process, whose messages are known when they come. */
static struct round *half_a_round(uint64_t seed)
{
	round_seed = random_state = seed;
	slot = 4096;
	struct round *round = calloc(1, sizeof *round);
	SURE(round);
	round->count = 1;
	round->cqs[0] = round->cqs[1] = ibv_create_cq(context, 256, NULL, NULL, 0);
	SURE(round->cqs[0]);
	make_end(round, 0, IBV_QPT_RC, NULL);
	begin(&round->ends[0]);
	return round;
}

/* The next messages that may come: as many as there are receives. */
static void expect_messages(struct end *end, uint64_t others)
{
	struct end *peer = end->peer;
	for (; peer->sent_count < MESSAGES && peer->sent_count < end->received + RECEIVES; peer->sent_count++)
		peer->sent[peer->sent_count] = scripted(others, peer->sent_count);
}

static void follow_script(struct round *round, uint64_t own, uint64_t others, int most)
{
	struct end *end = &round->ends[0];
	for (; most > 0 && end->posted - end->done < DEPTH && (!terminates || end->posted < end->received + 1); most--)
		post_scripted(end, own);
	post_receives(end, RECEIVES);
	expect_messages(end, others);
	poll_queues(round);
}

static void be_killed(uint64_t seed)
{
	/* Not even a failure of the other process leaves this one behind. */
	SURE(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	struct round *round = half_a_round(seed);
	struct ibv_qp other = {};
	exchange(stdout, stdin, &round->ends[0], &other);
	connect_with_receives(&round->ends[0], &other);
	double limit = seconds() + PATIENCE;
	while (seconds() < limit && round->ends[0].received < MESSAGES && round->ends[0].posted < MESSAGES)
		follow_script(round, seed, seed + 1, 4);
	pause_ms(PATIENCE * 1000);
}

static void run_killed_round(uint64_t seed)
{
	psn_shift = 0;
	struct round *round = half_a_round(seed);
	struct end *end = &round->ends[0];
	int down[2], up[2];
	pid_t victim;
	char text[32], *arguments[16] = { own_arguments[0], own_arguments[1], "victim", text };
	snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
	for (int i = 4; own_arguments[i] && own_arguments[i + 1] && i < 14; i++)
		arguments[i] = own_arguments[i + 1];
	SURE(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
	posix_spawn_file_actions_t actions;
	SURE(posix_spawn_file_actions_init(&actions) == 0);
	SURE(posix_spawn_file_actions_adddup2(&actions, down[0], 0) == 0 && posix_spawn_file_actions_adddup2(&actions, up[1], 1) == 0);
	SURE(posix_spawn(&victim, "/proc/self/exe", &actions, NULL, arguments, environ) == 0);
	posix_spawn_file_actions_destroy(&actions);
	close(down[0]);
	close(up[1]);
	FILE *to = fdopen(down[1], "w"), *from = fdopen(up[0], "r");
	SURE(to && from);
	struct ibv_qp other = {};
	exchange(to, from, end, &other);
	connect_with_receives(end, &other);
	double kill_at = seconds() + below(300) / 1000.0;
	while (seconds() < kill_at && end->received < MESSAGES - RECEIVES && end->posted < MESSAGES - 2 * DEPTH)
		follow_script(round, seed + 1, seed, 4);
	/* It may be killed before anything else. */
	expect_messages(end, seed);
	end->is_over = 1;
	SURE(kill(victim, SIGKILL) == 0);
	SURE(waitpid(victim, NULL, 0) == victim);
	/* Without a request that needs the peer, an end whose connection never came up waits on, as on InfiniBand. */
	if (end->posted == end->done)
		post_scripted(end, seed + 1);
	double dead_since = seconds();
	while (end->done != end->posted || end->pool->count > 0) {
		poll_queues(round);
		if (seconds() > dead_since + PATIENCE / 3)
			stuck(round);
	}
	drop_end(end, 0);
	fclose(to);
	fclose(from);
	hear(round, 1);
	SURE(ibv_destroy_cq(round->cqs[0]) == 0);
	free(round);
}
