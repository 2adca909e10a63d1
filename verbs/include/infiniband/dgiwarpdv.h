/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Direct verbs of the dgiwarp software RNIC: extensions of its datagram queue pairs.
 *
 * UD queue pairs of dgiwarp write and read the memory of any peer without a connection. An RDMA Write to an address handle is a Write-Record: its
 * segments are placed as they arrive, in any order and with gaps, and the data sink gets one completion for the message with a map of the valid ranges.
 * An RDMA Read has a deadline, after which a map describes what arrived. Loss never ends a queue pair.
 *
 * Writing and reading need no function of this header:
 *
 *	ibv_wr_start(qpx);
 *	qpx->wr_id = 1;
 *	qpx->wr_flags = IBV_SEND_SIGNALED;
 *	ibv_wr_rdma_write(qpx, rkey, remote_addr);	or ibv_wr_rdma_write_imm, ibv_wr_rdma_read
 *	ibv_wr_set_sge(qpx, lkey, addr, length);
 *	ibv_wr_set_ud_addr(qpx, ah, qpn, 0);
 *	ibv_wr_complete(qpx);
 *
 * on a UD queue pair created by ibv_create_qp_ex with IBV_QP_EX_WITH_RDMA_WRITE and the like among send_ops_flags. ibv_post_send fails with EINVAL: in
 * struct ibv_send_wr, address handle and remote address share their memory.
 *
 * Receiving Write-Records needs a queue pair created by dgiwarpdv_create_qp.
 *
 * Reliable datagram queue pairs (RD) send to any peer, too, and lose nothing: Sends, Writes, Reads and atomics are carried out once, in the order of their posts
 * to one peer. They are of type IBV_QPT_DRIVER, and dgiwarpdv_create_qp makes them with DGIWARPDV_QP_DRIVER_TYPE_RD. Both ends have to be such queue pairs.
 *
 * Building: cc app.c $(pkg-config --cflags --libs dgiwarp). The functions have the symbol version DGIWARP_1.0 in dgiwarp's libibverbs.so.1; rdma-core's
 * library does not have them. A program for hardware too defines DGIWARPDV_WEAK before it includes this header and is linked with -libverbs alone. It
 * starts without the functions, which are then NULL:
 *
 *	if (dgiwarpdv_is_supported && dgiwarpdv_is_supported(device))
 *
 * Functions that return an int return -1 and set errno on failure. Structs that begin with size need sizeof the struct there: fields that the library
 * does not have must be zero (else EOPNOTSUPP), and fields that the program does not have get their defaults. Zero is the default of every field. QPNs
 * are UDP port numbers. Examples are in verbs/examples/c; the manual page is dgiwarpdv(7).
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

/* Version of this interface, major << 16 | minor. Minor versions only add. dgiwarpdv_version returns that of the library. */
#define DGIWARPDV_VERSION 0x00010001u

#ifdef DGIWARPDV_WEAK
#define DGIWARPDV_API __attribute__((weak))
#else
#define DGIWARPDV_API
#endif

/* Version of the interface in the library. */
DGIWARPDV_API uint32_t dgiwarpdv_version(void);

/* Whether the device is dgiwarp's: the other functions work on no other. */
DGIWARPDV_API bool dgiwarpdv_is_supported(struct ibv_device *device);

/* ---- Queue pairs ---- */

/*
 * Opcodes of completions on the receive side. Both have IBV_WC_RECV set, and consume no posted receive.
 *
 * DGIWARPDV_WC_WRITE_RECORD: a Write-Record is complete or closed. wr_id is the record, byte_len the number of its valid bytes, src_qp the QPN of the
 * data source, and imm_data the immediate if wc_flags has IBV_WC_WITH_IMM. The status is always success: the map shows missing ranges.
 *
 * DGIWARPDV_WC_RECORD_SEGMENT, with DGIWARPDV_QP_SEGMENT_COMPLETIONS only: byte_len bytes of a record became valid, from offset vendor_err of the message
 * on. The record gets its own completion, later or directly afterwards.
 */
#define DGIWARPDV_WC_WRITE_RECORD IBV_WC_DRIVER1
#define DGIWARPDV_WC_RECORD_SEGMENT IBV_WC_DRIVER2

