/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Reliable datagrams: one server with one queue pair, and any number of clients without connections. Nothing is lost, whatever the network does.
 *
 *	DGIWARP_FAULT=drop=0.05,seed=1 ./reliable 18515
 *	./reliable 18515 127.0.0.1
 */
#include "example.h"

enum { CLIENTS = 8, ROW = 5000, ROOM = 64 };

/* Memory of the server: a counter of clients, and a row for each. */
static struct table {
	uint64_t clients;
	char rows[CLIENTS][ROW];
} table;

/* Memory of a client. */
struct client {
	struct ibv_qp *qp;
	uint64_t ticket;
	char row[ROW];
	char answer[ROOM];
};

static struct ibv_qp *reliable_qp(struct end *end, struct ibv_cq_ex *cq)
{
	struct dgiwarpdv_qp_init_attr rd = { .size = sizeof rd, .driver_qp_type = DGIWARPDV_QP_DRIVER_TYPE_RD };
	struct ibv_qp_init_attr_ex attr = ud_attr(end);

	attr.qp_type = IBV_QPT_DRIVER;
	attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(cq);
	attr.send_ops_flags |= IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	return ready(dgiwarpdv_create_qp(end->context, &attr, &rd));
}

static struct ibv_cq_ex *extended_cq(struct end *end)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 256, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(end->context, &attr);

	CHECK(cq);
	return cq;
}

/* Starts polling at the next completion. */
static void next(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int status;

	while ((status = ibv_start_poll(cq, &attr)) == ENOENT)
		;
	CHECK(status == 0);
}

/* The completion of a work request, which is to succeed. */
static void done(struct ibv_cq_ex *cq, enum ibv_wc_opcode opcode)
{
	next(cq);
	CHECK(cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == opcode);
	ibv_end_poll(cq);
}

/* Completions of work requests, which are to succeed, in any order. */
static void all_done(struct ibv_cq_ex *cq, int count)
{
	while (count--) {
		next(cq);
		CHECK(cq->status == IBV_WC_SUCCESS);
		ibv_end_poll(cq);
	}
}

static void post_recv(struct ibv_qp *qp, uint64_t id, void *addr, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)addr, ROOM, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void server(struct end *end)
{
	static char hellos[CLIENTS][ROOM];
	struct ibv_cq_ex *cq = extended_cq(end);
	struct ibv_qp *qp = reliable_qp(end, cq);
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_mr *mr = ibv_reg_mr(end->pd, &table, sizeof table, access);
	struct ibv_mr *own = ibv_reg_mr(end->pd, hellos, sizeof hellos, IBV_ACCESS_LOCAL_WRITE);
	int received = 0, answered = 0;

	CHECK(mr && own);
	for (int i = 0; i < CLIENTS; i++)
		post_recv(qp, i, hellos[i], own);
	tell(end, qp, mr->rkey, (uintptr_t)&table);

	while (received < CLIENTS || answered < CLIENTS) {
		next(cq);
		CHECK(cq->status == IBV_WC_SUCCESS);
		if (ibv_wc_read_opcode(cq) == IBV_WC_SEND) {
			ibv_end_poll(cq);
			answered++;
			continue;
		}

		/* Each message has its sender, to whom an answer goes without more ado. */
		struct dgiwarpdv_wc_source from = { .size = sizeof from };
		struct ibv_ah *ah = dgiwarpdv_wc_create_ah(cq, end->pd);
		unsigned int ticket = ntohl(ibv_wc_read_imm_data(cq));
		char *hello = hellos[cq->wr_id];

		CHECK(ah && dgiwarpdv_wc_source(cq, &from) == 0 && from.qpn == ibv_wc_read_src_qp(cq));
		/* Messages of a client are delivered in order: its row is there. */
		CHECK(ticket < CLIENTS && table.rows[ticket][0] == hello[0] && table.rows[ticket][ROW - 1] == hello[0]);
		printf("server: client %u says %.*s\n", ticket, (int)ibv_wc_read_byte_len(cq), hello);
		ibv_end_poll(cq);
		received++;

		ibv_wr_start(qpx);
		qpx->wr_id = 100;
		qpx->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(qpx);
		ibv_wr_set_inline_data(qpx, "welcome", 7);
		ibv_wr_set_ud_addr(qpx, ah, from.qpn, QKEY);
		CHECK(ibv_wr_complete(qpx) == 0);
		CHECK(ibv_destroy_ah(ah) == 0);
	}
	await(end);
	CHECK(table.clients == CLIENTS);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(own) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

/* Takes a ticket, writes a row, and announces it: three operations in order, the latter two at once. */
static void enter(struct client *client, struct ibv_cq_ex *cq, struct ibv_mr *mr, struct ibv_ah *ah, struct place there)
{
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(client->qp);
	char name[] = "a client";

	ibv_wr_start(qpx);
	qpx->wr_id = 1;
	qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_fetch_add(qpx, there.rkey, there.addr, 1);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)&client->ticket, sizeof client->ticket);
	ibv_wr_set_ud_addr(qpx, ah, there.qpn, QKEY);
	CHECK(ibv_wr_complete(qpx) == 0);
	done(cq, IBV_WC_FETCH_ADD);

	CHECK(client->ticket < CLIENTS);
	name[0] = 'A' + client->ticket;
	memset(client->row, name[0], ROW);
	ibv_wr_start(qpx);
	ibv_wr_rdma_write(qpx, there.rkey, there.addr + offsetof(struct table, rows) + client->ticket * ROW);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)client->row, ROW);
	ibv_wr_set_ud_addr(qpx, ah, there.qpn, QKEY);
	ibv_wr_send_imm(qpx, htonl(client->ticket));
	ibv_wr_set_inline_data(qpx, name, strlen(name));
	ibv_wr_set_ud_addr(qpx, ah, there.qpn, QKEY);
	CHECK(ibv_wr_complete(qpx) == 0);
	/* A completion of the Write and the Send means that they are placed at the server, whose answer may overtake their acknowledgement. */
	all_done(cq, 3);
	CHECK(!memcmp(client->answer, "welcome", 7));
}

