/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Direct verbs of the dgiwarp software RNIC: what its datagrams can do and the verbs have no words for.
 *
 * On UD queue pairs, dgiwarp writes and reads the memory of any peer without a connection. An RDMA Write to an address is a
 * Write-Record: its segments are placed as they come, whatever is lost or out of order, and the target gets a completion for the message with a
 * map of what is valid. An RDMA Read has a deadline, and at its end a map of what came. Nothing that goes wrong ends a queue pair.
 *
 * Sending needs nothing of this header:
 *
 *	ibv_wr_start(qpx);
 *	qpx->wr_id = 1;
 *	qpx->wr_flags = IBV_SEND_SIGNALED;
 *	ibv_wr_rdma_write(qpx, rkey, remote_addr);	or ibv_wr_rdma_write_imm, ibv_wr_rdma_read
 *	ibv_wr_set_sge(qpx, lkey, addr, length);
 *	ibv_wr_set_ud_addr(qpx, ah, qpn, 0);
 *	ibv_wr_complete(qpx);
 *
 * on a UD queue pair made by ibv_create_qp_ex with IBV_QP_EX_WITH_RDMA_WRITE and its like among send_ops_flags. ibv_post_send cannot say it, because
 * struct ibv_send_wr has the address handle and the remote address in the same place: it answers EINVAL.
 *
 * Receiving needs a queue pair that was made by dgiwarpdv_create_qp.
 *
 * Building: cc app.c $(pkg-config --cflags --libs dgiwarp). The functions have the symbol version DGIWARP_1.0 of libibverbs.so.1 as dgiwarp has it;
 * rdma-core's has none of them. A program that shall also run on hardware defines DGIWARPDV_WEAK before it includes this header and is linked
 * with -libverbs alone. Then it starts without them too, and they are NULL:
 *
 *	if (dgiwarpdv_is_supported && dgiwarpdv_is_supported(device))
 *
 * Functions that return an int return -1 and set errno when they fail. Structs that begin with size get there what sizeof says of them: what an older
 * library does not know of a longer struct must be zero (else EOPNOTSUPP), and what a newer one knows beyond it takes its default, or is not
 * told. Zero is the default of every field. QPNs are UDP ports. Examples are in verbs/examples/c; dgiwarpdv(7) tells it all in order.
 */
#ifndef INFINIBAND_DGIWARPDV_H
#define INFINIBAND_DGIWARPDV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface, major << 16 | minor. Minor versions only add; dgiwarpdv_version tells that of the library. */
#define DGIWARPDV_VERSION 0x00010000u

#ifdef DGIWARPDV_WEAK
#define DGIWARPDV_API __attribute__((weak))
#else
#define DGIWARPDV_API
#endif

/* The version of the interface that the library has. */
DGIWARPDV_API uint32_t dgiwarpdv_version(void);

/* Whether the device is one of dgiwarp's, for which alone the functions here work. */
DGIWARPDV_API bool dgiwarpdv_is_supported(struct ibv_device *device);

/* ---- Queue pairs ---- */

/*
 * Opcodes of completions on the receive side. Both have IBV_WC_RECV set, and consume no posted receive.
 *
 * DGIWARPDV_WC_WRITE_RECORD: a Write-Record is complete, or no more of it is waited for. wr_id is the record, byte_len how many bytes of it are valid, src_qp
 * the writer's QPN, and imm_data the immediate if wc_flags has IBV_WC_WITH_IMM. The status is always success: what is missing is in the map.
 *
 * DGIWARPDV_WC_RECORD_SEGMENT: byte_len bytes of a record became valid, where DGIWARPDV_QP_SEGMENT_COMPLETIONS asks for it; vendor_err tells where they
 * begin in the message. The record is still open, or complete with this segment; it completes by itself.
 */
#define DGIWARPDV_WC_WRITE_RECORD IBV_WC_DRIVER1
#define DGIWARPDV_WC_RECORD_SEGMENT IBV_WC_DRIVER2