enum dgiwarpdv_qp_flags {
	/* The queue pair receives Write-Records. Otherwise they are dropped and counted (DGIWARPDV_DROPPED_WRITE_RECORD_OFF). */
	DGIWARPDV_QP_RECORDS = 1 << 0,
	/* Each placed segment has a completion, for programs that process a message while it arrives. */
	DGIWARPDV_QP_SEGMENT_COMPLETIONS = 1 << 1,
};

enum dgiwarpdv_qp_driver_type {
	/* Reliable datagrams. */
	DGIWARPDV_QP_DRIVER_TYPE_RD = 1,
};

struct dgiwarpdv_qp_init_attr {
	size_t size;
	/* enum dgiwarpdv_qp_flags */
	uint32_t flags;
	/* Records that are kept until their release: at most 65536, by default 256. The receive CQ grows by as many entries. While all are in use, messages
	 * are placed without a record (DGIWARPDV_DROPPED_RECORD_DROPPED, DGIWARPDV_EVENT_RECORD_RING_FULL). */
	uint32_t record_slots;
	/* Entries of the receive CQ for segments: at most 65536, by default 1024. A segment without a free entry is in the map only. */
	uint32_t segment_slots;
	/* Milliseconds without a segment after which a record is closed; by default DGIWARP_RECORD_TIMEOUT_MS. */
	uint32_t record_timeout_ms;
	/* Distance in message numbers after which a newer message of the source closes a record: 1 to 1023, by default 64. */
	uint32_t reorder_window;
	/* UD: time limit of Reads without one of their own, in milliseconds; by default DGIWARP_READ_TIMEOUT_MS. */
	uint32_t read_timeout_ms;
	/* Bytes per second to send at most, with headers; by default DGIWARP_MAX_RATE. There is no other flow control: a message longer than the data sink's
	 * receive buffer arrives whole only at a rate that the sink can process. */
	uint64_t max_rate;
	/* Address and UDP port number to bind, for firewalls; the port number becomes the QPN. EADDRINUSE if it is in use. */
	const struct sockaddr *bind_addr;
	socklen_t bind_addr_len;
	/* enum dgiwarpdv_qp_driver_type, for queue pairs of type IBV_QPT_DRIVER; else 0. */
	uint32_t driver_qp_type;
	/* RD: milliseconds of silence of a peer, with work requests to it not complete, after which these fail with IBV_WC_RETRY_EXC_ERR; by default 4000. */
	uint32_t unreachable_ms;
	uint32_t reserved;
};

/*
 * ibv_create_qp_ex(3) with further attributes for UD and UC queue pairs. Without send_ops_flags the queue pair receives Write-Records and sends with
 * ibv_post_send only. dv may be NULL. EOPNOTSUPP for other types of queue pairs, unless every field of dv has its default.
 *
 * With driver_qp_type it creates a reliable datagram queue pair (RD), of type IBV_QPT_DRIVER; of the attributes above it has bind_addr. Its states are those of
 * UD; IBV_QP_RNR_RETRY is optional with RTS. All operations of ibv_wr_post(3) but those on local keys are possible, each with ibv_wr_set_ud_addr; ibv_post_send
 * has Sends. Received messages have no GRH in front: dgiwarpdv_wc_source and dgiwarpdv_wc_create_ah find their sender.
 *
 * A work request completes when it is carried out at the peer. One that fails has the cause as status, and other work requests to this peer that were posted
 * before the failure are flushed (IBV_WC_WR_FLUSH_ERR): they may have been carried out. The queue pair goes on, with other peers undisturbed, and with this one from
 * the next post on. Causes: IBV_WC_RETRY_EXC_ERR, the peer was silent; IBV_WC_REM_ABORT_ERR, it restarted or was destroyed; IBV_WC_RNR_RETRY_EXC_ERR, it had
 * no receive; IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR and IBV_WC_REM_OP_ERR, it refused; IBV_WC_BAD_RESP_ERR, it violated the protocol.
 * dgiwarpdv_poll_error reports peers and causes.
 */
DGIWARPDV_API struct ibv_qp *dgiwarpdv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
						 const struct dgiwarpdv_qp_init_attr *dv);

struct dgiwarpdv_qp_attr {
	size_t size;
	/* Receive buffer of the socket in bytes, as the kernel counts with its overhead. Up to a quarter of it in flight always has room. */
	uint64_t receive_buffer;
};

