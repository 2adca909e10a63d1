/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Restricted regions: for one peer, for peers with a validated address, or with a well-known rkey for messages to a group.
 */
#include "example.h"

enum { SLOT = 4096, WELL_KNOWN = 0x4711 };

/* ::ffff:239.192.18.14 */
static const union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 239, [13] = 192, [14] = 18, [15] = 14 } };

static char memory[3][SLOT];

static struct ibv_mr *region(struct end *end, int which, uint32_t flags, struct place peer)
{
	struct dgiwarpdv_mr_init_attr attr = {
		.size = sizeof attr,
		.addr = memory[which],
		.length = SLOT,
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
		.flags = flags,
		.peer_gid = peer.gid,
		.peer_qpn = peer.qpn,
		.well_known = WELL_KNOWN,
	};
	struct ibv_mr *mr = dgiwarpdv_reg_mr(end->pd, &attr);

	CHECK(mr);
	return mr;
}

static uint64_t counted(struct ibv_qp *qp, enum dgiwarpdv_counter counter)
{
	uint64_t values[DGIWARPDV_COUNTERS];

	CHECK(dgiwarpdv_query_counters(qp, values, DGIWARPDV_COUNTERS) > 0);
	return values[counter];
}

static void target(struct end *end)
{
	struct dgiwarpdv_qp_init_attr records = { .size = sizeof records, .flags = DGIWARPDV_QP_RECORDS };
	struct ibv_qp_init_attr_ex attr = ud_attr(end);
	struct ibv_qp *qp = ready(dgiwarpdv_create_qp(end->context, &attr, &records));
	struct place source = hear(end);
	/* The first region is for the queue pair of the data source. */
	struct ibv_mr *one = region(end, 0, DGIWARPDV_MR_ONLY_FROM, source);
	/* The second region is for validated addresses. */
	struct ibv_mr *proved = region(end, 1, DGIWARPDV_MR_COOKIE, source);
	/* All members of a group have an equal rkey, and addresses from 0 on. */
	struct ibv_mr *known = region(end, 2, DGIWARPDV_MR_WELL_KNOWN | DGIWARPDV_MR_IOVA, source);

	CHECK(known->rkey == WELL_KNOWN);
	CHECK(ibv_attach_mcast(qp, &group, 0) == 0);
	tell(end, qp, one->rkey, (uintptr_t)memory[0]);
	tell(end, qp, proved->rkey, (uintptr_t)memory[1]);

	for (int i = 0; i < 3; i++) {
		struct ibv_wc wc = next_wc(end->cq);
		struct dgiwarpdv_record_info info = { .size = sizeof info };
		CHECK(wc.opcode == DGIWARPDV_WC_WRITE_RECORD && dgiwarpdv_record_info(qp, wc.wr_id, &info) == 0);
		CHECK(info.qpn == source.qpn && info.valid == info.length);
		printf("target: \"%s\" at rkey %#x\n", memory[i], info.rkey);
		CHECK(dgiwarpdv_record_release(qp, wc.wr_id) == 0);
	}
	CHECK(counted(qp, DGIWARPDV_DROPPED_WRONG_PEER) == 1 && counted(qp, DGIWARPDV_DROPPED_BAD_COOKIE) == 1);
	printf("target: two others were not let in\n");
	CHECK(ibv_detach_mcast(qp, &group, 0) == 0);
	CHECK(ibv_dereg_mr(one) == 0 && ibv_dereg_mr(proved) == 0 && ibv_dereg_mr(known) == 0 && ibv_destroy_qp(qp) == 0);
}

static void write_text(struct end *end, struct ibv_qp *qp, struct ibv_ah *ah, struct place there, const char *text)
{
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);

	ibv_wr_start(qpx);
	qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qpx, there.rkey, there.addr);
	ibv_wr_set_inline_data(qpx, (void *)text, strlen(text) + 1);
	ibv_wr_set_ud_addr(qpx, ah, there.qpn, 0);
	CHECK(ibv_wr_complete(qpx) == 0);
	CHECK(next_wc(end->cq).status == IBV_WC_SUCCESS);
}

static void source(struct end *end)
{
	struct ibv_qp_init_attr_ex attr = ud_attr(end);
	attr.cap.max_inline_data = 64;
	struct ibv_qp *qp = ready(ibv_create_qp_ex(end->context, &attr));
	struct ibv_qp *stranger = ready(ibv_create_qp_ex(end->context, &attr));

	tell(end, qp, 0, 0);
	struct place one = hear(end), proved = hear(end);
	struct ibv_ah *ah = address_handle(end, one.gid);
	write_text(end, stranger, ah, one, "from a stranger");
	write_text(end, qp, ah, one, "from the one peer");

	/* One round trip, without the peer's program. */
	struct ibv_ah *with_cookie = dgiwarpdv_prove_address(qp, ah, proved.qpn, 30000);
	CHECK(with_cookie);
	write_text(end, qp, ah, proved, "without a cookie");
	write_text(end, qp, with_cookie, proved, "with a cookie");

	/* To all members at once. */
	struct ibv_ah *members = address_handle(end, group);
	struct place everywhere = { .qpn = 0xffffff, .rkey = WELL_KNOWN, .addr = 0 };
	write_text(end, qp, members, everywhere, "to the group");

	await(end);
	CHECK(ibv_destroy_ah(members) == 0 && ibv_destroy_ah(with_cookie) == 0 && ibv_destroy_ah(ah) == 0);
	CHECK(ibv_destroy_qp(stranger) == 0 && ibv_destroy_qp(qp) == 0);
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
