/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Errors of datagrams: the network reports that a port is closed, or the peer that it refused a message. Both reports enter the error queue, which raises an
 * asynchronous event. The queue pair stays ready to send.
 */
#include "example.h"

static char memory[64] = "nobody will have this";

static void target(struct end *end)
{
	struct dgiwarpdv_qp_init_attr records = { .size = sizeof records, .flags = DGIWARPDV_QP_RECORDS };
	struct ibv_qp_init_attr_ex attr = ud_attr(end);
	struct ibv_qp *qp = ready(dgiwarpdv_create_qp(end->context, &attr, &records));
	struct ibv_qp *gone = ready(ibv_create_qp_ex(end->context, &attr));

	/* No memory has this rkey, and no queue pair will have the second QPN. */
	tell(end, qp, 0x00bad000, 0);
	tell(end, gone, 0, 0);
	CHECK(ibv_destroy_qp(gone) == 0);
	say(end);
	await(end);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void write_to(struct ibv_qp *qp, struct ibv_mr *mr, struct ibv_ah *ah, struct place there)
{
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);

	ibv_wr_start(qpx);
	qpx->wr_flags = 0;
	ibv_wr_rdma_write(qpx, there.rkey, there.addr);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, sizeof memory);
	ibv_wr_set_ud_addr(qpx, ah, there.qpn, 0);
	CHECK(ibv_wr_complete(qpx) == 0);
}

/* Sleeps until there is an entry. An event is raised when an empty queue gets an entry, not for each entry. */
static struct dgiwarpdv_error next_error(struct end *end, struct ibv_qp *qp)
{
	struct dgiwarpdv_error error = { .size = sizeof error };
	struct ibv_async_event event;

	while (dgiwarpdv_poll_error(qp, &error) == 0) {
		CHECK(ibv_get_async_event(end->context, &event) == 0);
		CHECK(event.event_type == DGIWARPDV_EVENT_ERROR_QUEUE && event.element.qp == qp);
		ibv_ack_async_event(&event);
	}
	return error;
}

static void source(struct end *end)
{
	struct ibv_qp_init_attr_ex attr = ud_attr(end);
	struct ibv_qp *qp = ready(ibv_create_qp_ex(end->context, &attr));
	struct ibv_mr *mr = ibv_reg_mr(end->pd, memory, sizeof memory, 0);
	struct place there = hear(end), gone = hear(end);
	struct ibv_ah *ah = address_handle(end, there.gid);
	struct dgiwarpdv_error error;

	CHECK(mr);
	await(end);
	CHECK(dgiwarpdv_enable_events(end->context) == 0);

	/* ICMP reports that the port is closed. */
	write_to(qp, mr, ah, gone);
	error = next_error(end, qp);
	CHECK(error.reason == DGIWARPDV_ERROR_NETWORK && error.qpn == gone.qpn && error.network_errno == ECONNREFUSED);
	printf("source: QPN %u: %s\n", error.qpn, strerror(error.network_errno));

	/* Peers report errors to validated addresses only: spoofed addresses get no reports. */
	struct ibv_ah *proved = dgiwarpdv_prove_address(qp, ah, there.qpn, 30000);
	CHECK(proved);
	write_to(qp, mr, proved, there);
	error = next_error(end, qp);
	CHECK(error.reason == DGIWARPDV_ERROR_TERMINATE && error.qpn == there.qpn && error.has_message);
	printf("source: QPN %u refuses message %u: layer %u, type %u, code %u\n", error.qpn, error.message, error.layer,
	       error.error_type, error.code);

	CHECK(ibv_destroy_ah(proved) == 0 && ibv_destroy_ah(ah) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_qp(qp) == 0);
	say(end);
}

int main(int argc, char **argv)
{
	struct end end = open_end(argc, argv);

	if (argc == 2)
		target(&end);
	else
		source(&end);
	close_end(&end);
	return 0;
}