/* Queries attributes of a UD, UC or RD queue pair that verbs do not have. The program sets attr->size. */
DGIWARPDV_API int dgiwarpdv_query_qp(struct ibv_qp *qp, struct dgiwarpdv_qp_attr *attr);

/* Limits the bytes per second that a UD or UC queue pair sends; 0 is no limit. */
DGIWARPDV_API int dgiwarpdv_set_max_rate(struct ibv_qp *qp, uint64_t bytes_per_second);

/* ---- Completions ---- */

/*
 * ibv_poll_cq(3) that sleeps until there is a completion, at most timeout_ms milliseconds, or without limit if negative. Returns the number of
 * completions, and 0 after the time-out. -1 with EINTR after a signal handler. A cancellation point.
 */
DGIWARPDV_API int dgiwarpdv_wait_cq(struct ibv_cq *cq, int timeout_ms, int num_entries, struct ibv_wc *wc);

struct dgiwarpdv_wc_source {
	size_t size;
	/* Address, QPN and, for a link-local address, the interface index. */
	union ibv_gid gid;
	uint32_t qpn;
	uint32_t scope_id;
};

/*
 * Sender of the message whose completion ibv_start_poll(3) or ibv_next_poll has reached; UD, UC and RD. The program sets source->size. ENOENT for other
 * completions.
 */
DGIWARPDV_API int dgiwarpdv_wc_source(struct ibv_cq_ex *cq, struct dgiwarpdv_wc_source *source);

/*
 * An address handle for this sender, whose messages leave from the address that the sender has used; to be destroyed with ibv_destroy_ah(3). The QPN is that of
 * ibv_wc_read_src_qp.
 */
DGIWARPDV_API struct ibv_ah *dgiwarpdv_wc_create_ah(struct ibv_cq_ex *cq, struct ibv_pd *pd);

/* ---- Ports ---- */

/*
 * Makes identifiers of rdma_cm in this process that are bound to a TCP port, or listen there, give it up for another socket of the program. They listen on
 * at a TCP port of the system's choice; other ends that run dgiwarp find them through the UDP port of the same number. fd is the socket that the port is for, or
 * -1. Returns the number of identifiers that gave the port up. dgiwarp-run calls it for each socket that finds its port taken.
 */
DGIWARPDV_API int dgiwarpdv_yield_port(int fd, uint16_t port);

/* ---- Tests of programs ---- */

/*
 * Raises the events of a device that goes away: IBV_EVENT_DEVICE_FATAL in all open contexts of this process, and RDMA_CM_EVENT_DEVICE_REMOVAL at all
 * identifiers of rdma_cm that are bound to an address of the device. Nothing else changes: the program's objects work until it destroys them, and the device may
 * be opened again. Returns the number of contexts and identifiers. A debugger may call it in any program: gdb -p PID -ex 'call (int)dgiwarpdv_remove_device()'.
 */
DGIWARPDV_API int dgiwarpdv_remove_device(void);

/* ---- Records: Write-Records at the data sink ---- */

/* Bytes of a message from offset start up to, but without, end. */
struct dgiwarpdv_range {
	uint32_t start;
	uint32_t end;
};

/* Most ranges of a map. */
#define DGIWARPDV_MAX_RANGES 64

enum dgiwarpdv_record_flags {
	/* The message has an immediate: imm_data. */
	DGIWARPDV_RECORD_WITH_IMM = 1 << 0,
};

struct dgiwarpdv_record_info {
	size_t size;
	/* Start of the message, in the address space of the region. */
	uint64_t remote_addr;
	/* The region's rkey. */
	uint32_t rkey;
	/* Length of the message in bytes. */
	uint32_t length;
	/* Number of valid bytes. */
	uint32_t valid;
	/* Number of valid ranges. */
	uint32_t num_ranges;
	/* enum dgiwarpdv_record_flags */
	uint32_t flags;
	/* In network byte order, as in struct ibv_wc. */
	__be32 imm_data;
	/* Data source: address, QPN and, for a link-local address, the interface index. */
	union ibv_gid gid;
	uint32_t qpn;
	uint32_t scope_id;
};

/*
 * Queries a record: the wr_id of a completion on the queue pair with its qp_num. Completions of segments name open records, which can be queried too. The
 * program sets info->size. ENOENT after the release.
 */
DGIWARPDV_API int dgiwarpdv_record_info(struct ibv_qp *qp, uint64_t record, struct dgiwarpdv_record_info *info);