/* A failure concerns the work requests to one peer: it has a status, and the queue pair works on. */
static void fail(struct client *client, struct ibv_cq_ex *cq, struct ibv_mr *mr, struct ibv_ah *ah, struct place there)
{
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(client->qp);
	struct dgiwarpdv_error error = { .size = sizeof error };

	ibv_wr_start(qpx);
	qpx->wr_id = 2;
	qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qpx, there.rkey ^ 0x5500, there.addr);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)client->row, 8);
	ibv_wr_set_ud_addr(qpx, ah, there.qpn, QKEY);
	CHECK(ibv_wr_complete(qpx) == 0);
	next(cq);
	CHECK(cq->status == IBV_WC_REM_ACCESS_ERR && cq->wr_id == 2);
	ibv_end_poll(cq);

	CHECK(dgiwarpdv_poll_error(client->qp, &error) == 1 && error.reason == DGIWARPDV_ERROR_TERMINATE);
	CHECK(error.qpn == there.qpn && !memcmp(&error.gid, &there.gid, sizeof error.gid));
	printf("client: a wrong rkey is refused (layer %u, type %u, code %u)\n", error.layer, error.error_type, error.code);
}

static void clients(struct end *end)
{
	static struct client all[CLIENTS];
	static struct table copy;
	struct ibv_mr *mr = ibv_reg_mr(end->pd, all, sizeof all, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *sink = ibv_reg_mr(end->pd, &copy, sizeof copy, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq_ex *cq = extended_cq(end);
	struct place there = hear(end);
	struct ibv_ah *ah = address_handle(end, there.gid);

	CHECK(mr && sink);
	/* They might be processes on as many hosts. */
	for (int i = 0; i < CLIENTS; i++) {
		all[i].qp = reliable_qp(end, cq);
		post_recv(all[i].qp, i, all[i].answer, mr);
		enter(&all[i], cq, mr, ah, there);
	}
	fail(&all[0], cq, mr, ah, there);

	/* The client that failed reads what all have written. */
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(all[0].qp);
	ibv_wr_start(qpx);
	qpx->wr_id = 3;
	qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_read(qpx, there.rkey, there.addr);
	ibv_wr_set_sge(qpx, sink->lkey, (uintptr_t)&copy, sizeof copy);
	ibv_wr_set_ud_addr(qpx, ah, there.qpn, QKEY);
	CHECK(ibv_wr_complete(qpx) == 0);
	done(cq, IBV_WC_RDMA_READ);
	CHECK(copy.clients == CLIENTS);
	for (int i = 0; i < CLIENTS; i++)
		CHECK(copy.rows[i][0] == 'A' + i && copy.rows[i][ROW - 1] == 'A' + i);
	printf("client: %d rows are there\n", CLIENTS);
	say(end);

	for (int i = 0; i < CLIENTS; i++)
		CHECK(ibv_destroy_qp(all[i].qp) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(sink) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

int main(int argc, char **argv)
{
	struct end end = open_end(argc, argv);

	if (argc == 2)
		server(&end);
	else
		clients(&end);
	close_end(&end);
	return 0;
}