enum dgiwarpdv_qp_flags {
	/* Takes Write-Records. Without it they are dropped and counted (DGIWARPDV_DROPPED_WRITE_RECORD_OFF). */
	DGIWARPDV_QP_RECORDS = 1 << 0,
	/* Each placed segment makes a completion, for targets that start before everything has come. */
	DGIWARPDV_QP_SEGMENT_COMPLETIONS = 1 << 1,
};

struct dgiwarpdv_qp_init_attr {
	size_t size;
	/* enum dgiwarpdv_qp_flags */
	uint32_t flags;
	/* Records kept at most, until they are released: up to 65536, by default 256. The receive CQ gets as many entries more. What comes when all are in use
	 * is placed but not recorded (DGIWARPDV_DROPPED_RECORD_DROPPED, DGIWARPDV_EVENT_RECORD_RING_FULL). */
	uint32_t record_slots;
	/* Entries that the receive CQ gets for segments: up to 65536, by default 1024. A segment that finds none is not reported, but in the map. */
	uint32_t segment_slots;
	/* A record completes when nothing came for so many milliseconds; by default what DGIWARP_RECORD_TIMEOUT_MS says. */
	uint32_t record_timeout_ms;
	/* It also completes when a message of the same source comes that is so many messages newer: 1 to 1023, by default 64. */
	uint32_t reorder_window;
	/* UD: the time for Reads that name none, in milliseconds; by default what DGIWARP_READ_TIMEOUT_MS says. */
	uint32_t read_timeout_ms;
	/* Bytes that may leave per second, headers included; by default what DGIWARP_MAX_RATE says. Nobody slows a writer down but this: a message that is
	 * longer than the target's receive buffer arrives whole only at a rate that the target keeps up with. */
	uint64_t max_rate;
	/* UD and UC: address and UDP port to bind, for firewalls; the port will be the QPN. EADDRINUSE if it is taken. */
	const struct sockaddr *bind_addr;
	socklen_t bind_addr_len;
};

/*
 * As ibv_create_qp_ex(3), for UD and UC queue pairs with more than the verbs can say. Made without send_ops_flags, such a queue pair only receives
 * Write-Records, besides what ibv_post_send can do. dv may be NULL. EOPNOTSUPP for other types of queue pairs, unless all of dv is default.
 */
DGIWARPDV_API struct ibv_qp *dgiwarpdv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
						 const struct dgiwarpdv_qp_init_attr *dv);

struct dgiwarpdv_qp_attr {
	size_t size;
	/* The receive buffer of its socket as the kernel counts, with its own overhead. A quarter of it in flight is never lost for lack of room. */
	uint64_t receive_buffer;
};

/* What the verbs do not tell of a UD or UC queue pair. attr->size is set before. */
DGIWARPDV_API int dgiwarpdv_query_qp(struct ibv_qp *qp, struct dgiwarpdv_qp_attr *attr);

/* Changes how many bytes may leave per second; 0 is no limit. UD and UC. */
DGIWARPDV_API int dgiwarpdv_set_max_rate(struct ibv_qp *qp, uint64_t bytes_per_second);

/* ---- Completions ---- */

/*
 * As ibv_poll_cq(3), but waits for the first completion, asleep: at most timeout_ms milliseconds, or without end if it is negative. Returns the number of
 * completions, 0 when the time is over. -1 with EINTR when a signal handler ran first. A point of cancellation.
 */
DGIWARPDV_API int dgiwarpdv_wait_cq(struct ibv_cq *cq, int timeout_ms, int num_entries, struct ibv_wc *wc);

/* ---- Records: the target's side of Write-Records ---- */

/* Bytes from start on, end excluded, counted from the beginning of the message. */
struct dgiwarpdv_range {
	uint32_t start;
	uint32_t end;
};

/* No map has more ranges. */
#define DGIWARPDV_MAX_RANGES 64