/* Valid ranges, ascending and not adjacent: writes at most max of them and returns the number of all. */
DGIWARPDV_API int dgiwarpdv_record_ranges(struct ibv_qp *qp, uint64_t record, struct dgiwarpdv_range *ranges, int max);

/*
 * Valid ranges as a bitmap: bit i % 8 of byte i / 8 is set if bytes i * granule to (i + 1) * granule of the message are all valid. Writes size bytes,
 * zeroes behind the bitmap's end, and returns the length of the bitmap in bytes. EINVAL if granule is 0.
 */
DGIWARPDV_API int dgiwarpdv_record_bitmap(struct ibv_qp *qp, uint64_t record, uint32_t granule, void *bitmap, size_t size);

/* Releases a completed record. ENOENT if it was released before. */
DGIWARPDV_API int dgiwarpdv_record_release(struct ibv_qp *qp, uint64_t record);

/* Closes all open records of a queue pair with their present maps. Later segments of them are dropped before placement. */
DGIWARPDV_API int dgiwarpdv_record_complete_now(struct ibv_qp *qp);

/* ---- Work requests, between ibv_wr_start and ibv_wr_complete, see ibv_wr_post(3) ---- */

/*
 * A Write-Record. On UD, ibv_wr_rdma_write and ibv_wr_rdma_write_imm are Write-Records too; on UC they are Writes without a record. The queue pair needs
 * IBV_QP_EX_WITH_RDMA_WRITE or IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.
 */
DGIWARPDV_API void dgiwarpdv_wr_write_record(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr);
DGIWARPDV_API void dgiwarpdv_wr_write_record_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, __be32 imm_data);

/* Sets the time limit of the preceding ibv_wr_rdma_read; UD. */
DGIWARPDV_API void dgiwarpdv_wr_set_read_timeout(struct ibv_qp_ex *qp, uint32_t timeout_ms);

/* ---- Reads that failed ---- */

/*
 * A Read on UD that is incomplete at its time limit ends with IBV_WC_RESP_TIMEOUT_ERR; vendor_err is the errno value of an ICMP error from the peer's
 * host, or 0. Octets that arrived are placed. This function takes their map, once for each such Read, the latest one of this wr_id: writes at most max
 * ranges, of at most DGIWARPDV_MAX_RANGES, and the length of the Read to length unless it is NULL. Returns the number of ranges. ENOENT without a failed
 * Read of this wr_id; the latest 256 maps are kept.
 */
DGIWARPDV_API int dgiwarpdv_take_read_map(struct ibv_qp *qp, uint64_t wr_id, uint32_t *length, struct dgiwarpdv_range *ranges,
					  int max);

/* Converts ranges of a message of length bytes to a bitmap like that of dgiwarpdv_record_bitmap. */
DGIWARPDV_API int dgiwarpdv_bitmap(uint32_t length, const struct dgiwarpdv_range *ranges, int num_ranges, uint32_t granule,
				   void *bitmap, size_t size);

/* ---- The error queue ---- */

enum dgiwarpdv_error_reason {
	/* The peer has sent a Terminate (RFC 5040, section 4.8), or with RD an ERROR: layer, error_type and code. */
	DGIWARPDV_ERROR_TERMINATE = 1,
	/* ICMP error: network_errno is ECONNREFUSED if no queue pair has the QPN, EHOSTUNREACH or another errno value. */
	DGIWARPDV_ERROR_NETWORK = 2,
	/* RD: the peer was silent for too long. */
	DGIWARPDV_ERROR_UNREACHABLE = 3,
	/* RD: the message found no receive too often. */
	DGIWARPDV_ERROR_RNR_RETRIES = 4,
	/* RD: the peer restarted; work requests that were under way may have been carried out. */
	DGIWARPDV_ERROR_RESTARTED = 5,
	/* RD: the peer violated the protocol. */
	DGIWARPDV_ERROR_VIOLATION = 6,
	/* RD: the peer ended the association with work requests under way, which may have been carried out. */
	DGIWARPDV_ERROR_CLOSED = 7,
};

struct dgiwarpdv_error {
	size_t size;
	/* enum dgiwarpdv_error_reason; later versions may add reasons. */
	uint32_t reason;
	/* Destination of the message. */
	uint32_t qpn;
	union ibv_gid gid;
	uint32_t scope_id;
	/* Whether message has the message number on the wire, as in files of DGIWARP_PCAP. */
	uint32_t has_message;
	uint32_t message;
	int32_t network_errno;
	uint8_t layer;
	uint8_t error_type;
	uint8_t code;
	uint8_t reserved[5];
};

