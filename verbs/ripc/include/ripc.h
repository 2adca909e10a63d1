/*
 * The functions of LibRIPC (2012), on dgiwarp. Programs link with -lripc.
 *
 * A service is a number from 1 to 65535. Services of other processes are found in the file named by RIPC_SERVICES, else in the multicast
 * group. RIPC_LISTEN is the address and port to be called at (0.0.0.0:0), RIPC_INTERFACE the address of the one interface to find services on.
 */
#ifndef RIPC_H_
#define RIPC_H_

#include <stdint.h>
#include <sys/types.h>

/* Octets that a short message has room for, with 24 for each item. */
#define RIPC_SHORT_MAX 8000

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the library, as the first call of any other function does. Returns 1, or 0 if that fails. */
uint8_t ripc_init(void);

#ifndef RIPC_NO_INIT
static inline uint8_t init(void)
{
	return ripc_init();
}
#endif

/* Takes a free number for a service of this process; 0 if there is none. */
uint16_t ripc_register_random_service_id(void);
/* Takes this number for a service of this process. Returns 1, or 0 if this process has it already or it is no number of a service. */
uint8_t ripc_register_service_id(int service_id);

/* Memory of the library, filled with zeroes; NULL without memory. */
void *ripc_buf_alloc(size_t size);
/* Gives up the memory that this address lies in: of ripc_buf_alloc, of a received item, or registered. All short items of one message are one piece of memory. */
void ripc_buf_free(void *buf);
/* Registers memory of the program, which must stay until it is given up: it is sent without a copy. Returns 0, or 1 if it reaches beyond registered memory. */
uint8_t ripc_buf_register(void *buf, size_t size);
/* Gives memory for the next long item that is long enough for it and was not written into a return buffer. NULL: the library's own, which it uses anyway. Returns 0, or 1 for memory of no length. */
uint8_t ripc_reg_recv_window(void *base, size_t size);

/*
 * Sends a message of short items, at most RIPC_SHORT_MAX octets, which are copied. Return buffers are memory that the receiver may write a long item of a
 * later message to; NULL: the library's own. Returns 0, or another value if the message was not sent: too long, no such service, no connection.
 */
uint8_t ripc_send_short(
		uint16_t src,
		uint16_t dest,
		void **buf,
		uint32_t *length,
		uint16_t num_items,
		void **return_bufs,
		uint32_t *return_buf_lengths,
		uint16_t num_return_bufs
		);

/*
 * Sends a message of long items. Memory of ripc_buf_alloc, and registered memory, is sent where it lies and must not change until the receiver has it; other memory
 * is copied. Returns as ripc_send_short.
 */
uint8_t ripc_send_long(
		uint16_t src,
		uint16_t dest,
		void **buf,
		uint32_t *length,
		uint16_t num_items,
		void **return_bufs,
		uint32_t *return_buf_lengths,
		uint16_t num_return_bufs
		);

/*
 * Waits for a message to a service. The arrays are of malloc(3), and the program frees them; ripc_buf_free gives up the items. Returns 0, or 1 if this process
 * has no such service.
 */
uint8_t ripc_receive(
		uint16_t service_id,
		uint16_t *from_service_id,
		void ***short_items,
		uint32_t **short_item_sizes,
		uint16_t *num_short_items,
		void ***long_items,
		uint32_t **long_item_sizes,
		uint16_t *num_long_items
		);

#ifdef __cplusplus
}
#endif

#endif /* RIPC_H_ */