enum dgiwarpdv_record_flags {
	/* imm_data came with the message. */
	DGIWARPDV_RECORD_WITH_IMM = 1 << 0,
};

struct dgiwarpdv_record_info {
	size_t size;
	/* Where the message begins, in the address space of the region written to. */
	uint64_t remote_addr;
	/* The region's rkey. */
	uint32_t rkey;
	/* Bytes of the whole message. */
	uint32_t length;
	/* Bytes of it that are valid. */
	uint32_t valid;
	/* In how many ranges they lie. */
	uint32_t num_ranges;
	/* enum dgiwarpdv_record_flags */
	uint32_t flags;
	/* In network byte order, as in struct ibv_wc. */
	__be32 imm_data;
	/* Who wrote: address, QPN and, for a link-local address, the interface. */
	union ibv_gid gid;
	uint32_t qpn;
	uint32_t scope_id;
};

/*
 * What is known of a record. record is the wr_id of a completion, qp the queue pair with its qp_num. Open records may be looked at too, of which
 * completions of segments tell. info->size is set before. ENOENT once the record was released.
 */
DGIWARPDV_API int dgiwarpdv_record_info(struct ibv_qp *qp, uint64_t record, struct dgiwarpdv_record_info *info);

/* The valid ranges, ascending and apart: writes up to max of them and returns how many there are. */
DGIWARPDV_API int dgiwarpdv_record_ranges(struct ibv_qp *qp, uint64_t record, struct dgiwarpdv_range *ranges, int max);

/*
 * The same as bits: bit i % 8 of byte i / 8 is set if bytes i * granule to (i + 1) * granule of the message are all valid. Writes up to size
 * bytes, zero beyond the bitmap's end, and returns how many bytes the bitmap has. EINVAL if granule is 0.
 */
DGIWARPDV_API int dgiwarpdv_record_bitmap(struct ibv_qp *qp, uint64_t record, uint32_t granule, void *bitmap, size_t size);

/* Gives the place of a completed record back. ENOENT if it was given back. */
DGIWARPDV_API int dgiwarpdv_record_release(struct ibv_qp *qp, uint64_t record);

/* Completes all open records of a queue pair with what is valid now. What comes later of them is dropped before it is placed. */
DGIWARPDV_API int dgiwarpdv_record_complete_now(struct ibv_qp *qp);

/* ---- Work requests, between ibv_wr_start and ibv_wr_complete, as ibv_wr_post(3) has it ---- */

/*
 * A Write-Record. On UD it is the same as ibv_wr_rdma_write and ibv_wr_rdma_write_imm; on UC, where those are plain Writes that leave no record, this makes one.
 * For queue pairs made with IBV_QP_EX_WITH_RDMA_WRITE or IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.
 */
DGIWARPDV_API void dgiwarpdv_wr_write_record(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr);
DGIWARPDV_API void dgiwarpdv_wr_write_record_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, __be32 imm_data);

/* Gives the ibv_wr_rdma_read before it a time limit of its own; UD. */
DGIWARPDV_API void dgiwarpdv_wr_set_read_timeout(struct ibv_qp_ex *qp, uint32_t timeout_ms);

/* ---- Reads that failed ---- */

/*
 * A Read on UD that is not complete in time ends with IBV_WC_RESP_TIMEOUT_ERR; vendor_err is the errno that the network reported of the peer
 * meanwhile, if it did. What came is in place. This tells what that is, once for each such Read, the latest if several had this wr_id: writes up to max ranges, of
 * at most DGIWARPDV_MAX_RANGES, and the bytes asked for to length unless it is NULL. Returns how many ranges there are. ENOENT if no Read with this wr_id
 * failed; the latest 256 are remembered.
 */
DGIWARPDV_API int dgiwarpdv_take_read_map(struct ibv_qp *qp, uint64_t wr_id, uint32_t *length, struct dgiwarpdv_range *ranges,
					  int max);