/*
 * Polls the error queue: errors of messages sent earlier, oldest first, reported by peers and by the network. They do not end the queue pair. Returns 1 with
 * an entry, 0 without one. The program sets error->size. The queue has 256 entries; errors beyond are counted (DGIWARPDV_ERRORS_LOST). UD, UC and RD; with RD an
 * entry is about a work request that the peer refused, or a peer with which the association ended.
 */
DGIWARPDV_API int dgiwarpdv_poll_error(struct ibv_qp *qp, struct dgiwarpdv_error *error);

/*
 * Event types of ibv_get_async_event(3), about element.qp, for contexts with dgiwarpdv_enable_events. They are acknowledged like other events.
 *
 * DGIWARPDV_EVENT_ERROR_QUEUE: the error queue was empty and has an entry.
 * DGIWARPDV_EVENT_RECORD_RING_FULL: a Write-Record found all records in use. Raised once, and again after a record was released.
 */
#define DGIWARPDV_EVENT_ERROR_QUEUE ((enum ibv_event_type)30)
#define DGIWARPDV_EVENT_RECORD_RING_FULL ((enum ibv_event_type)31)

/* Enables these events for all queue pairs of a context. */
DGIWARPDV_API int dgiwarpdv_enable_events(struct ibv_context *context);

/* ---- Memory ---- */

/* resource_type of allocators of parent domains (ibv_alloc_parent_domain(3)). */
enum dgiwarpdv_res_type {
	/* Memory of a UD or UC queue pair for inline data. */
	DGIWARPDV_RES_TYPE_QP = 1,
};

