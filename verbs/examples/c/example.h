/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Common parts of the examples: opening the device, moving a UD queue pair to RTS, and exchanging QPN, address and rkey with the other end over a TCP connection.
 * The queue pairs use the addresses of that connection.
 *
 *	EXAMPLE PORT		the one end, which listens there
 *	EXAMPLE PORT HOST	the other end
 *
 * Build one with: cc -o write_record write_record.c $(pkg-config --cflags --libs dgiwarp)
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/dgiwarpdv.h>

#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno));                \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

enum { QKEY = 0x1ee7 };

/* Message to the other end, in network byte order. */
struct place {
	union ibv_gid gid;
	uint32_t qpn;
	uint32_t rkey;
	uint64_t addr;
};

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	/* Our address as a GID, and its index in the GID table. */
	union ibv_gid gid;
	int gid_index;
	/* The TCP connection to the other end. */
	int tcp;
};

static inline int meet(const char *port, const char *host)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE, .ai_family = AF_INET }, *found;
	int fd, on = 1;

	if (host)
		hints.ai_family = AF_UNSPEC;
	CHECK(getaddrinfo(host, port, &hints, &found) == 0);
	CHECK((fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
	if (host) {
		CHECK(connect(fd, found->ai_addr, found->ai_addrlen) == 0);
	} else {
		int listener = fd;
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		CHECK(bind(listener, found->ai_addr, found->ai_addrlen) == 0 && listen(listener, 1) == 0);
		CHECK((fd = accept(listener, NULL, NULL)) >= 0);
		close(listener);
	}
	freeaddrinfo(found);
	return fd;
}

/* GID and index of our address on the TCP connection. */
static inline void find_gid(struct end *end)
{
	struct sockaddr_storage own;
	socklen_t length = sizeof own;
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	CHECK(getsockname(end->tcp, (struct sockaddr *)&own, &length) == 0);
	if (own.ss_family == AF_INET)
		memcpy(gid.raw + 12, &((struct sockaddr_in *)&own)->sin_addr, 4);
	else
		memcpy(gid.raw, &((struct sockaddr_in6 *)&own)->sin6_addr, 16);
	for (end->gid_index = 0;; end->gid_index++) {
		CHECK(ibv_query_gid(end->context, 1, end->gid_index, &end->gid) == 0);
		if (!memcmp(&end->gid, &gid, sizeof gid))
			return;
	}
}

static inline struct end open_end(int argc, char **argv)
{
	struct end end;
	struct ibv_device **list;

	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: %s PORT [HOST]\n", argv[0]);
		exit(2);
	}
	CHECK((list = ibv_get_device_list(NULL)) && list[0]);
	CHECK((end.context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	CHECK((end.pd = ibv_alloc_pd(end.context)));
	CHECK((end.cq = ibv_create_cq(end.context, 64, NULL, NULL, 0)));
	end.tcp = meet(argv[1], argc == 3 ? argv[2] : NULL);
	find_gid(&end);
	return end;
}

static inline void close_end(struct end *end)
{
	CHECK(ibv_destroy_cq(end->cq) == 0);
	CHECK(ibv_dealloc_pd(end->pd) == 0);
	CHECK(ibv_close_device(end->context) == 0);
	close(end->tcp);
}

static inline struct ibv_qp_init_attr_ex ud_attr(struct end *end)
{
	return (struct ibv_qp_init_attr_ex){
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.qp_type = IBV_QPT_UD,
		.pd = end->pd,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
				  IBV_QP_EX_WITH_RDMA_READ,
	};
}

/* Moves a UD queue pair to RTS. */
static inline struct ibv_qp *ready(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .port_num = 1, .qkey = QKEY };

	CHECK(qp);
	attr.qp_state = IBV_QPS_INIT;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	return qp;
}

static inline struct ibv_ah *address_handle(struct end *end, union ibv_gid gid)
{
	struct ibv_ah_attr attr = {
		.is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = end->gid_index, .hop_limit = 1 },
	};
	struct ibv_ah *ah = ibv_create_ah(end->pd, &attr);

	CHECK(ah);
	return ah;
}

static inline void tell(struct end *end, struct ibv_qp *qp, uint32_t rkey, uint64_t addr)
{
	struct place place = { end->gid, htonl(qp->qp_num), htonl(rkey), htobe64(addr) };

	CHECK(write(end->tcp, &place, sizeof place) == sizeof place);
}

static inline struct place hear(struct end *end)
{
	struct place place;

	CHECK(recv(end->tcp, &place, sizeof place, MSG_WAITALL) == sizeof place);
	place.qpn = ntohl(place.qpn);
	place.rkey = ntohl(place.rkey);
	place.addr = be64toh(place.addr);
	return place;
}

/* Signals the other end; await waits for that, or for the end of the connection. */
static inline void say(struct end *end)
{
	CHECK(write(end->tcp, "!", 1) == 1);
}

static inline void await(struct end *end)
{
	char sign;

	CHECK(read(end->tcp, &sign, 1) >= 0);
}

/* Polls for the next completion, for half a minute at most. */
static inline struct ibv_wc next_wc(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	CHECK(dgiwarpdv_wait_cq(cq, 30000, 1, &wc) == 1);
	return wc;
}