/* Makes a bitmap of ranges, of a message of length bytes, as dgiwarpdv_record_bitmap does. */
DGIWARPDV_API int dgiwarpdv_bitmap(uint32_t length, const struct dgiwarpdv_range *ranges, int num_ranges, uint32_t granule,
				   void *bitmap, size_t size);

/* ---- The error queue ---- */

enum dgiwarpdv_error_reason {
	/* The peer refused the message with a Terminate message (RFC 5040, section 4.8): layer, error_type and code say why. */
	DGIWARPDV_ERROR_TERMINATE = 1,
	/* The network reported an error: network_errno is ECONNREFUSED where no queue pair has that QPN, EHOSTUNREACH and the like. */
	DGIWARPDV_ERROR_NETWORK = 2,
};

struct dgiwarpdv_error {
	size_t size;
	/* enum dgiwarpdv_error_reason; later versions may know more. */
	uint32_t reason;
	/* Where the message went. */
	uint32_t qpn;
	union ibv_gid gid;
	uint32_t scope_id;
	/* Whether message tells which one it was, in the numbering of the wire that DGIWARP_PCAP shows. */
	uint32_t has_message;
	uint32_t message;
	int32_t network_errno;
	uint8_t layer;
	uint8_t error_type;
	uint8_t code;
	uint8_t reserved[5];
};

/*
 * What peers and the network reported of messages that were sent earlier, oldest first: a datagram's sender learns of trouble here, and its queue pair goes
 * on. Returns 1 with an entry, 0 if there is none. error->size is set before. 256 entries are kept; those that find no room are counted
 * (DGIWARPDV_ERRORS_LOST). UD and UC.
 */
DGIWARPDV_API int dgiwarpdv_poll_error(struct ibv_qp *qp, struct dgiwarpdv_error *error);

/*
 * Event types of ibv_get_async_event(3), about element.qp, for contexts that dgiwarpdv_enable_events was called for. Acknowledge them as others.
 *
 * DGIWARPDV_EVENT_ERROR_QUEUE: the error queue was empty and has an entry.
 * DGIWARPDV_EVENT_RECORD_RING_FULL: a Write-Record found all places for records in use. Told once, until a place was free.
 */
#define DGIWARPDV_EVENT_ERROR_QUEUE ((enum ibv_event_type)30)
#define DGIWARPDV_EVENT_RECORD_RING_FULL ((enum ibv_event_type)31)

/* From now on ibv_get_async_event brings these too, for all queue pairs of the context. */
DGIWARPDV_API int dgiwarpdv_enable_events(struct ibv_context *context);

/* ---- Memory ---- */

enum dgiwarpdv_mr_flags {
	/* Peers and work requests address the region from iova on, instead of by its address in this process. */
	DGIWARPDV_MR_IOVA = 1 << 0,
	/* Only the queue pair with this address and QPN may write or read it; others are dropped (DGIWARPDV_DROPPED_WRONG_PEER). */
	DGIWARPDV_MR_ONLY_FROM = 1 << 1,
	/* Only who has proved that it receives where it sends from may write it (DGIWARPDV_DROPPED_BAD_COOKIE). */
	DGIWARPDV_MR_COOKIE = 1 << 2,
	/* The rkey is the one in well_known, if it is free (else EADDRINUSE). Only such regions can be written by what is sent to a group, because all members must
	 * have the same rkey. It is as good as public: such a region should be one of its own. */
	DGIWARPDV_MR_WELL_KNOWN = 1 << 3,
};

struct dgiwarpdv_mr_init_attr {
	size_t size;
	void *addr;
	size_t length;
	uint64_t iova;
	/* enum ibv_access_flags, as for ibv_reg_mr(3). */
	uint32_t access;
	/* enum dgiwarpdv_mr_flags */
	uint32_t flags;
	/* The peer of DGIWARPDV_MR_ONLY_FROM; scope_id is the interface of a link-local address. */
	union ibv_gid peer_gid;
	uint32_t peer_qpn;
	uint32_t peer_scope_id;
	/* The rkey of DGIWARPDV_MR_WELL_KNOWN; neither 0 nor all ones. */
	uint32_t well_known;
	uint32_t reserved;
};