enum dgiwarpdv_mr_flags {
	/* Peers and work requests address the region by iova instead of its address in this process. */
	DGIWARPDV_MR_IOVA = 1 << 0,
	/* Only the queue pair with this address and QPN may access the region; segments of others are dropped (DGIWARPDV_DROPPED_WRONG_PEER). */
	DGIWARPDV_MR_ONLY_FROM = 1 << 1,
	/* Only validated addresses may write the region: peers with a cookie (DGIWARPDV_DROPPED_BAD_COOKIE). */
	DGIWARPDV_MR_COOKIE = 1 << 2,
	/* The rkey is well_known; EADDRINUSE if it is in use. Messages to a group can write such regions only, because its members need equal rkeys. The rkey
	 * is no secret: register nothing else in such a region. */
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
 * ibv_reg_mr(3) with restrictions or a chosen rkey. Restricted regions are for datagrams: connected peers cannot access them. ibv_rereg_mr removes the
 * restrictions.
 */
DGIWARPDV_API struct ibv_mr *dgiwarpdv_reg_mr(struct ibv_pd *pd, const struct dgiwarpdv_mr_init_attr *attr);

/*
 * Address validation: gets a cookie from a peer's queue pair, in one round trip without its program, and returns a copy of the address handle with the
 * cookie. Messages with this handle may write regions with DGIWARPDV_MR_COOKIE. The cookie holds for this queue pair, address and QPN until the peer's
 * queue pair is reset or destroyed. ibv_destroy_ah destroys the copy. ETIMEDOUT without an answer within timeout_ms milliseconds. UD.
 */
DGIWARPDV_API struct ibv_ah *dgiwarpdv_prove_address(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, int timeout_ms);

/* ---- Counters ---- */

/*
 * Counters of queue pairs: indices in the arrays of the two functions below. The order is fixed; later versions append. DROPPED counters are of segments by
 * drop reason; the last of them count segments that were placed.
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
	/* Octets of payload that a connected QP copied before sending. */
	DGIWARPDV_OCTETS_STAGED,
	/* Octets of incomplete FPDUs that a connected QP buffered. */
	DGIWARPDV_OCTETS_KEPT,
	/* Segments on a connection that waited for a posted receive (RNR queue). */
	DGIWARPDV_PARKED,
	/* Trains that were segmented again for a smaller path MTU. */
	DGIWARPDV_RESIZED,
	/* Messages that the network refused. */
	DGIWARPDV_SEND_ERRORS,
	/* Errors beyond the capacity of the error queue. */
	DGIWARPDV_ERRORS_LOST,
	/* Datagrams dropped by fault injection (DGIWARP_FAULT). */
	DGIWARPDV_FAULT_DROPPED,
	/* Datagrams duplicated by fault injection. */
	DGIWARPDV_FAULT_DUPLICATED,
	/* Datagrams reordered by fault injection. */
	DGIWARPDV_FAULT_REORDERED,
	/* Datagrams corrupted by fault injection; counted as bad-crc too. */
	DGIWARPDV_FAULT_CORRUPTED,
	/* Datagrams delayed by fault injection. */
	DGIWARPDV_FAULT_DELAYED,
	/* Datagrams dropped because too many were delayed. */
	DGIWARPDV_FAULT_OVERFLOWED,
	/* Read Requests sent, with repetitions. */
	DGIWARPDV_READ_REQUESTS_SENT,
	/* Repeated Read Requests for missing octets. */
	DGIWARPDV_READ_REPEATS,
	/* Read Response segments sent. */
	DGIWARPDV_READ_RESPONSES_SENT,
	/* Reads incomplete at their time limit. */
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
	/* An incomplete Send timed out; counted per message. */
	DGIWARPDV_DROPPED_REASSEMBLY_TIMEOUT,
	/* An incomplete Send was superseded by newer ones of its source; counted per message. */
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
	/* All octets were valid before. */
	DGIWARPDV_DROPPED_DUPLICATE,
	/* Source table full. */
	DGIWARPDV_DROPPED_NO_SOURCE_SLOT,
	/* A validity map would need a 65th range. */
	DGIWARPDV_DROPPED_MAP_FULL,
	/* A Read Request without a valid cookie asked for more than three times its size. */
	DGIWARPDV_DROPPED_UNVALIDATED_READ,
	/* Too many requests of one requester. */
	DGIWARPDV_DROPPED_READ_QUEUE_FULL,
	/* A cookie, Terminate or SIDR reply without an outstanding request. */
	DGIWARPDV_DROPPED_UNSOLICITED,
	/* Too many SIDR requests wait for the program. */
	DGIWARPDV_DROPPED_BACKLOG_FULL,
	/* An incomplete UC Write was closed; counted per message, its octets are placed. */
	DGIWARPDV_DROPPED_INCOMPLETE_WRITE,
	/* Placed but not recorded; counted per segment. */
	DGIWARPDV_DROPPED_RECORD_DROPPED,
	/* Placed and in the map, but no slot was free to report the segment; counted per segment. */
	DGIWARPDV_DROPPED_SEGMENT_UNREPORTED,
	/* Octets of FPDUs through memory shared with a peer on this host. */
	DGIWARPDV_LANE_OCTETS_SENT,
	DGIWARPDV_LANE_OCTETS_RECEIVED,
	/* Connections within one host that stayed on TCP, by reason. */
	DGIWARPDV_LANE_REFUSED_BUDGET,
	DGIWARPDV_LANE_REFUSED_MEMORY,
	DGIWARPDV_LANE_REFUSED_UNREACHABLE,
	DGIWARPDV_LANE_REFUSED_OFFER,
	DGIWARPDV_LANE_REFUSED_LATE,
	DGIWARPDV_LANE_REFUSED_USER,
	/* Octets of those that arrived through shared memory whose payload was placed straight from there. */
	DGIWARPDV_LANE_OCTETS_PLACED,
	/* Writes and Reads that the queue pair did alone, by copying to or from the memory of a peer on this host, and their octets. */
	DGIWARPDV_ONE_SIDED_OPERATIONS,
	DGIWARPDV_ONE_SIDED_OCTETS,
	/* Number of counters in this header. */
	DGIWARPDV_COUNTERS
};

/*
 * Writes the first count counters of a queue pair of any type since its creation; zero for counters that the library does not have. Returns the number of
 * the library's counters.
 */
DGIWARPDV_API int dgiwarpdv_query_counters(struct ibv_qp *qp, uint64_t *values, int count);

/* Counters of all queue pairs of the context, with those that were destroyed. */
DGIWARPDV_API int dgiwarpdv_query_device_counters(struct ibv_context *context, uint64_t *values, int count);

/* Name of a counter, as in DGIWARP_STATS; NULL if the library does not have it. */
DGIWARPDV_API const char *dgiwarpdv_counter_name(int counter);

#ifdef __cplusplus
}
#endif

#endif