/*
 * As ibv_reg_mr(3), with restrictions or a chosen rkey; ibv_dereg_mr ends it. Restricted regions are for datagrams: connected peers cannot write them, and
 * ibv_rereg_mr lifts the restrictions.
 */
DGIWARPDV_API struct ibv_mr *dgiwarpdv_reg_mr(struct ibv_pd *pd, const struct dgiwarpdv_mr_init_attr *attr);

/*
 * Gets the cookie of a peer, in one round trip that its program has no part in, and returns a copy of the address handle that carries it: what this queue pair
 * writes with that to this peer may enter regions with DGIWARPDV_MR_COOKIE. The cookie is of this queue pair, address and QPN, until the peer's queue pair
 * is made anew. ibv_destroy_ah ends the copy. ETIMEDOUT without an answer in timeout_ms milliseconds. UD.
 */
DGIWARPDV_API struct ibv_ah *dgiwarpdv_prove_address(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, int timeout_ms);

/* ---- Counters ---- */

/*
 * What queue pairs count: places in the array that the two functions fill. Their order is fixed; later versions add some at the end. DROPPED are segments, by
 * the reason why they were dropped, and at the end some that were not, but counted.
 */
enum dgiwarpdv_counter {
	/* Segments handed to the network. */
	DGIWARPDV_SEGMENTS_SENT,
	/* Octets of payload in them. */
	DGIWARPDV_OCTETS_SENT,
	/* Segments received and used. */
	DGIWARPDV_SEGMENTS_RECEIVED,
	/* Octets of them, headers included. */
	DGIWARPDV_OCTETS_RECEIVED,
	/* Octets of payload that a connected QP copied before they left. */
	DGIWARPDV_OCTETS_STAGED,
	/* Octets of unfinished FPDUs that a connected QP kept until the rest arrived. */
	DGIWARPDV_OCTETS_KEPT,
	/* Segments on a connection that waited for a receive to be posted. */
	DGIWARPDV_PARKED,
	/* Trains cut anew because the path takes less than before. */
	DGIWARPDV_RESIZED,
	/* Messages that the network refused. */
	DGIWARPDV_SEND_ERRORS,
	/* Entries that found the error queue full. */
	DGIWARPDV_ERRORS_LOST,
	/* Datagrams lost on purpose (DGIWARP_FAULT). */
	DGIWARPDV_FAULT_DROPPED,
	/* Datagrams that arrived twice on purpose. */
	DGIWARPDV_FAULT_DUPLICATED,
	/* Datagrams set aside on purpose, to be overtaken. */
	DGIWARPDV_FAULT_REORDERED,
	/* Datagrams of which a bit was flipped on purpose; the CRC finds them, so they are dropped as bad-crc too. */
	DGIWARPDV_FAULT_CORRUPTED,
	/* Datagrams delayed on purpose. */
	DGIWARPDV_FAULT_DELAYED,
	/* Datagrams lost because too many were delayed. */
	DGIWARPDV_FAULT_OVERFLOWED,
	/* Read Requests sent, those that asked again included. */
	DGIWARPDV_READ_REQUESTS_SENT,
	/* Read Requests that asked for missing octets again. */
	DGIWARPDV_READ_REPEATS,
	/* Segments sent that answer Read Requests. */
	DGIWARPDV_READ_RESPONSES_SENT,
	/* Reads whose time was over before they were complete. */
	DGIWARPDV_READS_TIMED_OUT,
	/* Shorter than its headers and CRC, or fields that contradict each other. */
	DGIWARPDV_DROPPED_MALFORMED,
	/* CRC32c wrong. */
	DGIWARPDV_DROPPED_BAD_CRC,
	/* Format not implemented. */
	DGIWARPDV_DROPPED_UNKNOWN_FORMAT,
	/* DV or RV wrong. */
	DGIWARPDV_DROPPED_BAD_VERSION,
	/* Opcode not allowed on datagrams or not implemented. */
	DGIWARPDV_DROPPED_UNEXPECTED_OPCODE,
	/* Q_Key differs. */
	DGIWARPDV_DROPPED_BAD_QKEY,
	/* No posted receive. */
	DGIWARPDV_DROPPED_NO_RECEIVE,
	/* Message longer than the receive. */
	DGIWARPDV_DROPPED_RECEIVE_TOO_SHORT,
	/* Too many incomplete Sends. */
	DGIWARPDV_DROPPED_REASSEMBLY_FULL,
	/* An incomplete Send was given up; counted per message. */
	DGIWARPDV_DROPPED_REASSEMBLY_TIMEOUT,
	/* An incomplete Send gave way to newer ones of its source; counted per message. */
	DGIWARPDV_DROPPED_REASSEMBLY_SUPERSEDED,
	/* The QP does not take Write-Records. */
	DGIWARPDV_DROPPED_WRITE_RECORD_OFF,
	/* STag unknown. */
	DGIWARPDV_DROPPED_BAD_STAG,
	/* Region of another protection domain. */
	DGIWARPDV_DROPPED_BAD_PD,
	/* No remote write access. */
	DGIWARPDV_DROPPED_NO_ACCESS,
	/* The region is restricted to another peer, or the QP is connected to another one. */
	DGIWARPDV_DROPPED_WRONG_PEER,
	/* Cookie missing or wrong. */
	DGIWARPDV_DROPPED_BAD_COOKIE,
	/* STag not well-known, sent to a group. */
	DGIWARPDV_DROPPED_NOT_WELL_KNOWN,
	/* Outside the region. */
	DGIWARPDV_DROPPED_OUT_OF_BOUNDS,
	/* Message closed or too old. */
	DGIWARPDV_DROPPED_LATE,
	/* Every octet there already. */
	DGIWARPDV_DROPPED_DUPLICATE,
	/* Source table full. */
	DGIWARPDV_DROPPED_NO_SOURCE_SLOT,
	/* A validity map would need a 65th range. */
	DGIWARPDV_DROPPED_MAP_FULL,
	/* A Read Request without a valid cookie asked for more than three times its size. */
	DGIWARPDV_DROPPED_UNVALIDATED_READ,
	/* Too many requests of one requester. */
	DGIWARPDV_DROPPED_READ_QUEUE_FULL,
	/* A cookie or a Terminate that answers nothing outstanding, or a datagram of service lookup that does. */
	DGIWARPDV_DROPPED_UNSOLICITED,
	/* Too many lookups of a service wait for its program. */
	DGIWARPDV_DROPPED_BACKLOG_FULL,
	/* A UC Write was given up incomplete; counted per message, its octets are placed. */
	DGIWARPDV_DROPPED_INCOMPLETE_WRITE,
	/* Placed but not recorded; counted per segment. */
	DGIWARPDV_DROPPED_RECORD_DROPPED,
	/* Placed and in the map, but no slot was free to report the segment; counted per segment. */
	DGIWARPDV_DROPPED_SEGMENT_UNREPORTED,
	/* How many this header knows. */
	DGIWARPDV_COUNTERS
};

/*
 * Writes the first count counters of a queue pair, of any type, since it was made; zero where the library knows none. Returns how many the library
 * knows.
 */
DGIWARPDV_API int dgiwarpdv_query_counters(struct ibv_qp *qp, uint64_t *values, int count);

/* The same, of all queue pairs that the context has and had. */
DGIWARPDV_API int dgiwarpdv_query_device_counters(struct ibv_context *context, uint64_t *values, int count);

/* The name of a counter, as DGIWARP_STATS has it, or NULL if the library does not know it. */
DGIWARPDV_API const char *dgiwarpdv_counter_name(int counter);

#ifdef __cplusplus
}
#endif

#endif
